"""A log in memory, for tests of what stands above it: each append is one record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.producer_state import Producers
from wirekafka.replication.partition import Partition


class MemoryLog:
    def __init__(self, cleanup_policy: str = "delete") -> None:
        self.records: list[bytes] = []
        self.log_start_offset = 0
        self.high_watermark = 0
        self.epochs = LeaderEpochs()
        self.config = SimpleNamespace(cleanup_policy=frozenset({cleanup_policy}), min_insync_replicas=1)
        self.appends_again = False
        self.offline_reason: str | None = None
        self.producers = Producers(0)

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark

    def advance_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset

    def size_between(self, offset: int, end_offset: int) -> int:
        return sum(map(len, self.records[offset:end_offset]))

    def append(self, records: memoryview, *, leader_epoch: int, now_ms: int, origin: Any) -> Any:
        if self.appends_again:
            return SimpleNamespace(base_offset=0, last_offset=0, is_duplicate=True)
        self.epochs.assign(leader_epoch, len(self.records))
        self.records.append(bytes(records))
        offset = len(self.records) - 1
        return SimpleNamespace(base_offset=offset, last_offset=offset, is_duplicate=False)

    def read(self, offset: int, *, max_bytes: int, end_offset: int, min_one_batch: bool) -> bytes:
        if not self.log_start_offset <= offset <= end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        found = b""
        for record in self.records[offset:end_offset]:
            if len(found) + len(record) > max_bytes and not (min_one_batch and not found):
                break
            found += record
        return found

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        return self.epochs.end_offset_of(epoch, self.log_end_offset)

    def delete_records(self, before_offset: int) -> None:
        self.log_start_offset = before_offset


def make_partition(topic: str = "flights", index: int = 0, **settings: Any) -> Partition:
    return Partition(topic, topic.encode().ljust(16), index, cast(Any, MemoryLog(**settings)), leader=1)


def append(partition: Partition, size_bytes: int) -> None:
    partition.append(memoryview(bytearray(size_bytes)), now_ms=0)
