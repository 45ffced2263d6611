"""Requests to the controller of the cluster, whichever broker that is.

How it works: the requests wait in one queue, and one request is in flight. A channel asks the controller for its ApiVersions
after it has connected. A request whose answer is lost, or that a broker refuses because it is not the controller, stays at the
head of the queue, and is sent again after a pause, to the broker that is the controller then. If another broker becomes the
controller, the request in flight is sent to it at once.

Rules of this file:
    A request may reach a controller twice, so it must be harmless to repeat: a change of in-sync replicas names the partition
    epoch, a topic exists already, a second block of producer ids only wastes the first.
    An error of the controller is logged when it comes the first time in a row.
    Every request ends once, unless the channel is closed. Its callback never runs inside `send`.

Differs from Apache Kafka: when another broker becomes the controller, requests to a former controller that hangs are sent to the
new one at once. Apache Kafka waits for `controller.socket.timeout.ms` first.

Source: kafka.server.NodeToControllerChannelManager, NodeToControllerRequestThread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog

from wirekafka.errors import ErrorCode
from wirekafka.faults import isolate, log_once
from wirekafka.replication.replica_fetcher import Channel, Timer, Timers
from wirekafka.wire.messages.alter_partition import AlterPartitionResponse
from wirekafka.wire.messages.api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from wirekafka.wire.messages.create_topics import CreateTopicsResponse
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

log = structlog.get_logger(__name__)

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

RETRY_BACK_OFF_MS = 100
"""NodeToControllerRequestThread.doWork."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request without an answer.

    Attributes:
        build: returns the request in a version.
        on_end: called with the response, or with None.
        most_version: the newest version that may be sent; None for all.
        due_ms: the time from which on the request is not sent again; None for never.
    """

    kind: RequestType[Any, Any]
    build: Callable[[int], Any]
    on_end: Callable[[Any], object]
    most_version: int | None
    due_ms: int | None


class ControllerChannel:
    """One queue of requests to the controller.

    Args:
        connect: returns a connection to a broker.
        controller_id: returns the broker that is the controller; None if it is unknown.
        retry_timeout_ms: after this time a request is not sent again; None for never.
    """

    def __init__(
        self,
        connect: Callable[[int], Channel],
        controller_id: Callable[[], int | None],
        timers: Timers,
        *,
        retry_timeout_ms: int | None = None,
    ) -> None:
        self._connect = connect
        self._controller_id = controller_id
        self._timers = timers
        self._retry_timeout_ms = retry_timeout_ms
        self._requests: deque[_Waiting] = deque()
        """The oldest is in flight if `_is_in_flight`."""
        self._is_in_flight = False
        self._broker_id: int | None = None
        self._channel: Channel | None = None
        self._versions: dict[int, tuple[int, int]] | None = None
        """The oldest and newest version of each API that the controller serves; None if they are unknown."""
        self._retry: Timer | None = None
        self._logged: tuple[object, ...] | None = None
        """The error that was logged last, if no request has been answered since."""
        self._is_closed = False

    def send(
        self,
        kind: RequestType[Q, A],
        build: Callable[[int], Q],
        on_end: Callable[[A | None], object],
        *,
        most_version: int | None = None,
    ) -> None:
        """Sends a request to the controller, after those that were sent before.

        Args:
            build: returns the request in a version, each time that it is sent.
            on_end: called once, later: with the response, or with None if the controller has no version of the request, or
                did not answer in time. It is not called after `close`.
            most_version: the newest version that may be sent; None for all.
        """
        if self._is_closed:
            # Connections and timers may still be served while the broker stops.
            return
        due_ms = None if self._retry_timeout_ms is None else self._timers.monotonic_ms() + self._retry_timeout_ms
        self._requests.append(_Waiting(kind, build, on_end, most_version, due_ms))
        if self._retry is None and not self._is_in_flight:
            self._advance()

    def note_controller(self) -> None:
        """Sends the request in flight to the new controller, if another broker has become the controller."""
        broker_id = self._controller_id()
        if self._is_closed or broker_id is None or broker_id == self._broker_id:
            return
        self._disconnect()
        self._retry_now()

    def close(self) -> None:
        """Closes the connection. The callbacks of unfinished requests are not called."""
        self._is_closed = True
        self._requests.clear()
        self._disconnect()
        self._cancel_retry()

    def _advance(self) -> None:
        """Ends the requests whose time is over, and sends the oldest other one if the controller is known."""
        self._drop_due()
        if not self._requests:
            return
        broker_id = self._controller_id()
        if broker_id is None:
            self._retry_later()
            return
        if broker_id != self._broker_id:
            self._disconnect()
        if self._channel is None:
            self._broker_id, self._channel = broker_id, self._connect(broker_id)
        self._is_in_flight = True
        if self._versions is None:
            self._channel.send(API_VERSIONS, ApiVersionsRequest(), API_VERSIONS.versions[-1], self._take_versions)
        else:
            self._send_first(self._channel, self._versions)

    def _send_first(self, channel: Channel, served: dict[int, tuple[int, int]]) -> None:
        request = self._requests[0]
        kind, (first, last) = request.kind, served.get(request.kind.key, (0, -1))
        version = kind.newest_common_version(first, last if request.most_version is None else min(last, request.most_version))
        if version is None:
            message = "The controller does not serve an API that this broker needs; upgrade the controller"
            self._log_once(message, request=kind.name)
            self._drop_first()
            return
        try:
            channel.send(kind, request.build(version), version, self._take_answer)
        except Exception as error:  # noqa: BLE001 - a request that cannot be written must not hold the next ones
            log_once(error, "A request to the controller could not be written", request=kind.name)
            self._drop_first()

    def _drop_first(self) -> None:
        """Ends the oldest request, which cannot be sent, and sends the next one later."""
        self._is_in_flight = False
        self._end_later(self._requests.popleft())
        self._retry = self._timers.call_later(0, self._retry_now)

    def _take_versions(self, response: ApiVersionsResponse | None) -> None:
        self._is_in_flight = False
        if response is None or response.error_code != ErrorCode.NONE:
            if response is not None:
                error = ErrorCode.of(response.error_code).name
                self._log_once("The controller refused an ApiVersions; it is sent again", error=error)
            self._retry_later()
            return
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        self._advance()

    def _take_answer(self, response: Message | None) -> None:
        if response is None:
            self._is_in_flight = False
            self._versions = None
            self._retry_later()
        elif ErrorCode.NOT_CONTROLLER in _errors_of(response):
            self._log_once("A broker answered that it is not the controller; the request is sent again")
            self._disconnect()
            self._retry_later()
        else:
            self._end_first(response)

    def _end_first(self, response: Message | None) -> None:
        """Ends the request in flight, and sends the next one."""
        self._is_in_flight = False
        self._logged = None
        self._end(self._requests.popleft(), response)
        if not self._is_closed and not self._is_in_flight and self._retry is None:
            self._advance()

    def _log_once(self, message: str, **values: str) -> None:
        error = self._broker_id, message, *values.values()
        if error != self._logged:
            self._logged = error
            log.warning(message, broker=self._broker_id, **values)

    def _end_later(self, request: _Waiting) -> None:
        """Ends a request without an answer, outside of `send` and of the callbacks of other requests."""
        self._timers.call_later(0, partial(self._end, request, None))

    def _end(self, request: _Waiting, response: Message | None) -> None:
        if not self._is_closed:
            with isolate("An answer of the controller could not be handled", request=request.kind.name):
                request.on_end(response)

    def _drop_due(self) -> None:
        """Ends the requests whose time is over. These are the oldest, because all requests have the same timeout."""
        now_ms = self._timers.monotonic_ms()
        while self._requests:
            due_ms = self._requests[0].due_ms
            if due_ms is None or now_ms < due_ms:
                return
            self._end_later(self._requests.popleft())

    def _retry_later(self) -> None:
        if self._retry is None and self._requests:
            self._retry = self._timers.call_later(RETRY_BACK_OFF_MS, self._retry_now)

    def _retry_now(self) -> None:
        self._cancel_retry()
        if not self._is_in_flight:
            self._advance()

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _disconnect(self) -> None:
        self._is_in_flight = False
        self._broker_id = self._versions = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _errors_of(response: Message) -> Iterator[int]:
    """Yields the error codes of a response of the controller."""
    if isinstance(response, CreateTopicsResponse):
        yield from (topic.error_code for topic in response.topics)
        return
    yield getattr(response, "error_code", ErrorCode.NONE)
    if isinstance(response, AlterPartitionResponse):
        yield from (partition.error_code for topic in response.topics for partition in topic.partitions)
