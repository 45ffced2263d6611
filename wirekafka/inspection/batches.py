"""Reads the batches of a segment's file in order, in any format, and checks each.

How it works: `scan` follows the framing only, so that damage inside a batch does not hide the batches after it. `check` reads the
content of a batch. The file is read in chunks. The checksum of a batch that is larger than a chunk is computed in pieces first,
because a wrong length could require gigabytes of memory.

Source: org.apache.kafka.common.record.{FileLogInputStream, DefaultRecordBatch, AbstractLegacyRecordBatch, ControlRecordType}.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from wirekafka.errors import KafkaError
from wirekafka.inspection.files import Advance, DamageError, DataFile
from wirekafka.log.positions import BatchPosition, read_place
from wirekafka.wire.batch import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    HEADER_SIZE,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    BatchHeader,
    Record,
    check_crc,
    iterate_records,
)
from wirekafka.wire.compression import MOST_CONTENT_BYTES, Compression, compression_of, decompress_stream
from wirekafka.wire.control import ABORT, COMMIT, CONTROL_KEY, END_MARKER_VALUE
from wirekafka.wire.legacy import COMPRESSION_MASK as LEGACY_COMPRESSION_MASK
from wirekafka.wire.legacy import CRC_OFFSET as LEGACY_CRC_OFFSET
from wirekafka.wire.legacy import LEAST_MESSAGE_BYTES, TIMESTAMP_TYPE_MASK, stored_records
from wirekafka.wire.walk import inspect_chunks, inspect_records

CHUNK_BYTES = 4 << 20
_LEAST_BYTES = LOG_OVERHEAD + LEAST_MESSAGE_BYTES
_CHECKSUM = struct.Struct(">I")
_LENGTH = struct.Struct(">i")
_ANY_COUNT = 1 << 62

CONTROL_TYPES = {
    ABORT: "abort",
    COMMIT: "commit",
    2: "leader_change",
    3: "snapshot_header",
    4: "snapshot_footer",
    5: "kraft_version",
    6: "kraft_voters",
}


class BatchTooLargeError(DamageError):
    """The header of a batch claims more bytes than the reader takes, or its records have more uncompressed bytes."""

    def __init__(self, path: str, place: BatchPosition, most_batch_bytes: int) -> None:
        is_claim = place.size_bytes > most_batch_bytes
        what = f"the header claims {place.size_bytes} bytes" if is_claim else "the uncompressed records take more bytes"
        reason = f"{what}; at most {most_batch_bytes} are read"
        super().__init__(path, reason, position=place.position, offset=place.base_offset)


@dataclass(slots=True)
class StoredBatch:
    """A batch of format 2, or a message of format 0 or 1, as the file has it.

    Attributes:
        place: its position; for a wrapper of format 0 or 1 the base offset is that of its last message.
        header: None for formats 0 and 1.
        data: all bytes of the batch.
        chunk_at: the position of the batch in the chunk of the file that `data` is a part of; `data.obj` is the chunk.
    """

    place: BatchPosition
    header: BatchHeader | None
    data: memoryview
    chunk_at: int = 0

    @property
    def magic(self) -> int:
        """The message format."""
        return self.data[MAGIC_OFFSET]

    @property
    def stored_crc(self) -> int:
        """The checksum in the header."""
        at = LEGACY_CRC_OFFSET if self.header is None else CRC_OFFSET
        return int(_CHECKSUM.unpack_from(self.data, at)[0])

    @property
    def compression(self) -> Compression:
        """The codec of its records.

        Raises:
            KafkaError: UNSUPPORTED_COMPRESSION_TYPE, there is no such codec.
        """
        return self.header.compression if self.header else compression_of(self._legacy_attributes & LEGACY_COMPRESSION_MASK)

    @property
    def is_append_time(self) -> bool:
        """Whether the broker set the timestamps."""
        return bool(self.header.timestamp_type if self.header else self._legacy_attributes & TIMESTAMP_TYPE_MASK)

    @property
    def _legacy_attributes(self) -> int:
        return self.data[MAGIC_OFFSET + 1]

    def has_right_crc(self) -> bool:
        """Whether the checksum is right."""
        if self.header is not None:
            return check_crc(self.data, 0, self.header)
        return zlib.crc32(self.data[MAGIC_OFFSET:]) == self.stored_crc

    def records(self, *, limit_bytes: int = MOST_CONTENT_BYTES) -> Iterator[Record]:
        """Yields the records, with their offsets.

        Args:
            limit_bytes: the most that compressed records may take uncompressed.

        Raises:
            KafkaError: they cannot be read.
        """
        if self.header is None:
            return iter(stored_records(self.data, limit_bytes=limit_bytes))
        return iterate_records(self.data, limit_bytes=limit_bytes)


def scan(
    file: DataFile, base_offset: int, *, advance: Advance, from_offset: int = 0, has_writer: bool = False
) -> Iterator[StoredBatch]:
    """Yields the batches of a file in order.

    Args:
        base_offset: the offset that an error names if no batch precedes the damage: that of the segment.
        advance: called with the number of bytes that were passed.
        from_offset: batches that end before this offset are skipped.
        has_writer: a broker may be appending, so a batch that was incomplete when the file was opened may be complete now.

    Raises:
        DamageError: no batch begins where one should, or it does not end within the file.
    """
    scanner = BatchScanner(file, base_offset, has_writer=has_writer)
    while scanner.position < file.size:
        position = scanner.position
        batch = scanner.read(from_offset)
        if batch is not None:
            yield batch
        advance(scanner.position - position)


class BatchScanner:
    """Goes from batch to batch of a file, which is read in chunks.

    Attributes:
        position: that of the next batch; there is one if this is less than the size of the file.
        next_offset: the least offset of the next batch; that of `position` before the first one.
        chunk: some bytes of the file.
        chunk_position: their position.
    """

    def __init__(
        self,
        file: DataFile,
        next_offset: int,
        *,
        position: int = 0,
        has_writer: bool = False,
        most_batch_bytes: int | None = None,
    ) -> None:
        """Begins at a batch.

        Args:
            next_offset: the offset that an error names if no batch precedes the damage.
            position: that of the first batch to read.
            has_writer: as for `scan`.
            most_batch_bytes: a batch whose header claims more is refused before it is read; None for no limit.
        """
        self._file = file
        self._has_writer = has_writer
        self._most_batch_bytes = most_batch_bytes
        self.position = self.chunk_position = position
        self.next_offset = next_offset
        self.chunk = b""

    def read(self, from_offset: int = 0) -> StoredBatch | None:
        """Returns the next batch, and passes it; None if it ends before the offset.

        Raises:
            DamageError: no batch begins here, or it does not end within the file.
            BatchTooLargeError: the batch has more than `most_batch_bytes`.
        """
        file, position, at = self._file, self.position, self.position - self.chunk_position
        if len(self.chunk) - at < HEADER_SIZE:
            self.chunk = file.read(min(CHUNK_BYTES, file.size - position), position)
            self.chunk_position, at = position, 0
        place = _place(file, memoryview(self.chunk)[at : at + HEADER_SIZE], position, self.next_offset)
        self._check_size(place)
        batch = None
        if not from_offset or place.last_offset >= from_offset:
            if at + place.size_bytes > len(self.chunk):
                self.chunk = _read_from(file, place)
                self.chunk_position, at = position, 0
            data = memoryview(self.chunk)[at : at + place.size_bytes]
            batch = StoredBatch(place, BatchHeader(data) if data[MAGIC_OFFSET] == MAGIC else None, data, at)
        self.skip_to(position + place.size_bytes, place.last_offset + 1)
        return batch

    def skip_to(self, position: int, next_offset: int) -> None:
        """Passes batches that the caller has read from the chunk."""
        self.position, self.next_offset = position, next_offset

    def _check_size(self, place: BatchPosition) -> None:
        file, position = self._file, place.position
        if self._most_batch_bytes is not None and place.size_bytes > self._most_batch_bytes:
            raise BatchTooLargeError(file.path, place, self._most_batch_bytes)
        if position + place.size_bytes > file.size:
            if not self._has_writer or position + place.size_bytes > file.current_size():
                reason = f"a batch of {place.size_bytes} bytes begins where the file has {file.size - position} left"
                raise DamageError(file.path, reason, position=position, offset=self.next_offset, is_torn=True)
            file.size = position + place.size_bytes


def _place(file: DataFile, head: memoryview, position: int, next_offset: int) -> BatchPosition:
    left = len(head) if len(head) < HEADER_SIZE else file.size - position
    padded = bytes(head).ljust(HEADER_SIZE, b"\0")
    place = read_place(padded, 0, position) if left >= _LEAST_BYTES else None
    if place is not None:
        return place
    if left < _LEAST_BYTES or file.is_zero_from(position):
        reason = f"{left} bytes after the last batch are {'too few for one' if left < _LEAST_BYTES else 'zeros'}"
        raise DamageError(file.path, reason, position=position, offset=next_offset, is_torn=True)
    magic, (length,) = padded[MAGIC_OFFSET], _LENGTH.unpack_from(padded, LENGTH_OFFSET)
    reason = f"no batch begins here: magic {magic}, length {length}"
    raise DamageError(file.path, reason, position=position, offset=next_offset)


def _read_from(file: DataFile, place: BatchPosition) -> bytes:
    """Returns a chunk that begins with the batch and holds all of it."""
    if place.size_bytes > CHUNK_BYTES:
        _check_in_pieces(file, place)
    wanted = max(place.size_bytes, min(CHUNK_BYTES, file.size - place.position))
    data = file.read(wanted, place.position)
    if len(data) < place.size_bytes:
        reason = "the file was cut while it was read"
        raise DamageError(file.path, reason, position=place.position, offset=place.base_offset, is_torn=True)
    return data


def _check_in_pieces(file: DataFile, place: BatchPosition) -> None:
    crc, expected = _checksums(file, place)
    if crc != expected:
        raise DamageError(file.path, _wrong_crc(expected), position=place.position, offset=place.base_offset)


def is_sound(file: DataFile, place: BatchPosition) -> bool:
    """Whether the checksum of a batch is right; the batch is read in pieces."""
    crc, expected = _checksums(file, place)
    return crc == expected


def _checksums(file: DataFile, place: BatchPosition) -> tuple[int, int]:
    """Returns the checksum of the bytes of a batch, and that in its header."""
    head = file.read(HEADER_SIZE, place.position)
    is_legacy = head[MAGIC_OFFSET] != MAGIC
    (expected,) = _CHECKSUM.unpack_from(head, LEGACY_CRC_OFFSET if is_legacy else CRC_OFFSET)
    start = place.position + (MAGIC_OFFSET if is_legacy else ATTRIBUTES_OFFSET)
    crc = 0
    for chunk in file.chunks(start, place.position + place.size_bytes, CHUNK_BYTES):
        crc = zlib.crc32(chunk, crc) if is_legacy else crc32c(chunk, crc)
    return crc, expected


def _wrong_crc(expected: int) -> str:
    return f"the checksum is wrong: {expected:#010x} in the header is not the checksum of the bytes"


@dataclass(slots=True)
class Content:
    """The number of records in a batch, and the offset of the first record; the base offset where offsets were not read."""

    record_count: int
    first_offset: int


def check(file: DataFile, batch: StoredBatch, *, reads_records: bool = False) -> Content:
    """Checks the content of a batch: its checksum, its count of records, its compressed block, and its control record.

    Args:
        reads_records: reads each record and its offset. Otherwise records of format 2 are only counted.

    Raises:
        DamageError: the batch is damaged.
    """
    try:
        if not batch.has_right_crc():
            _refuse(_wrong_crc(batch.stored_crc))
        if batch.header is None:
            return _check_records(batch)
        content = _count(batch.header, batch.data)
        if reads_records and content.record_count:
            _check_records(batch)
        if batch.header.is_control:
            _check_control(batch)
        return content
    except _RefusedError as refused:
        reason = str(refused)
    except KafkaError as error:
        reason = error.message or error.code.name
    raise DamageError(file.path, reason, position=batch.place.position, offset=batch.place.base_offset)


class _RefusedError(Exception):
    pass


def _refuse(reason: str) -> None:
    raise _RefusedError(reason)


def _count(header: BatchHeader, data: memoryview) -> Content:
    body = data[HEADER_SIZE:]
    compression = header.compression
    if not body and not header.record_count:
        # Compaction leaves the last batch of a producer without records.
        return Content(0, header.base_offset)
    if compression == Compression.NONE:
        found = inspect_records(body, base_timestamp=header.base_timestamp, most_count=_ANY_COUNT)
    else:
        chunks = decompress_stream(compression, body)
        found = inspect_chunks(
            chunks, base_timestamp=header.base_timestamp, most_count=_ANY_COUNT, limit_bytes=MOST_CONTENT_BYTES
        )
    count = found.count
    if count != header.record_count:
        _refuse(f"the header counts {header.record_count} records, but the batch has {count}")
    if count > header.last_offset_delta + 1:
        _refuse(f"{count} records do not fit between the offsets {header.base_offset} and {header.last_offset}")
    return Content(count, header.base_offset)


def _check_records(batch: StoredBatch) -> Content:
    first_offset = None
    last_offset = batch.place.base_offset - 1 if batch.header else -1
    count = 0
    for record in batch.records():
        if not last_offset < record.offset <= batch.place.last_offset:
            _refuse(f"a record with offset {record.offset} after {last_offset}, in a batch up to {batch.place.last_offset}")
        last_offset = record.offset
        first_offset = record.offset if first_offset is None else first_offset
        count += 1
    return Content(count, batch.place.base_offset if first_offset is None else first_offset)


def _check_control(batch: StoredBatch) -> None:
    for record in batch.records():
        if control_of(record) is None:
            _refuse("a control record without a type")


@dataclass(slots=True)
class Control:
    """The content of a control record.

    Attributes:
        name: the name of the record's type.
        coordinator_epoch: the epoch of the transaction coordinator; None if the type is not a transaction marker.
    """

    name: str
    coordinator_epoch: int | None


def control_of(record: Record) -> Control | None:
    """Decodes a record of a control batch; None if the record has no type."""
    if record.key is None or len(record.key) < CONTROL_KEY.size:
        return None
    _, number = CONTROL_KEY.unpack_from(record.key)
    has_epoch = number in (ABORT, COMMIT) and record.value is not None and len(record.value) >= END_MARKER_VALUE.size
    epoch = END_MARKER_VALUE.unpack_from(record.value)[1] if has_epoch and record.value is not None else None
    return Control(CONTROL_TYPES.get(number, f"type {number}"), epoch)
