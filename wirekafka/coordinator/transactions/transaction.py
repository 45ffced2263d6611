"""One transactional id, and the states that it goes through.

    Empty ──► Ongoing ──► PrepareCommit ──► CompleteCommit ──► (Ongoing, Empty, Dead)
      │          └──────► PrepareAbort ───► CompleteAbort ───► (Ongoing, Empty, Dead)
      └─────────────────►

A transaction is decided by the record that says PrepareCommit or PrepareAbort. What follows, a marker in each of its
partitions and the record that says so, only carries the decision out, after a crash as well.

Rules of this file: a `Transaction` never changes; a transition makes the next one, which counts once it is in the log.
    Invariant: `producer_epoch` and the producer ids only ever go up for a transactional id, so who holds an older one is fenced.
    Invariant: an id in Ongoing, PrepareCommit or PrepareAbort has a `start_timestamp_ms`.

Source: org.apache.kafka.coordinator.transaction.{TransactionMetadata, TransactionState}; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from wirekafka.names import TopicPartition

MOST_EPOCH = 0x7FFF
EXHAUSTED_EPOCH = MOST_EPOCH - 1
"""From here on a producer gets a new id: the last epoch is kept free, so that a producer can always be fenced."""

NEVER_TIMES_OUT_MS = 0x7FFFFFFF
"""The timeout of a transaction in a two-phase commit, whose end somebody else decides (KIP-939)."""

TRANSACTIONS_V2 = 2
"""The transaction version from which on each end of a transaction bumps the epoch (KIP-890)."""


class TransactionState(IntEnum):
    """The states, by the numbers that they have in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name by which clients know it, such as PrepareCommit."""
        return self.name.title().replace("_", "")


EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DEAD, PREPARE_EPOCH_FENCE = TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE

TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    # InitProducerId starts anew; AddPartitionsToTxn opens a transaction; EndTxn may abort one that has no partition (KIP-890);
    # an id that is not used any more expires.
    EMPTY: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    # More partitions; EndTxn, a timeout, or InitProducerId of another producer.
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT, PREPARE_EPOCH_FENCE}),
    # All markers are written.
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    # As Empty.
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    # Never in the log: Dead is a tombstone there. In Apache Kafka a transaction is in PrepareEpochFence while its abort is being
    # written; here that is one step.
    PREPARE_EPOCH_FENCE: frozenset({PREPARE_ABORT}),
    DEAD: frozenset(),
}
"""Where each state may lead."""

PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
EXPIRABLE = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
STATES_BY_TITLE = {state.title: state for state in TransactionState}


@dataclass(slots=True)
class Transaction:
    """A transactional id as a record of the log has it; it is not to be changed.

    Attributes:
        producer_epoch: `NO_PRODUCER_EPOCH` before the first producer is told its own.
        last_producer_epoch: the epoch before the last bump, with which that producer may ask again (KIP-360); None where
            nobody may. It is not in the log.
        previous_producer_id: the one before the last transition, which may have been the same.
        next_producer_id: the one that follows once the markers are written, where the epoch was exhausted.
        timeout_ms: how long a transaction may stay open.
        partitions: those that the transaction writes to; none unless there is one.
        start_timestamp_ms: when the last transaction was opened, None if none was since InitProducerId.
        update_timestamp_ms: when this state was reached; the id expires by it.
        client_version: the transaction version of the client that brought it there.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int
    update_timestamp_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_timestamp_ms: int | None = None
    last_producer_epoch: int | None = None
    previous_producer_id: int | None = None
    next_producer_id: int | None = None
    client_version: int = 0

    @property
    def is_epoch_exhausted(self) -> bool:
        """The producer needs a new id before its epoch can go up again."""
        return self.producer_epoch >= EXHAUSTED_EPOCH

    def has_timed_out(self, now_ms: int) -> bool:
        """A transaction is open, and has been for longer than its timeout."""
        return (
            self.state is ONGOING
            and self.timeout_ms != NEVER_TIMES_OUT_MS
            and self.start_timestamp_ms is not None
            and self.start_timestamp_ms + self.timeout_ms < now_ms
        )

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """No transaction is open, and none has been for that long."""
        return self.state in EXPIRABLE and self.update_timestamp_ms <= now_ms - expiration_ms

    def initialized(
        self, *, producer_id: int, producer_epoch: int, last_producer_epoch: int | None, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """Belongs to whoever asked for it; no transaction is open."""
        after = self._next(EMPTY, now_ms)
        after.producer_id, after.producer_epoch, after.last_producer_epoch = producer_id, producer_epoch, last_producer_epoch
        after.timeout_ms = timeout_ms
        after.partitions = frozenset()
        after.start_timestamp_ms = None
        return after

    def with_partitions(self, partitions: frozenset[TopicPartition], *, client_version: int, now_ms: int) -> Transaction:
        """A transaction is open, or goes on, and writes to these partitions as well."""
        after = self._next(ONGOING, now_ms)
        after.partitions = self.partitions | partitions
        after.client_version = client_version
        if self.state is not ONGOING:
            after.start_timestamp_ms = now_ms
        return after

    def prepared(
        self, state: TransactionState, *, client_version: int, next_producer_id: int | None = None, now_ms: int
    ) -> Transaction:
        """It is decided how the transaction ends; one without partitions begins just now. Transactions v2 bump the epoch."""
        after = self._next(state, now_ms)
        after.client_version = client_version
        after.next_producer_id = next_producer_id
        if client_version >= TRANSACTIONS_V2:
            after.producer_epoch = min(self.producer_epoch + 1, MOST_EPOCH)
            after.last_producer_epoch = self.producer_epoch
        if self.state is not ONGOING:
            after.start_timestamp_ms = now_ms
        return after

    def fenced_v1(self, now_ms: int) -> Transaction:
        """The open transaction is aborted under a higher epoch than its producer has, as before transactions v2.

        Source: TransactionMetadata.prepareFenceProducerEpoch.
        """
        after = self.prepared(PREPARE_ABORT, client_version=0, now_ms=now_ms)
        after.producer_epoch = min(self.producer_epoch + 1, MOST_EPOCH)
        after.last_producer_epoch = None
        return after

    def completed(self, now_ms: int) -> Transaction:
        """All markers are written; the next transaction may begin, under the new producer id where the epoch was exhausted."""
        after = self._next(COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT, now_ms)
        after.partitions = frozenset()
        if self.next_producer_id is not None and self.client_version >= TRANSACTIONS_V2:
            after.producer_id, after.producer_epoch = self.next_producer_id, 0
        after.next_producer_id = None
        return after

    def _next(self, state: TransactionState, now_ms: int) -> Transaction:
        """The same in another state, to be changed until it is given away."""
        assert state in TRANSITIONS[self.state], f"{self.state.title} does not lead to {state.title}"
        return Transaction(
            self.transactional_id,
            self.producer_id,
            self.producer_epoch,
            state,
            self.timeout_ms,
            now_ms,
            self.partitions,
            self.start_timestamp_ms,
            self.last_producer_epoch,
            self.producer_id,
            self.next_producer_id,
            self.client_version,
        )
