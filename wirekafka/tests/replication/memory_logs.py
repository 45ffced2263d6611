"""A log manager in memory, for tests of the table of topics: it has directories, and can forget them at a crash."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import Storage
from wirekafka.names import TopicPartition
from wirekafka.replication.replica_manager import HostedTopics, open_hosted_topics
from wirekafka.tests.replication.memory_log import MemoryLog


class FakeLog(MemoryLog):
    def __init__(self, topic_id: bytes | None) -> None:
        super().__init__()
        self.topic_id = topic_id

    def update_config(self, config: Any) -> None:
        self.config = config


class MemoryLogs:
    """Attributes: storage: of the journal; left: how many more logs can be created, None for any number."""

    def __init__(self) -> None:
        self.storage = FullDisk()
        self.logs: dict[TopicPartition, FakeLog] = {}
        self.left: int | None = None
        self.is_complete = True
        self.can_sync = True
        self.on_offline: list[Any] = []

    def discover(self) -> list[tuple[TopicPartition, bytes | None]]:
        return [(name, log.topic_id) for name, log in self.logs.items()]

    def get(self, name: TopicPartition) -> Any:
        return self.logs.get(name)

    def create(self, name: TopicPartition, topic_id: bytes, config: LogConfig, *, is_new: bool = True) -> Any:
        if self.left == 0:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.left is not None:
            self.left -= 1
        assert name not in self.logs
        log = self.logs[name] = FakeLog(topic_id)
        return log

    def delete(self, name: TopicPartition) -> None:
        del self.logs[name]

    def sync_directories(self) -> bool:
        return self.can_sync


class FullDisk(Storage):
    """A disk that is full after `room_bytes` bytes, once a test sets this limit."""

    __slots__ = ("room_bytes",)

    def __init__(self) -> None:
        self.room_bytes: int | None = None

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.room_bytes is not None and len(data) > self.room_bytes:
            super().write(fd, bytes(data)[: self.room_bytes], position)
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data, position)


def open_topics(path: Path, logs: MemoryLogs | None = None, **settings: str) -> HostedTopics:
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    config = BrokerConfig({"log.dirs": str(path), **overrides})
    return open_hosted_topics(config, logs or MemoryLogs())  # type: ignore[arg-type]
