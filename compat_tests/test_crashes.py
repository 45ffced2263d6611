"""kill -9 under load, an incomplete last batch, a full disk: no acknowledged record is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CONFLUENT, KAFKA_PYTHON, Agent, Client, Record
from compat_tests.harness.proxy import CuttingProxy
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until

Agents = Callable[[Client], Agent]


class Load:
    """A producer that writes numbers to a topic's partitions in turn, and goes on when the broker is killed.

    Attributes:
        acknowledged: by partition, the numbers that the broker has acknowledged, with their offsets.
        failures: the errors of the records that the producer gave up.
    """

    def __init__(self, bootstrap: str, topic: str, partition_count: int, **settings: object) -> None:
        self.topic = topic
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(partition_count)]
        self.failures: list[KafkaError] = []
        self.sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": 100,
                "queue.buffering.max.messages": 2000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "message.timeout.ms": 60_000,
                **settings,
            }
        )
        self._is_told_to_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_told_to_stop.is_set():
            number, partition = self.sent, self.sent % len(self.acknowledged)
            try:
                self._producer.produce(self.topic, f"{number} {'.' * 200}", partition=partition, on_delivery=self._note(number))
                self.sent += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)

    def _note(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def note(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged[message.partition()][number] = message.offset()
            else:
                self.failures.append(error)

        return note

    def count(self) -> int:
        """Returns the number of acknowledged records."""
        return sum(map(len, self.acknowledged))

    def wait_for(self, more: int) -> None:
        """Waits until `more` further records are acknowledged."""
        target = self.count() + more
        wait_until(lambda: self.count() >= target, timeout_s=60, what=f"{more} more records are acknowledged")

    def stop(self) -> None:
        """Stops writing and waits for the outstanding records."""
        self._is_told_to_stop.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0


def number_of(record: Record) -> int:
    return int((record.value or b"").split()[0])


def test_kill_9_under_load_loses_and_repeats_nothing_that_was_acknowledged(
    make_broker: Callable[..., Broker], proxy: CuttingProxy, agent: Agents
) -> None:
    broker = make_broker({"log.segment.bytes": "1048576"}, advertised=proxy.bootstrap)
    proxy.upstream = broker.address
    create_topic(broker.bootstrap, "load", 3)
    load = Load(proxy.bootstrap, "load", 3)
    try:
        for _ in range(3):
            load.wait_for(3000)
            broker.kill()
            broker.start()
            proxy.upstream = broker.address
        load.wait_for(1000)
    finally:
        load.stop()
    assert load.failures == []
    found = agent(CONFLUENT).read(broker.bootstrap, "load", load.sent, timeout_s=60)
    for partition, acknowledged in enumerate(load.acknowledged):
        mine = [record for record in found if record.partition == partition]
        assert [record.offset for record in mine] == list(range(len(mine)))
        numbers = [number_of(record) for record in mine]
        assert numbers == sorted(set(numbers)), "each once, in order"
        assert {number: record.offset for number, record in zip(numbers, mine, strict=True)} == acknowledged


@pytest.mark.parametrize("tear", ["half a batch", "garbage", "zeros"])
def test_a_torn_tail_is_cut_at_the_last_whole_batch_and_told(
    make_broker: Callable[..., Broker], broker_kind: str, agent: Agents, tear: str
) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, "torn")
    written = [Record(b"k", os.urandom(100), timestamp_ms=1_700_000_000_000 + n) for n in range(50)]
    for start in range(0, 50, 10):
        agent(KAFKA_PYTHON).produce(broker.bootstrap, "torn", written[start : start + 10])
    broker.kill()
    log = broker.data_dir / "torn-0" / f"{0:020}.log"
    whole = log.read_bytes()
    torn = {"half a batch": whole[: len(whole) // 10], "garbage": os.urandom(500), "zeros": b"\0" * 4096}[tear]
    log.write_bytes(whole + torn)
    before = len(broker.log_text())
    broker.start()
    assert agent(CONFLUENT).read(broker.bootstrap, "torn", 50) == written
    more = [Record(b"k", b"behind", timestamp_ms=1_700_000_001_000)]
    agent(KAFKA_PYTHON).produce(broker.bootstrap, "torn", more)
    found = agent(CONFLUENT).read(broker.bootstrap, "torn", 51)
    assert found == written + more
    assert [record.offset for record in found] == list(range(51))
    if broker_kind == "wirekafka":
        told = [line for line in broker.log_text()[before:].splitlines() if "torn-0" in line and str(len(torn)) in line]
        assert len(told) == 1, "the log says how much was cut"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of 24 MiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    place = tmp_path / "small-disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.wirekafka_only("goes on when its disk is full, where Apache Kafka ends")
def test_a_full_disk_is_an_error_for_producers_and_loses_nothing(
    make_broker: Callable[..., Broker], agent: Agents, small_disk: Path
) -> None:
    broker = make_broker({"log.segment.bytes": "2097152"}, directory=small_disk)
    create_topic(broker.bootstrap, "filling", 2)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (6 << 20))

    def produce(first: int, count: int) -> tuple[dict[int, int], list[KafkaError]]:
        """Writes numbered records of 10 kB; returns those that were acknowledged, and the errors."""
        acknowledged: dict[int, int] = {}
        refused: list[KafkaError] = []
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 1, "message.timeout.ms": 3000, "batch.num.messages": 10}
        )
        for number in range(first, first + count):

            def note(error: KafkaError | None, message: Message, number: int = number) -> None:
                if error is None:
                    acknowledged[number] = message.partition()
                else:
                    refused.append(error)

            producer.produce("filling", b"%d " % number + os.urandom(10_000), partition=number % 2, on_delivery=note)
            producer.poll(0)
        assert producer.flush(30) == 0
        return acknowledged, refused

    acknowledged, refused = produce(0, 3000)
    assert refused, "the disk is full"
    assert acknowledged
    assert shutil.disk_usage(small_disk).free < 1 << 20

    def check_nothing_is_lost() -> None:
        found = {number_of(record) for record in agent(CONFLUENT).read(broker.bootstrap, "filling", len(acknowledged))}
        assert set(acknowledged) <= found

    assert broker.is_running()
    check_nothing_is_lost()
    again, refused = produce(100_000, 100)
    acknowledged |= again
    assert refused, "it is still full, and says so at once"
    check_nothing_is_lost()

    ballast.unlink()
    again, refused = produce(200_000, 200)
    assert refused == []
    assert len(again) == 200
    acknowledged |= again
    check_nothing_is_lost()

    assert broker.terminate() == 0
    broker.start()
    check_nothing_is_lost()
