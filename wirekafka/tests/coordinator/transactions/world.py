"""A world for transactions: the real runtime and executor, over a topic in memory, under a clock that the test moves.

It writes down the records and markers that come of each step. The disk can be full, and partitions can refuse their markers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import TypeVar, cast

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.reply_gate import ReplyGate
from wirekafka.coordinator.transactions.coordinator import Step, TransactionCoordinator
from wirekafka.coordinator.transactions.records import TransactionRecord
from wirekafka.coordinator.transactions.requests import Marker
from wirekafka.coordinator.transactions.runtime import TransactionRuntime
from wirekafka.coordinator.transactions.settings import TransactionSettings
from wirekafka.coordinator.transactions.transaction import Transaction
from wirekafka.errors import ErrorCode
from wirekafka.names import TRANSACTION_STATE_TOPIC, TopicPartition
from wirekafka.pending import finish
from wirekafka.replication.purgatory import Purgatory
from wirekafka.replication.replica_manager import HostedTopics
from wirekafka.testing.memory_topics import BatchLog, MemoryTopics
from wirekafka.tests.coordinator.manual_clock import ManualClock

START_MS = 1_000_000

T = TypeVar("T")


class StoryRuntime(TransactionRuntime):
    """A runtime that tells its world what it appends."""

    def __init__(self, world: World) -> None:
        clock = cast(Clock, world.clock)
        gate = ReplyGate(Purgatory(clock))
        config = BrokerConfig({"transaction.state.log.num.partitions": "1"})
        topics = cast(HostedTopics, world.topics)
        super().__init__(config, clock, topics, world, world.take_producer_id, gate, finish)
        self._coordinator = world.new_coordinator()
        self._world = world

    def _append(self, index: int, records: list[TransactionRecord], *, is_atomic: bool = True) -> None:
        for record in records:
            self._world.before_append(record)
        super()._append(index, records, is_atomic=is_atomic)
        for record in records:
            self._world.after_append(record)

    def run(self, step: Step[T]) -> T:
        return self._run(0, step)

    @property
    def coordinator(self) -> TransactionCoordinator:
        return self._coordinator

    def retry(self) -> None:
        self._endings._try_again()

    def abort_timed_out(self) -> None:
        self._abort_timed_out()

    def expire(self) -> None:
        self._expire()


class World:
    """Attributes:
    topics: where transactions are kept, in one partition.
    broken: the partitions that take no markers just now.
    level: of transaction.version.
    markers: all that were written, in order.
    """

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.clock = ManualClock(START_MS)
        self.topics = MemoryTopics(1)
        self.topics.create_internal(TRANSACTION_STATE_TOPIC)
        self.level: int = 2
        self.topics.features = SimpleNamespace(level=lambda name: self.level)
        self.broken: set[TopicPartition] = set()
        self.markers: list[Marker] = []
        self.story: list[str] = []
        producer_ids = count(1)
        self.take_producer_id: Callable[[], int] = lambda: next(producer_ids)
        self.runtime = StoryRuntime(self)

    def new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.settings, self.take_producer_id, lambda: self.level)

    @property
    def coordinator(self) -> TransactionCoordinator:
        return self.runtime.coordinator

    @property
    def now_ms(self) -> int:
        return self.clock.time_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.clock.time_ms = now_ms

    @property
    def log(self) -> BatchLog:
        return cast(BatchLog, self.topics.topics[TRANSACTION_STATE_TOPIC].partitions[0].log)

    @property
    def is_disk_full(self) -> bool:
        """Nothing can be appended to the coordinator's log."""
        return self.topics.error is not None

    @is_disk_full.setter
    def is_disk_full(self, is_full: bool) -> None:
        self.topics.error = ErrorCode.KAFKA_STORAGE_ERROR if is_full else None

    def run(self, step: Step[T]) -> T:
        return self.runtime.run(step)

    def before_append(self, record: TransactionRecord) -> None:
        self.story.append(f"append{' fails' if self.is_disk_full else ''}: {self._record(record)}")

    def after_append(self, record: TransactionRecord) -> None:
        """Is called once a record is in the log and replayed."""

    def write(
        self, marker: Marker, *, coordinator_epoch: int, now_ms: int, on_written: Callable[[ErrorCode | None], object]
    ) -> None:
        """Writes a marker, as `Markers.write`."""
        is_written = self.take_marker(marker)
        self.story.append(describe_marker(marker, fails=not is_written))
        on_written(None if is_written else ErrorCode.KAFKA_STORAGE_ERROR)

    def is_needed(self, marker: Marker) -> bool:
        return True

    def take_marker(self, marker: Marker) -> bool:
        """Writes a marker; False if the partition does not take it."""
        if marker.topic_partition in self.broken:
            return False
        self.markers.append(marker)
        return True

    def retry(self) -> None:
        self.runtime.retry()

    def abort_timed_out(self) -> None:
        self.runtime.abort_timed_out()

    def expire(self) -> None:
        self.runtime.expire()

    def reload(self) -> None:
        """Restarts the broker after a crash: everything that is not in the log is lost."""
        self.topics.on_delete.clear()
        self.runtime = StoryRuntime(self)
        self.runtime.load()

    def reloaded_copy(self, broken: set[TopicPartition]) -> World:
        """Returns the world of another broker that has loaded a copy of the log."""
        copy = World(self.settings)
        copy.broken = broken
        copy.log.appended = [*self.log.appended]
        copy.log.log_end_offset = copy.log.high_watermark = self.log.log_end_offset
        copy.reload()
        return copy

    def set_epoch(self, transactional_id: str, epoch: int) -> None:
        """As if the producer had gone on for long: its epoch is now this one."""
        known = self.coordinator.transactions[transactional_id]
        record = TransactionRecord(transactional_id, replace(known, producer_epoch=epoch, previous_producer_id=known.producer_id))
        World.before_append(self, record)
        self.runtime.state.append(0, [record])

    def states(self) -> list[str]:
        known = self.coordinator.transactions
        return [describe_transaction(known[transactional_id]) for transactional_id in sorted(known)]

    @staticmethod
    def _record(record: TransactionRecord) -> str:
        return f"{record.transactional_id} is gone" if record.value is None else describe_transaction(record.value)


def describe_marker(marker: Marker, *, fails: bool) -> str:
    outcome = "commit" if marker.is_commit else "abort"
    return (
        f"marker{' fails' if fails else ''}: {outcome} {marker.producer_id}/{marker.producer_epoch} in {marker.topic_partition}"
        f", transactions v{marker.transaction_version}"
    )


def describe_transaction(known: Transaction) -> str:
    pieces = [f"{known.transactional_id} is {known.state.title}, producer {known.producer_id}/{known.producer_epoch}"]
    if known.last_producer_epoch is not None:
        pieces.append(f"last epoch {known.last_producer_epoch}")
    if known.previous_producer_id not in (None, known.producer_id):
        pieces.append(f"previous producer {known.previous_producer_id}")
    if known.next_producer_id is not None:
        pieces.append(f"next producer {known.next_producer_id}")
    if known.partitions:
        pieces.append("in " + " ".join(map(str, sorted(known.partitions))))
    if known.start_timestamp_ms is not None:
        pieces.append(f"since {known.start_timestamp_ms - START_MS}")
    return ", ".join(pieces)
