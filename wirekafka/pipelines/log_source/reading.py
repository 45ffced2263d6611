"""Reads the records of a split as Arrow batches, whatever the broker does to the files meanwhile.

How it works: the segment that holds the next offset is opened and read up to its end, then the segment after it, until the split
ends. The hint of the split saves the search for the first batch; it is used only if the batch that it names is still there.
Compaction and retention replace and delete files: an open file stays readable, and the next file is found by its offset. A reader
returns each offset at most once. It does not return records that compaction or retention removed before it came to them.

Rules of this file: no lock is taken, and no file is written. An Arrow batch has at most `most_records` records, and at most
`most_bytes` uncompressed unless one batch of the log has more.

Source: org.apache.kafka.clients.consumer.internals.CompletedFetch (which records read_committed skips).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from wirekafka.errors import KafkaError
from wirekafka.inspection.batches import StoredBatch, scan
from wirekafka.inspection.files import DamageError, DataFile
from wirekafka.pipelines.log_source.columns import BatchPlace, Bounds, ColumnBuilder
from wirekafka.pipelines.log_source.plan import Split
from wirekafka.pipelines.log_source.record_bytes import Content
from wirekafka.pipelines.log_source.segments import (
    SegmentFile,
    batch_at,
    open_segment,
    position_before,
    read_offset_index,
)
from wirekafka.pipelines.log_source.transactions import AbortedBatches
from wirekafka.wire.batch import COMPRESSION_MASK, HEADER_SIZE, BatchHeader
from wirekafka.wire.compression import MOST_CONTENT_BYTES, decompress

_LEAST_BYTES_OF_A_CHUNK = 1 << 20
"""Records of less than this are copied together with those of the next chunk, so that Arrow batches do not get small."""


@dataclass(slots=True, frozen=True)
class Reading:
    """How splits are read.

    Attributes:
        first_timestamp, end_timestamp: timestamps in ms from the first up to the second, excluded; None is no bound.
        is_committed: without control records and records of aborted transactions.
        has_crc_checks: whether the checksum of each batch is checked.
        most_records, most_bytes: an Arrow batch ends at one of these limits.
    """

    first_timestamp: int | None = None
    end_timestamp: int | None = None
    is_committed: bool = False
    has_crc_checks: bool = True
    most_records: int = 1 << 16
    most_bytes: int = 16 << 20


def read_split(split: Split, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yields the wanted records of a split, in the order of their offsets.

    Raises:
        DamageError: a batch is damaged; names the file, the position and the offset.
        OSError: a file cannot be read, or the partition was deleted or moved.
    """
    bounds = Bounds(split.first_offset, split.end_offset, reading.first_timestamp, reading.end_timestamp)
    builder = ColumnBuilder(split.topic, split.partition)
    aborted = AbortedBatches(split.aborted)
    for file, batch in _batches(split):
        if not _is_wanted(batch.header, reading, aborted):
            continue
        content = _content(file, batch, reading)
        if builder.record_count and _is_full(builder, content, reading):
            yield from _slices(builder.take(bounds), reading.most_records)
        _add(builder, file, batch, content)
        if builder.record_count >= reading.most_records or builder.size_bytes >= reading.most_bytes:
            yield from _slices(builder.take(bounds), reading.most_records)
    yield from _slices(builder.take(bounds), reading.most_records)


def _is_full(builder: ColumnBuilder, content: Content, reading: Reading) -> bool:
    """Whether an Arrow batch ends before this batch: at the limits, or with a chunk of the file, so that no record is copied."""
    if builder.size_bytes + content.end - content.start > reading.most_bytes:
        return True
    is_chunk_over = builder.chunk is not None and builder.chunk is not content.data
    return is_chunk_over and builder.size_bytes >= _LEAST_BYTES_OF_A_CHUNK


def _slices(columns: pa.RecordBatch, most_records: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, columns.num_rows, most_records):
        yield columns.slice(first, most_records)


def _batches(split: Split) -> Iterator[tuple[DataFile, StoredBatch]]:
    """Yields the batches that may hold offsets of the split, each with its file."""
    next_offset = split.first_offset
    while next_offset < split.end_offset:
        opened = open_segment(split.folder, next_offset)
        if opened is None:
            return
        segment, file, next_base_offset = opened
        position = _first_position(split, segment, file, next_offset)
        if position < file.size:
            for batch in _scan(file, position, next_offset, is_sealed=next_base_offset is not None):
                if batch.header is not None and batch.place.base_offset >= split.end_offset:
                    return
                next_offset = batch.place.last_offset + 1
                yield file, batch
                if next_offset >= split.end_offset:
                    return
        if next_base_offset is None:
            return
        next_offset = max(next_offset, next_base_offset)


def _scan(file: DataFile, position: int, next_offset: int, *, is_sealed: bool) -> Iterator[StoredBatch]:
    """Yields the batches of a file from a position on; ends before a torn batch of the last segment, which has a writer."""
    try:
        yield from scan(file, next_offset, advance=_ignore, from_position=position, from_offset=next_offset)
    except DamageError as damage:
        if is_sealed or not damage.is_torn:
            raise


def _ignore(size_bytes: int) -> None:
    pass


def _first_position(split: Split, segment: SegmentFile, file: DataFile, offset: int) -> int:
    """Returns the position of a batch from which the record at `offset` is found."""
    hint = split.hint
    if hint is not None and offset == split.first_offset and segment.base_offset == hint.base_offset:
        place = batch_at(file, hint.position)
        if place is not None and place.last_offset == hint.last_offset:
            return hint.position
    return position_before(file, segment.base_offset, read_offset_index(split.folder, segment.base_offset), offset)


def _is_wanted(header: BatchHeader | None, reading: Reading, aborted: AbortedBatches) -> bool:
    if header is None:
        return True
    if reading.is_committed and (header.is_control or aborted.has(header)):
        return False
    return reading.first_timestamp is None or header.max_timestamp >= reading.first_timestamp


def _content(file: DataFile, batch: StoredBatch, reading: Reading) -> Content:
    """Returns the uncompressed records of a batch; the stored bytes for formats 0 and 1."""
    if reading.has_crc_checks and not batch.has_right_crc():
        raise _damage(file, batch, f"the checksum is wrong: {batch.stored_crc:#010x} in the header is not that of the bytes")
    header, chunk = batch.header, batch.data.obj
    assert isinstance(chunk, bytes), "a chunk is read from a file"
    start = batch.chunk_at + (HEADER_SIZE if header is not None else 0)
    if header is None or not header.attributes & COMPRESSION_MASK:
        return Content(chunk, start, batch.chunk_at + batch.place.size_bytes)
    try:
        body = decompress(header.compression, batch.data[HEADER_SIZE:], limit_bytes=MOST_CONTENT_BYTES)
        return Content(body, 0, len(body))
    except KafkaError as error:
        raise _damage(file, batch, error.message or error.code.name) from None


def _add(builder: ColumnBuilder, file: DataFile, batch: StoredBatch, content: Content) -> None:
    place = BatchPlace(file.path, batch.place.position, batch.place.base_offset)
    if batch.header is not None:
        builder.add(batch.header, content, place)
        return
    try:
        records = list(batch.records())
        compression = batch.compression
    except KafkaError as error:
        raise _damage(file, batch, error.message or error.code.name) from None
    builder.add_old_records(records, batch.magic, compression, is_append_time=batch.is_append_time, place=place)


def _damage(file: DataFile, batch: StoredBatch, reason: str) -> DamageError:
    return DamageError(file.path, reason, position=batch.place.position, offset=batch.place.base_offset)
