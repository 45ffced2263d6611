"""One node becomes three brokers and one node again, while a producer writes: nothing is lost, doubled or reordered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import ConfigResource, ResourceType

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.mixed_cluster import Member, MixedCluster, mixed_cluster
from compat_tests.harness.single_node import SETTINGS, SingleNode, reassign
from compat_tests.harness.steady_load import steady_load

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("one-becomes-many")]

VALUES = [b"value %d" % number for number in range(200)]
TOPIC, TRANSACTED = "load", "transacted"
PARTITION_COUNT = 3
GROUP = "readers"
OFFSETS = [5, 6, 7]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path, SETTINGS, {1: SingleNode}) as running:
        yield running


def topic_ids(cluster: MixedCluster) -> dict[str, str]:
    """Returns the ids of all topics."""
    admin = cluster.admin()
    names = [*admin.list_topics(timeout=60).topics]
    described = admin.describe_topics(TopicCollection(names))
    return {name: str(future.result(60).topic_id) for name, future in described.items()}


def retention_ms(cluster: MixedCluster) -> str:
    """Returns a setting of the topic."""
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    admin = cluster.admin()
    return str(admin.describe_configs([resource])[resource].result(60)["retention.ms"].value)


def check_state(cluster: MixedCluster) -> None:
    """Checks the offsets of the group and the records of transactions."""
    assert cluster.committed_offsets(GROUP, TOPIC, PARTITION_COUNT) == OFFSETS
    assert cluster.consume(TRANSACTED, 0, len(VALUES)) == VALUES


def test_one_node_becomes_three_brokers_and_one_node_again(cluster: MixedCluster) -> None:
    cluster.create_topic(TOPIC, [[1]] * PARTITION_COUNT, {"retention.ms": "123456789"})
    cluster.create_topic(TRANSACTED, [[1]])
    cluster.transact(TRANSACTED, [0], VALUES)
    cluster.transact(TRANSACTED, [0], VALUES, is_aborted=True)
    cluster.commit(GROUP, TOPIC, OFFSETS)
    ids = topic_ids(cluster)
    counts = {TOPIC: PARTITION_COUNT, TRANSACTED: 1, "__consumer_offsets": 3, "__transaction_state": 3}
    assert ids.keys() == counts.keys()
    with steady_load(cluster, TOPIC, PARTITION_COUNT) as load:
        cluster.replace(1, Member)
        load.until_more()
        assert topic_ids(cluster) == ids
        check_state(cluster)
        assert retention_ms(cluster) == "123456789"
        for number in (2, 3):
            cluster.add(number, Member)
            cluster.brokers[number].start()
        cluster.until_all_know_each_other()
        everywhere = {topic: [[2, 3, 1], [3, 1, 2], [1, 2, 3]][:count] for topic, count in counts.items()}
        reassign(cluster, everywhere)
        for topic in counts:
            cluster.until_in_sync(topic)
        for index in range(PARTITION_COUNT):
            # The producer has known the first broker only. It learns of the others when leaders move.
            cluster.elect_preferred(TOPIC, index)
        load.until_more()
        cluster.brokers[1].kill()
        cluster.until_leader(TOPIC, 2, 2, 3, asked=2)
        load.until_more()
        check_state(cluster)
        cluster.brokers[1].start()
        for topic in counts:
            cluster.until_in_sync(topic)
        reassign(cluster, {topic: [[1]] * count for topic, count in counts.items()})
        load.until_more()
        for number in (2, 3):
            refused = leave(cluster)
            assert (refused.returncode, "wirekafka: " in refused.stderr) == (1, True)
            assert cluster.brokers.pop(number).terminate() == 0
        assert cluster.brokers[1].terminate() == 0
        left = leave(cluster)
        assert left.returncode == 0, left.stderr
        assert "is a single node now: 4 topics, 10 partitions." in left.stdout
        cluster.brokers[1] = SingleNode.of(cluster.brokers[1])
        cluster.brokers[1].start()
        load.until_more()
    print(f"the longest gap was {load.longest_gap_s:.2f} s")
    assert topic_ids(cluster) == ids
    check_state(cluster)
    assert retention_ms(cluster) == "123456789"


def leave(cluster: MixedCluster) -> subprocess.CompletedProcess[str]:
    """Runs `wirekafka cluster leave` for broker 1."""
    connect = f"{cluster.zookeeper.address}/kafka"
    command = [sys.executable, "-m", "wirekafka", "cluster", "leave", str(cluster.brokers[1].data_dir), "--zookeeper", connect]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)
