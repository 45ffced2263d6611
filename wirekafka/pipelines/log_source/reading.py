"""Reads the records of a split as Arrow batches, whatever the broker does to the files meanwhile.

How it works: the segment that holds the next offset is opened and read up to its end, then the segment after it, until the split
ends. Runs of small batches are read at once (`runs`), other batches one by one. The hint of the split saves the search for the
first batch; it is used only if the batch that it names is still there. Compaction and retention replace and delete files: an open
file stays readable, and the next file is found by its offset. A reader returns each offset at most once. It does not return
records that compaction or retention removed before it came to them.

Rules of this file: no lock is taken, and no file is written. Memory does not grow with what a file claims: a batch of the log is
refused if it has more than `most_batch_bytes`, stored or uncompressed, and its records become Arrow batches piece by piece.

Source: org.apache.kafka.clients.consumer.internals.CompletedFetch (which records read_committed skips).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.inspection.batches import BatchScanner, BatchTooLargeError, StoredBatch
from wirekafka.inspection.files import DamageError, DataFile
from wirekafka.pipelines.log_source.columns import BatchPlace, Bounds, ColumnBuilder, Limits, Piece, pieces_of, pieces_of_old
from wirekafka.pipelines.log_source.plan import Split
from wirekafka.pipelines.log_source.record_bytes import Content
from wirekafka.pipelines.log_source.runs import Wanted, find_run
from wirekafka.pipelines.log_source.segments import (
    MOST_BATCH_BYTES,
    SegmentFile,
    batch_at,
    open_segment,
    position_before,
    read_offset_index,
)
from wirekafka.pipelines.log_source.transactions import AbortedBatches
from wirekafka.wire.batch import COMPRESSION_MASK, HEADER_SIZE, BatchHeader
from wirekafka.wire.compression import Compression, decompress_stream, too_large

_LEAST_BYTES_OF_A_CHUNK = 1 << 20
"""Records of less than this are copied together with those of the next chunk, so that Arrow batches do not get small."""
_SHARE_OF_OLD_RECORDS = 8
"""Wrappers of formats 0 and 1 may hold this part of the limit, because each of their records takes a Python object."""


@dataclass(slots=True, frozen=True)
class Reading:
    """How splits are read.

    Attributes:
        first_timestamp, end_timestamp: timestamps in ms from the first up to the second, excluded; None is no bound.
        is_committed: without control records and records of aborted transactions.
        has_crc_checks: whether the checksum of each batch is checked.
        most_batch_bytes: a batch of the log with more bytes, or with more uncompressed bytes of records, is refused.
        limits: an Arrow batch ends at one of these limits.
    """

    first_timestamp: int | None = None
    end_timestamp: int | None = None
    is_committed: bool = False
    has_crc_checks: bool = True
    most_batch_bytes: int = MOST_BATCH_BYTES
    limits: Limits = Limits()  # noqa: RUF009 - it is immutable


def read_split(split: Split, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yields the wanted records of a split, in the order of their offsets.

    Raises:
        DamageError: a batch is damaged or too large; names the file, the position and the offset.
        OSError: a file cannot be read, or the partition was deleted or moved.
    """
    bounds = Bounds(split.first_offset, split.end_offset, reading.first_timestamp, reading.end_timestamp)
    builder = ColumnBuilder(split.topic, split.partition)
    for piece in _pieces_of_split(split, reading):
        if builder.record_count and _is_full(builder, piece, reading.limits):
            yield from _take(builder, bounds)
        builder.add(piece)
    yield from _take(builder, bounds)


def _is_full(builder: ColumnBuilder, piece: Piece, limits: Limits) -> bool:
    """Whether an Arrow batch ends before this piece: at the limits, or with a chunk of the file, so that no record is copied."""
    content = piece.content
    if builder.size_bytes + content.end - content.start > limits.most_bytes:
        return True
    if builder.record_count + len(piece.starts) > limits.most_records:
        return True
    is_chunk_over = builder.chunk is not None and builder.chunk is not content.data
    return is_chunk_over and builder.size_bytes >= _LEAST_BYTES_OF_A_CHUNK


def _take(builder: ColumnBuilder, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    columns = builder.take(bounds)
    if columns.num_rows:
        yield columns


def _pieces_of_split(split: Split, reading: Reading) -> Iterator[Piece]:
    """Yields the records of the wanted batches that may hold offsets of the split."""
    aborted = AbortedBatches(split.aborted)
    next_offset = split.first_offset
    while next_offset < split.end_offset:
        opened = open_segment(split.folder, next_offset)
        if opened is None:
            return
        segment, file, next_base_offset = opened
        position = _first_position(split, segment, file, next_offset)
        scanner = BatchScanner(file, next_offset, position=position, most_batch_bytes=reading.most_batch_bytes)
        wanted = Wanted(
            next_offset,
            split.end_offset,
            reading.first_timestamp,
            aborted if reading.is_committed else None,
            reading.has_crc_checks,
            reading.limits,
        )
        try:
            yield from _pieces_of_file(file, scanner, wanted, reading)
        except DamageError as damage:
            # A torn batch of the last segment has a writer.
            if next_base_offset is not None or not damage.is_torn:
                raise
        if next_base_offset is None:
            return
        next_offset = max(scanner.next_offset, next_base_offset)


def _pieces_of_file(file: DataFile, scanner: BatchScanner, wanted: Wanted, reading: Reading) -> Iterator[Piece]:
    """Yields the records of the wanted batches that follow: of runs of small batches at once, of others one by one."""
    while scanner.position < file.size and scanner.next_offset < wanted.end_offset:
        passed = find_run(file.path, scanner.chunk, scanner.chunk_position, scanner.position - scanner.chunk_position, wanted)
        if passed is not None:
            scanner.skip_to(scanner.chunk_position + passed.end, passed.next_offset)
            if passed.run is not None:
                yield passed.run
            continue
        batch = scanner.read(wanted.from_offset)
        if batch is None:
            continue
        if batch.header is not None and batch.place.base_offset >= wanted.end_offset:
            return
        if _is_wanted(batch.header, wanted):
            yield from _pieces(file, batch, reading)


def _first_position(split: Split, segment: SegmentFile, file: DataFile, offset: int) -> int:
    """Returns the position of a batch from which the record at `offset` is found."""
    hint = split.hint
    if hint is not None and offset == split.first_offset and segment.base_offset == hint.base_offset:
        place = batch_at(file, hint.position)
        if place is not None and place.last_offset == hint.last_offset:
            return hint.position
    return position_before(file, segment.base_offset, read_offset_index(split.folder, segment.base_offset), offset)


def _is_wanted(header: BatchHeader | None, wanted: Wanted) -> bool:
    if header is None:
        return True
    if wanted.aborted is not None and (header.is_control or wanted.aborted.has(header)):
        return False
    return wanted.first_timestamp is None or header.max_timestamp >= wanted.first_timestamp


def _pieces(file: DataFile, batch: StoredBatch, reading: Reading) -> Iterator[Piece]:
    """Yields the records of a batch.

    Raises:
        DamageError: its checksum is wrong, or the records cannot be read.
        BatchTooLargeError: the records have more uncompressed bytes than are read.
    """
    if reading.has_crc_checks and not batch.has_right_crc():
        raise _damage(file, batch, f"the checksum is wrong: {batch.stored_crc:#010x} in the header is not that of the bytes")
    place = BatchPlace(file.path, batch.place.position, batch.place.base_offset)
    try:
        if batch.header is not None:
            yield from pieces_of(batch.header, _content(batch, reading), place, reading.limits)
            return
        records = list(batch.records(limit_bytes=reading.most_batch_bytes // _SHARE_OF_OLD_RECORDS))
        compression = batch.compression
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise BatchTooLargeError(file.path, batch.place, reading.most_batch_bytes) from None
        raise _damage(file, batch, error.message or error.code.name) from None
    yield from pieces_of_old(
        records, batch.magic, compression, is_append_time=batch.is_append_time, place=place, limits=reading.limits
    )


def _content(batch: StoredBatch, reading: Reading) -> Content:
    """Returns the uncompressed records of a batch of format 2."""
    header, chunk = batch.header, batch.data.obj
    assert header is not None
    assert isinstance(chunk, bytes), "a chunk is read from a file"
    if not header.attributes & COMPRESSION_MASK:
        return Content(chunk, batch.chunk_at + HEADER_SIZE, batch.chunk_at + batch.place.size_bytes)
    body = _decompress(header.compression, batch.data[HEADER_SIZE:], reading.most_batch_bytes)
    return Content(body, 0, len(body))


def _decompress(compression: Compression, data: memoryview, limit_bytes: int) -> bytes | bytearray:
    """Returns the content; unlike `decompress`, it needs no memory beside it, which counts for large batches.

    Raises:
        KafkaError: as `decompress`.
    """
    body: bytes | bytearray = b""
    for chunk in decompress_stream(compression, data, limit_bytes=limit_bytes):
        if len(body) + len(chunk) > limit_bytes:
            raise too_large(limit_bytes)
        if not body:
            body = bytes(chunk)  # most batches have one chunk, which is not copied
        elif isinstance(body, bytearray):
            body += chunk
        else:
            body = bytearray(body) + chunk
    return body


def _damage(file: DataFile, batch: StoredBatch, reason: str) -> DamageError:
    return DamageError(file.path, reason, position=batch.place.position, offset=batch.place.base_offset)
