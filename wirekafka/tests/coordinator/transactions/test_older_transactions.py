"""The actions that the transaction coordinator starts itself if transaction.version is below 2."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from wirekafka.broker import Broker
from wirekafka.coordinator.transactions.requests import InitRequest, ProducerIdentity
from wirekafka.errors import KafkaError
from wirekafka.metadata.features import TRANSACTION_VERSION, FeatureUpdate, UpgradeType
from wirekafka.tests.coordinator.transactions.test_runtime import T0, run, state_of


def begin(broker: Broker, level: int, timeout_ms: int = 60_000) -> ProducerIdentity:
    """Makes a producer of transactions v1 with an open transaction in t-0."""
    update = FeatureUpdate(TRANSACTION_VERSION, level, UpgradeType.SAFE_DOWNGRADE)
    broker.topics.features.update([update], validate_only=False)
    broker.topics.create("t", 1)
    producer = broker.transactions.init_producer_id(InitRequest("x", timeout_ms))
    broker.transactions.add_partitions("x", producer, [T0])
    return producer


@pytest.mark.parametrize("level", [0, 1])
def test_a_transaction_that_takes_too_long_is_aborted_under_the_next_epoch(tmp_path: Path, level: int) -> None:
    async def body(broker: Broker) -> None:
        producer = begin(broker, level, timeout_ms=5000)
        await trio.sleep(15)
        transaction, _ = broker.transactions.describe("x")
        assert (transaction.state.title, transaction.producer_epoch, transaction.client_version) == ("CompleteAbort", 1, 0)
        with pytest.raises(KafkaError, match="PRODUCER_FENCED"):
            broker.transactions.end("x", producer, is_commit=True, client_version=0)

    run(tmp_path, body)


@pytest.mark.parametrize("level", [0, 1])
def test_a_fenced_producer_does_not_go_on_by_asking_for_its_next_epoch(tmp_path: Path, level: int) -> None:
    async def body(broker: Broker) -> None:
        producer = begin(broker, level)
        with pytest.raises(KafkaError, match="CONCURRENT_TRANSACTIONS"):
            broker.transactions.init_producer_id(InitRequest("x", 1000))
        with pytest.raises(KafkaError, match="PRODUCER_FENCED"):
            broker.transactions.init_producer_id(InitRequest("x", 1000, expected=producer))
        assert broker.transactions.init_producer_id(InitRequest("x", 1000)) == (producer.producer_id, 2)

    run(tmp_path, body)


def test_open_transactions_of_the_oldest_records_are_there_after_a_restart(tmp_path: Path) -> None:
    async def first(broker: Broker) -> None:
        begin(broker, 0)

    async def second(broker: Broker) -> None:
        assert broker.topics.features.level(TRANSACTION_VERSION) == 0
        transaction, partitions = broker.transactions.describe("x")
        assert (state_of(broker), partitions) == ("Ongoing", [T0])
        producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
        assert broker.transactions.end("x", producer, is_commit=True, client_version=0) == producer
        assert state_of(broker) == "CompleteCommit"

    run(tmp_path, first, second)


def test_a_fenced_epoch_that_is_the_last_is_followed_by_another_producer_id(tmp_path: Path) -> None:
    async def body(broker: Broker) -> None:
        producer = begin(broker, 1)
        transactions = broker.transactions._coordinator.transactions
        transactions["x"].producer_epoch = 0x7FFE
        with pytest.raises(KafkaError, match="CONCURRENT_TRANSACTIONS"):
            broker.transactions.init_producer_id(InitRequest("x", 1000))
        assert transactions["x"].producer_epoch == 0x7FFF
        after = broker.transactions.init_producer_id(InitRequest("x", 1000))
        assert (after.producer_id != producer.producer_id, after.producer_epoch) == (True, 0)

    run(tmp_path, body)
