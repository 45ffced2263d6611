"""kill -9 of a broker under load, at random moments: no acknowledged record is lost, and no record is repeated.

Each partition has one idempotent producer, so the offset of a record is its sequence number unless a record was lost or repeated.
A request that was not answered when the broker died is sent again to the next broker, as clients do.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import Wirekafka
from compat_tests.harness.raw import ConnectionEndedError, RawConnection, framed
from compat_tests.harness.tools import Tools
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from compat_tests.test_files import data_files, faults
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.api.registry import APIS
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("java"),
    pytest.mark.wirekafka_only("Apache Kafka takes seconds to start"),
    pytest.mark.timeout(400),
]

KILLS, LONG_KILLS = 20, 100
PRODUCE, VERSION = 0, 9
MOST_IN_FLIGHT = 5
RECORDS, KEYS = 4, 50
LEAST_RECORDS = 10_000
"""Records of several segments, some of which are compacted and deleted."""
START_MS = int(time.time() * 1000) - 60_000
"""The time of the first records, recent enough that the broker keeps their producers."""
SMALL = {"segment.bytes": "1048576", "index.interval.bytes": "1024"}
TOPICS = {
    "plain": SMALL,
    "synced": {**SMALL, "flush.messages": "1"},
    "compacted": {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "retained": {**SMALL, "retention.bytes": "500000"},
}
SETTINGS = {
    "log.cleaner.backoff.ms": "20",
    "log.initial.task.delay.ms": "20",
    "log.retention.check.interval.ms": "20",
    "log.flush.offset.checkpoint.interval.ms": "50",
    "log.flush.start.offset.checkpoint.interval.ms": "50",
    "log.segment.delete.delay.ms": "30",
}


def key_of(sequence: int) -> bytes:
    return b"key %d" % (sequence % KEYS)


def value_of(sequence: int) -> bytes:
    return struct.pack(">q", sequence) * (40 + sequence % 50)


@dataclass
class Sender:
    """The producer of one partition.

    Attributes:
        next_sequence: the sequence number of the first record that was never sent.
        pending: the first sequence numbers of batches that were sent and not answered.
        acknowledged: one past the last acknowledged record.
        failure: the first error; None if there was none.
    """

    topic: str
    producer_id: int
    next_sequence: int = 0
    pending: deque[int] = field(default_factory=deque)
    acknowledged: int = 0
    resent: int = 0
    failure: str | None = None

    def run(self, address: tuple[str, int], stop: threading.Event | None = None) -> None:
        """Sends until the broker dies; with `stop`, until `stop` is set and all requests are answered."""
        try:
            with RawConnection(address) as connection:
                self.resent += len(self.pending)
                for sequence in self.pending:
                    self._send(connection, sequence)
                while True:
                    while len(self.pending) < MOST_IN_FLIGHT and not (stop and stop.is_set()):
                        self.pending.append(self.next_sequence)
                        self.next_sequence += RECORDS
                        self._send(connection, self.pending[-1])
                    if not self.pending:
                        return
                    self._take_answer(connection)
        except (ConnectionEndedError, OSError):
            return
        except AssertionError as error:
            self.failure = str(error)

    def _send(self, connection: RawConnection, sequence: int) -> None:
        records = [Record(key=key_of(n), value=value_of(n), timestamp=START_MS + n) for n in range(sequence, sequence + RECORDS)]
        batch = build_batch(records, producer_id=self.producer_id, producer_epoch=0, base_sequence=sequence)
        data = TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index=0, records=memoryview(batch))])
        request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data])
        connection.send(framed(APIS[PRODUCE], VERSION, encode(request, VERSION, True), sequence & 0x7FFFFFFF))

    def _take_answer(self, connection: RawConnection) -> None:
        frame = connection.receive_frame()
        answer = decode(APIS[PRODUCE].response, VERSION, True, frame[5:])
        ((partition,),) = [topic.partition_responses for topic in answer.responses]
        sequence = self.pending[0]
        assert struct.unpack_from(">i", frame) == (sequence & 0x7FFFFFFF,)
        assert partition.error_code == 0, f"{self.topic}: error {partition.error_code} for sequence {sequence}"
        assert partition.base_offset == sequence, f"{self.topic}: sequence {sequence} got offset {partition.base_offset}"
        self.pending.popleft()
        self.acknowledged = sequence + RECORDS


class Doomed(Wirekafka):
    """A broker that is killed while it starts, or soon after."""

    def start_and_die(self, seconds: float) -> None:
        """Starts the broker and kills it after `seconds`, whether it is ready or not."""
        self._spawn(self.command())
        assert self.process is not None
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()


def read_offsets(broker: Wirekafka, topic: str) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields the offset, key and value of each record of a topic."""
    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        deadline = time.monotonic() + 60
        while True:
            assert time.monotonic() < deadline, f"{topic} has no end"
            for message in consumer.consume(num_messages=1000, timeout=0.1):
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    return
                yield message.offset(), message.key(), message.value()
    finally:
        consumer.close()


def start_offset(broker: Wirekafka, topic: str) -> int:
    asked = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-2)])
    with RawConnection(broker.address) as connection:
        answer = connection.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 6)
    return answer.topics[0].partitions[0].offset


def check_records(broker: Wirekafka, sender: Sender) -> None:
    found = list(read_offsets(broker, sender.topic))
    offsets = [offset for offset, _, _ in found]
    assert all((key, value) == (key_of(offset), value_of(offset)) for offset, key, value in found), "each at its own offset"
    if sender.topic == "compacted":
        assert offsets == sorted(set(offsets))
        assert len(offsets) < sender.acknowledged / 2
        assert offsets[-KEYS:] == list(range(sender.acknowledged - KEYS, sender.acknowledged)), "of each key the last one"
    else:
        first = start_offset(broker, sender.topic)
        assert offsets == list(range(first, sender.acknowledged))
        assert (first == 0) == (sender.topic != "retained")


def test_a_broker_killed_many_times_under_load_loses_and_repeats_nothing(tmp_path: Path, tools_jvm: Tools, is_long: bool) -> None:
    kills = LONG_KILLS if is_long else KILLS
    seed = os.environ.get("WIREKAFKA_SEED") or os.urandom(4).hex()
    print(f"WIREKAFKA_SEED={seed}")
    chance = random.Random(seed)
    broker = Doomed(tmp_path / "broker", SETTINGS)
    broker.directory.mkdir()
    senders = [Sender(topic, 1000 + number) for number, topic in enumerate(TOPICS)]
    with brokers.running(broker):
        for topic, configs in TOPICS.items():
            create_topic(broker.bootstrap, topic, 1, configs)
        broker.kill()
        for turn in range(kills):
            if turn % 10 == 9:
                broker.start_and_die(chance.uniform(0.05, 0.5))
                continue
            broker.start()
            threads = [threading.Thread(target=sender.run, args=(broker.address,)) for sender in senders]
            for thread in threads:
                thread.start()
            time.sleep(chance.uniform(0.0, 0.2))
            broker.kill()
            for thread in threads:
                thread.join()
            assert [sender.failure for sender in senders if sender.failure] == [], f"turn {turn}"
        finish(broker, senders)
        print({sender.topic: (sender.acknowledged, sender.resent) for sender in senders})
        assert all(sender.acknowledged > 20 * kills and sender.resent > kills for sender in senders)
        for sender in senders:
            check_records(broker, sender)
        broker.kill()
        verify = [sys.executable, "-m", "wirekafka", "log", "verify", str(broker.data_dir)]
        broker.start()
        broker.terminate()
        verified = subprocess.run(verify, capture_output=True, text=True, timeout=120, check=False)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        folders = [path for path in broker.data_dir.iterdir() if path.name.removesuffix("-0") in TOPICS]
        found = [line for line in faults(tools_jvm, data_files(*folders)) if "is followed by" not in line]
        assert [line for line in found if not line.startswith("Non-consecutive offsets")] == []


def finish(broker: Wirekafka, senders: list[Sender]) -> None:
    """Waits until all requests are answered, and compacts some more segments."""
    broker.start()
    stop = threading.Event()
    threads = [threading.Thread(target=sender.run, args=(broker.address, stop)) for sender in senders]
    for thread in threads:
        thread.start()
    goal = max(senders[0].acknowledged + 1000, LEAST_RECORDS)
    quick = [sender for sender in senders if sender.topic != "synced"]
    wait_until(lambda: all(each.acknowledged > goal or each.failure for each in quick), timeout_s=60, what="records go on")
    stop.set()
    for thread in threads:
        thread.join()
    assert [sender.failure for sender in senders if sender.failure] == []
    assert all(not sender.pending for sender in senders)
