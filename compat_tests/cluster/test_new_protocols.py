"""Protocols that only a cluster of wirekafka alone has: consumer groups of KIP-848, share groups, and transactions of version 2.

The features are finalized by `wirekafka cluster features`, and each protocol goes on after kill -9 of its coordinator's broker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars, tools
from compat_tests.harness.clients import CONFLUENT, JAVA, Agent, Client, Member
from compat_tests.harness.mixed_cluster import ALONE, MixedCluster, mixed_cluster
from compat_tests.harness.sharing import ShareClient, Shared
from compat_tests.harness.tools import Tools
from compat_tests.harness.waiting import wait_until
from wirekafka.coordinator.hashing import partition_for

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("new-protocols"), pytest.mark.timeout(600)]

GROUPS, TRANSACTIONS, SHARE_STATE = "__consumer_offsets", "__transaction_state", "__share_group_state"
STATE_PARTITIONS = 3
SPREAD = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "offsets.topic.num.partitions": str(STATE_PARTITIONS),
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "300",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "3000",
}
NEWEST = {"group.version": "1", "share.version": "1", "transaction.version": "2"}

_numbers = count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("cluster"), SETTINGS, ALONE) as running:
        assert running.features() == dict.fromkeys(NEWEST, "off")
        assert running.features("--finalize") == NEWEST
        for broker_id in ALONE:
            wait_until(
                lambda asked=broker_id: running.features(broker_id=asked) == NEWEST, timeout_s=30, what="all brokers know it"
            )
        yield running


@pytest.fixture(autouse=True)
def _all_run(cluster: MixedCluster) -> None:
    for broker in cluster.brokers.values():
        if not broker.is_running():
            broker.start()


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    made = Tools(tmp_path_factory.mktemp("tools") / "tools.log")
    yield made
    made.close()


@pytest.fixture
def members(tmp_path: Path) -> Iterator[ShareClient]:
    client = ShareClient(tmp_path / "members.log")
    yield client
    client.close()


def leader_of(cluster: MixedCluster, topic: str, key: str = "") -> int:
    """Returns the leader of the partition of an internal topic that has the state of a key, once all replicas are in sync."""
    views = wait_until(
        lambda: (found := cluster.until_in_sync(topic)) and found, timeout_s=60, what=f"{topic} exists", poll_s=0.2
    )
    return views[partition_for(key, len(views))].leader


def test_kafka_features_describes_what_is_finalized(cluster: MixedCluster, jvm: Tools) -> None:
    for broker in cluster.brokers.values():
        lines = jvm.check(tools.FEATURES, "--bootstrap-server", broker.bootstrap, "describe").lines()
        found = [re.findall(r"\w+: (\S+)", line) for line in lines]
        assert {name: level for name, _, _, level, _ in found} == NEWEST
        assert {name: newest for name, _, newest, _, _ in found} == NEWEST


def test_feature_is_taken_back_and_finalized_again(cluster: MixedCluster, jvm: Tools) -> None:
    at = ("--bootstrap-server", cluster.brokers[1].bootstrap)
    jvm.check(tools.FEATURES, *at, "downgrade", "--feature", "transaction.version=1")
    assert cluster.features()["transaction.version"] == "1"
    refused = jvm.run(tools.FEATURES, *at, "upgrade", "--feature", "transaction.version=9")
    assert refused.code == 1
    assert "only supports versions 1-2" in refused.out + refused.err
    assert cluster.features("--finalize") == NEWEST


@pytest.mark.parametrize("client", [CONFLUENT, JAVA], ids=str)
def test_group_of_the_consumer_protocol_outlives_its_coordinator(cluster: MixedCluster, client: Client, tmp_path: Path) -> None:
    topic = group = f"consumed-by-{client}".replace(".", "-")
    cluster.create_topic(topic, SPREAD)
    joined = [
        Member(client, tmp_path / f"{number}.log", cluster.bootstrap, group, topic, protocol="consumer") for number in (1, 2)
    ]
    try:
        wanted: list[bytes] = []
        for killed in (None, leader_of(cluster, GROUPS, group)):
            if killed is not None:
                cluster.brokers[killed].kill()
            values = [b"%d" % next(_numbers) for _ in range(60)]
            for index in range(len(SPREAD)):
                cluster.produce(topic, index, values[index :: len(SPREAD)])
            wanted += values
            wait_until_read(joined, wanted)
        admin = cluster.admin()
        described = admin.describe_consumer_groups([group])[group].result(60)
        assert described.type.name == "CONSUMER"
        assert len(described.members) == 2
        assert described.coordinator.id != killed
        wait_until(
            lambda: sum(cluster.committed_offsets(group, topic, len(SPREAD))) == len(wanted),
            timeout_s=60,
            what="the new coordinator has the offsets",
            poll_s=0.5,
        )
    finally:
        for member in joined:
            member.close()


def wait_until_read(members: list[Member], wanted: list[bytes]) -> None:
    def are_read() -> bool:
        for member in members:
            member.refresh()
        return {each.value for member in members for each in member.records} >= set(wanted)

    wait_until(are_read, timeout_s=120, what=f"{len(wanted)} records are read by {members[0].client}")


def test_transactions_of_version_2_outlive_their_coordinator(cluster: MixedCluster, jvm: Tools, tmp_path: Path) -> None:
    topic = transactional_id = "transacted"
    cluster.create_topic(topic, SPREAD)
    agent = Agent(JAVA, tmp_path / "java.log")
    try:
        producer = agent.open_transactions(cluster.bootstrap, transactional_id)
        killed = leader_of(cluster, TRANSACTIONS, transactional_id)
        for value, is_commit, kills in (("a", True, False), ("b", True, True), ("c", False, False), ("d", True, False)):
            producer.begin()
            for index in range(len(SPREAD)):
                producer.send(topic, value, partition=index)
            producer.flush()
            if kills:
                cluster.brokers[killed].kill()
            if is_commit:
                producer.commit()
            else:
                producer.abort()
        for index in range(len(SPREAD)):
            assert cluster.consume(topic, index, 3) == [b"a", b"b", b"d"]
        out = jvm.check(
            tools.TRANSACTIONS, "--bootstrap-server", cluster.bootstrap, "describe", "--transactional-id", transactional_id
        ).lines()
        described = dict(zip(out[0].split(), out[1].split(), strict=False))
        assert described["TransactionState"] == "CompleteCommit"
        assert int(described["ProducerEpoch"]) >= 4, "each transaction of version 2 has an epoch of its own"
    finally:
        agent.close()


@pytest.mark.parametrize("of", [SHARE_STATE, GROUPS, "records"])
def test_share_group_outlives_its_coordinators(cluster: MixedCluster, members: ShareClient, of: str) -> None:
    topic = group = f"shared-{of.strip('_')}"
    cluster.create_topic(topic, [[2, 3, 1]])
    members.open("a", cluster.bootstrap, group, topic)
    accepted: list[Shared] = []

    def accept_some() -> list[Shared]:
        found = members.poll("a")
        members.acknowledge("a", found, "ACCEPT")
        if found and members.commit("a") == {}:
            accepted.extend(found)
        return found

    def is_delivered() -> bool:
        cluster.produce(topic, 0, [b"probe"])
        return bool(accept_some())

    # A group begins at the latest record, and settings of groups do not exist in a cluster with ZooKeeper.
    wait_until(is_delivered, timeout_s=60, what="the group has begun")
    wanted = [f"{of} {number}" for number in range(200)]
    cluster.produce(topic, 0, [value.encode() for value in wanted[:100]])
    killed = 2 if of == "records" else leader_of(cluster, of, group)
    cluster.brokers[killed].kill()
    cluster.produce(topic, 0, [value.encode() for value in wanted[100:]])

    def are_accepted() -> bool:
        accept_some()
        return {each.value for each in accepted} >= set(wanted)

    wait_until(are_accepted, timeout_s=120, what="all records are accepted")
    counts = Counter(each.value for each in accepted if each.value != "probe")
    print(f"{sum(counts.values()) - len(wanted)} of {len(wanted)} records were accepted more than once")
    for _ in range(3):
        assert members.poll("a") == [], "an accepted record is not delivered again"
