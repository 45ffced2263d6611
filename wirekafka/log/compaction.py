"""Compaction itself: of each key the last record stays.

Theory of operation: two passes over sealed segments. The first reads the part of the log that was not compacted yet and notes,
for each key, the offset of its last record. The second reads everything up to there and copies what is still the last of its
key; small neighbours become one segment. A batch keeps its base and last offset whatever it loses, so that offsets and
sequence numbers stay as they are. A tombstone first gets a date (the delete horizon) and goes when that has passed, so that
a reader who has seen the value has time to see that it is gone.

Only the first pass looks at keys, and the second where the first has not been; elsewhere the second knows of each offset
whether its record stays. A batch of which all stay is copied as it is, and one of which none do is not even decompressed.

What cannot be judged stays as it is: batches of transactions, control batches, and message sets of old formats. Their records
supersede nobody's either.

Rules of this file: it runs in a thread, on files that nobody changes, and changes nothing but files of its own that end in
`.cleaned`. Every few records it asks `Pace.step`, which makes it rest and may end it. A batch is given a new checksum only after
the one that it has was compared: damage is not to be made sound.

Source: kafka.log.Cleaner, MemoryRecords.filterTo; KIP-534 (delete horizon).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wirekafka.config import LogConfig
from wirekafka.log.offset_map import STAYS_AS_TOMBSTONE, OffsetMap, Window
from wirekafka.log.places import BadBatchError, batches_in
from wirekafka.log.record_slices import heads_in
from wirekafka.log.recovery import CLEANED_SUFFIX
from wirekafka.log.rewriting import emptied, rewritten
from wirekafka.log.segment import LOG_SUFFIX, MOST_RELATIVE_OFFSET, Segment, file_name
from wirekafka.log.storage import FileHandle, Folder, HandlePool
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import HEADER_SIZE, BatchHeader, check_crc
from wirekafka.wire.compression import MOST_CONTENT_BYTES, Compression, decompress

_MAGIC = 2
_MAGIC_AT = 16
_WRITE_BYTES = 1 << 20
_WITHOUT_TOMBSTONES = bytes.maketrans(bytes((STAYS_AS_TOMBSTONE,)), b"\0")


class Pace(Protocol):
    """Keeps compaction from getting in anybody's way."""

    def step(self, size_bytes: int = 0) -> None:
        """Called every few records, and with the bytes read or written; rests if it is time to, raises to end the work."""


@dataclass(slots=True)
class Totals:
    """What a compaction did."""

    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0


@dataclass(slots=True)
class Compaction:
    """One compaction of one log, as the loop has planned it.

    Attributes:
        folder: of the log.
        segments: from the first one to the last that may be compacted, with the size of each.
        dirty_offset: what is before it was compacted before.
        end_offset: the base offset of the first segment that may not be compacted.
        last_offsets: of each active producer the offset of its last record; the batch that has it is kept for its sequence
            number.
        now_ms: when it began.
    """

    folder: Folder
    config: LogConfig
    segments: Sequence[Segment]
    dirty_offset: int
    end_offset: int
    last_offsets: Mapping[int, int | None]
    now_ms: int
    most_keys: int
    pace: Pace
    totals: Totals = field(default_factory=Totals)

    def build_map(self) -> OffsetMap:
        """Notes the last offset of each key from `dirty_offset` on, as far as there is room.

        Raises:
            OSError: a segment is gone or cannot be read.
            KafkaError: a batch cannot be decoded.
        """
        offsets = OffsetMap(self.most_keys, self.dirty_offset)
        for segment, end in self._with_ends(self.segments):
            if end <= self.dirty_offset:
                continue
            if not self._note_keys(offsets, segment):
                return offsets
            offsets.end_offset = end
        return offsets

    def _with_ends(self, segments: Sequence[Segment]) -> Iterator[tuple[Segment, int]]:
        ends = [segment.base_offset for segment in segments[1:]]
        return zip(segments, [*ends, self.end_offset], strict=True)

    def _note_keys(self, offsets: OffsetMap, segment: Segment) -> bool:
        """Notes the keys of a segment; False if the map is full."""
        relative_offset = max(self.dirty_offset - segment.base_offset, 0)
        _, position = segment.offset_index.floor(min(relative_offset, MOST_RELATIVE_OFFSET)) or (0, 0)
        for data, header in self._batches(segment, position):
            if header is not None and is_judged(header) and not self._note_batch(offsets, data, header):
                return False
            if header is not None:
                offsets.end_offset = max(offsets.end_offset, header.next_offset)
        return True

    def _note_batch(self, offsets: OffsetMap, data: memoryview, header: BatchHeader) -> bool:
        is_dense = header.record_count == header.last_offset_delta + 1
        is_half_clean = header.base_offset < self.dirty_offset
        next_offset = header.base_offset
        for heads in heads_in(_records_in(data, header), header.record_count):
            self.pace.step()
            keys = heads.keys
            found = offsets_of(header, heads.offset_deltas)
            if is_dense:
                offsets.has_odd_batches |= found != range(next_offset, next_offset + len(keys))
                next_offset += len(keys)
            if is_half_clean:
                keys = [key if offset >= self.dirty_offset else None for key, offset in zip(keys, found, strict=True)]
            if not offsets.put(keys, found, heads.tombstones, has_nulls=heads.has_null_keys or is_half_clean):
                return False
        return True

    def _batches(self, segment: Segment, position: int = 0) -> Iterator[tuple[memoryview, BatchHeader | None]]:
        storage = self.folder.storage
        file = self.folder.open(segment.log_name)
        for data in batches_in(storage, file, position, segment.size):
            self.pace.step(len(data))
            yield data, BatchHeader(data) if data[_MAGIC_AT] == _MAGIC else None

    def groups(self, offsets: OffsetMap) -> Iterator[list[Segment]]:
        """The segments up to where the map goes, in runs that become one segment each.

        Source: Cleaner.groupSegmentsBySize.
        """
        group: list[Segment] = []
        size = index_size = time_index_size = 0
        for segment, end in self._with_ends(self.segments):
            if segment.base_offset >= offsets.end_offset:
                break
            size += segment.size
            index_size += segment.offset_index.size_bytes
            time_index_size += segment.time_index.size_bytes
            fits = (
                size <= self.config.segment_bytes
                and max(index_size, time_index_size) <= self.config.segment_index_bytes
                and (not group or end - 1 - group[0].base_offset <= MOST_RELATIVE_OFFSET)
            )
            if group and not fits:
                yield group
                group, size = [], segment.size
                index_size, time_index_size = segment.offset_index.size_bytes, segment.time_index.size_bytes
            group.append(segment)
        if group:
            yield group

    def rewrite(self, group: Sequence[Segment], offsets: OffsetMap, pool: HandlePool) -> Segment:
        """Copies what stays of a run of segments into one, whose files end in `.cleaned` and are on the disk.

        Raises:
            OSError: what was written is removed.
            KafkaError: a batch cannot be decoded; so too.
        """
        segment = Segment(self.folder, pool, group[0].base_offset, created_ms=self.now_ms)
        try:
            writer = _Writer(segment, self)
            window = Window(offsets, self.pace.step)
            for source in group:
                for data, header in self._batches(source):
                    kept = data if header is None or not is_judged(header) else self._filter(data, header, offsets, window)
                    if kept is not None:
                        writer.add(kept)
            writer.finish(self.folder.open(group[-1].log_name))
        except BaseException:
            segment.delete_files(CLEANED_SUFFIX)
            raise
        return segment

    def _filter(self, data: memoryview, header: BatchHeader, offsets: OffsetMap, window: Window) -> memoryview | bytearray | None:
        """What stays of a batch, None if nothing does."""
        is_dense = header.record_count == header.last_offset_delta + 1
        marks = window.marks(header.base_offset, header.next_offset) if is_dense else None
        body: bytes | None = None
        if marks is None:
            body = _records_in(data, header)
            marks = self._marks_by_keys(body, header, offsets)
        if header.delete_horizon_ms is not None and self.now_ms >= header.delete_horizon_ms:
            marks = marks.translate(_WITHOUT_TOMBSTONES)
        kept_count = header.record_count - marks.count(0)
        self.totals.records_before += header.record_count
        self.totals.records_after += kept_count
        if not kept_count:
            return emptied(header) if self._is_needed(header) else None
        delete_horizon_ms = None
        if header.delete_horizon_ms is None and STAYS_AS_TOMBSTONE in marks:
            delete_horizon_ms = self.now_ms + self.config.delete_retention_ms
        elif kept_count == header.record_count:
            return data
        if body is None:
            body = _records_in(data, header)
        return rewritten(data, header, body, marks, delete_horizon_ms=delete_horizon_ms, step=self.pace.step)

    def _marks_by_keys(self, body: bytes, header: BatchHeader, offsets: OffsetMap) -> bytes:
        marks = []
        for heads in heads_in(body, header.record_count):
            self.pace.step()
            marks.append(offsets.marks(heads.keys, offsets_of(header, heads.offset_deltas), heads.tombstones))
        return b"".join(marks)

    def _is_needed(self, header: BatchHeader) -> bool:
        """Whether the batch stays even without records: for its producer's sequence number, or for the log's offsets."""
        if header.has_producer_id and self.last_offsets.get(header.producer_id) == header.last_offset:
            return True
        return header.next_offset == self.end_offset


class _Writer:
    """Writes batches into a segment's `.cleaned` file."""

    def __init__(self, segment: Segment, work: Compaction) -> None:
        self._segment = segment
        self._work = work
        self._folder = segment.folder
        self._name = file_name(segment.base_offset, LOG_SUFFIX) + CLEANED_SUFFIX
        self._file: FileHandle = self._folder.open(self._name, create=True)
        self._folder.storage.truncate(self._file.fd, 0)
        self._buffer = bytearray()
        self._written = 0

    def add(self, data: memoryview | bytearray) -> None:
        segment = self._segment
        header = BatchHeader(data) if data[_MAGIC_AT] == _MAGIC else None
        if header is not None:
            # An empty batch keeps its timestamp for its producer's sake; none of its records has it.
            timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
            interval = self._work.config.index_interval_bytes
            segment.note(segment.size, len(data), header.last_offset, timestamp, interval)
        segment.size += len(data)
        self._buffer += data
        if len(self._buffer) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        self._folder.storage.write(self._file.fd, self._buffer, self._written)
        self._written += len(self._buffer)
        self._work.pace.step(len(self._buffer))
        self._buffer.clear()

    def finish(self, newest: FileHandle) -> None:
        """Puts the file and its indexes on the disk; it is as old as the newest one that it was made from."""
        self._write()
        storage, segment = self._folder.storage, self._segment
        segment.note_max_timestamp()
        storage.set_modified_ns(self._file.fd, storage.modified_ns(newest.fd))
        storage.sync(self._file.fd)
        for index in (segment.offset_index, segment.time_index):
            index.save(CLEANED_SUFFIX)
            index.unload()
            file = self._folder.open(index.name + CLEANED_SUFFIX)
            storage.sync(file.fd)
        segment.needs_save = False


def is_judged(header: BatchHeader) -> bool:
    """Whether compaction looks into the batch at all."""
    return not header.is_control and not header.is_transactional


def offsets_of(header: BatchHeader, deltas: Sequence[int]) -> Sequence[int]:
    """The offsets of neighbouring records; a range where one follows the other."""
    first = header.base_offset + deltas[0]
    if deltas[-1] - deltas[0] + 1 == len(deltas) and deltas == list(range(deltas[0], deltas[-1] + 1)):
        return range(first, first + len(deltas))
    return [header.base_offset + delta for delta in deltas]


def _records_in(data: memoryview, header: BatchHeader) -> bytes:
    """The records of a batch, uncompressed.

    Raises:
        BadBatchError: the batch is not what its checksum is of.
        KafkaError: it cannot be decompressed.
    """
    if not check_crc(data, 0, header):
        raise BadBatchError(f"the batch at offset {header.base_offset} does not have its checksum")
    body = data[HEADER_SIZE : header.size_bytes]
    if header.compression is Compression.NONE:
        return bytes(body)
    return decompress(header.compression, body, limit_bytes=MOST_CONTENT_BYTES)
