"""Faults of the brokers of a cluster of wirekafka, one at a time, while workers go on and are killed too."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from compat_tests.harness.broker import Broker
from compat_tests.harness.chaos import Worker, WorkerChaos
from compat_tests.harness.mixed_cluster import MixedCluster


class ClusterChaos(WorkerChaos):
    """Kills, stops and pauses one broker at a time, and kills workers.

    A fault begins when the topics have all their replicas in sync, so that two of three replicas always have every record.

    Attributes:
        faults: what has happened, in order.
    """

    def __init__(
        self, cluster: MixedCluster, topics: Sequence[str], session_timeout_s: float, workers: list[Worker], seed: int
    ) -> None:
        super().__init__(workers, seed)
        self.cluster, self.topics, self.session_timeout_s = cluster, topics, session_timeout_s
        self.faults: list[str] = []

    def run(self, seconds: float) -> None:
        """Makes each fault once in a random order, and then faults at random until the time is over."""
        kinds = (self.kill, self.shut_down, self.pause, self.kill_controller, self.kill_worker)
        deadline = time.monotonic() + seconds
        for fault in self._in_order(kinds):
            self.faults.append(fault.__name__)
            fault()
            self.keep_running(self.chance.uniform(0.3, 2))
            for topic in self.topics:
                self.cluster.until_in_sync(topic)
            if len(self.faults) >= len(kinds) and time.monotonic() >= deadline:
                return

    def _in_order(self, kinds: Sequence[Callable[[], None]]) -> Iterator[Callable[[], None]]:
        return itertools.chain(self.chance.sample(kinds, len(kinds)), (self.chance.choice(kinds) for _ in itertools.count()))

    def _broker(self) -> Broker:
        return self.cluster.brokers[self.chance.choice(list(self.cluster.brokers))]

    def kill(self) -> None:
        """Kills a broker (kill -9), which comes back before its session expires or after that."""
        self._kill(self._broker())

    def kill_controller(self) -> None:
        """Kills the broker that is the controller."""
        self._kill(self.cluster.brokers[self.cluster.controller_id()])

    def _kill(self, broker: Broker) -> None:
        broker.kill()
        self.keep_running(self.chance.uniform(0, 2 * self.session_timeout_s))
        broker.start()

    def shut_down(self) -> None:
        """Stops a broker in order, and starts it again."""
        broker = self._broker()
        assert broker.terminate(120) == 0
        self.keep_running(self.chance.uniform(0, 1))
        broker.start()

    def pause(self) -> None:
        """Pauses a broker for longer than its session, so that it wakes up and believes that it still leads."""
        process = self._broker().process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        self.keep_running(1.5 * self.session_timeout_s)
        process.send_signal(signal.SIGCONT)

    def __str__(self) -> str:
        return f"{', '.join(self.faults)}\n{super().__str__()}"
