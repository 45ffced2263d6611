"""Shows what producers of real clients do under faults, as rows of the table in docs/testing.md.

    python tools/client_outcomes.py

Each client writes one record with its default settings, but for timeouts of ten seconds. The first request is hit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from wirekafka.testing import EmbeddedBroker

FAULTS: list[dict[str, Any]] = [
    {"error": "NOT_ENOUGH_REPLICAS"},
    {"error": "NOT_LEADER_OR_FOLLOWER"},
    {"error": "MESSAGE_TOO_LARGE"},
    {"error": "TOPIC_AUTHORIZATION_FAILED"},
    {"full_disk": True},
    {"disconnect": "request"},
    {"disconnect": "reply"},
    {"lose": "reply"},
]

TOPIC = "orders"
TIMEOUT_SECONDS = 60


def write_with_confluent_kafka(bootstrap: str) -> str | None:
    """Returns the name of the error; None if the record was acknowledged."""
    from confluent_kafka import Producer

    errors: list[str | None] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "socket.timeout.ms": 11_000, "request.timeout.ms": 10_000, "log_level": 0}
    )
    producer.produce(TOPIC, b"one", on_delivery=lambda error, _: errors.append(None if error is None else error.name()))
    producer.flush(TIMEOUT_SECONDS)
    return errors[0]


def write_with_kafka_python(bootstrap: str) -> str | None:
    """Returns the name of the error; None if the record was acknowledged."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(bootstrap_servers=bootstrap, request_timeout_ms=10_000, delivery_timeout_ms=40_000)
    try:
        producer.send(TOPIC, b"one").get(TIMEOUT_SECONDS)
    except KafkaError as error:
        return type(error).__name__
    finally:
        producer.close(1)
    return None


def write_with_aiokafka(bootstrap: str) -> str | None:
    """Returns the name of the error; None if the record was acknowledged."""
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def write() -> str | None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, request_timeout_ms=10_000)
        await producer.start()
        try:
            await asyncio.wait_for(producer.send_and_wait(TOPIC, b"one"), TIMEOUT_SECONDS)
        except KafkaError as error:
            return type(error).__name__
        finally:
            await producer.stop()
        return None

    return asyncio.run(write())


CLIENTS: dict[str, Callable[[str], str | None]] = {
    "confluent-kafka": write_with_confluent_kafka,
    "kafka-python": write_with_kafka_python,
    "aiokafka": write_with_aiokafka,
}


def outcome(broker: EmbeddedBroker, write: Callable[[str], str | None], fault: dict[str, Any]) -> str:
    """Returns what a client does, and how often the record is in the log."""
    broker.reset()
    broker.create_topic(TOPIC)
    with broker.fault(api="Produce", times=1, **fault) as ordered:
        error = write(broker.bootstrap)
    assert len(ordered.hits) == 1, f"{fault} has hit no request"
    told = "retries, and nobody notices" if error is None else f"raises {error}"
    count = len(broker.records(TOPIC))
    return told if count == (error is None) else f"{told}; the record is there {['not at all', 'once', 'twice'][count]}"


def main() -> None:
    """Prints the table."""
    print(f"| fault of Produce | {' | '.join(CLIENTS)} |\n|---|{'---|' * len(CLIENTS)}")
    with EmbeddedBroker() as broker:
        for fault in FAULTS:
            [(name, value)] = fault.items()
            cells = [outcome(broker, write, fault) for write in CLIENTS.values()]
            print(f"| `{name}={value!r}` | {' | '.join(cells)} |".replace("'", '"'), flush=True)


if __name__ == "__main__":
    main()
