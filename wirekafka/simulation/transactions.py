"""A producer with transactions, which is its own transaction coordinator.

How it works: a transaction is a few batches, to any partitions. Then the producer decides to commit or to abort, and writes the
marker to each partition until all leaders have answered; then the transaction has ended. If the producer gives up a batch, it
aborts the transaction.

Rules of this file:
    A marker has the producer epoch after that of its transaction, and the next transaction has the one after that. So no batch
    and no marker that arrives late can open or end another transaction.
"""

from __future__ import annotations

from collections import deque

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wirekafka.errors import ErrorCode
from wirekafka.simulation.clients import MOST_ATTEMPTS, MOST_RECORDS, NEVER_APPENDED, Batch, Writer
from wirekafka.simulation.cluster import Cluster
from wirekafka.simulation.events import MS, Act
from wirekafka.simulation.exchange import PRODUCE
from wirekafka.simulation.history import (
    RecordSent,
    SendAcknowledged,
    SendFailed,
    SendUnknown,
    TransactionAborted,
    TransactionBegun,
    TransactionCommitted,
    TransactionEndRequested,
)
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.messages.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

MOST_BATCHES = 3
COMMIT_RATE = 0.7
EPOCHS_FOR_EACH = 2


class TransactionalProducer(Writer):
    """A producer with one transaction after the other."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        super().__init__(cluster, f"transactional producer {number}")
        self._producer_id = 2000 + number
        self._epoch = 0
        self._count = 0
        self._transaction: str | None = None
        self._unsent: deque[int] = deque()
        self._sequences: dict[int, int] = {}
        self._unended: set[int] = set()
        self._is_commit = False

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open, and the producer will begin no other one."""
        return self.is_stopping and self._transaction is None

    def send_next(self) -> None:
        """Begins the next transaction."""
        if self.is_stopping:
            return
        self._transaction = f"{self.name}/{self._epoch}"
        self._sequences = {}
        self.cluster.record(TransactionBegun(self._transaction, self.name, self._producer_id, self._epoch, version=2))
        most = self.cluster.options.partition_count - 1
        self._unsent.extend(self.dice.between(0, most) for _ in range(self.dice.between(1, MOST_BATCHES)))
        self._send_batch()

    # Batches

    def _send_batch(self) -> None:
        if not self._unsent:
            self._end(is_commit=self.dice.chance(COMMIT_RATE))
            return
        partition = self._unsent.popleft()
        count = self.dice.between(1, MOST_RECORDS)
        batch = Batch(
            partition, [f"{self.name}-{self._count + number}" for number in range(count)], self._sequences.get(partition, 0)
        )
        self._count += count
        self._sequences[partition] = batch.sequence + count
        for number, payload in enumerate(batch.payloads):
            self.cluster.record(
                RecordSent(
                    self.name,
                    self.cluster.topic,
                    partition,
                    payload,
                    producer_id=self._producer_id,
                    producer_epoch=self._epoch,
                    sequence=batch.sequence + number,
                    transaction=self._transaction,
                )
            )
        self._send(batch)

    def _send(self, batch: Batch) -> None:
        options = self.cluster.options
        batch.attempt_count += 1
        now_ms = self.cluster.wall_clock_ms()
        data = build_batch(
            [Record(key=None, value=payload.encode(), timestamp=now_ms) for payload in batch.payloads],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=batch.sequence,
            is_transactional=True,
        )
        partition_data = PartitionProduceData(index=batch.partition, records=memoryview(data))
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=options.request_timeout_ms,
            topic_data=[TopicProduceData(name=self.cluster.topic, partition_data=[partition_data])],
        )
        timeout_us = 2 * options.request_timeout_ms * MS
        self.leader_of(batch.partition).ask(PRODUCE, request, lambda response: self._take(batch, response), timeout_us=timeout_us)

    def _take(self, batch: Batch, response: ProduceResponse | None) -> None:
        answer = None if response is None else response.responses[0].partition_responses[0]
        if answer is None or answer.error_code:
            batch.is_unknown |= answer is None or ErrorCode(answer.error_code) not in NEVER_APPENDED
            self._retry(batch, "no answer" if answer is None else ErrorCode(answer.error_code).name)
            return
        for number, payload in enumerate(batch.payloads):
            self.cluster.record(SendAcknowledged(payload, answer.base_offset + number))
        self._send_batch()

    def _retry(self, batch: Batch, reason: str) -> None:
        self.forget_leader(batch.partition)
        if batch.attempt_count < MOST_ATTEMPTS:
            self._call_after_back_off(lambda: self._send(batch))
            return
        for payload in batch.payloads:
            self.cluster.record(SendUnknown(payload, reason) if batch.is_unknown else SendFailed(payload, reason))
        self._unsent.clear()
        self._end(is_commit=False)

    def _call_after_back_off(self, act: Act) -> None:
        self.process.call_later(self.dice.between(1, self.cluster.options.back_off_ms) * MS, act)

    # The end

    def _end(self, *, is_commit: bool) -> None:
        assert self._transaction is not None, "a transaction is open"
        self.cluster.record(TransactionEndRequested(self._transaction, is_commit))
        self._is_commit = is_commit
        self._unended = set(self._sequences)
        for partition in sorted(self._unended):
            self._write_marker(partition)

    def _write_marker(self, partition: int) -> None:
        marker = WritableTxnMarker(
            producer_id=self._producer_id,
            producer_epoch=self._epoch + 1,
            transaction_result=self._is_commit,
            topics=[WritableTxnMarkerTopic(name=self.cluster.topic, partition_indexes=[partition])],
        )
        self.leader_of(partition).ask(
            WRITE_TXN_MARKERS,
            WriteTxnMarkersRequest(markers=[marker]),
            lambda response: self._take_marker(partition, response),
            timeout_us=2 * self.cluster.options.request_timeout_ms * MS,
        )

    def _take_marker(self, partition: int, response: WriteTxnMarkersResponse | None) -> None:
        if response is None or response.markers[0].topics[0].partitions[0].error_code:
            self.forget_leader(partition)
            self._call_after_back_off(lambda: self._write_marker(partition))
            return
        self._unended.discard(partition)
        if self._unended or self._transaction is None:
            return
        name, self._transaction = self._transaction, None
        self.cluster.record(TransactionCommitted(name) if self._is_commit else TransactionAborted(name))
        self._epoch += EPOCHS_FOR_EACH
        self.process.call_later(self.pause_us(), self.send_next)
