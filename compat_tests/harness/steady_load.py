"""A producer that writes to partitions all the time, and notes how long each of them took no records.

with steady_load(cluster, "topic", partition_count) as load:
    cluster.brokers[1].kill()
    ...
load.longest_gap_s
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, Message, Producer

from compat_tests.harness.mixed_cluster import MixedCluster
from compat_tests.harness.waiting import wait_until

PAUSE_S = 0.01


class SteadyLoad:
    """The records of one idempotent producer of librdkafka with acks=all.

    Attributes:
        acknowledged: the values that are stored, by partition.
        errors: why records were not stored.
        longest_gap_s: the longest time between two acknowledgements in one partition.
    """

    def __init__(self, bootstrap: str, topic: str, partition_count: int) -> None:
        self.acknowledged: list[list[bytes]] = [[] for _ in range(partition_count)]
        self.errors: list[str] = []
        self.longest_gap_s = 0.0
        self._topic = topic
        self._last: dict[int, float] = {}
        # A broker that was down leads again soon. librdkafka would wait up to 10 s before it connects again.
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "reconnect.backoff.max.ms": 200}
        self._producer = Producer(settings)

    def run(self, stop: threading.Event) -> None:
        """Produces a record to each partition in turn, until it is told to stop and everything is acknowledged."""
        number = 0
        while not stop.wait(PAUSE_S):
            for index in range(len(self.acknowledged)):
                self._producer.produce(self._topic, b"%d" % number, partition=index, on_delivery=self._note)
            number += 1
            self._producer.poll(0)
        if self._producer.flush(60):
            self.errors.append("records were not acknowledged")

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        index, now = message.partition(), time.monotonic()
        assert index is not None
        self.longest_gap_s = max(self.longest_gap_s, now - self._last.get(index, now))
        self._last[index] = now
        self.acknowledged[index].append(message.value() or b"")

    def count(self) -> int:
        """Returns the number of records of the partition that has the least."""
        return min(map(len, self.acknowledged))

    def until_more(self, count: int = 20) -> None:
        """Waits until each partition has taken some more records."""
        wanted = self.count() + count
        wait_until(lambda: self.errors or self.count() >= wanted, timeout_s=60, what="every partition takes records")


@contextmanager
def steady_load(cluster: MixedCluster, topic: str, partition_count: int) -> Iterator[SteadyLoad]:
    """Produces while the block lasts, and for some more records. At the end nothing has failed, and all can be read in order."""
    load, stop = SteadyLoad(cluster.bootstrap, topic, partition_count), threading.Event()
    thread = threading.Thread(target=load.run, args=(stop,))
    thread.start()
    try:
        load.until_more()
        yield load
        load.until_more()
    finally:
        stop.set()
        thread.join(120)
    assert not thread.is_alive(), "the producer hangs"
    assert load.errors == []
    for index, acknowledged in enumerate(load.acknowledged):
        assert cluster.consume(topic, index, len(acknowledged)) == acknowledged
