"""A record batch of format 2: reading its header and its records, checking its checksum, and building a batch.

How it works: the log treats the records of a batch as opaque bytes. `BatchHeader` reads the 61 bytes of the header with
one struct call. The functions named `write_` change the fields that the broker owns, in place. The module `walk` steps from one
record to the next without making an object. `iterate_records` and `build_batch` make an object for each record; coordinators,
conversions, the cleaner and tests use them.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 | last offset delta 4 | base timestamp 8 |
    max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | record count 4 | records

The checksum covers everything from the attributes on, so the broker writes base offset and leader epoch without a new checksum.

Source: org.apache.kafka.common.record.DefaultRecordBatch and DefaultRecord; KIP-98; varints are protobuf's zigzag ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from crc32c import crc32c

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from wirekafka.wire.compression import MOST_CONTENT_BYTES, Buffer, Compression, compress, compression_of, decompress

MAGIC = 2
HEADER_SIZE = 61
LOG_OVERHEAD = 12
"""The base offset and the length, which the length does not count."""
LENGTH_OFFSET = 8
LEADER_EPOCH_OFFSET = 12
MAGIC_OFFSET = 16
CRC_OFFSET = 17
ATTRIBUTES_OFFSET = 21
MAX_TIMESTAMP_OFFSET = 35

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

MOST_SEQUENCE = 0x7FFFFFFF
LEAST_INT64, GREATEST_INT64 = -(1 << 63), (1 << 63) - 1

CACHED_LENGTHS = 1024
"""How many lengths of records of coordinators are kept; these records have few different sizes."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_UNCOVERED = struct.Struct(">qiibI")
"""The header up to the checksum."""
_COVERED = struct.Struct(">hiqqqhii")
"""The header after the checksum, which covers it."""
_INT64 = struct.Struct(">q")
_UINT32 = struct.Struct(">I")
_INT32 = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")


class TimestampType(IntEnum):
    """Whether the producer or the broker set the timestamps of a batch; the number is the bit in the attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader:
    """The header of one batch, as it was read from a buffer.

    Attributes:
        base_offset: the first record's offset.
        batch_length: the number of bytes after this field; `size_bytes` counts all bytes.
        record_count: the count in the header; `walk.Inspection` counts the records.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
    )
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, buf: Buffer, pos: int = 0) -> None:
        (
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = _HEADER.unpack_from(buf, pos)

    @property
    def size_bytes(self) -> int:
        """All bytes of the batch, header included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """The last record's offset; compaction keeps it even if it removes that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """One past the last record's offset."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """The codec of the records.

        Raises:
            KafkaError: UNSUPPORTED_COMPRESSION_TYPE, there is no such codec.
        """
        return compression_of(self.attributes & COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the producer or the broker set the timestamps."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_MASK else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        """Whether the batch has a control record, which consumers do not return."""
        return bool(self.attributes & CONTROL_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which the cleaner may remove the tombstones of the batch (KIP-534); None if it is not set.

        The field of the base timestamp holds it.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent producer wrote the batch."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number; the numbers wrap around at 2^31."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MOST_SEQUENCE


def read_batch_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Returns the header that begins at `pos`, without validation.

    Raises:
        struct.error: the buffer has fewer than `HEADER_SIZE` bytes from `pos` on.
    """
    return BatchHeader(buf, pos)


def check_crc(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Whether the whole batch at `pos` matches the checksum in its header."""
    return crc32c(buf[pos + ATTRIBUTES_OFFSET : pos + LOG_OVERHEAD + header.batch_length]) == header.crc


def write_offsets(buf: bytearray | memoryview, pos: int, header: BatchHeader, base_offset: int, leader_epoch: int) -> None:
    """Writes base offset and leader epoch into the batch at `pos`; the checksum does not cover them."""
    header.base_offset = base_offset
    header.partition_leader_epoch = leader_epoch
    _INT64.pack_into(buf, pos, base_offset)
    _INT32.pack_into(buf, pos + LEADER_EPOCH_OFFSET, leader_epoch)


def write_timestamp(
    buf: bytearray | memoryview, pos: int, header: BatchHeader, timestamp_type: TimestampType, max_timestamp: int
) -> None:
    """Writes the timestamp type and the greatest timestamp of the batch at `pos`, and its new checksum."""
    header.attributes = header.attributes & ~TIMESTAMP_TYPE_MASK | timestamp_type << 3
    header.max_timestamp = max_timestamp
    _ATTRIBUTES.pack_into(buf, pos + ATTRIBUTES_OFFSET, header.attributes)
    _INT64.pack_into(buf, pos + MAX_TIMESTAMP_OFFSET, max_timestamp)
    header.crc = crc32c(buf[pos + ATTRIBUTES_OFFSET : pos + header.size_bytes])
    _UINT32.pack_into(buf, pos + CRC_OFFSET, header.crc)


@dataclass(slots=True)
class Record:
    """One record, decoded.

    Attributes:
        key, value: None is null; a null value is a tombstone.
        headers: in order, names may repeat.
        timestamp: in ms; -1 for none.
        offset: its offset in the log; `build_batch` uses it only with `keeps_offsets`.
    """

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp: int = NO_TIMESTAMP
    offset: int = 0


def to_int64(value: int) -> int:
    """Returns the number modulo 2^64, as a signed number: the way in which Java adds and subtracts timestamps."""
    return value if LEAST_INT64 <= value <= GREATEST_INT64 else (value - LEAST_INT64) % (1 << 64) + LEAST_INT64


def _zigzag_varint(value: int) -> bytes:
    value = to_int64(value)
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL_VARINTS = tuple(_zigzag_varint(number) for number in range(-1, 1024))


def varint(value: int) -> bytes:
    """Returns the zigzag varint of a number of at most 64 bits."""
    return _SMALL_VARINTS[value + 1] if -1 <= value < 1023 else _zigzag_varint(value)


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Returns the value of the zigzag varint at `pos`, and the position after it.

    Raises:
        IndexError: the varint does not end within the buffer.
        KafkaError: INVALID_RECORD, the varint takes more than ten bytes.
    """
    byte = buf[pos]
    pos += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift > 63:
            raise _invalid("a varint does not end")
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), pos


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, reason)


def do_nothing() -> None:
    """Does nothing: the `rest` of work that never rests."""


def whole_header(buf: Buffer, pos: int) -> BatchHeader | None:
    """Returns the header of the whole batch of format 2 at `pos`; None if the buffer has no whole batch there."""
    if len(buf) - pos < HEADER_SIZE:
        return None
    header = BatchHeader(buf, pos)
    is_whole = HEADER_SIZE <= header.size_bytes <= len(buf) - pos
    return header if is_whole else None


def whole_batches(buf: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yields the batches of format 2 in a buffer, each with its header; an incomplete batch at the end is left out."""
    view = memoryview(buf)
    pos = 0
    while (header := whole_header(view, pos)) is not None:
        yield header, view[pos : pos + header.size_bytes]
        pos += header.size_bytes


def iterate_records(
    batch: Buffer,
    *,
    limit_bytes: int = MOST_CONTENT_BYTES,
    from_offset: int = 0,
    rest: Callable[[], object] = do_nothing,
) -> Iterator[Record]:
    """Yields the records of the whole batch at the start of a buffer.

    Args:
        batch: the buffer, which may hold more bytes after the batch.
        limit_bytes: the most that compressed records may take uncompressed.
        from_offset: records before this offset are skipped, in a tenth of the time that their decoding would take.
        rest: called every few skipped records.

    Raises:
        KafkaError: INVALID_RECORD, the records do not match the header; MESSAGE_TOO_LARGE, they are larger than the limit;
            UNSUPPORTED_COMPRESSION_TYPE.
    """
    header = BatchHeader(batch)
    body = decompress(header.compression, batch[HEADER_SIZE : header.size_bytes], limit_bytes=limit_bytes)
    append_time = header.max_timestamp if header.timestamp_type == TimestampType.LOG_APPEND_TIME else None
    first_delta = from_offset - header.base_offset
    pos = 0
    try:
        for number in range(header.record_count):
            size, start = read_varint(body, pos)
            if first_delta > 0:
                _, offset_at = read_varint(body, start + 1)
                if size > 0 and read_varint(body, offset_at)[0] < first_delta:
                    pos = start + size
                    if not number & 0xFF:
                        rest()
                    continue
            record, pos = _read_record(body, start, header.base_offset, header.base_timestamp)
            if pos != start + size:
                raise _invalid(f"a record has {pos - start} bytes, but its length is {size}")
            if append_time is not None:
                record.timestamp = append_time
            yield record
    except IndexError:
        raise _invalid("a record ends after its batch") from None
    if pos != len(body):
        raise _invalid(f"{len(body) - pos} bytes after the last of {header.record_count} records")


def _read_record(body: bytes, pos: int, base_offset: int, base_timestamp: int) -> tuple[Record, int]:
    timestamp_delta, pos = read_varint(body, pos + 1)
    offset_delta, pos = read_varint(body, pos)
    key, pos = _read_bytes(body, pos)
    value, pos = _read_bytes(body, pos)
    header_count, pos = read_varint(body, pos)
    if not 0 <= header_count <= len(body) - pos:
        raise _invalid(f"a record of {header_count} headers")
    headers = []
    for _ in range(header_count):
        name, pos = _read_bytes(body, pos)
        if name is None:
            raise _invalid("a header without a name")
        content, pos = _read_bytes(body, pos)
        headers.append((name, content))
    return Record(key, value, tuple(headers), to_int64(base_timestamp + timestamp_delta), base_offset + offset_delta), pos


def _read_bytes(body: bytes, pos: int) -> tuple[bytes | None, int]:
    size, pos = read_varint(body, pos)
    if size < 0:
        return None, pos
    if size > len(body) - pos:
        raise _invalid(f"a record has {len(body) - pos} bytes left for a field of {size}")
    return body[pos : pos + size], pos + size


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_LEADER_EPOCH,
    is_transactional: bool = False,
    is_control: bool = False,
    delete_horizon_ms: int | None = None,
    keeps_offsets: bool = False,
    last_offset: int | None = None,
) -> bytearray:
    """Returns the bytes of one batch.

    Args:
        records: the records, whose timestamps are kept; without records, the batch is an empty one as compaction may leave it.
        base_offset: the first record's offset; the others follow without gaps.
        timestamp_type: with LOG_APPEND_TIME, readers give the greatest timestamp to every record.
        delete_horizon_ms: the delete horizon that the cleaner sets (KIP-534).
        keeps_offsets: the records keep their own offsets, as compaction needs; the offsets ascend from `base_offset`.
        last_offset: the last offset of a batch whose last record compaction has removed.
    """
    records = list(records)
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    offsets = [record.offset for record in records] if keeps_offsets else range(base_offset, base_offset + len(records))
    body = b"".join(
        encode_record(record, record.timestamp - base_timestamp, offset - base_offset)
        for record, offset in zip(records, offsets, strict=True)
    )
    if last_offset is None:
        last_offset = offsets[-1] if records else base_offset
    return seal_batch(
        body,
        record_count=len(records),
        last_offset_delta=last_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max((record.timestamp for record in records), default=NO_TIMESTAMP),
        base_offset=base_offset,
        compression=compression,
        level=level,
        timestamp_type=timestamp_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
        flags=(TRANSACTIONAL_MASK if is_transactional else 0)
        | (CONTROL_MASK if is_control else 0)
        | (DELETE_HORIZON_MASK if delete_horizon_ms is not None else 0),
    )


def seal_batch(
    body: bytes,
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    last_offset_delta: int | None = None,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_LEADER_EPOCH,
    flags: int = 0,
) -> bytearray:
    """Builds one batch from encoded records.

    Args:
        body: the records, uncompressed.
        last_offset_delta: None if the records' offsets follow each other.
        flags: attributes beside the codec and the timestamp type.
    """
    if last_offset_delta is None:
        last_offset_delta = record_count - 1
    batch = bytearray(HEADER_SIZE)
    _HEADER.pack_into(
        *(batch, 0, base_offset, 0, leader_epoch, MAGIC, 0, compression | timestamp_type << 3 | flags, last_offset_delta),
        *(base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count),
    )
    batch += compress(compression, body, level)
    return _sealed(batch)


def build_keyed_batch(
    pairs: Sequence[tuple[bytes, bytes | None]],
    *,
    timestamp: int,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_control: bool = False,
) -> bytearray:
    """Builds a batch of keys and values with one timestamp, for coordinators, in half the time of `build_batch`.

    Args:
        producer_id: the producer whose transaction the batch belongs to; without it, the batch is not transactional.
    """
    pieces: list[bytes] = []
    for delta, (key, value) in enumerate(pairs):
        offset_delta = varint(delta)
        length, key_length, value_length = _keyed_lengths(len(offset_delta), len(key), -1 if value is None else len(value))
        pieces += (length, b"\0\0", offset_delta, key_length, key, value_length, value or b"", b"\0")
    body = b"".join(pieces)
    count = len(pairs)
    attributes = compression | TRANSACTIONAL_MASK if producer_id != NO_PRODUCER_ID else compression
    if is_control:
        attributes |= CONTROL_MASK
    if compression:
        body = compress(compression, body)
    covered = _COVERED.pack(attributes, count - 1, timestamp, timestamp, producer_id, producer_epoch, base_sequence, count) + body
    batch_length = HEADER_SIZE - LOG_OVERHEAD + len(body)
    return bytearray(_UNCOVERED.pack(0, batch_length, NO_LEADER_EPOCH, MAGIC, crc32c(covered)) + covered)


@lru_cache(CACHED_LENGTHS)
def _keyed_lengths(delta_size: int, key_size: int, value_size: int) -> tuple[bytes, bytes, bytes]:
    """Returns the lengths of a record without headers, of its key and of its value, as varints.

    Args:
        delta_size: the size of the offset delta.
        value_size: -1 for null.
    """
    key_length, value_length = varint(key_size), varint(value_size)
    record_size = 2 + delta_size + len(key_length) + key_size + len(value_length) + max(value_size, 0) + 1
    return varint(record_size), key_length, value_length


def encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    """Returns the bytes of one record in a batch, beginning with its length."""
    pieces = [b"\0", varint(timestamp_delta), varint(offset_delta)]
    for field in (record.key, record.value):
        pieces += (b"\x01",) if field is None else (varint(len(field)), field)
    pieces.append(varint(len(record.headers)))
    for name, content in record.headers:
        pieces += (varint(len(name)), name)
        pieces += (b"\x01",) if content is None else (varint(len(content)), content)
    body = b"".join(pieces)
    return varint(len(body)) + body


def with_records(batch: Buffer, body: Buffer, compression: Compression, level: int | None) -> bytearray:
    """Returns the same batch with other records of the same count.

    Args:
        body: the records, uncompressed.
        compression: the codec of the new batch.
    """
    changed = bytearray(batch[:HEADER_SIZE])
    (attributes,) = _ATTRIBUTES.unpack_from(changed, ATTRIBUTES_OFFSET)
    _ATTRIBUTES.pack_into(changed, ATTRIBUTES_OFFSET, attributes & ~COMPRESSION_MASK | compression)
    changed += compress(compression, body, level)
    return _sealed(changed)


def _sealed(batch: bytearray) -> bytearray:
    """Writes the length and the checksum into the batch, and returns it."""
    _INT32.pack_into(batch, LENGTH_OFFSET, len(batch) - LOG_OVERHEAD)
    _UINT32.pack_into(batch, CRC_OFFSET, crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:]))
    return batch
