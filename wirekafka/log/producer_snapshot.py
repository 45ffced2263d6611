"""The `.snapshot` file: what a partition knew of its producers at one offset, in Apache Kafka's format.

    version 2 | CRC of what follows 4 | count 4 | for each producer: id 8, epoch 2, last sequence 4, last offset 8,
    offset delta 4, last timestamp 8, coordinator epoch 4, first offset of its open transaction 8

Of a producer's last batches only the very last is kept.

Rules of this file: pure, but for the bytes.

Source: ProducerSnapshot.json; org.apache.kafka.storage.internals.log.ProducerStateManager.writeSnapshot and readSnapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

from crc32c import crc32c

from wirekafka.log.producer import BatchMemory, Producer

_VERSION = 1
_HEAD = Struct(">hIi")
_CRC = Struct(">I")
_CRC_AT = 2
_CRC_FROM = 6
_ENTRY = Struct(">qhiqiqiq")
_NO_OFFSET = -1


class CorruptSnapshotError(Exception):
    """The bytes are no snapshot of producers."""


def write_snapshot(producers: Iterable[Producer]) -> bytes:
    """The content of a `.snapshot` file."""
    entries = [
        _ENTRY.pack(
            producer.producer_id,
            producer.epoch,
            producer.last_sequence,
            _NO_OFFSET if producer.last_offset is None else producer.last_offset,
            producer.batches[-1].offset_delta if producer.batches else 0,
            producer.last_timestamp,
            producer.coordinator_epoch,
            _NO_OFFSET if producer.transaction_first_offset is None else producer.transaction_first_offset,
        )
        for producer in producers
    ]
    data = bytearray(_HEAD.pack(_VERSION, 0, len(entries)))
    data += b"".join(entries)
    _CRC.pack_into(data, _CRC_AT, crc32c(memoryview(data)[_CRC_FROM:]))
    return bytes(data)


def read_snapshot(data: bytes) -> Iterator[Producer]:
    """The producers of a `.snapshot` file.

    Raises:
        CorruptSnapshotError: it is none.
    """
    if len(data) < _HEAD.size:
        raise CorruptSnapshotError(f"{len(data)} bytes are too few")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshotError(f"version {version} is not known")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshotError(f"{count} producers do not take {len(data)} bytes")
    if crc != crc32c(memoryview(data)[_CRC_FROM:]):
        raise CorruptSnapshotError("the CRC is wrong")
    for fields in _ENTRY.iter_unpack(data[_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, transaction = fields
        producer = Producer(producer_id)
        producer.epoch = epoch
        if last_offset >= 0:
            producer.batches = (BatchMemory(last_sequence, last_offset, delta, timestamp),)
        producer.last_timestamp = timestamp
        producer.coordinator_epoch = coordinator_epoch
        producer.transaction_first_offset = transaction if transaction >= 0 else None
        yield producer
