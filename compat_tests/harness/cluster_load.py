"""Clients that write to a cluster while its brokers fail, and the check that nothing was lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException, Producer

from compat_tests.harness import jars, tools
from compat_tests.harness.chaos import Worker
from compat_tests.harness.mixed_cluster import MixedCluster
from compat_tests.harness.waiting import wait_until

TOPIC, TRANSACTED, COPIED = "load", "transacted", "copied"
TOPICS = (TOPIC, TRANSACTED, COPIED)
GROUP = "copier"
PARTITION_COUNT = 3
PAUSE_S = 0.02
LAST_TRANSACTION_COUNT = 10


class ClusterLoad:
    """Producers of librdkafka, and a Java client that copies a topic exactly once, which go on while brokers are replaced.

    The Java client is a member of a group. It writes the copies and the offsets of the group in transactions.

    Attributes:
        acknowledged: the values that an idempotent producer with acks=all was told are stored, by partition.
        committed: the values of committed transactions, which go to all partitions.
    """

    def __init__(self, cluster: MixedCluster, directory: Path) -> None:
        for topic in TOPICS:
            cluster.create_topic(topic, [[1, 2, 3], [2, 3, 1], [3, 1, 2]], {"min.insync.replicas": "2"})
        self.acknowledged: list[list[bytes]] = [[] for _ in range(PARTITION_COUNT)]
        self.committed: list[bytes] = []
        self.errors: list[str] = []
        self._bootstrap = cluster.bootstrap
        command = jars.java_command(jars.KAFKA, "CopyingWorker", programs=("copying",), flags=tools.LOGGING, heap_mib=96)
        self._copier = Worker([*command, self._bootstrap, GROUP, TOPIC, COPIED, GROUP], directory / "copier.log")
        self._stop = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Produces while the block lasts, and until some more transactions have been committed after it.

        At the end everything is acknowledged. The copies may still be behind.
        """
        threads = [threading.Thread(target=target) for target in (self._produce, self._transact, self._watch_copier)]
        self._copier.start()
        for thread in threads:
            thread.start()
        try:
            yield
            self._until_more_is_committed()
        except BaseException:
            self._copier.kill()
            raise
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(300)
                assert not thread.is_alive(), "a producer hangs"

    def _until_more_is_committed(self) -> None:
        """Waits for transactions that began after the last fault: a coordinator that was paused or killed serves again."""
        before = len(self.committed)

        def is_committed() -> bool:
            return bool(self.errors) or len(self.committed) >= before + LAST_TRANSACTION_COUNT

        wait_until(is_committed, timeout_s=120, what="transactions after the last fault")

    def _watch_copier(self) -> None:
        while not self._stop.wait(0.5):
            self._copier.restart_if_ended()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not self._stop.wait(PAUSE_S):
            for index in range(PARTITION_COUNT):
                producer.produce(TOPIC, b"%d" % number, partition=index, on_delivery=self._on_delivery)
            number += 1
            producer.poll(0)
        if producer.flush(120):
            self.errors.append("records were not acknowledged")

    def _on_delivery(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged[message.partition()].append(message.value())  # type: ignore[attr-defined]

    def _transact(self) -> None:
        try:
            self._transact_until_stopped()
        except KafkaException as error:
            self.errors.append(f"the transactional producer has failed: {error}")

    def _transact_until_stopped(self) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "transactional.id": "load", "transaction.timeout.ms": 120_000}
        producer = Producer(settings)
        producer.init_transactions(120)
        number = 0
        while not self._stop.wait(PAUSE_S):
            value = b"transaction %d" % number
            producer.begin_transaction()
            for index in range(PARTITION_COUNT):
                producer.produce(TRANSACTED, value, partition=index)
            producer.flush(120)
            if number % 3 == 2:
                producer.abort_transaction(120)
            else:
                producer.commit_transaction(120)
                self.committed.append(value)
            number += 1

    def check(self, cluster: MixedCluster) -> None:
        """Checks that everything that was acknowledged is there once, in order, and that all replicas are equal."""
        assert self.errors == []
        self._until_all_is_copied(cluster)
        for index in range(PARTITION_COUNT):
            acknowledged = self.acknowledged[index]
            assert cluster.consume(TOPIC, index, len(acknowledged)) == acknowledged
            assert cluster.consume(TRANSACTED, index, len(self.committed)) == self.committed
            assert cluster.consume(COPIED, index, len(acknowledged)) == acknowledged
            for topic in TOPICS:
                cluster.until_equal(topic, index)

    def _until_all_is_copied(self, cluster: MixedCluster) -> None:
        """Waits until the group has committed the ends of the source, and ends its member."""
        ends = [len(each) for each in self.acknowledged]

        def is_copied() -> bool:
            self._copier.restart_if_ended()
            return cluster.committed_offsets(GROUP, TOPIC, PARTITION_COUNT) == ends

        try:
            wait_until(is_copied, timeout_s=120, what=f"the copies of {ends} records; {self._copier}", poll_s=0.2)
        finally:
            self._copier.kill()
