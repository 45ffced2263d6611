"""The edge of the transaction coordinator: its log, its timers, the markers.

Theory of operation: a request becomes one step of `TransactionCoordinator`. Its record is appended to the transactional id's
partition of __transaction_state, and replayed; a transaction that is prepared by that gets its markers and is completed, all of
it inside the call, on the broker's one loop. A marker that cannot be written, for a disk is full, is tried again by a timer, and
meanwhile clients are told CONCURRENT_TRANSACTIONS.

Rules of this file: nothing else of the coordinator does I/O or asks for the time.
    Invariant: while a transaction is prepared but not completed, `_retry` is set, or `_carry_out` is running.

Source: kafka.coordinator.transaction.{TransactionCoordinator, TransactionStateManager, TransactionMarkerChannelManager},
org.apache.kafka.server.transaction.AddPartitionsToTxnManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from wirekafka.coordinator.effects import append_error
from wirekafka.coordinator.groups.runtime import java_string_hash
from wirekafka.coordinator.transactions.coordinator import Step, TransactionCoordinator
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
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.log.validation import Origin
from wirekafka.metadata.features import TRANSACTION_VERSION
from wirekafka.names import TRANSACTION_STATE_TOPIC, TopicPartition
from wirekafka.wire.batch import BatchHeader, build_keyed_batch, iterate_records

if TYPE_CHECKING:
    from wirekafka.clock import Clock, Timer
    from wirekafka.config import BrokerConfig
    from wirekafka.log.log import Log
    from wirekafka.metadata.topics import Topic, Topics
    from wirekafka.replication.partition import Partition

T = TypeVar("T")

log = structlog.get_logger(__name__)

RETRY_MS = 500
"""How long after a marker could not be written it is tried again."""

MOST_ABORTED_AT_ONCE = 100
"""How many transactions that timed out are aborted in one go, which takes some 10 ms; then clients have their turn."""
ABORT_PAUSE_MS = 10

RECORDS_IN_BATCH = 1000
"""How many tombstones go into one batch."""

_NEEDS_NO_MARKER = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)
"""Answers to a marker after which trying again is of no use: the partition is gone, or others have gone on from there."""


class Markers(Protocol):
    """Who writes markers."""

    def write(self, marker: Marker, *, coordinator_epoch: int, now_ms: int) -> None:
        """As `MarkerWriter.write`."""


class TransactionRuntime:
    """The transactions of one broker.

    Args:
        take_producer_id: a producer id that nobody has.
    """

    def __init__(
        self, config: BrokerConfig, clock: Clock, topics: Topics, markers: Markers, take_producer_id: Callable[[], int]
    ) -> None:
        self._config = config
        self._clock = clock
        self._topics = topics
        self._markers = markers
        self._abort_interval_ms = config.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms")
        self._expiration_interval_ms = config.integer("transaction.remove.expired.transaction.cleanup.interval.ms")
        self._configured_partition_count = config.integer("transaction.state.log.num.partitions")
        self._partition_count = self._configured_partition_count
        self._coordinator = TransactionCoordinator(TransactionSettings.of(config), take_producer_id, self._finalized_version)
        self._retry: Timer | None = None
        self._stuck: set[str] = set()
        self._failing: set[int] = set()

    def load(self) -> None:
        """Brings all transactions back from the log, and ends those that were decided; to be called once, on the loop, after
        the groups are loaded and before the broker listens.

        Raises:
            KafkaError: the log cannot be read.
        """
        topic = self._topics.find(TRANSACTION_STATE_TOPIC)
        if topic is not None:
            self._partition_count = len(topic.partitions)
            for partition in topic.partitions:
                self._load_partition(partition)
            prepared = self._coordinator.prepared
            if self._coordinator.transactions:
                log.info("Loaded transactions", ids=len(self._coordinator.transactions), to_complete=len(prepared))
            for transactional_id in prepared:
                self._carry_out(transactional_id, self.partition_of(transactional_id), self._clock.now_ms())
        self._topics.on_delete.append(self._on_topic_deleted)
        self._clock.expire_later(self._abort_interval_ms, self._abort_timed_out)
        self._clock.call_later(self._expiration_interval_ms, self._expire)

    def _load_partition(self, partition: Partition) -> None:
        """Brings the transactions of one partition back; those of one that is offline are not available."""
        name = str(partition.topic_partition)
        try:
            partition.check_online()
            latest = _latest_records(partition.log)
        except KafkaError:
            if not partition.is_offline:
                raise
            log.error("Transactions are not available: their partition is offline", partition=name)
            return
        for key, value in latest.items():
            try:
                decoded = decode(key, value)
            except ProtocolError as error:
                log.error("A record of transactions cannot be read", partition=name, key=key, error=str(error))
                continue
            if decoded is None:
                log.warning("Skipped a record of transactions of an unknown version", partition=name, key=key)
            else:
                self._coordinator.replay(decoded)

    @property
    def greatest_producer_id(self) -> int:
        """The greatest producer id that a transactional id remembers, -1 if none does."""
        return self._coordinator.greatest_producer_id

    def partition_of(self, transactional_id: str) -> int:
        """The partition of __transaction_state that holds a transactional id.

        Source: TransactionStateManager.partitionFor, Utils.abs.
        """
        number = java_string_hash(transactional_id)
        return (0 if number == -0x80000000 else abs(number)) % self._partition_count

    def is_available(self, transactional_id: str) -> bool:
        """Whether what is known of an id is all there is: the partition that holds it is not offline."""
        topic = self._topics.find(TRANSACTION_STATE_TOPIC)
        return topic is None or not topic.partitions[self.partition_of(transactional_id)].is_offline

    def init_producer_id(self, request: InitRequest) -> ProducerIdentity:
        """InitProducerId: see `TransactionCoordinator.init_producer_id`.

        Raises:
            KafkaError: as there; or what the append ended with: nothing has changed then.
        """
        self._check_available(request.transactional_id)
        now_ms = self._clock.now_ms()
        producer = self._run(self._coordinator.init_producer_id(request, now_ms), now_ms)
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
        """Opens a transaction, or widens it: see `TransactionCoordinator.add_partitions`.

        Args:
            client_version: `TRANSACTIONS_V2` where the partitions were added by a write to them.

        Raises:
            KafkaError: as there; or what the append ended with: nothing has changed then.
        """
        self._check_available(transactional_id)
        now_ms = self._clock.now_ms()
        step = self._coordinator.add_partitions(
            transactional_id, producer, frozenset(partitions), client_version=client_version, now_ms=now_ms
        )
        self._run(step, now_ms)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Which partitions are not in the transaction: see `TransactionCoordinator.verify_partitions`.

        Raises:
            KafkaError: as there.
        """
        self._check_available(transactional_id)
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
        """Whether a producer may begin to write to these partitions, or to a group's offsets, in its transaction.

        Args:
            adds: the request adds the partitions itself (transactions v2: Produce 12, TxnOffsetCommit 5); else they must have
                been added, which is looked at unless transaction.partition.verification.enable is false.
            knows_abortable: the client understands TRANSACTION_ABORTABLE (Produce 11, TxnOffsetCommit 4), and is told
                INVALID_TXN_STATE otherwise.

        Returns:
            The partitions that must not be written to, each with the reason; nothing if all is well. Retriable reasons are
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

    def end(self, transactional_id: str, producer: ProducerIdentity, *, is_commit: bool, client_version: int) -> ProducerIdentity:
        """Commits or aborts the open transaction: see `TransactionCoordinator.end`.

        Returns:
            How the producer is known from now on.

        Raises:
            KafkaError: as there; or what the append ended with: nothing has changed then.

        Durability: the decision is in the log; the markers are too, or will be.
        """
        self._check_available(transactional_id)
        now_ms = self._clock.now_ms()
        step = self._coordinator.end(
            transactional_id, producer, is_commit=is_commit, client_version=client_version, now_ms=now_ms
        )
        return self._run(step, now_ms)

    def describe(self, transactional_id: str) -> tuple[Transaction, list[TopicPartition]]:
        """DescribeTransactions: see `TransactionCoordinator.describe`.

        Raises:
            KafkaError: as there.
        """
        self._check_available(transactional_id)
        return self._coordinator.describe(transactional_id)

    def list_transactions(self, wanted: TransactionFilter) -> list[Transaction]:
        """ListTransactions: see `TransactionCoordinator.list_transactions`.

        Raises:
            KafkaError: as there.
        """
        return self._coordinator.list_transactions(wanted, self._clock.now_ms())

    def _check_available(self, transactional_id: str) -> None:
        """Whether the id's state is known.

        Raises:
            KafkaError: COORDINATOR_NOT_AVAILABLE, the partition that holds it is offline.
        """
        if transactional_id not in self._coordinator.transactions and not self.is_available(transactional_id):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _run(self, step: Step[T], now_ms: int) -> T:
        """Carries a step out.

        Raises:
            KafkaError: what the step ends with, or what the append did.
        """
        record = step.record
        if record is not None:
            index = self.partition_of(record.transactional_id)
            self._append(index, [record], now_ms)
            self._carry_out(record.transactional_id, index, now_ms)
        if step.error:
            raise KafkaError(step.error)
        return step.result

    def _append(self, index: int, records: list[TransactionRecord], now_ms: int) -> None:
        """Appends records of one partition, and replays them.

        Raises:
            KafkaError: as `append_error` says; nothing has changed then.
        """
        try:
            version = VALUE_VERSION if self._finalized_version() else OLD_VALUE_VERSION
            batch = build_keyed_batch([encode(record, version) for record in records], timestamp=now_ms)
            self._partition(index).append(memoryview(batch), now_ms=now_ms, origin=Origin.COORDINATOR)
        except KafkaError as error:
            if index not in self._failing:
                self._failing.add(index)
                log.error("Transactions cannot be stored", partition=index, error=str(error))
            raise KafkaError(append_error(error.code)) from error
        if self._failing and index in self._failing:
            self._failing.remove(index)
            log.info("Transactions can be stored again", partition=index)
        for record in records:
            self._coordinator.replay(record)

    def _finalized_version(self) -> int:
        return self._topics.features.level(TRANSACTION_VERSION)

    def _partition(self, index: int) -> Partition:
        topic = self._topics.find(TRANSACTION_STATE_TOPIC) or self._topics.create_internal(TRANSACTION_STATE_TOPIC)
        return topic.partitions[index]

    def _carry_out(self, transactional_id: str, index: int, now_ms: int) -> None:
        """Writes the markers that a prepared transaction misses and completes it, or sees to it that it is tried again."""
        coordinator = self._coordinator
        if not coordinator.is_prepared(transactional_id):
            return
        try:
            self._write_markers(transactional_id, self._partition(index).leader_epoch, now_ms)
            step = coordinator.complete(transactional_id, now_ms)
            assert step.record is not None
            self._append(index, [step.record], now_ms)
        except KafkaError as error:
            self._try_again(transactional_id, error)
        else:
            self._stuck.discard(transactional_id)

    def _write_markers(self, transactional_id: str, coordinator_epoch: int, now_ms: int) -> None:
        """Writes what markers are missing, as many as can be.

        Raises:
            KafkaError: not all could be written.
        """
        failure = None
        for marker in self._coordinator.markers(transactional_id):
            try:
                self._write(transactional_id, marker, coordinator_epoch, now_ms)
            except KafkaError as error:
                failure = error
            else:
                self._coordinator.marked(transactional_id, marker.topic_partition)
        if failure is not None:
            raise failure

    def _try_again(self, transactional_id: str, error: KafkaError) -> None:
        if transactional_id not in self._stuck:
            self._stuck.add(transactional_id)
            log.warning("A transaction is decided, but cannot be ended yet", transactional_id=transactional_id, error=str(error))
        if self._retry is None:
            self._retry = self._clock.call_later(RETRY_MS, self._carry_out_all)

    def _write(self, transactional_id: str, marker: Marker, coordinator_epoch: int, now_ms: int) -> None:
        """Writes a marker, if it is needed.

        Raises:
            KafkaError: it could not be written, but may be later.
        """
        try:
            self._markers.write(marker, coordinator_epoch=coordinator_epoch, now_ms=now_ms)
        except KafkaError as error:
            if error.code not in _NEEDS_NO_MARKER:
                raise
            log.info(
                "A partition takes no marker of a transaction",
                transactional_id=transactional_id,
                partition=str(marker.topic_partition),
                error=str(error),
            )

    def _carry_out_all(self) -> None:
        self._retry = None
        for transactional_id in self._coordinator.prepared:
            self._carry_out(transactional_id, self.partition_of(transactional_id), self._clock.now_ms())

    def _abort_timed_out(self) -> None:
        # First, lest what goes wrong once leaves transactions open for ever.
        self._clock.expire_later(self._abort_interval_ms, self._abort_timed_out)
        self._abort(self._coordinator.timed_out(self._clock.now_ms()))

    def _abort(self, timed_out: list[str]) -> None:
        """Aborts the first of these transactions and a little later the others, unless they have ended by then."""
        others = timed_out[MOST_ABORTED_AT_ONCE:]
        if others:
            self._clock.call_later(ABORT_PAUSE_MS, partial(self._abort, others))
        now_ms = self._clock.now_ms()
        for transactional_id in timed_out[:MOST_ABORTED_AT_ONCE]:
            if not self._coordinator.has_timed_out(transactional_id, now_ms):
                continue
            try:
                self._run(self._coordinator.abort_timed_out(transactional_id, now_ms), now_ms)
            except KafkaError as error:
                log.warning("Cannot abort a transaction that timed out", transactional_id=transactional_id, error=str(error))
            else:
                log.info("Aborted a transaction that timed out", transactional_id=transactional_id)

    def _expire(self) -> None:
        self._clock.call_later(self._expiration_interval_ms, self._expire)
        by_partition: dict[int, list[TransactionRecord]] = {}
        now_ms = self._clock.now_ms()
        for record in self._coordinator.expired(now_ms):
            by_partition.setdefault(self.partition_of(record.transactional_id), []).append(record)
        for index, records in by_partition.items():
            self._forget(index, records, now_ms)

    def _forget(self, index: int, records: list[TransactionRecord], now_ms: int) -> None:
        try:
            for start in range(0, len(records), RECORDS_IN_BATCH):
                self._append(index, records[start : start + RECORDS_IN_BATCH], now_ms)
        except KafkaError:
            return
        log.info("Transactional ids expired", partition=index, ids=len(records))

    def _on_topic_deleted(self, topic: Topic) -> None:
        if topic.name == TRANSACTION_STATE_TOPIC:
            log.warning("The topic of transactions was deleted, and they with it")
            self._coordinator.unload()
            self._stuck.clear()
            self._partition_count = self._configured_partition_count


def _latest_records(partition_log: Log) -> dict[bytes | None, bytes | None]:
    """The last value of each key.

    Raises:
        KafkaError: a batch cannot be read.
    """
    latest: dict[bytes | None, bytes | None] = {}
    for batch in partition_log.batches(partition_log.log_start_offset):
        if BatchHeader(batch).is_control:
            # Whoever names this partition in a transaction gets a marker here.
            continue
        for record in iterate_records(batch):
            latest[record.key] = record.value
    return latest
