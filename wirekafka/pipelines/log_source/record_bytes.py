"""Finds the records of batches, and the fields of records, in the uncompressed bytes, for all records at once.

How it works: only the lengths of the records are read one by one, because each record begins where the one before it ends. A run
of records of one length is found by a comparison of strided slices. Every other field is read for all records at once:
`read_varints` reads the numbers at an array of positions, and `binary_column` copies the bytes between arrays of positions.

Rules of this file: pure, and no Python object for each record but its position.

Source: org.apache.kafka.common.record.DefaultRecord, org.apache.kafka.common.utils.ByteUtils.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]

LEAST_RUN = 8
"""So many records of one size in a row are looked for as a run."""

MOST_RUN = 4096
"""A run is looked for among so many records. Without a bound, sizes that change after every few records take quadratic time."""

_SHORT = {byte: 1 + (byte >> 1) for byte in range(0, 128, 2)}
"""The size of a record, its length included, by the only byte of the length; a negative length is not in it."""
_LOW = {byte: 2 + ((byte & 0x7F) >> 1) for byte in range(128, 256, 2)}
"""The part of that size that the first of two bytes of a length gives."""


class CorruptRecordsError(Exception):
    """The records of a batch do not match its header."""


class Content(NamedTuple):
    """Uncompressed records: bytes from the first position up to the second, excluded, of `data`.

    The records of many uncompressed batches may lie in one chunk of a file, and are not copied.
    """

    data: bytes | bytearray
    start: int
    end: int


def record_pieces(content: Content, count: int, most_records: int, most_bytes: int) -> Iterator[tuple[Content, Int64s]]:
    """Yields the records of a batch in pieces: the bytes of a piece, and the position after the length of each of its records.

    Args:
        count: the number of records in the batch.
        most_records, most_bytes: a piece ends at one of these limits; one record may have more bytes.

    Raises:
        CorruptRecordsError: a length is negative or too long, or the records do not end where the content ends.
    """
    data, pos, limit = content
    while count > 0 and pos < limit:
        starts, end = _record_starts(content._replace(start=pos), min(count, most_records), most_bytes)
        if end > limit:
            raise CorruptRecordsError("a record ends after its batch")
        yield Content(data, pos, end), starts
        count -= len(starts)
        pos = end
    if count > 0:
        raise CorruptRecordsError(f"the batch ends before the last {count} of its records")
    if pos < limit:
        raise CorruptRecordsError(f"{limit - pos} bytes after the last record")


def _record_starts(content: Content, count: int, most_bytes: int) -> tuple[Int64s, int]:
    """Returns the positions after the lengths of at most so many records, and the end of the last of them."""
    body, pos, _ = content
    limit = min(content.end, pos + most_bytes)
    pieces: list[Int64s] = []
    starts: list[int] = []
    add = starts.append
    number = same = 0
    last = -1
    try:
        while number < count and pos < limit:
            byte = body[pos]
            if byte < 0x80:
                step = _SHORT[byte]
                start = pos + 1
            elif (second := body[pos + 1]) < 0x80:
                step = _LOW[byte] + (second << 6)
                start = pos + 2
            else:
                step, start = _long_length(body, pos)
            add(start)
            number += 1
            if step == last:
                same += 1
                if same == LEAST_RUN:
                    run, end = _run(body, pos, start, step, min(count - number, MOST_RUN, (limit - pos) // step - 1))
                    pieces += np.array(starts, dtype=np.int64), run
                    starts.clear()
                    number += len(run)
                    pos, same = end, 0
                    continue
            else:
                last, same = step, 0
            pos += step
    except (IndexError, KeyError):
        raise CorruptRecordsError("a record has no valid length, or ends after its batch") from None
    pieces.append(np.array(starts, dtype=np.int64))
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0], pos


def _run(body: bytes | bytearray, pos: int, start: int, step: int, most: int) -> tuple[Int64s, int]:
    """Returns the starts of the records after the one at `pos` that have the same length, and the end of the last of them."""
    length_bytes = body[pos:start]
    first = pos + step
    run = max(most, 0)
    for at, byte in enumerate(length_bytes):
        column = body[first + at : first + run * step : step]
        run = min(run, len(column) - len(column.lstrip(bytes((byte,)))))
    return np.arange(run, dtype=np.int64) * step + (first + len(length_bytes)), first + run * step


def _long_length(body: bytes | bytearray, pos: int) -> tuple[int, int]:
    raw = shift = 0
    for at in range(pos, pos + 5):
        raw |= (body[at] & 0x7F) << shift
        shift += 7
        if body[at] < 0x80:
            if raw & 1:
                break
            return (raw >> 1) + at + 1 - pos, at + 1
    raise CorruptRecordsError("a record's length is negative or too long")


def read_varints(data: npt.NDArray[np.uint8], at: Int64s) -> tuple[Int64s, Int64s]:
    """Returns the zigzag varints that start at the positions, and the positions after them.

    Raises:
        CorruptRecordsError: a varint has more than ten bytes, or ends after the data.
    """
    try:
        first = data[at]
        long = first >= 0x80
        if not long.any():
            value = first.astype(np.int64)
            return (value >> 1) ^ -(value & 1), at + 1
        raw = (first & 0x7F).astype(np.uint64)
        end = at + 1
        more = np.flatnonzero(long)
        for shift in range(7, 70, 7):
            positions = end[more]
            byte = data[positions]
            raw[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            end[more] = positions + 1
            more = more[byte >= 0x80]
            if not len(more):
                signed = (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)
                return signed, end
    except IndexError:
        raise CorruptRecordsError("a record ends after its batch") from None
    raise CorruptRecordsError("a varint of more than ten bytes")


def binary_column(buffer: pa.Buffer, starts: Int64s, sizes: Int64s) -> pa.Array:
    """Returns the bytes of these sizes at these ascending positions; a negative size is null."""
    count = len(starts)
    ends = starts + np.maximum(sizes, 0)
    bounds = np.empty(2 * count + 1, dtype=np.int32)
    bounds[0:-1:2] = starts
    bounds[1::2] = ends
    bounds[-1] = ends[-1] if count else 0
    spans = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), buffer])
    chosen = pa.array(np.arange(0, 2 * count, 2), mask=sizes < 0)
    return spans.take(chosen)
