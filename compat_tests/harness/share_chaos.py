"""Workers of a share group that are killed, with a broker that is killed too."""

from __future__ import annotations

import random
import time
from pathlib import Path

from confluent_kafka import Producer

from compat_tests.harness.broker import Broker
from compat_tests.harness.proxy import CuttingProxy
from compat_tests.harness.sharing import Worker

MOST_TAKEN_AT_ONCE = 20
"""The most records that a worker takes at once: Sharing.java's max.poll.records."""


def produce(broker: Broker, topic: str, values: list[str], partition: int = 0, **settings: object) -> None:
    """Sends the values to one partition, and waits until all are acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for value in values:
        producer.produce(topic, value.encode(), partition=partition)
    assert producer.flush(30) == 0


class Chaos:
    """Workers of a share group and their broker, which are killed and started again.

    Attributes:
        values: all produced values: `good`, `bad` and `slow` ones.
        workers: all workers of the run, killed ones included.
        restarts: how often the broker was killed.

    A worker reports an acknowledgement when its commit is answered. If the broker or the worker is killed between the broker's
    write and this report, the record is acknowledged and no worker reports it: at most the records of one poll for each kill.
    """

    def __init__(self, broker: Broker, proxy: CuttingProxy, topic: str, folder: Path) -> None:
        self._broker, self._proxy, self._topic, self._folder = broker, proxy, topic, folder
        self._chance = random.Random(932)
        self.values: list[str] = []
        self.workers: list[Worker] = []
        self.restarts = 0
        self._working = [self._start_worker(), self._start_worker()]

    def _start_worker(self) -> Worker:
        log = self._folder / f"worker-{len(self.workers)}.log"
        self.workers.append(Worker(log, self._proxy.bootstrap, self._topic, self._topic))
        return self.workers[-1]

    def produce_more(self) -> None:
        count = len(self.values)
        new = [f"{kind}-{count + number}" for number in range(50) for kind in ("good", "bad", "slow")]
        for partition in range(2):
            settings = {"linger.ms": 0, "batch.num.messages": 10}
            produce(self._broker, self._topic, new[partition::2], partition, **settings)
        self.values.extend(new)

    def strike(self) -> None:
        """Kills the broker, or a worker, and starts it again."""
        time.sleep(self._chance.uniform(0.5, 3))
        if self._chance.random() < 1 / 3:
            self._broker.kill()
            self._broker.start()
            self._proxy.upstream = self._broker.address
            self.restarts += 1
        else:
            victim = self._chance.randrange(2)
            self._working[victim].kill()
            self._working[victim] = self._start_worker()

    def said(self, kind: str) -> set[str]:
        """Returns the values of all reports of one kind: an acknowledgement type, or `record` for a delivery."""
        return {value for worker in self.workers for value in worker.of_kind(kind)}

    @property
    def most_unsaid(self) -> int:
        """Returns the most acknowledgements that the kills may have left unreported."""
        return MOST_TAKEN_AT_ONCE * (len(self.workers) - len(self._working) + len(self._working) * self.restarts)

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
