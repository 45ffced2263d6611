"""Partitions whose logs are in memory."""

from __future__ import annotations

from typing import Any, cast

from wirekafka.replication.partition import Partition
from wirekafka.testing.memory_log import MemoryLog


def make_partition(topic: str = "flights", index: int = 0, **settings: Any) -> Partition:
    return Partition(topic, topic.encode().ljust(16), index, cast(Any, MemoryLog(**settings)), leader=1)


def append(partition: Partition, size_bytes: int) -> None:
    partition.append(memoryview(bytearray(size_bytes)), now_ms=0)
