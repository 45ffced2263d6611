"""Kafka's tools of 2.8 with `--zookeeper`, and zookeeper-shell, in clusters of wirekafka alone.

The tools write znodes, and the controller reacts to these. One cluster has a ZooKeeper, the other one the model of ZooKeeper that
`wirekafka cluster start` runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars, tools
from compat_tests.harness.mixed_cluster import ALONE, mixed_cluster
from compat_tests.harness.tools import Tools, zookeeper_shell
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("old-tools")]

SETTINGS = {"auto.leader.rebalance.enable": "false", "zookeeper.session.timeout.ms": "10000"}
VALUES = [bytes([number]) * 10_000 for number in range(50)]


@dataclass(frozen=True)
class Cluster:
    """Three brokers: the addresses of the brokers, and that of ZooKeeper with the chroot."""

    bootstrap: str
    connect: str

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def leaders_and_replicas(self, topic: str) -> list[tuple[int, list[int]]]:
        """Returns the leader and the replicas of each partition; an empty list while a replica is not in sync."""
        found = self.admin.list_topics(topic, timeout=60).topics[topic]
        partitions = [found.partitions[index] for index in sorted(found.partitions)]
        if any(sorted(each.isrs) != sorted(each.replicas) or each.leader < 0 for each in partitions):
            return []
        return [(each.leader, each.replicas) for each in partitions]

    def until(self, topic: str, leaders_and_replicas: list[tuple[int, list[int]]]) -> None:
        """Waits until the partitions of a topic have these leaders and replicas, and all are in sync."""
        wait_until(
            lambda: self.leaders_and_replicas(topic) == leaders_and_replicas, timeout_s=60, what=f"the replicas of {topic}"
        )

    def setting(self, kind: ResourceType, name: str, setting: str) -> str | None:
        """Returns the value of a setting, as a broker describes it."""
        admin = self.admin
        [described] = admin.describe_configs([ConfigResource(kind, name)]).values()
        found = described.result(60).get(setting)
        return None if found is None else found.value


@pytest.fixture(scope="module", params=["zookeeper", "model"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    directory = tmp_path_factory.mktemp("cluster")
    if request.param == "zookeeper":
        with mixed_cluster(directory, SETTINGS, ALONE) as running:
            yield Cluster(running.bootstrap, f"{running.zookeeper.address}/kafka")
        return
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "wirekafka", "cluster", "start", "3", "--data-dir", str(directory), *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            bootstrap = started.stdout.readline().strip().removeprefix("bootstrap.servers=")
            connect = Cluster(bootstrap, "").setting(ResourceType.BROKER, "1", "zookeeper.connect")
            assert connect is not None
            yield Cluster(bootstrap, connect)
        finally:
            started.terminate()
            assert started.wait(60) == 0


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    made = Tools(tmp_path_factory.mktemp("tools") / "tools.log", jars.PEER_2_8)
    yield made
    made.close()


def plan_of(path: Path, topic: str, replicas: list[int]) -> tuple[str, str]:
    path.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": replicas}]}))
    return "--reassignment-json-file", str(path)


def produce(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def consume(cluster: Cluster, topic: str) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(len(VALUES), timeout=60)]
    finally:
        consumer.close()


def test_kafka_topics_creates_describes_extends_and_deletes_a_topic(cluster: Cluster, jvm: Tools) -> None:
    at, named = ("--zookeeper", cluster.connect), ("--topic", "tool")
    created = ("--replica-assignment", "1:2:3,2:3:1", "--config", "retention.ms=5000000")
    jvm.check(tools.TOPICS_2_8, *at, "--create", *named, *created)
    cluster.until("tool", [(1, [1, 2, 3]), (2, [2, 3, 1])])
    assert cluster.setting(ResourceType.TOPIC, "tool", "retention.ms") == "5000000"
    jvm.check(tools.TOPICS_2_8, *at, "--alter", *named, "--partitions", "3", "--replica-assignment", "1:2:3,2:3:1,3:1:2")
    cluster.until("tool", [(1, [1, 2, 3]), (2, [2, 3, 1]), (3, [3, 1, 2])])
    shown = jvm.check(tools.TOPICS_2_8, *at, "--describe", *named).out
    assert "PartitionCount: 3\tReplicationFactor: 3\tConfigs: retention.ms=5000000" in shown
    assert "Partition: 2\tLeader: 3\tReplicas: 3,1,2\tIsr: 3,1,2" in shown
    produce(cluster, "tool")
    assert consume(cluster, "tool") == VALUES
    jvm.check(tools.TOPICS_2_8, *at, "--delete", *named)
    wait_until(lambda: "tool" not in cluster.admin.list_topics(timeout=60).topics, timeout_s=60, what="the topic is deleted")
    wait_until(lambda: "tool" not in jvm.check(tools.TOPICS_2_8, *at, "--list").out, timeout_s=60, what="the znodes are deleted")


def test_kafka_reassign_partitions_moves_a_partition_by_a_znode_with_a_throttle(
    cluster: Cluster, jvm: Tools, tmp_path: Path
) -> None:
    at = ("--zookeeper", cluster.connect)
    jvm.check(tools.TOPICS_2_8, *at, "--create", "--topic", "moved", "--replica-assignment", "1:2")
    cluster.until("moved", [(1, [1, 2])])
    produce(cluster, "moved")
    plan = plan_of(tmp_path / "plan.json", "moved", [3, 2])
    shown = jvm.check(tools.REASSIGN_PARTITIONS_2_8, *at, *plan, "--execute", "--throttle", "10000000").out
    assert "Successfully started partition reassignment for moved-0" in shown
    cluster.until("moved", [(3, [3, 2])])
    assert cluster.setting(ResourceType.BROKER, "3", "follower.replication.throttled.rate") == "10000000"
    assert cluster.setting(ResourceType.TOPIC, "moved", "follower.replication.throttled.replicas") == "0:3"
    shown = jvm.check(tools.REASSIGN_PARTITIONS_2_8, *at, *plan, "--verify").out
    assert "Reassignment of partition moved-0 is complete" in shown
    wait_until(
        lambda: (
            cluster.setting(ResourceType.TOPIC, "moved", "follower.replication.throttled.replicas") in ("", None)
            and cluster.setting(ResourceType.BROKER, "3", "follower.replication.throttled.rate") != "10000000"
        ),
        timeout_s=60,
        what="the throttle is removed",
    )
    assert consume(cluster, "moved") == VALUES


def test_kafka_preferred_replica_election_elects_by_a_znode(cluster: Cluster, jvm: Tools, tmp_path: Path) -> None:
    at = ("--zookeeper", cluster.connect)
    jvm.check(tools.TOPICS_2_8, *at, "--create", "--topic", "elected", "--replica-assignment", "1:2:3")
    cluster.until("elected", [(1, [1, 2, 3])])
    jvm.check(tools.REASSIGN_PARTITIONS_2_8, *at, *plan_of(tmp_path / "plan.json", "elected", [2, 1, 3]), "--execute")
    cluster.until("elected", [(1, [2, 1, 3])])
    wanted = tmp_path / "elected.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": "elected", "partition": 0}]}))
    jvm.check(tools.PREFERRED_REPLICA_ELECTION_2_8, *at, "--path-to-json-file", str(wanted))
    cluster.until("elected", [(2, [2, 1, 3])])
    shown = zookeeper_shell(cluster.connect, "ls /admin")
    assert "preferred_replica_election" not in shown.out


@pytest.mark.parametrize(
    ("entity", "change", "observed"),
    [
        (("topics", "configured"), "retention.ms=1234567", (ResourceType.TOPIC, "configured")),
        (("brokers", "2"), "leader.replication.throttled.rate=2345678", (ResourceType.BROKER, "2")),
        (("clients", "slow-client"), "producer_byte_rate=3456789", None),
    ],
)
def test_kafka_configs_changes_and_deletes_a_setting(
    cluster: Cluster, jvm: Tools, entity: tuple[str, str], change: str, observed: tuple[ResourceType, str] | None
) -> None:
    at = ("--zookeeper", cluster.connect)
    jvm.check(tools.TOPICS_2_8, *at, "--create", "--topic", "configured", "--replica-assignment", "1:2:3", "--if-not-exists")
    cluster.until("configured", [(1, [1, 2, 3])])
    named = ("--entity-type", entity[0], "--entity-name", entity[1])
    setting, _, value = change.partition("=")
    jvm.check(tools.CONFIGS, *at, *named, "--alter", "--add-config", change)
    assert change in jvm.check(tools.CONFIGS, *at, *named, "--describe").out
    if observed is not None:
        wait_until(lambda: cluster.setting(*observed, setting) == value, timeout_s=60, what=f"brokers have {change}")
    jvm.check(tools.CONFIGS, *at, *named, "--alter", "--delete-config", setting)
    if observed is not None:
        wait_until(lambda: cluster.setting(*observed, setting) != value, timeout_s=60, what=f"brokers do not have {change}")


def test_zookeeper_shell_lists_reads_and_writes_znodes(cluster: Cluster) -> None:
    shown = zookeeper_shell(
        cluster.connect,
        "ls /brokers/ids",
        "get /controller",
        "stat /controller_epoch",
        "create /ours first",
        "set /ours second",
        "get -s /ours",
        "delete /ours",
        "get /ours",
    )
    lines = shown.out.splitlines()
    assert "[1, 2, 3]" in lines
    [controller] = [json.loads(line) for line in lines if line.startswith("{")]
    assert controller["brokerid"] in ALONE
    assert "second" in lines and "dataVersion = 1" in lines
    assert "Node does not exist: /ours" in shown.out + shown.err
