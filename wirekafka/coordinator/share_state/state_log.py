"""The edge of what is written down of share partitions: __share_group_state.

Theory of operation: a change of a share partition is one record, appended to the partition of the topic that its key belongs
to, and replayed. The topic is not compacted: a snapshot makes all older records of its share partition worthless, so what lies
before the oldest of the newest snapshots is cut off, from time to time. Share partitions that do not change are given new
snapshots for that.

Rules of this file:
    Invariant: `_snapshot_offsets[index]` has the offset of the newest snapshot of each share partition in that partition.

Source: ShareCoordinatorService, ShareCoordinatorOffsetsManager, SharePartitionKey.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog

from wirekafka.coordinator.effects import append_error
from wirekafka.coordinator.groups.runtime import java_string_hash
from wirekafka.coordinator.share_delivery.share_partition import StateChange
from wirekafka.coordinator.share_state.records import ShareKey, ShareSnapshotValue, ShareStateRecord, decode, encode
from wirekafka.coordinator.share_state.state import ShareState, ShareStates
from wirekafka.errors import KafkaError, ProtocolError
from wirekafka.log.validation import Origin
from wirekafka.names import SHARE_STATE_TOPIC
from wirekafka.wire.batch import BatchHeader, Record, build_batch, iterate_records
from wirekafka.wire.compression import Compression

if TYPE_CHECKING:
    from wirekafka.clock import Clock
    from wirekafka.config import BrokerConfig
    from wirekafka.metadata.topics import Topic, Topics
    from wirekafka.replication.partition import Partition

log = structlog.get_logger(__name__)

RECORDS_IN_BATCH = 1000
"""How many records go into one batch."""


class ShareStateLog:
    """What is written down of the share partitions of one broker."""

    def __init__(self, config: BrokerConfig, clock: Clock, topics: Topics) -> None:
        self._clock = clock
        self._topics = topics
        self._prune_interval_ms = config.integer("share.coordinator.state.topic.prune.interval.ms")
        self._cold_interval_ms = config.integer("share.coordinator.cold.partition.snapshot.interval.ms")
        self._compression = Compression(config.integer("share.coordinator.state.topic.compression.codec"))
        self._configured_partition_count = config.integer("share.coordinator.state.topic.num.partitions")
        self._partition_count = self._configured_partition_count
        self._states = ShareStates(config.integer("share.coordinator.snapshot.update.records.per.snapshot"))
        self._snapshot_offsets: defaultdict[int, dict[ShareKey, int]] = defaultdict(dict)
        self._has_failed = False

    def load(self) -> None:
        """Brings all states back; to be called once, on the loop, before the broker listens.

        Raises:
            KafkaError: the log cannot be read.
        """
        topic = self._topics.find(SHARE_STATE_TOPIC)
        if topic is not None:
            self._partition_count = len(topic.partitions)
            for partition in topic.partitions:
                self._load_partition(partition)
            if self._states.by_key:
                log.info("Loaded the state of share groups", share_partitions=len(self._states.by_key))
        self._delete_if_possible(key for key in self._states.by_key if self._topics.find_by_id(key.topic_id) is None)
        self._topics.on_delete.append(self._on_topic_deleted)
        self._clock.call_later(self._prune_interval_ms, self._prune)
        self._clock.call_later(self._cold_interval_ms, self._snapshot_cold)

    def get(self, key: ShareKey) -> ShareState | None:
        """What is known of a share partition; None if it was never initialised. Not to be changed."""
        return self._states.by_key.get(key)

    def keys_of_topic(self, topic_id: bytes) -> list[ShareKey]:
        """The share partitions of a topic."""
        return [key for key in self._states.by_key if key.topic_id == topic_id]

    def partition_of(self, key: ShareKey) -> int:
        """The partition of __share_group_state that holds a share partition."""
        number = java_string_hash(str(key))
        return (0 if number == -0x80000000 else abs(number)) % self._partition_count

    def is_available(self, key: ShareKey) -> bool:
        """Whether what is known of it is all there is: the partition that holds it is not offline."""
        topic = self._topics.find(SHARE_STATE_TOPIC)
        return topic is None or not topic.partitions[self.partition_of(key)].is_offline

    def initialize(self, start_offsets: dict[ShareKey, int | None], state_epoch: int) -> None:
        """Makes share partitions known, each with where the group begins; None leaves that to the first fetch.

        Raises:
            KafkaError: what an append ended with; some may be known then.
        """
        now_ms = self._clock.now_ms()
        self._append(
            self._states.initialize(key, state_epoch, start_offset, now_ms) for key, start_offset in start_offsets.items()
        )

    def write(self, key: ShareKey, change: StateChange, leader_epoch: int) -> None:
        """Remembers a change of a share partition that is known.

        Raises:
            KafkaError: what the append ended with; nothing is remembered then.
        """
        self._append([self._states.write(key, change, leader_epoch, self._clock.now_ms())])

    def delete(self, keys: Iterable[ShareKey]) -> None:
        """Forgets share partitions.

        Raises:
            KafkaError: what an append ended with; some may be forgotten then.
        """
        self._append([ShareStateRecord(key, None) for key in keys if key in self._states.by_key])

    def _load_partition(self, partition: Partition) -> None:
        """Brings the states in one partition back; those of one that is offline are not available."""
        name = str(partition.topic_partition)
        try:
            partition.check_online()
            batches = list(partition.log.batches(partition.log.log_start_offset))
        except KafkaError:
            if not partition.is_offline:
                raise
            log.error("The state of share groups is not available: its partition is offline", partition=name)
            return
        for batch in batches:
            if BatchHeader(batch).is_control:
                # Whoever names this partition in a transaction gets a marker here.
                continue
            for record in iterate_records(batch):
                try:
                    decoded = decode(record.key, record.value)
                    if decoded is not None:
                        self._replay(partition.index, decoded, record.offset)
                except ProtocolError as error:
                    log.error("A record of share groups cannot be read", partition=name, offset=record.offset, error=str(error))

    def _replay(self, index: int, record: ShareStateRecord, offset: int) -> None:
        self._states.replay(record)
        if record.value is None:
            self._snapshot_offsets[index].pop(record.key, None)
        elif isinstance(record.value, ShareSnapshotValue):
            self._snapshot_offsets[index][record.key] = offset

    def _append(self, records: Iterable[ShareStateRecord]) -> None:
        by_partition: defaultdict[int, list[ShareStateRecord]] = defaultdict(list)
        for record in records:
            by_partition[self.partition_of(record.key)].append(record)
        for index, of_partition in by_partition.items():
            for start in range(0, len(of_partition), RECORDS_IN_BATCH):
                self._append_batch(index, of_partition[start : start + RECORDS_IN_BATCH])

    def _append_batch(self, index: int, records: list[ShareStateRecord]) -> None:
        now_ms = self._clock.now_ms()
        encoded = []
        for record in records:
            key, value = encode(record)
            encoded.append(Record(key, value, (), now_ms))
        batch = build_batch(encoded, compression=self._compression)
        try:
            info = self._partition(index).append(memoryview(batch), now_ms=now_ms, origin=Origin.COORDINATOR)
        except KafkaError as error:
            if not self._has_failed:
                log.error("The state of share groups cannot be stored", partition=index, error=str(error))
            self._has_failed = True
            raise KafkaError(append_error(error.code), error.message) from error
        if self._has_failed:
            log.info("The state of share groups can be stored again")
            self._has_failed = False
        for offset, record in enumerate(records, info.base_offset):
            self._replay(index, record, offset)

    def _partition(self, index: int) -> Partition:
        topic = self._topics.find(SHARE_STATE_TOPIC) or self._topics.create_internal(SHARE_STATE_TOPIC)
        return topic.partitions[index]

    def _prune(self) -> None:
        """Cuts off what newer snapshots have made worthless."""
        self._clock.call_later(self._prune_interval_ms, self._prune)
        topic = self._topics.find(SHARE_STATE_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            offsets = self._snapshot_offsets[partition.index].values()
            redundant = min(offsets, default=partition.log.high_watermark)
            if redundant > partition.log.log_start_offset and not partition.is_offline:
                try:
                    partition.delete_records(redundant)
                except KafkaError as error:
                    log.error("Old state of share groups cannot be cut off", partition=partition.index, error=str(error))

    def _snapshot_cold(self) -> None:
        """Writes whole what has not been for long."""
        self._clock.call_later(self._cold_interval_ms, self._snapshot_cold)
        try:
            self._append(self._states.cold_snapshots(self._cold_interval_ms, self._clock.now_ms()))
        except KafkaError:
            return  # the log has said so, and the next time is near

    def _on_topic_deleted(self, topic: Topic) -> None:
        if topic.name == SHARE_STATE_TOPIC:
            log.warning("The topic of the state of share groups was deleted, and that state with it")
            self._states.by_key.clear()
            self._snapshot_offsets.clear()
            self._partition_count = self._configured_partition_count
            return
        self._delete_if_possible(self.keys_of_topic(topic.topic_id))

    def _delete_if_possible(self, keys: Iterable[ShareKey]) -> None:
        """Deletes the state of topics that are gone."""
        try:
            self.delete(list(keys))
        except KafkaError:
            return  # the log has said so; a topic id never comes back, so nobody asks for this state
