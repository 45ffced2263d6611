"""Rows about transactions of one record: raw frames in both protocols, and librdkafka, which sends one request at a time.

A transaction is AddPartitionsToTxn, Produce and EndTxn; in transactions v2 (KIP-890) it is Produce and EndTxn. The rows measure
the CPU time of the broker, so one Python process can send the raw frames. While Apache Kafka still completes the previous
transaction, the load repeats its request, as clients do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks import load
from benchmarks.brokers import AnyBroker
from benchmarks.processes import cpu_seconds
from benchmarks.rows import Figure, Figures, Row, Timing, create_topic
from compat_tests.harness.raw import RawConnection
from wirekafka.api.end_txn import EndTxnRequest
from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.errors import ErrorCode
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wirekafka.wire.types import Message

PRODUCERS = 16
VALUE = b"w" * 100

RETRIABLE = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}

FIGURES = {
    "cpu": Figure("broker CPU us a transaction", asked=400),
    "rate": Figure("transactions/s"),
}


def transactions(broker: AnyBroker, timing: Timing) -> Figures:
    create_topic(broker, "transactions", PRODUCERS)
    options = {"topic": "transactions", "producers": PRODUCERS, "acks": "all", "linger_ms": 0}
    measured = load.measure(broker, "transactions", **options, **timing.options())
    count = measured.counted["transactions"]
    return {"cpu": measured.broker_cpu_s / count * 1e6, "rate": measured.per_second("transactions")}


class _Producer:
    """A producer that makes transactions of one record, one at a time."""

    def __init__(self, broker: AnyBroker, topic: str, *, is_v2: bool) -> None:
        self.connection = RawConnection(broker.address)
        self.topic = self.transactional_id = topic
        self.is_v2 = is_v2
        self._ask(FindCoordinatorRequest(key_type=1, key=topic), 3, lambda answer: answer.error_code)
        request = InitProducerIdRequest(transactional_id=topic, transaction_timeout_ms=60_000)
        answer = self._ask(request, 4, lambda answer: answer.error_code)
        self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def transact(self) -> None:
        own = {"producer_id": self.producer_id, "producer_epoch": self.epoch}
        if not self.is_v2:
            self._add()
        records = [Record(value=VALUE, timestamp=int(time.time() * 1000))]
        batch = build_batch(records, **own, base_sequence=self.sequence, is_transactional=True)
        data = TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index=0, records=memoryview(batch))])
        produce = ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=30_000, topic_data=[data])
        self._ask(produce, 12 if self.is_v2 else 11, lambda answer: answer.responses[0].partition_responses[0].error_code)
        end = EndTxnRequest(transactional_id=self.transactional_id, **own, committed=True)
        ended = self._ask(end, 5 if self.is_v2 else 4, lambda answer: answer.error_code)
        self.sequence += 1
        if self.is_v2:
            self.producer_id, self.epoch, self.sequence = ended.producer_id, ended.producer_epoch, 0

    def _add(self) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=[0])],
        )
        self._ask(request, 3, lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def _ask(self, request: Message, version: int, code_of: Callable[[Any], int]) -> Any:
        """Sends a request, and repeats it while the error is retriable."""
        while True:
            answer = self.connection.ask(request, version)
            code = ErrorCode(code_of(answer))
            if code is ErrorCode.NONE:
                return answer
            assert code in RETRIABLE, code
            time.sleep(0.001)


def _raw_transactions(broker: AnyBroker, timing: Timing, topic: str, *, is_v2: bool) -> Figures:
    create_topic(broker, topic)
    producer = _Producer(broker, topic, is_v2=is_v2)
    with producer.connection:
        until = time.monotonic() + timing.warmup
        while time.monotonic() < until:
            producer.transact()
        count, before, started = 0, cpu_seconds(broker), time.monotonic()
        while time.monotonic() < started + timing.seconds:
            producer.transact()
            count += 1
        seconds = time.monotonic() - started
        return {"cpu": (cpu_seconds(broker) - before) / count * 1e6, "rate": count / seconds}


def transactions_v1(broker: AnyBroker, timing: Timing) -> Figures:
    return _raw_transactions(broker, timing, "transactions-v1", is_v2=False)


def transactions_v2(broker: AnyBroker, timing: Timing) -> Figures:
    return _raw_transactions(broker, timing, "transactions-v2", is_v2=True)


TRANSACTION_ROWS = (
    Row("transactions-v2", "Transactions of one record (transactions v2), one connection", FIGURES, transactions_v2),
    Row("transactions-v1", "The same in the protocol before", FIGURES, transactions_v1),
    Row("transactions", f"The same by {PRODUCERS} producers of librdkafka", FIGURES, transactions),
)
