"""What a broker without ZooKeeper has on disk besides its logs, as it moves into a cluster and out of it.

Rules of this file: while a data directory has a journal, the journal has its topics, and the directory is that of a single node.
The journal is renamed before the move into ZooKeeper becomes final, and a new one is written once ZooKeeper's topics move out.
`find_owner` says by these files who has the topics, after a crash at any point too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.directory import DataDirectory, read_owner
from wirekafka.log.manager import LogManager
from wirekafka.log.meta_properties import MetaPropertiesVersion
from wirekafka.log.storage import Storage
from wirekafka.metadata import producer_ids
from wirekafka.metadata.features import METADATA_VERSION
from wirekafka.metadata.journal import has_journal, has_migrated_journal
from wirekafka.metadata.producer_ids import BLOCK_SIZE, ProducerIds
from wirekafka.names import TRANSACTION_STATE_TOPIC
from wirekafka.replication.partition import Partition
from wirekafka.replication.replica_manager import HostedTopics, open_hosted_topics


class Owner(Enum):
    """Who has the topics of a data directory."""

    SINGLE_NODE = auto()
    """The journal in the directory."""
    MOVING = auto()
    """The journal or ZooKeeper: the node has prepared everything for its move, and the last step is uncertain."""
    CLUSTER = auto()
    """ZooKeeper, or nobody in a new directory."""


@dataclass(frozen=True, slots=True)
class NodeTopic:
    """A topic of which this broker has all partitions.

    Attributes:
        overrides: the topic's own settings.
        leader_epochs: the latest leader epoch of each partition.
    """

    topic_id: bytes
    overrides: Mapping[str, str]
    leader_epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SingleNode:
    """What a single node has, but for its records.

    Attributes:
        topics: by name.
        broker_configs: the dynamic settings of brokers by broker id; "" stands for all brokers.
        group_configs: the settings of groups.
        feature_levels: the levels of the features that are on.
        next_producer_id: all producer ids below it are taken.
    """

    cluster_id: str
    node_id: int
    topics: Mapping[str, NodeTopic] = field(default_factory=dict)
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    feature_levels: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0

    @property
    def partition_count(self) -> int:
        """The number of partitions of all topics."""
        return sum(len(topic.leader_epochs) for topic in self.topics.values())


def find_owner(config: BrokerConfig) -> Owner:
    """Returns who has the topics of the data directories.

    Raises:
        KafkaError: KAFKA_STORAGE_ERROR, the first directory cannot be read.
    """
    folder = config.log_dirs[0]
    if has_journal(folder):
        return Owner.SINGLE_NODE
    owner = read_owner(folder, Storage())
    is_version_1 = owner is not None and owner.version is MetaPropertiesVersion.V1
    return Owner.MOVING if is_version_1 and has_migrated_journal(folder) else Owner.CLUSTER


def read_single_node(config: BrokerConfig, logs: LogManager) -> SingleNode:
    """Reads the journal and the logs of a single node, which become the same first, as at each start of such a node.

    Raises:
        KafkaError: INVALID_CONFIG, a data directory or a partition is offline, or the producer ids that are taken are not known;
            also the errors of `open_hosted_topics`.
        OSError: the journal cannot be read.
    """
    topics = open_hosted_topics(config, logs)
    try:
        _check_all_online(logs, topics)
        brokers = ("", str(config.node_id))
        features = {name: level for name, level in topics.features.finalized.items() if name != METADATA_VERSION}
        return SingleNode(
            cluster_id=logs.cluster_id,
            node_id=config.node_id,
            topics={topic.name: _node_topic(topic.topic_id, topic.overrides, topic.partitions) for topic in topics},
            broker_configs={broker: configs for broker in brokers if (configs := topics.broker_configs(broker))},
            group_configs={group_id: topics.group_configs.own(group_id) for group_id in topics.group_configs.group_ids},
            feature_levels=features,
            next_producer_id=_next_producer_id(config, logs, topics),
        )
    finally:
        topics.close()


def _node_topic(topic_id: bytes, overrides: Mapping[str, str], partitions: Iterable[Partition]) -> NodeTopic:
    return NodeTopic(topic_id, dict(overrides), tuple(partition.leader_epoch for partition in partitions))


def _check_all_online(logs: LogManager, topics: HostedTopics) -> None:
    """Raises unless all logs can be used: the leader epoch of an offline partition is not known."""
    offline = [str(log.topic_partition) for topic in topics for log in topic.partitions if log.log.offline_reason is not None]
    if not logs.is_complete:
        offline = [directory.path for directory in logs.directories if directory.offline_reason is not None]
    if offline:
        message = (
            f"A single node with offline partitions cannot move into a cluster; repair them first: {', '.join(offline[:10])}"
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _next_producer_id(config: BrokerConfig, logs: LogManager, topics: HostedTopics) -> int:
    """Returns one past the greatest producer id that may be taken.

    Raises:
        KafkaError: INVALID_CONFIG, the file of the last block is missing, and transactional ids may have greater producer ids
            than the logs.
    """

    def greatest_known() -> int:
        if topics.find(TRANSACTION_STATE_TOPIC) is not None:
            message = (
                f"{path} is missing or damaged. Start the broker once without zookeeper.connect, and let an idempotent producer "
                "connect to it, which writes the file again"
            )
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        partitions = (partition for topic in topics for partition in topic.partitions)
        return max((producer.producer_id for partition in partitions for producer in partition.log.producers), default=-1)

    path = os.path.join(config.log_dirs[0], producer_ids.FILE_NAME)
    return ProducerIds(path, logs.storage, node_id=config.node_id, greatest_known=greatest_known).first_free_id()


def last_block(next_producer_id: int) -> tuple[int, int]:
    """Returns the first and the last id of the block that is recorded as taken if all ids below `next_producer_id` are."""
    return max(0, next_producer_id - BLOCK_SIZE), next_producer_id - 1


def change_version(directories: Iterable[DataDirectory], version: MetaPropertiesVersion) -> None:
    """Writes the version of `meta.properties` in all directories, the first directory last, by which `find_owner` decides.

    Raises:
        KafkaError, OSError: as `DataDirectory.change_version`; repeated, it goes on.

    Durability: on disk.
    """
    for directory in reversed(list(directories)):
        directory.change_version(version)
