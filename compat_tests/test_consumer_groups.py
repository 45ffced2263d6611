"""Groups of the consumer protocol (KIP-848): the tests that test_groups has for the classic protocol, members of both protocols
in one group, groups that change their protocol while records flow, and the output of Kafka's tools.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

from compat_tests.harness import broker as brokers
from compat_tests.harness import tools
from compat_tests.harness.broker import CLASSES, Broker
from compat_tests.harness.clients import AIOKAFKA, CONFLUENT, JAVA, KAFKA_PYTHON, Agent, Client, Member, Record
from compat_tests.harness.herd import committed_offsets
from compat_tests.harness.tools import Tools
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until, wait_while
from compat_tests.test_groups import JAVA_MARKS, Join, numbered, wait_until_assigned, wait_until_read

pytestmark = [pytest.mark.xdist_group("consumer-groups"), pytest.mark.timeout(300)]

SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "200",
}

every_consumer = pytest.mark.parametrize(
    "client", [pytest.param(CONFLUENT, id="confluent-kafka"), pytest.param(JAVA, id="java-4.3.1", marks=JAVA_MARKS)]
)


@pytest.fixture(scope="module")
def broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Starts a broker with short sessions; in the consumer protocol only the broker can set the session timeout."""
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("consumer-groups"), SETTINGS)) as running:
        yield running


@pytest.fixture
def writer(agent: Callable[[Client], Agent]) -> Agent:
    return agent(CONFLUENT)


@pytest.fixture
def consume(join: Join) -> Join:
    """Starts a member that speaks the consumer protocol."""

    def start(client: Client, group: str, topic: str, **options: object) -> Member:
        return join(client, group, topic, protocol="consumer", **options)

    return start


def group_type(broker: Broker, group: str) -> str | None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.list_topics(timeout=60)  # the client sends requests to the brokers that it knows, and it knows none at first
    listed = admin.list_consumer_groups().result(60).valid
    return next((found.type.name.lower() for found in listed if found.group_id == group), None)


@contextmanager
def under_load(writer: Agent, bootstrap: str, topic: str, partition_count: int) -> Iterator[list[Record]]:
    """Writes a batch of records every tenth of a second until the block ends; yields the list of all records."""
    written: list[Record] = []
    is_over = threading.Event()

    def write() -> None:
        for first in itertools.count(0, 20):
            if is_over.wait(0.1):
                return
            batch = numbered(20, partition_count, first=first)
            writer.produce(bootstrap, topic, batch)
            written.extend(batch)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        is_over.set()
        thread.join()


@every_consumer
def test_when_a_consumer_is_killed_the_others_read_on(
    broker: Broker, writer: Agent, consume: Join, topic: str, client: Client
) -> None:
    create_topic(broker.bootstrap, topic, 6)
    members = [consume(client, topic, topic) for _ in range(3)]
    wait_until_assigned(members, 6)
    first = numbered(300, 6)
    writer.produce(broker.bootstrap, topic, first)
    wait_until_read(members, first)
    members.pop().process.kill()
    second = numbered(300, 6, first=300)
    writer.produce(broker.bootstrap, topic, second)
    wait_until_assigned(members, 6)
    wait_until_read(members, second)


@every_consumer
def test_a_consumer_group_resumes_where_it_committed(
    broker: Broker, writer: Agent, consume: Join, topic: str, client: Client
) -> None:
    create_topic(broker.bootstrap, topic)
    written = numbered(100, 1)
    writer.produce(broker.bootstrap, topic, written)
    first = consume(client, topic, topic, limit=30, max_poll=30)
    first.wait_until_left(40)
    first.refresh()
    assert [record.value for record in first.records] == [record.value for record in written[:30]]
    second = consume(client, topic, topic)
    wait_until_read([second], written[30:])
    assert [record.offset for record in second.records] == list(range(30, 100))


@every_consumer
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_a_second_consumer_takes_only_what_has_to_move(
    broker: Broker, writer: Agent, consume: Join, topic: str, client: Client, assignor: str
) -> None:
    create_topic(broker.bootstrap, topic, 4)
    first = consume(client, topic, topic, assignor=assignor)
    wait_until_assigned([first], 4)
    second = consume(client, topic, topic, assignor=assignor)
    wait_until_assigned([first, second], 4)
    shares = [sorted(member.assigned or []) for member in (first, second)]
    assert sorted(shares) == [[0, 1], [2, 3]]
    assert assignor == "range" or shares[0] == [0, 1], "it keeps what it had"
    written = numbered(100, 4)
    writer.produce(broker.bootstrap, topic, written)
    wait_until_read([first, second], written)
    second.leave()
    wait_until_assigned([first], 4)


@every_consumer
def test_a_static_consumer_that_leaves_and_comes_back_disturbs_nobody(
    broker: Broker, writer: Agent, consume: Join, topic: str, client: Client
) -> None:
    create_topic(broker.bootstrap, topic, 4)
    stays = consume(client, topic, topic, instance="stays")
    wait_until_assigned([stays], 4)
    leaves = consume(client, topic, topic, instance="comes-back")
    wait_until_assigned([stays, leaves], 4)
    before = (stays.assigned, leaves.assigned)
    leaves.leave()
    again = consume(client, topic, topic, instance="comes-back")
    wait_until_assigned([stays, again], 4)
    written = numbered(100, 4)
    writer.produce(broker.bootstrap, topic, written)
    wait_until_read([stays, again], written)
    wait_while(lambda: stays.process.poll() is None, for_s=0.5, what="the other member runs")
    stays.refresh()
    assert (stays.assigned, again.assigned) == before


@every_consumer
def test_consumers_hear_of_new_partitions(broker: Broker, writer: Agent, consume: Join, topic: str, client: Client) -> None:
    create_topic(broker.bootstrap, topic, 2)
    member = consume(client, topic, topic)
    wait_until_assigned([member], 2)
    grow(broker, topic, 5)
    wait_until_assigned([member], 5)
    written = numbered(50, 5)
    writer.produce(broker.bootstrap, topic, written)
    wait_until_read([member], written)


def grow(broker: Broker, topic: str, partition_count: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_partitions([NewPartitions(topic, partition_count)]).values():
        future.result(60)


@every_consumer
def test_a_consumer_subscribes_by_a_regular_expression(
    broker: Broker, writer: Agent, consume: Join, topic: str, client: Client
) -> None:
    create_topic(broker.bootstrap, f"{topic}-one", 3)
    member = consume(client, topic, f"^{re.escape(topic)}-[[:alpha:]]+")
    wait_until_assigned([member], 3)
    written = numbered(30, 3)
    writer.produce(broker.bootstrap, f"{topic}-one", written)
    wait_until_read([member], written)


@pytest.mark.java
def test_consumers_of_all_libraries_share_one_group(broker: Broker, writer: Agent, consume: Join, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 8)
    members = [consume(client, topic, topic) for client in (CONFLUENT, JAVA, CONFLUENT, JAVA)]
    wait_until_assigned(members, 8, each=2)
    written = numbered(400, 8)
    writer.produce(broker.bootstrap, topic, written)
    wait_until_read(members, written)
    for leaver in list(members[:2]):
        members.remove(leaver)
        leaver.leave()
        wait_until_assigned(members, 8)
    more = numbered(400, 8, first=400)
    writer.produce(broker.bootstrap, topic, more)
    wait_until_read(members, more)


@pytest.mark.java
def test_a_group_changes_its_protocol_member_by_member_and_back(
    broker: Broker, writer: Agent, join: Join, consume: Join, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 6)
    classic = [join(client, topic, topic, session=6000) for client in (KAFKA_PYTHON, AIOKAFKA)]
    wait_until_assigned(classic, 6)
    assert group_type(broker, topic) == "classic"
    everybody = list(classic)
    with under_load(writer, broker.bootstrap, topic, 6) as written:
        modern = [consume(CONFLUENT, topic, topic)]
        everybody += modern
        wait_until_assigned([*classic, *modern], 6)
        assert group_type(broker, topic) == "consumer"
        modern.append(consume(JAVA, topic, topic))
        everybody.append(modern[-1])
        wait_until_assigned([*classic, *modern], 6)
        while classic:
            classic.pop().leave()
            wait_until_assigned([*classic, *modern], 6)
        classic = [join(CONFLUENT, topic, topic, session=6000)]
        everybody += classic
        wait_until_assigned([*classic, *modern], 6)
        while modern:
            modern.pop().leave()
            wait_until_assigned([*classic, *modern], 6)
        assert group_type(broker, topic) == "classic"
    wait_until_read(everybody, written)


def test_consumer_groups_survive_a_restart(make_broker: Callable[..., Broker], writer: Agent, consume: Join, topic: str) -> None:
    broker = make_broker({**SETTINGS, "group.consumer.session.timeout.ms": "10000"})
    create_topic(broker.bootstrap, topic, 4)
    members = [consume(CONFLUENT, topic, topic, bootstrap=broker.bootstrap) for _ in range(2)]
    wait_until_assigned(members, 4)
    first = numbered(100, 4)
    writer.produce(broker.bootstrap, topic, first)
    wait_until_read(members, first)
    # A member prints records before it commits them.
    ends = dict.fromkeys(range(4), len(first) // 4)
    wait_until(lambda: committed_offsets(broker, topic, topic, 4) == ends, timeout_s=30, what="the members have committed")
    for member in members:
        member.process.kill()
    before = shares_of(broker, topic)
    broker.terminate()
    broker.start()
    assert shares_of(broker, topic) == before, "they are members until they have been silent for too long"
    heirs = [consume(CONFLUENT, topic, topic, bootstrap=broker.bootstrap) for _ in range(2)]
    wait_until_assigned(heirs, 4)
    second = numbered(100, 4, first=100)
    writer.produce(broker.bootstrap, topic, second)
    wait_until_read(heirs, second)
    assert not {record.value for record in first} & {record.value for member in heirs for record in member.records}


def shares_of(broker: Broker, group: str) -> dict[str, list[int]]:
    """Returns the partitions of each member from the broker's description."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found: dict[str, list[int]] = {}

    def is_described() -> bool:
        try:
            members = admin.describe_consumer_groups([group])[group].result(60).members
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR):
                raise
            return False  # Apache Kafka loads groups after its start
        for member in members:
            found[member.member_id] = sorted(place.partition for place in member.assignment.topic_partitions)
        return True

    wait_until(is_described, timeout_s=60, what=f"{group} is described")
    return found


@pytest.mark.java
@pytest.mark.xdist_group("java")
def test_the_groups_tool_tells_members_and_state(
    broker: Broker, writer: Agent, join: Join, consume: Join, tools_jvm: Tools, topic: str
) -> None:
    create_topic(broker.bootstrap, topic, 4)
    members = [consume(CONFLUENT, topic, topic, instance="i"), join(KAFKA_PYTHON, topic, topic)]
    wait_until_assigned(members, 4)
    written = numbered(100, 4)
    writer.produce(broker.bootstrap, topic, written)
    wait_until_read(members, written)

    def told(*arguments: str) -> list[str]:
        return tools_jvm.check(tools.GROUPS, "--bootstrap-server", broker.bootstrap, *arguments).lines()

    def described(*arguments: str) -> list[list[str]]:
        """Returns the rows without their first column, the group's name."""
        return [line.split()[1:] for line in told("--describe", "--group", topic, *arguments) if line.startswith(topic)]

    assert [line.split() for line in told("--list", "--type", "consumer")[1:] if line.startswith(topic)] == [[topic, "Consumer"]]
    ((*_, assignor, state, group_epoch, target_epoch, members_),) = described("--state", "--verbose")
    assert (assignor, state, members_) == ("uniform", "Stable", "2")
    assert group_epoch == target_epoch
    rows = described("--members", "--verbose")
    assert {row[-1]: row[-2] for row in rows} == {"true": f"{topic}:0,1", "false": f"{topic}:2,3"}, "who is upgraded has what"
    assert {row[-5] for row in rows} == {row[-3] for row in rows} == {group_epoch}
    assert [row[1] for row in rows if row[-1] == "true"] == ["i"]
    wait_until(lambda: {row[4] for row in described()} == {"0"}, timeout_s=60, what="the lag is 0")
    assert sorted(row[1] for row in described()) == ["0", "1", "2", "3"]


@pytest.mark.java
def test_the_group_configs_of_a_consumer_group_are_kept(broker: Broker, tools_jvm: Tools, topic: str) -> None:
    group = ("--bootstrap-server", broker.bootstrap, "--entity-type", "groups", "--entity-name", topic)
    tools_jvm.check(tools.CONFIGS, *group, "--alter", "--add-config", "consumer.heartbeat.interval.ms=400")
    told = tools_jvm.check(tools.CONFIGS, *group, "--describe").out
    assert "consumer.heartbeat.interval.ms=400" in told
    refused = tools_jvm.run(tools.CONFIGS, *group, "--alter", "--add-config", "consumer.heartbeat.interval.ms=50")
    assert "InvalidConfigurationException" in refused.out + refused.err
