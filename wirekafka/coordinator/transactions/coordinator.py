"""The transaction coordinator: all transactional ids and their changes.

How it works: every entry point is one step. A step gets the time, decides, and returns a `Step` with the record to append
and the response that follows the append. Only `replay` changes a transaction, both in operation and at the start. For a prepared
transaction, `markers` returns the markers that are still missing in its partitions, and `complete` ends the transaction after all
markers are written. The runtime writes the markers after a step that prepares a transaction, at the start for transactions that a
crash left prepared, and again later after a failure.

Rules of this file: no I/O, no clock: time is passed as `now_ms`, and a function provides new producer ids.
    Invariant: replaying the log gives the same transactions as the live coordinator has, except their `last_producer_epoch` and
        the fields that records of version 0 do not have.
    Invariant: `_unmarked` has exactly the prepared transactions.
    A step that is refused, or whose record cannot be appended, changes nothing.

Source: kafka.coordinator.transaction.{TransactionCoordinator, TransactionStateManager} of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from wirekafka.coordinator.patterns import check_pattern, matcher
from wirekafka.coordinator.transactions.records import TransactionRecord
from wirekafka.coordinator.transactions.requests import InitRequest, Marker, ProducerIdentity, TransactionFilter
from wirekafka.coordinator.transactions.settings import TransactionSettings
from wirekafka.coordinator.transactions.transaction import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EXHAUSTED_EPOCH,
    NEVER_TIMES_OUT_MS,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    STATES_BY_TITLE,
    TRANSACTIONS_V2,
    Transaction,
)
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from wirekafka.pending import Work

T = TypeVar("T")

EXAMINED_AT_ONCE = 1000
"""The transactional ids that one step of long work examines: 0.2 ms, or 2 ms with a regular expression."""


@dataclass(slots=True)
class Step(Generic[T]):
    """The outcome of one step.

    Attributes:
        record: The record to append and then to replay; None if nothing changes.
        result: The response after the append.
        error: If not NONE, the error of the response after the append, instead of `result`.
    """

    record: TransactionRecord | None
    result: T
    error: ErrorCode = ErrorCode.NONE


class TransactionCoordinator:
    """All transactional ids of one broker.

    Args:
        take_producer_id: Returns an unused producer id. If it raises a KafkaError, the step fails with that error.
        finalized_version: Returns the level of the feature transaction.version, for aborts that the coordinator starts itself.

    Attributes:
        transactions: The transactions by transactional id.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        take_producer_id: Callable[[], int],
        finalized_version: Callable[[], int],
    ) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._settings = settings
        self._take_producer_id = take_producer_id
        self._finalized_version = finalized_version
        self._unmarked: dict[str, set[TopicPartition]] = {}

    def replay(self, record: TransactionRecord) -> None:
        """Applies a record of the log."""
        transactional_id, transaction = record.transactional_id, record.value
        if transaction is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = transaction
            if transaction.state in PREPARED:
                self._unmarked[transactional_id] = set(transaction.partitions)
                return
        self._unmarked.pop(transactional_id, None)

    def init_producer_id(self, request: InitRequest, now_ms: int) -> Step[ProducerIdentity]:
        """Assigns the transactional id to the requesting producer, and fences the former producer.

        An open transaction is aborted first. The response is then CONCURRENT_TRANSACTIONS, and the client repeats the request.

        Raises:
            KafkaError: INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, TRANSACTIONAL_ID_AUTHORIZATION_FAILED (two-phase commit is
                switched off), UNSUPPORTED_VERSION (keeping a prepared transaction), PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
                and what `take_producer_id` raises.
        """
        timeout_ms = self._check_init(request)
        known = self.transactions.get(request.transactional_id)
        if known is None:
            known = Transaction(
                request.transactional_id,
                self._take_producer_id(),
                NO_PRODUCER_EPOCH,
                EMPTY,
                timeout_ms,
                update_timestamp_ms=now_ms,
            )
        _check_not_prepared(known)
        expected = request.expected
        if expected is not None and not _may_go_on(known, expected):
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if known.state is ONGOING:
            return Step(self._fence(known, now_ms), _identity(known), ErrorCode.CONCURRENT_TRANSACTIONS)
        after = self._initialized(known, None if expected is None else expected.producer_epoch, timeout_ms, now_ms)
        return Step(_record(after), _identity(after))

    def _check_init(self, request: InitRequest) -> int:
        """Returns the transaction timeout in milliseconds. Raises unless the request is valid in any state."""
        if not request.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if request.is_two_phase_commit and not self._settings.is_two_phase_commit_enabled:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if request.keeps_prepared:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        if request.is_two_phase_commit:
            return NEVER_TIMES_OUT_MS
        if not 0 < request.timeout_ms <= self._settings.max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return request.timeout_ms

    def _initialized(self, known: Transaction, expected_epoch: int | None, timeout_ms: int, now_ms: int) -> Transaction:
        """Returns the transaction with the next producer epoch, or with a new producer id if the epoch is exhausted.

        A repeated request gets the same epoch again.

        Raises:
            KafkaError: PRODUCER_FENCED if the expected epoch is neither the current one nor, in a repeated request, the last one.

        Source: KIP-360; TransactionMetadata.prepareIncrementProducerEpoch, prepareProducerIdRotation.
        """
        producer_id, epoch, last_epoch = known.producer_id, known.producer_epoch + 1, None
        if expected_epoch is not None and known.producer_epoch != NO_PRODUCER_EPOCH:
            last_epoch = known.producer_epoch
            if expected_epoch != known.producer_epoch:
                if expected_epoch != known.last_producer_epoch:
                    raise KafkaError(ErrorCode.PRODUCER_FENCED)
                epoch, last_epoch = known.producer_epoch, known.last_producer_epoch
        if epoch > EXHAUSTED_EPOCH:
            producer_id, epoch = self._take_producer_id(), 0
        return known.initialized(
            producer_id=producer_id, producer_epoch=epoch, last_producer_epoch=last_epoch, timeout_ms=timeout_ms, now_ms=now_ms
        )

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        *,
        client_version: int,
        now_ms: int,
    ) -> Step[None]:
        """Opens a transaction, or adds partitions to the open transaction.

        Raises:
            KafkaError: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.

        Source: TransactionCoordinator.handleAddPartitionsToTransaction.
        """
        known = self._find(transactional_id)
        _check_not_prepared(known)
        _check_producer(known, producer)
        if known.state is ONGOING and partitions <= known.partitions:
            return Step(None, None)
        return Step(_record(known.with_partitions(partitions, client_version=client_version, now_ms=now_ms)), None)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: frozenset[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Returns the partitions that are not in the producer's open transaction, each with TRANSACTION_ABORTABLE.

        Raises:
            KafkaError: An error for all partitions, as in `add_partitions`.

        Source: KIP-890; TransactionCoordinator.handleVerifyPartitionsInTransaction.
        """
        known = self._find(transactional_id)
        _check_producer(known, producer)
        _check_not_prepared(known)
        return dict.fromkeys(partitions - known.partitions, ErrorCode.TRANSACTION_ABORTABLE)

    def _find(self, transactional_id: str) -> Transaction:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        known = self.transactions.get(transactional_id)
        if known is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return known

    def end(
        self, transactional_id: str, producer: ProducerIdentity, *, is_commit: bool, client_version: int, now_ms: int
    ) -> Step[ProducerIdentity]:
        """Decides to commit or abort the open transaction. A repeated request gets the same response.

        Returns:
            A step whose result is the producer id and epoch of the next transaction.

        Raises:
            KafkaError: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE.
        """
        known = self._find(transactional_id)
        if client_version < TRANSACTIONS_V2:
            return self._end_v1(known, producer, is_commit, client_version, now_ms)
        return self._end_v2(known, producer, is_commit, client_version, now_ms)

    def _end_v1(
        self, known: Transaction, producer: ProducerIdentity, is_commit: bool, client_version: int, now_ms: int
    ) -> Step[ProducerIdentity]:
        """Source: TransactionCoordinator.endTransactionWithTV1."""
        _check_producer(known, producer)
        _check_not_prepared(known)
        if known.state is EMPTY:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        if known.state is ONGOING:
            state = PREPARE_COMMIT if is_commit else PREPARE_ABORT
            after = known.prepared(state, client_version=client_version, now_ms=now_ms)
            return Step(_record(after), _identity(after))
        return _ended_already(known, is_commit)

    def _end_v2(
        self, known: Transaction, producer: ProducerIdentity, is_commit: bool, client_version: int, now_ms: int
    ) -> Step[ProducerIdentity]:
        """Decides the end under transactions v2, where each end bumps the epoch.

        A repeated request has the former epoch, and a first request has the current epoch. A first request may abort a
        transaction without partitions, if the request that would have added its first partition was lost.

        Source: TransactionCoordinator.endTransaction.
        """
        _check_not_prepared(known)
        producer_id, epoch = producer
        is_rotated = known.previous_producer_id == producer_id and epoch == EXHAUSTED_EPOCH and known.producer_epoch == 0
        if known.producer_id != producer_id and not is_rotated:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        # Only an end by transactions v2 bumps the epoch. If v1 ended the transaction, the next epoch belongs to another producer.
        has_ended = known.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and known.client_version >= TRANSACTIONS_V2
        if has_ended and (is_rotated or known.producer_epoch == epoch + 1):
            return _ended_already(known, is_commit)
        if known.producer_epoch != epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED)
        if is_commit and known.state is not ONGOING:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        after = self._prepared_v2(known, is_commit, client_version, now_ms)
        return Step(_record(after), _identity(after.completed(now_ms)))

    def _prepared_v2(self, known: Transaction, is_commit: bool, client_version: int, now_ms: int) -> Transaction:
        return known.prepared(
            PREPARE_COMMIT if is_commit else PREPARE_ABORT,
            client_version=client_version,
            next_producer_id=self._take_producer_id() if known.is_epoch_exhausted else None,
            now_ms=now_ms,
        )

    def _fence(self, known: Transaction, now_ms: int) -> TransactionRecord:
        """Returns the record that aborts an open transaction with a higher epoch, which fences its producer.

        Source: TransactionCoordinator.handleInitProducerId, abortTimedOutTransactions.
        """
        if self._finalized_version() < TRANSACTIONS_V2:
            return _record(known.fenced_v1(now_ms))
        return _record(self._prepared_v2(known, False, TRANSACTIONS_V2, now_ms))

    def markers(self, transactional_id: str) -> list[Marker]:
        """Returns the missing markers of a prepared transaction; an empty list if it is not prepared."""
        partitions = self._unmarked.get(transactional_id)
        if not partitions:
            return []
        known = self.transactions[transactional_id]
        is_commit = known.state is PREPARE_COMMIT
        return [
            Marker(partition, known.producer_id, known.producer_epoch, is_commit, known.client_version)
            for partition in sorted(partitions)
        ]

    def marked(self, transactional_id: str, partition: TopicPartition) -> None:
        """Notes that a partition has its marker, or no longer needs one."""
        self._unmarked[transactional_id].discard(partition)

    def complete(self, transactional_id: str, now_ms: int) -> Step[None]:
        """Ends a prepared transaction after all its markers are written."""
        assert not self._unmarked[transactional_id], "a partition has no marker yet"
        return Step(_record(self.transactions[transactional_id].completed(now_ms)), None)

    def is_prepared(self, transactional_id: str) -> bool:
        """Whether the end of the transaction is decided and the transaction is not completed."""
        return transactional_id in self._unmarked

    @property
    def prepared(self) -> list[str]:
        """The transactional ids whose transactions are prepared and not completed."""
        return list(self._unmarked)

    @property
    def greatest_producer_id(self) -> int:
        """The greatest current or next producer id of all transactional ids; -1 if there is none."""
        known = self.transactions.values()
        return max((max(each.producer_id, each.next_producer_id or NO_PRODUCER_ID) for each in known), default=NO_PRODUCER_ID)

    def timed_out(self, now_ms: int) -> Work[list[str]]:
        """Returns the transactional ids whose open transactions have exceeded their timeout.

        The work is done in steps, and transactions may change between two steps: `has_timed_out` tells whether an id still has.
        """
        found = yield from self._where(lambda known: known.has_timed_out(now_ms))
        return [known.transactional_id for known in found]

    def has_timed_out(self, transactional_id: str, now_ms: int) -> bool:
        """Whether the id has an open transaction that has exceeded its timeout."""
        known = self.transactions.get(transactional_id)
        return known is not None and known.has_timed_out(now_ms)

    def abort_timed_out(self, transactional_id: str, now_ms: int) -> Step[None]:
        """Aborts a transaction that has exceeded its timeout, and fences its producer.

        Raises:
            KafkaError: The error of `take_producer_id`.
        """
        return Step(self._fence(self.transactions[transactional_id], now_ms), None)

    def expired(self, now_ms: int) -> Work[list[str]]:
        """Returns the transactional ids that have expired (transactional.id.expiration.ms).

        The work is done in steps, and transactions may change between two steps: `has_expired` tells whether an id still has.

        Source: TransactionStateManager.removeExpiredTransactionalIds.
        """
        expiration_ms = self._settings.transactional_id_expiration_ms
        found = yield from self._where(lambda known: known.has_expired(now_ms, expiration_ms))
        return [known.transactional_id for known in found]

    def _where(self, is_wanted: Callable[[Transaction], bool]) -> Work[list[Transaction]]:
        """Returns the transactions that meet a condition, `EXAMINED_AT_ONCE` in each step."""
        wanted = []
        for number, known in enumerate([*self.transactions.values()], 1):
            if is_wanted(known):
                wanted.append(known)
            if number % EXAMINED_AT_ONCE == 0:
                yield
        return wanted

    def has_expired(self, transactional_id: str, now_ms: int) -> bool:
        """Whether the transactional id exists and has expired."""
        known = self.transactions.get(transactional_id)
        return known is not None and known.has_expired(now_ms, self._settings.transactional_id_expiration_ms)

    def describe(self, transactional_id: str) -> tuple[Transaction, list[TopicPartition]]:
        """Returns a transaction, and its partitions that have no marker yet.

        Raises:
            KafkaError: INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        known = self.transactions.get(transactional_id)
        if known is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return known, sorted(self._unmarked.get(transactional_id, known.partitions))

    def list_transactions(self, wanted: TransactionFilter, now_ms: int) -> Work[list[Transaction]]:
        """Returns the transactions that match the filter; an unknown state matches no transaction. The work is done in steps.

        Raises:
            KafkaError: INVALID_REGULAR_EXPRESSION.

        Source: TransactionStateManager.listTransactionStates; KIP-664, KIP-994, KIP-1152.
        """
        states = {STATES_BY_TITLE[title] for title in wanted.states if title in STATES_BY_TITLE}
        producer_ids = frozenset(wanted.producer_ids)
        least_ms = wanted.open_longer_than_ms
        is_match = None
        if wanted.pattern:
            _check_pattern(wanted.pattern)
            is_match = matcher(wanted.pattern)

        def is_wanted(known: Transaction) -> bool:
            return (
                (not producer_ids or known.producer_id in producer_ids)
                and (not wanted.states or known.state in states)
                and (least_ms is None or now_ms - (known.start_timestamp_ms or -1) > least_ms)
                and (is_match is None or is_match(known.transactional_id))
            )

        return (yield from self._where(is_wanted))

    def unload(self, is_lost: Callable[[str], bool]) -> Iterator[list[str]]:
        """Removes the transactional ids whose log this broker has lost.

        Args:
            is_lost: Returns whether the log of a transactional id is lost.

        Returns:
            The ids of each step, which examines `EXAMINED_AT_ONCE` ids.
        """
        known = iter([*self.transactions])
        while some := [*islice(known, EXAMINED_AT_ONCE)]:
            lost = [
                transactional_id
                for transactional_id in some
                if transactional_id in self.transactions and is_lost(transactional_id)
            ]
            for transactional_id in lost:
                del self.transactions[transactional_id]
                self._unmarked.pop(transactional_id, None)
            yield lost


def _may_go_on(known: Transaction, expected: ProducerIdentity) -> bool:
    """Whether the expected producer id may belong to the current producer of the transactional id. The epoch is checked later.

    After the epoch was exhausted, the producer may still expect its former producer id, if it did not get the response with the
    new one.

    Source: KIP-360; TransactionCoordinator.prepareInitProducerIdTransit.
    """
    if known.producer_epoch == NO_PRODUCER_EPOCH or expected.producer_id == known.producer_id:
        return True
    return expected.producer_id == known.previous_producer_id and expected.producer_epoch >= EXHAUSTED_EPOCH


def _check_producer(known: Transaction, producer: ProducerIdentity) -> None:
    """Raises unless the transactional id belongs to the producer.

    Raises:
        KafkaError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED.
    """
    if known.producer_id != producer.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if known.producer_epoch != producer.producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)


def _check_not_prepared(known: Transaction) -> None:
    """Raises if the transaction of the id is prepared, which means that some of its markers are not written.

    With transactions v2, this check precedes `_check_producer`, because the producer may already have its next producer id.

    Raises:
        KafkaError: CONCURRENT_TRANSACTIONS.
    """
    if known.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)


def _ended_already(known: Transaction, is_commit: bool) -> Step[ProducerIdentity]:
    """Returns the response to a repeated EndTxn. Raises unless it asks for the same end.

    Raises:
        KafkaError: INVALID_TXN_STATE.
    """
    if is_commit != (known.state is COMPLETE_COMMIT):
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    return Step(None, _identity(known))


def _identity(known: Transaction) -> ProducerIdentity:
    return ProducerIdentity(known.producer_id, known.producer_epoch)


def _record(transaction: Transaction) -> TransactionRecord:
    return TransactionRecord(transaction.transactional_id, transaction)


def _check_pattern(regex: str) -> None:
    try:
        check_pattern(regex)
    except ValueError as error:
        message = f"Transaction ID pattern `{regex}` is not a valid regular expression: {error}."
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from error
