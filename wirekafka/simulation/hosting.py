"""What the real `ClusterReplicas` and `ReplicaFetchers` of a broker need: time, slices, a table of partitions, and channels."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from wirekafka.config import LogConfig
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending, Work, finish
from wirekafka.replication.partition import Partition
from wirekafka.simulation.events import MS, Process, Timer
from wirekafka.simulation.exchange import VERSIONS, Peer
from wirekafka.simulation.node import Node
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

_SLICE_US = 2 * MS


class ProcessTimers:
    """The clock of a process that never jumps."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def monotonic_ms(self) -> int:
        """Returns the virtual time."""
        return self._process.events.now_ms

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Calls back once."""
        return self._process.call_later(int(delay_ms * MS), callback)

    def expire_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Calls back once. A process that was paused gets no grace."""
        return self.call_later(delay_ms, callback)


class SimulatedSlices:
    """Runs work at once, or in slices between which other things happen, as the dice decide."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def run(self, work: Work[Any], *, outlives_client: bool = False) -> Any:
        """Runs the work; returns its result, or a Pending of it."""
        if not self._node.dice.chance(self._node.options.slice_rate):
            return finish(work)
        pending: Pending[Any] = Pending(on_abandon=work.close)

        def step() -> None:
            if pending.is_done:
                return
            try:
                next(work)
            except StopIteration as ended:
                pending.complete_with(ended.value)
            except Exception as error:  # noqa: BLE001 - the owner of the work handles it, as it does an error of `Slices`
                pending.complete(error)
            else:
                self._node.process.call_later(_SLICE_US, step)

        self._node.process.call_later(_SLICE_US, step)
        return pending


class HostedPartitions:
    """The partitions that a broker hosts, and the settings of the topic.

    Attributes:
        by_name: the present object of each partition.
    """

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self.by_name: dict[TopicPartition, Partition] = {}

    def put_hosted(self, partition: Partition) -> None:
        """Puts a partition in place of the object that is there."""
        self.by_name[partition.topic_partition] = partition

    def remove_hosted(self, name: str, index: int) -> None:
        """Removes a partition."""
        del self.by_name[TopicPartition(name, index)]

    def log_config_of(self, topic: str) -> LogConfig:
        """Returns the settings."""
        return self._config

    def read(self, topics: Collection[str]) -> Pending[None]:
        """Returns a completed Pending: the settings of the simulated topic never change."""
        pending: Pending[Any] = Pending()
        pending.complete(None)
        return pending


class PeerChannel:
    """A connection of a fetcher to a leader."""

    def __init__(self, peer: Peer, timeout_us: int) -> None:
        self._peer = peer
        self._timeout_us = timeout_us
        self._is_closed = False

    def send(self, kind: RequestType[Q, A], request: Q, version: int, on_end: Callable[[A | None], object]) -> None:
        """Sends a request; calls back once with the response, or with None if there is none."""
        assert version == VERSIONS[kind], "the simulated brokers are of one release"

        def take(response: A | None) -> None:
            if not self._is_closed:
                on_end(response)

        self._peer.ask(kind, request, take, timeout_us=self._timeout_us)

    def close(self) -> None:
        """Closes the connection. The callbacks of unfinished requests are not called."""
        self._is_closed = True
