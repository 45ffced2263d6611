"""Connections between processes: bytes that take time, arrive late, or never arrive.

How it works: a process listens at an address; another one connects to it. Messages of one connection and one direction arrive
in order, and messages of different connections in any order. A lost message breaks its connection, as with TCP: nothing arrives
over it any more, and the sender notices by its timeout only. A message into a blocked direction waits until the direction is
free again, and then until its connection sends it again, as TCP does after growing pauses. So a request may arrive long after its
sender has given it up, and after later requests of the sender over another connection. In a direction that stalls, only the
connections that are there already wait, as when a firewall forgets them; the sender's next connection is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wirekafka.simulation.dice import Dice
from wirekafka.simulation.events import MS, Act, Events, Process, Timer

Reply = Callable[[bytes], None]
Serve = Callable[[memoryview, Reply, int], None]
"""Takes a request, which has come over the connection of this number; calls the reply once, now or later."""

CONNECT_FAILED_US = 5 * MS
MOST_RETRANSMISSION_US = 500 * MS
"""How long a message takes at most after its direction is free again."""


@dataclass(slots=True)
class NetworkOptions:
    """Attributes:
    least_delay_us, most_delay_us: how long most messages take.
    slow_probability: how many messages take up to a hundred times as long.
    loss_probability: how many messages are lost.
    """

    least_delay_us: int
    most_delay_us: int
    slow_probability: float
    loss_probability: float


class Network:
    """All addresses, and the faults between them.

    Attributes:
        options: may change during the run.
        blocked: the directions, from one address to another, in which nothing arrives.
        stalled: the directions in which nothing arrives over older connections, with the number of the first free one.
    """

    def __init__(self, events: Events, dice: Dice, options: NetworkOptions) -> None:
        self._events = events
        self._dice = dice
        self.options = options
        self._listening: dict[str, tuple[Process, Serve]] = {}
        self.blocked: dict[tuple[str, str], None] = {}
        self.stalled: dict[tuple[str, str], int] = {}
        self._connection_count = 0
        self._held: dict[tuple[Connection, bool], list[Act]] = {}

    def listen(self, address: str, process: Process, serve: Serve) -> None:
        """Passes requests for an address to this process, while it lives."""
        self._listening[address] = process, serve

    def listener(self, address: str) -> tuple[Process, Serve] | None:
        """Returns the process that listens at an address; None if there is none."""
        found = self._listening.get(address)
        return found if found is not None and found[0].is_alive else None

    def connect(self, process: Process, source: str, target: str) -> Connection:
        """Returns a new connection of a process, whose address is `source`."""
        self._connection_count += 1
        return Connection(self, process, source, target, number=self._connection_count)

    def block(self, source: str, target: str) -> None:
        """Holds back the messages in this direction."""
        self.blocked[source, target] = None

    def stall(self, source: str, target: str) -> None:
        """Holds back the messages in this direction over the connections that exist now."""
        self.stalled[source, target] = self._connection_count + 1

    def unblock_all(self) -> None:
        """Delivers messages in all directions again, also those that were held back, except over connections that stall."""
        self.blocked = {}
        self._release()

    def end_stalls(self, target: str | None = None) -> None:
        """Ends the stalls toward an address, or all stalls, and delivers the messages that were held back."""
        self.stalled = {direction: number for direction, number in self.stalled.items() if target not in (None, direction[1])}
        self._release()

    def _release(self) -> None:
        """Sends the messages again that were held back. `pass_on` holds a message back once more if its direction is not free."""
        held, self._held = self._held, {}
        for (connection, is_request), acts in held.items():
            when_us = self._events.now_us + self._dice.between(0, MOST_RETRANSMISSION_US)
            connection.note_arrival(when_us, is_request=is_request)
            for act in acts:
                self._events.call_at(when_us, act)

    def draw_delay_us(self) -> int:
        """Returns how long a message takes."""
        options = self.options
        delay_us = self._dice.between(options.least_delay_us, options.most_delay_us)
        if options.slow_probability and self._dice.chance(options.slow_probability):
            delay_us *= self._dice.between(2, 100)
        return delay_us

    def draw_loss(self) -> bool:
        """Whether a message is lost."""
        probability = self.options.loss_probability
        return probability > 0 and self._dice.chance(probability)

    def pass_on(self, connection: Connection, *, is_request: bool, arrive: Act) -> None:
        """Lets a message arrive, or holds it back while its direction is blocked or stalls."""
        direction = connection.direction(is_request=is_request)
        if direction in self.blocked or connection.number < self.stalled.get(direction, 0):
            held = self._held.setdefault((connection, is_request), [])
            held.append(lambda: self.pass_on(connection, is_request=is_request, arrive=arrive))
        else:
            arrive()


class Connection:
    """A connection from a client to a listener, for requests and responses.

    Attributes:
        number: ascends from one connection of the network to the next.
        is_open: False once a request has failed; the client then connects again.
    """

    def __init__(self, network: Network, process: Process, source: str, target: str, *, number: int) -> None:
        self.number = number
        self._network = network
        self._process = process
        self._source = source
        self._target = target
        self._listener = network.listener(target)
        self._is_broken = False
        self._arrivals_us = {True: 0, False: 0}
        self._waiting: dict[int, tuple[Callable[[memoryview | None], None], Timer]] = {}
        self._number = 0
        self.is_open = True

    def ask(self, request: bytes, then: Callable[[memoryview | None], None], *, timeout_us: int) -> None:
        """Sends a request. `then` receives the response, or None if the outcome is unknown; the connection is closed then."""
        self._number = number = self._number + 1
        self._waiting[number] = then, self._process.call_later(timeout_us, self.close)
        if self._listener is None or not self._listener[0].is_alive:
            self._process.call_later(CONNECT_FAILED_US, self.close)
            return
        self._send(True, lambda: self._serve(number, request))

    def close(self) -> None:
        """Closes the connection. The callbacks of unfinished requests get None."""
        self.is_open = False
        self._is_broken = True
        waiting, self._waiting = self._waiting, {}
        for then, timer in waiting.values():
            timer.cancel()
            then(None)

    def _send(self, is_request: bool, arrive: Act) -> None:
        network = self._network
        if self._is_broken:
            return
        if network.draw_loss():
            self._is_broken = True
            return
        now_us = self._process.events.now_us
        when_us = max(now_us + network.draw_delay_us(), self._arrivals_us[is_request] + 1)
        self.note_arrival(when_us, is_request=is_request)
        self._process.events.call_at(when_us, lambda: network.pass_on(self, is_request=is_request, arrive=arrive))

    def direction(self, *, is_request: bool) -> tuple[str, str]:
        """Returns from which address to which one the requests or the responses go."""
        return (self._source, self._target) if is_request else (self._target, self._source)

    def note_arrival(self, when_us: int, *, is_request: bool) -> None:
        """Lets later messages of this direction arrive after this time."""
        self._arrivals_us[is_request] = max(when_us, self._arrivals_us[is_request])

    def _serve(self, number: int, request: bytes) -> None:
        assert self._listener is not None, "a request was sent"
        process, serve = self._listener
        if not process.is_alive:
            self._process.call_later(CONNECT_FAILED_US, self.close)
            return
        process.call_later(
            0, lambda: serve(memoryview(bytearray(request)), lambda response: self._reply(number, response), self.number)
        )

    def _reply(self, number: int, response: bytes) -> None:
        self._send(False, lambda: self._process.call_later(0, lambda: self._take(number, response)))

    def _take(self, number: int, response: bytes) -> None:
        found = self._waiting.pop(number, None)
        if found is not None:
            then, timer = found
            timer.cancel()
            then(memoryview(response))
