"""Copies a topic to another exactly once, with confluent-kafka, until it is killed.

Run as: copying_worker.py BOOTSTRAP GROUP SOURCE TARGET TRANSACTIONAL_ID. The loop is that of KIP-447: the worker reads and
writes, and commits the offsets in the same transaction with its group membership. An error from which the worker cannot recover
ends the process; the test starts the next worker, which takes over the transactional id.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

T = TypeVar("T")

MOST_RECORDS = 100
POLL_S = 0.2


def persistently(call: Callable[[], T]) -> T:
    """Repeats a call while its error is retriable."""
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            print("tries again:", error, file=sys.stderr, flush=True)
            time.sleep(0.05)


class Worker:
    """One member of the group with its transactional producer."""

    def __init__(self, bootstrap: str, group: str, source: str, target: str, transactional_id: str) -> None:
        common = {
            "bootstrap.servers": bootstrap,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 200,
            # When all brokers are down, librdkafka 2.16 starts again, forgets the transaction coordinator and hangs.
            "metadata.recovery.strategy": "none",
        }
        self.target = target
        self.was_rebalanced = False
        self.producer = Producer(
            common | {"transactional.id": transactional_id, "transaction.timeout.ms": 10_000, "linger.ms": 2}
        )
        persistently(lambda: self.producer.init_transactions(20))
        self.consumer = Consumer(
            common
            | {
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "partition.assignment.strategy": "range",
                "session.timeout.ms": 3000,
                "heartbeat.interval.ms": 500,
                "max.poll.interval.ms": 10_000,
                "fetch.wait.max.ms": 100,
            }
        )
        self.metadata = self.consumer.consumer_group_metadata()
        self.consumer.subscribe([source], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The membership is read now: a worker that loses it later must commit as the old member and be refused.
        self.metadata = consumer.consumer_group_metadata()
        consumer.assign(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.was_rebalanced = True
        consumer.unassign()

    def run(self) -> None:
        """Copies one batch after the other."""
        while True:
            messages = self._read()
            if not messages:
                continue
            try:
                self._copy(messages)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                print("aborts:", error, file=sys.stderr, flush=True)
                persistently(lambda: self.producer.abort_transaction(20))
                self._rewind()

    def _read(self) -> list[Message]:
        """Returns the available messages, all read under one assignment."""
        messages: list[Message] = []
        self.was_rebalanced = False
        deadline = time.monotonic() + POLL_S
        while len(messages) < MOST_RECORDS and time.monotonic() < deadline:
            message = self.consumer.poll(max(0, deadline - time.monotonic()))
            if self.was_rebalanced:  # the new owners of the partitions begin at the committed offsets
                messages.clear()
                self.was_rebalanced = False
            if message is not None and message.error() is None:
                messages.append(message)
        return messages

    def _copy(self, messages: list[Message]) -> None:
        self.producer.begin_transaction()
        positions = {}
        for message in messages:
            self.producer.produce(self.target, message.value(), message.key(), message.partition())
            positions[message.partition()] = TopicPartition(message.topic(), message.partition(), message.offset() + 1)
        offsets = list(positions.values())
        persistently(lambda: self.producer.send_offsets_to_transaction(offsets, self.metadata, 20))
        persistently(lambda: self.producer.commit_transaction(20))

    def _rewind(self) -> None:
        """Seeks to the committed offsets."""
        assigned = self.consumer.assignment()
        for place in persistently(lambda: self.consumer.committed(assigned, 20)):
            offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
            self.consumer.seek(TopicPartition(place.topic, place.partition, offset))


if __name__ == "__main__":
    Worker(*sys.argv[1:]).run()
