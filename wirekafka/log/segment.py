"""One segment: a file of batches, its two indexes, and that of its aborted transactions.

Theory of operation: batches are appended at a position that this object knows, so a torn write is whatever the file holds
behind `size`; it is cut off at once, or, where the disk refuses even that, before the next append. A position is found by
bisecting the offset index and then reading headers, at most `index.interval.bytes` of them or one batch, whichever is larger.

Rules of this file:
    Invariant: bytes [0, size) of the file are whole batches with growing offsets, all of them base_offset or greater.
    Invariant: the last offset of any batch, relative to base_offset, fits in 31 bits.
    Errors are `OSError`; a batch whose framing is wrong below `size` is one too, for the disk has lost something.

Source: org.apache.kafka.storage.internals.log.LogSegment, org.apache.kafka.common.record.FileRecords.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from copy import copy

import structlog

from wirekafka.config import LogConfig
from wirekafka.log.index import OffsetIndex, ShortIndexError, TimeIndex
from wirekafka.log.positions import BadBatchError, BatchPosition, batches_in, places_in, read_extent
from wirekafka.log.segment_files import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, TIME_INDEX_SUFFIX, file_name
from wirekafka.log.storage import Bytes, FileHandle, FileRegion, Folder, HandlePool
from wirekafka.log.transaction_index import TransactionIndex
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import HEADER_SIZE, BatchHeader

MOST_RELATIVE_OFFSET = 0x7FFF_FFFF
OFFSET_ENTRY_BYTES = OffsetIndex.entry.size
TIME_ENTRY_BYTES = TimeIndex.entry.size

_MENDED_INTERVAL_BYTES = 4096
"""Between two entries of an index that is made anew: the default of `index.interval.bytes`."""

log = structlog.get_logger(__name__)


class Segment:
    """One segment of a log.

    Attributes:
        base_offset: what the offsets in its indexes are relative to, and its name.
        size: bytes of whole batches.
        handle: the open file; None until it is wanted, and again when the pool or a deletion takes it.
        offset_index, time_index: see `wirekafka.log.index`.
        transaction_index: see `wirekafka.log.transaction_index`.
        log_name: the name of the file that holds the batches.
        contents: what of that file is on the disk.
        roll_jitter_ms: how much earlier than `segment.ms` this segment is rolled.
        created_ms: when this object was made, for rolling a segment whose records have no timestamps.
    """

    __slots__ = (
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
        """A segment without batches; its file is made by `create`, and has `suffix` at the end of its name."""
        self.folder = folder
        self.log_name = file_name(base_offset, LOG_SUFFIX) + suffix
        self.contents = folder.ledger.file(self.log_name)
        self.pool = pool
        self.base_offset = base_offset
        self.size = 0
        self.handle: FileHandle | None = None
        self.offset_index = OffsetIndex(folder, file_name(base_offset, INDEX_SUFFIX) + suffix)
        self.time_index = TimeIndex(folder, file_name(base_offset, TIME_INDEX_SUFFIX) + suffix)
        self.transaction_index = TransactionIndex(folder, base_offset)
        self.transaction_index.name += suffix
        self._saved_generation = -1
        """The written generation of `contents` that the indexes' files are of; -1 if they are of none."""
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
        """The segment that is in the folder, with its indexes as they are; no file is read."""
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
        """Whether the indexes in memory are not those in the files."""
        return self._saved_generation != self.contents.written

    @property
    def index_names(self) -> tuple[str, str, str]:
        """The names of its indexes' files."""
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
        """Takes it from the last entry of the time index, which is written when a segment is rolled or closed."""
        if self.time_index.keys is None and not self.has_sound_time_index():
            self.mend_indexes()
            return
        timestamp, relative_offset = self.time_index.last() or (NO_TIMESTAMP, 0)
        self._max_timestamp = timestamp
        self._offset_of_max_timestamp = self.base_offset + relative_offset

    def has_sound_time_index(self) -> bool:
        """Whether the last entry of the time index is one that the log could have; no more of the index is read.

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
        """Whether it is in the batch with this offset that the greatest timestamp is this one."""
        if timestamp < 0 or relative_offset < 0:
            return False
        place = self.find(self.base_offset + relative_offset)
        return place is not None and place.max_timestamp == timestamp and place.base_offset <= self.base_offset + relative_offset

    @property
    def largest_timestamp(self) -> int:
        """What retention goes by: its greatest timestamp, or when the file was last written if no record has one."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return self.last_modified_ms

    @property
    def last_modified_ms(self) -> int:
        """When its file was last written."""
        file = self.file()
        return self.folder.storage.modified_ns(file.fd) // 1_000_000

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of its first batch, `NO_TIMESTAMP` if that has none or there is none."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            self._first_timestamp = next(self.places()).max_timestamp
        return self._first_timestamp

    # Appending

    def create(self, *, preallocate_bytes: int = 0) -> None:
        """Makes its file, empty even if there was one."""
        self.handle = self.folder.open(self.log_name, create=True)
        self.pool.admit(self)
        self.folder.storage.truncate(self.handle.fd, 0)
        if preallocate_bytes:
            self.contents.written += 1
            self.folder.storage.preallocate(self.handle.fd, preallocate_bytes)
            self._has_reserved_tail = True

    def file(self) -> FileHandle:
        """Its file, opened if it is not."""
        handle = self.handle
        if handle is None:
            handle = self.handle = self.folder.open(self.log_name)
            self.pool.admit(self)
        return handle

    def has_room(self, size_bytes: int, last_offset: int, config: LogConfig) -> bool:
        """Whether batches of that size and last offset may be appended.

        Source: LogSegment.shouldRoll; TimeIndex.isFull keeps one entry for the roll. Kafka rolls once an index is full, this
        once it would need one more entry.
        """
        if self.size + size_bytes > config.segment_bytes or last_offset - self.base_offset > MOST_RELATIVE_OFFSET:
            return False
        if self.bytes_since_index_entry <= config.index_interval_bytes:
            return True
        return (self.offset_index.count + 1) * OFFSET_ENTRY_BYTES <= config.segment_index_bytes and (
            self.time_index.count + 2
        ) * TIME_ENTRY_BYTES <= config.segment_index_bytes

    def waited_ms(self, now_ms: int, max_timestamp: int) -> int:
        """How long the segment has been filled, as `segment.ms` measures it: by the timestamps of records, if they have any.

        Source: LogSegment.timeWaitedForRoll.
        """
        first_timestamp = self._first_timestamp
        if first_timestamp is None:
            first_timestamp = self.first_timestamp
        return max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - self.created_ms

    def append(self, data: Bytes, batch: BatchHeader, index_interval_bytes: int) -> None:
        """Appends a batch.

        Args:
            data: all of its bytes.
            batch: its header.
            index_interval_bytes: the least bytes between two entries of the indexes.

        Raises:
            OSError: nothing was appended.

        Durability: in the page cache.
        """
        handle = self.handle or self.file()
        position = self.size
        try:
            if self._has_torn_tail:
                self.cut_tail()
            self.folder.storage.write(handle.fd, data, position)
        except OSError:
            self._has_torn_tail = True
            with suppress(OSError):
                self.cut_tail()
            self.pool.release(self)
            raise
        size_bytes = len(data)
        self.size = position + size_bytes
        self.contents.written += 1
        self.note(position, size_bytes, batch.base_offset + batch.last_offset_delta, batch.max_timestamp, index_interval_bytes)

    def note(self, position: int, size_bytes: int, last_offset: int, max_timestamp: int, index_interval_bytes: int) -> None:
        """Enters a batch that is now in the file into what is known of it.

        Source: LogSegment.append; the interval counts from the batch behind the last entry, which itself has none.
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
        """Enters the greatest timestamp into the time index, if it is not there."""
        if self.max_timestamp >= 0:
            self.time_index.append_greater(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)

    def cut_tail(self) -> None:
        """Cuts off what the file holds behind `size`: a torn write, or room that was reserved.

        Raises:
            OSError: it is still there; the next append tries again.
        """
        self.contents.written += 1
        file = self.file()
        self.folder.storage.truncate(file.fd, self.size)
        self._has_torn_tail = self._has_reserved_tail = False

    def load_indexes(self) -> None:
        """Makes a segment that was read from files ready for appends."""
        self.offset_index.load()
        self.time_index.load()
        _, position = self.offset_index.last() or (0, 0)
        self.bytes_since_index_entry = self.size - position

    def forget(self) -> None:
        """Forgets the indexes and timestamps, to be noted anew from the batches."""
        self._saved_generation = -1
        self.offset_index.clear()
        self.time_index.clear()
        self.bytes_since_index_entry = 0
        self._first_timestamp = None
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = self.base_offset

    def seal(self) -> None:
        """Ends appends: writes the indexes, the greatest timestamp last, and keeps nothing of them in memory.

        Raises:
            OSError: the segment can go on as the active one.

        Durability: in the page cache.
        """
        self.save_indexes()
        self.unload_indexes()

    def unload_indexes(self) -> None:
        """Keeps nothing of the indexes in memory, which are in their files."""
        self.offset_index.unload()
        self.time_index.unload()

    def save_indexes(self) -> None:
        """Writes the indexes as a segment at rest has them: the greatest timestamp is the time index's last entry.

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
        """A run of its bytes."""
        return FileRegion(self.handle or self.file(), position, length)

    def find(self, offset: int) -> BatchPosition | None:
        """The first batch whose last offset is `offset` or greater; None if there is none."""
        relative_offset = min(offset - self.base_offset, MOST_RELATIVE_OFFSET)
        try:
            entry = self.offset_index.floor(relative_offset)
            return self._find_from(entry, offset)
        except (BadBatchError, FileNotFoundError, ShortIndexError):
            if self.offset_index.keys is not None:
                raise
        # The log or the index is damaged; if it is the log, this raises.
        self.mend_indexes()
        return self._find_from(self.offset_index.floor(relative_offset), offset)

    def _find_from(self, entry: tuple[int, int] | None, offset: int) -> BatchPosition | None:
        """The first batch from an entry of the offset index on whose last offset is `offset` or greater.

        Raises:
            BadBatchError: there is none where the entry leads; or one that is behind what the entry promises, so that
                records before it would be passed over.
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
        """Makes the indexes of a segment anew from the headers of its batches; those in memory stay there.

        Raises:
            BadBatchError: the log itself is damaged; the indexes are as they were then.
        """
        log.warning("The indexes of a segment are damaged; they are made anew", path=self.folder.path_of(self.log_name))
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
        """The size in bytes and the last offset of the batch that begins there, by its header alone.

        Returns:
            None if there is no header, or the batch ends after the others.
        """
        file = self.handle or self.file()
        extent = read_extent(self.folder.storage.read(file.fd, HEADER_SIZE, position))
        return extent if extent is not None and position + extent[0] <= self.size else None

    def places(self, position: int = 0) -> Iterator[BatchPosition]:
        """The batches from the one that begins at `position`, by their headers alone."""
        try:
            yield from places_in(self.folder.storage, self.file(), position, self.size)
        except BadBatchError as error:
            raise self.damaged(error) from None

    def batches(self, position: int = 0) -> Iterator[memoryview]:
        """The batches from the one that begins at `position`, whole."""
        try:
            yield from batches_in(self.folder.storage, self.file(), position, self.size)
        except BadBatchError as error:
            raise self.damaged(error) from None

    def damaged(self, error: BadBatchError) -> BadBatchError:
        """The same error, which names the file and says what to do."""
        path = self.folder.path_of(self.log_name)
        return BadBatchError(f"{path} is damaged: {error}. Bring it back from a copy and start the broker again")

    def next_offset(self) -> int:
        """One past its last record, from the last entry of the offset index and the headers behind it."""
        _, position = self.offset_index.last() or (0, 0)
        next_offset = self.base_offset
        for place in self.places(position):
            next_offset = place.last_offset + 1
        return next_offset

    # Cutting and going away

    def in_folder(self, folder: Folder) -> Segment:
        """The same segment in another folder, which holds a copy of its file; this one is not to be used any more."""
        twin = copy(self)
        twin.folder = folder
        twin.contents = folder.ledger.file(self.log_name)
        twin._saved_generation = -1 if self.has_unsaved_indexes else twin.contents.written
        twin.handle = None
        twin.offset_index, twin.time_index = copy(self.offset_index), copy(self.time_index)
        twin.transaction_index = copy(self.transaction_index)
        twin.offset_index.folder = twin.time_index.folder = twin.transaction_index.folder = folder
        twin._has_torn_tail = twin._has_reserved_tail = False
        return twin

    def truncate(self, offset: int) -> int:
        """Drops the batch that holds `offset` and all behind it; returns how many bytes that were. The segment is active then.

        Raises:
            OSError: the file is as it was; or it is cut, and its index of aborted transactions is yet to be written.

        Source: LogSegment.truncateTo.
        """
        place = self.find(offset)
        self.load_indexes()
        self._saved_generation = -1
        if place is None:
            return 0
        former, self.size = self.size, place.position
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

    def _note_cut(self) -> None:
        """Learns the timestamps anew from the indexes and the batches behind their last entries."""
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
        """Lets go of the file; regions that are being sent keep it open."""
        self.pool.release(self)

    def rename_files(self, suffix: str) -> None:
        """Gives each of its files a name that ends in `suffix`; the file of batches comes first.

        Raises:
            OSError: some files have the new name, and the others the old one; each is known by the name that it has.
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
        """Removes its files, as far as there are any; the file of batches comes last."""
        self.close()
        for name in (*self.index_names, self.log_name):
            self.folder.remove(name)

    def discard_files(self) -> None:
        """Removes the files of a compacted segment that will not be used.

        The file of batches is marked as incomplete first, so that the next start takes none of the files for a whole segment.
        """
        name = file_name(self.base_offset, LOG_SUFFIX) + CLEANED_SUFFIX
        self.folder.rename(self.log_name, name)
        self.log_name = name
        self.delete_files()

    def forget_saved(self) -> None:
        """The indexes' files are not there, or not those of this segment."""
        self._saved_generation = -1

    def mark_saved(self) -> None:
        """The indexes' files are complete, and nothing of them is kept in memory."""
        self.unload_indexes()
        self._saved_generation = self.contents.written
