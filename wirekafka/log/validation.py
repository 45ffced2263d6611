"""What a log takes from a producer, and what it makes of it: the rules between a Produce request and an append.

Theory of operation: an append has two steps, for between them the log looks at the producer's sequence numbers.
`parse_batch` decides whether the bytes may be stored at all; what it returns is one batch of format 2, in place, or made
from the message set of an old client. `assign_offsets` gives it its place: it writes base offset and leader epoch into the
connection's own buffer, and with LogAppendTime the time. A batch that needs no change is never copied.

Records are stepped over and not looked at, unless a rule asks for it: topics that are compacted need keys, and a bound on old
timestamps needs each of them. Compressed records are decompressed to be counted, chunk by chunk, so that memory does not grow
with what they expand to.

Rules of this file: no I/O, no clock, no state. What a client did wrong is a `KafkaError` that says what.

Differs from Apache Kafka: the greatest timestamp is taken from the batch's header, where Kafka reads it off the records; what
stands inside a record (headers, a value's length) is not looked at; a broken compressed stream is INVALID_RECORD and not
UNKNOWN_SERVER_ERROR; compressed records may take `CONTENT_LIMIT_BYTES`, or 64 times max.message.bytes if that is more, and a
message set a quarter of that; bytes that are torn off behind a whole batch are refused, Kafka drops them and acknowledges the
rest.

Source: org.apache.kafka.storage.internals.log.LogValidator; UnifiedLog.analyzeAndValidateRecords; ProduceRequest.validateRecords;
org.apache.kafka.common.record.ByteBufferLogInputStream.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import NoReturn

from crc32c import crc32c

from wirekafka.config.log import LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import NO_SEQUENCE, NO_TIMESTAMP
from wirekafka.wire.batch import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER_SIZE,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    TimestampType,
    iterate_records,
    recompress,
    write_offsets,
    write_timestamp,
)
from wirekafka.wire.compression import Compression, decompress_stream
from wirekafka.wire.legacy import LEAST_MESSAGE_BYTES, up_convert
from wirekafka.wire.walk import MOST_BLAMED, count_records, count_records_in, inspect_records

CONTENT_LIMIT_BYTES = 64 * 1024 * 1024
"""What compressed records may take uncompressed, where max.message.bytes is not above a 64th of it."""
CONTENT_LIMIT_RATIO = 64
MESSAGE_SET_SHARE = 4
"""A compressed message set may take a quarter of that, for each of its messages becomes an object while it is converted."""

_LENGTH = struct.Struct(">i")


class Origin(Enum):
    """Who appends."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


@dataclass(slots=True)
class Batch:
    """A batch that may be stored.

    Attributes:
        header: its header as the producer sent it.
        data: all of its bytes, header included; writable.
        earliest_timestamp: the records' earliest timestamp; None if no rule asks for it, or no record has one.
    """

    header: BatchHeader
    data: bytearray | memoryview
    earliest_timestamp: int | None = None


def parse_batch(records: memoryview, *, config: LogConfig, origin: Origin) -> Batch:
    """The batch that a producer sent, checked; a message set of format 0 or 1 is converted to one batch.

    Raises:
        KafkaError: CORRUPT_MESSAGE, the checksum is wrong, or a length or magic number that nothing has; INVALID_RECORD, the
            bytes are not exactly one whole batch, or the records are not what it says, or one has no key and needs it;
            MESSAGE_TOO_LARGE; UNSUPPORTED_COMPRESSION_TYPE.
    """
    if len(records) >= HEADER_SIZE:
        header = BatchHeader(records)
        if header.batch_length == len(records) - LOG_OVERHEAD and header.magic == MAGIC:
            return _check(header, records, config, origin)
    if _find_format(records) == MAGIC:
        _refuse(ErrorCode.INVALID_RECORD, "a produce request holds exactly one record batch a partition")
    _check_message_sizes(records, config)
    batch = up_convert(records, limit_bytes=_content_limit(config) // MESSAGE_SET_SHARE)
    return _check(BatchHeader(batch), batch, config, origin)


def _find_format(records: memoryview) -> int:
    """The magic number of the first batch or message, once it is certain that all of them are whole and alike."""
    pos, magic = 0, -1
    while pos < len(records) or magic < 0:
        left = len(records) - pos
        if left <= MAGIC_OFFSET:
            _refuse(ErrorCode.INVALID_RECORD, f"{left} bytes are no record batch")
        (length,) = _LENGTH.unpack_from(records, pos + LENGTH_OFFSET)
        if length < LEAST_MESSAGE_BYTES or (records[pos + MAGIC_OFFSET] == MAGIC and length < HEADER_SIZE - LOG_OVERHEAD):
            _refuse(ErrorCode.CORRUPT_MESSAGE, f"a record batch of {length} bytes")
        if length > left - LOG_OVERHEAD:
            _refuse(ErrorCode.INVALID_RECORD, f"a record batch of {length} bytes, where {left - LOG_OVERHEAD} are left")
        if records[pos + MAGIC_OFFSET] > MAGIC:
            _refuse(ErrorCode.CORRUPT_MESSAGE, f"there is no message format {records[pos + MAGIC_OFFSET]}")
        if magic not in (-1, records[pos + MAGIC_OFFSET]):
            _refuse(ErrorCode.INVALID_RECORD, f"message format {records[pos + MAGIC_OFFSET]} behind message format {magic}")
        magic = records[pos + MAGIC_OFFSET]
        pos += LOG_OVERHEAD + length
    return magic


def _check_message_sizes(records: memoryview, config: LogConfig) -> None:
    pos = 0
    while pos < len(records):
        size = LOG_OVERHEAD + _LENGTH.unpack_from(records, pos + LENGTH_OFFSET)[0]
        _check_size(size, config)
        pos += size


def _check_size(size: int, config: LogConfig) -> None:
    if size > config.max_message_bytes:
        most = config.max_message_bytes
        _refuse(ErrorCode.MESSAGE_TOO_LARGE, f"a record batch of {size} bytes, max.message.bytes is {most}")


def _check(header: BatchHeader, data: bytearray | memoryview, config: LogConfig, origin: Origin) -> Batch:
    """The batch, if it may be stored. The order of the checks is Kafka's; what a coordinator built a moment ago is sound."""
    _check_size(len(data), config)
    if origin is Origin.COORDINATOR:
        return Batch(header, data)
    view = memoryview(data)
    if crc32c(view[ATTRIBUTES_OFFSET:]) != header.crc:
        _refuse(ErrorCode.CORRUPT_MESSAGE, "the checksum of a record batch is wrong")
    _check_client(header)
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        _refuse(ErrorCode.INVALID_RECORD, f"a record batch of {count} records, the last at {header.last_offset_delta}")
    if config.inspects_records:
        return _inspect(header, view, config)
    if header.attributes & COMPRESSION_MASK:
        chunks = decompress_stream(header.compression, view[HEADER_SIZE:])
        found = count_records_in(chunks, limit_bytes=_content_limit(config))
    else:
        found = count_records(view[HEADER_SIZE:], count)
    if found != count:
        _refuse(ErrorCode.INVALID_RECORD, f"a record batch of {found} records says that it has {count}")
    return Batch(header, data)


def _check_client(header: BatchHeader) -> None:
    """What only the broker itself may write."""
    if header.base_offset:
        _refuse(ErrorCode.INVALID_RECORD, f"the base offset of a produced batch is 0, not {header.base_offset}")
    if header.attributes & CONTROL_MASK:
        _refuse(ErrorCode.INVALID_RECORD, "clients must not write control records")
    if header.producer_id >= 0 and header.base_sequence <= NO_SEQUENCE:
        _refuse(ErrorCode.INVALID_RECORD, f"sequence number {header.base_sequence} of producer {header.producer_id}")


def _inspect(header: BatchHeader, view: memoryview, config: LogConfig) -> Batch:
    """The batch, if the head of each record keeps the rules too."""
    chunks = decompress_stream(header.compression, view[HEADER_SIZE:])
    found = inspect_records(chunks, base_timestamp=header.base_timestamp, limit_bytes=_content_limit(config))
    if found.count != header.record_count:
        _refuse(ErrorCode.INVALID_RECORD, f"a record batch of {found.count} records says that it has {header.record_count}")
    if config.is_compacted and found.without_key and not header.attributes & CONTROL_MASK:
        message = "a record has no key, which a compacted topic needs"
        raise KafkaError(ErrorCode.INVALID_RECORD, message, record_indexes=found.without_key)
    return Batch(header, view, found.earliest_timestamp)


def _content_limit(config: LogConfig) -> int:
    return max(CONTENT_LIMIT_BYTES, CONTENT_LIMIT_RATIO * config.max_message_bytes)


def assign_offsets(batch: Batch, *, config: LogConfig, base_offset: int, leader_epoch: int, now_ms: int) -> Batch:
    """Gives the batch its place in the log, writing into its bytes; with compression.type, changes its codec first.

    Returns:
        What is to be written; with LogAppendTime its timestamp is `now_ms`.

    Raises:
        KafkaError: INVALID_TIMESTAMP, a timestamp is out of bounds, or claims to be the broker's; MESSAGE_TOO_LARGE, the batch
            is too large in the topic's codec; INVALID_RECORD, it is broken inside.
    """
    if config.has_append_time:
        _check_is_create_time(batch.header)
    else:
        _check_timestamps(batch, config, now_ms)
    if config.compression_type != "producer":
        batch = _in_codec_of_topic(batch, config)
    header, data = batch.header, batch.data
    if config.has_append_time:
        write_timestamp(data, 0, header, TimestampType.LOG_APPEND_TIME, now_ms)
    elif header.attributes & TIMESTAMP_TYPE_MASK:
        write_timestamp(data, 0, header, TimestampType.CREATE_TIME, header.max_timestamp)
    write_offsets(data, 0, header, base_offset, leader_epoch)
    return batch


def _check_timestamps(batch: Batch, config: LogConfig, now_ms: int) -> None:
    """The bounds of CreateTime; records without a timestamp keep within any."""
    latest, earliest = batch.header.max_timestamp, batch.earliest_timestamp
    if latest - now_ms > config.message_timestamp_after_max_ms:
        _refuse_timestamp(batch, latest, config, now_ms)
    if earliest is not None and now_ms - earliest > config.message_timestamp_before_max_ms:
        _refuse_timestamp(batch, earliest, config, now_ms)
    if latest == NO_TIMESTAMP:
        _check_is_create_time(batch.header)


def _refuse_timestamp(batch: Batch, timestamp: int, config: LogConfig, now_ms: int) -> NoReturn:
    least, most = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    records = islice(iterate_records(batch.data, limit_bytes=_content_limit(config)), MOST_BLAMED)
    times = [record.timestamp for record in records]
    outside = [index for index, time in enumerate(times) if time != NO_TIMESTAMP and not least <= time <= most]
    message = f"timestamp {timestamp} is not within {least} and {most}"
    raise KafkaError(ErrorCode.INVALID_TIMESTAMP, message, record_indexes=outside)


def _check_is_create_time(header: BatchHeader) -> None:
    if header.attributes & TIMESTAMP_TYPE_MASK:
        _refuse(ErrorCode.INVALID_TIMESTAMP, "a producer must not set the timestamp type to LogAppendTime")


def _in_codec_of_topic(batch: Batch, config: LogConfig) -> Batch:
    name = config.compression_type
    target = Compression.NONE if name == "uncompressed" else Compression[name.upper()]
    header = batch.header
    if header.attributes & COMPRESSION_MASK == target or header.attributes & CONTROL_MASK:
        return batch
    levels = {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }
    data = recompress(batch.data, target, levels.get(target), limit_bytes=_content_limit(config))
    _check_size(len(data), config)
    return Batch(BatchHeader(data), data, batch.earliest_timestamp)


def _refuse(code: ErrorCode, reason: str) -> NoReturn:
    raise KafkaError(code, reason)
