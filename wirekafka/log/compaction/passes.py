"""The two passes of a compaction, which keep the last record of each key.

How it works: both passes read sealed segments. The first pass reads the part of the log that is not compacted yet and
notes the offset of the last record of each key. The second pass reads all segments up to the end of that part and copies the
records that are the last of their key; it joins small neighbouring segments. A batch keeps its base offset and its last offset
even if it loses records, so offsets and sequence numbers do not change. A tombstone first gets a delete horizon and is dropped
after that time, so that a consumer that has read the value has time to read the tombstone.

The first pass reads keys. The second pass reads keys only in the part that the first pass has not read; elsewhere the offset
of a record says whether the record stays. If all records of a batch stay, the second pass copies the batch unchanged. If no
record stays, the second pass does not decompress the batch.

Records of aborted transactions are dropped and hide no earlier value. The marker of a transaction gets a delete horizon once no
record of the transaction is left, and is dropped after that time, as a tombstone is. The last batch of a producer stays even
without records: the next batch is compared with its sequence number, and its epoch fences older producers. Message sets of old
formats are copied unchanged.

Rules of this file: a compaction runs in a thread. It reads files that do not change, and writes only files of its own, whose
names end in `.cleaned`. Every few records it calls `Pace.step`, which makes the thread rest and may end the compaction. A batch
gets a new checksum only after its present checksum was checked: corrupt data never gets a valid checksum.

Differs from Apache Kafka:
    Message sets of formats 0 and 1, which only folders of old brokers hold, are not compacted.
    A key takes 200 bytes of `log.cleaner.dedupe.buffer.size`; in Kafka it takes 24. The default holds 600,000 keys; if the part
    that is not compacted yet has more keys, the compaction takes several rounds. Keys of less than 64 bytes are compared
    themselves; Kafka compares their MD5 digests.
    The checksum of a batch is checked before the batch is rewritten. If the batch is damaged, the partition goes offline. Kafka
    gives the batch a new checksum, or, if the batch cannot be read, does not compact the partition any more.

Source: kafka.log.Cleaner, MemoryRecords.filterTo; KIP-534 (delete horizon).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from wirekafka.config import LogConfig
from wirekafka.log.compaction.cleaned_transactions import CleanedTransactions
from wirekafka.log.compaction.offset_map import STAYS_AS_TOMBSTONE, OffsetMap, Window
from wirekafka.log.compaction.record_slices import heads_in
from wirekafka.log.compaction.rewriting import emptied, rewritten
from wirekafka.log.index import Index
from wirekafka.log.positions import BadBatchError, batches_in
from wirekafka.log.segment import MOST_RELATIVE_OFFSET, Segment
from wirekafka.log.segment_files import CLEANED_SUFFIX
from wirekafka.log.storage import FileHandle, Folder, HandlePool
from wirekafka.log.transaction_index import AbortedTransaction, TransactionIndex
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import GREATEST_INT64, HEADER_SIZE, BatchHeader, check_crc
from wirekafka.wire.compression import MOST_CONTENT_BYTES, Compression, decompress

_MAGIC = 2
_MAGIC_AT = 16
_WRITE_BYTES = 1 << 20
_WITHOUT_TOMBSTONES = bytes.maketrans(bytes((STAYS_AS_TOMBSTONE,)), b"\0")


class Pace(Protocol):
    """Limits the rate of compaction, so that it does not delay requests."""

    def step(self, size_bytes: int = 0) -> None:
        """Rests if the thread has to, and raises to end the work; called every few records.

        Args:
            size_bytes: the bytes that were read or written.
        """


class LastRecord(NamedTuple):
    """The last record of a producer in a log.

    Attributes:
        offset: the offset of the producer's last record with this epoch; None if only a marker has this epoch.
    """

    offset: int | None
    epoch: int


@dataclass(slots=True)
class Totals:
    """The bytes and records that a compaction has read and kept."""

    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0


@dataclass(slots=True)
class Compaction:
    """One compaction of one log, as the loop has planned it.

    Attributes:
        folder: the folder of the log.
        segments: all segments from the first one to the last one that may be compacted.
        dirty_offset: records before this offset were compacted before.
        end_offset: the base offset of the first segment that may not be compacted.
        last_records: the last record of each active producer, by producer id; its batch stays.
        aborted: the aborted transactions whose records may be in the segments.
        truncation_count: that of the log.
        now_ms: the time at which the compaction began.
        most_keys: the keys that the offset map holds at most.
    """

    folder: Folder
    config: LogConfig
    segments: Sequence[Segment]
    dirty_offset: int
    end_offset: int
    last_records: Mapping[int, LastRecord]
    aborted: Sequence[AbortedTransaction]
    truncation_count: int
    now_ms: int
    most_keys: int
    pace: Pace
    totals: Totals = field(default_factory=Totals)

    def build_map(self) -> OffsetMap:
        """Notes the last offset of each key from `dirty_offset` on, until the map is full.

        Raises:
            OSError: a segment was deleted or cannot be read.
            BadBatchError: a segment is damaged.
            KafkaError: a batch cannot be decoded.
        """
        offsets = OffsetMap(self.most_keys, self.dirty_offset)
        transactions = CleanedTransactions(entry for entry in self.aborted if entry.last_offset >= self.dirty_offset)
        for segment, end in self._with_ends(self.segments):
            if end <= self.dirty_offset:
                continue
            with _naming(segment):
                is_noted = self._note_keys(offsets, segment, transactions)
            if not is_noted:
                return offsets
            offsets.end_offset = end
        return offsets

    def _with_ends(self, segments: Sequence[Segment]) -> Iterator[tuple[Segment, int]]:
        ends = [segment.base_offset for segment in segments[1:]]
        return zip(segments, [*ends, self.end_offset], strict=True)

    def _note_keys(self, offsets: OffsetMap, segment: Segment, transactions: CleanedTransactions) -> bool:
        """Notes the keys of a segment; returns False if the map is full."""
        for data, header in self._batches(segment):
            if header is None or header.next_offset <= self.dirty_offset:
                continue
            if header.is_control:
                transactions.end(header, data)
            elif not transactions.is_aborted(header) and not self._note_batch(offsets, data, header):
                return False
            offsets.end_offset = max(offsets.end_offset, header.next_offset)
        return True

    def _note_batch(self, offsets: OffsetMap, data: memoryview, header: BatchHeader) -> bool:
        """Notes the keys of a batch; returns False if the map is full. Then `offsets.end_offset` may be within the batch."""
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
            noted = offsets.put(keys, found, heads.tombstones, has_nulls=heads.has_null_keys or is_half_clean)
            if noted < len(keys):
                # The rest of the batch is compacted in the next round.
                offsets.end_offset = max(offsets.end_offset, found[noted])
                return False
        return True

    def _batches(self, segment: Segment) -> Iterator[tuple[memoryview, BatchHeader | None]]:
        storage = self.folder.storage
        file = self.folder.open(segment.log_name)
        least_offset = segment.base_offset
        for data in batches_in(storage, file, 0, segment.size):
            self.pace.step(len(data))
            header = BatchHeader(data) if data[_MAGIC_AT] == _MAGIC else None
            if header is not None:
                # The checksum does not cover the offset.
                if header.base_offset < least_offset:
                    raise BadBatchError(f"the batch at offset {header.base_offset} is after the batch of {least_offset - 1}")
                least_offset = header.next_offset
            yield data, header

    def groups(self, offsets: OffsetMap) -> Iterator[list[Segment]]:
        """Yields groups of neighbouring segments up to the end of the offset map; each group becomes one segment.

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

    def rewrite(self, group: Sequence[Segment], record_filter: RecordFilter, pool: HandlePool) -> Segment:
        """Copies the records that stay of a group of segments into a new segment, whose file names end in `.cleaned`.

        Args:
            record_filter: has filtered all segments before the group, and no others.

        Durability: the files of the new segment are on the disk. After an error they are deleted.

        Raises:
            OSError: a file cannot be read or written.
            BadBatchError: a segment is damaged.
            KafkaError: a batch cannot be decoded.
        """
        segment = Segment(self.folder, pool, group[0].base_offset, created_ms=self.now_ms, suffix=CLEANED_SUFFIX)
        try:
            writer = _Writer(segment, self)
            for source in group:
                with _naming(source):
                    for data, header in self._batches(source):
                        kept = data if header is None else record_filter.kept_of(data, header, segment.transaction_index)
                        if kept is not None:
                            writer.add(kept)
            writer.finish(self.folder.open(group[-1].log_name))
        except BaseException:
            segment.delete_files()
            raise
        return segment


@contextmanager
def _naming(segment: Segment) -> Iterator[None]:
    """Adds the segment to a `BadBatchError`."""
    try:
        yield
    except BadBatchError as error:
        raise segment.damaged(error) from None


class RecordFilter:
    """Decides in the second pass which records of each batch stay. The caller gives it the batches in the order of the log."""

    def __init__(self, work: Compaction, offsets: OffsetMap) -> None:
        self._work = work
        self._offsets = offsets
        self._window = Window(offsets, work.pace.step)
        self._transactions = CleanedTransactions(work.aborted)

    def kept_of(self, data: memoryview, header: BatchHeader, index: TransactionIndex) -> memoryview | bytearray | None:
        """Returns the batch with the records that stay; None if the batch is dropped.

        Args:
            index: the transaction index of the new segment; gets the aborted transactions that had records before this pass.
        """
        work = self._work
        work.totals.records_before += header.record_count
        if header.is_control:
            kept, kept_count = self._kept_of_marker(data, header, index)
        elif self._transactions.is_aborted(header):
            kept, kept_count = None, 0
        else:
            kept, kept_count = self._kept_of_records(data, header)
        work.totals.records_after += kept_count
        if kept is None and self._is_needed(header):
            return emptied(header)
        return kept

    def _kept_of_marker(
        self, data: memoryview, header: BatchHeader, index: TransactionIndex
    ) -> tuple[memoryview | bytearray | None, int]:
        _check(data, header)
        is_free, aborted = self._transactions.end(header, data)
        if aborted is not None:
            index.add(aborted)
        count = header.record_count
        horizon_ms = header.delete_horizon_ms
        if not count or (is_free and horizon_ms is not None and horizon_ms <= self._work.now_ms):
            return None, 0
        if not is_free or horizon_ms is not None:
            return data, count
        return self._rewritten(data, header, _records_in(data, header), b"\1" * count, has_date=True), count

    def _kept_of_records(self, data: memoryview, header: BatchHeader) -> tuple[memoryview | bytearray | None, int]:
        work = self._work
        is_dense = header.record_count == header.last_offset_delta + 1
        marks = self._window.marks(header.base_offset, header.next_offset) if is_dense else None
        body: bytes | None = None
        if marks is None:
            body = _records_in(data, header)
            marks = self._marks_by_keys(body, header)
        if header.delete_horizon_ms is not None and work.now_ms >= header.delete_horizon_ms:
            marks = marks.translate(_WITHOUT_TOMBSTONES)
        count = header.record_count - marks.count(0)
        if not count:
            return None, 0
        gets_date = header.delete_horizon_ms is None and STAYS_AS_TOMBSTONE in marks
        if count == header.record_count and not gets_date:
            return data, count
        if body is None:
            body = _records_in(data, header)
        return self._rewritten(data, header, body, marks, has_date=gets_date), count

    def _rewritten(self, data: memoryview, header: BatchHeader, body: bytes, marks: bytes, *, has_date: bool) -> bytearray:
        work = self._work
        delete_horizon_ms = min(work.now_ms + work.config.delete_retention_ms, GREATEST_INT64) if has_date else None
        return rewritten(data, header, body, marks, delete_horizon_ms=delete_horizon_ms, step=work.pace.step)

    def _marks_by_keys(self, body: bytes, header: BatchHeader) -> bytes:
        marks = []
        for heads in heads_in(body, header.record_count):
            self._work.pace.step()
            marks.append(self._offsets.marks(heads.keys, offsets_of(header, heads.offset_deltas), heads.tombstones))
        return b"".join(marks)

    def _is_needed(self, header: BatchHeader) -> bool:
        """Returns whether the batch stays even without records.

        The batch stays in three cases: it has the last sequence number of its producer; it is a marker with the producer's
        epoch, and no record has that epoch; or it is the last batch of the compaction and preserves the log's offsets.
        """
        last = self._work.last_records.get(header.producer_id) if header.has_producer_id else None
        if last is None:
            is_last = False
        elif last.offset is not None:
            is_last = header.last_offset == last.offset
        else:
            is_last = header.is_control and header.producer_epoch == last.epoch
        return is_last or header.next_offset == self._work.end_offset


class _Writer:
    """Writes batches into a segment's `.cleaned` file."""

    def __init__(self, segment: Segment, work: Compaction) -> None:
        self._segment = segment
        self._work = work
        self._folder = segment.folder
        self._file: FileHandle = self._folder.open(segment.log_name, create=True)
        self._folder.storage.truncate(self._file.fd, 0)
        self._buffer = bytearray()
        self._written = 0

    def add(self, data: memoryview | bytearray) -> None:
        segment = self._segment
        header = BatchHeader(data) if data[_MAGIC_AT] == _MAGIC else None
        if header is not None:
            # An empty batch keeps its timestamp for the producer state. The time index ignores it, as no record has it.
            timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
            interval = self._work.config.index_interval_bytes
            segment.note(segment.size, len(data), header.last_offset, timestamp, interval)
        segment.size += len(data)
        self._buffer += data
        if len(self._buffer) >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        self._segment.contents.written += 1
        self._folder.storage.write(self._file.fd, self._buffer, self._written)
        self._written += len(self._buffer)
        self._work.pace.step(len(self._buffer))
        self._buffer.clear()

    def finish(self, newest: FileHandle) -> None:
        """Writes the file and its indexes to the disk, and gives the file the modification time of `newest`."""
        self._write()
        storage, segment = self._folder.storage, self._segment
        segment.note_max_timestamp()
        storage.set_modified_ns(self._file.fd, storage.modified_ns(newest.fd))
        self._folder.sync_file(segment.log_name, self._file)
        indexes: list[Index | TransactionIndex] = [segment.offset_index, segment.time_index]
        if segment.transaction_index.count:
            indexes.append(segment.transaction_index)
        for index in indexes:
            index.save()
            self._folder.sync_file(index.name, self._folder.open(index.name))
        segment.mark_saved()


def offsets_of(header: BatchHeader, deltas: Sequence[int]) -> Sequence[int]:
    """Returns the offsets of neighbouring records; a range if the offsets have no gaps."""
    first = header.base_offset + deltas[0]
    if deltas[-1] - deltas[0] + 1 == len(deltas) and deltas == list(range(deltas[0], deltas[-1] + 1)):
        return range(first, first + len(deltas))
    return [header.base_offset + delta for delta in deltas]


def _records_in(data: memoryview, header: BatchHeader) -> bytes:
    """Returns the records of a batch, uncompressed.

    Raises:
        BadBatchError: the checksum of the batch is wrong.
        KafkaError: the batch cannot be decompressed.
    """
    _check(data, header)
    body = data[HEADER_SIZE : header.size_bytes]
    if header.compression is Compression.NONE:
        return bytes(body)
    return decompress(header.compression, body, limit_bytes=MOST_CONTENT_BYTES)


def _check(data: memoryview, header: BatchHeader) -> None:
    if not check_crc(data, 0, header):
        raise BadBatchError(f"the batch at offset {header.base_offset} has a wrong checksum")
