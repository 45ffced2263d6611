"""Rows about transactions of one record: by librdkafka in the protocol of most clients, and by raw frames in transactions v2.

In the first a transaction is AddPartitionsToTxn, Produce and EndTxn, in the second Produce and EndTxn (KIP-890). What counts is
the CPU time of the broker, so the second load may be one process of Python. It asks again while Apache Kafka still completes the
transaction before, as clients do.
"""

from __future__ import annotations

import time

from benchmarks import load
from benchmarks.brokers import cpu_seconds
from benchmarks.rows import AnyBroker, Figure, Figures, Row, Timing, create_topic
from compat_tests.harness.raw import RawConnection
from wirekafka.api.end_txn import EndTxnRequest
from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.errors import ErrorCode
from wirekafka.wire.batch import Record, build_batch

PRODUCERS = 4
VALUE = b"w" * 100

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
    """A producer that makes a transaction of one record at a time (transactions v2)."""

    def __init__(self, broker: AnyBroker, topic: str) -> None:
        self.connection = RawConnection(broker.address)
        self.topic = self.transactional_id = topic
        while self.connection.ask(FindCoordinatorRequest(key_type=1, key=topic), 3).error_code != ErrorCode.NONE:
            time.sleep(0.05)
        while True:
            answer = self.connection.ask(InitProducerIdRequest(transactional_id=topic, transaction_timeout_ms=60_000), 4)
            if answer.error_code == ErrorCode.NONE:
                break
            time.sleep(0.05)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def transact(self) -> None:
        records = [Record(value=VALUE, timestamp=int(time.time() * 1000))]
        own = {"producer_id": self.producer_id, "producer_epoch": self.epoch}
        batch = build_batch(records, **own, base_sequence=0, is_transactional=True)
        data = TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index=0, records=memoryview(batch))])
        produce = ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=30_000, topic_data=[data])
        while self._code(self.connection.ask(produce, 12)) == ErrorCode.CONCURRENT_TRANSACTIONS:
            time.sleep(0.001)
        ended = self.connection.ask(EndTxnRequest(transactional_id=self.transactional_id, **own, committed=True), 5)
        assert ended.error_code == ErrorCode.NONE, ended
        self.producer_id, self.epoch = ended.producer_id, ended.producer_epoch

    def _code(self, answer: object) -> ErrorCode:
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)  # type: ignore[attr-defined]
        assert code in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS), code
        return code


def transactions_v2(broker: AnyBroker, timing: Timing) -> Figures:
    create_topic(broker, "transactions-v2")
    producer = _Producer(broker, "transactions-v2")
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


TRANSACTION_ROWS = (
    Row("transactions", f"Transactions of one record, {PRODUCERS} producers of librdkafka", FIGURES, transactions),
    Row("transactions-v2", "Transactions of one record, transactions v2, one producer", FIGURES, transactions_v2),
)
