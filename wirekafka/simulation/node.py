"""A broker as its parts see it: who it is, its process, its registration, and how it reaches other brokers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from wirekafka.simulation.cluster import Cluster
from wirekafka.simulation.dice import Dice
from wirekafka.simulation.events import Act, Process
from wirekafka.simulation.exchange import Peer
from wirekafka.simulation.registration import Registration


class Node:
    """A broker as its parts see it.

    Args:
        number: how often the broker was started before.
        end: kills the process, and lets the machine start it again.

    Attributes:
        clock_ms: returns the time of the machine's wall clock, which may jump.
        broker_epochs: the live brokers of the newest UpdateMetadata; the epochs of other brokers are unknown.
        controller_id: the controller of the newest UpdateMetadata.
        registration: the session with ZooKeeper; it begins when the logs are open.
    """

    registration: Registration

    def __init__(self, cluster: Cluster, broker_id: int, *, number: int, clock_ms: Callable[[], int], end: Act) -> None:
        self.cluster = cluster
        self.options = cluster.options
        self.broker_id = broker_id
        self.clock_ms = clock_ms
        self._end = end
        self.dice: Dice = cluster.dice.fork(f"broker {broker_id}/{number}")
        self.process = Process(cluster.events, f"broker {broker_id}")
        self.broker_epochs: dict[int, int | None] = {}
        self.controller_id: int | None = None
        self._correlation_ids = count(1)
        """Ascend over all connections, as those of a controller must; see `wirekafka.replication.controller_order`."""

    @property
    def address(self) -> str:
        """The address in the network."""
        return self.cluster.address_of(self.broker_id)

    @property
    def sent_epoch(self) -> int:
        """The broker epoch in requests; -1 before the first registration."""
        return -1 if self.registration.epoch is None else self.registration.epoch

    def note(self, what: str) -> None:
        """Adds a line to the transcript."""
        self.process.note(what)

    def halt(self, reason: str) -> None:
        """Ends the process by itself; the machine starts it again."""
        self.note(f"halts: {reason}")
        self.process.call_later(0, self._end)

    # Other brokers

    def new_peer(self, broker_id: int) -> Peer:
        """Returns a new connection to a broker."""
        return Peer(self.cluster.network, self.process, self.address, self.cluster.address_of(broker_id), self._correlation_ids)
