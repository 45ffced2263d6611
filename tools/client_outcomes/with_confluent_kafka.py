"""confluent-kafka."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from tools.client_outcomes.jobs import (
    DELIVERY_TIMEOUT_MS,
    GIVEN_UP,
    GROUP,
    MOST_SECONDS,
    REQUEST_TIMEOUT_MS,
    TOPIC,
    TRANSACTIONAL_ID,
    Result,
    run_transaction,
)

QUIET = {"log_level": 0, "socket.timeout.ms": REQUEST_TIMEOUT_MS + 1000}
"""librdkafka waits as long for most responses, but for those of Produce and of transactions."""


class DeliveryError(Exception):
    """The report of a record that was not delivered; its argument is the name of the error."""


class ConfluentKafka:
    """The jobs in confluent-kafka."""

    def write(self, bootstrap: str) -> Result:
        """Writes one record."""
        errors: list[str | None] = []
        producer = Producer(_settings_of_producer(bootstrap))
        producer.produce(TOPIC, b"one", on_delivery=lambda error, _: errors.append(None if error is None else error.name()))
        producer.flush(MOST_SECONDS)
        if not errors:
            return Result(GIVEN_UP)
        return Result(None if errors[0] is None else f"raises {errors[0]}")

    def read(self, bootstrap: str, count: int) -> Result:
        """Reads a partition."""
        consumer = _consumer(bootstrap)
        consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        return _consume(consumer, count, commits=False)

    def join(self, bootstrap: str, count: int) -> Result:
        """Reads in a group."""
        consumer = _consumer(bootstrap)
        consumer.subscribe([TOPIC])
        return _consume(consumer, count, commits=True)

    def transact(self, bootstrap: str) -> Result:
        """Writes in a transaction."""
        producer = Producer({**_settings_of_producer(bootstrap), "transactional.id": TRANSACTIONAL_ID})
        errors: list[str | None] = []

        def send() -> None:
            producer.begin_transaction()
            producer.produce(TOPIC, b"one", on_delivery=lambda error, _: errors.append(None if error is None else error.name()))
            producer.flush(MOST_SECONDS)
            if errors != [None]:
                raise DeliveryError(*errors)

        steps = (
            ("init", lambda: producer.init_transactions(MOST_SECONDS)),
            ("send", send),
            ("commit", lambda: producer.commit_transaction(MOST_SECONDS)),
        )
        return run_transaction(steps, lambda: producer.abort_transaction(MOST_SECONDS), _name_of)


def _settings_of_producer(bootstrap: str) -> dict[str, Any]:
    timeouts = {"request.timeout.ms": REQUEST_TIMEOUT_MS, "message.timeout.ms": DELIVERY_TIMEOUT_MS}
    return {"bootstrap.servers": bootstrap, **QUIET, **timeouts}


def _consumer(bootstrap: str) -> Any:
    settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer({"bootstrap.servers": bootstrap, **QUIET, **settings})


def _consume(consumer: Any, count: int, *, commits: bool) -> Result:
    result = Result()
    deadline = time.monotonic() + MOST_SECONDS
    while not result.has_read(count) and result.error is None:
        message = consumer.poll(1)
        if time.monotonic() > deadline:
            result.error = GIVEN_UP
        elif message is not None and message.error() is not None:
            result.error = f"poll raises {message.error().name()}"
        elif message is not None:
            result.values.append(message.value())
            result.error = _commit(consumer, message) if commits else None
    consumer.close()
    return result


def _commit(consumer: Any, message: Any) -> str | None:
    try:
        consumer.commit(message, asynchronous=False)
    except KafkaException as error:
        return f"commit raises {_name_of(error)}"
    return None


def _name_of(error: Exception) -> str:
    if isinstance(error, DeliveryError):
        return str(error)
    if not isinstance(error, KafkaException):
        raise error
    return str(error.args[0].name())
