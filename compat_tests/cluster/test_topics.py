"""Topics of a cluster of Apache Kafka 3.9 that are deleted and created again, with wirekafka as a replica."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.mixed_cluster import JVM_IDS, WIREKAFKA_ID, MixedCluster, mixed_cluster
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster-topics")]

VALUES = [b"value %d" % number for number in range(500)]
MORE = [b"more %d" % number for number in range(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    # A client that asks whether the topic is deleted would have it created again.
    settings = {"log.segment.delete.delay.ms": "100", "auto.create.topics.enable": "false"}
    with mixed_cluster(tmp_path_factory.mktemp("cluster"), settings) as running:
        yield running


def folders(cluster: MixedCluster, topic: str) -> list[str]:
    """Returns the names of the folders of a topic on wirekafka."""
    return sorted(path.name for path in cluster.brokers[WIREKAFKA_ID].data_dir.glob(f"{topic}-*"))


def creates(cluster: MixedCluster, topic: str) -> bool:
    """Creates a topic of two partitions; returns False if the controller still deletes a topic of that name."""
    try:
        cluster.create_topic(topic, [[3, 1, 2], [1, 3, 2]])
    except KafkaException as failure:
        if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def test_topic_that_is_deleted_and_created_again_is_another_topic(cluster: MixedCluster) -> None:
    for values in (VALUES, MORE, VALUES[:10]):
        wait_until(lambda: creates(cluster, "again"), timeout_s=60, what="the name is free", poll_s=0.1)
        for index in range(2):
            cluster.produce("again", index, values)
            assert cluster.consume("again", index, len(values)) == values
            cluster.until_equal("again", index)
        cluster.delete_topic("again")
        for broker_id in (*JVM_IDS, WIREKAFKA_ID):
            wait_until(lambda asked=broker_id: not cluster.describe("again", asked), timeout_s=60, what="no topic", poll_s=0.1)
        wait_until(lambda: not folders(cluster, "again"), timeout_s=60, what="the folders are deleted", poll_s=0.1)
