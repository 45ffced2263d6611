"""The topics of a broker without other brokers: how clients create, extend, change and delete them.

How it works: the `MetadataStore` holds the topics; the folders of the data directories hold their records. A change is
written to the store first and to the folders afterwards. After a crash in between, a created topic exists with empty
partitions, and a deleted topic does not exist. A topic that has folders and is not in the store was moved in from Apache Kafka:
`takeover` takes it over or refuses it.

This room knows how many partitions a topic has, and nothing about the work of a partition. `PartitionHost` is its port to the
room that hosts the partitions (`replication`), which opens, configures and deletes partitions when topics change.

Rules of this file:
    Invariant: all partitions of a topic in the table are open, and numbered from 0.
    The changes of `create`, `delete`, `add_partitions` and `alter` are on disk when these methods return.

Source: org.apache.kafka.controller.ReplicationControlManager (rules and their errors).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import structlog

from wirekafka.config import BrokerConfig, ConfigError, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.metadata.features import Features
from wirekafka.metadata.group_configs import GroupConfigs
from wirekafka.metadata.internal_topics import INTERNAL
from wirekafka.metadata.store import MetadataStore
from wirekafka.metadata.takeover import take_over, topic_id_mismatch
from wirekafka.metadata.topic_names import check_topic_name, collision_key
from wirekafka.metadata.topic_table import UNKNOWN_TOPIC_OR_PARTITION_MESSAGE, P, Topic, TopicTable
from wirekafka.names import TopicPartition, format_topic_id, new_topic_id
from wirekafka.pending import Work, finish

if TYPE_CHECKING:
    from wirekafka.log.log import Log
    from wirekafka.log.manager import LogManager

log = structlog.get_logger(__name__)

MAX_RECORDS_AT_ONCE = 10_000
"""The most metadata records that one request may make in Apache Kafka: one for each topic, partition and setting
(QuorumController.MAX_RECORDS_PER_USER_OP)."""

MAX_PARTITIONS_AT_ONCE = MAX_RECORDS_AT_ONCE - 1
"""The most partitions that a topic may get at once: the topic itself takes one more record."""


class PartitionHost(Protocol[P]):
    """Hosts the partitions of the topics on this broker; `wirekafka.replication.replica_manager.ReplicaManager`."""

    def open(self, topic: str, index: int, *, topic_id: bytes, config: LogConfig, is_new: bool) -> P:
        """Opens a partition, and creates its log if there is none.

        Args:
            is_new: the partition has never had a log.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if the folder of the partition cannot be made.
        """

    def configure(self, partition: P, config: LogConfig) -> None:
        """Applies the settings of the topic to a partition."""

    def raise_leader_epoch(self, partition: P, leader_epoch: int) -> None:
        """Lets the leader epoch of a partition that was just opened be at least this one."""

    def notify_offline(self, partitions: Iterable[P], logs: Collection[Log]) -> None:
        """Ends the waits for those partitions whose logs are among the given ones, which have gone offline."""

    def close(self, partition: P) -> None:
        """Closes a partition, which ends the requests that wait for it."""

    def delete(self, partition: P) -> None:
        """Deletes a partition and its log.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if the folder of the partition cannot be renamed.
        """


class Topics(TopicTable[P]):
    """The table of topics of a broker without other brokers, which changes them.

    Attributes:
        group_configs, features: as in every table; they are in the same store.

    Args:
        store: keeps the topics and the settings.
        host: hosts the partitions of the topics.
    """

    def __init__(self, config: BrokerConfig, logs: LogManager, store: MetadataStore, host: PartitionHost[P]) -> None:
        super().__init__(GroupConfigs(config, store), Features(config, store))
        self._host = host
        self._config = config
        self._logs = logs
        self._store = store
        self._by_collision_key: dict[str, str] = {}
        self._reserved_names: set[str] = set()
        self._in_growth: set[str] = set()
        self._has_new_names = False
        self._renamed_topic_ids: list[bytes] = []
        # Topics without settings of their own share one configuration, which saves 80 us for each topic at start.
        self._default_config: LogConfig | None = None

    @classmethod
    def open(cls, config: BrokerConfig, logs: LogManager, store: MetadataStore, host: PartitionHost[P]) -> Topics[P]:
        """Opens all topics, also topics that were moved in from Apache Kafka.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if the list of topics cannot be read; INCONSISTENT_TOPIC_ID if a folder belongs to
                another topic of the same name.
        """
        topics = cls(config, logs, store, host)
        topics._apply_broker_configs()
        topics._adopt(logs.discover())
        for name, stored in topics._store.topics.items():
            topic: Topic[P] = Topic(name, stored.topic_id, stored.overrides, topics._log_config(stored.overrides))
            topics._note_lost_folders(name, stored.partition_count)
            finish(topics._opening(topic, stored.partition_count, is_new=False))
            for partition in topic.partitions if stored.leader_epoch else ():
                host.raise_leader_epoch(partition, stored.leader_epoch)
            topics._enter(topic)
        logs.on_offline.append(topics._on_offline)
        return topics

    def close(self) -> None:
        """Closes all partitions, which ends the requests that wait for them, and the journal."""
        for topic in self:
            for partition in topic.partitions:
                self._host.close(partition)
        self._store.close()

    def check_name(self, name: str) -> None:
        """Raises unless a new topic can have this name.

        Raises:
            KafkaError: INVALID_TOPIC_EXCEPTION, also for a name that differs from a topic's in `.` and `_` only;
                TOPIC_ALREADY_EXISTS.
        """
        check_topic_name(name)
        if name in self._by_name or name in self._reserved_names:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        key = collision_key(name)
        if key in self._by_collision_key:
            message = f"Topic '{name}' collides with existing topic: {self._by_collision_key[key]}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Syncs the changes that are made inside the block to the disk at its end, in one wait for many topics.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, at the end of the block.
        """
        with self._store.together():
            yield
        if self._has_new_names:
            self._sync_names()

    def _sync_names(self) -> None:
        """Syncs the names of folders to the disk; after that, a crash cannot bring deleted topics back.

        If the sync fails, the ids of deleted topics are kept, and the next change of topics syncs again.
        """
        self._has_new_names = not self._logs.sync_directories()
        if self._has_new_names:
            return
        if self._logs.is_complete:
            for topic_id in self._renamed_topic_ids:
                self._store.forget_deleted_topic(topic_id)
        self._renamed_topic_ids.clear()

    def check_new(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> LogConfig:
        """Returns the resolved settings of a new topic.

        Raises:
            KafkaError: as `check_name`; INVALID_PARTITIONS, POLICY_VIOLATION (too many partitions), INVALID_CONFIG.
        """
        self.check_name(name)
        if partition_count < 1:
            message = "Number of partitions was set to an invalid non-positive value."
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
        _check_size(partition_count)
        return self.resolve(overrides)

    def create(
        self,
        name: str,
        partition_count: int,
        overrides: Mapping[str, str] | None = None,
        *,
        topic_id: bytes | None = None,
    ) -> Topic[P]:
        """Creates a topic.

        Raises:
            KafkaError: as `check_new`; KAFKA_STORAGE_ERROR if the disk fails. Then no topic is created.
        """
        return finish(self.creation(name, partition_count, overrides, topic_id=topic_id))

    def creation(
        self,
        name: str,
        partition_count: int,
        overrides: Mapping[str, str] | None = None,
        *,
        topic_id: bytes | None = None,
    ) -> Work[Topic[P]]:
        """Creates a topic as `create` does, in steps of one partition each.

        The name is reserved from the first step on. The topic can be found after the last step. If the work is closed before
        that, no topic is left.

        Raises:
            KafkaError: as `create`.
        """
        overrides = dict(overrides or {})
        log_config = self.check_new(name, partition_count, overrides)
        topic_id = topic_id or new_topic_id()
        self._store.put_topic(name, topic_id, partition_count, overrides)
        topic: Topic[P] = Topic(name, topic_id, overrides, log_config)
        self._reserve(name)
        try:
            yield from self._opening(topic, partition_count)
        except (Exception, GeneratorExit):
            self._drop_partitions(topic, 0)
            self._store.delete_topic(name)
            raise
        finally:
            self._release(name)
        self._enter(topic)
        log.info("Created a topic", topic=name, partitions=partition_count, topic_id=format_topic_id(topic_id))
        for callback in self.on_change:
            callback(topic)
        return topic

    def _reserve(self, name: str) -> None:
        self._reserved_names.add(name)
        key = collision_key(name)
        if key is not None:
            self._by_collision_key[key] = name

    def _release(self, name: str) -> None:
        self._reserved_names.discard(name)
        key = collision_key(name)
        if key is not None:
            self._by_collision_key.pop(key, None)

    def create_internal(self, name: str) -> Topic[P]:
        """Creates a topic in which coordinators keep their state.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, if no coordinator has a topic of this name; COORDINATOR_NOT_AVAILABLE, while
                a client's request creates or deletes the topic; else as `create`.
        """
        shape = INTERNAL.get(name)
        if shape is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if name in self._reserved_names:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"The topic {name} is being created.")
        return self.create(name, self._config.integer(shape.partition_count), shape.topic_settings(self._config))

    def create_automatically(self, name: str) -> Topic[P]:
        """Creates the topic that a client asked for by name, with the broker's defaults.

        Raises:
            KafkaError: as `create`.
        """
        return finish(self.automatic_creation(name))

    def automatic_creation(self, name: str) -> Work[Topic[P]]:
        """Creates the topic that a client asked for by name as `create_automatically` does, in steps of one partition each.

        Raises:
            KafkaError: as `create`.
        """
        internal = INTERNAL.get(name)
        if internal is None:
            return (yield from self.creation(name, self._config.integer("num.partitions")))
        overrides = internal.topic_settings(self._config)
        return (yield from self.creation(name, self._config.integer(internal.partition_count), overrides))

    def automatic_size(self, name: str) -> int:
        """Returns the number of partitions that an automatically created topic gets."""
        internal = INTERNAL.get(name)
        return self._config.integer("num.partitions" if internal is None else internal.partition_count)

    def delete(self, topic: Topic[P]) -> None:
        """Deletes a topic. Its name is free at once; its files are deleted later.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if the journal cannot be written; the topic still exists then.
        """
        finish(self.deletion(topic))

    def deletion(self, topic: Topic[P]) -> Work[None]:
        """Deletes a topic as `delete` does, in steps of one partition each.

        The topic cannot be found after the first step. Its name is free after the last step. If the work is closed before that,
        the remaining partitions are deleted at once.

        Raises:
            KafkaError: as `delete`.
        """
        self._store.delete_topic(topic.name)
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        self._reserve(topic.name)
        partitions = deque(topic.partitions)
        are_renamed = True
        try:
            while partitions:
                are_renamed &= self._delete_partitions([partitions.popleft()])
                yield
        finally:
            are_renamed &= self._delete_partitions(partitions)
            self._release(topic.name)
            self._announce_deletion(topic, are_renamed=are_renamed)

    def _announce_deletion(self, topic: Topic[P], *, are_renamed: bool) -> None:
        """Syncs the deletion of a topic to the disk, and calls `on_delete`.

        Args:
            are_renamed: the folders of all partitions were renamed.
        """
        if are_renamed:
            self._renamed_topic_ids.append(topic.topic_id)
        if not self._store.is_sync_put_off:
            self._sync_names()
        log.info("Deleted a topic", topic=topic.name, topic_id=format_topic_id(topic.topic_id))
        for callback in self.on_delete:
            with isolate("The deletion of a topic could not be handled", topic=topic.name):
                callback(topic)

    def check_growth(self, topic: Topic[P], partition_count: int) -> None:
        """Raises unless the topic can grow to this number of partitions.

        Raises:
            KafkaError: INVALID_PARTITIONS if the topic has as many or more; POLICY_VIOLATION if a request adds too many;
                INVALID_REQUEST for an internal topic, because its partition count locates the state in it.
        """
        current_count = len(topic.partitions)
        if partition_count == current_count:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current_count} partition(s).")
        if partition_count < current_count:
            message = (
                f"The topic {topic.name} currently has {current_count} partition(s); {partition_count} would not be an increase."
            )
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
        if topic.is_internal:
            message = f"No partitions can be added to {topic.name}: the partition count locates the state in it."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        _check_size(partition_count - current_count)

    def add_partitions(self, topic: Topic[P], partition_count: int) -> None:
        """Adds partitions until the topic has `partition_count`.

        Raises:
            KafkaError: as `check_growth`; KAFKA_STORAGE_ERROR if the disk fails; the topic is unchanged then.
        """
        finish(self.growth(topic, partition_count))

    def growth(self, topic: Topic[P], partition_count: int) -> Work[None]:
        """Adds partitions as `add_partitions` does, in steps of one partition each. They can be found after the last step.

        Raises:
            KafkaError: as `add_partitions`; REASSIGNMENT_IN_PROGRESS if the topic is growing already.
        """
        self.check_growth(topic, partition_count)
        former_count = len(topic.partitions)
        if topic.name in self._in_growth:
            raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"Partitions are being added to {topic.name}.")
        self._in_growth.add(topic.name)
        grown: Topic[P] = Topic(topic.name, topic.topic_id, topic.overrides, topic.log_config)
        grown.partitions = list(topic.partitions)
        try:
            self._store.put_topic(topic.name, topic.topic_id, partition_count, topic.overrides)
            try:
                yield from self._opening(grown, partition_count)
                if self._by_name.get(topic.name) is not topic:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION_MESSAGE)
            except (Exception, GeneratorExit):
                self._drop_partitions(grown, former_count)
                if self._by_name.get(topic.name) is topic:
                    self._store.put_topic(topic.name, topic.topic_id, former_count, topic.overrides)
                raise
        finally:
            self._in_growth.discard(topic.name)
        self._configure(grown, topic.log_config)
        topic.partitions, topic.described = grown.partitions, None
        log.info("Added partitions", topic=topic.name, partitions=partition_count)
        for callback in self.on_change:
            callback(topic)

    def alter(self, topic: Topic[P], overrides: Mapping[str, str]) -> None:
        """Replaces the own settings of the topic.

        Raises:
            KafkaError: INVALID_CONFIG; KAFKA_STORAGE_ERROR if the journal cannot be written. The settings are unchanged then.
        """
        log_config = self.resolve(overrides)
        self._store.put_topic(topic.name, topic.topic_id, len(topic.partitions), dict(overrides))
        topic.overrides = dict(overrides)
        self._configure(topic, log_config)
        log.info("Changed a topic's settings", topic=topic.name, settings=dict(overrides))

    def resolve(self, overrides: Mapping[str, str]) -> LogConfig:
        """Returns all settings of a topic with these own settings.

        Raises:
            KafkaError: INVALID_CONFIG.
        """
        try:
            log_config = self._log_config(overrides)
            log_config.check()
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        return log_config

    def broker_configs(self, broker: str) -> dict[str, str]:
        """Returns the dynamic settings of a broker; "" stands for all brokers."""
        return dict(self._store.broker_configs.get(broker, {}))

    def check_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        """Raises unless `alter_broker_configs` accepts these settings.

        Raises:
            KafkaError: INVALID_CONFIG.
        """
        layers = self._broker_layers() | {broker: configs}
        try:
            self._config.check_dynamic(layers[""], layers[str(self._config.node_id)])
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def alter_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        """Replaces the dynamic settings of this broker, or with "" of all brokers.

        Raises:
            KafkaError: INVALID_CONFIG; KAFKA_STORAGE_ERROR if the journal cannot be written. The settings are unchanged then.
        """
        self.check_broker_configs(broker, configs)
        self._store.put_broker_configs(broker, dict(configs))
        self._apply_broker_configs()
        for topic in self._by_name.values():
            self._configure(topic, self._log_config(topic.overrides))
        log.info("Changed the broker's settings", broker=broker or "all", settings=dict(configs))

    def _configure(self, topic: Topic[P], log_config: LogConfig) -> None:
        topic.log_config = log_config
        for partition in topic.partitions:
            self._host.configure(partition, log_config)

    def _log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        if not overrides and self._default_config is not None:
            return self._default_config
        return LogConfig.of(self._config, overrides)

    def _broker_layers(self) -> dict[str, Mapping[str, str]]:
        return {name: self._store.broker_configs.get(name, {}) for name in ("", str(self._config.node_id))}

    def _apply_broker_configs(self) -> None:
        layers = self._broker_layers()
        self._config.set_dynamic(layers[""], layers[str(self._config.node_id)])
        self._default_config = LogConfig.of(self._config)

    def _enter(self, topic: Topic[P]) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        key = collision_key(topic.name)
        if key is not None:
            self._by_collision_key[key] = topic.name

    def _opening(self, topic: Topic[P], partition_count: int, *, is_new: bool = True) -> Work[None]:
        """Opens the partitions that the topic lacks, one in each step."""
        for index in range(len(topic.partitions), partition_count):
            partition = self._host.open(topic.name, index, topic_id=topic.topic_id, config=topic.log_config, is_new=is_new)
            self._host.configure(partition, topic.log_config)
            topic.partitions.append(partition)
            topic.described = None
            self._has_new_names = True
            yield

    def _note_lost_folders(self, topic: str, partition_count: int) -> None:
        """Logs which partitions are empty because their folders are missing, after a crash or a deletion by hand."""
        lost = [index for index in range(partition_count) if self._logs.get(TopicPartition(topic, index)) is None]
        if lost and self._logs.is_complete:
            log.warning(
                "Partitions are empty, because their folders are missing; restore folders that had records from a backup",
                topic=topic,
                partitions=lost,
            )

    def _on_offline(self, logs: Iterable[Log]) -> None:
        gone = set(logs)
        for topic in {each.topic_partition.topic for each in gone}:
            found = self._by_name.get(topic)
            if found is not None:
                found.described = None
                self._host.notify_offline(found.partitions, gone)

    def _drop_partitions(self, topic: Topic[P], first: int) -> None:
        self._delete_partitions(topic.partitions[first:])
        del topic.partitions[first:]
        topic.described = None

    def _delete_partitions(self, partitions: Iterable[P]) -> bool:
        """Deletes partitions; returns whether all folders were renamed.

        A folder that cannot be renamed is deleted at the next start.
        """
        are_renamed = True
        for partition in partitions:
            self._has_new_names = True
            try:
                self._host.delete(partition)
            except KafkaError:
                are_renamed = False
        return are_renamed

    def _adopt(self, found: Iterable[tuple[TopicPartition, bytes | None]]) -> None:
        """Brings the journal and the folders into agreement.

        Folders of a deleted topic are deleted now. Topics that the journal does not know are taken over.

        Raises:
            KafkaError: INCONSISTENT_TOPIC_ID, if a folder belongs to another topic of the same name; else as `take_over`.
        """
        # A directory that is offline may hold folders of deleted topics.
        are_gone = self._logs.is_complete
        unknown: defaultdict[str, dict[int, bytes | None]] = defaultdict(dict)
        for name, topic_id in found:
            stored = self._store.topics.get(name.topic)
            if self._is_of_deleted_topic(name.topic, topic_id):
                are_gone &= self._delete_folder(name)
            elif stored is None:
                unknown[name.topic][name.partition] = topic_id
            elif topic_id is not None and topic_id != stored.topic_id:
                raise topic_id_mismatch(name, topic_id, stored.topic_id)
            elif name.partition >= stored.partition_count:
                self._store.put_topic(name.topic, stored.topic_id, name.partition + 1, stored.overrides)
        if are_gone and self._store.deleted and self._logs.sync_directories():
            self._store.forget_deleted()
        if unknown:
            take_over(unknown, self._config, self._logs.storage, self._store)
            self._apply_broker_configs()

    def _is_of_deleted_topic(self, topic: str, topic_id: bytes | None) -> bool:
        """Whether a folder belongs to a topic that was deleted.

        If a power loss removed the topic id from a folder that was never synced, the topic's name decides.
        """
        if topic_id is not None:
            return topic_id in self._store.deleted
        return topic not in self._store.topics and topic in self._store.deleted.values()

    def _delete_folder(self, name: TopicPartition) -> bool:
        """Deletes the folder of a partition of a deleted topic; returns whether that succeeded."""
        try:
            self._logs.delete(name)
        except KafkaError:
            return False
        return True


def check_assignment(broker_ids: Sequence[int], node_id: int) -> None:
    """Raises unless this broker is the only replica.

    Raises:
        KafkaError: INVALID_REPLICA_ASSIGNMENT.
    """
    if not broker_ids:
        message = "The manual partition assignment includes an empty replica list."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    for broker_id in broker_ids:
        if broker_id != node_id:
            message = f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if len(broker_ids) > 1:
        message = f"The manual partition assignment includes the broker {node_id} more than once."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _check_size(partition_count: int) -> None:
    if partition_count > MAX_PARTITIONS_AT_ONCE:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
