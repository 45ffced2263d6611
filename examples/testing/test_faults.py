"""Faults in a test: does the program survive what brokers and networks do on bad days?

docs/testing.md has all faults, and what each client does.

Run: pip install wirekafka pytest confluent-kafka; pytest examples/testing/test_faults.py
"""

from __future__ import annotations

from confluent_kafka import KafkaError, Message, Producer

from wirekafka.testing import EmbeddedBroker


def write(bootstrap: str, topic: str, value: bytes, **settings: object) -> str | None:
    """Writes a record; returns the name of the error if it is not written. This is the program under test."""
    errors: list[str] = []

    def note(error: KafkaError | None, _: Message) -> None:
        errors.extend([] if error is None else [error.name()])

    producer = Producer({"bootstrap.servers": bootstrap} | settings)
    producer.produce(topic, value, on_delivery=note)
    producer.flush()
    return errors[0] if errors else None


def test_brief_lack_of_replicas_is_survived(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    with kafka_broker.fault(api="Produce", topic=kafka_topic, error="NOT_ENOUGH_REPLICAS", times=3) as fault:
        assert write(kafka_broker.bootstrap, kafka_topic, b"one") is None
    assert len(fault.hits) == 3
    assert [each.value for each in kafka_broker.records(kafka_topic)] == [b"one"]


def test_refused_record_is_reported(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    with kafka_broker.fault(api="Produce", error="TOPIC_AUTHORIZATION_FAILED"):
        assert write(kafka_broker.bootstrap, kafka_topic, b"one") == "TOPIC_AUTHORIZATION_FAILED"
    assert kafka_broker.records(kafka_topic) == []


def test_lost_acknowledgement_makes_no_second_record(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    # The connection ends after the record was appended, and before the producer has the response.
    with kafka_broker.fault(api="Produce", disconnect="reply", times=1) as fault:
        assert write(kafka_broker.bootstrap, kafka_topic, b"one", **{"enable.idempotence": True}) is None
    assert len(fault.hits) == 1
    assert [each.value for each in kafka_broker.records(kafka_topic)] == [b"one"]


def test_producer_that_is_not_idempotent_writes_it_twice(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    with kafka_broker.fault(api="Produce", disconnect="reply", times=1):
        assert write(kafka_broker.bootstrap, kafka_topic, b"one") is None
    assert [each.value for each in kafka_broker.records(kafka_topic)] == [b"one", b"one"]
