"""kafka-python in a test: a service reads orders in a consumer group and writes invoices.

Run: pip install wirekafka pytest kafka-python; pytest examples/testing/test_with_kafka_python.py
"""

from __future__ import annotations

from kafka import KafkaConsumer, KafkaProducer

from wirekafka.testing import EmbeddedBroker


def bill(bootstrap: str, order_count: int) -> None:
    """Writes an invoice for each of the next orders, and then commits its position. This is the program under test."""
    settings = {"bootstrap_servers": bootstrap, "group_id": "billing", "auto_offset_reset": "earliest"}
    with KafkaConsumer("orders", enable_auto_commit=False, **settings) as consumer:
        with KafkaProducer(bootstrap_servers=bootstrap) as producer:
            for _ in range(order_count):
                producer.send("invoices", b"invoice of " + next(consumer).value)
            producer.flush()
        consumer.commit()


def order(bootstrap: str, *orders: bytes) -> None:
    """Writes orders."""
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        for each in orders:
            producer.send("orders", each)
        producer.flush()


def test_each_order_has_an_invoice_and_the_position_is_committed(kafka_broker: EmbeddedBroker) -> None:
    order(kafka_broker.bootstrap, b"ann", b"ben", b"cas")
    bill(kafka_broker.bootstrap, 3)
    invoices = kafka_broker.wait_for_records("invoices", 3)
    assert [each.value for each in invoices] == [b"invoice of ann", b"invoice of ben", b"invoice of cas"]
    assert kafka_broker.group("billing").committed == {("orders", 0): 3}


def test_billing_goes_on_where_it_has_stopped(kafka_broker: EmbeddedBroker) -> None:
    order(kafka_broker.bootstrap, b"ann", b"ben", b"cas")
    bill(kafka_broker.bootstrap, 1)
    bill(kafka_broker.bootstrap, 2)
    invoices = kafka_broker.wait_for_records("invoices", 3)
    assert [each.value for each in invoices] == [b"invoice of ann", b"invoice of ben", b"invoice of cas"]
