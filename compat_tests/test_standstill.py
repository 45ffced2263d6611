"""A broker that stands still for longer than a session and continues: it evicts no member.

These tests do not run against Apache Kafka: its network threads and its timer thread race, and 4.3.1 evicts members in each of
these tests (2026-11).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import CLASSES, WIREKAFKA, Broker
from compat_tests.harness.herd import AIOKAFKA, CLASSIC, CONFLUENT, CONSUMER, JAVA, KAFKA_PYTHON, Herd, Library, Load
from compat_tests.harness.topics import create_topic

pytestmark = [pytest.mark.xdist_group("standstill"), pytest.mark.timeout(180)]

MEMBERS, PARTITIONS, PER_SECOND = 3, 6, 100
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
def make_herd(own_broker: Broker, topic: str, tmp_path: Path) -> Iterator[Callable[[Library, str], Herd]]:
    """Makes groups of members of one library; each group has a topic of its own."""
    with ExitStack() as stack:

        def make(library: Library, protocol: str) -> Herd:
            name = f"{topic}-{library}-{protocol}"
            create_topic(own_broker.bootstrap, name, PARTITIONS)
            herd = Herd(own_broker, name, name, tmp_path, session_ms=SESSION_MS)
            stack.callback(herd.close)
            herd.add(library, protocol, MEMBERS)
            return herd

        yield make


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """Stops the processes for as long as the block lasts."""
    pids = list(pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def children_of(pid: int) -> list[int]:
    """Returns the processes that a process has forked."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def changes(herd: Herd) -> list[str]:
    """Returns the assignments, the revocations and the ends of the members."""
    herd.refresh()
    return [str(event) for event in herd.log if event.kind not in ("read", "committed", "refused")]


def endure(herds: Sequence[Herd], pids: Callable[[], Iterable[int]]) -> None:
    """Stops the processes under load; raises unless all members keep their partitions and read all records."""
    loads = [Load(herd.broker.bootstrap, herd.topic, PARTITIONS, PER_SECOND) for herd in herds]
    try:
        for herd in herds:
            herd.start(herd.places)
        for herd in herds:
            herd.wait_until_shared(PARTITIONS)
        before = [changes(herd) for herd in herds]
        with stopped(pids()):
            time.sleep(STANDSTILL_S)
        # Longer than a session: without grace, the broker would evict every member.
        time.sleep(SESSION_MS / 1000 * 1.5)
        for herd, load in zip(herds, loads, strict=True):
            load.finish()
            herd.wait_until_read(load)
    finally:
        for load in loads:
            load.finish()
    for herd, load, known in zip(herds, loads, before, strict=True):
        assert changes(herd) == known, str(herd)
        assert herd.judge().faults(load.end_offsets) == [], str(herd)


@pytest.mark.parametrize(
    "kinds",
    # In the classic protocol librdkafka itself leaves the group after a session without an answer.
    [
        pytest.param([(KAFKA_PYTHON, CLASSIC), (AIOKAFKA, CLASSIC), (CONFLUENT, CONSUMER)], id="python"),
        pytest.param([(JAVA, CLASSIC), (JAVA, CONSUMER)], id="java", marks=pytest.mark.java),
    ],
)
def test_members_outlive_a_broker_that_stands_still(
    own_broker: Broker, make_herd: Callable[[Library, str], Herd], kinds: Sequence[tuple[Library, str]]
) -> None:
    endure([make_herd(*kind) for kind in kinds], lambda: [own_broker.pid])


def test_members_that_stand_still_along_with_their_broker_live_on(
    own_broker: Broker, make_herd: Callable[[Library, str], Herd]
) -> None:
    """The members stop and continue together with the broker, as when a user suspends a job."""
    herds = [make_herd(CONFLUENT, CONSUMER), make_herd(KAFKA_PYTHON, CLASSIC)]
    hosts = [herd.places[0].host.process.pid for herd in herds]
    endure(herds, lambda: [own_broker.pid, *(child for host in hosts for child in children_of(host))])
