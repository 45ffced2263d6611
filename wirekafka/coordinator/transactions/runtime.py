"""The runtime of the transaction coordinator: its requests, its timers, and the execution of its steps.

How it works: a request becomes one step of `TransactionCoordinator`. Its record is appended to the transactional id's
partition of __transaction_state, and replayed (`StateTopic`). Once a record that decides how a transaction ends is committed,
`Endings` writes the markers, and the transaction is completed after the commit of the last marker. With few partitions, and one
replica of each, all of this happens inside the call, on the broker's loop. Until the transaction is completed, clients get
CONCURRENT_TRANSACTIONS.

Rules of this file: no other module of the coordinator does I/O or reads the clock.
    Invariant: a transaction that is prepared and not completed is in `_endings`.

Source: kafka.coordinator.transaction.{TransactionCoordinator, TransactionStateManager},
org.apache.kafka.server.transaction.AddPartitionsToTxnManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from wirekafka.coordinator.effects import append_error
from wirekafka.coordinator.reply_gate import after_commit
from wirekafka.coordinator.state_topic import StateTopic
from wirekafka.coordinator.transactions.coordinator import EXAMINED_AT_ONCE, Step, TransactionCoordinator
from wirekafka.coordinator.transactions.endings import Ending, Endings, Markers
from wirekafka.coordinator.transactions.records import (
    OLD_VALUE_VERSION,
    VALUE_VERSION,
    TransactionRecord,
    decode,
    encode,
)
from wirekafka.coordinator.transactions.requests import InitRequest, Marker, ProducerIdentity, TransactionFilter
from wirekafka.coordinator.transactions.settings import TransactionSettings
from wirekafka.coordinator.transactions.transaction import TRANSACTIONS_V2, Transaction
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.metadata.features import TRANSACTION_VERSION
from wirekafka.names import TRANSACTION_STATE_TOPIC, TopicPartition
from wirekafka.pending import Pending

if TYPE_CHECKING:
    from wirekafka.clock import Clock
    from wirekafka.config import BrokerConfig
    from wirekafka.coordinator.cluster import CoordinatorCluster
    from wirekafka.coordinator.reply_gate import ReplyGate
    from wirekafka.coordinator.transactions.remote_verification import Errors, RemoteVerification
    from wirekafka.pending import Work
    from wirekafka.replication.partition import Partition
    from wirekafka.replication.replica_manager import HostedTopic, HostedTopics

T = TypeVar("T")

log = structlog.get_logger(__name__)

MOST_ABORTED_AT_ONCE = 100
"""How many timed-out transactions are aborted in one turn of the loop: about 10 ms. Clients are served between the turns."""
PAUSE_MS = 10

MOST_EXPIRED_AT_ONCE = 300
"""How many expired transactional ids are deleted in one turn of the loop: a few milliseconds."""


class TransactionRuntime:
    """The transactions of one broker.

    Args:
        take_producer_id: Returns an unused producer id.
        run_in_slices: Runs long work a few milliseconds at a time, as `Slices.run` does.

    Attributes:
        state: The partitions of __transaction_state.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        topics: HostedTopics,
        markers: Markers,
        take_producer_id: Callable[[], int],
        gate: ReplyGate,
        run_in_slices: Callable[[Work[None]], object],
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._abort_interval_ms = config.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms")
        self._expiration_interval_ms = config.integer("transaction.remove.expired.transaction.cleanup.interval.ms")
        self._coordinator = TransactionCoordinator(TransactionSettings.of(config), take_producer_id, self._finalized_version)
        self.state: StateTopic[TransactionRecord] = StateTopic(
            TRANSACTION_STATE_TOPIC,
            "transactions",
            self,
            clock,
            topics,
            gate,
            partition_count=config.integer("transaction.state.log.num.partitions"),
        )
        self._endings = Endings(clock, markers, self)
        self._remote: RemoteVerification | None = None
        self._run_in_slices = run_in_slices

    def load(self) -> None:
        """Loads all transactions from the log, and ends the prepared ones.

        The broker calls it once, on the loop, after the groups are loaded and before it listens.
        """
        self.state.load_all()
        if self._coordinator.transactions:
            log.info("Loaded transactions", ids=len(self._coordinator.transactions), to_complete=len(self._endings))
        self._begin_background_work()

    def _begin_background_work(self) -> None:
        self._topics.on_delete.append(self._on_topic_deleted)
        self._clock.expire_later(self._abort_interval_ms, self._abort_timed_out)
        self._clock.call_later(self._expiration_interval_ms, self._expire)

    def join_cluster(self, cluster: CoordinatorCluster) -> None:
        """Prepares for a cluster; the broker calls it instead of `load`. Ids are served once their partition is loaded."""
        self.state.join_cluster(partial(cluster.partition_count, TRANSACTION_STATE_TOPIC))
        self._topics.on_change.append(lambda _: self.state.refresh_partition_count())
        from wirekafka.coordinator.transactions.remote_verification import RemoteVerification

        self._remote = RemoteVerification(cluster, self._clock)
        self._begin_background_work()

    def load_partition(self, partition: Partition) -> None:
        """Loads the transactions of a partition that this broker leads now, in slices, and ends the prepared ones.

        Source: TransactionCoordinator.onElection.
        """
        self.state.elect(partition, partition.leader_epoch)

    def unload_partition(self, index: int, leader_epoch: int | None) -> None:
        """Removes the transactions of a partition that this broker no longer leads, in slices.

        Args:
            leader_epoch: The epoch of the new leader; None if the partition is deleted.

        Source: TransactionCoordinator.onResignation.
        """
        self.state.resign(index, leader_epoch)

    # The interface for the executor (`StateMachine`)

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        """See `StateMachine.encode`."""
        is_old = not self._topics.features.level(TRANSACTION_VERSION)
        return encode(record, OLD_VALUE_VERSION if is_old else VALUE_VERSION)

    def decode(self, key: bytes | None, value: bytes | None) -> TransactionRecord | None:
        """See `StateMachine.decode`."""
        return decode(key, value)

    def replay(self, index: int, record: TransactionRecord, offset: int, producer_id: int | None) -> None:
        """See `StateMachine.replay`."""
        self._coordinator.replay(record)

    def on_loaded(self, index: int) -> Iterator[None]:
        """See `StateMachine.on_loaded`: ends the prepared transactions."""
        endings = []
        for number, transactional_id in enumerate(self._coordinator.prepared, 1):
            if self.partition_of(transactional_id) == index:
                endings.append(Ending(transactional_id, index, self.state.partition(index).leader_epoch))
                self._endings.put(endings[-1])
            if number % EXAMINED_AT_ONCE == 0:
                yield
        if endings:
            self.state.on_commit(index, partial(self._endings.begin_all, endings))

    def unload(self, index: int) -> Iterator[None]:
        """See `StateMachine.unload`."""
        for lost in self._coordinator.unload(lambda transactional_id: self.partition_of(transactional_id) == index):
            self._endings.drop(lost)
            yield

    @property
    def greatest_producer_id(self) -> int:
        """The greatest current or next producer id of all transactional ids; -1 if there is none."""
        return self._coordinator.greatest_producer_id

    def partition_of(self, transactional_id: str) -> int:
        """Returns the partition of __transaction_state that holds a transactional id."""
        return self.state.partition_of(transactional_id)

    def is_available(self, transactional_id: str) -> bool:
        """Whether FindCoordinator should name this broker as the coordinator of the transactional id."""
        return self.state.is_available(self.partition_of(transactional_id))

    def init_producer_id(self, request: InitRequest) -> ProducerIdentity:
        """InitProducerId: see `TransactionCoordinator.init_producer_id`.

        Raises:
            KafkaError: The errors listed there; or the error of the append: nothing has changed then.
        """
        index = self._enter(request.transactional_id)
        now_ms = self._clock.now_ms()
        producer = self._run(index, self._coordinator.init_producer_id(request, now_ms))
        log.debug("Initialized a transactional producer", transactional_id=request.transactional_id, producer=producer)
        return producer

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int = 0,
    ) -> None:
        """Opens a transaction, or adds partitions to it: see `TransactionCoordinator.add_partitions`.

        Args:
            client_version: `TRANSACTIONS_V2` if a write to the partitions added them.

        Raises:
            KafkaError: The errors listed there; or the error of the append: nothing has changed then.
        """
        index = self._enter(transactional_id)
        now_ms = self._clock.now_ms()
        step = self._coordinator.add_partitions(
            transactional_id, producer, frozenset(partitions), client_version=client_version, now_ms=now_ms
        )
        self._run(index, step)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Returns the partitions that are not in the transaction: see `TransactionCoordinator.verify_partitions`.

        Raises:
            KafkaError: The errors listed there.
        """
        self._enter(transactional_id)
        return self._coordinator.verify_partitions(transactional_id, producer, frozenset(partitions))

    def check_produce(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: list[TopicPartition],
        *,
        adds: bool,
        knows_abortable: bool = True,
    ) -> dict[TopicPartition, ErrorCode]:
        """Checks whether a producer may write to these partitions, or to a group's offsets, in its transaction.

        Args:
            adds: Whether the request itself adds the partitions (transactions v2: Produce 12, TxnOffsetCommit 5). If not, they
                must be in the transaction; this is not checked if transaction.partition.verification.enable is false.
            knows_abortable: Whether the client knows TRANSACTION_ABORTABLE (Produce 11, TxnOffsetCommit 4). If not, the error is
                INVALID_TXN_STATE.

        Returns:
            The partitions that must not be written to, each with its error; empty if all may be written to. Retriable errors are
            CONCURRENT_TRANSACTIONS and COORDINATOR_NOT_AVAILABLE.

        Source: KIP-890; AddPartitionsToTxnManager.addOrVerifyTransaction.
        """
        if not adds and not self._config.boolean("transaction.partition.verification.enable"):
            return {}
        producer = ProducerIdentity(producer_id, producer_epoch)
        try:
            if adds:
                self.add_partitions(transactional_id, producer, partitions, client_version=TRANSACTIONS_V2)
                return {}
            errors = self.verify_partitions(transactional_id, producer, partitions)
        except KafkaError as error:
            fenced = error.code is ErrorCode.PRODUCER_FENCED
            return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_EPOCH if fenced else error.code)
        return errors if knows_abortable else dict.fromkeys(errors, ErrorCode.INVALID_TXN_STATE)

    def ask_elsewhere(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: list[TopicPartition],
        *,
        adds: bool,
        knows_abortable: bool = True,
    ) -> Pending[dict[TopicPartition, ErrorCode]] | None:
        """Does what `check_produce` does, if another broker is the coordinator of the transactional id; None if none is.

        Args, Returns: As `check_produce`, and the errors wait for the other broker. More retriable errors are
            COORDINATOR_NOT_AVAILABLE, there is no coordinator, and NETWORK_EXCEPTION, the coordinator has not answered.
        """
        remote = self._remote
        if remote is None:
            return None
        if not adds and not self._config.boolean("transaction.partition.verification.enable"):
            unchecked: Pending[Errors] = Pending()
            unchecked.complete({})
            return unchecked
        place = TopicPartition(TRANSACTION_STATE_TOPIC, self.partition_of(transactional_id))
        producer = ProducerIdentity(producer_id, producer_epoch)
        asked = remote.ask(place, transactional_id, producer, partitions, adds=adds)
        if asked is None or knows_abortable:
            return asked
        return asked.map(_without_abortable)

    def after_commit(
        self, transactional_id: str, proceed: Callable[[ErrorCode | None], T], prepare: Callable[[], object]
    ) -> T | Pending[Any]:
        """Calls `proceed` once the transaction's state is committed; see `reply_gate.after_commit`.

        Before that, no record of the transaction may be appended to a partition: if the record that adds the partition to the
        transaction were lost, nothing would end the transaction in that partition.
        """
        return after_commit(self.state, self.partition_of(transactional_id), proceed, prepare)

    def is_committed(self, transactional_id: str) -> bool:
        """Whether everything that was appended for the transactional id is certainly committed."""
        return self.state.is_committed(self.partition_of(transactional_id))

    def end(self, transactional_id: str, producer: ProducerIdentity, *, is_commit: bool, client_version: int) -> ProducerIdentity:
        """Commits or aborts the open transaction: see `TransactionCoordinator.end`.

        Returns:
            The producer id and epoch of the next transaction.

        Raises:
            KafkaError: The errors listed there; or the error of the append: nothing has changed then.

        Durability: the decision is in the log; the markers are in the log or will be written later.
        """
        index = self._enter(transactional_id)
        now_ms = self._clock.now_ms()
        step = self._coordinator.end(
            transactional_id, producer, is_commit=is_commit, client_version=client_version, now_ms=now_ms
        )
        return self._run(index, step)

    def describe(self, transactional_id: str) -> tuple[Transaction, list[TopicPartition]]:
        """DescribeTransactions: see `TransactionCoordinator.describe`.

        Raises:
            KafkaError: The errors listed there.
        """
        self._enter(transactional_id)
        return self._coordinator.describe(transactional_id)

    def list_transactions(self, wanted: TransactionFilter) -> Work[list[Transaction]]:
        """ListTransactions: see `TransactionCoordinator.list_transactions`.

        Raises:
            KafkaError: The errors listed there.
        """
        self.state.enter_all()
        return self._coordinator.list_transactions(wanted, self._clock.now_ms())

    def _enter(self, transactional_id: str) -> int:
        """Returns the partition that holds the id. Raises unless this broker is the id's coordinator and has loaded its state.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE.
        """
        index = self.state.partition_of(transactional_id)
        self.state.enter(index, is_known=transactional_id in self._coordinator.transactions)
        return index

    def _run(self, index: int, step: Step[T]) -> T:
        """Executes a step and returns its result.

        Raises:
            KafkaError: The error of the step or of the append.
        """
        record = step.record
        if record is not None:
            self._append(index, [record])
            if self._coordinator.is_prepared(record.transactional_id):
                self._end_markers(index, record.transactional_id)
        if step.error:
            raise KafkaError(step.error)
        return step.result

    def _append(self, index: int, records: list[TransactionRecord], *, is_atomic: bool = True) -> None:
        """Appends records of one partition, and replays them.

        Raises:
            KafkaError: An error of `append_error`. If `is_atomic`, nothing has changed then.
        """
        try:
            self.state.append(index, records, is_atomic=is_atomic)
        except KafkaError as error:
            raise KafkaError(append_error(error.code)) from error

    def _finalized_version(self) -> int:
        return self._topics.features.level(TRANSACTION_VERSION)

    def _end_markers(self, index: int, transactional_id: str) -> None:
        """Writes the markers of a transaction whose end is decided, once the decision is committed."""
        ending = Ending(transactional_id, index, self.state.partition(index).leader_epoch)
        self._endings.put(ending)
        if self.state.is_committed(index):
            self._endings.begin(ending, None)
        else:
            self.state.on_commit(index, partial(self._endings.begin, ending))

    def missing_markers(self, transactional_id: str) -> list[Marker]:
        """See `Decisions.missing_markers`."""
        return self._coordinator.markers(transactional_id)

    def marked(self, transactional_id: str, partition: TopicPartition) -> None:
        """See `Decisions.marked`."""
        self._coordinator.marked(transactional_id, partition)

    def complete(self, index: int, transactional_id: str) -> None:
        """See `Decisions.complete`."""
        step = self._coordinator.complete(transactional_id, self._clock.now_ms())
        assert step.record is not None
        self._append(index, [step.record])

    def _abort_timed_out(self) -> None:
        # The timer is set first, so that an exception does not leave transactions open without a limit.
        self._clock.expire_later(self._abort_interval_ms, self._abort_timed_out)
        self._run_in_slices(self._abort_all_timed_out())

    def _abort_all_timed_out(self) -> Work[None]:
        with isolate("Transactions that timed out cannot be aborted"):
            self._abort((yield from self._coordinator.timed_out(self._clock.now_ms())))

    def _abort(self, timed_out: list[str]) -> None:
        """Aborts the first of these transactions, and the others after a pause, unless they have ended by then."""
        others = timed_out[MOST_ABORTED_AT_ONCE:]
        if others:
            self._clock.call_later(PAUSE_MS, partial(self._abort, others))
        now_ms = self._clock.now_ms()
        for transactional_id in timed_out[:MOST_ABORTED_AT_ONCE]:
            if not self._coordinator.has_timed_out(transactional_id, now_ms):
                continue
            with isolate("A transaction that timed out cannot be aborted", transactional_id=transactional_id):
                self._abort_one(transactional_id, now_ms)

    def _abort_one(self, transactional_id: str, now_ms: int) -> None:
        index = self.partition_of(transactional_id)
        if not self.state.is_active(index):
            return
        try:
            self._run(index, self._coordinator.abort_timed_out(transactional_id, now_ms))
        except KafkaError as error:
            log.warning("Cannot abort a transaction that timed out", transactional_id=transactional_id, error=str(error))
        else:
            log.info("Aborted a transaction that timed out", transactional_id=transactional_id)

    def _expire(self) -> None:
        self._clock.call_later(self._expiration_interval_ms, self._expire)
        self._run_in_slices(self._expire_all())

    def _expire_all(self) -> Work[None]:
        with isolate("Transactional ids cannot be expired"):
            by_partition: dict[int, list[str]] = {}
            for transactional_id in (yield from self._coordinator.expired(self._clock.now_ms())):
                index = self.partition_of(transactional_id)
                if self.state.is_active(index):
                    by_partition.setdefault(index, []).append(transactional_id)
                yield
            self._forget(list(by_partition.items()))

    def _forget(self, expired: list[tuple[int, list[str]]]) -> None:
        """Deletes expired transactional ids of one partition, and the others after a pause."""
        if not expired:
            return
        index, transactional_ids = expired.pop()
        some = transactional_ids[-MOST_EXPIRED_AT_ONCE:]
        del transactional_ids[-MOST_EXPIRED_AT_ONCE:]
        if transactional_ids:
            expired.append((index, transactional_ids))
        with isolate("Transactional ids cannot be expired", partition=index):
            now_ms = self._clock.now_ms()
            records = [TransactionRecord(each, None) for each in some if self._coordinator.has_expired(each, now_ms)]
            with suppress(KafkaError):
                self._append(index, records, is_atomic=False)
                log.info("Transactional ids expired", partition=index, ids=len(records))
        self._clock.call_later(PAUSE_MS, partial(self._forget, expired))

    def _on_topic_deleted(self, topic: HostedTopic) -> None:
        if topic.name == TRANSACTION_STATE_TOPIC:
            log.warning("The topic of transactions was deleted, and all transactional ids with it")
            self.state.forget_topic()


def _without_abortable(errors: Errors) -> Errors:
    """Returns the errors for a client that does not know TRANSACTION_ABORTABLE."""
    abortable = ErrorCode.TRANSACTION_ABORTABLE
    return {partition: ErrorCode.INVALID_TXN_STATE if code is abortable else code for partition, code in errors.items()}
