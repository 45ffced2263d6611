"""The idempotent and transactional producers of a partition: their sequence numbers and their transactions.

How it works: the state has the last five batches of each producer, because a client has at most five requests in flight. A
repeated batch is answered with its first offset, and a batch that leaves a gap is refused. An unknown producer may begin with any
sequence number; a producer is unknown if it is new, its records were deleted, or it has expired. The first transactional batch of
a producer opens a transaction in this partition, and the coordinator's marker ends it. A transaction holds the last stable offset
at its first offset until the high watermark passes its marker (Kafka's unreplicated transactions), because before that another
leader may not have the marker. The state is a function of the log: it can be rebuilt from a snapshot at an offset and the batches
after it.

Rules of this file: pure. `prepare` checks a batch and changes no state; `commit` applies the batch once it is written.
    Invariant: first_unstable_offset is the least first offset of the open and the unreplicated transactions; None if there are
    none.

Source: KIP-98; org.apache.kafka.storage.internals.log.ProducerStateManager.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

from wirekafka.log.producer import BatchMemory, Producer, VerificationState
from wirekafka.log.producer_snapshot import SlicedSnapshot, read_snapshot, write_snapshot
from wirekafka.log.transaction_index import VERSION, AbortedTransaction
from wirekafka.names import NO_PRODUCER_ID
from wirekafka.pending import Work
from wirekafka.wire.batch import TRANSACTIONAL_MASK, BatchHeader
from wirekafka.wire.control import EndMarker

EXAMINED_AT_ONCE = 10_000
"""The producers that one step of an expiry examines: 2 to 4 ms."""


class Ending(NamedTuple):
    """A marker that is to be appended, and the transaction's version.

    Attributes:
        transaction_version: the level of the feature `transaction.version` of the transaction.
    """

    marker: EndMarker
    transaction_version: int


class Producers:
    """All producers of one partition.

    Attributes:
        end_offset: the state holds all batches before this offset.
        snapshot_offset: the offset of the last snapshot; None if there is none.
        first_unstable_offset: the first offset of the first transaction that is open, or whose marker is not committed; None if
            there is none.
    """

    __slots__ = (
        "_beginnings",
        "_by_id",
        "_open",
        "_sliced",
        "_unreplicated",
        "end_offset",
        "first_unstable_offset",
        "snapshot_offset",
    )

    def __init__(self, end_offset: int) -> None:
        self._by_id: dict[int, Producer] | None = None
        self._open: OrderedDict[int, int] | None = None
        self._beginnings: dict[int, VerificationState] | None = None
        self._sliced: SlicedSnapshot | None = None
        """The snapshot that is being packed. Producers that change meanwhile are packed before the change."""
        self._unreplicated: deque[tuple[int, int]] | None = None
        """First offsets and markers of the transactions whose markers are not committed, except those that begin after a
        transaction that ended later. Both offsets ascend, so the first entry has the least first offset."""
        self.first_unstable_offset: int | None = None
        self.end_offset = end_offset
        self.snapshot_offset: int | None = None

    def __len__(self) -> int:
        return len(self._by_id) if self._by_id else 0

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._by_id.values()) if self._by_id else iter(())

    def find(self, producer_id: int) -> Producer | None:
        """Returns the producer; None if it is unknown."""
        return self._by_id.get(producer_id) if self._by_id else None

    # Appending

    def find_duplicate(self, batch: BatchHeader) -> BatchMemory | None:
        """Returns the earlier append of the same batch; None if the batch is new.

        Source: UnifiedLog.analyzeAndValidateProducerState.
        """
        known = self.find(batch.producer_id)
        return known.find_duplicate(batch) if known else None

    def begin_transaction(self, batch: BatchHeader, *, must_be_zero: bool, now_ms: int) -> bool:
        """Returns whether the batch would open a transaction, so that the transaction coordinator must be asked.

        The constraints on this first batch are stored until it is appended; `prepare` checks them.

        Args:
            must_be_zero: a producer that is unknown here begins with sequence number 0 (transactions v2).

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH.

        Source: UnifiedLog.maybeStartTransactionVerification.
        """
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        known = self.find(producer_id)
        if known is not None:
            known.check_epoch(epoch)
            if known.transaction_first_offset is not None and known.epoch == epoch:
                return False
        self.note_beginning(producer_id, epoch, batch.base_sequence, must_be_zero=must_be_zero, now_ms=now_ms)
        return True

    def note_beginning(self, producer_id: int, epoch: int, base_sequence: int, *, must_be_zero: bool, now_ms: int) -> None:
        """Notes that the transaction coordinator is asked about a transaction, which its first batch will open.

        A marker of the producer drops the note: see `has_beginning`.

        Args:
            base_sequence: the first sequence number of that batch.
            must_be_zero: as in `begin_transaction`.
        """
        if self._beginnings is None:
            self._beginnings = {}
        noted = self._beginnings.get(producer_id)
        if noted is None:
            self._beginnings[producer_id] = VerificationState(epoch, base_sequence, must_be_zero, now_ms)
        else:
            self._beginnings[producer_id] = noted.tried(epoch, base_sequence)

    def prepare(self, batch: BatchHeader, *, has_sequences: bool, ending: Ending | None = None) -> Producer | None:
        """Checks a batch; returns the producer whose state changes once the batch is written; None if the batch has no producer.

        Args:
            batch: the header, with its final offsets.
            has_sequences: whether sequence numbers must follow each other; a coordinator's batches have none.
            ending: the content of the batch if it is a marker.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH; OUT_OF_ORDER_SEQUENCE_NUMBER; INVALID_TXN_STATE, a batch outside of the open
                transaction; TRANSACTION_COORDINATOR_FENCED for a marker.
        """
        producer_id = batch.producer_id
        if producer_id <= NO_PRODUCER_ID:
            return None
        producer = self.find(producer_id) or Producer(producer_id)
        if ending is not None:
            producer.check_marker(batch.producer_epoch, ending.marker, ending.transaction_version)
            return producer
        producer.check_epoch(batch.producer_epoch)
        if has_sequences:
            if self._beginnings and producer_id in self._beginnings:
                producer.check_beginning(batch, self._beginnings[producer_id])
            producer.check_sequence(batch)
        if producer.transaction_first_offset is not None:
            producer.check_transaction(batch)
        return producer

    def commit(
        self, producer: Producer | None, batch: BatchHeader, end_offset: int, ending: Ending | None = None
    ) -> AbortedTransaction | None:
        """Updates the state after the batch is written up to `end_offset`; returns the transaction that the batch aborts."""
        self.end_offset = end_offset
        if producer is None:
            return None
        if ending is None:
            self._add(producer, batch)
            return None
        first_offset = producer.transaction_first_offset
        if first_offset is not None:
            self._note_unreplicated(first_offset, batch.last_offset)
        return self._end(producer, batch, ending.marker)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Removes the unreplicated transactions whose markers the high watermark has passed.

        Source: ProducerStateManager.onHighWatermarkUpdated, removeUnreplicatedTransactions.
        """
        unreplicated = self._unreplicated
        if unreplicated is None:
            return
        while unreplicated and unreplicated[0][1] < high_watermark:
            unreplicated.popleft()
        if not unreplicated:
            self._unreplicated = None
        self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        first_offset = next(iter(self._open.values()), None) if self._open else None
        if self._unreplicated and (first_offset is None or self._unreplicated[0][0] < first_offset):
            first_offset = self._unreplicated[0][0]
        self.first_unstable_offset = first_offset

    def _add(self, producer: Producer, batch: BatchHeader) -> None:
        if self._sliced is not None:
            self._sliced.keep(producer)
        producer.add(batch)
        if self._by_id is None:
            self._by_id = {}
        self._by_id[producer.producer_id] = producer
        if batch.attributes & TRANSACTIONAL_MASK:
            if producer.transaction_first_offset is None:
                producer.transaction_first_offset = batch.base_offset
                self._note_open(producer.producer_id, batch.base_offset)
            self.forget_beginning(producer.producer_id)

    def _note_open(self, producer_id: int, first_offset: int) -> None:
        if self._open is None:
            self._open = OrderedDict()
        self._open[producer_id] = first_offset
        if self.first_unstable_offset is None:
            self.first_unstable_offset = first_offset

    def _end(self, producer: Producer, batch: BatchHeader, marker: EndMarker) -> AbortedTransaction | None:
        """Closes the producer's transaction; a marker without a transaction changes only the epochs.

        Source: ProducerAppendInfo.appendEndTxnMarker; ProducerStateManager.completeTxn and lastStableOffset.
        """
        producer_id, first_offset, last_offset = producer.producer_id, producer.transaction_first_offset, batch.last_offset
        if self._sliced is not None:
            self._sliced.keep(producer)
        producer.end_transaction(batch.producer_epoch, marker.coordinator_epoch, batch.max_timestamp)
        if self._by_id is None:
            self._by_id = {}
        self._by_id[producer_id] = producer
        self.forget_beginning(producer_id)
        if first_offset is None:
            return None
        first_open: int | None = None
        if self._open is not None:
            self._open.pop(producer_id, None)
            first_open = next(iter(self._open.values()), None)
        self._find_first_unstable()
        if marker.is_commit:
            return None
        stable = last_offset + 1 if first_open is None else first_open
        return AbortedTransaction(VERSION, producer_id, first_offset, last_offset, stable)

    def has_beginning(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer may still begin the transaction that `begin_transaction` has noted: no marker came meanwhile.

        Source: VerificationGuard; UnifiedLog.hasOngoingTransaction, verificationGuard.
        """
        noted = self._beginnings.get(producer_id) if self._beginnings else None
        return noted is not None and noted.epoch == producer_epoch

    def forget_beginning(self, producer_id: int) -> None:
        """Drops the stored constraints on the producer's next transaction, which will not begin."""
        if self._beginnings:
            self._beginnings.pop(producer_id, None)

    # Replay

    def replay(
        self, batch: BatchHeader, marker: EndMarker | None = None, *, high_watermark: int | None = None
    ) -> AbortedTransaction | None:
        """Applies a batch of the log without checks, because this log or its leader accepted it before.

        Args:
            marker: the content of a control batch; None if compaction has removed the record.
            high_watermark: markers from this offset on take effect when the high watermark passes them; None if all batches are
                committed.

        Returns:
            The transaction that the batch aborts; None if it aborts none.

        Source: ProducerStateManager.prepareUpdate with AppendOrigin.REPLICATION; UnifiedLog.loadProducersFromRecords.
        """
        self.end_offset = batch.last_offset + 1
        if not batch.has_producer_id:
            return None
        producer = self.find(batch.producer_id) or Producer(batch.producer_id)
        if marker is not None:
            first_offset = producer.transaction_first_offset
            if first_offset is not None and high_watermark is not None and batch.last_offset >= high_watermark:
                self._note_unreplicated(first_offset, batch.last_offset)
            return self._end(producer, batch, marker)
        if not batch.is_control:
            self._add(producer, batch)
        return None

    def _note_unreplicated(self, first_offset: int, marker_offset: int) -> None:
        """Notes a transaction that has ended, and drops those that begin later: their markers are committed first."""
        unreplicated = self._unreplicated
        if unreplicated is None:
            unreplicated = self._unreplicated = deque()
        while unreplicated and unreplicated[-1][0] > first_offset:
            unreplicated.pop()
        unreplicated.append((first_offset, marker_offset))

    def expire(self, now_ms: int, expiration_ms: int) -> Work[int]:
        """Removes producers whose last record is older than `expiration_ms`, `EXAMINED_AT_ONCE` a step; returns their number.

        The producers may change between two steps. A producer that is new by then is examined by the next expiry.

        Source: ProducerStateManager.removeExpiredProducers.
        """
        noted_ids = [*self._beginnings] if self._beginnings else []
        for number, producer_id in enumerate(noted_ids, 1):
            noted = self._beginnings.get(producer_id) if self._beginnings else None
            if noted is not None and now_ms - noted.since_ms >= expiration_ms:
                self.forget_beginning(producer_id)
            if number % EXAMINED_AT_ONCE == 0:
                yield
        if not self._beginnings:
            self._beginnings = None
        expired_count = 0
        # A list would keep all expired producers until its end, and then free them in one step.
        left = deque(self)
        while left:
            for _ in range(min(EXAMINED_AT_ONCE, len(left))):
                producer = left.popleft()
                is_idle = producer.transaction_first_offset is None and now_ms - producer.last_timestamp >= expiration_ms
                if is_idle and self._by_id is not None and self._by_id.get(producer.producer_id) is producer:
                    del self._by_id[producer.producer_id]
                    expired_count += 1
            if left:
                yield
        return expired_count

    def forget_transactions(self, log_start_offset: int) -> None:
        """Removes open transactions whose records were all deleted; their producers stay.

        A later record of the producer begins the transaction again.
        """
        if self._open is None:
            return
        for producer_id in [*self._open]:
            producer = self.find(producer_id)
            if producer is not None and (producer.last_offset or 0) < log_start_offset:
                producer.transaction_first_offset = None
                del self._open[producer_id]
        self._find_first_unstable()

    def clear(self, end_offset: int) -> None:
        """Removes all producers; the state is then that of a log whose first record has offset `end_offset`."""
        self._take_over([])
        self._sliced = None
        self.end_offset = end_offset
        self.snapshot_offset = None

    def _take_over(self, producers: list[Producer]) -> None:
        self._by_id = {producer.producer_id: producer for producer in producers} or None
        firsts = ((producer.transaction_first_offset, producer.producer_id) for producer in producers)
        begun = sorted((first_offset, producer_id) for first_offset, producer_id in firsts if first_offset is not None)
        self._open = OrderedDict((producer_id, first_offset) for first_offset, producer_id in begun) or None
        self._unreplicated = None
        self.first_unstable_offset = begun[0][0] if begun else None
        self._beginnings = None

    def write_snapshot(self) -> bytes:
        """Returns the state as the content of a `.snapshot` file."""
        return write_snapshot(self)

    def begin_snapshot(self) -> SlicedSnapshot:
        """Returns a snapshot of the current state, which is packed in slices; `end_snapshot` must follow the last slice."""
        self._sliced = SlicedSnapshot(self.end_offset, self)
        return self._sliced

    def end_snapshot(self) -> None:
        """Ends the snapshot that is being packed, because it is complete or was abandoned."""
        self._sliced = None

    def read_snapshot(self, data: bytes, offset: int) -> None:
        """Replaces the state by that of a `.snapshot` file, taken at `offset`.

        Raises:
            CorruptSnapshotError: the state is unchanged.
        """
        self._take_over(list(read_snapshot(data)))
        self.end_offset = offset
        self.snapshot_offset = offset

    # Transactions

    @property
    def open_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction by its producer, in the order of these offsets."""
        return dict(self._open or ())

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction with exactly this epoch.

        Source: UnifiedLog.hasOngoingTransaction.
        """
        known = self.find(producer_id)
        return known is not None and known.transaction_first_offset is not None and known.epoch == producer_epoch
