"""The request of a share fetch for the records of one partition, and the limits on the records that it acquires.

Rules of this file: pure functions and immutable data only.

Source: kafka.server.share.SharePartition (acquireSubsetBatchRecords, createBatches, filterRecordBatchesFromAcquiredRecords);
KIP-932, KIP-1206 (record limit).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from wirekafka.coordinator.share_delivery.in_flight import InFlightBatch, Range, overlapping
from wirekafka.coordinator.share_state.batches import RecordState

LEAST_COUNT_TO_THROTTLE = 2
"""The lowest delivery count at which records may be throttled."""


class AcquireMode(IntEnum):
    """Whether a fetch may get more records than it asked for, so that batches stay whole (KIP-1206)."""

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class Limits(NamedTuple):
    """The limits that the settings of the group and the broker give.

    Attributes:
        max_delivery_count: How often a record may be delivered.
        lock_duration_ms: How long an acquisition lock lasts.
        max_in_flight: How many records of a share partition may be in flight.
        can_renew: Whether consumers may renew their locks.
    """

    max_delivery_count: int = 5
    lock_duration_ms: int = 30_000
    max_in_flight: int = 2000
    can_renew: bool = True

    @property
    def count_to_throttle(self) -> int:
        """The delivery count from which records are delivered in smaller lots, to isolate a record that crashes consumers."""
        return max(LEAST_COUNT_TO_THROTTLE, -(-self.max_delivery_count // 2))


class LogBatch(NamedTuple):
    """The offsets of one batch of the log."""

    base_offset: int
    last_offset: int


class Acquired(NamedTuple):
    """Records that a consumer has acquired, with their delivery count."""

    first_offset: int
    last_offset: int
    delivery_count: int

    @property
    def record_count(self) -> int:
        """The number of offsets."""
        return self.last_offset - self.first_offset + 1


class AcquireRequest(NamedTuple):
    """The request of a fetch for records of one partition.

    Attributes:
        max_records: The largest number of records. In BATCH_OPTIMIZED mode the fetch may get more, to keep batches whole.
        batch_size: The approximate number of records in each batch of newly acquired records.
    """

    member_id: str
    max_records: int
    batch_size: int
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class ThrottledBatch:
    """The available records of one batch, and the limit on how many of them one fetch may acquire.

    A record with many deliveries may be one that crashes its consumers. Such records are delivered in lots of half the batch,
    then of a quarter, and so on; at the last delivery each record is delivered alone.
    """

    __slots__ = ("_batch", "_limits", "_runs", "is_throttled")

    def __init__(self, batch: InFlightBatch, first_offset: int, last_offset: int, limits: Limits) -> None:
        self._batch = batch
        self._limits = limits
        self._runs = [
            run.part(max(run.first_offset, first_offset), min(run.last_offset, last_offset))
            for run in batch.runs
            if run.state is RecordState.AVAILABLE and run.last_offset >= first_offset and run.first_offset <= last_offset
        ]
        highest = max((run.delivery_count for run in self._runs), default=0)
        self.is_throttled = highest >= limits.count_to_throttle

    def take(self, max_records: int | None) -> list[Range]:
        """Returns the ranges to acquire, of at most `max_records` records; None means no such limit."""
        limits = self._limits
        most = max_records
        taken: list[Range] = []
        count = 0
        for run in self._runs:
            is_last_try = run.delivery_count == limits.max_delivery_count - 1 and limits.max_delivery_count > 2
            if is_last_try:
                if count == 0:
                    taken.append(Range(run.first_offset, run.first_offset))
                break
            if run.delivery_count >= limits.count_to_throttle:
                halvings = run.delivery_count - limits.count_to_throttle + 1
                lot_size = max(1, self._batch.record_count >> halvings)
                most = lot_size if most is None else min(most, lot_size)
            available_count = run.record_count if most is None else min(run.record_count, most - count)
            if available_count <= 0:
                break
            taken.append(Range(run.first_offset, run.first_offset + available_count - 1))
            count += available_count
        return taken


def in_lots(batches: list[InFlightBatch], taken: list[Range]) -> list[Acquired]:
    """Returns the acquired ranges, each with its delivery count."""
    lots: list[Acquired] = []
    for first_offset, last_offset, _ in taken:
        for batch in overlapping(batches, first_offset, last_offset):
            for run in batch.runs:
                first, last = max(run.first_offset, first_offset), min(run.last_offset, last_offset)
                if first > last:
                    continue
                if lots and lots[-1].last_offset + 1 == first and lots[-1].delivery_count == run.delivery_count:
                    lots[-1] = lots[-1]._replace(last_offset=last)
                else:
                    lots.append(Acquired(first, last, run.delivery_count))
    return lots


def end_of_batch(log_batches: Sequence[LogBatch], offset: int) -> int:
    """Returns the last offset of the log batch that holds the offset; the offset itself if no batch holds it."""
    for base_offset, last_offset in log_batches:
        if base_offset <= offset <= last_offset:
            return last_offset
    return offset


def bounds_of(first_offset: int, last_offset: int, log_batches: Sequence[LogBatch], batch_size: int) -> Iterator[tuple[int, int]]:
    """Cuts a range at the starts of log batches. Each piece but the last has at least `batch_size` records."""
    if last_offset - first_offset + 1 > batch_size:
        for base_offset, _ in log_batches:
            if base_offset > last_offset:
                break
            if base_offset - first_offset >= batch_size and base_offset > first_offset:
                yield first_offset, base_offset - 1
                first_offset = base_offset
    yield first_offset, last_offset


def without(acquired: Iterable[Acquired], gone: list[Range]) -> Iterator[Acquired]:
    """Yields the acquired records without the records in the ranges `gone`, which are in order."""
    for first_offset, last_offset, delivery_count in acquired:
        for hole in overlapping(gone, first_offset, last_offset):
            if hole.first_offset > first_offset:
                yield Acquired(first_offset, hole.first_offset - 1, delivery_count)
            first_offset = hole.last_offset + 1
        if first_offset <= last_offset:
            yield Acquired(first_offset, last_offset, delivery_count)
