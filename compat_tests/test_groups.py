"""Groups: members of one library and of several, one killed, offsets committed and resumed, static and cooperative members."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import (
    AIOKAFKA,
    CLIENTS,
    CONFLUENT,
    JAVA,
    KAFKA_PYTHON,
    KAFKA_PYTHON_2,
    Agent,
    Client,
    Member,
    Record,
)
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until, wait_while

Join = Callable[..., Member]

JAVA_GROUP = pytest.mark.xdist_group("java")
JAVA_MARKS = [pytest.mark.java, JAVA_GROUP]

every_client = pytest.mark.parametrize(
    "client", [pytest.param(client, id=client.name, marks=JAVA_MARKS if client.java else []) for client in CLIENTS]
)


def numbered(count: int, partition_count: int, first: int = 0) -> list[Record]:
    return [
        Record(None, str(number).encode(), timestamp_ms=1_700_000_000_000, partition=number % partition_count)
        for number in range(first, first + count)
    ]


def wait_until_assigned(
    members: Iterable[Member], partition_count: int, *, each: int | None = None, timeout_s: float = 40
) -> None:
    """Waits until the members share all partitions, and each member has one; with `each`, until each member has this many.

    Partitions move one by one, so an assignment may be uneven for a moment.
    """
    members = list(members)

    def is_shared() -> bool:
        for member in members:
            member.refresh()
        shares = [member.assigned or [] for member in members]
        is_fair = each is None or all(len(share) == each for share in shares)
        return is_fair and all(shares) and sorted(sum(shares, [])) == list(range(partition_count))

    try:
        wait_until(is_shared, timeout_s=timeout_s, what=f"{len(members)} members share {partition_count} partitions")
    except AssertionError as error:
        raise AssertionError(f"{error}: {'; '.join(map(str, members))}") from None


def wait_until_read(members: Iterable[Member], records: Iterable[Record], *, timeout_s: float = 60) -> None:
    """Waits until the members together have read all records."""
    members = list(members)
    wanted = {record.value for record in records}

    def missing() -> set[bytes | None]:
        for member in members:
            member.refresh()
        return wanted - {record.value for member in members for record in member.records}

    try:
        wait_until(lambda: not missing(), timeout_s=timeout_s, what=f"{len(wanted)} records are read")
    except AssertionError as error:
        raise AssertionError(f"{error}: {'; '.join(map(str, members))}; {len(missing())} are missing") from None


@every_client
def test_when_a_member_is_killed_the_others_read_on(
    broker: Broker, writer: Agent, join: Join, topic: str, client: Client
) -> None:
    create_topic(broker.bootstrap, topic, 6)
    members = [join(client, topic, topic, session=1500) for _ in range(3)]
    wait_until_assigned(members, 6)
    first = numbered(300, 6)
    writer.produce(broker.bootstrap, topic, first)
    wait_until_read(members, first)

    killed = members.pop()
    killed.process.kill()
    second = numbered(300, 6, first=300)
    writer.produce(broker.bootstrap, topic, second)
    wait_until_assigned(members, 6)
    wait_until_read(members, second)
    for member in members:
        offsets = [(record.partition, record.offset) for record in member.records]
        is_once = len(set(offsets)) == len(offsets)
        assert is_once or member.uncommitted, "nothing that was committed is read again"


@every_client
def test_a_group_resumes_where_it_committed(broker: Broker, writer: Agent, join: Join, topic: str, client: Client) -> None:
    create_topic(broker.bootstrap, topic)
    written = numbered(100, 1)
    writer.produce(broker.bootstrap, topic, written)
    first = join(client, topic, topic, limit=30, max_poll=30)
    first.wait_until_left(40)
    first.refresh()
    assert [record.value for record in first.records] == [record.value for record in written[:30]]
    second = join(client, topic, topic)
    wait_until_read([second], written[30:])
    assert [record.offset for record in second.records] == list(range(30, 100))


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
@pytest.mark.java
@JAVA_GROUP
def test_members_of_all_libraries_share_one_group(broker: Broker, writer: Agent, join: Join, topic: str, assignor: str) -> None:
    create_topic(broker.bootstrap, topic, 10)
    members = [
        join(client, topic, topic, assignor=assignor, session=3000)
        for client in (KAFKA_PYTHON, CONFLUENT, AIOKAFKA, KAFKA_PYTHON_2, JAVA)
    ]
    wait_until_assigned(members, 10)
    assert all(member.assigned is not None and len(member.assigned) == 2 for member in members)
    written = numbered(500, 10)
    writer.produce(broker.bootstrap, topic, written)
    wait_until_read(members, written)

    for leaver in list(members[:3]):
        members.remove(leaver)
        leaver.leave()
        wait_until_assigned(members, 10)
    more = numbered(500, 10, first=500)
    writer.produce(broker.bootstrap, topic, more)
    wait_until_read(members, more)


@pytest.mark.parametrize(
    "client", [pytest.param(CONFLUENT, id="confluent-kafka"), pytest.param(JAVA, id="java-4.3.1", marks=JAVA_MARKS)]
)
def test_a_cooperative_group_takes_only_what_has_to_move(
    broker: Broker, writer: Agent, join: Join, topic: str, client: Client
) -> None:
    create_topic(broker.bootstrap, topic, 4)
    first = join(client, topic, topic, assignor="cooperative-sticky")
    wait_until_assigned([first], 4)
    second = join(client, topic, topic, assignor="cooperative-sticky")
    wait_until_assigned([first, second], 4)
    assert first.assigned is not None
    assert second.assigned is not None
    assert len(first.assigned) == len(second.assigned) == 2
    written = numbered(100, 4)
    writer.produce(broker.bootstrap, topic, written)
    wait_until_read([first, second], written)
    second.leave()
    wait_until_assigned([first], 4)


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(CONFLUENT, id="confluent-kafka"),
        pytest.param(AIOKAFKA, id="aiokafka"),
        pytest.param(JAVA, id="java-4.3.1", marks=JAVA_MARKS),
    ],
)
def test_a_static_member_that_comes_back_in_time_disturbs_nobody(
    broker: Broker, writer: Agent, join: Join, topic: str, client: Client
) -> None:
    create_topic(broker.bootstrap, topic, 4)
    stays = join(client, topic, topic, instance="stays", session=20_000)
    wait_until_assigned([stays], 4)
    leaves = join(client, topic, topic, instance="comes-back", session=20_000)
    wait_until_assigned([stays, leaves], 4)
    before = (stays.assignments, stays.assigned, leaves.assigned)
    leaves.process.kill()
    again = join(client, topic, topic, instance="comes-back", session=20_000)
    wait_until_assigned([stays, again], 4)
    written = numbered(100, 4)
    writer.produce(broker.bootstrap, topic, written)
    wait_until_read([stays, again], written)
    wait_while(lambda: stays.process.poll() is None, for_s=0.5, what="the other member runs")
    stays.refresh()
    assert (stays.assignments, stays.assigned, again.assigned) == before


def test_groups_and_offsets_survive_a_restart(make_broker: Callable[..., Broker], writer: Agent, join: Join, topic: str) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, topic, 2)
    written = numbered(100, 2)
    writer.produce(broker.bootstrap, topic, written)
    member = join(CONFLUENT, topic, topic, bootstrap=broker.bootstrap, limit=60, max_poll=60)
    member.wait_until_left(40)
    broker.terminate()
    broker.start()
    second = join(KAFKA_PYTHON, topic, topic, bootstrap=broker.bootstrap)
    wait_until_read([member, second], written)
    read = [record.value for record in (*member.records, *second.records)]
    assert sorted(read, key=lambda value: int(value or 0)) == [record.value for record in written]
