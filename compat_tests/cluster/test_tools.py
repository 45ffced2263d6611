"""Kafka's tools in a cluster of Apache Kafka 3.9 with wirekafka: reassignment with a throttle, settings, deletion, growth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars, tools
from compat_tests.harness.mixed_cluster import WIREKAFKA_ID, MixedCluster, mixed_cluster
from compat_tests.harness.tools import Tools
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster")]

VALUES = [b"value %d" % number for number in range(500)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    made = Tools(tmp_path_factory.mktemp("tools") / "tools.log")
    yield made
    made.close()


def at(cluster: MixedCluster, broker_id: int = WIREKAFKA_ID) -> tuple[str, str]:
    return "--bootstrap-server", cluster.brokers[broker_id].bootstrap


def reassign(cluster: MixedCluster, jvm: Tools, path: Path, topic: str, replicas: list[int]) -> None:
    """Moves partition 0 to these replicas, with a throttle, and waits until the tool says that it is complete."""
    plan = path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": replicas}]}))
    file = ("--reassignment-json-file", str(plan))
    jvm.check(tools.REASSIGN_PARTITIONS, *at(cluster, 1), *file, "--execute", "--throttle", "50000000")

    def completion() -> str:
        shown = jvm.check(tools.REASSIGN_PARTITIONS, *at(cluster, 1), *file, "--verify").out
        return shown if f"Reassignment of partition {topic}-0 is completed" in shown else ""

    shown = wait_until(completion, timeout_s=60, what="the reassignment is complete", poll_s=0.5)
    assert f"Clearing broker-level throttles on brokers 1,2,{WIREKAFKA_ID}" in shown


def test_partition_is_moved_onto_the_member_and_off_it(cluster: MixedCluster, jvm: Tools, tmp_path: Path) -> None:
    cluster.create_topic("moved", [[1, 2]])
    cluster.produce("moved", 0, VALUES)
    reassign(cluster, jvm, tmp_path, "moved", [WIREKAFKA_ID, 1])
    cluster.until_leader("moved", 0, 1, WIREKAFKA_ID)
    cluster.elect_preferred_if_needed("moved", 0)
    wait_until(
        lambda: cluster.stored(WIREKAFKA_ID, "moved", 0) == cluster.stored(1, "moved", 0) != b"", timeout_s=60, what="it is there"
    )
    cluster.produce("moved", 0, VALUES)
    assert cluster.consume("moved", 0, 2 * len(VALUES)) == VALUES * 2
    reassign(cluster, jvm, tmp_path, "moved", [2, 1])
    folder = cluster.brokers[WIREKAFKA_ID].data_dir / "moved-0"
    wait_until(lambda: not folder.exists(), timeout_s=60, what="the member has deleted its replica")
    assert cluster.consume("moved", 0, 2 * len(VALUES)) == VALUES * 2
    reassign(cluster, jvm, tmp_path, "moved", [1, 2, WIREKAFKA_ID])
    cluster.until_in_sync("moved")
    cluster.until_equal("moved", 0)


def test_settings_are_changed_by_the_member_and_by_others(cluster: MixedCluster, jvm: Tools) -> None:
    cluster.create_topic("configured", [[3, 1, 2]])
    for broker_id, change in ((WIREKAFKA_ID, "retention.ms=1234567"), (1, "segment.ms=7654321")):
        jvm.check(
            tools.CONFIGS,
            *at(cluster, broker_id),
            "--entity-type",
            "topics",
            "--entity-name",
            "configured",
            "--alter",
            "--add-config",
            change,
        )

    def shown(broker_id: int) -> str:
        entity = ("--entity-type", "topics", "--entity-name", "configured", "--describe")
        return jvm.check(tools.CONFIGS, *at(cluster, broker_id), *entity).out

    for broker_id in (1, 2, WIREKAFKA_ID):
        wait_until(
            lambda broker_id=broker_id: "retention.ms=1234567" in (text := shown(broker_id)) and "segment.ms=7654321" in text,
            timeout_s=60,
            what=f"broker {broker_id} has both settings",
        )


def test_topic_is_created_grown_and_deleted(cluster: MixedCluster, jvm: Tools) -> None:
    cluster.create_topic("grown", [[3, 1, 2]])
    jvm.check(tools.TOPICS, *at(cluster), "--alter", "--topic", "grown", "--partitions", "4")
    assert len(cluster.until_in_sync("grown", WIREKAFKA_ID, partition_count=4)) == 4
    for index in range(4):
        cluster.produce("grown", index, VALUES[:10])
        assert cluster.consume("grown", index, 10) == VALUES[:10]
    jvm.check(tools.TOPICS, *at(cluster), "--delete", "--topic", "grown")
    data_dir = cluster.brokers[WIREKAFKA_ID].data_dir
    wait_until(lambda: not list(data_dir.glob("grown-?")), timeout_s=60, what="the member has deleted its replicas")
    wait_until(lambda: "grown" not in cluster.admin(WIREKAFKA_ID).list_topics(timeout=60).topics, timeout_s=60, what="it is gone")


def test_topics_are_created_automatically_by_a_client_of_the_member(cluster: MixedCluster) -> None:
    producer = cluster.producer(**{"bootstrap.servers": cluster.brokers[WIREKAFKA_ID].bootstrap})
    producer.produce("automatic", b"value")
    assert producer.flush(60) == 0
    views = cluster.until_in_sync("automatic")
    assert len(views) == 2
    assert {view.replicas for view in views.values()} <= {tuple(r) for r in _permutations()}


def _permutations() -> Iterator[list[int]]:
    for first in (1, 2, 3):
        others = [each for each in (1, 2, 3) if each != first]
        yield [first, *others]
        yield [first, *reversed(others)]
