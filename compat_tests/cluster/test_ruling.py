"""Brokers of wirekafka alone with a ZooKeeper: one of them is the controller, and rules the others."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from kazoo.client import KazooClient

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars, tools
from compat_tests.harness.cluster_load import PARTITION_COUNT, TOPICS, ClusterLoad
from compat_tests.harness.mixed_cluster import ALONE, MixedCluster, mixed_cluster
from compat_tests.harness.steady_load import steady_load
from compat_tests.harness.tools import Tools
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("ruling")]

SESSION_TIMEOUT_S = 4.0
GAP_AFTER_KILL_S = SESSION_TIMEOUT_S + 8.0
"""A partition takes records again a second after the session has ended; the rest is for a busy machine."""

GAP_OF_SHUTDOWN_S = 5.0
"""The controller moves leaderships in a few ms, and clients find the new leaders in less than 0.5 s on an idle machine."""

SETTINGS = {
    "zookeeper.session.timeout.ms": str(round(SESSION_TIMEOUT_S * 1000)),
    "log.segment.delete.delay.ms": "100",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}
SPREAD = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
VALUES = [b"value %d" % number for number in range(200)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("cluster"), SETTINGS, ALONE) as running:
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


def at(cluster: MixedCluster, broker_id: int = 1) -> tuple[str, str]:
    return "--bootstrap-server", cluster.brokers[broker_id].bootstrap


def other_than(broker_id: int) -> int:
    return next(each for each in ALONE if each != broker_id)


def test_kafka_topics_creates_describes_extends_and_deletes_a_topic(cluster: MixedCluster, jvm: Tools) -> None:
    counts = ("--partitions", "3", "--replication-factor", "3")
    jvm.check(tools.TOPICS, *at(cluster), "--create", "--topic", "tool", *counts, "--config", "retention.ms=5000")
    cluster.until_in_sync("tool")
    shown = [jvm.check(tools.TOPICS, *at(cluster, each), "--describe", "--topic", "tool").out for each in ALONE]
    assert shown[0] == shown[1] == shown[2]
    assert "PartitionCount: 3\tReplicationFactor: 3" in shown[0] and "retention.ms=5000" in shown[0]
    assert {view.leader for view in cluster.describe("tool").values()} == set(ALONE)
    jvm.check(tools.TOPICS, *at(cluster), "--alter", "--topic", "tool", "--partitions", "5")
    assert len(cluster.until_in_sync("tool", 2, partition_count=5)) == 5
    cluster.produce("tool", 4, VALUES)
    assert cluster.consume("tool", 4, len(VALUES)) == VALUES
    cluster.until_equal("tool", 4)
    jvm.check(tools.TOPICS, *at(cluster), "--delete", "--topic", "tool")
    wait_until(lambda: not folders(cluster, "tool"), timeout_s=30, what="the folders are deleted")
    listed = [jvm.check(tools.TOPICS, *at(cluster, each), "--list").lines() for each in ALONE]
    assert all("tool" not in lines for lines in listed)


def folders(cluster: MixedCluster, topic: str) -> list[Path]:
    return [path for broker in cluster.brokers.values() for path in broker.data_dir.glob(f"{topic}-*")]


def test_topic_that_is_deleted_and_created_again_is_empty(cluster: MixedCluster) -> None:
    for values in (VALUES, VALUES[:7], VALUES[:50]):
        wait_until(lambda: is_created(cluster, "again"), timeout_s=30, what="the name is free", poll_s=0.1)
        cluster.produce("again", 0, values)
        assert cluster.consume("again", 0, len(values)) == values
        cluster.until_equal("again", 0)
        cluster.delete_topic("again")
    wait_until(lambda: not folders(cluster, "again"), timeout_s=30, what="the folders are deleted")


def is_created(cluster: MixedCluster, topic: str) -> bool:
    """Creates a topic; returns False if the controller still deletes one of that name."""
    try:
        cluster.create_topic(topic, SPREAD[:1])
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def test_settings_of_topics_brokers_and_the_cluster_are_changed(cluster: MixedCluster, jvm: Tools) -> None:
    cluster.create_topic("configured", SPREAD)
    entities = {
        "topics": ("--entity-type", "topics", "--entity-name", "configured"),
        "broker": ("--entity-type", "brokers", "--entity-name", "2"),
        "cluster": ("--entity-type", "brokers", "--entity-default"),
    }
    changes = {"topics": "retention.ms=1234567", "broker": "log.retention.ms=2345678", "cluster": "log.retention.ms=3456789"}
    for name, entity in entities.items():
        jvm.check(tools.CONFIGS, *at(cluster, 3), *entity, "--alter", "--add-config", changes[name])
    for name, entity in entities.items():
        for broker_id in ALONE:
            wait_until(
                lambda asked=broker_id, entity=entity, change=changes[name]: (
                    change in jvm.check(tools.CONFIGS, *at(cluster, asked), *entity, "--describe").out
                ),
                timeout_s=30,
                what=f"broker {broker_id} has the setting of the {name}",
            )
    for name, entity in entities.items():
        setting = changes[name].partition("=")[0]
        jvm.check(tools.CONFIGS, *at(cluster), *entity, "--alter", "--delete-config", setting)


def reassign(cluster: MixedCluster, jvm: Tools, plan: Path, replicas: list[int], *options: str) -> str:
    """Runs kafka-reassign-partitions for partition 0 of the topic `moved`."""
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": replicas}]}))
    return jvm.check(tools.REASSIGN_PARTITIONS, *at(cluster), "--reassignment-json-file", str(plan), *options).out


def test_partition_is_reassigned_and_a_reassignment_is_cancelled(cluster: MixedCluster, jvm: Tools, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    cluster.create_topic("moved", [[1, 2]])
    values = [bytes([number]) * 100_000 for number in range(60)]
    cluster.produce("moved", 0, values, **{"compression.type": "none"})
    reassign(cluster, jvm, plan, [3, 2], "--execute", "--throttle", "50000000")
    done = "Reassignment of partition moved-0 is completed"
    wait_until(
        lambda: done in reassign(cluster, jvm, plan, [3, 2], "--verify"), timeout_s=60, what="the move is complete", poll_s=0.2
    )
    cluster.until_leader("moved", 0, 2, 3)
    wait_until(lambda: not (cluster.brokers[1].data_dir / "moved-0").exists(), timeout_s=30, what="the old replica is deleted")
    assert cluster.consume("moved", 0, len(values)) == values
    reassign(cluster, jvm, plan, [1, 3], "--execute", "--throttle", "1000")
    listed = jvm.check(tools.REASSIGN_PARTITIONS, *at(cluster), "--list").out
    assert "moved-0: replicas: 1,3,2. adding: 1. removing: 2." in listed
    shown = reassign(cluster, jvm, plan, [1, 3], "--cancel")
    assert "Successfully cancelled partition reassignment for: moved-0" in shown
    wait_until(lambda: cluster.describe("moved")[0].replicas == (3, 2), timeout_s=30, what="the move is undone", poll_s=0.1)
    wait_until(lambda: not (cluster.brokers[1].data_dir / "moved-0").exists(), timeout_s=30, what="the new replica is deleted")
    cluster.until_in_sync("moved")
    assert cluster.consume("moved", 0, len(values)) == values


def test_killed_controller_is_replaced_and_partitions_are_writable_soon(cluster: MixedCluster) -> None:
    cluster.create_topic("failed-over", SPREAD)
    former = cluster.controller_id()
    with steady_load(cluster, "failed-over", len(SPREAD)) as load:
        cluster.brokers[former].kill()
        asked = other_than(former)
        for index in range(len(SPREAD)):
            cluster.until_leader("failed-over", index, *(set(ALONE) - {former}), asked=asked)
        load.until_more()
        assert cluster.controller_id(asked) not in (former, -1)
        cluster.create_topic("after", [[each] for each in ALONE if each != former])
        cluster.brokers[former].start()
        cluster.until_in_sync("failed-over", former)
    print(f"the longest gap was {load.longest_gap_s:.2f} s")
    assert load.longest_gap_s < GAP_AFTER_KILL_S


def test_killed_leader_is_replaced_and_leads_again_by_kafka_leader_election(cluster: MixedCluster, jvm: Tools) -> None:
    killed = other_than(cluster.controller_id())
    others = [each for each in ALONE if each != killed]
    cluster.create_topic("led", [[killed, *others]])
    with steady_load(cluster, "led", 1) as load:
        cluster.brokers[killed].kill()
        cluster.until_leader("led", 0, *others, asked=others[0])
        load.until_more()
        shown = jvm.check(tools.TOPICS, *at(cluster, others[0]), "--describe", "--under-replicated-partitions").out
        assert "Topic: led\t" in shown
        cluster.brokers[killed].start()
        cluster.until_in_sync("led", others[0])
        election = ("--election-type", "preferred", "--topic", "led", "--partition", "0")
        jvm.check(tools.LEADER_ELECTION, *at(cluster, others[0]), *election)
        cluster.until_leader("led", 0, killed)
    print(f"the longest gap was {load.longest_gap_s:.2f} s")
    assert load.longest_gap_s < GAP_AFTER_KILL_S


def state_of(cluster: MixedCluster, topic: str) -> dict[str, Any]:
    """Returns the state of partition 0 in ZooKeeper."""
    client = KazooClient(f"{cluster.zookeeper.address}/kafka")
    client.start(60)
    try:
        state: dict[str, Any] = json.loads(client.get(f"/brokers/topics/{topic}/partitions/0/state")[0])
    finally:
        client.stop()
        client.close()
    return state


def lose_in_sync_replica(cluster: MixedCluster, topics: tuple[str, ...], lost: int, lagging: int) -> None:
    """Leaves partitions with a live replica that lacks half of the records, and another replica, which has all and is down."""
    half = len(VALUES) // 2
    for topic in topics:
        cluster.create_topic(topic, [[lost, lagging]], {"min.insync.replicas": "1"})
        cluster.produce(topic, 0, VALUES[:half])
    assert cluster.brokers[lagging].terminate() == 0
    for topic in topics:
        cluster.produce(topic, 0, VALUES[half:])
    cluster.brokers[lost].kill()
    cluster.brokers[lagging].start()
    for topic in topics:
        cluster.until_leader(topic, 0, -1)


def test_replica_that_lacks_records_leads_on_command_or_by_a_setting_only(cluster: MixedCluster, jvm: Tools) -> None:
    ruling = cluster.controller_id()
    lost, lagging = (each for each in ALONE if each != ruling)
    commanded, allowed = topics = ("commanded", "allowed")
    lose_in_sync_replica(cluster, topics, lost, lagging)
    election = ("--election-type", "unclean", "--topic", commanded, "--partition", "0")
    jvm.check(tools.LEADER_ELECTION, *at(cluster, ruling), *election)
    cluster.until_leader(commanded, 0, lagging)
    # The leader says that it has recovered with the next change of the in-sync replicas.
    state = state_of(cluster, commanded)
    assert (state["isr"], state["leader_recovery_state"]) == ([lagging], 1)
    assert cluster.describe(allowed)[0].leader == -1
    allow = ("--entity-type", "topics", "--entity-name", allowed, "--add-config", "unclean.leader.election.enable=true")
    jvm.check(tools.CONFIGS, *at(cluster, ruling), "--alter", *allow)
    cluster.until_leader(allowed, 0, lagging)
    cluster.brokers[lost].start()
    for topic in topics:
        cluster.until_in_sync(topic)
        cluster.produce(topic, 0, [b"after"])
        assert cluster.stored(lost, topic, 0) == cluster.stored(lagging, topic, 0)
        assert cluster.consume(topic, 0, len(VALUES) // 2 + 1) == [*VALUES[: len(VALUES) // 2], b"after"]
        assert "leader_recovery_state" not in state_of(cluster, topic)


def test_controller_that_was_paused_too_long_obeys_the_next_one(cluster: MixedCluster) -> None:
    cluster.create_topic("paused", SPREAD)
    former = cluster.controller_id()
    process = cluster.brokers[former].process
    assert process is not None
    asked = other_than(former)
    with steady_load(cluster, "paused", len(SPREAD)) as load:
        process.send_signal(signal.SIGSTOP)
        try:
            for index in range(len(SPREAD)):
                cluster.until_leader("paused", index, *(set(ALONE) - {former}), asked=asked)
        finally:
            process.send_signal(signal.SIGCONT)
        load.until_more()
        cluster.until_in_sync("paused", asked)
    assert cluster.controller_id(asked) == cluster.controller_id(former) != former
    assert "This broker is not the controller any more" in cluster.brokers[former].log_text()
    for index in range(len(SPREAD)):
        cluster.until_equal("paused", index)


def test_cluster_goes_on_without_zookeeper_and_after_its_return(cluster: MixedCluster) -> None:
    cluster.create_topic("alone", SPREAD)
    with steady_load(cluster, "alone", len(SPREAD)) as load:
        cluster.zookeeper.kill()
        load.until_more()
        cluster.zookeeper.start()
        cluster.create_topic("after-zookeeper", SPREAD)
    cluster.until_in_sync("alone")


def test_brokers_that_stop_in_turn_cost_clients_no_error(cluster: MixedCluster) -> None:
    cluster.create_topic("rolled", SPREAD)
    with steady_load(cluster, "rolled", len(SPREAD)) as load:
        for number, broker in cluster.brokers.items():
            assert broker.terminate() == 0
            assert "remaining_partition_count=0" in broker.log_text()
            broker.start()
            cluster.until_in_sync("rolled", number)
            for index in range(len(SPREAD)):
                cluster.elect_preferred_if_needed("rolled", index)
    print(f"the longest gap was {load.longest_gap_s:.2f} s")
    assert load.longest_gap_s < GAP_OF_SHUTDOWN_S


def test_transactions_and_groups_go_on_through_a_rolling_restart(cluster: MixedCluster, tmp_path: Path) -> None:
    load = ClusterLoad(cluster, tmp_path)
    cluster.commit("group", "load", [1, 2, 3])
    with load.running():
        for broker in cluster.brokers.values():
            assert broker.terminate() == 0
            broker.start()
            for topic in (*TOPICS, "__consumer_offsets", "__transaction_state"):
                cluster.until_in_sync(topic)
            for index in range(PARTITION_COUNT):
                cluster.elect_preferred_if_needed("load", index)
            assert cluster.committed_offsets("group", "load", 3) == [1, 2, 3]
    load.check(cluster)
