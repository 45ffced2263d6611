"""The partitions that this broker hosts: opened, configured and deleted as the topics of `wirekafka.metadata` change.

Source: kafka.server.ReplicaManager (applyDelta).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypeAlias

from wirekafka.metadata.journal import Journal
from wirekafka.metadata.topic_table import Topic
from wirekafka.metadata.topics import Topics
from wirekafka.replication.partition import Partition

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig, LogConfig
    from wirekafka.log.log import Log
    from wirekafka.log.manager import LogManager

HostedTopic: TypeAlias = Topic[Partition]
"""A topic with its partitions on this broker."""

HostedTopics: TypeAlias = Topics[Partition]
"""The table of topics with their partitions on this broker."""


class ReplicaManager:
    """Hosts the partitions of one broker, which leads all of them. It is the `PartitionHost` of the topics.

    Args:
        logs: The logs of the partitions.
        node_id: The id of this broker.
    """

    def __init__(self, logs: LogManager, node_id: int) -> None:
        self._logs = logs
        self._node_id = node_id

    def open(self, topic: str, index: int, *, topic_id: bytes, config: LogConfig, is_new: bool) -> Partition:
        """Opens a partition; see `PartitionHost.open`."""
        return Partition.open(self._logs, topic, index, topic_id=topic_id, config=config, leader=self._node_id, is_new=is_new)

    def configure(self, partition: Partition, config: LogConfig) -> None:
        """Applies the settings of the topic to the log of a partition."""
        partition.writable_log.update_config(config)

    def raise_leader_epoch(self, partition: Partition, leader_epoch: int) -> None:
        """Raises the leader epoch of a partition; see `PartitionHost.raise_leader_epoch`."""
        partition.leader_epoch = max(partition.leader_epoch, leader_epoch)

    def notify_offline(self, partitions: Iterable[Partition], logs: Collection[Log]) -> None:
        """Wakes the fetches that wait for a partition whose log has gone offline."""
        for partition in partitions:
            if partition.writable_log in logs:
                partition.wake_watchers()

    def close(self, partition: Partition) -> None:
        """Closes a partition; see `PartitionHost.close`."""
        partition.close()

    def delete(self, partition: Partition) -> None:
        """Deletes a partition; see `PartitionHost.delete`."""
        partition.delete(self._logs)


def open_hosted_topics(config: BrokerConfig, logs: LogManager) -> HostedTopics:
    """Opens all topics with their partitions, from the journal in the first data directory.

    Raises:
        KafkaError: The errors of `Topics.open`.
        OSError: The journal cannot be read or created.
    """
    journal = Journal.open(config.log_dirs[0], logs.storage)
    try:
        return Topics.open(config, logs, journal, ReplicaManager(logs, config.node_id))
    except BaseException:
        journal.close()
        raise
