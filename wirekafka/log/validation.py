"""Validation of the batch of a Produce request, before the log appends it.

How it works: an append has two steps, because the log checks the producer's sequence numbers between them. First,
`validate_batch` checks the bytes and returns one batch of format 2: the same bytes, or a conversion of the message set of an old
client. Second, `assign_offsets` writes the base offset and the leader epoch into the batch, and its timestamp if the topic uses
LogAppendTime. A batch that needs no change is never copied.

The validation reads the head of each record: its length, timestamp, offset delta and key length. It corrects a header whose
greatest timestamp is not that of the records, and offset deltas that do not count up from 0. Compressed records are decompressed
chunk by chunk, so memory use does not grow with their uncompressed size.

On the loop, the validation of a batch may cost as much CPU as `ON_LOOP` allows. If a batch needs more, `validate_batch` raises
`HeavyBatchError` and has changed nothing. The caller then validates the batch in a worker's thread and appends the result.

Rules of this file: no I/O, no clock, no state. Each error of a client is a `KafkaError` that names the error.

Differs from Apache Kafka:
    The fields of a record after its key (the value's length, headers) are not read.
    Wrong offset deltas of uncompressed records are corrected. Apache Kafka corrects only those of compressed records.
    A broken compressed stream gets INVALID_RECORD. Apache Kafka answers UNKNOWN_SERVER_ERROR.
    A batch has at most 1,000,000 records. Compressed records may take 64 MiB uncompressed, or max.message.bytes if that is more,
    but never more than 256 MiB. A message set may take a quarter of that. More records get MESSAGE_TOO_LARGE.
    A timestamp that does not fit into 64 bits gets INVALID_TIMESTAMP.
    A client must not set the delete horizon of a batch.
    An incomplete batch after a whole one is refused. Apache Kafka drops it and acknowledges the whole one.

Source: org.apache.kafka.storage.internals.log.LogValidator; UnifiedLog.analyzeAndValidateRecords; ProduceRequest.validateRecords;
org.apache.kafka.common.record.ByteBufferLogInputStream.
"""

from __future__ import annotations

from collections.abc import Callable
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
    DELETE_HORIZON_MASK,
    GREATEST_INT64,
    HEADER_SIZE,
    LEAST_INT64,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    TimestampType,
    do_nothing,
    with_records,
    write_offsets,
    write_timestamp,
)
from wirekafka.wire.compression import Compression, decompress, decompress_stream
from wirekafka.wire.legacy import entries_in, up_convert
from wirekafka.wire.walk import (
    Inspection,
    deltas_in,
    inspect_chunks,
    inspect_records,
    is_first_and_only,
    with_right_offsets,
)

CONTENT_LIMIT_BYTES = 64 * 1024 * 1024
"""The limit for uncompressed records, unless max.message.bytes is greater."""
MOST_CONTENT_LIMIT_BYTES = 256 * 1024 * 1024
"""The limit for uncompressed records at any max.message.bytes, because each reader of the log needs that much memory."""
MESSAGE_SET_SHARE = 4
"""A compressed message set may take a quarter of the limit, because its conversion makes it larger."""
MOST_RECORDS = 1_000_000
"""The most records of a batch: the greatest `batch.num.messages` that librdkafka accepts."""
MOST_BLAMED = 10_000
"""The most records that an error names: as many as librdkafka puts into a batch by default."""


class HeavyBatchError(Exception):
    """A batch needs more CPU than the loop may spend on it; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The most work for the validation of one batch.

    Attributes:
        record_count: the most records.
        content_bytes: the most bytes of compressed records, uncompressed.
        message_set_bytes: the most bytes of a message set of an old format, uncompressed.
        recoded_bytes: the most bytes, uncompressed, that are compressed again.
        is_bounded: a batch beyond these bounds raises `HeavyBatchError`; otherwise it raises MESSAGE_TOO_LARGE.
        rest: called every few ms.
    """

    record_count: int
    content_bytes: int
    message_set_bytes: int
    recoded_bytes: int
    is_bounded: bool
    rest: Callable[[], object]


ON_LOOP = Effort(20_000, 1 << 20, 1 << 15, 1 << 16, is_bounded=True, rest=do_nothing)
"""About 10 ms: 0.4 us a record, 4 ns a byte of gzip, 8 us a message of 26 bytes, 100 ns a byte of zstd at level 9 (2026-11)."""
MOST_LEVEL_ON_LOOP = 9


def without_bounds(rest: Callable[[], object] = do_nothing) -> Effort:
    """Returns the effort for a thread, which validates every batch that a log may store."""
    return Effort(MOST_RECORDS, 1 << 62, 1 << 62, 1 << 62, is_bounded=False, rest=rest)


class Origin(Enum):
    """The origin of an append."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


# Names of the module, because the attribute of an enum costs each append 0.06 us (2026-11).
CLIENT, COORDINATOR = Origin.CLIENT, Origin.COORDINATOR


@dataclass(slots=True)
class Batch:
    """A batch that may be stored.

    Attributes:
        header: the header of the batch; its base offset is not assigned yet.
        data: all bytes of the batch, header included; writable.
        config: the settings by which the batch was validated.
    """

    header: BatchHeader
    data: bytearray | memoryview
    config: LogConfig

    def __len__(self) -> int:
        """Returns the bytes of the batch."""
        return len(self.data)


def validate_batch(
    records: memoryview, *, config: LogConfig, now_ms: int, origin: Origin = CLIENT, effort: Effort = ON_LOOP
) -> Batch:
    """Validates the batch that a producer sent, and converts a message set of format 0 or 1 to one batch.

    Args:
        records: the bytes, in a writable buffer; a wrong greatest timestamp is corrected there.
        now_ms: the broker's wall clock, for the bounds of timestamps.
        origin: the sender of the batch. Only the size of a coordinator's batch is checked.
        effort: the most work for the validation.

    Raises:
        HeavyBatchError: the validation needs more work than the effort.
        KafkaError: CORRUPT_MESSAGE, the checksum is wrong, or a length or magic number is impossible; INVALID_RECORD, the bytes
            are not exactly one whole batch, the records do not match the header, or a record lacks the key that it needs;
            INVALID_TIMESTAMP, a timestamp is out of bounds, or the timestamp type is the broker's; MESSAGE_TOO_LARGE, too many
            bytes or records; UNSUPPORTED_COMPRESSION_TYPE.
    """
    if origin is COORDINATOR:  # the broker has just built the batch itself
        _check_size(len(records), config)
        return Batch(BatchHeader(records), records, config)
    if len(records) >= HEADER_SIZE:
        header = BatchHeader(records)
        if header.batch_length == len(records) - LOG_OVERHEAD and header.magic == MAGIC:
            return _check(header, records, config, now_ms, effort)
    if effort.is_bounded and len(records) > effort.message_set_bytes:
        raise HeavyBatchError
    if _find_format(records) == MAGIC:
        _refuse(ErrorCode.INVALID_RECORD, "a produce request has exactly one record batch for each partition")
    _check_message_sizes(records, config)
    batch = _up_converted(records, config, effort)
    return _check(BatchHeader(batch), batch, config, now_ms, effort)


def _up_converted(records: memoryview, config: LogConfig, effort: Effort) -> bytearray:
    limit_bytes = content_limit(config) // MESSAGE_SET_SHARE
    try:
        return up_convert(records, limit_bytes=min(limit_bytes, effort.message_set_bytes), rest=effort.rest)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE and effort.is_bounded:
            raise HeavyBatchError from None
        raise


def _find_format(records: memoryview) -> int:
    """Returns the magic number of all batches or messages.

    Raises:
        KafkaError: CORRUPT_MESSAGE, a length or magic number is impossible; INVALID_RECORD, a batch or message is incomplete, or
            the magic numbers differ.
    """
    found = -1
    for magic, _ in entries_in(records):
        if found not in (-1, magic):
            _refuse(ErrorCode.INVALID_RECORD, f"message format {magic} after message format {found}")
        found = magic
    return found


def _check_message_sizes(records: memoryview, config: LogConfig) -> None:
    for _, size_bytes in entries_in(records):
        _check_size(size_bytes, config)


def _check_size(size: int, config: LogConfig) -> None:
    if size > config.max_message_bytes:
        most = config.max_message_bytes
        _refuse(ErrorCode.MESSAGE_TOO_LARGE, f"a record batch of {size} bytes, max.message.bytes is {most}")


def _check(header: BatchHeader, data: bytearray | memoryview, config: LogConfig, now_ms: int, effort: Effort) -> Batch:
    """Returns the batch of a client, if it may be stored. The order of the checks is Kafka's."""
    _check_size(len(data), config)
    batch = Batch(header, data, config)
    view = data if isinstance(data, memoryview) else memoryview(data)
    if crc32c(view[ATTRIBUTES_OFFSET:]) != header.crc:
        _refuse(ErrorCode.CORRUPT_MESSAGE, "the checksum of a record batch is wrong")
    _check_client(header)
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        _refuse(ErrorCode.INVALID_RECORD, f"a record batch of {count} records, the last at {header.last_offset_delta}")
    if count > effort.record_count:
        if count > MOST_RECORDS:
            _refuse(ErrorCode.MESSAGE_TOO_LARGE, f"a record batch of {count} records, the most are {MOST_RECORDS}")
        raise HeavyBatchError
    if count == 1 and not header.attributes & COMPRESSION_MASK and is_first_and_only(view, HEADER_SIZE, config.is_compacted):
        latest = earliest = header.base_timestamp
        is_renumbered = False
    else:
        found = _inspect(batch, view, effort)
        latest, earliest = _check_range(header, found)
        is_renumbered = found.has_wrong_offsets
    if config.has_append_time:
        _check_is_create_time(header)
    else:
        _check_timestamps(batch, latest, earliest, now_ms)
    if is_renumbered or config.compression_type != "producer":
        _recode(batch, effort, is_renumbered)
    if not config.has_append_time and (header.max_timestamp != latest or header.attributes & TIMESTAMP_TYPE_MASK):
        write_timestamp(batch.data, 0, batch.header, TimestampType.CREATE_TIME, latest)
    return batch


def _check_client(header: BatchHeader) -> None:
    """Raises unless the header has only what a client may write.

    Raises:
        KafkaError: INVALID_RECORD.
    """
    if header.base_offset:
        _refuse(ErrorCode.INVALID_RECORD, f"the base offset of a produced batch is 0, not {header.base_offset}")
    if header.attributes & (CONTROL_MASK | DELETE_HORIZON_MASK):
        _refuse(ErrorCode.INVALID_RECORD, "clients must not write control records, nor set a delete horizon")
    if header.producer_id >= 0 and header.base_sequence <= NO_SEQUENCE:
        _refuse(ErrorCode.INVALID_RECORD, f"sequence number {header.base_sequence} of producer {header.producer_id}")


def _inspect(batch: Batch, view: memoryview, effort: Effort) -> Inspection:
    """Reads the heads of the records, and checks that they match the header."""
    header, config = batch.header, batch.config
    count, base_timestamp = header.record_count, header.base_timestamp
    if header.attributes & COMPRESSION_MASK:
        limit_bytes = min(content_limit(config), effort.content_bytes)
        try:
            chunks = decompress_stream(header.compression, view[HEADER_SIZE:], limit_bytes=limit_bytes)
            found = inspect_chunks(
                chunks, base_timestamp=base_timestamp, most_count=count, limit_bytes=limit_bytes, rest=effort.rest
            )
        except KafkaError as error:
            if error.code is ErrorCode.MESSAGE_TOO_LARGE and effort.is_bounded:
                raise HeavyBatchError from None
            raise
    else:
        found = inspect_records(view[HEADER_SIZE:], base_timestamp=base_timestamp, most_count=count, rest=effort.rest)
    if found.count != count:
        _refuse(ErrorCode.INVALID_RECORD, f"a record batch has {found.count} records, but its header counts {count}")
    if config.is_compacted and (without_key := found.without_key(MOST_BLAMED)):
        message = "a record has no key, which a compacted topic needs"
        raise KafkaError(ErrorCode.INVALID_RECORD, message, record_indexes=without_key)
    return found


def _check_range(header: BatchHeader, found: Inspection) -> tuple[int, int]:
    """Returns the latest and the earliest timestamp; both are `NO_TIMESTAMP` if no record has one.

    Raises:
        KafkaError: INVALID_TIMESTAMP, a timestamp does not fit into 64 bits.
    """
    greatest_delta, least_delta = found.greatest_delta, found.least_delta
    assert greatest_delta is not None, "there is a record"
    latest = header.base_timestamp + greatest_delta
    earliest = NO_TIMESTAMP if least_delta is None else header.base_timestamp + least_delta
    if latest > GREATEST_INT64 or earliest < LEAST_INT64:
        _refuse(ErrorCode.INVALID_TIMESTAMP, "a timestamp does not fit into 64 bits")
    return latest, earliest


def content_limit(config: LogConfig) -> int:
    """Returns the most bytes that compressed records may take uncompressed."""
    return min(max(CONTENT_LIMIT_BYTES, config.max_message_bytes), MOST_CONTENT_LIMIT_BYTES)


def _check_timestamps(batch: Batch, latest: int, earliest: int, now_ms: int) -> None:
    """Raises unless the timestamps are within the bounds of CreateTime; records without a timestamp always pass.

    Raises:
        KafkaError: INVALID_TIMESTAMP.
    """
    config = batch.config
    if latest - now_ms > config.message_timestamp_after_max_ms:
        _refuse_timestamp(batch, latest, now_ms)
    if earliest != NO_TIMESTAMP and now_ms - earliest > config.message_timestamp_before_max_ms:
        _refuse_timestamp(batch, earliest, now_ms)
    if latest == NO_TIMESTAMP:
        _check_is_create_time(batch.header)


def _refuse_timestamp(batch: Batch, timestamp: int, now_ms: int) -> NoReturn:
    config, header = batch.config, batch.header
    least, most = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    chunks = decompress_stream(header.compression, memoryview(batch.data)[HEADER_SIZE:])
    times = (header.base_timestamp + delta for delta, _ in islice(deltas_in(chunks), MOST_BLAMED))
    outside = [index for index, time in enumerate(times) if time != NO_TIMESTAMP and not least <= time <= most]
    message = f"timestamp {timestamp} is not within {least} and {most}"
    raise KafkaError(ErrorCode.INVALID_TIMESTAMP, message, record_indexes=outside)


def _check_is_create_time(header: BatchHeader) -> None:
    """Raises unless the timestamp type is CreateTime.

    Raises:
        KafkaError: INVALID_TIMESTAMP.
    """
    if header.attributes & TIMESTAMP_TYPE_MASK:
        _refuse(ErrorCode.INVALID_TIMESTAMP, "a producer must not set the timestamp type to LogAppendTime")


def _recode(batch: Batch, effort: Effort, is_renumbered: bool) -> None:
    """Compresses the records with the topic's codec, and corrects their offset deltas if these are wrong.

    Raises:
        HeavyBatchError: the compression costs more than the effort.
        KafkaError: MESSAGE_TOO_LARGE, the batch is too large in the topic's codec.
    """
    header, config = batch.header, batch.config
    target, level = _codec_of(config, header)
    if target == header.compression and not is_renumbered:
        return
    if effort.is_bounded and level is not None and level > MOST_LEVEL_ON_LOOP:
        raise HeavyBatchError
    limit_bytes = min(content_limit(config), effort.recoded_bytes)
    try:
        body = decompress(header.compression, memoryview(batch.data)[HEADER_SIZE:], limit_bytes=limit_bytes)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE and effort.is_bounded:
            raise HeavyBatchError from None
        raise
    effort.rest()
    if is_renumbered:
        body = with_right_offsets(body, effort.rest)
    batch.data = with_records(batch.data, body, target, level)
    batch.header = BatchHeader(batch.data)
    _check_size(len(batch.data), config)


def _codec_of(config: LogConfig, header: BatchHeader) -> tuple[Compression, int | None]:
    """Returns the codec in which the topic stores the batch, and the level of that codec."""
    name = config.compression_type
    if name == "producer":
        return header.compression, None
    target = Compression.NONE if name == "uncompressed" else Compression[name.upper()]
    levels = {
        Compression.GZIP: config.compression_gzip_level,
        Compression.LZ4: config.compression_lz4_level,
        Compression.ZSTD: config.compression_zstd_level,
    }
    return target, levels.get(target)


def assign_offsets(batch: Batch, *, base_offset: int, leader_epoch: int, now_ms: int) -> None:
    """Writes the offsets into the batch, and its timestamp if the topic uses LogAppendTime."""
    if batch.config.has_append_time:
        write_timestamp(batch.data, 0, batch.header, TimestampType.LOG_APPEND_TIME, now_ms)
    write_offsets(batch.data, 0, batch.header, base_offset, leader_epoch)


def _refuse(code: ErrorCode, reason: str) -> NoReturn:
    raise KafkaError(code, reason)
