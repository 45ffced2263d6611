"""The load of librdkafka: see load.py."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from load import ABORT_EACH, PAUSE_S, PLAIN, TRANSACTED, Load

NAME = "librdkafka"
GROUP = "offsets"
OFFSET_PERIOD_S = 0.2
TIMEOUT_S = 15
TRANSACTION_TIMEOUT_MS = 30_000
MOST_TRIES = 2
"""After a coordinator was killed, librdkafka 2.16 may not look for the next one any more. Another producer takes its place."""


class LoadOfConfluent(Load):
    """Writers, a reader, and a client that commits ascending offsets."""

    def __init__(self) -> None:
        super().__init__()
        self._given_up: list[Producer] = []
        """Not destroyed, because that would wait for their records."""

    def settings(self, **more: Any) -> dict[str, Any]:
        """Returns settings by which a client soon notices a broker that was paused, or that is back."""
        return {
            "bootstrap.servers": self.bootstrap,
            "reconnect.backoff.max.ms": 200,
            "socket.timeout.ms": 5000,
            # When all brokers are down, librdkafka 2.16 starts again, forgets the transaction coordinator and hangs.
            "metadata.recovery.strategy": "none",
            **more,
        }

    def _send(self, producer: Producer, topic: str, partition: int, payload: str, transaction: str = "-") -> None:
        self.recorder.add("sent", NAME, topic, partition, payload, transaction)
        producer.produce(topic, payload, partition=partition, on_delivery=self._note)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        payload = (message.value() or b"").decode()
        if error is not None:
            self.recorder.add("unknown", payload, error)
        else:
            offset = message.offset()
            self.recorder.add("acked", payload, -1 if offset is None else offset)

    def produce(self) -> None:
        producer = Producer(self.settings(**{"enable.idempotence": True, "linger.ms": 0}))
        number = 0
        while not self.is_stopped.is_set():
            for partition in range(self.partition_count):
                self._send(producer, PLAIN, partition, f"{NAME}-p-{partition}-{number}")
            number += 1
            producer.poll(PAUSE_S)
            time.sleep(PAUSE_S)
        assert producer.flush(120) == 0

    def _open_transactions(self) -> Producer:
        producer = Producer(
            self.settings(**{"transactional.id": NAME, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "linger.ms": 0})
        )
        persistently(lambda: producer.init_transactions(TIMEOUT_S))
        return producer

    def transact(self) -> None:
        producer = self._open_transactions()
        number = 0
        while not self.is_stopped.wait(PAUSE_S):
            transaction = f"{NAME}-t-{number}"
            self.recorder.add("begun", transaction, NAME, 1)
            try:
                self._transact_once(producer, transaction, is_aborted=number % ABORT_EACH == ABORT_EACH - 1)
            except KafkaException as error:
                print(transaction, error, file=sys.stderr, flush=True)
                if not self._can_abort(producer, transaction, error):
                    self.recorder.add("gave-up", transaction, error)
                    self._given_up.append(producer)
                    producer = self._open_transactions()
            number += 1

    def _can_abort(self, producer: Producer, transaction: str, error: KafkaException) -> bool:
        """Aborts a transaction if its producer can go on after that."""
        if not error.args[0].txn_requires_abort():
            return False
        try:
            self._abort(producer, transaction)
        except KafkaException as second:
            print(transaction, second, file=sys.stderr, flush=True)
            return False
        return True

    def _transact_once(self, producer: Producer, transaction: str, *, is_aborted: bool) -> None:
        producer.begin_transaction()
        for partition in range(self.partition_count):
            self._send(producer, TRANSACTED, partition, f"{transaction}-{partition}", transaction)
        if is_aborted:
            producer.flush(TIMEOUT_S)
            self._abort(producer, transaction)
        else:
            self.recorder.add("end", transaction, "commit")
            persistently(lambda: producer.commit_transaction(TIMEOUT_S))
            self.recorder.add("committed", transaction)

    def _abort(self, producer: Producer, transaction: str) -> None:
        self.recorder.add("end", transaction, "abort")
        persistently(lambda: producer.abort_transaction(TIMEOUT_S))
        self.recorder.add("aborted", transaction)

    def consume(self) -> None:
        consumer = Consumer(
            self.settings(
                **{
                    "group.id": "reader",
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": 100,
                }
            )
        )
        topics = (PLAIN, TRANSACTED)
        consumer.assign([TopicPartition(topic, index, 0) for topic in topics for index in range(self.partition_count)])
        while True:
            for message in consumer.consume(500, 0.2):
                error, topic, partition, offset = message.error(), message.topic(), message.partition(), message.offset()
                if error is not None:
                    print("reader:", error, file=sys.stderr, flush=True)
                elif topic is not None and partition is not None and offset is not None:
                    self.note_read(NAME, topic, partition, offset, (message.value() or b"").decode())

    def commit_offsets(self) -> None:
        """Commits ascending offsets, reads each back, and reads the last one when the load stops."""
        consumer = Consumer(self.settings(**{"group.id": GROUP, "enable.auto.commit": False}))
        number = 0
        while not self.is_stopped.wait(OFFSET_PERIOD_S):
            number += 1
            commit, partition = f"commit-{number}", number % self.partition_count
            self.recorder.add("offsets-sent", commit, GROUP, PLAIN, partition, number)
            try:
                consumer.commit(offsets=[TopicPartition(PLAIN, partition, number, metadata=commit)], asynchronous=False)
            except KafkaException as error:
                self.recorder.add("offsets-unknown", commit, error)
            else:
                self.recorder.add("offsets-acked", commit)
            self._read_offsets(consumer, "stale")
        while not self._read_offsets(consumer, "now"):
            time.sleep(OFFSET_PERIOD_S)

    def _read_offsets(self, consumer: Consumer, age: str) -> bool:
        asked_ns = time.monotonic_ns()
        partitions = [TopicPartition(PLAIN, index) for index in range(self.partition_count)]
        try:
            found = consumer.committed(partitions, timeout=10)
        except KafkaException:
            return False
        for each in found:
            if each.error is not None:
                return False
            self.recorder.add(
                "offsets-read", GROUP, PLAIN, each.partition, max(each.offset, -1), each.metadata or "-", asked_ns, age
            )
        return True


def persistently(call: Callable[[], None]) -> None:
    """Repeats a call while its error is retriable, up to `MOST_TRIES` times if it runs out of time."""
    timeout_count = 0
    while True:
        try:
            return call()
        except KafkaException as error:
            timeout_count += error.args[0].code() == KafkaError._TIMED_OUT
            if not error.args[0].retriable() or timeout_count >= MOST_TRIES:
                raise
            print("tries again:", error, file=sys.stderr, flush=True)
            time.sleep(0.05)


def fail(failure: threading.ExceptHookArgs) -> None:
    """Ends the process after a thread has failed."""
    traceback.print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    os._exit(1)


def start(target: Callable[[], None]) -> threading.Thread:
    """Starts a thread."""
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def main() -> None:
    """Runs the load until it is told to end."""
    threading.excepthook = fail
    load = LoadOfConfluent()
    start(load.consume)
    writers = [start(target) for target in (load.produce, load.transact, load.commit_offsets)]
    sys.stdin.readline()
    load.is_stopped.set()
    for writer in writers:
        writer.join()
    print("stopped", flush=True)
    sys.stdin.readline()
    os._exit(0)


if __name__ == "__main__":
    main()
