"""The `.snapshot` file: a partition's producer state at one offset, in Apache Kafka's format.

    version 2 | CRC of the rest 4 | count 4 | for each producer: id 8, epoch 2, last sequence 4, last offset 8,
    offset delta 4, last timestamp 8, coordinator epoch 4, first offset of its open transaction 8

The file keeps only the last batch of each producer.

Rules of this file: pure.

Source: ProducerSnapshot.json; org.apache.kafka.storage.internals.log.ProducerStateManager.writeSnapshot and readSnapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

from crc32c import crc32c

from wirekafka.log.producer import BatchMemory, Producer
from wirekafka.names import NO_SEQUENCE

_VERSION = 1
_HEAD = Struct(">hIi")
_COUNT = Struct(">i")
HEAD_BYTES = _HEAD.size
_CRC_FROM = 6
_ENTRY = Struct(">qhiqiqiq")
_NO_OFFSET = -1


class CorruptSnapshotError(Exception):
    """The bytes are not a snapshot of producers."""


def write_snapshot(producers: Iterable[Producer]) -> bytes:
    """Returns the content of a `.snapshot` file."""
    snapshot = SlicedSnapshot(0, producers)
    entries = snapshot.pack(snapshot.count)
    return snapshot.pack_head() + entries


class SlicedSnapshot:
    """The content of a `.snapshot` file at one offset, packed a few producers at a time while batches are appended.

    Attributes:
        offset: the snapshot holds all batches before this offset.
        count: the number of producers in the snapshot.
    """

    __slots__ = ("_crc", "_former", "_packed_count", "_producers", "count", "offset")

    def __init__(self, offset: int, producers: Iterable[Producer]) -> None:
        self.offset = offset
        self._producers = list(producers)
        self.count = len(self._producers)
        self._packed_count = 0
        self._crc = crc32c(_COUNT.pack(self.count))
        self._former: dict[Producer, bytes] = {}
        """The packed entries, as of the offset, of producers that have changed since."""

    def keep(self, producer: Producer) -> None:
        """Packs a producer before it changes."""
        if producer not in self._former:
            self._former[producer] = _pack(producer)

    def pack(self, most: int) -> bytes:
        """Returns the packed entries of the next producers, at most `most`; empty after the last producer."""
        producers = self._producers[self._packed_count : self._packed_count + most]
        self._packed_count += len(producers)
        former = self._former
        entries = b"".join([former.pop(each) if each in former else _pack(each) for each in producers])
        self._crc = crc32c(entries, self._crc)
        return entries

    def pack_head(self) -> bytes:
        """Returns the first `HEAD_BYTES` of the file, once all entries are packed."""
        assert self._packed_count == self.count, "the CRC needs every entry"
        return _HEAD.pack(_VERSION, self._crc, self.count)


def _pack(producer: Producer) -> bytes:
    batches = producer.batches
    last = batches[-1] if batches else None
    return _ENTRY.pack(
        producer.producer_id,
        producer.epoch,
        NO_SEQUENCE if last is None else last.last_sequence,
        _NO_OFFSET if last is None else last.last_offset,
        0 if last is None else last.offset_delta,
        producer.last_timestamp,
        producer.coordinator_epoch,
        _NO_OFFSET if producer.transaction_first_offset is None else producer.transaction_first_offset,
    )


def read_snapshot(data: bytes) -> Iterator[Producer]:
    """Returns the producers of a `.snapshot` file.

    Raises:
        CorruptSnapshotError: the data is not a valid snapshot.
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
