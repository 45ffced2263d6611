"""Compacted topics in which a mirror keeps its knowledge: read from the beginning once, and then only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.kafka import REQUEST_TIMEOUT_S, Cluster
from wirekafka.pipelines.transactional_sink.failures import SinkInterrupted
from wirekafka.pipelines.transactional_sink.progress import committed_records


class CompactedTopic:
    """The latest committed record of each key in the one partition of a compacted topic.

    Attributes:
        records: values by key, as the last `refresh` has read them.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.records: dict[bytes, bytes] = {}
        self._next_offset = 0

    def refresh(self) -> None:
        """Reads up to the last stable offset; a topic that does not exist is empty.

        Raises:
            PipelineError: no broker answers.
        """
        for message in self.new_records():
            if message.value() is None:
                self.records.pop(message.key(), None)
            else:
                self.records[message.key()] = message.value()

    def new_records(self) -> Iterator[Any]:
        """Yields what came since the last call, up to the last stable offset, and keeps nothing of it.

        Raises:
            PipelineError: no broker answers.
        """
        for message in self.records_from(self._next_offset):
            yield message
            self._next_offset = message.offset() + 1

    def records_from(self, offset: int) -> Iterator[Any]:
        """Yields the records from an offset up to the last stable offset.

        Raises:
            PipelineError: no broker answers.
        """
        try:
            yield from committed_records(self.cluster, self.name, offset)
        except SinkInterrupted as error:
            raise UnreachableError(str(error)) from None


def write_records(cluster: Cluster, topic: str, records: Mapping[bytes, bytes | None]) -> None:
    """Writes records to partition 0 of a topic; a value of None is a tombstone.

    Durability: all replicas in sync have the records on return.

    Raises:
        PipelineError: the cluster does not answer, or refuses.
    """
    from confluent_kafka import Producer

    failures: list[str] = []

    def note(error: Any, _: object) -> None:
        if error is not None:
            failures.append(error.str())

    timeout_ms = int(REQUEST_TIMEOUT_S * 1000)
    producer = Producer(cluster.client_config(enable_idempotence=True, delivery_timeout_ms=timeout_ms))
    for key, value in records.items():
        producer.produce(topic, value, key, partition=0, on_delivery=note)
        producer.poll(0)
    unsent = producer.flush(2 * REQUEST_TIMEOUT_S)
    if failures or unsent:
        reason = failures[0] if failures else "no broker answers"
        raise PipelineError(f"cannot write to the topic {topic} at {cluster.bootstrap}: {reason}")
