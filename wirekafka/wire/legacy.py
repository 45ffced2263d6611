"""Message sets: the message formats 0 and 1 of clients before Kafka 0.11, and their conversion to and from batches of format 2.

This broker writes only format 2. `up_convert` makes one batch of a message set that an old producer sends. `down_convert` makes a
message set of batches for an old consumer. Logs of older brokers may hold message sets; `stored_records` reads these.

    offset 8 | size 4 | crc 4 | magic 1 | attributes 1 | timestamp 8, format 1 only | key | value

The key and the value each begin with a length of four bytes; -1 is null. A compressed message is a wrapper: its value is a
compressed message set, and its offset is the offset of its last inner message. Inner offsets are absolute in format 0; in format
1 they count from the wrapper's first message (KIP-31). `up_convert` ignores offsets, because those of a producer have no meaning.
If a wrapper has LogAppendTime, all its messages have the timestamp of the wrapper (KIP-32).

Rules of this file: it is not on the hot path. Memory and time are bounded: messages are converted one by one, `rest` is called
every few messages, and `down_convert` ends after `MOST_CONVERTED_RECORDS`.

Source: org.apache.kafka.common.record.LegacyRecord, AbstractLegacyRecordBatch (DeepRecordsIterator), MemoryRecordsBuilder and
RecordsUtil.downConvert.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from zlib import crc32

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import (
    HEADER_SIZE,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    BatchHeader,
    Record,
    TimestampType,
    do_nothing,
    encode_record,
    iterate_records,
    seal_batch,
    whole_batches,
)
from wirekafka.wire.compression import (
    MOST_CONTENT_BYTES,
    Buffer,
    Compression,
    compress,
    compression_of,
    decompress,
    with_old_lz4_checksum,
    with_right_lz4_checksum,
)

LEAST_MESSAGE_BYTES = 14
"""The size of a message of format 0 with a null key and a null value, without the offset and the size field."""
CRC_OFFSET = 12
COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08

REST_AFTER = 32
"""The messages or records that are converted between two rests, in 0.3 ms."""
MOST_CONVERTED_RECORDS = 50_000
"""The records after which `down_convert` ends; their conversion takes 0.5 s."""
MOST_WRAPPED_RECORDS = 10_000
MOST_WRAPPED_BYTES = 1 << 20
"""A wrapper ends at the first record that reaches one of these limits."""

_OFFSET_AND_SIZE = struct.Struct(">qi")
_CHECKSUM = struct.Struct(">I")
_MAGIC_AND_ATTRIBUTES = struct.Struct(">bb")
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")


def up_convert(message_set: Buffer, *, limit_bytes: int, rest: Callable[[], object] = do_nothing) -> bytearray:
    """Makes one batch of format 2 of a message set; the batch has the codec of the wrapper, if there is one.

    Args:
        message_set: uncompressed messages, or one wrapper.
        limit_bytes: the most bytes that the messages of a wrapper may have uncompressed.
        rest: called every few messages.

    Raises:
        KafkaError: CORRUPT_MESSAGE, a checksum is wrong; INVALID_RECORD, the message set has no message, a wrapper is not
            the only message of the set, or the messages of a wrapper are missing, of another format, compressed or
            truncated; MESSAGE_TOO_LARGE, the messages of a wrapper have more than `limit_bytes`;
            UNSUPPORTED_COMPRESSION_TYPE, there is no such codec.
    """
    first = next(_messages(message_set), None)
    if first is None:
        raise _invalid("a message set without messages")
    messages = _messages(message_set)
    if first.compression:
        if first.size_bytes != len(message_set):
            raise _invalid("a compressed message is not alone in its message set")
        messages = _unwrap(first, limit_bytes)
    is_append_time = False
    base_timestamp = latest = NO_TIMESTAMP
    encoded = bytearray()
    record_count = 0
    for message in messages:
        if message.compression:
            raise _invalid("a compressed message is not alone in its message set")
        timestamp = message.record.timestamp
        if not record_count:
            base_timestamp = timestamp
        latest = max(latest, timestamp)
        is_append_time |= bool(message.timestamp_type)
        encoded += encode_record(message.record, timestamp - base_timestamp, record_count)
        record_count += 1
        if not record_count % REST_AFTER:
            rest()
    if not record_count:
        raise _invalid("a message set without messages")
    return seal_batch(
        bytes(encoded),
        record_count=record_count,
        base_timestamp=base_timestamp,
        max_timestamp=latest,
        compression=first.compression,
        timestamp_type=TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME,
    )


def stored_records(message_set: Buffer, *, limit_bytes: int = MOST_CONTENT_BYTES) -> list[Record]:
    """Returns the records of messages from the log of an older broker, with their offsets; wrappers are decompressed.

    Args:
        message_set: whole messages with the offsets of the log.
        limit_bytes: the most bytes that the messages of a wrapper may have uncompressed.

    Raises:
        KafkaError: CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE; as for `up_convert`.
    """
    records: list[Record] = []
    for message in _messages(message_set):
        if not message.compression:
            records.append(message.record)
            continue
        inner = [unwrapped.record for unwrapped in _unwrap(message, limit_bytes)]
        if not inner:
            raise _invalid("a wrapper without messages")
        if message.magic == 1:
            distance = message.record.offset - inner[-1].offset
            for record in inner:
                record.offset += distance
        records += inner
    return records


class _Message:
    """One whole message of format 0 or 1, whose checksum is right."""

    __slots__ = ("compression", "magic", "record", "size_bytes", "timestamp_type")

    def __init__(self, buf: Buffer, pos: int, end: int) -> None:
        if crc32(buf[pos + MAGIC_OFFSET : end]) != _CHECKSUM.unpack_from(buf, pos + CRC_OFFSET)[0]:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the checksum of a message is wrong")
        self.magic, attributes = _MAGIC_AND_ATTRIBUTES.unpack_from(buf, pos + MAGIC_OFFSET)
        self.compression = compression_of(attributes & COMPRESSION_MASK)
        self.timestamp_type = TimestampType.CREATE_TIME
        self.size_bytes = end - pos
        timestamp = NO_TIMESTAMP
        pos += MAGIC_OFFSET + 2
        if self.magic == 1:
            (timestamp,) = _TIMESTAMP.unpack_from(buf[:end], pos)
            pos += 8
            if attributes & TIMESTAMP_TYPE_MASK:
                self.timestamp_type = TimestampType.LOG_APPEND_TIME
        key, pos = _read_bytes(buf, pos, end)
        value, pos = _read_bytes(buf, pos, end)
        if pos != end:
            raise _invalid(f"{end - pos} bytes after a message's value")
        self.record = Record(key, value, timestamp=timestamp)


def _messages(buf: Buffer) -> Iterator[_Message]:
    pos = 0
    try:
        while pos < len(buf):
            offset, size = _OFFSET_AND_SIZE.unpack_from(buf, pos)
            end = pos + _OFFSET_AND_SIZE.size + size
            if size < LEAST_MESSAGE_BYTES or end > len(buf):
                raise _invalid(f"a message of {size} bytes")
            message = _Message(buf, pos, end)
            message.record.offset = offset
            yield message
            pos = end
    except struct.error:
        raise _invalid("a message ends after its message set") from None


def entries_in(records: Buffer) -> Iterator[tuple[int, int]]:
    """Yields the magic number and the size in bytes of each batch or message, of any format, that a client has sent.

    Raises:
        KafkaError: CORRUPT_MESSAGE, a length or magic number is impossible; INVALID_RECORD, a batch or message is incomplete, or
            there is none.
    """
    pos = 0
    while pos < len(records) or not pos:
        left = len(records) - pos
        if left <= MAGIC_OFFSET:
            raise _invalid(f"{left} bytes are not a record batch")
        (length,), magic = _LENGTH.unpack_from(records, pos + LENGTH_OFFSET), records[pos + MAGIC_OFFSET]
        if length < LEAST_MESSAGE_BYTES or (magic == MAGIC and length < HEADER_SIZE - LOG_OVERHEAD):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a record batch of {length} bytes")
        if length > left - LOG_OVERHEAD:
            raise _invalid(f"{left - LOG_OVERHEAD} bytes are left for a record batch of {length}")
        if magic > MAGIC:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"there is no message format {magic}")
        yield magic, LOG_OVERHEAD + length
        pos += LOG_OVERHEAD + length


def _read_bytes(buf: Buffer, pos: int, end: int) -> tuple[bytes | None, int]:
    (size,) = _LENGTH.unpack_from(buf[:end], pos)
    pos += 4
    if size < 0:
        return None, pos
    if size > end - pos:
        raise _invalid(f"a message has {end - pos} bytes left for a field of {size}")
    return bytes(buf[pos : pos + size]), pos + size


def _unwrap(wrapper: _Message, limit_bytes: int) -> Iterator[_Message]:
    """Yields the messages of a wrapper."""
    packed = wrapper.record.value
    if packed is None or wrapper.compression == Compression.ZSTD:
        raise _invalid(f"a {wrapper.compression.name.lower()} message of format {wrapper.magic} without messages")
    if wrapper.compression == Compression.LZ4 and wrapper.magic == 0:
        packed = with_right_lz4_checksum(packed)
    for message in _messages(memoryview(decompress(wrapper.compression, packed, limit_bytes=limit_bytes))):
        if message.magic != wrapper.magic:
            raise _invalid(f"a message of format {message.magic} inside one of format {wrapper.magic}")
        if message.compression:
            raise _invalid("a compressed message inside a compressed message")
        if wrapper.timestamp_type == TimestampType.LOG_APPEND_TIME:
            message.record.timestamp = wrapper.record.timestamp
        message.timestamp_type = wrapper.timestamp_type
        yield message


def down_convert(
    batches: Buffer,
    magic: int,
    first_offset: int,
    *,
    limit_bytes: int = MOST_CONTENT_BYTES,
    content_limit_bytes: int = MOST_CONTENT_BYTES,
    rest: Callable[[], object] = do_nothing,
) -> bytes:
    """Makes a message set of format 0 or 1 of the records of whole batches. These formats have no record headers.

    The message set has about `MOST_CONVERTED_RECORDS` records at most; the client gets the others with its next fetch. If a
    batch after the first cannot be converted, the message set ends before it.

    Args:
        batches: batches of format 2; an incomplete batch at the end is ignored.
        magic: 0 or 1.
        first_offset: uncompressed records before this offset are left out, because some consumers return records that they did
            not ask for. The first wrapper may begin before it.
        limit_bytes: the conversion ends once the message set has this many bytes.
        content_limit_bytes: the most bytes that the records of a compressed batch may have uncompressed.
        rest: called every few records.

    Raises:
        KafkaError: the first batch cannot be converted: UNSUPPORTED_COMPRESSION_TYPE, the batch is compressed with zstd, which
            no client of these formats reads; CORRUPT_MESSAGE, its records are broken; MESSAGE_TOO_LARGE, its records have more
            than `content_limit_bytes`.
    """
    converted: list[bytes] = []
    size_bytes = record_count = 0
    try:
        for header, batch in whole_batches(batches):
            if header.is_control:
                continue
            if header.compression == Compression.ZSTD:
                raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd is not known to clients of old message formats")
            for messages in _message_sets(header, batch, magic, first_offset, content_limit_bytes, rest):
                if messages.last_offset < first_offset:
                    continue
                converted.append(messages.seal())
                size_bytes += len(converted[-1])
                record_count += messages.count
                if size_bytes >= limit_bytes or record_count >= MOST_CONVERTED_RECORDS:
                    return b"".join(converted)
    except KafkaError as error:
        if not converted:
            if error.code is ErrorCode.INVALID_RECORD:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, error.message) from None
            raise
    return b"".join(converted)


class _MessageSet:
    """Builds a message set of records of one batch, and a wrapper if the batch is compressed.

    Each record is encoded at once, because many live objects make the pauses of the garbage collector long.
    """

    __slots__ = ("_base_offset", "_header", "_magic", "_messages", "_timestamp", "last_offset", "size_bytes")

    def __init__(self, header: BatchHeader, magic: int) -> None:
        self._header = header
        self._magic = magic
        self._messages: list[bytes] = []
        self._base_offset = 0
        self._timestamp = NO_TIMESTAMP
        self.last_offset = -1
        self.size_bytes = 0

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self._messages)

    def add(self, record: Record) -> None:
        """Adds a record at the end."""
        is_wrapped = self._header.compression is not Compression.NONE
        if not self._messages:
            self._base_offset = record.offset if is_wrapped and self._magic == 1 else 0
            self._timestamp = record.timestamp
        self._timestamp = max(self._timestamp, record.timestamp)
        message = _message(record, self._magic, self._header.timestamp_type, record.offset - self._base_offset)
        self._messages.append(message)
        self.size_bytes += len(message)
        self.last_offset = record.offset

    def seal(self) -> bytes:
        """Returns the bytes of the message set, or of its wrapper."""
        inner = b"".join(self._messages)
        compression = self._header.compression
        if compression is Compression.NONE:
            return inner
        packed = compress(compression, inner)
        if compression == Compression.LZ4 and self._magic == 0:
            packed = with_old_lz4_checksum(packed)
        wrapper = Record(value=packed, timestamp=self._timestamp)
        return _message(wrapper, self._magic, self._header.timestamp_type, self.last_offset, compression)


def _message_sets(
    header: BatchHeader,
    batch: memoryview,
    magic: int,
    first_offset: int,
    content_limit_bytes: int,
    rest: Callable[[], object],
) -> Iterator[_MessageSet]:
    """Yields the records of a batch in message sets of bounded size."""
    is_whole = header.compression != Compression.NONE and header.record_count <= MOST_WRAPPED_RECORDS
    from_offset = header.base_offset if is_whole else first_offset
    messages = _MessageSet(header, magic)
    for record in iterate_records(batch, limit_bytes=content_limit_bytes, from_offset=from_offset, rest=rest):
        messages.add(record)
        if not messages.count % REST_AFTER:
            rest()
        if messages.count >= MOST_WRAPPED_RECORDS or messages.size_bytes >= MOST_WRAPPED_BYTES:
            yield messages
            messages = _MessageSet(header, magic)
    if messages.count:
        yield messages


def _message(
    record: Record, magic: int, timestamp_type: TimestampType, offset: int, compression: Compression = Compression.NONE
) -> bytes:
    attributes = compression | timestamp_type << 3 if magic == 1 else compression
    pieces = [_MAGIC_AND_ATTRIBUTES.pack(magic, attributes)]
    if magic == 1:
        pieces.append(_TIMESTAMP.pack(record.timestamp))
    for field in (record.key, record.value):
        pieces += (_LENGTH.pack(-1),) if field is None else (_LENGTH.pack(len(field)), field)
    body = b"".join(pieces)
    return _OFFSET_AND_SIZE.pack(offset, len(body) + 4) + _CHECKSUM.pack(crc32(body)) + body


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, reason)
