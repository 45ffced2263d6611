"""Processes and a broker that are killed at random and started again."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from compat_tests.harness.broker import Broker
from compat_tests.harness.proxy import CuttingProxy


class Worker:
    """A program that runs until it is killed.

    Attributes:
        kill_count: how often it was killed.
        end_count: how often it ended by itself.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self.command, self.log = command, log
        self.kill_count = self.end_count = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kills the process (kill -9) if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.kill_count += 1

    def restart_if_ended(self) -> None:
        """Starts the process again if it has ended by itself."""
        if self.process is not None and self.process.poll() is not None:
            self.end_count += 1
            self.start()

    def __str__(self) -> str:
        tail = self.log.read_text(errors="replace")[-1500:] if self.log.exists() else ""
        return f"{self.log.stem}: killed {self.kill_count} times, ended {self.end_count} times by itself\n{tail}"


class WorkerChaos:
    """Workers that are killed at random, and started again when they have ended."""

    def __init__(self, workers: list[Worker], seed: int) -> None:
        self.workers = workers
        self.chance = random.Random(seed)
        self._rest_until: dict[int, float] = {}

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def kill_worker(self) -> None:
        """Kills one of the workers that run, which rests for up to two seconds."""
        running = [number for number, worker in enumerate(self.workers) if worker.process is not None]
        number = self.chance.choice(running or range(len(self.workers)))
        self.workers[number].kill()
        self._rest_until[number] = time.monotonic() + self.chance.uniform(0, 2)

    def keep_running(self, seconds: float) -> None:
        """Starts processes that have ended again, after a pause."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.05)
            self.restart_ended()

    def restart_ended(self) -> bool:
        """Starts processes that have ended again; returns True."""
        for number, worker in enumerate(self.workers):
            if worker.process is not None:
                worker.restart_if_ended()
            elif time.monotonic() >= self._rest_until.get(number, 0):
                worker.start()
        return True

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()

    def __str__(self) -> str:
        return "\n".join(map(str, self.workers))


class Chaos(WorkerChaos):
    """Workers, and a broker behind a proxy, so that its address does not change when the broker is killed.

    Attributes:
        broker_kill_count: how often the broker was killed.
    """

    def __init__(self, broker: Broker, proxy: CuttingProxy, workers: list[Worker], seed: int) -> None:
        super().__init__(workers, seed)
        self.broker, self.proxy = broker, proxy
        self.broker_kill_count = 0

    def run(self, seconds: float) -> None:
        """Kills processes for this many seconds; of three kills in turn, which it completes, one hits the broker."""
        deadline = time.monotonic() + seconds
        hits_broker: list[bool] = []
        while time.monotonic() < deadline or hits_broker:
            self.keep_running(self.chance.uniform(0.3, 4))
            hits_broker = hits_broker or self.chance.sample([True, False, False], 3)
            if hits_broker.pop():
                self.broker.kill()
                self.broker_kill_count += 1
                time.sleep(self.chance.uniform(0, 0.5))
                self.broker.start()
                self.proxy.upstream = self.broker.address
            else:
                self.kill_worker()
        self.keep_running(2)

    def __str__(self) -> str:
        return f"the broker was killed {self.broker_kill_count} times\n{super().__str__()}"


class Source:
    """Writes numbers to a topic while the broker is killed: each number once, with an idempotent producer and one of `KEYS` keys.

    Attributes:
        sent: the number of records sent.
        by_key: the number of records sent, by key.
        failures: the errors of records that could not be written.
        longest_gap_s: the longest time between two acknowledgements of one partition.
    """

    KEYS = 20

    def __init__(self, bootstrap: str, topic: str, per_second: float) -> None:
        self.topic, self.period_s = topic, 1 / per_second
        self.sent = 0
        self.by_key: Counter[str] = Counter()
        self.failures: list[KafkaError] = []
        self.longest_gap_s = 0.0
        self._acknowledged_at: dict[int | None, float] = {}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "message.timeout.ms": 120_000,
                "metadata.recovery.strategy": "none",  # see agents/copying_worker.py
            }
        )
        self._is_told_to_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_told_to_stop.wait(self.period_s):
            key = f"key {self.sent % self.KEYS}"
            self._producer.produce(self.topic, str(self.sent), key, on_delivery=self._note)
            self._producer.poll(0)
            self.by_key[key] += 1
            self.sent += 1

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
            return
        now, partition = time.monotonic(), message.partition()
        self.longest_gap_s = max(self.longest_gap_s, now - self._acknowledged_at.get(partition, now))
        self._acknowledged_at[partition] = now

    def close(self) -> None:
        """Stops writing."""
        self._is_told_to_stop.set()
        self._thread.join(30)

    def finish(self) -> None:
        """Stops writing and waits for the outstanding records."""
        self.close()
        assert self._producer.flush(60) == 0
        assert self.failures == []
