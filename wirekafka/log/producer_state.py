"""What a partition knows of its idempotent producers: enough to recognise a batch that it has already.

Theory of operation: each producer's last five batches are remembered (a client has at most five requests in flight), so a
batch that comes again is answered with the offset of the first time, and one that leaves a gap is refused. A producer that
is not known, because it is new here, or its records are gone, or it expired, may begin with any sequence number. The state is
a function of the log: a snapshot at an offset, and the batches behind that offset replayed.

Rules of this file: pure, but for the bytes of the snapshot, which are Apache Kafka's. `prepare` decides and changes nothing;
`commit` takes over what was decided, once the batches are written. Sequence numbers wrap from 2^31 - 1 to 0.

Source: KIP-98; org.apache.kafka.storage.internals.log.{ProducerStateManager, ProducerAppendInfo, ProducerStateEntry},
ProducerSnapshot.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from wirekafka.wire.batch import MOST_SEQUENCE, BatchHeader

BATCHES_KEPT = 5
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = Struct(">hIi")
_SNAPSHOT_CRC = Struct(">I")
_SNAPSHOT_CRC_AT = 2
_SNAPSHOT_CRC_FROM = 6
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_NO_COORDINATOR_EPOCH = -1
_NO_OFFSET = -1


class CorruptSnapshotError(Exception):
    """The bytes are no snapshot of producers."""


class BatchMemory(NamedTuple):
    """One batch of a producer, as far as it is remembered."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The sequence number of its first record."""
        return (self.last_sequence - self.offset_delta) & MOST_SEQUENCE

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


class Producer:
    """One producer, as this partition knows it.

    Attributes:
        epoch: its epoch, `NO_PRODUCER_EPOCH` until it has written.
        batches: its last batches with this epoch, the oldest first; never more than `BATCHES_KEPT`.
        last_timestamp: the greatest timestamp of its last batch, by which it expires.
        coordinator_epoch: of the coordinator that last ended a transaction of it, kept for those who read the snapshot.
        transaction_first_offset: where its open transaction begins, None if it has none.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "transaction_first_offset")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_PRODUCER_EPOCH
        self.batches: tuple[BatchMemory, ...] = ()
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = _NO_COORDINATOR_EPOCH
        self.transaction_first_offset: int | None = None

    def copy(self) -> Producer:
        """The same producer, free to change."""
        twin = Producer(self.producer_id)
        twin.epoch = self.epoch
        twin.batches = self.batches
        twin.last_timestamp = self.last_timestamp
        twin.coordinator_epoch = self.coordinator_epoch
        twin.transaction_first_offset = self.transaction_first_offset
        return twin

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record, `NO_SEQUENCE` if no batch is remembered."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int | None:
        """The offset of its last record, None if no batch is remembered."""
        return self.batches[-1].last_offset if self.batches else None

    def find_duplicate(self, batch: BatchHeader) -> BatchMemory | None:
        """The remembered batch with the same epoch and the same sequence numbers, if there is one."""
        if batch.producer_epoch != self.epoch:
            return None
        if self.batches and batch.base_sequence == (self.batches[-1].last_sequence + 1) & MOST_SEQUENCE:
            return None
        last_sequence = batch.last_sequence
        for memory in self.batches:
            if memory.last_sequence == last_sequence and memory.first_sequence == batch.base_sequence:
                return memory
        return None

    def check(self, batch: BatchHeader) -> None:
        """Checks that the batch follows what this producer wrote.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER.

        Source: ProducerAppendInfo.checkProducerEpoch and checkSequence.
        """
        self.check_epoch(batch)
        if self.epoch == NO_PRODUCER_EPOCH:
            return
        if batch.producer_epoch != self.epoch:
            if batch.base_sequence != 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {self.producer_id} begins epoch {batch.producer_epoch} with sequence number "
                    f"{batch.base_sequence}, its last epoch was {self.epoch}",
                )
            return
        last_sequence = self.last_sequence
        expected = (last_sequence + 1) & MOST_SEQUENCE
        if batch.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {self.producer_id} sent sequence number {batch.base_sequence}, its last was {last_sequence}",
            )

    def check_epoch(self, batch: BatchHeader) -> None:
        """Checks that the batch is not of an older epoch.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH.
        """
        if batch.producer_epoch < self.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {self.producer_id} has epoch {self.epoch}, the batch has {batch.producer_epoch}",
            )

    def add(self, batch: BatchHeader) -> None:
        """Remembers a batch that follows."""
        memory = BatchMemory(batch.last_sequence, batch.last_offset, batch.last_offset_delta, batch.max_timestamp)
        if batch.producer_epoch != self.epoch:
            self.epoch = batch.producer_epoch
            self.batches = (memory,)
        else:
            self.batches = (*self.batches[1 - BATCHES_KEPT :], memory)
        self.last_timestamp = batch.max_timestamp


Changes = Sequence[tuple[Producer, BatchHeader | None]]
"""Producers to take over, each with a batch to add to it first, if there is one."""


class Producers:
    """All producers of one partition.

    Attributes:
        end_offset: the state holds all batches before this offset.
        snapshot_offset: the offset of the last snapshot, None if there is none.
    """

    __slots__ = ("_by_id", "end_offset", "snapshot_offset")

    def __init__(self, end_offset: int) -> None:
        self._by_id: dict[int, Producer] | None = None
        self.end_offset = end_offset
        self.snapshot_offset: int | None = None

    def __len__(self) -> int:
        return len(self._by_id) if self._by_id else 0

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._by_id.values()) if self._by_id else iter(())

    def find(self, producer_id: int) -> Producer | None:
        """The producer, None if nothing is known of it."""
        return self._by_id.get(producer_id) if self._by_id else None

    def find_duplicate(self, batches: Iterable[BatchHeader]) -> BatchMemory | None:
        """The first batch that is here already, as it was appended then; None if all are new.

        Source: UnifiedLog.analyzeAndValidateProducerState, which answers a whole request with its first duplicate.
        """
        for batch in batches:
            if batch.producer_id != NO_PRODUCER_ID:
                known = self.find(batch.producer_id)
                found = known.find_duplicate(batch) if known else None
                if found is not None:
                    return found
        return None

    def prepare(self, batches: Sequence[BatchHeader], *, has_sequences: bool) -> Changes:
        """What is to be remembered once the batches are written; nothing if no batch has a producer.

        Args:
            batches: with their final offsets.
            has_sequences: whether sequence numbers must follow each other; a coordinator's batches have none.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        changes: list[tuple[Producer, BatchHeader]] = []
        ahead: dict[int, Producer] = {}
        for batch in batches:
            producer_id = batch.producer_id
            if producer_id == NO_PRODUCER_ID:
                continue
            known = self.find(producer_id) or Producer(producer_id)
            producer = ahead.get(producer_id, known)
            if has_sequences:
                producer.check(batch)
            else:
                producer.check_epoch(batch)
            if len(batches) > 1:
                # The next one is checked against what this one will have made of the producer.
                ahead[producer_id] = producer = producer.copy()
                producer.add(batch)
                known = producer
            changes.append((known, batch))
        return [(ahead[batch.producer_id], None) for _, batch in changes] if ahead else changes

    def commit(self, changes: Changes, end_offset: int) -> None:
        """Does what `prepare` returned: the batches are written, up to `end_offset`."""
        self.end_offset = end_offset
        for producer, batch in changes:
            if batch is not None:
                producer.add(batch)
            if self._by_id is None:
                self._by_id = {}
            self._by_id[producer.producer_id] = producer

    def replay(self, batch: BatchHeader) -> None:
        """Takes in a batch of the log, unchecked: the log has accepted it before."""
        if batch.producer_id != NO_PRODUCER_ID and batch.producer_epoch >= 0:
            producer = self.find(batch.producer_id) or Producer(batch.producer_id)
            if batch.is_control:
                self._replay_marker(producer, batch)
            else:
                producer.add(batch)
                if batch.is_transactional and producer.transaction_first_offset is None:
                    producer.transaction_first_offset = batch.base_offset
            self.commit([(producer, None)], batch.last_offset + 1)
        self.end_offset = batch.last_offset + 1

    @staticmethod
    def _replay_marker(producer: Producer, batch: BatchHeader) -> None:
        if batch.producer_epoch != producer.epoch:
            producer.epoch = batch.producer_epoch
            producer.batches = ()
        producer.transaction_first_offset = None
        producer.last_timestamp = batch.max_timestamp

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets the producers whose last record is older than that; returns how many they were.

        Source: ProducerStateManager.removeExpiredProducers.
        """
        if not self._by_id:
            return 0
        expired = [
            producer.producer_id
            for producer in self
            if producer.transaction_first_offset is None and now_ms - producer.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._by_id[producer_id]
        return len(expired)

    def clear(self, end_offset: int) -> None:
        """Forgets everything; the state is that of a log whose records begin at `end_offset`."""
        self._by_id = None
        self.end_offset = end_offset
        self.snapshot_offset = None

    def write_snapshot(self) -> bytes:
        """The state as the content of a `.snapshot` file."""
        entries = [
            _SNAPSHOT_ENTRY.pack(
                producer.producer_id,
                producer.epoch,
                producer.last_sequence,
                _NO_OFFSET if producer.last_offset is None else producer.last_offset,
                producer.batches[-1].offset_delta if producer.batches else 0,
                producer.last_timestamp,
                producer.coordinator_epoch,
                _NO_OFFSET if producer.transaction_first_offset is None else producer.transaction_first_offset,
            )
            for producer in self
        ]
        data = bytearray(_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, 0, len(entries)))
        data += b"".join(entries)
        _SNAPSHOT_CRC.pack_into(data, _SNAPSHOT_CRC_AT, crc32c(memoryview(data)[_SNAPSHOT_CRC_FROM:]))
        return bytes(data)

    def read_snapshot(self, data: bytes, offset: int) -> None:
        """Takes over the state of a `.snapshot` file, taken at `offset`.

        Raises:
            CorruptSnapshotError: the state is as it was.
        """
        producers = {producer.producer_id: producer for producer in _read_entries(data)}
        self._by_id = producers or None
        self.end_offset = offset
        self.snapshot_offset = offset


def _read_entries(data: bytes) -> Iterator[Producer]:
    if len(data) < _SNAPSHOT_HEAD.size:
        raise CorruptSnapshotError(f"{len(data)} bytes are too few")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptSnapshotError(f"version {version} is not known")
    if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise CorruptSnapshotError(f"{count} producers do not take {len(data)} bytes")
    if crc != crc32c(memoryview(data)[_SNAPSHOT_CRC_FROM:]):
        raise CorruptSnapshotError("the CRC is wrong")
    for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, transaction = fields
        producer = Producer(producer_id)
        producer.epoch = epoch
        if last_offset >= 0:
            producer.batches = (BatchMemory(last_sequence, last_offset, delta, timestamp),)
        producer.last_timestamp = timestamp
        producer.coordinator_epoch = coordinator_epoch
        producer.transaction_first_offset = transaction if transaction >= 0 else None
        yield producer
