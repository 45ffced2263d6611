"""An internal topic in memory, for tests of the coordinators: real partitions, whose logs are lists of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.context import AppendInfo
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.producer_state import Ending, Producers
from wirekafka.names import GROUP_METADATA_TOPIC, TopicPartition
from wirekafka.replication.partition import Partition
from wirekafka.wire.batch import BatchHeader, Record, build_batch, iterate_records, write_offsets

FOLLOWER = 99


class Disk:
    """Attributes:
    error: what appends to all partitions end with, None for success.
    max_message_bytes, segment_bytes: the settings of all topics.
    """

    def __init__(self) -> None:
        self.error: ErrorCode | None = None
        self.max_message_bytes = 1 << 20
        self.segment_bytes = 1 << 30


class MemoryLog:
    """A log that checks nothing but the size of a batch. It is its own `reader` and `retention`."""

    def __init__(self, index: int = 0, disk: Disk | None = None, topic: str = GROUP_METADATA_TOPIC) -> None:
        self.topic_partition = TopicPartition(topic, index)
        self.disk = disk or Disk()
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
        return SimpleNamespace(
            max_message_bytes=self.disk.max_message_bytes,
            segment_bytes=self.disk.segment_bytes,
            min_insync_replicas=1,
            cleanup_policy=frozenset({"delete"}),
        )

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    def advance_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset

    def size_between(self, offset: int, end_offset: int) -> int:
        return end_offset - offset

    def append(self, records: Any, *, leader_epoch: int = 0, now_ms: int = 0, origin: Any = None) -> AppendInfo:
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
        return self.end_transaction(producer_id, producer_epoch, is_commit=ending.marker.is_commit)

    def end_transaction(self, producer_id: int, producer_epoch: int = 0, *, is_commit: bool) -> AppendInfo:
        record = Record(b"\0\0\0\1" if is_commit else b"\0\0\0\0", b"\0\0\0\0\0\0", (), 0)
        batch = build_batch(
            [record], producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True
        )
        return self.append(batch)

    def batches(self, from_offset: int | None = None) -> Iterator[memoryview]:
        return (memoryview(batch) for batch in self.appended)

    def delete_records(self, before_offset: int) -> None:
        self.log_start_offset = before_offset

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.appended for record in iterate_records(batch)]


class MemoryTopic:
    def __init__(self, disk: Disk, name: str, partition_count: int, *, is_replicated: bool = False) -> None:
        self.name = name
        self.topic_id = name.encode().ljust(16)[:16]
        self.partitions: list[Any] = []
        for index in range(partition_count):
            log = MemoryLog(index, disk, name)
            partition = Partition(name, self.topic_id, index, cast(Any, log), leader=1)
            if is_replicated:
                partition.set_replicas((1, FOLLOWER), (1, FOLLOWER))
            self.partitions.append(partition)


class MemoryTopics:
    """Topics that are made when they are first needed.

    Attributes:
        disk: of all of them.
        is_replicated: partitions that are made from now on have a follower in sync, so that an append is no commit.
    """

    def __init__(self, partition_count: int = 50) -> None:
        self.on_delete: list[Any] = []
        self.disk = Disk()
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
        return self.topics.get(name)

    def find_by_id(self, topic_id: bytes) -> MemoryTopic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def create_internal(self, name: str) -> MemoryTopic:
        if self.error is not None:
            raise KafkaError(self.error)
        topic = self.topics[name] = MemoryTopic(self.disk, name, self.partition_count, is_replicated=self.is_replicated)
        return topic

    def delete(self, name: str) -> None:
        gone = self.topics.pop(name, None) or MemoryTopic(self.disk, name, 1)
        for callback in self.on_delete:
            callback(gone)

    @property
    def partitions_in_use(self) -> list[int]:
        return [partition.index for partition in self.topic.partitions if partition.log.records] if self.topic else []
