"""kafka-transactions.sh describes transactions, and aborts a hanging transaction (KIP-664)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from kafka import TopicPartition
from kafka.admin import AbortTransactionSpec, KafkaAdminClient

from compat_tests.harness import broker as brokers
from compat_tests.harness import tools
from compat_tests.harness.broker import CLASSES, Broker
from compat_tests.harness.clients import CONFLUENT, Agent, Client
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.tools import Tools
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactions import OLD, RawProducer, ask
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java")]

Run = Callable[..., list[dict[str, str]]]


@pytest.fixture(scope="module")
def trusting_broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Starts a broker that accepts transactional records for partitions that were not added to the transaction."""
    settings = {"transaction.partition.verification.enable": "false"}
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("trusting-broker"), settings)) as running:
        yield running


@pytest.fixture
def run(trusting_broker: Broker, tools_jvm: Tools) -> Run:
    """Runs a command of the tool; returns the rows of its table by their headings."""

    def rows(*arguments: str) -> list[dict[str, str]]:
        outcome = tools_jvm.check(tools.TRANSACTIONS, "--bootstrap-server", trusting_broker.bootstrap, *arguments)
        headings, *lines = [line.split() for line in outcome.lines()] or [[]]
        return [dict(zip(headings, line, strict=False)) for line in lines]

    return rows


@pytest.fixture
def connection(trusting_broker: Broker) -> Iterator[RawConnection]:
    with RawConnection(trusting_broker.address) as connection:
        yield connection


@pytest.fixture
def hanging(trusting_broker: Broker, connection: RawConnection, topic: str) -> RawProducer:
    """Makes a transaction that is open for an hour in partition 0 at offset 2; the coordinator does not know it."""
    create_topic(trusting_broker.bootstrap, topic, 2)
    producer = RawProducer(connection, topic, OLD)
    assert producer.init() == "NONE"
    assert producer.add(topic) == "NONE"
    wait_until(lambda: producer.produce(topic) == "NONE", timeout_s=60, what="a record is taken")
    assert producer.commit() == "NONE"

    def is_over() -> bool:
        (described,) = ask(connection, "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}]).topics
        return all(each.current_txn_start_offset < 0 for each in described.partitions[0].active_producers)

    wait_until(is_over, timeout_s=60, what="the transaction before is over")
    assert producer.produce(topic, "hanging", timestamp_ms=int(time.time() * 1000) - 3_600_000) == "NONE"
    return producer


def committed(agent: Callable[[Client], Agent], broker: Broker, topic: str) -> list[bytes | None]:
    found = agent(CONFLUENT).read(broker.bootstrap, topic, 0, isolation="read_committed", until="end")
    return [record.value for record in found if record.partition == 0]


def test_transactions_are_listed_and_described(
    trusting_broker: Broker, run: Run, agent: Callable[[Client], Agent], topic: str
) -> None:
    create_topic(trusting_broker.bootstrap, topic, 2)
    producer = agent(CONFLUENT).open_transactions(trusting_broker.bootstrap, topic)
    producer.begin()
    producer.send(topic, "value", partition=1)
    producer.flush()
    listed = {row["TransactionalId"]: row for row in run("list")}
    assert (listed[topic]["Coordinator"], listed[topic]["TransactionState"]) == ("1", "Ongoing")
    assert topic not in {row["TransactionalId"] for row in run("list", "--duration-filter", "3600000")}
    assert [row["TransactionalId"] for row in run("list", "--transactional-id-pattern", f"{topic[:-3]}.*")] == [topic]
    (described,) = run("describe", "--transactional-id", topic)
    assert described["TransactionState"] == "Ongoing"
    assert described["TransactionTimeoutMs"] == "60000"
    assert 0 <= int(described["TransactionDurationMs"]) < 60_000
    assert described["TopicPartitions"] == f"{topic}-1"
    (written,) = run("describe-producers", "--topic", topic, "--partition", "1")
    assert written["ProducerId"] == described["ProducerId"] == listed[topic]["ProducerId"]
    assert written["ProducerEpoch"] == described["ProducerEpoch"]
    assert (written["LastSequence"], written["CurrentTransactionStartOffset"]) == ("0", "0")
    producer.commit()

    def state() -> str:
        (row,) = run("describe", "--transactional-id", topic)
        return row["TransactionState"]

    wait_until(lambda: state() == "CompleteCommit", timeout_s=60, what="the transaction is complete")
    (written,) = run("describe-producers", "--topic", topic, "--partition", "1")
    assert written["CurrentTransactionStartOffset"] == "None"
    producer.close()


def test_a_hanging_transaction_is_found_and_aborted(
    trusting_broker: Broker, run: Run, agent: Callable[[Client], Agent], hanging: RawProducer, topic: str
) -> None:
    other = agent(CONFLUENT).open_transactions(trusting_broker.bootstrap, f"{topic}-other")
    other.begin()
    other.send(topic, "behind")
    other.commit()
    assert committed(agent, trusting_broker, topic) == [b"word"], "nothing behind it is stable"
    for where in (("--topic", topic), ("--topic", topic, "--partition", "0"), ("--broker-id", "1")):
        (found,) = run("find-hanging", *where)
        assert (found["Topic"], found["Partition"], found["ProducerId"]) == (topic, "0", str(hanging.producer_id))
        assert (found["StartOffset"], found["ProducerEpoch"]) == ("2", str(hanging.epoch))
    run("abort", "--topic", topic, "--partition", "0", "--start-offset", "2")
    assert run("find-hanging", "--topic", topic) == []
    assert committed(agent, trusting_broker, topic) == [b"word", b"behind"]
    other.close()


def test_kafka_python_aborts_a_hanging_transaction(
    trusting_broker: Broker, agent: Callable[[Client], Agent], hanging: RawProducer, topic: str
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=trusting_broker.bootstrap)
    try:
        place = TopicPartition(topic, 0)
        (found,) = admin.describe_producers([place])[place].active_producers
        assert (found.producer_id, found.current_transaction_start_offset) == (hanging.producer_id, 2)
        admin.abort_transaction(AbortTransactionSpec(place, found.producer_id, found.producer_epoch, found.coordinator_epoch))
        (found,) = admin.describe_producers([place])[place].active_producers
        assert found.current_transaction_start_offset == -1
    finally:
        admin.close()
    assert committed(agent, trusting_broker, topic) == [b"word"]


def test_what_is_not_there_is_not_described(tools_jvm: Tools, trusting_broker: Broker, topic: str) -> None:
    server = ("--bootstrap-server", trusting_broker.bootstrap)
    outcome = tools_jvm.run(tools.TRANSACTIONS, *server, "describe", "--transactional-id", "nobody's")
    assert outcome.code == 1
    assert "failed because the ID could not be found" in outcome.out + outcome.err
    create_topic(trusting_broker.bootstrap, topic)
    refused = tools_jvm.run(tools.TRANSACTIONS, *server, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert refused.code == 1
    assert "Could not find any open transactions" in refused.out + refused.err
