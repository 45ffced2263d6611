"""The segments of a partition's folder: the files that hold them now, their sparse indexes, and the end of the last one.

Rules of this file: no lock is taken, and no file is written. A broker may append to, replace and delete the files meanwhile. So a
list of segments is a view of one moment, and a file that was opened stays readable whatever happens to its name.

Source: org.apache.kafka.storage.internals.log.{LogSegment, LocalLog, AbstractIndex}.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wirekafka.inspection.batches import BatchScanner, BatchTooLargeError, is_sound
from wirekafka.inspection.files import DamageError, DataFile, read_beginning
from wirekafka.log.index import OffsetIndex, TimeIndex
from wirekafka.log.positions import BatchPosition, read_place
from wirekafka.log.segment_files import INDEX_SUFFIX, TIME_INDEX_SUFFIX, file_name
from wirekafka.wire.batch import HEADER_SIZE

_SEGMENT = re.compile(r"(\d{20})\.log(\.swap)?")
_TRANSACTION_INDEX = re.compile(r"\d{20}\.txnindex(\.swap)?")
MOST_BATCH_BYTES = 128 << 20
"""By default, the most bytes of a batch, stored or uncompressed. A broker takes as much from a client only if it is told to."""
MOST_INDEX_BYTES = 16 << 20
"""So much of an index is read; `segment.index.bytes` is 10 MiB by default."""
PLACE_INTERVAL_BYTES = 4096
"""The distance of the batches whose places are kept; that of the entries of an index, by default."""
_HEADS_BYTES = 8192
"""The bytes of one read in search of headers: small batches share a read, and large ones are not read."""
MOST_LISTINGS = 20
"""The attempts to read files of a folder that are replaced meanwhile."""


class UnsettledFolderError(OSError):
    """The files of a folder changed during each of many attempts to list them."""


@dataclass(slots=True, frozen=True)
class SegmentFile:
    """The file that holds a segment at one moment.

    Attributes:
        name: the name of the file in its folder; it ends in `.swap` between the two renames of a compaction.
        inode: tells a compacted file from the file that it replaced.
    """

    base_offset: int
    name: str
    inode: int


def list_segments(folder: str) -> list[SegmentFile]:
    """Returns the segments of a folder, in the order of their base offsets.

    A compacted file, which ends in `.swap` until its predecessors are renamed, is preferred to the file that it replaces: it also
    holds the records of the segments that are being deleted.

    Raises:
        FileNotFoundError: the partition was deleted or moved.
    """
    found: dict[int, SegmentFile] = {}
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            match = _SEGMENT.fullmatch(entry.name)
            if match is not None:
                found[int(match[1])] = SegmentFile(int(match[1]), entry.name, entry.inode())
    return [found[base_offset] for base_offset in sorted(found)]


def open_segment(folder: str, offset: int) -> tuple[SegmentFile, DataFile, int | None] | None:
    """Opens the segment that holds the first record at `offset` or later.

    Returns:
        The segment, its open file, and the base offset of the next segment or None; None if all segments end before the offset.

    Raises:
        FileNotFoundError: the partition was deleted or moved.
        UnsettledFolderError: the segments changed during each attempt.
    """
    before = list_segments(folder)
    for _ in range(MOST_LISTINGS):
        if not before:
            return None
        number = max((number for number, each in enumerate(before) if each.base_offset <= offset), default=0)
        file = None
        try:
            file = DataFile(os.path.join(folder, before[number].name))
        except FileNotFoundError:
            if not os.path.isdir(folder):
                raise
        after = list_segments(folder)
        if file is not None and after == before:
            return before[number], file, before[number + 1].base_offset if number + 1 < len(before) else None
        before = after
    raise unsettled(folder)


def unsettled(folder: str) -> UnsettledFolderError:
    """Returns the error of a folder whose files were replaced during each attempt to read them."""
    return UnsettledFolderError(f"the segments in {folder} changed during each of {MOST_LISTINGS} attempts; try again")


def list_transaction_indexes(folder: str) -> dict[str, int]:
    """Returns the inodes of the transaction indexes of a folder by their names.

    Between the renames of a compaction, the entries of a segment may be in a file that ends in `.swap` only.
    """
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries if _TRANSACTION_INDEX.fullmatch(entry.name)}


@dataclass(slots=True)
class SparseIndex:
    """The entries of an offset index that can be used.

    Attributes:
        last_offsets: of the batches, relative to the segment's base, ascending.
        positions: of these batches in the log, ascending.
    """

    last_offsets: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]

    def floor(self, relative_offset: int) -> tuple[int, int] | None:
        """Returns the last entry whose batch ends at or before the offset; None if there is none."""
        slot = int(np.searchsorted(self.last_offsets, relative_offset, side="right")) - 1
        return (int(self.last_offsets[slot]), int(self.positions[slot])) if slot >= 0 else None

    def with_places(self, base_offset: int, places: list[BatchPosition]) -> SparseIndex:
        """Returns the index with more batches of a segment at its end."""
        offsets = np.array([place.last_offset - base_offset for place in places], dtype=np.int64)
        positions = np.array([place.position for place in places], dtype=np.int64)
        return SparseIndex(np.concatenate([self.last_offsets, offsets]), np.concatenate([self.positions, positions]))


def read_offset_index(folder: str, base_offset: int) -> SparseIndex:
    """Returns the offset index of a segment; empty if it has no file.

    Apache Kafka preallocates the index of the active segment, so the zeros after its last entry are left out.
    """
    keys, values = _read_index(
        folder, base_offset, INDEX_SUFFIX, np.dtype([("key", ">i4"), ("value", ">i4")]), OffsetIndex.entry.size
    )
    return SparseIndex(keys, values)


def first_offset_at(folder: str, base_offset: int, timestamp: int) -> int:
    """Returns an offset of a segment before which no record has this timestamp, in ms, or a later one.

    Source: TimeIndex: the records after the offset of an entry, and only these, may have greater timestamps than the entry.
    """
    timestamps, offsets = _read_index(
        folder, base_offset, TIME_INDEX_SUFFIX, np.dtype([("key", ">i8"), ("value", ">i4")]), TimeIndex.entry.size
    )
    slot = int(np.searchsorted(timestamps, timestamp, side="left")) - 1
    return base_offset + int(offsets[slot]) + 1 if slot >= 0 else base_offset


def _read_index(
    folder: str, base_offset: int, suffix: str, entry: np.dtype[np.void], size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the keys and values of the entries up to the first that does not ascend; none if the first is negative."""
    try:
        data = read_beginning(os.path.join(folder, file_name(base_offset, suffix)), MOST_INDEX_BYTES)
    except FileNotFoundError:
        data = b""
    entries = np.frombuffer(data[: len(data) - len(data) % size], dtype=entry)
    keys, values = entries["key"].astype(np.int64), entries["value"].astype(np.int64)
    falls = np.flatnonzero((np.diff(keys) <= 0) | (np.diff(values) < 0))
    count = int(falls[0]) + 1 if len(falls) else len(keys)
    if count and (keys[0] < 0 or values[0] < 0):
        count = 0
    if count == 1 and not keys[0]:
        # One entry of zeros is preallocated space, or an entry that leads where a read without an index begins.
        count = 0
    return keys[:count], values[:count]


def batch_at(file: DataFile, position: int) -> BatchPosition | None:
    """Returns the place of the whole batch at a position; None if no batch begins there, or the file ends before it."""
    head = file.read(HEADER_SIZE, position).ljust(HEADER_SIZE, b"\0")
    place = read_place(head, 0, position)
    return place if place is not None and position + place.size_bytes <= file.size else None


def position_before(file: DataFile, base_offset: int, index: SparseIndex, offset: int) -> int:
    """Returns the position of a batch from which the record at `offset` is found; 0 if the index does not match the file."""
    entry = index.floor(offset - base_offset)
    if entry is None:
        return 0
    place = batch_at(file, entry[1])
    return entry[1] if place is not None and place.last_offset == base_offset + entry[0] else 0


def places_from(file: DataFile, position: int, next_offset: int, most_batch_bytes: int = MOST_BATCH_BYTES) -> list[BatchPosition]:
    """Returns the places of batches from `position` to the end of the log in the file, from their headers.

    The first batch and the last one are among them, and about one for every `PLACE_INTERVAL_BYTES` between, as in an index.

    A torn batch and zeros end the log. So do last batches with a wrong checksum, because a broker or a machine that stopped may
    have written only their headers.

    Args:
        next_offset: the least offset that the first batch may end at.
        most_batch_bytes: a batch whose header claims more is refused, also at the end of the file.

    Raises:
        DamageError: something else follows the last batch.
        BatchTooLargeError: a batch has more than `most_batch_bytes`.
    """
    places: list[BatchPosition] = []
    for place in _walk(file, position, next_offset, file.size, most_batch_bytes):
        if len(places) > 1 and place.position - places[-2].position < PLACE_INTERVAL_BYTES:
            places.pop()
        places.append(place)
    end, end_offset = (_end_of(places[-1]), places[-1].last_offset + 1) if places else (position, next_offset)
    _check_tail(file, end, end_offset)
    while places and not is_sound(file, places[-1]):
        end = places.pop().position
        before = _end_of(places[-1]) if places else position
        places += _walk(file, before, next_offset, end, most_batch_bytes)
    return places


def _end_of(place: BatchPosition) -> int:
    return place.position + place.size_bytes


def _walk(file: DataFile, position: int, next_offset: int, end: int, most_batch_bytes: int) -> Iterator[BatchPosition]:
    """Yields the places of the whole batches between two positions; ends where no batch begins.

    Raises:
        DamageError: the offsets of the batches do not ascend.
    """
    chunk, chunk_position = b"", position
    while position < end:
        at = position - chunk_position
        if len(chunk) - at < HEADER_SIZE:
            chunk, chunk_position, at = file.read(_HEADS_BYTES, position).ljust(HEADER_SIZE, b"\0"), position, 0
        place = read_place(chunk, at, position)
        if place is not None and place.size_bytes > most_batch_bytes:
            raise BatchTooLargeError(file.path, place, most_batch_bytes)
        if place is None or _end_of(place) > end:
            return
        if place.last_offset < next_offset:
            reason = f"a batch ends at offset {place.last_offset}, but the next offset is {next_offset}"
            raise DamageError(file.path, reason, position=position, offset=next_offset)
        yield place
        position, next_offset = _end_of(place), place.last_offset + 1


def _check_tail(file: DataFile, position: int, next_offset: int) -> None:
    """Raises if the bytes from `position` on are neither zeros nor the beginning of a batch."""
    scanner = BatchScanner(file, next_offset, position=position)
    try:
        if position < file.size:
            scanner.read()
    except DamageError as damage:
        if not damage.is_torn:
            raise
