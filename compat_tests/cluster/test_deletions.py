"""Topics that are deleted and created again, and records that are deleted on all replicas, with wirekafka as broker 3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.mixed_cluster import JVM_IDS, WIREKAFKA_ID, MixedCluster, mixed_cluster
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


def folder_of(cluster: MixedCluster, topic: str) -> Path:
    return cluster.brokers[WIREKAFKA_ID].data_dir / f"{topic}-0"


def test_topic_that_is_deleted_and_created_again_is_empty(cluster: MixedCluster) -> None:
    cluster.create_topic("recreated", [[3, 1, 2]])
    cluster.until_leader("recreated", 0, WIREKAFKA_ID)
    cluster.produce("recreated", 0, VALUES)
    cluster.delete_topic("recreated")
    for broker_id in (*JVM_IDS, WIREKAFKA_ID):
        wait_until(
            # Not `describe`, which creates the topic again.
            lambda broker_id=broker_id: "recreated" not in cluster.admin(broker_id).list_topics(timeout=60).topics,
            timeout_s=60,
            what=f"broker {broker_id} has forgotten the topic",
        )
    wait_until(lambda: not folder_of(cluster, "recreated").exists(), timeout_s=60, what="the member has deleted its replica")
    wait_until(lambda: is_created(cluster, "recreated"), timeout_s=60, what="the controller has deleted the topic")
    cluster.until_leader("recreated", 0, WIREKAFKA_ID)
    cluster.produce("recreated", 0, VALUES[:7])
    assert cluster.consume("recreated", 0, 7) == VALUES[:7]
    cluster.until_equal("recreated", 0)


def is_created(cluster: MixedCluster, topic: str) -> bool:
    """Creates a topic with broker 3 as its leader; returns False if the controller still deletes one of that name."""
    try:
        cluster.create_topic(topic, [[3, 1, 2]])
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


@pytest.mark.parametrize("leader", [WIREKAFKA_ID, JVM_IDS[0]])
def test_records_are_deleted_on_all_replicas(cluster: MixedCluster, leader: int) -> None:
    topic = f"shortened-{leader}"
    cluster.create_topic(topic, [sorted((1, 2, 3), key=lambda broker_id: broker_id != leader)])
    cluster.until_leader(topic, 0, leader)
    cluster.produce(topic, 0, VALUES)
    partition = TopicPartition(topic, 0, 200)
    admin = cluster.admin()
    deleted = admin.delete_records([partition])
    [result] = deleted.values()
    assert result.result(60).low_watermark == 200
    cluster.brokers[leader].kill()
    wait_until(
        lambda: cluster.describe(topic, 2)[0].leader not in (-1, leader), timeout_s=60, what="another broker leads", poll_s=0.1
    )
    assert ends_of(cluster, topic) == (200, len(VALUES))
    cluster.brokers[leader].start()
    cluster.until_in_sync(topic)


def ends_of(cluster: MixedCluster, topic: str) -> tuple[int, int]:
    """Returns the first offset of partition 0, and the high watermark, as its leader lists them."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30, cached=False)
        return low, high
    finally:
        consumer.close()
