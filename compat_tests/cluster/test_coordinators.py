"""Groups and transactions in a cluster of Apache Kafka 3.9 and wirekafka, with the coordinators and the partitions anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.mixed_cluster import JVM_IDS, WIREKAFKA_ID, MixedCluster, mixed_cluster
from compat_tests.harness.waiting import wait_until
from wirekafka.coordinator.hashing import partition_for

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster-coordinators")]

GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
STATE_PARTITIONS = 3
BROKER_IDS = (*JVM_IDS, WIREKAFKA_ID)
SETTINGS = {
    "offsets.topic.num.partitions": str(STATE_PARTITIONS),
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "group.initial.rebalance.delay.ms": "0",
}

_numbers = count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("cluster"), SETTINGS) as running:
        create_state_topics(running)
        yield running


def create_state_topics(cluster: MixedCluster) -> None:
    """Lets clients create the internal topics, and waits for their leaders."""
    cluster.create_topic("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    offsets_of(cluster, "first")
    transact(cluster, "first", [b"first"])
    for name in (GROUPS, TRANSACTIONS):
        cluster.until_in_sync(name)
        assert len(cluster.describe(name)) == STATE_PARTITIONS


@pytest.fixture(autouse=True)
def _all_run_and_lead(cluster: MixedCluster) -> None:
    for broker in cluster.brokers.values():
        if not broker.is_running():
            broker.start()
    for name in ("t", GROUPS, TRANSACTIONS):
        for index, view in cluster.until_in_sync(name).items():
            if view.leader != view.replicas[0]:
                cluster.elect_preferred(name, index)
            cluster.until_leader(name, index, view.replicas[0])


def name_at(cluster: MixedCluster, topic: str, broker_id: int) -> str:
    """Returns a new group or transactional id whose coordinator is this broker."""
    led = [index for index, view in cluster.describe(topic).items() if view.leader == broker_id]
    return next(name for name in (f"x{number}" for number in _numbers) if partition_for(name, STATE_PARTITIONS) in led)


def consumer_of(cluster: MixedCluster, group: str, **settings: object) -> Consumer:
    given = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
    return Consumer({**given, "auto.offset.reset": "earliest", **settings})


def commit(cluster: MixedCluster, group: str, offset: int) -> None:
    consumer = consumer_of(cluster, group)
    try:
        consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def offsets_of(cluster: MixedCluster, group: str) -> int:
    consumer = consumer_of(cluster, group)
    try:
        [found] = consumer.committed([TopicPartition("t", 0)], timeout=60)
        return int(found.offset)
    finally:
        consumer.close()


def transact(cluster: MixedCluster, transactional_id: str, values: list[bytes], *, is_commit: bool = True) -> None:
    """Writes values to all partitions in one transaction."""
    producer = cluster.producer(**{"transactional.id": transactional_id})
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values:
        for index in range(3):
            producer.produce("t", value, partition=index)
    if is_commit:
        producer.commit_transaction(60)
    else:
        producer.flush(60)
        producer.abort_transaction(60)


def committed_values(cluster: MixedCluster, wanted: bytes) -> list[int]:
    """Returns the partitions in which consumers of committed records find a value, after a later marker in each."""
    marker = b"end %d" % next(_numbers)
    for index in range(3):
        cluster.produce("t", index, [marker])
    consumer = consumer_of(cluster, "reader", **{"isolation.level": "read_committed"})
    found: list[int] = []
    ended: set[int] = set()
    try:
        consumer.assign([TopicPartition("t", index, 0) for index in range(3)])

        def is_read() -> bool:
            for message in consumer.consume(1_000, timeout=0.5):
                assert message.error() is None, message.error()
                if message.value() == wanted:
                    found.append(message.partition())
                if message.value() == marker:
                    ended.add(message.partition())
            return len(ended) == 3

        wait_until(is_read, timeout_s=60, what="all partitions are read to their ends")
    finally:
        consumer.close()
    return sorted(found)


@pytest.mark.parametrize("broker_id", BROKER_IDS)
def test_offsets_are_committed_where_the_group_is(cluster: MixedCluster, broker_id: int) -> None:
    group = name_at(cluster, GROUPS, broker_id)
    commit(cluster, group, 7)
    assert offsets_of(cluster, group) == 7
    admin = cluster.admin()
    described = admin.describe_consumer_groups([group])[group].result(60)
    assert described.coordinator.id == broker_id


def test_group_moves_to_kafka_and_back_with_its_offsets(cluster: MixedCluster) -> None:
    group = name_at(cluster, GROUPS, WIREKAFKA_ID)
    commit(cluster, group, 7)
    cluster.brokers[WIREKAFKA_ID].terminate()
    assert offsets_of(cluster, group) == 7
    commit(cluster, group, 8)
    cluster.brokers[WIREKAFKA_ID].start()
    cluster.until_in_sync(GROUPS)
    index = partition_for(group, STATE_PARTITIONS)
    cluster.elect_preferred(GROUPS, index)
    cluster.until_leader(GROUPS, index, WIREKAFKA_ID)
    assert offsets_of(cluster, group) == 8


@pytest.mark.parametrize("broker_id", [1, WIREKAFKA_ID])
def test_group_goes_on_after_its_coordinator_is_killed(cluster: MixedCluster, broker_id: int) -> None:
    group = name_at(cluster, GROUPS, broker_id)
    topic = f"moving-{broker_id}"
    cluster.create_topic(topic, [[2, 3, 1]])
    consumer = consumer_of(cluster, group)
    seen: list[bytes] = []

    def has(wanted: int) -> bool:
        for message in consumer.consume(10, timeout=0.5):
            assert message.error() is None, message.error()
            seen.append(message.value())
        return len(seen) >= wanted

    try:
        consumer.subscribe([topic])
        cluster.produce(topic, 0, [b"a"])
        wait_until(lambda: has(1), timeout_s=60, what="the first record is consumed")
        consumer.commit(asynchronous=False)
        cluster.brokers[broker_id].kill()
        cluster.produce(topic, 0, [b"b"])
        wait_until(lambda: has(2), timeout_s=60, what="the second record is consumed")

        def is_committed() -> bool:
            has(2)  # a consumer that has lost its session joins again while it polls
            try:
                consumer.commit(asynchronous=False)
            except KafkaException:
                return False
            return True

        wait_until(is_committed, timeout_s=60, what="the new coordinator takes a commit", poll_s=0.5)
    finally:
        consumer.close()
    assert seen[:2] == [b"a", b"b"]


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("broker_id", BROKER_IDS)
def test_transaction_ends_in_the_partitions_of_all_brokers(cluster: MixedCluster, broker_id: int, is_commit: bool) -> None:
    transactional_id = name_at(cluster, TRANSACTIONS, broker_id)
    value = f"{broker_id} {is_commit}".encode()
    transact(cluster, transactional_id, [value], is_commit=is_commit)
    assert committed_values(cluster, value) == ([0, 1, 2] if is_commit else [])


@pytest.mark.parametrize("broker_id", BROKER_IDS)
@pytest.mark.parametrize("group_at", BROKER_IDS)
def test_offsets_are_committed_in_a_transaction(cluster: MixedCluster, broker_id: int, group_at: int) -> None:
    group = name_at(cluster, GROUPS, group_at)
    producer = cluster.producer(**{"transactional.id": name_at(cluster, TRANSACTIONS, broker_id)})
    consumer = consumer_of(cluster, group)
    try:
        consumer.subscribe(["t"])
        wait_until(lambda: consumer.poll(0.5) is not None, timeout_s=60, what="the consumer is a member of its group")
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("t", b"with offsets", partition=1)
        producer.send_offsets_to_transaction([TopicPartition("t", 0, 5)], consumer.consumer_group_metadata(), 60)
        producer.commit_transaction(60)
    finally:
        consumer.close()
    assert offsets_of(cluster, group) == 5


@pytest.mark.parametrize("broker_id", [1, WIREKAFKA_ID])
def test_open_transaction_is_committed_after_its_coordinator_is_killed(cluster: MixedCluster, broker_id: int) -> None:
    value = b"open at %d" % broker_id
    producer = cluster.producer(**{"transactional.id": name_at(cluster, TRANSACTIONS, broker_id)})
    producer.init_transactions(60)
    producer.begin_transaction()
    for index in range(3):
        producer.produce("t", value, partition=index)
    assert producer.flush(60) == 0
    cluster.brokers[broker_id].kill()
    producer.commit_transaction(120)
    assert committed_values(cluster, value) == [0, 1, 2]
