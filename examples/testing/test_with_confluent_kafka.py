"""confluent-kafka in a test: a program transfers money in transactions, and a failed transfer leaves nothing.

Run: pip install wirekafka pytest confluent-kafka; pytest examples/testing/test_with_confluent_kafka.py
"""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from wirekafka.testing import EmbeddedBroker


class NoSuchAccountError(Exception):
    """The money cannot arrive."""


def transfer(producer: Producer, topic: str, source: str, target: str, amount: int, accounts: set[str]) -> None:
    """Takes money from one account and gives it to another: both or neither. This is the program under test."""
    producer.begin_transaction()
    producer.produce(topic, key=source, value=str(-amount))
    producer.flush()
    if target not in accounts:
        producer.abort_transaction()
        raise NoSuchAccountError(target)
    producer.produce(topic, key=target, value=str(amount))
    producer.commit_transaction()


@pytest.fixture
def bank(kafka_broker: EmbeddedBroker) -> Producer:
    """Returns a transactional producer."""
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": "bank"})
    producer.init_transactions()
    return producer


def test_transfer_changes_both_accounts(kafka_broker: EmbeddedBroker, kafka_topic: str, bank: Producer) -> None:
    transfer(bank, kafka_topic, "ann", "ben", 10, {"ann", "ben"})
    changes = [(each.key, each.value) for each in kafka_broker.wait_for_records(kafka_topic, 2)]
    assert changes == [(b"ann", b"-10"), (b"ben", b"10")]


def test_failed_transfer_changes_nothing(kafka_broker: EmbeddedBroker, kafka_topic: str, bank: Producer) -> None:
    with pytest.raises(NoSuchAccountError):
        transfer(bank, kafka_topic, "ann", "nobody", 10, {"ann", "ben"})
    transfer(bank, kafka_topic, "ann", "ben", 5, {"ann", "ben"})
    # What a consumer with isolation.level=read_committed gets.
    changes = [(each.key, each.value) for each in kafka_broker.wait_for_records(kafka_topic, 2)]
    assert changes == [(b"ann", b"-5"), (b"ben", b"5")]
    # All that the log has: the aborted record, and the markers that end the transactions.
    assert [each.control or each.value for each in kafka_broker.records(kafka_topic)] == [b"-10", "abort", b"-5", b"5", "commit"]
