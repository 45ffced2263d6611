"""Connections to brokers that a test plays, and timers that pass when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from wirekafka.wire.requests import RequestType
from wirekafka.zookeeper.layout.membership import BrokerRegistration


class InFlight(NamedTuple):
    """A request without an answer."""

    kind: RequestType[Any, Any]
    request: Any
    version: int
    on_end: Callable[[Any], object]


class PlayedChannel:
    """A connection to a broker; the test answers, or `answer` does.

    Attributes:
        requests: the requests without an answer, in order.
        seen: all requests.
        answer: answers each request at a later step, if it is set.
        is_closed: whether the connection was closed.
        encodes: whether requests are encoded, so that one that cannot be encoded fails.
    """

    def __init__(
        self, steps: deque[Callable[[], object]], answer: Callable[[Any], Any] | None = None, *, encodes: bool = True
    ) -> None:
        self.requests: deque[InFlight] = deque()
        self.seen: list[Any] = []
        self.answer = answer
        self.is_closed = False
        self.encodes = encodes
        self._steps = steps

    def send(self, kind: RequestType[Any, Any], request: Any, version: int, on_end: Callable[[Any], object]) -> None:
        """Takes a request."""
        assert not self.is_closed, "the connection is closed"
        if self.encodes:
            kind.frame(request, version, correlation_id=0, client_id="")
        self.seen.append(request)
        self.requests.append(InFlight(kind, request, version, on_end))
        if self.answer is not None:
            self._steps.append(self._answer)

    def _answer(self) -> None:
        if self.answer is not None and self.requests:
            self.end(self.answer(self.requests[0].request))

    def end(self, response: Any) -> None:
        """Ends the oldest request with a response, or with None."""
        self.requests.popleft().on_end(response)

    def close(self) -> None:
        """Closes the connection."""
        self.is_closed = True
        self.requests.clear()


class PlayedTimer:
    """A call in the future."""

    def __init__(self, due_ms: float, callback: Callable[[], object]) -> None:
        self.due_ms = due_ms
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        """Prevents the call."""
        self.is_cancelled = True


class PlayedTimers:
    """Timers of a time that `pass_time` moves."""

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._timers: list[PlayedTimer] = []

    def monotonic_ms(self) -> int:
        """Returns the time."""
        return int(self._now_ms)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> PlayedTimer:
        """Calls back once."""
        timer = PlayedTimer(self._now_ms + delay_ms, callback)
        self._timers.append(timer)
        return timer

    def pass_time(self, milliseconds: float) -> None:
        """Lets time pass, and calls back what is due."""
        self._now_ms += milliseconds
        due = [timer for timer in self._timers if timer.due_ms <= self._now_ms]
        self._timers = [timer for timer in self._timers if timer.due_ms > self._now_ms]
        for timer in due:
            if not timer.is_cancelled:
                timer.callback()


class PlayedBrokers:
    """The brokers that a controller connects to.

    Attributes:
        channels: the connections to each broker, the newest last.
        answer, encodes: given to each new connection.
    """

    def __init__(self, steps: deque[Callable[[], object]]) -> None:
        self.channels: dict[int, list[PlayedChannel]] = {}
        self.answer: Callable[[Any], Any] | None = None
        self.encodes = True
        self._steps = steps

    def connect(self, broker_id: int, registration: BrokerRegistration) -> PlayedChannel:
        """Returns a new connection."""
        assert registration.endpoints
        channel = PlayedChannel(self._steps, self.answer, encodes=self.encodes)
        self.channels.setdefault(broker_id, []).append(channel)
        return channel
