"""kafka-python."""

from __future__ import annotations

import time
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

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


class KafkaPython:
    """The jobs in kafka-python."""

    def write(self, bootstrap: str) -> Result:
        """Writes one record."""
        producer = _producer(bootstrap)
        try:
            producer.send(TOPIC, b"one").get(MOST_SECONDS)
        except KafkaError as error:
            return Result(f"raises {_name_of(error)}")
        finally:
            producer.close(1)
        return Result()

    def read(self, bootstrap: str, count: int) -> Result:
        """Reads a partition."""
        consumer = _consumer(bootstrap)
        consumer.assign([TopicPartition(TOPIC, 0)])
        return _consume(consumer, count, commits=False)

    def join(self, bootstrap: str, count: int) -> Result:
        """Reads in a group."""
        consumer = _consumer(bootstrap, group_id=GROUP, enable_auto_commit=False)
        consumer.subscribe([TOPIC])
        return _consume(consumer, count, commits=True)

    def transact(self, bootstrap: str) -> Result:
        """Writes in a transaction."""
        producer = _producer(bootstrap, transactional_id=TRANSACTIONAL_ID)

        def send() -> None:
            producer.begin_transaction()
            producer.send(TOPIC, b"one").get(MOST_SECONDS)

        steps = (("init", producer.init_transactions), ("send", send), ("commit", producer.commit_transaction))
        try:
            return run_transaction(steps, producer.abort_transaction, _name_of)
        finally:
            producer.close(1)


def _producer(bootstrap: str, **settings: Any) -> Any:
    timeouts = {"request_timeout_ms": REQUEST_TIMEOUT_MS, "delivery_timeout_ms": DELIVERY_TIMEOUT_MS}
    return KafkaProducer(bootstrap_servers=bootstrap, **timeouts, **settings)


def _consumer(bootstrap: str, **settings: Any) -> Any:
    timeouts = {"request_timeout_ms": REQUEST_TIMEOUT_MS}
    return KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", **timeouts, **settings)


def _consume(consumer: Any, count: int, *, commits: bool) -> Result:
    result = Result()
    deadline = time.monotonic() + MOST_SECONDS
    step = "poll"
    try:
        while not result.has_read(count):
            if time.monotonic() > deadline:
                result.error = GIVEN_UP
                return result
            step = "poll"
            # The timeout is long: version 3 loses its assignment if the answer to SyncGroup arrives as the timeout ends.
            polled = consumer.poll(timeout_ms=MOST_SECONDS * 1000)
            result.values += [message.value for messages in polled.values() for message in messages]
            if commits and polled:
                step = "commit"
                consumer.commit()
    except KafkaError as error:
        result.error = f"{step} raises {_name_of(error)}"
    finally:
        consumer.close()
    return result


def _name_of(error: Exception) -> str:
    if not isinstance(error, KafkaError):
        raise error
    return type(error).__name__
