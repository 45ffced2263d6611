"""Topics in memory, for tests of the coordinators: real partitions, whose logs are lists of batches.

    topics = MemoryTopics(partition_count=1)
    partition = topics.create_internal("__consumer_offsets").partitions[0]

The disk of all topics can be made to refuse appends: `topics.error = ErrorCode.KAFKA_STORAGE_ERROR`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.context import AppendInfo
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.producer_state import Ending, Producers
from wirekafka.names import GROUP_METADATA_TOPIC, TopicPartition
from wirekafka.replication.partition import Partition
from wirekafka.wire.batch import BatchHeader, Record, iterate_records, write_offsets
from wirekafka.wire.control import EndMarker, build_end_marker

FOLLOWER = 99
"""The node id of the follower of a replicated partition."""


class MemoryDisk:
    """The disk of all topics in memory.

    Attributes:
        error: the error of all appends; None for success.
        max_message_bytes, segment_bytes, min_insync_replicas: the settings of all topics.
    """

    def __init__(self) -> None:
        self.error: ErrorCode | None = None
        self.max_message_bytes = 1 << 20
        self.segment_bytes = 1 << 30
        self.min_insync_replicas = 1


class BatchLog:
    """The part of `Log` that a partition of a coordinator uses. It is its own `reader` and `retention`.

    An append checks nothing but the size of the batch, and no transaction is ever open.

    Attributes:
        appended: the batches, with their offsets.
    """

    def __init__(self, index: int = 0, disk: MemoryDisk | None = None, topic: str = GROUP_METADATA_TOPIC) -> None:
        self.topic_partition = TopicPartition(topic, index)
        self.disk = disk or MemoryDisk()
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.offline_reason: str | None = None
        self.epochs = LeaderEpochs()
        self.producers = Producers(0)
        self.appended: list[bytes] = []
        self.reader = self.retention = self

    @property
    def config(self) -> Any:
        """The settings of the topic that coordinators use."""
        return SimpleNamespace(
            max_message_bytes=self.disk.max_message_bytes,
            segment_bytes=self.disk.segment_bytes,
            min_insync_replicas=self.disk.min_insync_replicas,
            cleanup_policy=frozenset({"delete"}),
        )

    @property
    def last_stable_offset(self) -> int:
        """The high watermark, because no transaction is open."""
        return self.high_watermark

    def advance_high_watermark(self, offset: int) -> None:
        """Commits the records before `offset`."""
        self.high_watermark = offset

    def size_between(self, offset: int, end_offset: int) -> int:
        """Returns the number of records, as if each had one byte."""
        return end_offset - offset

    def append(self, records: Any, *, leader_epoch: int = 0, now_ms: int = 0, origin: Any = None) -> AppendInfo:
        """Appends a batch, into which its offsets are written.

        Raises:
            KafkaError: the error of the disk; MESSAGE_TOO_LARGE.
        """
        if self.disk.error is not None:
            raise KafkaError(self.disk.error)
        if len(records) > self.disk.max_message_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        header = BatchHeader(records)
        write_offsets(records, 0, header, self.log_end_offset, leader_epoch)
        self.log_end_offset = header.next_offset
        self.appended.append(bytes(records))
        return AppendInfo(header.base_offset, header.last_offset, None, 0)

    def append_marker(
        self, producer_id: int, producer_epoch: int, ending: Ending, *, leader_epoch: int = 0, now_ms: int = 0
    ) -> AppendInfo:
        """Appends the marker of a transaction."""
        batch = build_end_marker(ending.marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        return self.append(batch, leader_epoch=leader_epoch)

    def end_transaction(self, producer_id: int, producer_epoch: int = 0, *, is_commit: bool) -> AppendInfo:
        """Appends the marker that a coordinator of epoch 0 writes."""
        return self.append_marker(producer_id, producer_epoch, Ending(EndMarker(is_commit, 0), 1))

    def batches(self, from_offset: int | None = None) -> Iterator[memoryview]:
        """Yields all batches."""
        return (memoryview(batch) for batch in self.appended)

    def delete_records(self, before_offset: int) -> None:
        """Sets the log start offset; the batches stay."""
        self.log_start_offset = before_offset

    @property
    def records(self) -> list[Record]:
        """The records of all batches."""
        return [record for batch in self.appended for record in iterate_records(batch)]


class MemoryTopic:
    """One topic; its id is its name."""

    def __init__(self, disk: MemoryDisk, name: str, partition_count: int, *, is_replicated: bool = False) -> None:
        self.name = name
        self.topic_id = name.encode().ljust(16)[:16]
        self.partitions: list[Any] = []
        for index in range(partition_count):
            log = BatchLog(index, disk, name)
            partition = Partition(name, self.topic_id, index, cast(Any, log), leader=1)
            if is_replicated:
                partition.set_replicas((1, FOLLOWER), (1, FOLLOWER))
            self.partitions.append(partition)


class MemoryTopics:
    """The part of `Topics` that coordinators use.

    Attributes:
        topics: the topics, by name.
        disk: the disk of all topics.
        partition_count: the partition count of internal topics that are created from now on.
        is_replicated: partitions that are created from now on have a follower in sync, so that an append is not a commit.
        features: has every feature at level 2.
        on_delete: called with each deleted topic.
        on_change: called with each topic that is created.
    """

    def __init__(self, partition_count: int = 50) -> None:
        self.on_delete: list[Callable[[Any], object]] = []
        self.on_change: list[Callable[[Any], object]] = []
        self.disk = MemoryDisk()
        self.topics: dict[str, MemoryTopic] = {}
        self.partition_count = partition_count
        self.is_replicated = False
        self.features = SimpleNamespace(level=lambda name: 2)

    @property
    def error(self) -> ErrorCode | None:
        """The error of appends and of the creation of a topic; None for success."""
        return self.disk.error

    @error.setter
    def error(self, error: ErrorCode | None) -> None:
        self.disk.error = error

    @property
    def topic(self) -> MemoryTopic | None:
        """The topic of groups."""
        return self.topics.get(GROUP_METADATA_TOPIC)

    def find(self, name: str) -> MemoryTopic | None:
        """Returns the topic with this name, or None."""
        return self.topics.get(name)

    def find_by_id(self, topic_id: bytes) -> MemoryTopic | None:
        """Returns the topic with this id, or None."""
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def __iter__(self) -> Iterator[MemoryTopic]:
        """Iterates over the topics."""
        return iter(self.topics.values())

    def get(self, name: str) -> MemoryTopic:
        """Returns the topic with this name.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        found = self.topics.get(name)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def create(self, name: str, partition_count: int) -> MemoryTopic:
        """Creates a topic.

        Raises:
            KafkaError: the error of the disk.
        """
        if self.error is not None:
            raise KafkaError(self.error)
        topic = self.topics[name] = MemoryTopic(self.disk, name, partition_count, is_replicated=self.is_replicated)
        for callback in self.on_change:
            callback(topic)
        return topic

    def create_internal(self, name: str) -> MemoryTopic:
        """Creates a topic in which coordinators keep their state.

        Raises:
            KafkaError: the error of the disk.
        """
        return self.create(name, self.partition_count)

    def delete(self, topic: MemoryTopic) -> None:
        """Deletes a topic and closes its partitions."""
        del self.topics[topic.name]
        for partition in topic.partitions:
            partition.close()
        for callback in self.on_delete:
            callback(topic)

    @property
    def partitions_in_use(self) -> list[int]:
        """The partitions of the topic of groups that have records."""
        return [partition.index for partition in self.topic.partitions if partition.log.records] if self.topic else []
