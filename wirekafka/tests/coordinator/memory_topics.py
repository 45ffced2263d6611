"""The topic of groups in memory, for tests of the runtime: it keeps batches, fails when told so, and can be gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.context import AppendInfo
from wirekafka.names import GROUP_METADATA_TOPIC, TopicPartition
from wirekafka.wire.batch import BatchHeader, Record, build_batch, iterate_records, write_offsets


class MemoryLog:
    def __init__(self, index: int = 0) -> None:
        self.topic_partition = TopicPartition(GROUP_METADATA_TOPIC, index)
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.appended: list[bytes] = []

    def append(self, records: memoryview | bytearray) -> AppendInfo:
        header = BatchHeader(records)
        write_offsets(records, 0, header, self.log_end_offset, 0)
        self.log_end_offset = header.next_offset
        self.appended.append(bytes(records))
        return AppendInfo(header.base_offset, header.last_offset, None, 0)

    def append_marker(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> AppendInfo:
        record = Record(b"\0\0\0\1" if is_commit else b"\0\0\0\0", b"\0\0\0\0\0\0", (), 0)
        return self.append(
            build_batch([record], producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True)
        )

    def batches(self, from_offset: int | None = None) -> Iterator[memoryview]:
        return (memoryview(batch) for batch in self.appended)


class MemoryPartition:
    def __init__(self, topics: MemoryTopics, index: int) -> None:
        self.log = MemoryLog(index)
        self.topic_partition = self.log.topic_partition
        self._topics = topics
        self.is_offline = False

    def check_online(self) -> None:
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    def append(self, records: memoryview, *, now_ms: int, origin: Any) -> AppendInfo:
        if self._topics.error is not None:
            raise KafkaError(self._topics.error)
        return self.log.append(records)

    def write_marker(self, producer_id: int, producer_epoch: int, *, is_commit: bool, **_: Any) -> AppendInfo:
        if self._topics.error is not None:
            raise KafkaError(self._topics.error)
        return self.log.append_marker(producer_id, producer_epoch, is_commit=is_commit)

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.log.appended for record in iterate_records(batch)]


class MemoryTopic:
    def __init__(self, topics: MemoryTopics, name: str, partition_count: int) -> None:
        self.name = name
        self.partitions = [MemoryPartition(topics, index) for index in range(partition_count)]


class MemoryTopics:
    """Attributes: error: what appends and the creation of the topic end with, None for success."""

    def __init__(self, partition_count: int = 50) -> None:
        self.on_delete: list[Any] = []
        self.error: ErrorCode | None = None
        self.topic: MemoryTopic | None = None
        self.partition_count = partition_count

    def find(self, name: str) -> MemoryTopic | None:
        return self.topic if name == GROUP_METADATA_TOPIC else None

    def create_internal(self, name: str) -> MemoryTopic:
        if self.error is not None:
            raise KafkaError(self.error)
        self.topic = MemoryTopic(self, name, self.partition_count)
        return self.topic

    def delete(self, name: str) -> None:
        gone = self.topic if name == GROUP_METADATA_TOPIC and self.topic else MemoryTopic(self, name, 1)
        if gone is self.topic:
            self.topic = None
        for callback in self.on_delete:
            callback(gone)

    @property
    def partitions_in_use(self) -> list[int]:
        return [index for index, partition in enumerate(self.topic.partitions) if partition.records] if self.topic else []
