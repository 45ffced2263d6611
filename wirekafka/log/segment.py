"""One segment: a file of batches, its two indexes, and that of its aborted transactions.

How it works: batches are appended at `size`, so a torn write is all data in the file after `size`. The torn data is cut
off at once, or before the next append if the truncation fails. To find a position, a lookup bisects the offset index and then
reads headers: at most `index.interval.bytes` of them, or one batch if that is larger.

Rules of this file:
    Invariant: bytes [0, size) of the file are complete batches with ascending offsets, all of them base_offset or greater.
    Invariant: the last offset of any batch, relative to base_offset, fits in 31 bits.
    Errors are `OSError`, also for a batch with wrong framing before `size`: the disk has lost data.

Source: org.apache.kafka.storage.internals.log.LogSegment, org.apache.kafka.common.record.FileRecords.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy

import structlog

from wirekafka.config import LogConfig
from wirekafka.log.index import OffsetIndex, ShortIndexError, TimeIndex
from wirekafka.log.positions import BadBatchError, BatchPosition, batches_in, places_in, read_extent
from wirekafka.log.segment_files import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, TIME_INDEX_SUFFIX, file_name
from wirekafka.log.storage import Bytes, FileCut, FileHandle, FileRegion, Folder, HandlePool
from wirekafka.log.transaction_index import TransactionIndex
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import HEADER_SIZE, BatchHeader

MOST_RELATIVE_OFFSET = 0x7FFF_FFFF
OFFSET_ENTRY_BYTES = OffsetIndex.entry.size
TIME_ENTRY_BYTES = TimeIndex.entry.size

_MENDED_INTERVAL_BYTES = 4096
"""Bytes between two entries of a rebuilt index: the default of `index.interval.bytes`."""

log = structlog.get_logger(__name__)


class Segment:
    """One segment of a log.

    Attributes:
        base_offset: the first possible offset; the index entries are relative to it, and the file names contain it.
        size: the bytes of all complete batches.
        handle: the open file; None before the first use, and after the pool or a deletion has closed it.
        offset_index, time_index: see `wirekafka.log.index`.
        transaction_index: see `wirekafka.log.transaction_index`.
        log_name: the name of the file that holds the batches.
        contents: the generations of that file.
        roll_jitter_ms: the segment is rolled this much earlier than `segment.ms`.
        created_ms: the creation time of this object, for rolling a segment whose records have no timestamps.
    """

    __slots__ = (
        "_cut",
        "_first_timestamp",
        "_has_reserved_tail",
        "_has_torn_tail",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_saved_generation",
        "base_offset",
        "bytes_since_index_entry",
        "contents",
        "created_ms",
        "folder",
        "handle",
        "log_name",
        "offset_index",
        "pool",
        "roll_jitter_ms",
        "size",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        folder: Folder,
        pool: HandlePool,
        base_offset: int,
        *,
        created_ms: int,
        roll_jitter_ms: int = 0,
        suffix: str = "",
    ) -> None:
        """Creates a segment without batches; `create` creates its file, whose name ends with `suffix`."""
        self.folder = folder
        self.log_name = file_name(base_offset, LOG_SUFFIX) + suffix
        self.contents = folder.ledger.file(self.log_name)
        self.pool = pool
        self.base_offset = base_offset
        self.size = 0
        self.handle: FileHandle | None = None
        self._cut: FileCut | None = None
        """Shared by all handles since the last truncation, because a region may hold a file that the pool has closed."""
        self.offset_index = OffsetIndex(folder, file_name(base_offset, INDEX_SUFFIX) + suffix)
        self.time_index = TimeIndex(folder, file_name(base_offset, TIME_INDEX_SUFFIX) + suffix)
        self.transaction_index = TransactionIndex(folder, base_offset)
        self.transaction_index.name += suffix
        self._saved_generation = -1
        """The written generation of `contents` that the index files describe; -1 if they describe none."""
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        self.bytes_since_index_entry = 0
        self._has_torn_tail = False
        self._has_reserved_tail = False
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = NO_TIMESTAMP
        self._offset_of_max_timestamp = base_offset

    @classmethod
    def of_files(
        cls, folder: Folder, pool: HandlePool, base_offset: int, files: dict[str, os.stat_result], *, created_ms: int
    ) -> Segment:
        """Returns the segment in a folder, with its existing indexes; reads no file."""
        segment = cls(folder, pool, base_offset, created_ms=created_ms)
        offset_name, time_name, transaction_name = segment.index_names
        sizes = {name: files[name].st_size if name in files else 0 for name in (segment.log_name, *segment.index_names)}
        segment.size = sizes[segment.log_name]
        segment.offset_index = OffsetIndex(folder, offset_name, size_bytes=sizes[offset_name])
        segment.time_index = TimeIndex(folder, time_name, size_bytes=sizes[time_name])
        segment.transaction_index = TransactionIndex(folder, base_offset, size_bytes=sizes[transaction_name])
        segment._saved_generation = segment.contents.written
        segment._max_timestamp = None
        return segment

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset} of {self.size} bytes>"

    @property
    def has_unsaved_indexes(self) -> bool:
        """Whether the indexes in memory differ from the index files."""
        return self._saved_generation != self.contents.written

    @property
    def index_names(self) -> tuple[str, str, str]:
        """The names of the index files."""
        return self.offset_index.name, self.time_index.name, self.transaction_index.name

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp of its records, `NO_TIMESTAMP` if none has one."""
        if self._max_timestamp is None:
            self._load_max_timestamp()
            assert self._max_timestamp is not None
        return self._max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the first batch with the greatest timestamp."""
        if self._max_timestamp is None:
            self._load_max_timestamp()
        return self._offset_of_max_timestamp

    def _load_max_timestamp(self) -> None:
        """Reads the greatest timestamp from the last entry of the time index, which a roll or close writes."""
        if self.time_index.keys is None and not self.has_sound_time_index():
            self.mend_indexes()
            return
        timestamp, relative_offset = self.time_index.last() or (NO_TIMESTAMP, 0)
        self._max_timestamp = timestamp
        self._offset_of_max_timestamp = self.base_offset + relative_offset

    def has_sound_time_index(self) -> bool:
        """Whether the last entry of the time index matches the log; reads no other entry of the index.

        Raises:
            BadBatchError: the log itself is damaged.

        Source: TimeIndex.sanityCheck, which compares the last entry with the first one instead.
        """
        try:
            last = self.time_index.last()
            if last is None:
                return not self.size or self.first_timestamp < 0
            return self.has_timestamp(*last)
        except (FileNotFoundError, ShortIndexError):
            return False

    def has_timestamp(self, timestamp: int, relative_offset: int) -> bool:
        """Whether the batch with this offset has this timestamp as its greatest."""
        if timestamp < 0 or relative_offset < 0:
            return False
        place = self.find(self.base_offset + relative_offset)
        return place is not None and place.max_timestamp == timestamp and place.base_offset <= self.base_offset + relative_offset

    @property
    def largest_timestamp(self) -> int:
        """The timestamp that retention uses: the greatest timestamp, or the time of the last write if no record has one."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return self.last_modified_ms

    @property
    def last_modified_ms(self) -> int:
        """The time of the last write to the file."""
        file = self.file()
        return self.folder.storage.modified_ns(file.fd) // 1_000_000

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch; `NO_TIMESTAMP` if that batch has none, or there is no batch."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            self._first_timestamp = next(self.places()).max_timestamp
        return self._first_timestamp

    # Appending

    def create(self, *, preallocate_bytes: int = 0) -> None:
        """Creates an empty file, and empties an existing one."""
        handle = self.handle = self.folder.open(self.log_name, create=True)
        handle.cut = self._cut = FileCut()
        self.pool.admit(self)
        self.folder.storage.truncate(handle.fd, 0)
        if preallocate_bytes:
            self.contents.written += 1
            self.folder.storage.preallocate(handle.fd, preallocate_bytes)
            self._has_reserved_tail = True

    def file(self) -> FileHandle:
        """Returns the file, and opens it if necessary."""
        handle = self.handle
        if handle is None:
            handle = self.folder.open(self.log_name)
            handle.cut = self._cut = self._cut or FileCut()
            self.handle = handle
            self.pool.admit(self)
        return handle

    def has_room(self, size_bytes: int, last_offset: int, config: LogConfig) -> bool:
        """Whether batches of this size and last offset may be appended.

        Source: LogSegment.shouldRoll; TimeIndex.isFull keeps one entry for the roll. Kafka rolls once an index is full; this
        segment rolls once an index would need one more entry.
        """
        if self.size + size_bytes > config.segment_bytes or last_offset - self.base_offset > MOST_RELATIVE_OFFSET:
            return False
        if self.bytes_since_index_entry <= config.index_interval_bytes:
            return True
        return (self.offset_index.count + 1) * OFFSET_ENTRY_BYTES <= config.segment_index_bytes and (
            self.time_index.count + 2
        ) * TIME_ENTRY_BYTES <= config.segment_index_bytes

    def waited_ms(self, now_ms: int, max_timestamp: int) -> int:
        """Returns the age of the segment for `segment.ms`: by the timestamps of records, if the first batch has one.

        Source: LogSegment.timeWaitedForRoll.
        """
        first_timestamp = self._first_timestamp
        if first_timestamp is None:
            first_timestamp = self.first_timestamp
        return max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - self.created_ms

    def count_fitting(self, places: Sequence[BatchPosition], config: LogConfig, segment_ms: int, now_ms: int) -> int:
        """Returns how many of these batches one write may append: at least the first, for which the segment has room.

        A later batch ends the write if it belongs into the next segment, or if it might fill an index.

        Args:
            segment_ms: the segment is rolled at this age.
        """
        first = places[0]
        size_bytes = first.size_bytes
        first_timestamp = self.first_timestamp if self.size else first.max_timestamp
        most_entries = config.segment_index_bytes // TIME_ENTRY_BYTES - max(self.offset_index.count, self.time_index.count) - 2
        for number, place in enumerate(places[1:], 1):
            age_ms = place.max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - self.created_ms
            is_full = self.size + size_bytes + place.size_bytes > config.segment_bytes or number > most_entries
            if is_full or age_ms > segment_ms or place.last_offset - self.base_offset > MOST_RELATIVE_OFFSET:
                return number
            size_bytes += place.size_bytes
        return len(places)

    def append_batches(self, data: Bytes, places: Sequence[BatchPosition], index_interval_bytes: int) -> None:
        """Appends several batches with one write.

        Args:
            data: the complete batches, one after the other.
            places: the positions of the batches, in the buffer from which `data` was taken.
            index_interval_bytes: the minimum of bytes between two index entries.

        Raises:
            OSError: nothing was appended.

        Durability: in the page cache.
        """
        shift = self.size - places[0].position
        self._write(data)
        for place in places:
            self.note(place.position + shift, place.size_bytes, place.last_offset, place.max_timestamp, index_interval_bytes)

    def append(self, data: Bytes, batch: BatchHeader, index_interval_bytes: int) -> None:
        """Appends a batch.

        Args:
            data: the complete batch.
            batch: its header.
            index_interval_bytes: the minimum of bytes between two index entries.

        Raises:
            OSError: nothing was appended.

        Durability: in the page cache.
        """
        # The same steps as in `_write`, whose call would cost 1 % of a Produce.
        handle = self.handle or self.file()
        position = self.size
        try:
            if self._has_torn_tail:
                self.cut_tail()
            self.folder.storage.write(handle.fd, data, position)
        except OSError:
            self._give_up_write()
            raise
        size_bytes = len(data)
        self.size = position + size_bytes
        self.contents.written += 1
        self.note(position, size_bytes, batch.base_offset + batch.last_offset_delta, batch.max_timestamp, index_interval_bytes)

    def _write(self, data: Bytes) -> None:
        """Writes complete batches after the last one.

        Raises:
            OSError: nothing was appended.
        """
        handle = self.handle or self.file()
        try:
            if self._has_torn_tail:
                self.cut_tail()
            self.folder.storage.write(handle.fd, data, self.size)
        except OSError:
            self._give_up_write()
            raise
        self.size += len(data)
        self.contents.written += 1

    def _give_up_write(self) -> None:
        self._has_torn_tail = True
        with suppress(OSError):
            self.cut_tail()
        self.pool.release(self)

    def note(self, position: int, size_bytes: int, last_offset: int, max_timestamp: int, index_interval_bytes: int) -> None:
        """Updates the indexes and timestamps for a batch that is now in the file.

        Source: LogSegment.append; the interval counts from the batch after the last entry, which itself has none.
        """
        if not position:
            self._first_timestamp = max_timestamp
        greatest = self._max_timestamp
        if max_timestamp > (self.max_timestamp if greatest is None else greatest):
            self._max_timestamp = max_timestamp
            self._offset_of_max_timestamp = last_offset
        if self.bytes_since_index_entry > index_interval_bytes:
            self.offset_index.append(last_offset - self.base_offset, position)
            self.note_max_timestamp()
            self.bytes_since_index_entry = 0
        self.bytes_since_index_entry += size_bytes

    def note_max_timestamp(self) -> None:
        """Adds the greatest timestamp to the time index, if the index does not have it."""
        if self.max_timestamp >= 0:
            self.time_index.append_greater(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)

    def cut_tail(self) -> None:
        """Cuts off the file after `size`: a torn write, or preallocated space.

        Raises:
            OSError: nothing was cut; the next append tries again.
        """
        self.contents.written += 1
        file = self.file()
        self.folder.storage.truncate(file.fd, self.size)
        self._has_torn_tail = self._has_reserved_tail = False

    def load_indexes(self) -> None:
        """Loads the indexes into memory, so that a segment that was opened from files can be appended."""
        self.offset_index.load()
        self.time_index.load()
        _, position = self.offset_index.last() or (0, 0)
        self.bytes_since_index_entry = self.size - position

    def forget(self) -> None:
        """Clears the indexes and timestamps, before they are rebuilt from the batches."""
        self._saved_generation = -1
        self.offset_index.clear()
        self.time_index.clear()
        self.bytes_since_index_entry = 0
        self._first_timestamp = None
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = self.base_offset

    def seal(self) -> None:
        """Ends appends: writes the indexes, with the greatest timestamp as the last entry, and drops them from memory.

        Raises:
            OSError: the segment can stay the active one.

        Durability: in the page cache.
        """
        self.save_indexes()
        self.unload_indexes()

    def unload_indexes(self) -> None:
        """Drops the indexes from memory; the index files hold them."""
        self.offset_index.unload()
        self.time_index.unload()

    def save_indexes(self) -> None:
        """Writes the indexes; the last entry of the time index is the greatest timestamp.

        Durability: in the page cache.
        """
        if self._has_torn_tail or self._has_reserved_tail:
            self.cut_tail()
        if self.time_index.keys is not None:
            self.note_max_timestamp()
        self.offset_index.save()
        self.time_index.save()
        self.transaction_index.save()
        self._saved_generation = self.contents.written

    # Reading

    def region(self, position: int, length: int) -> FileRegion:
        """Returns a region of the file."""
        return FileRegion(self.handle or self.file(), position, length)

    def find(self, offset: int) -> BatchPosition | None:
        """Returns the first batch whose last offset is `offset` or greater; None if there is none."""
        relative_offset = min(offset - self.base_offset, MOST_RELATIVE_OFFSET)
        try:
            entry = self.offset_index.floor(relative_offset)
            return self._find_from(entry, offset)
        except (BadBatchError, FileNotFoundError, ShortIndexError):
            if self.offset_index.keys is not None:
                raise
        # The log or the index is damaged; `mend_indexes` raises if it is the log.
        self.mend_indexes()
        return self._find_from(self.offset_index.floor(relative_offset), offset)

    def _find_from(self, entry: tuple[int, int] | None, offset: int) -> BatchPosition | None:
        """Returns the first batch, from an entry of the offset index on, whose last offset is `offset` or greater.

        Raises:
            BadBatchError: the entry leads to no batch, or to a batch after the offset of the entry, so that the search would skip
                records.
        """
        most, position = (self.base_offset + entry[0], entry[1]) if entry else (None, 0)
        if not 0 <= position <= self.size:
            raise BadBatchError(f"{self.folder.path_of(self.offset_index.name)} leads out of the log")
        for place in self.places(position):
            if most is not None and place.last_offset > most:
                raise BadBatchError(f"{self.folder.path_of(self.offset_index.name)} leads to a wrong batch")
            most = None
            if place.last_offset >= offset:
                return place
        return None

    def mend_indexes(self) -> None:
        """Rebuilds the indexes of a segment from the headers of its batches; indexes in memory stay there.

        Raises:
            BadBatchError: the log itself is damaged; the indexes are unchanged.
        """
        log.warning("The indexes of a segment are damaged; rebuilding them", path=self.folder.path_of(self.log_name))
        is_in_memory = self.time_index.keys is not None
        damaged = self.offset_index, self.time_index
        known = self._first_timestamp, self._max_timestamp, self._offset_of_max_timestamp, self.bytes_since_index_entry
        self.offset_index = OffsetIndex(self.folder, self.offset_index.name)
        self.time_index = TimeIndex(self.folder, self.time_index.name)
        self.forget()
        try:
            for place in self.places():
                self.note(place.position, place.size_bytes, place.last_offset, place.max_timestamp, _MENDED_INTERVAL_BYTES)
        except OSError:
            self.offset_index, self.time_index = damaged
            self._first_timestamp, self._max_timestamp, self._offset_of_max_timestamp, self.bytes_since_index_entry = known
            raise
        self.note_max_timestamp()
        with suppress(OSError):
            self.save_indexes()
            if not is_in_memory:
                self.unload_indexes()

    def extent_at(self, position: int) -> tuple[int, int] | None:
        """Returns the size in bytes and the last offset of the batch at a position; reads only its header.

        Returns:
            None if no header is there, or the batch ends after `size`.
        """
        file = self.handle or self.file()
        extent = read_extent(self.folder.storage.read(file.fd, HEADER_SIZE, position))
        return extent if extent is not None and position + extent[0] <= self.size else None

    def places(self, position: int = 0) -> Iterator[BatchPosition]:
        """Yields the positions of the batches from the batch at `position` on; reads only headers."""
        try:
            yield from places_in(self.folder.storage, self.file(), position, self.size)
        except BadBatchError as error:
            raise self.damaged(error) from None

    def batches(self, position: int = 0) -> Iterator[memoryview]:
        """Yields the complete batches from the batch at `position` on."""
        try:
            yield from batches_in(self.folder.storage, self.file(), position, self.size)
        except BadBatchError as error:
            raise self.damaged(error) from None

    def damaged(self, error: BadBatchError) -> BadBatchError:
        """Returns the error with the file name and the remedy."""
        path = self.folder.path_of(self.log_name)
        return BadBatchError(f"{path} is damaged: {error}. Restore it from a backup and start the broker again")

    def next_offset(self) -> int:
        """Returns one past the last record, from the last entry of the offset index and the headers after it."""
        _, position = self.offset_index.last() or (0, 0)
        next_offset = self.base_offset
        for place in self.places(position):
            next_offset = place.last_offset + 1
        return next_offset

    # Truncation, renaming and deletion

    def in_folder(self, folder: Folder) -> Segment:
        """Returns this segment in another folder, which holds a copy of the file; this object must not be used afterwards."""
        twin = copy(self)
        twin.folder = folder
        twin.contents = folder.ledger.file(self.log_name)
        twin._saved_generation = -1 if self.has_unsaved_indexes else twin.contents.written
        twin.handle = twin._cut = None
        twin.offset_index, twin.time_index = copy(self.offset_index), copy(self.time_index)
        twin.transaction_index = copy(self.transaction_index)
        twin.offset_index.folder = twin.time_index.folder = twin.transaction_index.folder = folder
        twin._has_torn_tail = twin._has_reserved_tail = False
        return twin

    def truncate(self, offset: int) -> int:
        """Drops the batch that holds `offset` and all later batches; returns the dropped bytes. The segment is active afterwards.

        Raises:
            OSError: the file is unchanged; or the file is cut, and its index of aborted transactions is not written yet.

        Source: LogSegment.truncateTo.
        """
        place = self.find(offset)
        self.load_indexes()
        self._saved_generation = -1
        if place is None:
            return 0
        former, self.size = self.size, place.position
        self._retire_file()
        try:
            self.cut_tail()
        except OSError:
            self.size = former
            raise
        cut = former - place.position
        relative_offset = max(offset - self.base_offset, 0)
        self.offset_index.truncate(relative_offset)
        self.time_index.truncate(relative_offset)
        self._note_cut()
        self.transaction_index.truncate(place.base_offset)
        return cut

    def _retire_file(self) -> None:
        """Ends the connections that still send bytes after the new end, because other records may be written there.

        The file is opened again, so that later regions are not concerned.
        """
        if self._cut is not None:
            self._cut.kept_bytes = self.size
            self._cut = None
        self.close()

    def _note_cut(self) -> None:
        """Updates the timestamps from the indexes and from the batches after their last entries."""
        if not self.size:
            self._first_timestamp = None
        self._load_max_timestamp()
        _, position = self.offset_index.last() or (0, 0)
        for behind in self.places(position):
            if behind.max_timestamp > self.max_timestamp:
                self._max_timestamp = behind.max_timestamp
                self._offset_of_max_timestamp = behind.last_offset
        self.bytes_since_index_entry = self.size - position

    def close(self) -> None:
        """Closes the file; a region that a connection is sending keeps the file open."""
        self.pool.release(self)

    def rename_files(self, suffix: str) -> None:
        """Renames each file to a name that ends with `suffix`; the file of batches comes first.

        Raises:
            OSError: some files have the new name, and the others the old one; the segment knows the current name of each.
        """
        name = file_name(self.base_offset, LOG_SUFFIX) + suffix
        self.folder.rename(self.log_name, name)
        self.log_name = name
        indexes: list[OffsetIndex | TimeIndex | TransactionIndex] = [self.offset_index, self.time_index, self.transaction_index]
        for kind, index in zip(SEGMENT_SUFFIXES[1:], indexes, strict=True):
            name = file_name(self.base_offset, kind) + suffix
            self.folder.rename(index.name, name)
            index.name = name

    def delete_files(self) -> None:
        """Removes all existing files of the segment; the file of batches comes last."""
        self.close()
        for name in (*self.index_names, self.log_name):
            self.folder.remove(name)

    def discard_files(self) -> None:
        """Removes the files of an unused compacted segment.

        Marks the file of batches as incomplete first, so that the next start does not take the files for a complete segment.
        """
        name = file_name(self.base_offset, LOG_SUFFIX) + CLEANED_SUFFIX
        self.folder.rename(self.log_name, name)
        self.log_name = name
        self.delete_files()

    def forget_saved(self) -> None:
        """Notes that the index files are missing or belong to another segment."""
        self._saved_generation = -1

    def mark_saved(self) -> None:
        """Notes that the index files are complete, and drops the indexes from memory."""
        self.unload_indexes()
        self._saved_generation = self.contents.written
