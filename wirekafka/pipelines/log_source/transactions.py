"""The aborted transactions and the last stable offset of a partition, from its files.

How it works: the `.txnindex` files name each aborted transaction. The last snapshot of the producers names the transactions that
were open at its offset, and the batch headers after it tell which have ended since. A folder without a valid snapshot is replayed
from its first batch. Transactions of one producer do not overlap, so a transactional batch is aborted if one entry of its
producer holds its offset.

Rules of this file: no lock is taken, and no file is written.

Source: KIP-98; org.apache.kafka.storage.internals.log.{ProducerStateManager, TransactionIndex}, UnifiedLog.lastStableOffset;
org.apache.kafka.clients.consumer.internals.CompletedFetch (how a read_committed consumer skips records).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from wirekafka.inspection.files import DamageError, DataFile, Kind, base_offset_of, files_in, kind_of, read_beginning
from wirekafka.log.positions import BatchPosition
from wirekafka.log.producer_snapshot import CorruptSnapshotError
from wirekafka.log.producer_state import Producers
from wirekafka.log.transaction_index import ENTRY, AbortedTransaction
from wirekafka.pipelines.log_source.segments import (
    MOST_LISTINGS,
    batch_at,
    list_segments,
    list_transaction_indexes,
    open_segment,
    position_before,
    read_offset_index,
    unsettled,
)
from wirekafka.wire.batch import HEADER_SIZE, MAGIC, MAGIC_OFFSET, BatchHeader
from wirekafka.wire.control import read_end_marker

MOST_STATE_BYTES = 256 << 20
"""A snapshot has some 46 bytes for each producer, and an index 34 for each aborted transaction. Kafka has no limit."""

_MOST_MARKER_BYTES = 1 << 16
"""An end marker has some 80 bytes. Other control batches may have more."""


class AbortedRange(NamedTuple):
    """An aborted transaction of a partition: its producer, the offset of its first record and that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class Transactions:
    """The outcome of the transactions of a partition, at one offset.

    Attributes:
        last_stable_offset: all transactional records before this offset are decided.
        aborted: in the order of their markers.
    """

    last_stable_offset: int
    aborted: tuple[AbortedRange, ...] = ()

    def overlapping(self, first_offset: int, end_offset: int) -> tuple[AbortedRange, ...]:
        """Returns the aborted transactions with records from the first offset up to the second, excluded."""
        return tuple(each for each in self.aborted if each.last_offset >= first_offset and each.first_offset < end_offset)


class AbortedBatches:
    """Tells which batches belong to aborted transactions."""

    def __init__(self, ranges: Iterable[AbortedRange]) -> None:
        self._by_producer: dict[int, list[AbortedRange]] = {}
        for each in sorted(ranges, key=lambda each: each.first_offset):
            self._by_producer.setdefault(each.producer_id, []).append(each)

    def has(self, batch: BatchHeader) -> bool:
        """Whether the batch is of an aborted transaction."""
        return batch.is_transactional and self.has_record(batch.producer_id, batch.base_offset)

    def has_record(self, producer_id: int, offset: int) -> bool:
        """Whether a transactional record is of an aborted transaction."""
        ranges = self._by_producer.get(producer_id)
        if ranges is None:
            return False
        slot = bisect_right(ranges, offset, key=lambda each: each.first_offset) - 1
        return slot >= 0 and offset <= ranges[slot].last_offset


def read_transactions(folder: str, log_start_offset: int, end_offset: int) -> Transactions:
    """Returns the transactions of a partition as of `end_offset`.

    Raises:
        OSError: a file cannot be read.
        DamageError: an index or a snapshot is too large.
    """
    aborted = _indexed(folder, end_offset)
    producers = _last_snapshot(folder, log_start_offset, end_offset)
    aborted.update(_replay(folder, producers, end_offset))
    unstable = producers.first_unstable_offset
    last_stable_offset = end_offset if unstable is None else unstable
    return Transactions(last_stable_offset, tuple(sorted(aborted, key=lambda each: each.last_offset)))


def _indexed(folder: str, end_offset: int) -> set[AbortedRange]:
    """Returns the aborted transactions in the indexes.

    Raises:
        UnsettledFolderError: the indexes were replaced during each attempt to read them.
    """
    before = list_transaction_indexes(folder)
    for _ in range(MOST_LISTINGS):
        found = {entry for name in before for entry in _read_index(os.path.join(folder, name))}
        after = list_transaction_indexes(folder)
        if after == before:
            return {_range_of(entry) for entry in found if entry.last_offset < end_offset}
        before = after
    raise unsettled(folder)


def _read_index(path: str) -> list[AbortedTransaction]:
    try:
        data = _read_small(path)
    except FileNotFoundError:
        return []
    return [AbortedTransaction(*fields) for fields in ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY.size])]


def _read_small(path: str) -> bytes:
    """Returns the content of a file that has a few bytes for each transaction or producer.

    Raises:
        DamageError: it has more than `MOST_STATE_BYTES`.
    """
    data = read_beginning(path, MOST_STATE_BYTES + 1)
    if len(data) > MOST_STATE_BYTES:
        raise DamageError(path, f"it has more than {MOST_STATE_BYTES} bytes")
    return data


def _range_of(entry: AbortedTransaction) -> AbortedRange:
    return AbortedRange(entry.producer_id, entry.first_offset, entry.last_offset)


def _last_snapshot(folder: str, log_start_offset: int, end_offset: int) -> Producers:
    """Returns the producers of the last valid snapshot at or before `end_offset`; none, at the log start offset, without one."""
    names = [name for name in files_in(folder) if kind_of(name) is Kind.PRODUCERS and base_offset_of(name) <= end_offset]
    for name in reversed(names):
        offset = base_offset_of(name)
        producers = Producers(offset)
        with suppress(FileNotFoundError, CorruptSnapshotError):
            producers.read_snapshot(_read_small(os.path.join(folder, name)), offset)
            producers.forget_transactions(log_start_offset)
            return producers
    segments = list_segments(folder)
    return Producers(segments[0].base_offset if segments else log_start_offset)


def _replay(folder: str, producers: Producers, end_offset: int) -> Iterable[AbortedRange]:
    """Applies the batches from the producers' end offset up to `end_offset`; yields the transactions that they abort."""
    next_offset = producers.end_offset
    while next_offset < end_offset:
        opened = open_segment(folder, next_offset)
        if opened is None:
            return
        segment, file, next_base_offset = opened
        position = position_before(file, segment.base_offset, read_offset_index(folder, segment.base_offset), next_offset)
        while (place := batch_at(file, position)) is not None and place.base_offset < end_offset:
            if place.last_offset >= next_offset:
                aborted = _apply(file, producers, place)
                if aborted is not None:
                    yield _range_of(aborted)
                next_offset = place.last_offset + 1
            position += place.size_bytes
        if next_base_offset is None:
            return
        next_offset = max(next_offset, next_base_offset)


def _apply(file: DataFile, producers: Producers, place: BatchPosition) -> AbortedTransaction | None:
    head = file.read(HEADER_SIZE, place.position)
    if len(head) < HEADER_SIZE or head[MAGIC_OFFSET] != MAGIC:
        return None
    header = BatchHeader(head)
    is_marker = header.is_control and place.size_bytes <= _MOST_MARKER_BYTES
    marker = read_end_marker(file.read(place.size_bytes, place.position)) if is_marker else None
    return producers.replay(header, marker)
