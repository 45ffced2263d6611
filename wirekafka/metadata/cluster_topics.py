"""The topics of a member of a cluster: those of the cluster's image, with the partitions that this broker hosts.

How it works: the controller's UpdateMetadata fills the image with the topics. Its LeaderAndIsr and StopReplica say which
partitions this broker hosts; `replication` puts these partitions into the table.
The other partitions in the table are absent: they have no log, and their leaders are in the image. Settings of topics come from
ZooKeeper.

Rules of this file:
    A partition is hosted from `put_hosted` until `remove_hosted`, also if the image does not have it.
    A topic is in the table once the image has it, or this broker hosts a partition of it. It leaves the table when the image
    loses it; its hosted partitions can no longer be found then, and stay open until `remove_hosted`.
    Invariant: the partitions of a topic are numbered from 0. Those that the image does not have yet are absent, without a
    leader. A hosted partition whose index is far above those that are known can be found once the image has the partitions
    below it, so that memory does not grow with the index that a request claims.

Source: kafka.server.ReplicaManager (allPartitions), kafka.server.metadata.ZkMetadataCache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import structlog

from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.metadata.cluster_features import ClusterFeatures
from wirekafka.metadata.features import GROUP_VERSION, SHARE_VERSION
from wirekafka.metadata.group_configs import GroupConfigs
from wirekafka.metadata.image import MOST_UNTOLD, PARTITIONS_AT_ONCE, ClusterImage, TopicImage
from wirekafka.metadata.no_own_settings import NoOwnSettings
from wirekafka.metadata.topic_table import Topic, TopicTable
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Work, finish

log = structlog.get_logger(__name__)

MOST_NAMED = 10
"""The most topics that a line of the log names."""


class ClusterPartition(Protocol):
    """What the table needs of a partition; `wirekafka.replication.partition.Partition`."""

    topic: str
    topic_id: bytes
    index: int

    def close(self) -> None:
        """Ends the waits for the partition."""


C = TypeVar("C", bound=ClusterPartition)


class ClusterHost(Protocol[C]):
    """Makes and configures the partitions of the table; `wirekafka.replication.member_topics.MemberHost`."""

    def absent(self, topic: str, topic_id: bytes, index: int) -> C:
        """Returns a partition that this broker does not host."""

    def configure(self, partition: C, config: LogConfig) -> None:
        """Applies the settings of the topic to a hosted partition."""


class ClusterTopics(TopicTable[C]):
    """The table of topics of a member of a cluster.

    Args:
        image: the image of the cluster, which the table follows.
        host: makes and configures the partitions.

    Attributes:
        cluster_features: the same as `features`.
    """

    def __init__(self, config: BrokerConfig, image: ClusterImage, host: ClusterHost[C]) -> None:
        self.cluster_features = ClusterFeatures(config)
        super().__init__(GroupConfigs(config, NoOwnSettings()), self.cluster_features)
        self._config = config
        self._image = image
        self._host = host
        self._hosted: dict[str, dict[int, C]] = {}
        self._overrides: dict[str, dict[str, str]] = {}
        self._default_config = LogConfig.of(config)
        self._prepared: tuple[str, bytes, int, list[C]] | None = None
        """Absent partitions for a topic whose image is about to change: its name and id, and the first index."""
        image.before_topic_change.append(self._prepare)
        self._deleted: list[str] = []
        """The topics whose deletion is not logged yet."""
        image.on_topic_change.append(self._on_topic_change)
        self._dropped: list[C] = []
        """Absent partitions of topics that are no longer in the table, which are not closed yet."""
        image.after_topic_change.append(self._close_dropped)
        image.after_update.append(self._end_deletions)

    def close(self) -> None:
        """Closes all hosted partitions, which ends the requests that wait for them."""
        for partitions in self._hosted.values():
            for partition in partitions.values():
                partition.close()

    def create_internal(self, name: str) -> Topic[C]:
        """Refuses: FindCoordinator asks the controller for the topic.

        Raises:
            KafkaError: COORDINATOR_NOT_AVAILABLE.
        """
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The topic {name} does not exist yet.")

    def hosted(self, name: str, index: int) -> C | None:
        """Returns a partition that this broker hosts, also one that the image does not have; None if it is not hosted."""
        return self._hosted.get(name, {}).get(index)

    def all_hosted(self) -> list[C]:
        """Returns all partitions that this broker hosts."""
        return [partition for partitions in self._hosted.values() for partition in partitions.values()]

    def put_hosted(self, partition: C) -> None:
        """Puts a partition that this broker hosts into the table, in place of the absent or hosted one before it.

        An absent one is closed, so that those who hold it look the partition up again. The caller closes a hosted one.
        """
        formerly_hosted = self.hosted(partition.topic, partition.index)
        self._hosted.setdefault(partition.topic, {})[partition.index] = partition
        topic = self._by_name.get(partition.topic)
        if topic is not None and _is_other(topic.topic_id, partition.topic_id):
            self._delete(topic)
            self._end_deletions()
            topic = None
        is_new = topic is None
        if topic is None:
            topic = self._enter(partition.topic, partition.topic_id)
        former = topic.partitions[partition.index] if partition.index < len(topic.partitions) else None
        is_longer = self._place(topic, partition)
        if former is not None and former is not formerly_hosted and former is not partition:
            former.close()
        if is_new or is_longer:
            self._tell_change(topic)

    def remove_hosted(self, name: str, index: int) -> None:
        """Takes a partition out of the table that this broker no longer hosts; the caller closes it.

        The partition is absent from now on if the image has it. A topic that the image does not have yet may exist all the same,
        so it is not told as deleted.
        """
        partitions = self._hosted.get(name, {})
        partition = partitions.pop(index, None)
        if not partitions:
            self._hosted.pop(name, None)
            self._forget_settings(name)
        topic = self._by_name.get(name)
        if topic is None or partition is None:
            return
        is_placed = index < len(topic.partitions)
        if is_placed and topic.partitions[index] is not partition:
            return
        if name not in self._image.topics and not partitions:
            self._drop(topic)
            finish(self._close_dropped())
        elif is_placed:
            topic.partitions[index] = self._host.absent(name, topic.topic_id, index)

    def overrides_of(self, name: str) -> dict[str, str]:
        """Returns the own settings of a topic, also of one that is not in the table."""
        return dict(self._overrides.get(name, {}))

    def set_overrides(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replaces the own settings of a topic, and applies them to its logs; the topic need not be in the table yet.

        Settings that this broker does not know, or whose values are not valid, have no effect and are logged.
        """
        if overrides:
            self._overrides[name] = dict(overrides)
        else:
            self._overrides.pop(name, None)
        topic = self._by_name.get(name)
        if topic is not None:
            topic.overrides = self.overrides_of(name)
            topic.log_config = self._resolved(name)
            for partition in self._hosted.get(name, {}).values():
                self._host.configure(partition, topic.log_config)

    @property
    def has_group_configs(self) -> bool:
        """Whether groups have settings in this cluster: once no broker is of Apache Kafka, which a finalized feature ensures."""
        return any(self.features.level(name) for name in (GROUP_VERSION, SHARE_VERSION))

    def set_group_overrides(self, group_id: str, overrides: Mapping[str, str]) -> None:
        """Replaces the own settings of a group, which need not exist."""
        self.group_configs.follow(group_id, overrides)

    def log_config_of(self, name: str) -> LogConfig:
        """Returns all settings of a topic, resolved, also of one that is not in the table."""
        topic = self._by_name.get(name)
        return self._resolved(name) if topic is None else topic.log_config

    def reconfigure(self) -> Work[None]:
        """Resolves the settings of all topics again, in steps, after the settings of the broker have changed."""
        self._default_config = LogConfig.of(self._config)
        for name in [*self._by_name]:
            topic = self._by_name.get(name)
            if topic is not None:
                topic.log_config = self._resolved(name)
                for partition in self._hosted.get(name, {}).values():
                    self._host.configure(partition, topic.log_config)
            yield

    def _resolved(self, name: str) -> LogConfig:
        overrides = self._overrides.get(name)
        return LogConfig.of(self._config, overrides) if overrides else self._default_config

    def _prepare(self, name: str, topic_id: bytes, partition_count: int) -> Work[None]:
        """Makes the absent partitions of a topic that will have more partitions, some in each step."""
        topic = self._by_name.get(name)
        first = 0 if topic is None or _is_other(topic.topic_id, topic_id) else len(topic.partitions)
        absent = []
        for index in range(first, partition_count):
            absent.append(self._host.absent(name, topic_id, index))
            if len(absent) % PARTITIONS_AT_ONCE == 0:
                yield
        self._prepared = name, topic_id, first, absent

    def _absent(self, topic: Topic[C], first: int, end: int) -> list[C]:
        """Returns absent partitions with the indexes from `first` to `end`, which may be prepared."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[:3] == (topic.name, topic.topic_id, first) and len(prepared[3]) == end - first:
            return prepared[3]
        return [self._host.absent(topic.name, topic.topic_id, index) for index in range(first, end)]

    def _on_topic_change(self, name: str, image: TopicImage | None, indexes: Sequence[int]) -> None:
        """Follows a change of the image."""
        topic = self._by_name.get(name)
        if topic is not None and (image is None or _is_other(topic.topic_id, image.topic_id)):
            self._delete(topic)
            topic = None
        if image is None:
            return
        is_new = topic is None
        if topic is None:
            topic = self._enter(name, image.topic_id)
        if self._lengthen(topic, max(indexes, default=-1) + 1) or is_new:
            self._tell_change(topic)

    def _enter(self, name: str, topic_id: bytes) -> Topic[C]:
        """Enters a topic with the hosted partitions of this id, and with absent ones between them."""
        topic: Topic[C] = Topic(name, topic_id, self.overrides_of(name), self._resolved(name))
        self._by_name[name] = topic
        if topic_id != ZERO_TOPIC_ID:
            self._by_id[topic_id] = topic
        for _, partition in sorted(self._hosted.get(name, {}).items()):
            if not _is_other(topic_id, partition.topic_id):
                self._place(topic, partition)
        return topic

    def _place(self, topic: Topic[C], partition: C) -> bool:
        """Puts a hosted partition into its place, unless that is too far away; returns whether there are more partitions now."""
        if partition.index >= len(topic.partitions) + MOST_UNTOLD:
            return False
        is_longer = self._lengthen(topic, partition.index + 1)
        topic.partitions[partition.index] = partition
        return is_longer

    def _drop(self, topic: Topic[C]) -> None:
        """Takes a topic out of the table, which the image may get again."""
        self._by_name.pop(topic.name, None)
        if self._by_id.get(topic.topic_id) is topic:
            del self._by_id[topic.topic_id]
        hosted = self._hosted.get(topic.name, {})
        self._dropped += [each for each in topic.partitions if hosted.get(each.index) is not each] if hosted else topic.partitions
        self._forget_settings(topic.name)

    def _close_dropped(self) -> Work[None]:
        """Closes the absent partitions of topics that were taken out of the table, some in each step."""
        while self._dropped:
            dropped = self._dropped[-PARTITIONS_AT_ONCE:]
            del self._dropped[-PARTITIONS_AT_ONCE:]
            for partition in dropped:
                partition.close()
            yield

    def _delete(self, topic: Topic[C]) -> None:
        """Takes a topic out of the table that the controller has deleted."""
        self._drop(topic)
        self._deleted.append(topic.name)
        for callback in self.on_delete:
            with isolate("The deletion of a topic could not be handled", topic=topic.name):
                callback(topic)

    def _end_deletions(self) -> None:
        """Closes the partitions of deleted topics that are still open, and logs the topics since the last call in one line."""
        finish(self._close_dropped())
        deleted, self._deleted = self._deleted, []
        if deleted:
            log.info("Topics were deleted", count=len(deleted), first=deleted[:MOST_NAMED])

    def _forget_settings(self, name: str) -> None:
        """Forgets the settings of a topic that is neither in the table nor hosted; a topic created again has others."""
        if name not in self._by_name and name not in self._hosted:
            self._overrides.pop(name, None)

    def _lengthen(self, topic: Topic[C], partition_count: int) -> bool:
        """Adds partitions, absent ones except for those that are hosted; returns whether there are more now."""
        former_count = len(topic.partitions)
        if partition_count <= former_count:
            return False
        # A new list, because those who walk over the partitions in steps keep the former one.
        partitions = [*topic.partitions, *self._absent(topic, former_count, partition_count)]
        hosted, added = self._hosted.get(topic.name, {}), range(former_count, partition_count)
        for index in hosted if len(hosted) < len(added) else added:
            partition = hosted.get(index)
            if partition is not None and index in added and not _is_other(topic.topic_id, partition.topic_id):
                partitions[index] = partition
        topic.partitions = partitions
        return True

    def _tell_change(self, topic: Topic[C]) -> None:
        for callback in self.on_change:
            with isolate("The change of a topic could not be handled", topic=topic.name):
                callback(topic)


def _is_other(topic_id: bytes, other_id: bytes) -> bool:
    """Whether two ids are those of different topics; an unknown id may be any topic's."""
    return topic_id != other_id and ZERO_TOPIC_ID not in (topic_id, other_id)
