"""A single node that becomes a member of a cluster, and the reassignment of its partitions.

with mixed_cluster(directory, SETTINGS, {1: SingleNode}) as cluster:
    cluster.replace(1, Member)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from compat_tests.harness.broker import Broker, Wirekafka
from compat_tests.harness.mixed_cluster import Member, MixedCluster
from compat_tests.harness.waiting import wait_until

SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "min.insync.replicas": "1",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}
"""The settings of a cluster that has one broker at first."""


class SingleNode(Member):
    """The same broker without ZooKeeper."""

    def __init__(self, directory: Path, connect: str, broker_id: int, settings: Mapping[str, str] = {}) -> None:
        super().__init__(directory, connect, broker_id, settings)
        del self.settings["zookeeper.connect"]

    @classmethod
    def of(cls, member: Broker) -> Wirekafka:
        """Returns the node that a member becomes, on its directory and at its address."""
        settings = {name: value for name, value in member.settings.items() if name != "zookeeper.connect"}
        made = Wirekafka(member.directory, settings, keeps_address=True)
        made.host, made.bootstrap = member.host, member.bootstrap
        return made


def reassign(cluster: MixedCluster, replicas: Mapping[str, list[list[int]]]) -> None:
    """Moves all partitions, and waits until that is complete.

    Args:
        replicas: by topic and partition.
    """
    targets = {TopicPartition(topic, index): each for topic, found in replicas.items() for index, each in enumerate(found)}
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        assert set(admin.alter_partition_reassignments(targets).values()) == {None}
        wait_until(
            lambda: not admin.list_partition_reassignments(), timeout_s=60, what="the reassignment is complete", poll_s=0.1
        )
    finally:
        admin.close()
