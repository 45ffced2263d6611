"""A world for the pure coordinator of transactions: time that is told, a log that is a list of bytes, a disk that can fill,
partitions that can refuse their markers.

It does what `TransactionRuntime` does, in the same order, and writes down what it was asked for.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TypeVar

from wirekafka.coordinator.transactions.coordinator import Step, TransactionCoordinator
from wirekafka.coordinator.transactions.records import (
    OLD_VALUE_VERSION,
    VALUE_VERSION,
    TransactionRecord,
    decode,
    encode,
)
from wirekafka.coordinator.transactions.requests import Marker
from wirekafka.coordinator.transactions.settings import TransactionSettings
from wirekafka.coordinator.transactions.transaction import Transaction
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.pending import finish

START_MS = 1_000_000

T = TypeVar("T")


class World:
    """Attributes:
    is_disk_full: nothing can be appended to the coordinator's log.
    broken: the partitions that take no markers just now.
    level: of transaction.version.
    markers: all that were written, in order.
    """

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.now_ms = START_MS
        self.log: list[tuple[bytes, bytes | None]] = []
        self.is_disk_full = False
        self.broken: set[TopicPartition] = set()
        self.level = 2
        self.markers: list[Marker] = []
        self.story: list[str] = []
        self._producer_ids = count(1)
        self.coordinator = self._new_coordinator()

    def _new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.settings, lambda: next(self._producer_ids), lambda: self.level)

    def run(self, step: Step[T]) -> T:
        if step.record is not None:
            self.append(step.record)
            self.carry_out(step.record.transactional_id)
        if step.error:
            raise KafkaError(step.error)
        return step.result

    def append(self, record: TransactionRecord) -> None:
        self.story.append(f"append{' fails' if self.is_disk_full else ''}: {self._record(record)}")
        if self.is_disk_full:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.log.append(encode(record, VALUE_VERSION if self.level else OLD_VALUE_VERSION))
        self.coordinator.replay(record)

    def carry_out(self, transactional_id: str) -> None:
        coordinator = self.coordinator
        if not coordinator.is_prepared(transactional_id):
            return
        for marker in coordinator.markers(transactional_id):
            is_written = self.write(marker)
            self.story.append(describe_marker(marker, fails=not is_written))
            if is_written:
                coordinator.marked(transactional_id, marker.topic_partition)
        if coordinator.markers(transactional_id):
            return
        step = coordinator.complete(transactional_id, self.now_ms)
        assert step.record is not None
        try:
            self.append(step.record)
        except KafkaError:
            return

    def write(self, marker: Marker) -> bool:
        """Writes a marker; False if the partition does not take it."""
        if marker.topic_partition in self.broken:
            return False
        self.markers.append(marker)
        return True

    def retry(self) -> None:
        for transactional_id in self.coordinator.prepared:
            self.carry_out(transactional_id)

    def abort_timed_out(self) -> None:
        for transactional_id in finish(self.coordinator.timed_out(self.now_ms)):
            self.run(self.coordinator.abort_timed_out(transactional_id, self.now_ms))

    def expire(self) -> None:
        for transactional_id in finish(self.coordinator.expired(self.now_ms)):
            self.append(TransactionRecord(transactional_id, None))

    def reload(self) -> None:
        """Restarts the broker after a crash: everything that is not in the log is lost."""
        self.coordinator = self._new_coordinator()
        for key, value in self.log:
            record = decode(key, value)
            assert record is not None
            self.coordinator.replay(record)
        self.retry()

    def set_epoch(self, transactional_id: str, epoch: int) -> None:
        """As if the producer had gone on for long: its epoch is now this one."""
        known = self.coordinator.transactions[transactional_id]
        known = replace(known, producer_epoch=epoch, previous_producer_id=known.producer_id)
        World.append(self, TransactionRecord(transactional_id, known))

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
