"""Compaction itself: of each key the last record stays.

Theory of operation: two passes over sealed segments. The first reads the part of the log that was not compacted yet and notes,
for each key, the offset of its last record. The second reads everything up to there and copies what is still the last of its
key; small neighbours become one segment. A batch keeps its base and last offset whatever it loses, so that offsets and
sequence numbers stay as they are. A tombstone first gets a date (the delete horizon) and goes when that has passed, so that
a reader who has seen the value has time to see that it is gone.

What cannot be judged stays as it is: batches of transactions, control batches, and message sets of old formats. Their records
supersede nobody's either.

Rules of this file: it runs in a thread, on files that nobody changes, and changes nothing but files of its own that end in
`.cleaned`. Every few records it asks `Pace.step`, which makes it rest and may end it. Records that stay are copied as they
stand; only a batch that gets a delete horizon is made anew, for its timestamps are counted from there.

Source: kafka.log.Cleaner, org.apache.kafka.storage.internals.log.SkimpyOffsetMap, MemoryRecords.filterTo; KIP-534 (delete
horizon).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from struct import Struct
from typing import Protocol

from wirekafka.config import LogConfig
from wirekafka.log.places import batches_in
from wirekafka.log.record_slices import RecordSlice, slices_of
from wirekafka.log.recovery import CLEANED_SUFFIX
from wirekafka.log.segment import LOG_SUFFIX, MOST_RELATIVE_OFFSET, Segment, file_name
from wirekafka.log.storage import FileHandle, Folder, HandlePool
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import (
    HEADER_SIZE,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    BatchHeader,
    Record,
    TimestampType,
    build_batch,
    iterate_records,
    write_timestamp,
)
from wirekafka.wire.compression import MOST_CONTENT_BYTES, Compression, compress, decompress

ENTRY_BYTES = 200
"""What a key takes in the map of offsets: a digest of 16 bytes, an offset, their place in a dict (measured 2026-11: 183)."""
_COUNT = Struct(">i")
_MAGIC = 2
_MAGIC_AT = 16
_RECORD_COUNT_AT = 57
_WRITE_BYTES = 1 << 20
_RECORDS_A_STEP = 16


class Pace(Protocol):
    """Keeps compaction from getting in anybody's way."""

    def step(self, size_bytes: int = 0) -> None:
        """Called every few records, and with the bytes read or written; rests if it is time to, raises to end the work."""


class OffsetMap:
    """The last offset of each key, within bounded memory.

    Attributes:
        end_offset: what the map knows is complete before this offset.
    """

    def __init__(self, most_keys: int) -> None:
        assert most_keys > 0, "a map without room makes no progress"
        self._offsets: dict[bytes, int] = {}
        self._most_keys = most_keys
        self.end_offset = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Notes the offset of a key's latest record; False if there is no room for one more key."""
        digest = md5(key, usedforsecurity=False).digest()
        if len(self._offsets) >= self._most_keys and digest not in self._offsets:
            return False
        self._offsets[digest] = offset
        return True

    def get(self, key: bytes) -> int:
        """The offset of the key's latest record; -1, before all, if the map has none."""
        return self._offsets.get(md5(key, usedforsecurity=False).digest(), -1)


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
        offsets = OffsetMap(self.most_keys)
        offsets.end_offset = self.dirty_offset
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
            if header is not None and is_judged(header):
                for record in slices_of(_records_in(data, header), header.record_count):
                    offset = header.base_offset + record.offset_delta
                    if not offset % _RECORDS_A_STEP:
                        self.pace.step()
                    if record.key is not None and offset >= self.dirty_offset and not offsets.put(record.key, offset):
                        return False
            if header is not None:
                offsets.end_offset = max(offsets.end_offset, header.next_offset)
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
            for source in group:
                for data, header in self._batches(source):
                    kept = data if header is None or not is_judged(header) else self._filter(data, header, offsets)
                    if kept is not None:
                        writer.add(kept)
            writer.finish(self.folder.open(group[-1].log_name))
        except BaseException:
            segment.delete_files(CLEANED_SUFFIX)
            raise
        return segment

    def _filter(self, data: memoryview, header: BatchHeader, offsets: OffsetMap) -> memoryview | bytearray | None:
        """What stays of a batch, None if nothing does."""
        body = _records_in(data, header)
        keeps_tombstones = header.delete_horizon_ms is None or self.now_ms < header.delete_horizon_ms
        kept = []
        for number, record in enumerate(slices_of(body, header.record_count)):
            if not number % _RECORDS_A_STEP:
                self.pace.step()
            offset = header.base_offset + record.offset_delta
            if offset >= offsets.end_offset or (
                record.key is not None and offset >= offsets.get(record.key) and (keeps_tombstones or not record.is_tombstone)
            ):
                kept.append(record)
        self.totals.records_before += header.record_count
        self.totals.records_after += len(kept)
        if not kept:
            return _emptied(header) if self._is_needed(header) else None
        if header.delete_horizon_ms is None and any(record.is_tombstone for record in kept):
            return _dated(data, header, kept, self.now_ms + self.config.delete_retention_ms)
        return data if len(kept) == header.record_count else _reduced(data, header, body, kept)

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


def _records_in(data: memoryview, header: BatchHeader) -> bytes:
    body = data[HEADER_SIZE : header.size_bytes]
    if header.compression is Compression.NONE:
        return bytes(body)
    return decompress(header.compression, body, limit_bytes=MOST_CONTENT_BYTES)


def _reduced(data: memoryview, header: BatchHeader, body: bytes, kept: Sequence[RecordSlice]) -> bytearray:
    """The batch with some of its records only; these, and the rest of its header, as they are."""
    records = b"".join([body[record.start : record.end] for record in kept])
    batch = bytearray(data[:HEADER_SIZE])
    batch += compress(header.compression, records, None)
    _COUNT.pack_into(batch, _RECORD_COUNT_AT, len(kept))
    _COUNT.pack_into(batch, LENGTH_OFFSET, len(batch) - LOG_OVERHEAD)
    max_timestamp = header.max_timestamp
    if header.timestamp_type is TimestampType.CREATE_TIME:
        max_timestamp = header.base_timestamp + max(record.timestamp_delta for record in kept)
    write_timestamp(batch, 0, BatchHeader(batch), header.timestamp_type, max_timestamp)
    return batch


def _dated(data: memoryview, header: BatchHeader, kept: Sequence[RecordSlice], delete_horizon_ms: int) -> bytearray:
    """The same, with the time from which on its tombstones may go."""
    offset_deltas = {record.offset_delta for record in kept}
    records = [record for record in iterate_records(data) if record.offset - header.base_offset in offset_deltas]
    return _rebuilt(header, records, delete_horizon_ms)


def _rebuilt(header: BatchHeader, records: Iterable[Record], delete_horizon_ms: int | None) -> bytearray:
    return build_batch(
        records,
        base_offset=header.base_offset,
        compression=header.compression,
        timestamp_type=header.timestamp_type,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.partition_leader_epoch,
        delete_horizon_ms=delete_horizon_ms,
        keeps_offsets=True,
        last_offset=header.last_offset,
    )


def _emptied(header: BatchHeader) -> bytearray:
    batch = _rebuilt(header, (), None)
    write_timestamp(batch, 0, BatchHeader(batch), header.timestamp_type, header.max_timestamp)
    return batch
