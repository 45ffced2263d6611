"""Forks in a test: the test data is loaded once, and each test has a broker of its own with a copy of it.

A copy shares the sealed segments with its origin, so it takes milliseconds whatever the size of the data.

Run: pip install wirekafka pytest confluent-kafka; pytest examples/testing/test_forks.py
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from wirekafka.testing import EmbeddedBroker

ORDERS = 10_000


def write(bootstrap: str, topic: str, count: int) -> None:
    """Writes orders."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, f"order {number}")
    assert producer.flush(60) == 0


@pytest.fixture(scope="session")
def loaded() -> Iterator[EmbeddedBroker]:
    """Returns a broker with the test data, which no test changes."""
    with EmbeddedBroker() as broker:
        broker.create_topic("orders")
        write(broker.bootstrap, "orders", ORDERS)
        yield broker


@pytest.fixture
def broker(loaded: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    """Returns a fork for one test."""
    with loaded.fork() as fork:
        yield fork


def test_new_orders_are_appended(broker: EmbeddedBroker) -> None:
    write(broker.bootstrap, "orders", 5)
    assert broker.records("orders")[-1].offset == ORDERS + 4


def test_orders_can_be_deleted(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["orders"])["orders"].result(timeout=30)
    assert "orders" not in broker.describe()


def test_each_fork_has_the_test_data_as_it_was_loaded(broker: EmbeddedBroker) -> None:
    assert len(broker.records("orders")) == ORDERS
