"""Groups of 20 members that are killed at random, under load, in every client library and protocol. harness/ownership.py lists
the guarantees that are checked. With `--chaos-seconds=60` a case runs for a minute; without it, for some seconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import CLASSES, Broker
from compat_tests.harness.herd import AIOKAFKA, CLASSIC, CONFLUENT, CONSUMER, JAVA, KAFKA_PYTHON, Herd, Library, Load
from compat_tests.harness.ownership import Event, Ownership
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactions import ask

pytestmark = [pytest.mark.xdist_group("group-chaos"), pytest.mark.timeout(600)]

MEMBERS, PARTITIONS, PER_SECOND = 20, 24, 400
SESSION_MS = 4000
SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": str(SESSION_MS // 6),
}

Herding = Callable[..., Herd]


@pytest.fixture(scope="module")
def own_broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Starts a broker with short sessions; in the consumer protocol only the broker can set the session timeout."""
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("group-chaos"), SETTINGS)) as running:
        yield running


@pytest.fixture
def herd(own_broker: Broker, topic: str, tmp_path: Path) -> Iterator[Herd]:
    create_topic(own_broker.bootstrap, topic, PARTITIONS)
    herd = Herd(own_broker, topic, topic, tmp_path, session_ms=SESSION_MS)
    yield herd
    herd.close()


@pytest.fixture
def kill_seconds(request: pytest.FixtureRequest) -> float:
    """Returns the seconds for which members are killed."""
    return request.config.getoption("--chaos-seconds") or 6


@contextlib.contextmanager
def under_load(herd: Herd) -> Iterator[None]:
    """Starts the members; after the block, checks that all members run again and that the group has kept its guarantees."""
    load = Load(herd.broker.bootstrap, herd.topic, PARTITIONS, PER_SECOND)
    try:
        herd.start(herd.places)
        herd.wait_until_shared(PARTITIONS)
        yield
        herd.start(herd.places)
        herd.wait_until_shared(PARTITIONS)
        load.finish()
        herd.wait_until_read(load)
        end_offsets = load.finish()
    except AssertionError as error:
        raise AssertionError(f"{error}; {herd}; {herd.judge().faults({})}") from None
    finally:
        load.finish()
    print(dict(herd.counts), "members;", sum(end_offsets.values()), "records")
    assert herd.judge().faults(end_offsets) == [], str(herd)


def survive(herd: Herd, seconds: float) -> None:
    """Kills members for this many seconds."""
    with under_load(herd):
        herd.run(seconds)
    assert herd.counts["killed"] > 0
    assert herd.counts["left"] > 0


def cases(*choices: tuple[Library, str]) -> list[object]:
    """Makes the parameters of a test."""
    return [
        pytest.param(library, protocol, id=f"{library}-{protocol}", marks=[pytest.mark.java] if library is JAVA else [])
        for library, protocol in choices
    ]


@pytest.mark.parametrize(
    ("library", "protocol"),
    cases(
        (KAFKA_PYTHON, CLASSIC),
        (CONFLUENT, CLASSIC),
        (AIOKAFKA, CLASSIC),
        (JAVA, CLASSIC),
        (CONFLUENT, CONSUMER),
        (JAVA, CONSUMER),
    ),
)
def test_members_that_are_killed_lose_no_record_and_share_no_partition(
    herd: Herd, kill_seconds: float, library: Library, protocol: str
) -> None:
    herd.add(library, protocol, MEMBERS)
    survive(herd, kill_seconds)


@pytest.mark.java
@pytest.mark.parametrize(
    ("protocol", "libraries"),
    [(CLASSIC, [KAFKA_PYTHON, CONFLUENT, AIOKAFKA, JAVA]), (CONSUMER, [CONFLUENT, JAVA])],
    ids=[CLASSIC, CONSUMER],
)
def test_members_of_different_libraries_in_one_group_are_killed(
    herd: Herd, kill_seconds: float, protocol: str, libraries: Sequence[Library]
) -> None:
    for library in libraries:
        herd.add(library, protocol, MEMBERS // len(libraries))
    survive(herd, kill_seconds)


def group_type(broker: Broker, group: str) -> str:
    """Returns the type of a group from the list of groups."""
    with RawConnection(broker.address) as connection:
        answer = ask(connection, "list_groups", 5, states_filter=(), types_filter=())
    return next(each.group_type for each in answer.groups if each.group_id == group)


def swap(herd: Herd, protocol: str) -> None:
    """Moves the members to the other protocol, one by one."""
    for place in herd.chance.sample(herd.places, len(herd.places)):
        herd.leave(place)
        place.protocol = protocol
        herd.start([place])
        herd.wait_until_shared(PARTITIONS)


@pytest.mark.java
@pytest.mark.parametrize(
    ("assignor", "libraries"),
    # An upgrade would lose the user data that librdkafka's cooperative-sticky assignor adds, so Kafka refuses it.
    [("range", [CONFLUENT, JAVA]), ("cooperative-sticky", [JAVA])],
    ids=["range", "cooperative-sticky"],
)
def test_a_group_changes_its_protocol_and_back_member_by_member(
    request: pytest.FixtureRequest, herd: Herd, assignor: str, libraries: Sequence[Library]
) -> None:
    for library in libraries:
        herd.add(library, CLASSIC, 4 // len(libraries), assignor=assignor)
    with under_load(herd):
        assert group_type(herd.broker, herd.group) == CLASSIC
        until = time.monotonic() + (request.config.getoption("--chaos-seconds") or 0)
        while True:
            swap(herd, CONSUMER)
            assert group_type(herd.broker, herd.group) == CONSUMER
            swap(herd, CLASSIC)
            assert group_type(herd.broker, herd.group) == CLASSIC
            if time.monotonic() >= until:
                break


def told(*lines: str) -> Ownership:
    """Makes the ownership from lines of members, with one second between two lines."""
    ownership = Ownership(grace_s=1.5, silence_s=2.5)
    for second, line in enumerate(lines):
        member, kind, *fields = line.split()
        ownership.take([Event(float(second), member, kind, tuple(fields))])
    return ownership


PAUSE = "c left"
SOUND = ("a assigned 1 0", "a read 0:0:4", "a committed 0:5", "a revoked 0", "b assigned 2 0", "b read 0:5:9")


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (SOUND, None),
        ((*SOUND[:3], *SOUND[4:]), "two owners"),
        ((*SOUND[:3], "a lost 0", *SOUND[4:]), None),
        ((*SOUND[:2], "b assigned 2 0", "a committed 0:5", "a lost 0"), "two owners"),
        ((*SOUND[:3], *SOUND[4:], SOUND[3]), "two owners"),
        ((*SOUND[:3], "a killed", *SOUND[4:]), "two owners"),
        ((*SOUND[:3], "a killed", PAUSE, *SOUND[4:]), None),
        ((*SOUND[:3], PAUSE, PAUSE, "a killed", *SOUND[4:]), None),
        ((*SOUND[:3], PAUSE, PAUSE, *SOUND[4:], SOUND[3]), None),
        ((*SOUND[:3], "a closing", "a assigned 2 0", "b assigned 3 0", SOUND[5]), None),
        ((*SOUND[:4], "b assigned 1 0", SOUND[5]), "older epoch"),
        ((*SOUND[:5], "b read 0:6:9"), "nobody processed offsets 5 to 5"),
        (SOUND[:5], "nobody processed offsets 5 to 9"),
        ((*SOUND[:5], "b read 0:0:9"), "5 was committed"),
        ((*SOUND, "a read 0:9:9"), "which it did not own"),
        ((*SOUND, "a ended 1"), "ended by itself"),
        ((*SOUND, "b failed why"), "b: why"),
    ],
)
def test_what_breaks_a_promise_is_noticed(lines: Sequence[str], fault: str | None) -> None:
    faults = told(*lines).faults({0: 10})
    assert faults == [] if fault is None else any(fault in each for each in faults), faults
