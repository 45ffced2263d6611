"""The queues of requests from the controller to the brokers, one for each broker.

How it works: a `BrokerChannel` sends one request at a time over one connection, and sends it again until the broker has answered.
A broker that was registered again gets a new queue and a new connection.

Rules of this file:
    The correlation ids of one registration and one controller epoch must ascend (`replication.controller_order`). So a connection
    is kept as long as both are the same, also when the controller reads everything again.
    Answers arrive in the order of the requests. After `close` none arrives.
    A request that cannot be encoded is dropped, so that the broker gets the next ones.

Source: kafka.controller.{ControllerChannelManager, RequestSendThread}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from wirekafka.controller.context import LiveBroker
from wirekafka.errors import ErrorCode
from wirekafka.faults import log_once
from wirekafka.replication.replica_fetcher import Channel, Timer, Timers
from wirekafka.wire.messages.stop_replica import STOP_REPLICA
from wirekafka.wire.requests import RequestType
from wirekafka.zookeeper.layout.membership import BrokerRegistration

log = structlog.get_logger(__name__)

RETRY_BACK_OFF_MS = 100
"""RequestSendThread.doWork."""

Connect = Callable[[int, BrokerRegistration], Channel]
"""Returns a connection to a broker, whose requests have ascending correlation ids."""

OnAnswer = Callable[[LiveBroker, RequestType[Any, Any], Any, Any], object]
"""Called with the broker, the type of the request, the request and the response."""


@dataclass(frozen=True, slots=True)
class _Queued:
    kind: RequestType[Any, Any]
    request: Any
    version: int


class BrokerChannel:
    """The queue of requests to one registration of a broker.

    Args:
        channel: the connection, which this queue closes.
        on_answer: called with each answer, unless the queue is closed.
    """

    def __init__(self, broker: LiveBroker, channel: Channel, timers: Timers, on_answer: OnAnswer) -> None:
        self.broker = broker
        self._channel = channel
        self._timers = timers
        self._on_answer = on_answer
        self._queue: deque[_Queued] = deque()
        """The first one is in flight if `_is_in_flight`."""
        self._is_in_flight = False
        self._retry: Timer | None = None
        self._is_closed = False

    def send(self, kind: RequestType[Any, Any], request: Any, version: int) -> None:
        """Sends a request after those before it."""
        self._queue.append(_Queued(kind, request, version))
        if not self._is_in_flight and self._retry is None:
            self._send_first()

    @property
    def is_idle(self) -> bool:
        """Whether the broker has answered all requests."""
        return not self._queue

    def drop_waiting(self) -> None:
        """Drops the requests that are not in flight, but for StopReplica.

        A broker that has left an assignment is not told again: the znodes do not say that it had a replica.
        """
        first = [self._queue.popleft()] if self._is_in_flight else []
        self._queue = deque([*first, *(each for each in self._queue if each.kind is STOP_REPLICA)])

    def close(self) -> None:
        """Drops all requests and closes the connection."""
        self._is_closed = True
        self._queue.clear()
        self._channel.close()
        if self._retry is not None:
            self._retry.cancel()

    def _send_first(self) -> None:
        while self._queue:
            first = self._queue[0]
            self._is_in_flight = True
            try:
                self._channel.send(first.kind, first.request, first.version, self._take)
            except Exception as error:  # noqa: BLE001 - a request that cannot be written must not hold the next ones
                log_once(error, "A request of the controller could not be written", request=first.kind.name)
                self._is_in_flight = False
                self._queue.popleft()
            else:
                return

    def _take(self, response: Any) -> None:
        if self._is_closed:
            return
        self._is_in_flight = False
        if response is None:
            self._retry = self._timers.call_later(RETRY_BACK_OFF_MS, self._send_again)
            return
        first = self._queue.popleft()
        self._send_first()
        self._note_error(first, response)
        self._on_answer(self.broker, first.kind, first.request, response)

    def _send_again(self) -> None:
        self._retry = None
        self._send_first()

    def _note_error(self, answered: _Queued, response: Any) -> None:
        """Logs that a broker refuses a request; the next change of its registration or of the controller corrects it."""
        if response.error_code != ErrorCode.NONE:
            error = ErrorCode.of(response.error_code).name
            log.warning(
                "A broker refuses a request of the controller",
                broker=self.broker.broker_id,
                request=answered.kind.name,
                error=error,
            )


class BrokerChannels:
    """The queues of requests to all live brokers. It is a `requests.Channels`.

    Args:
        connect: returns a connection to a broker.
        on_answer: called with each answer of a broker whose queue is not closed.
    """

    def __init__(self, connect: Connect, timers: Timers, on_answer: OnAnswer) -> None:
        self._connect = connect
        self._timers = timers
        self._on_answer = on_answer
        self._by_id: dict[int, BrokerChannel] = {}
        self._is_closed = False

    def send(self, broker: LiveBroker, kind: RequestType[Any, Any], request: Any, version: int) -> None:
        """Sends a request to a registration of a broker; its former registrations get nothing any more.

        After `close` nothing is sent.
        """
        if self._is_closed:
            return
        channel = self._by_id.get(broker.broker_id)
        if channel is not None and channel.broker.epoch != broker.epoch:
            channel.close()
            channel = None
        if channel is None:
            connection = self._connect(broker.broker_id, broker.registration)
            channel = self._by_id[broker.broker_id] = BrokerChannel(broker, connection, self._timers, self._on_answer)
        channel.send(kind, request, version)

    def keep(self, live: Mapping[int, LiveBroker]) -> None:
        """Closes the queues of the registrations that have ended."""
        for broker_id, channel in [*self._by_id.items()]:
            broker = live.get(broker_id)
            if broker is None or broker.epoch != channel.broker.epoch:
                channel.close()
                del self._by_id[broker_id]

    @property
    def are_idle(self) -> bool:
        """Whether all brokers have answered all requests."""
        return all(channel.is_idle for channel in self._by_id.values())

    def drop_waiting(self) -> None:
        """Drops the requests that are not in flight, but for StopReplica, of all queues."""
        for channel in self._by_id.values():
            channel.drop_waiting()

    def close(self) -> None:
        """Drops all requests, also those that are still to come, and closes all connections."""
        self._is_closed = True
        for channel in self._by_id.values():
            channel.close()
        self._by_id.clear()
