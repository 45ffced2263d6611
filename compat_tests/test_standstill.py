"""A broker that stands still for longer than sessions last, and goes on: none of its members is taken for dead.

Apache Kafka is not asked for it: there the threads that read and the thread of the timers race.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import CLASSES, WIREKAFKA, Broker
from compat_tests.harness.herd import AIOKAFKA, CLASSIC, CONFLUENT, CONSUMER, JAVA, KAFKA_PYTHON, Herd, Library, Load
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("standstill"), pytest.mark.timeout(180)]

MEMBERS, PARTITIONS, PER_SECOND = 4, 8, 200
SESSION_MS = 4000
STANDSTILL_S = 9
SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": str(SESSION_MS // 6),
}


@pytest.fixture(scope="module")
def own_broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if broker_kind != WIREKAFKA:
        pytest.skip("Apache Kafka promises nothing for a broker that stood still")
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("standstill"), SETTINGS)) as running:
        yield running


@pytest.fixture
def herd(own_broker: Broker, topic: str, tmp_path: Path) -> Iterator[Herd]:
    create_topic(own_broker.bootstrap, topic, PARTITIONS)
    herd = Herd(own_broker, topic, topic, tmp_path, session_ms=SESSION_MS)
    yield herd
    herd.close()


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """The processes stand still for as long as the block lasts."""
    pids = list(pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def children_of(pid: int) -> list[int]:
    """The processes that a process has forked."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def changes(herd: Herd) -> list[str]:
    """What members were given and lost, and how they ended."""
    herd.refresh()
    return [str(event) for event in herd.log if event.kind not in ("read", "committed", "refused")]


def endure(herd: Herd, pids: Iterable[int]) -> None:
    """Lets the processes stand still under load; in the end all members have what they had, and have read everything."""
    load = Load(herd.broker.bootstrap, herd.topic, PARTITIONS, PER_SECOND)
    try:
        herd.start(herd.places)
        herd.wait_until_shared(PARTITIONS)
        before = changes(herd)
        with stopped(pids):
            time.sleep(STANDSTILL_S)
        count = len(herd.log)
        time.sleep(SESSION_MS / 1000 * 1.5)
        wait_until(lambda: herd.refresh() or len(herd.log) > count, timeout_s=20, what="records are read again")
        end_offsets = load.finish()
        herd.wait_until_read(load)
    finally:
        load.finish()
    assert changes(herd) == before, str(herd)
    assert herd.judge().faults(end_offsets) == [], str(herd)


@pytest.mark.parametrize(
    ("library", "protocol"),
    # librdkafka gives a membership of the classic protocol up by itself when it has heard nothing for the time of a session.
    [
        pytest.param(KAFKA_PYTHON, CLASSIC, id="kafka-python"),
        pytest.param(AIOKAFKA, CLASSIC, id="aiokafka"),
        pytest.param(CONFLUENT, CONSUMER, id="confluent"),
        pytest.param(JAVA, CLASSIC, id="java-classic", marks=pytest.mark.java),
        pytest.param(JAVA, CONSUMER, id="java-consumer", marks=pytest.mark.java),
    ],
)
def test_members_outlive_a_broker_that_stands_still(herd: Herd, library: Library, protocol: str) -> None:
    herd.add(library, protocol, MEMBERS)
    endure(herd, [herd.broker.pid])


def test_members_that_stand_still_along_with_their_broker_live_on(herd: Herd) -> None:
    """As when somebody stops a job with everything in it, and continues it."""
    places = herd.add(CONFLUENT, CONSUMER, MEMBERS)
    herd.start(places)
    herd.wait_until_shared(PARTITIONS)
    endure(herd, [herd.broker.pid, *children_of(places[0].host.process.pid)])
