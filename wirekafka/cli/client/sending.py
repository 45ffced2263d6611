"""Sends records for `wirekafka produce`, in their order, and counts what the brokers have acknowledged.

How it works: librdkafka sends batches in the background, one request at a time to each broker, so that a retry keeps the order.
The partition of a key is that of the Java clients. The first failed record ends the input.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from wirekafka.cli.client.connection import sentence
from wirekafka.cli.client.errors import ClientCommandError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from wirekafka.cli.client.connection import Connection
    from wirekafka.cli.client.input_records import NewRecord

WAIT_SECONDS = 0.1
SECONDS_FOR_A_NEW_TOPIC = 5.0
"""How long a broker may take to create a topic by itself (auto.create.topics.enable)."""
BEING_CREATED = ("UNKNOWN_TOPIC_OR_PART", "LEADER_NOT_AVAILABLE")
"""What brokers answer while they create a topic."""


class Sender:
    """Sends records to a topic.

    Attributes:
        offsets: the first and the last offset by partition, of acknowledged records.
        count: the acknowledged records.
    """

    def __init__(self, connection: Connection, topic: str) -> None:
        self.offsets: dict[int, tuple[int, int]] = {}
        self.count = 0
        self._topic = topic
        self._failure: KafkaError | None = None
        self._failed = 0
        milliseconds = round(connection.timeout_s * 1000)
        self._producer: Producer = connection.producer(
            partitioner="murmur2_random",
            max_in_flight_requests_per_connection=1,
            message_timeout_ms=milliseconds,
            topic_metadata_propagation_max_ms=milliseconds,
        )

    def find_topic(self, connection: Connection) -> None:
        """Waits until the topic exists; a broker may create it when it is first asked for.

        Raises:
            ClientCommandError: it does not exist, the broker refuses it, or no broker answers.
        """
        from confluent_kafka import KafkaException

        existing = connection.metadata().topics
        deadline = time.monotonic() + min(connection.timeout_s, SECONDS_FOR_A_NEW_TOPIC)
        while self._topic not in existing:
            try:
                error = self._producer.list_topics(self._topic, timeout=connection.timeout_s).topics[self._topic].error
            except KafkaException as raised:
                raise connection.unreachable(raised.args[0]) from None
            if error is None:
                return
            if error.name() not in BEING_CREATED:
                raise ClientCommandError(f"topic {self._topic}: {sentence(error)}")
            if time.monotonic() > deadline:
                create = f"`wirekafka topic create {self._topic}` creates it"
                raise ClientCommandError(f"topic {self._topic} does not exist, and the broker does not create it; {create}")
            time.sleep(WAIT_SECONDS)

    def send_all(self, records: Iterable[NewRecord]) -> None:
        """Sends records until the input ends, and waits for the acknowledgements.

        Raises:
            ClientCommandError: a record failed, or the input is malformed.
        """
        try:
            for record in records:
                if self._failure is not None:
                    break
                self._send(record)
        finally:
            while len(self._producer):
                self._producer.flush(WAIT_SECONDS)
        if self._failure is not None:
            raise ClientCommandError(f"{self._failed} of {self._failed + self.count} records failed: {sentence(self._failure)}")

    def _send(self, record: NewRecord) -> None:
        from confluent_kafka import KafkaException

        more: dict[str, Any] = {}
        if record.partition is not None:
            more["partition"] = record.partition
        if record.timestamp is not None:
            more["timestamp"] = record.timestamp
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value, record.key, headers=record.headers, on_delivery=self._note, **more
                )
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(WAIT_SECONDS)
            except KafkaException as error:
                self._note(error.args[0], None)
                return

    def _note(self, error: KafkaError | None, message: Message | None) -> None:
        if error is not None:
            self._failure = self._failure or error
            self._failed += 1
            return
        assert message is not None, "a record that was sent has one"
        self.count += 1
        partition, offset = message.partition(), message.offset()
        if offset < 0:  # with acks=0 no broker tells it
            return
        first, last = self.offsets.get(partition, (offset, offset))
        self.offsets[partition] = (min(first, offset), max(last, offset))
