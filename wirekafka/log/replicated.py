"""The batches of a leader's Fetch response, checked before a follower appends them.

How it works: a follower stores the bytes of the leader: batches of format 2, and messages and wrappers of the formats 0 and 1.
The response is a part of the leader's file, so its last batch may be incomplete. A response may have 100,000 small batches, so
the batches are yielded in portions, each small enough for one step on the broker's loop.

Rules of this file: it only reads; no I/O, no clock, no state.

Differs from Apache Kafka: the base offset of a batch must be after the last offset of the batch before it. Kafka compares the
last offsets only.

Source: UnifiedLog.analyzeAndValidateRecords with AppendOrigin.REPLICATION; KAFKA-18723 for the leader epochs;
org.apache.kafka.common.record.ByteBufferLogInputStream.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from zlib import crc32

import structlog
from crc32c import crc32c

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.positions import LEAST_V2_LENGTH, BatchPosition, read_place
from wirekafka.wire.batch import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    GREATEST_INT64,
    HEADER_SIZE,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
)
from wirekafka.wire.legacy import CRC_OFFSET as MESSAGE_CRC_OFFSET
from wirekafka.wire.legacy import LEAST_MESSAGE_BYTES

log = structlog.get_logger(__name__)

PORTION_BATCHES = 500
"""The most batches of a portion; 500 small batches take 3 ms."""
PORTION_BYTES = 2 << 20
"""A portion ends with the batch that reaches this size; its checksum and its write take 2 ms."""

_LENGTH = Struct(">i")
_CHECKSUM = Struct(">I")
_UP_TO_MAGIC_BYTES = MAGIC_OFFSET + 1


def replicated_batches(records: memoryview, *, leader_epoch: int, partition: str) -> Iterator[list[BatchPosition]]:
    """Yields the positions of the complete batches in a Fetch response, in portions of one batch or more.

    A batch whose leader epoch is greater than that of the fetch ends the response: the replica that sent it had already followed
    another leader.

    Args:
        leader_epoch: the leader epoch of the fetch.
        partition: the partition, for the log lines.

    Raises:
        KafkaError: CORRUPT_MESSAGE, the bytes are not a batch, a checksum is wrong, or offsets do not ascend. The portions before
            that batch were yielded.
    """
    portion: list[BatchPosition] = []
    size_bytes = position = 0
    least_offset = 0
    while (place := _whole_batch(records, position)) is not None:
        if place.leader_epoch > leader_epoch:
            log.info(
                "Dropped batches of a later leader epoch",
                partition=partition,
                base_offset=place.base_offset,
                batch_leader_epoch=place.leader_epoch,
                leader_epoch=leader_epoch,
            )
            break
        _check(records, place, least_offset)
        portion.append(place)
        least_offset = place.last_offset + 1
        position += place.size_bytes
        size_bytes += place.size_bytes
        if len(portion) >= PORTION_BATCHES or size_bytes >= PORTION_BYTES:
            yield portion
            portion, size_bytes = [], 0
    if portion:
        yield portion


def _whole_batch(records: memoryview, position: int) -> BatchPosition | None:
    """Returns the batch or message at a position; None if the bytes end before it does.

    Raises:
        KafkaError: CORRUPT_MESSAGE, its length or its magic number is impossible.
    """
    left_bytes = len(records) - position
    if left_bytes < _UP_TO_MAGIC_BYTES:
        return None
    magic = records[position + MAGIC_OFFSET]
    (length,) = _LENGTH.unpack_from(records, position + LENGTH_OFFSET)
    if magic > MAGIC or length < (LEAST_V2_LENGTH if magic == MAGIC else LEAST_MESSAGE_BYTES):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{length} bytes of message format {magic} are not a batch")
    if left_bytes < LOG_OVERHEAD + length:
        return None
    if left_bytes >= HEADER_SIZE:
        place = read_place(records, position, position)
    else:  # a message of an old format may be shorter than a header
        place = read_place(bytes(records[position:]) + bytes(HEADER_SIZE), 0, position)
    if place is None or place.last_offset >= GREATEST_INT64:  # the log end offset would be no offset
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a batch has an impossible last offset")
    return place


def _check(records: memoryview, place: BatchPosition, least_offset: int) -> None:
    position, end = place.position, place.position + place.size_bytes
    if records[position + MAGIC_OFFSET] == MAGIC:
        computed, crc_offset = crc32c(records[position + ATTRIBUTES_OFFSET : end]), CRC_OFFSET
    else:
        computed, crc_offset = crc32(records[position + MAGIC_OFFSET : end]), MESSAGE_CRC_OFFSET
    if computed != _CHECKSUM.unpack_from(records, position + crc_offset)[0]:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the checksum of the batch at offset {place.base_offset} is wrong")
    if place.base_offset < least_offset:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch at offset {place.base_offset} is not after the one before it, {least_offset - 1}",
        )
