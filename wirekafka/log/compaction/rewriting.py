"""The batches that a compaction writes: with fewer records, with a delete horizon, or with no records.

Rules of this file: pure. A batch keeps its base offset, last offset, producer and sequence numbers even if it loses records.
Records that stay are copied unchanged. Only if a batch gets a delete horizon, its records get new timestamp deltas, because the
delete horizon replaces the base timestamp.

Source: MemoryRecords.filterTo, DefaultRecordBatch.writeEmptyHeader; KIP-534 (delete horizon).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress, islice
from struct import Struct

from wirekafka.log.compaction.record_slices import ends_in, greatest_timestamp_delta, timestamp_delta, with_timestamp_delta
from wirekafka.wire.batch import (
    ATTRIBUTES_OFFSET,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    BatchHeader,
    TimestampType,
    build_batch,
    to_int64,
    varint,
    write_timestamp,
)
from wirekafka.wire.compression import compress as compress_bytes

_ATTRIBUTES = Struct(">h")
_BASE_TIMESTAMP = Struct(">q")
_COUNT = Struct(">i")
_BASE_TIMESTAMP_AT = 27
_RECORD_COUNT_AT = 57


def rewritten(
    data: memoryview,
    header: BatchHeader,
    body: bytes,
    marks: bytes,
    *,
    delete_horizon_ms: int | None,
    step: Callable[[], None],
) -> bytearray:
    """Returns the batch with only its marked records, of which there is at least one.

    Args:
        body: the records of the batch, uncompressed.
        marks: one byte for each record; 0 marks a record that is dropped.
        delete_horizon_ms: the time after which the tombstones or the marker of the batch may be dropped; None leaves the
            batch's delete horizon unchanged.
        step: called every few records.

    Raises:
        KafkaError: INVALID_RECORD, the records do not fit the header.
    """
    starts, ends = _spans(body, header.record_count, marks, step)
    has_own_timestamps = header.timestamp_type is TimestampType.CREATE_TIME
    max_timestamp = header.max_timestamp
    if has_own_timestamps:
        greatest_delta = greatest_timestamp_delta(body, starts, max_timestamp - header.base_timestamp)
        max_timestamp = to_int64(header.base_timestamp + greatest_delta)
    batch = bytearray(data[:HEADER_SIZE])
    if delete_horizon_ms is None:
        records = b"".join([body[start:end] for start, end in zip(starts, ends, strict=True)])
    else:
        if has_own_timestamps:
            shift = header.base_timestamp - delete_horizon_ms
            deltas = [timestamp_delta(body, start) + shift for start in starts]
        else:
            deltas = [max_timestamp - delete_horizon_ms] * len(starts)
        records = _shifted(body, starts, ends, deltas)
        _ATTRIBUTES.pack_into(batch, ATTRIBUTES_OFFSET, header.attributes | DELETE_HORIZON_MASK)
        _BASE_TIMESTAMP.pack_into(batch, _BASE_TIMESTAMP_AT, delete_horizon_ms)
    step()
    batch += compress_bytes(header.compression, records, None)
    _COUNT.pack_into(batch, _RECORD_COUNT_AT, len(starts))
    _COUNT.pack_into(batch, LENGTH_OFFSET, len(batch) - LOG_OVERHEAD)
    write_timestamp(batch, 0, BatchHeader(batch), header.timestamp_type, max_timestamp)
    return batch


def _spans(body: bytes, count: int, marks: bytes, step: Callable[[], None]) -> tuple[list[int], list[int]]:
    """Returns the positions at which the marked records begin, and those at which they end."""
    edges = [0]
    for stretch in ends_in(body, count):
        edges += stretch
        step()
    return list(compress(edges, marks)), list(compress(islice(edges, 1, None), marks))


def _shifted(body: bytes, starts: Iterable[int], ends: Iterable[int], deltas: Iterable[int]) -> bytes:
    """Returns the records with new timestamp deltas. Most batches have few different deltas, so their varints are reused."""
    varints: dict[int, bytes] = {}
    records = []
    for start, end, delta in zip(starts, ends, deltas, strict=True):
        encoded = varints.get(delta)
        if encoded is None:
            encoded = varints[delta] = varint(delta)
        records.append(with_timestamp_delta(body, start, end, encoded))
    return b"".join(records)


def emptied(header: BatchHeader) -> bytearray:
    """Returns the batch without records; the batch preserves its producer's sequence number or the log's offsets."""
    batch = build_batch(
        (),
        base_offset=header.base_offset,
        timestamp_type=header.timestamp_type,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        leader_epoch=header.partition_leader_epoch,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        last_offset=header.last_offset,
    )
    write_timestamp(batch, 0, BatchHeader(batch), header.timestamp_type, header.max_timestamp)
    return batch
