"""The table of topics of a member of a cluster, with this room's partitions."""

from __future__ import annotations

from typing import TypeAlias

from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.metadata.cluster_topics import ClusterTopics
from wirekafka.metadata.image import ClusterImage
from wirekafka.replication.partition import Partition

MemberTopics: TypeAlias = ClusterTopics[Partition]
"""The table of topics of a member of a cluster."""


class MemberHost:
    """Makes and configures the partitions of the table; it is the `ClusterHost` of `ClusterTopics`."""

    def absent(self, topic: str, topic_id: bytes, index: int) -> Partition:
        """Returns a partition that this broker does not host."""
        return Partition.absent(topic, topic_id, index)

    def configure(self, partition: Partition, config: LogConfig) -> None:
        """Applies the settings of the topic to the log of a hosted partition."""
        partition.writable_log.update_config(config)


def open_member_topics(config: BrokerConfig, image: ClusterImage) -> MemberTopics:
    """Returns the table that follows the image. It has no topics before the controller's first request."""
    return ClusterTopics(config, image, MemberHost())
