"""wirekafka as the controller of brokers of Apache Kafka, and what it writes to ZooKeeper beside what Apache Kafka writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars, tools
from compat_tests.harness.mixed_cluster import (
    JVM_IDS,
    KINDS,
    WIREKAFKA_ID,
    JvmMember,
    Kafka28,
    Kafka33,
    Member,
    MixedCluster,
    mixed_cluster,
)
from compat_tests.harness.tools import Tools
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("ruling-apache-kafka")]

SETTINGS = {"zookeeper.session.timeout.ms": "12000", "log.segment.delete.delay.ms": "100", "auto.create.topics.enable": "false"}
VALUES = [b"value %d" % number for number in range(300)]
MASKED = ("topic_id", "controller_epoch", "timestamp")
"""What differs between two topics, and between two controllers."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    """Returns a cluster without broker 2, whose controller is broker 1, of Apache Kafka, unless that loses its session.

    Each test gets a new one: the tests run in any order.
    """
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    kinds = {number: kind for number, kind in KINDS.items() if number != JVM_IDS[1]}
    with mixed_cluster(tmp_path, SETTINGS, kinds) as running:
        yield running


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    made = Tools(tmp_path_factory.mktemp("tools") / "tools.log")
    yield made
    made.close()


def act(cluster: MixedCluster, jvm: Tools, path: Path, name: str) -> None:
    """Creates a topic on the brokers 1 and 3, extends, configures and moves it; creates another one and deletes it."""
    asked = ("--bootstrap-server", cluster.brokers[WIREKAFKA_ID].bootstrap)
    cluster.create_topic(name, [[1, 3], [3, 1]], {"retention.ms": "1234567"})
    admin = cluster.admin()
    admin.create_partitions([NewPartitions(name, 4, [[3, 1], [1, 3]])])[name].result(60)
    wait_until(lambda: len(cluster.describe(name)) == 4, timeout_s=60, what="4 partitions", poll_s=0.1)
    cluster.until_in_sync(name)
    entity = ("--entity-type", "topics", "--entity-name", name)
    jvm.check(tools.CONFIGS, *asked, *entity, "--alter", "--add-config", "segment.ms=7654321")
    plan = path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": name, "partition": 0, "replicas": [3]}]}))
    file = ("--reassignment-json-file", str(plan))
    jvm.check(tools.REASSIGN_PARTITIONS, *asked, *file, "--execute")
    wait_until(
        lambda: f"{name}-0 is completed" in jvm.check(tools.REASSIGN_PARTITIONS, *asked, *file, "--verify").out,
        timeout_s=60,
        what="the move is complete",
        poll_s=0.2,
    )
    cluster.create_topic(f"{name}-deleted", [[1, 3]])
    cluster.delete_topic(f"{name}-deleted")


def znodes(client: KazooClient, path: str) -> dict[str, tuple[str, int]]:
    """Returns the content and the version of each znode below a path, as zookeeper-shell shows them, without what must differ."""
    try:
        data, stat = client.get(path)
        names = client.get_children(path)
    except NoNodeError:
        return {}
    text = (data or b"").decode()
    if text.startswith("{"):
        values = json.loads(text)
        text = json.dumps({key: "masked" if key in MASKED else value for key, value in values.items()})
    found = {path: (text, stat.version)}
    for name in sorted(names):
        found |= znodes(client, f"{path.rstrip('/')}/{name}")
    return found


def of_topic(client: KazooClient, name: str) -> dict[str, tuple[str, int]]:
    found = znodes(client, f"/brokers/topics/{name}") | znodes(client, f"/config/topics/{name}")
    assert len(found) > 10
    return {path.replace(name, "NAME"): content for path, content in found.items()}


MOVED = "/brokers/topics/NAME/partitions/0/state"


def in_sync_replicas(state: tuple[str, int]) -> Any:
    return json.loads(state[0])["isr"]


def test_controller_writes_what_apache_kafka_writes(cluster: MixedCluster, jvm: Tools, tmp_path: Path) -> None:
    client = KazooClient(f"{cluster.zookeeper.address}/kafka")
    client.start()
    try:
        assert cluster.let_apache_kafka_rule() == JVM_IDS[0]
        act(cluster, jvm, tmp_path, "by-kafka")
        wait_until(lambda: client.get_children("/admin/delete_topics") == [], timeout_s=60, what="the topic is deleted")
        before, by_kafka = znodes(client, "/"), of_topic(client, "by-kafka")
        let_wirekafka_rule(cluster)
        act(cluster, jvm, tmp_path, "by-wirekafka")
        wait_until(lambda: client.get_children("/admin/delete_topics") == [], timeout_s=60, what="the topic is deleted")
        by_wirekafka = of_topic(client, "by-wirekafka")
        # wirekafka removes the former replicas in the write that elects the new leader, and Apache Kafka in a second write.
        assert in_sync_replicas(by_wirekafka.pop(MOVED)) == in_sync_replicas(by_kafka.pop(MOVED)) == [3]
        assert by_wirekafka == by_kafka
        assert set(znodes(client, "/config/topics")) == {
            "/config/topics",
            "/config/topics/by-kafka",
            "/config/topics/by-wirekafka",
        }
        assert znodes(client, "/admin").keys() == {path for path in before if path.startswith("/admin")}
        assert json.loads(client.get("/controller")[0]).keys() == json.loads(before["/controller"][0]).keys()
    finally:
        client.stop()
        client.close()


def let_wirekafka_rule(cluster: MixedCluster) -> None:
    """Makes wirekafka the controller, and lets both brokers of Apache Kafka run."""
    if cluster.controller_id() != WIREKAFKA_ID:
        for broker_id in JVM_IDS:
            if broker_id in cluster.brokers and cluster.brokers[broker_id].is_running():
                cluster.brokers[broker_id].terminate(120)
        wait_until(lambda: cluster.controller_id(WIREKAFKA_ID) == WIREKAFKA_ID, timeout_s=60, what="wirekafka rules", poll_s=0.1)
    cluster.add(JVM_IDS[1], KINDS[JVM_IDS[1]])
    for broker in cluster.brokers.values():
        if not broker.is_running():
            broker.start()
    cluster.until_all_know_each_other()


def test_brokers_of_apache_kafka_are_ruled(cluster: MixedCluster) -> None:
    let_wirekafka_rule(cluster)
    cluster.create_topic("ruled", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    for index in range(3):
        cluster.produce("ruled", index, VALUES)
        cluster.transact("ruled", [index], [b"in a transaction"])
    killed = JVM_IDS[0]
    cluster.brokers[killed].kill()
    for index in range(3):
        cluster.until_leader("ruled", index, JVM_IDS[1], WIREKAFKA_ID, asked=JVM_IDS[1])
        cluster.produce("ruled", index, VALUES)
    cluster.brokers[killed].start()
    cluster.until_in_sync("ruled")
    for index in range(3):
        cluster.elect_preferred_if_needed("ruled", index)
        assert cluster.consume("ruled", index, 2 * len(VALUES) + 1) == [*VALUES, b"in a transaction", *VALUES]
        cluster.until_equal("ruled", index)
    assert cluster.controller_id() == WIREKAFKA_ID
    assert cluster.brokers[2].terminate(120) in (0, 143)
    assert "Controlled shutdown request returned successfully" in cluster.brokers[2].log_text()


@pytest.mark.long("Apache Kafka 3.9 is ruled in the test before")
@pytest.mark.parametrize(("release", "kind"), [("2.8", Kafka28), ("3.3", Kafka33)])
def test_broker_of_an_older_release_is_ruled(tmp_path: Path, release: str, kind: type[JvmMember]) -> None:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    settings = SETTINGS | {
        "inter.broker.protocol.version": release,
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.replication.factor": "2",
        "transaction.state.log.min.isr": "1",
    }
    with mixed_cluster(tmp_path, settings, {1: kind, WIREKAFKA_ID: Member}, starts_jvm_first=False) as cluster:
        assert cluster.controller_id() == WIREKAFKA_ID
        old = cluster.brokers[1]
        cluster.create_topic("ruled", [[1, 3], [3, 1]])
        for index in range(2):
            cluster.produce("ruled", index, VALUES)
            cluster.transact("ruled", [index], [b"in a transaction"])
        cluster.commit("group", "ruled", [1, 2])
        assert old.terminate(120) in (0, 143)
        cluster.until_leader("ruled", 0, WIREKAFKA_ID)
        cluster.produce("ruled", 0, VALUES)
        old.start()
        cluster.until_in_sync("ruled")
        cluster.elect_preferred_if_needed("ruled", 0)
        for index, values in enumerate(([*VALUES, b"in a transaction", *VALUES], [*VALUES, b"in a transaction"])):
            assert cluster.consume("ruled", index, len(values)) == values
            cluster.until_equal("ruled", index)
        assert cluster.committed_offsets("group", "ruled", 2) == [1, 2]
        cluster.delete_topic("ruled")
        wait_until(lambda: not list(old.data_dir.glob("ruled-*")), timeout_s=60, what="the replicas are deleted")
        assert cluster.controller_id() == WIREKAFKA_ID
