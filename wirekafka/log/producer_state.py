"""What a partition knows of its idempotent and transactional producers: who may write what, and which transactions are open.

Theory of operation: each producer's last five batches are remembered (a client has at most five requests in flight), so a
batch that comes again is answered with the offset of the first time, and one that leaves a gap is refused. A producer that
is not known, because it is new here, or its records are gone, or it expired, may begin with any sequence number. The first
transactional batch of a producer opens a transaction in this partition, the coordinator's marker closes it. A transaction keeps
the last stable offset at its first offset until the high watermark passes its marker (Kafka's unreplicated transactions): before
that, another leader may not know of the marker. The state is a function of the log: a snapshot at an offset, and the batches
after that offset replayed.

Rules of this file: pure. `prepare` decides and changes nothing; `commit` takes over what was decided, once the batch is
written.
    Invariant: first_unstable_offset is the least first offset of the open and the unreplicated transactions, None if there are
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
    """A marker that is to be appended, and by whose rules.

    Attributes:
        transaction_version: the version of the feature `transaction.version` that the transaction goes by.
    """

    marker: EndMarker
    transaction_version: int


class Producers:
    """All producers of one partition.

    Attributes:
        end_offset: the state holds all batches before this offset.
        snapshot_offset: the offset of the last snapshot, None if there is none.
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
        """The snapshot that is being packed; a producer is kept for it before it changes."""
        self._unreplicated: deque[tuple[int, int]] | None = None
        """First offset and marker of each transaction whose marker is not committed, in the order of the markers."""
        self.first_unstable_offset: int | None = None
        self.end_offset = end_offset
        self.snapshot_offset: int | None = None

    def __len__(self) -> int:
        return len(self._by_id) if self._by_id else 0

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._by_id.values()) if self._by_id else iter(())

    def find(self, producer_id: int) -> Producer | None:
        """The producer, None if nothing is known of it."""
        return self._by_id.get(producer_id) if self._by_id else None

    # Appending

    def find_duplicate(self, batch: BatchHeader) -> BatchMemory | None:
        """The batch as it was appended before, None if it is new.

        Source: UnifiedLog.analyzeAndValidateProducerState.
        """
        known = self.find(batch.producer_id)
        return known.find_duplicate(batch) if known else None

    def begin_transaction(self, batch: BatchHeader, *, must_be_zero: bool, now_ms: int) -> bool:
        """Whether the batch would be the first of a transaction, which its coordinator must be asked for.

        What it may begin with is noted until it is appended; `prepare` holds the producer to it.

        Args:
            must_be_zero: a producer that is not known here begins with sequence number 0 (transactions v2).

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
        if self._beginnings is None:
            self._beginnings = {}
        noted = self._beginnings.get(producer_id)
        if noted is None:
            self._beginnings[producer_id] = VerificationState(epoch, batch.base_sequence, must_be_zero, now_ms)
        else:
            self._beginnings[producer_id] = noted.tried(epoch, batch.base_sequence)
        return True

    def prepare(self, batch: BatchHeader, *, has_sequences: bool, ending: Ending | None = None) -> Producer | None:
        """Checks a batch; returns the producer whose state changes once the batch is written; None if the batch has no producer.

        Args:
            batch: with its final offsets.
            has_sequences: whether sequence numbers must follow each other; a coordinator's batches have none.
            ending: what the batch says, if it is a marker.

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH; OUT_OF_ORDER_SEQUENCE_NUMBER; INVALID_TXN_STATE, a batch outside of the open
                transaction; TRANSACTION_COORDINATOR_FENCED, of a marker.
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
        """Makes the transactions stable whose markers the high watermark has passed.

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
        for unreplicated, _ in self._unreplicated or ():
            if first_offset is None or unreplicated < first_offset:
                first_offset = unreplicated
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
        """Closes the producer's transaction, if it has one; a marker without a transaction changes the epochs alone.

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

    def forget_beginning(self, producer_id: int) -> None:
        """No transaction of the producer is about to begin; what `begin_transaction` noted does not hold any more."""
        if self._beginnings:
            self._beginnings.pop(producer_id, None)

    # Replay

    def replay(self, batch: BatchHeader, marker: EndMarker | None = None) -> AbortedTransaction | None:
        """Applies a batch of the log without checks: the log has accepted the batch before.

        Args:
            marker: what it says, of a control batch; None if it says nothing, because compaction took its record.

        Returns:
            The transaction that it aborts, if it does.
        """
        self.end_offset = batch.last_offset + 1
        if not batch.has_producer_id:
            return None
        producer = self.find(batch.producer_id) or Producer(batch.producer_id)
        if marker is not None:
            return self._end(producer, batch, marker)
        if not batch.is_control:
            self._add(producer, batch)
        return None

    def take_replicated(self, batch: BatchHeader, marker: EndMarker | None) -> AbortedTransaction | None:
        """Applies a batch that a leader has accepted, without checks; a marker counts once the high watermark has passed it.

        Returns:
            The transaction that it aborts, if it does.

        Source: ProducerStateManager.prepareUpdate with AppendOrigin.REPLICATION.
        """
        producer = self.find(batch.producer_id)
        first_offset = producer.transaction_first_offset if producer is not None else None
        if marker is not None and first_offset is not None:
            self._note_unreplicated(first_offset, batch.last_offset)
        return self.replay(batch, marker)

    def _note_unreplicated(self, first_offset: int, marker_offset: int) -> None:
        if self._unreplicated is None:
            self._unreplicated = deque()
        self._unreplicated.append((first_offset, marker_offset))

    def expire(self, now_ms: int, expiration_ms: int) -> Work[int]:
        """Forgets the producers whose last record is older than that, `EXAMINED_AT_ONCE` in each step; returns their number.

        The producers may change between two steps. A producer that is new by then is left for the next expiry.

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
        """Forgets open transactions whose records were all deleted; the producers stay.

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
        """Forgets everything; the state is that of a log whose records begin at `end_offset`."""
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
        """The state as the content of a `.snapshot` file."""
        return write_snapshot(self)

    def begin_snapshot(self) -> SlicedSnapshot:
        """Returns a snapshot of the present state, which is packed in slices; `end_snapshot` comes after the last slice."""
        self._sliced = SlicedSnapshot(self.end_offset, self)
        return self._sliced

    def end_snapshot(self) -> None:
        """No snapshot is being packed any more, because it is complete or was abandoned."""
        self._sliced = None

    def read_snapshot(self, data: bytes, offset: int) -> None:
        """Takes over the state of a `.snapshot` file, taken at `offset`.

        Raises:
            CorruptSnapshotError: the state is as it was.
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
        """Whether the producer has a transaction open here, with just that epoch.

        Source: UnifiedLog.hasOngoingTransaction.
        """
        known = self.find(producer_id)
        return known is not None and known.transaction_first_offset is not None and known.epoch == producer_epoch
