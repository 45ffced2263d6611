"""The topic of groups in memory, for tests of the runtime: it keeps batches, fails when told so, and can be gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import GROUP_METADATA_TOPIC, TopicPartition
from wirekafka.wire.batch import Record, iterate_records


class MemoryLog:
    def __init__(self, index: int) -> None:
        self.topic_partition = TopicPartition(GROUP_METADATA_TOPIC, index)
        self.log_start_offset = 0
        self.appended: list[bytes] = []

    def batches(self, from_offset: int | None = None) -> Iterator[memoryview]:
        return (memoryview(batch) for batch in self.appended)


class MemoryPartition:
    def __init__(self, topics: MemoryTopics, index: int) -> None:
        self.log = MemoryLog(index)
        self._topics = topics
        self.is_offline = False

    def check_online(self) -> None:
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    def append(self, records: memoryview, *, now_ms: int, origin: Any) -> None:
        if self._topics.error is not None:
            raise KafkaError(self._topics.error)
        self.log.appended.append(bytes(records))

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
