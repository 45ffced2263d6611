"""Time in a test: a minute and a week pass at once, for the broker. Clients keep their own time.

Run: pip install wirekafka pytest confluent-kafka; pytest examples/testing/test_clock.py
"""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer

from wirekafka.testing import EmbeddedBroker

WEEK_S = 7 * 24 * 3600


def write(producer: Producer, topic: str, value: bytes) -> None:
    """Writes a record."""
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def read_one(broker: EmbeddedBroker, topic: str) -> bytes | None:
    """Returns the first record of a topic that is committed."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    consumer.subscribe([topic])
    message = consumer.poll(60)
    consumer.close()
    return None if message is None else message.value()


@pytest.mark.kafka_topic(retention_ms=WEEK_S * 1000, segment_ms=1000)
def test_orders_are_deleted_after_a_week(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    write(producer, kafka_topic, b"old")
    kafka_broker.clock.advance(WEEK_S + 3600)  # the broker looks for old segments every five minutes
    assert kafka_broker.records(kafka_topic) == []


def test_transaction_of_a_hanging_producer_is_aborted_after_a_minute(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    hanging = Producer({"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": "t", "transaction.timeout.ms": 60_000})
    hanging.init_transactions()
    hanging.begin_transaction()
    write(hanging, kafka_topic, b"of the transaction")
    write(Producer({"bootstrap.servers": kafka_broker.bootstrap}), kafka_topic, b"after it")
    # Until the transaction ends, it hides the record after it from consumers with isolation.level=read_committed.
    kafka_broker.clock.advance(70)
    assert read_one(kafka_broker, kafka_topic) == b"after it"
    assert [each.control for each in kafka_broker.records(kafka_topic)] == [None, None, "abort"]
