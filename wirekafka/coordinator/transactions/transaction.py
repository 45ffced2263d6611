"""A transactional id and its states.

    Empty ──► Ongoing ──► PrepareCommit ──► CompleteCommit ──► (Ongoing, Empty, Dead)
      │          └──────► PrepareAbort ───► CompleteAbort ───► (Ongoing, Empty, Dead)
      └─────────────────►

The record with PrepareCommit or PrepareAbort decides the end of a transaction. The later steps carry the decision out, after a
crash too: a marker in each partition of the transaction, and the record with CompleteCommit or CompleteAbort.

Rules of this file: a `Transaction` is immutable. A transition makes a new one, which takes effect once its record is in the log.
    Invariant: `producer_epoch` and the producer ids of a transactional id only increase, so a producer with older ones is fenced.
    Invariant: an id in Ongoing, PrepareCommit or PrepareAbort has a `start_timestamp_ms`.

Source: org.apache.kafka.coordinator.transaction.{TransactionMetadata, TransactionState}; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from wirekafka.names import TopicPartition

MOST_EPOCH = 0x7FFF
EXHAUSTED_EPOCH = MOST_EPOCH - 1
"""From this epoch on, a producer gets a new producer id. The last epoch is reserved for fencing the producer."""

NEVER_TIMES_OUT_MS = 0x7FFFFFFF
"""The timeout of a transaction in a two-phase commit, whose end an external coordinator decides (KIP-939)."""

TRANSACTIONS_V2 = 2
"""The transaction version from which on each end of a transaction bumps the epoch (KIP-890)."""


class TransactionState(IntEnum):
    """The states, by their numbers in the log."""

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
        """The name of the state in the protocol, such as PrepareCommit."""
        return self.name.title().replace("_", "")


EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DEAD, PREPARE_EPOCH_FENCE = TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE

TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    # InitProducerId leads to Empty; AddPartitionsToTxn opens a transaction; EndTxn may abort a transaction without partitions
    # (KIP-890); an unused id expires.
    EMPTY: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    # AddPartitionsToTxn adds partitions; EndTxn, a timeout, or InitProducerId of another producer ends the transaction.
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT, PREPARE_EPOCH_FENCE}),
    # All markers are written.
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    # The same as for Empty.
    COMPLETE_COMMIT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    COMPLETE_ABORT: frozenset({EMPTY, ONGOING, PREPARE_ABORT, DEAD}),
    # These states are never in the log, where a tombstone stands for Dead. In Apache Kafka a transaction is in PrepareEpochFence
    # while its abort is being written; in this broker that is one step.
    PREPARE_EPOCH_FENCE: frozenset({PREPARE_ABORT}),
    DEAD: frozenset(),
}
"""The states that may follow each state."""

PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
EXPIRABLE = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
STATES_BY_TITLE = {state.title: state for state in TransactionState}


@dataclass(slots=True)
class Transaction:
    """The state of a transactional id, as in a record of the log. The caller must not change it.

    Attributes:
        producer_epoch: `NO_PRODUCER_EPOCH` before the first InitProducerId.
        last_producer_epoch: The epoch before the last bump, with which the producer may repeat its request (KIP-360); None if no
            repetition is allowed. It is not in the log.
        previous_producer_id: The producer id before the last transition, which may be the same as `producer_id`.
        next_producer_id: The producer id after completion, if the epoch is exhausted.
        timeout_ms: How long a transaction may stay open.
        partitions: The partitions of the transaction; empty if there is no transaction.
        start_timestamp_ms: The wall-clock time at which the last transaction was opened; None if none was opened since
            InitProducerId.
        update_timestamp_ms: The wall-clock time of the last transition, from which the expiration of the id is counted.
        client_version: The transaction version of the client that caused the last transition.
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
        """Whether the producer needs a new producer id before the epoch can be bumped again."""
        return self.producer_epoch >= EXHAUSTED_EPOCH

    def has_timed_out(self, now_ms: int) -> bool:
        """Whether a transaction is open and has exceeded its timeout."""
        return (
            self.state is ONGOING
            and self.timeout_ms != NEVER_TIMES_OUT_MS
            and self.start_timestamp_ms is not None
            and self.start_timestamp_ms + self.timeout_ms < now_ms
        )

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether no transaction is open, and the last transition is at least `expiration_ms` ago."""
        return self.state in EXPIRABLE and self.update_timestamp_ms <= now_ms - expiration_ms

    def initialized(
        self, *, producer_id: int, producer_epoch: int, last_producer_epoch: int | None, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """Returns the state Empty after InitProducerId, with the producer's id and epoch."""
        after = self._next(EMPTY, now_ms)
        after.producer_id, after.producer_epoch, after.last_producer_epoch = producer_id, producer_epoch, last_producer_epoch
        after.timeout_ms = timeout_ms
        after.partitions = frozenset()
        after.start_timestamp_ms = None
        return after

    def with_partitions(self, partitions: frozenset[TopicPartition], *, client_version: int, now_ms: int) -> Transaction:
        """Returns the state Ongoing, with these partitions added to the transaction."""
        after = self._next(ONGOING, now_ms)
        after.partitions = self.partitions | partitions
        after.client_version = client_version
        if self.state is not ONGOING:
            after.start_timestamp_ms = now_ms
        return after

    def prepared(
        self, state: TransactionState, *, client_version: int, next_producer_id: int | None = None, now_ms: int
    ) -> Transaction:
        """Returns the state PrepareCommit or PrepareAbort. Transactions v2 bump the epoch.

        If no transaction is open, the start time of the transaction is `now_ms`.
        """
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
        """Returns the state PrepareAbort with a bumped epoch, which fences the producer, as before transactions v2.

        Source: TransactionMetadata.prepareFenceProducerEpoch.
        """
        after = self.prepared(PREPARE_ABORT, client_version=0, now_ms=now_ms)
        after.producer_epoch = min(self.producer_epoch + 1, MOST_EPOCH)
        after.last_producer_epoch = None
        return after

    def completed(self, now_ms: int) -> Transaction:
        """Returns the state CompleteCommit or CompleteAbort, with the next producer id if the epoch is exhausted."""
        after = self._next(COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT, now_ms)
        after.partitions = frozenset()
        if self.next_producer_id is not None and self.client_version >= TRANSACTIONS_V2:
            after.producer_id, after.producer_epoch = self.next_producer_id, 0
        after.next_producer_id = None
        return after

    def _next(self, state: TransactionState, now_ms: int) -> Transaction:
        """Returns a copy in another state, which the calling method may still change."""
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
