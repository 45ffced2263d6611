"""Finds runs of small batches in a chunk of a file, and reads the headers and the records' positions of all of them at once.

A producer that sends each record by itself makes batches of one record. An object for each batch would cost more than its record.

How it works: only the lengths of the batches are followed one by one, because each batch begins where the one before it ends. The
headers are decoded as one array. The lengths of the records are read for all batches at once: of the first records, then of the
second ones, and so on. A run ends before a batch that is not plain: one that is compressed, large or damaged. The caller reads
that one by itself, with the same result or an error that names it.

Rules of this file: pure.

Source: org.apache.kafka.common.record.DefaultRecordBatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from wirekafka.pipelines.log_source.columns import BatchFields, Limits, Piece
from wirekafka.pipelines.log_source.record_bytes import Content, Int64s
from wirekafka.pipelines.log_source.transactions import AbortedBatches
from wirekafka.wire.batch import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER_SIZE,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_MASK,
)

LEAST_BATCHES = 32
"""Fewer batches take no less time at once than one by one."""
MOST_BATCH_BYTES = 8192
"""The size of a batch that is small; the lengths of its records take two bytes at most."""
MOST_RECORDS = 128
"""The records of a batch that is small."""

_PLAIN = Struct(">i4xb4xh34xi")
"""The length, magic, attributes and record count of a batch, from `LENGTH_OFFSET` on."""
_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)

_SHARED = BatchFields._fields[:9]
"""The fields that are in the header."""

Bools = npt.NDArray[np.bool_]
Heads = npt.NDArray[np.void]


@dataclass(slots=True, frozen=True)
class Wanted:
    """The batches that are wanted.

    Attributes:
        from_offset, end_offset: batches that end before the first are passed over; the run ends before one that begins at the
            second or later.
        first_timestamp: batches whose greatest timestamp is less are passed over.
        aborted: if not None, control batches and those of these transactions are passed over.
        has_crc_checks: whether the checksum of each batch is checked.
        limits: a run has no more records and bytes.
    """

    from_offset: int
    end_offset: int
    first_timestamp: int | None
    aborted: AbortedBatches | None
    has_crc_checks: bool
    limits: Limits


class Passed(NamedTuple):
    """Batches that follow each other in a chunk.

    Attributes:
        run: the wanted ones among them; None if there are none.
        end: the position after the last of them.
        next_offset: the offset after the last of them.
    """

    run: Piece | None
    end: int
    next_offset: int


def find_run(path: str, chunk: bytes, chunk_position: int, at: int, wanted: Wanted) -> Passed | None:
    """Returns the run of small batches that begins at a position of a chunk; None if there are too few for a run.

    Args:
        path: the file, for errors.
        chunk_position: the position of the chunk in the file.
    """
    positions, end = _follow(chunk, at, min(len(chunk), at + wanted.limits.most_bytes))
    if len(positions) < LEAST_BATCHES:
        return None
    octets, bounds = np.frombuffer(chunk, dtype=np.uint8), np.array([*positions, end], dtype=np.int64)
    heads = np.lib.stride_tricks.sliding_window_view(octets, HEADER_SIZE)[bounds[:-1]].view(_HEADER)[:, 0]
    count = _leading(_is_of_run(heads, wanted))
    chosen = np.flatnonzero(_is_wanted(heads[:count], wanted))
    if wanted.has_crc_checks:
        count, chosen = _cut(count, chosen, _has_right_crc(chunk, heads, bounds, chosen))
    first_bytes, record_counts = bounds[chosen] + HEADER_SIZE, heads["record_count"][chosen].astype(np.int64)
    starts, is_right = _record_starts(octets, record_counts, first_bytes, bounds[chosen + 1])
    count, chosen = _cut(count, chosen, is_right)
    if not count:
        return None
    end, last = int(bounds[count]), heads[count - 1]
    next_offset = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
    if not len(chosen):
        return Passed(None, end, next_offset)
    shared = [heads[name][chosen].astype(np.int64) for name in _SHARED]
    places = [bounds[chosen] + chunk_position, record_counts[: len(chosen)], first_bytes[: len(chosen)]]
    fields = BatchFields._make(shared + places)
    content = Content(chunk, int(fields.first_byte[0]), int(bounds[chosen[-1] + 1]))
    return Passed(Piece(path, content, starts[: int(fields.record_count.sum())], fields), end, next_offset)


def _follow(chunk: bytes, at: int, limit: int) -> tuple[list[int], int]:
    """Returns the positions of the small batches from a position on, and the end of the last one.

    They end before a batch that is not plain. Otherwise each batch that the caller reads by itself would cost a walk through the
    rest of the chunk: quadratic time for small compressed batches.
    """
    fields_at = _PLAIN.unpack_from
    positions: list[int] = []
    add = positions.append
    while at + HEADER_SIZE <= limit:
        length, magic, attributes, record_count = fields_at(chunk, at + LENGTH_OFFSET)
        size = length + LOG_OVERHEAD
        if not HEADER_SIZE <= size <= MOST_BATCH_BYTES or at + size > limit:
            break
        if magic != MAGIC or attributes & COMPRESSION_MASK or not 0 < record_count <= MOST_RECORDS:
            break
        add(at)
        at += size
    return positions, at


def _leading(is_good: Bools) -> int:
    """Returns how many values, from the first on, are true."""
    return len(is_good) if is_good.all() else int(np.argmin(is_good))


def _cut(count: int, chosen: Int64s, is_good: Bools) -> tuple[int, Int64s]:
    """Returns the number of batches before the first chosen one that is not good, and the chosen ones among them."""
    leading = _leading(is_good)
    return (count, chosen) if leading == len(chosen) else (int(chosen[leading]), chosen[:leading])


def _is_of_run(heads: Heads, wanted: Wanted) -> Bools:
    """Returns which plain batches are of a run; the records of all before them are within the limit."""
    record_counts = heads["record_count"]
    is_of_run: Bools = (
        (heads["last_offset_delta"] >= 0)
        & (np.cumsum(record_counts, dtype=np.int64) <= wanted.limits.most_records)
        & (heads["base_offset"] < wanted.end_offset)
    )
    return is_of_run


def _is_wanted(heads: Heads, wanted: Wanted) -> Bools:
    base_offsets = heads["base_offset"]
    is_wanted: Bools = base_offsets + heads["last_offset_delta"] >= wanted.from_offset
    if wanted.first_timestamp is not None:
        is_wanted &= heads["max_timestamp"] >= wanted.first_timestamp
    if wanted.aborted is not None:
        is_wanted &= heads["attributes"] & CONTROL_MASK == 0
        for number in np.flatnonzero(heads["attributes"] & TRANSACTIONAL_MASK):
            if wanted.aborted.has_record(int(heads["producer_id"][number]), int(base_offsets[number])):
                is_wanted[number] = False
    return is_wanted


def _has_right_crc(chunk: bytes, heads: Heads, bounds: Int64s, chosen: Int64s) -> Bools:
    view = memoryview(chunk)
    starts, ends = (bounds[chosen] + ATTRIBUTES_OFFSET).tolist(), bounds[chosen + 1].tolist()
    found = [crc32c(view[start:end]) for start, end in zip(starts, ends, strict=True)]
    is_right: Bools = np.array(found, dtype=np.int64) == heads["crc"][chosen]
    return is_right


def _record_starts(octets: npt.NDArray[np.uint8], counts: Int64s, at: Int64s, ends: Int64s) -> tuple[Int64s, Bools]:
    """Returns the position after the length of each record, and which batches hold their number of records.

    Args:
        counts: the number of records of each batch.
        at: the position of the first record of each batch.
        ends: the end of each batch.
    """
    starts = np.zeros(int(counts.sum()), dtype=np.int64)
    slots = np.cumsum(counts) - counts
    is_right = np.ones(len(counts), dtype=np.bool_)
    at, batches = at.copy(), np.arange(len(counts))
    turn = 0
    while len(batches):
        position = at[batches]
        first = octets.take(position, mode="clip").astype(np.int64)
        second = octets.take(position + 1, mode="clip").astype(np.int64)
        is_short = first < 0x80
        raw = np.where(is_short, first, first & 0x7F | second << 7)
        start = position + np.where(is_short, 1, 2)
        after = start + (raw >> 1)
        is_good = (raw & 1 == 0) & (is_short | (second < 0x80)) & (after <= ends[batches])
        is_right[batches] = is_good
        starts[slots[batches] + turn] = start
        at[batches] = after
        turn += 1
        batches = batches[is_good & (counts[batches] > turn)]
    return starts, is_right & (at == ends)
