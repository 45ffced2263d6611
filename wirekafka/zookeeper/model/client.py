"""A client of the model's server, whose connection fails where a test or a simulation says so.

How it works: requests wait in one queue and the server's messages in another, both in order. For each message the client gives
`schedule` one step. The step moves the first message of the queue at the time when the step runs. So a simulation decides how
long messages take, and their order stays ZooKeeper's. `tick` pings, notices a silent connection and connects again; it is
called several times within a third of the session timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from wirekafka.zookeeper.model.server import Connection, ModelServer
from wirekafka.zookeeper.session import (
    Created,
    Multi,
    Operation,
    R,
    SessionState,
    WatchEvent,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

Step = Callable[[], None]
Scheduler = Callable[[Step], None]


class Fault(Enum):
    """The effect of a lost connection on the request that the server was about to answer."""

    REQUEST_LOST = "request lost"
    """The request was not applied."""
    REPLY_LOST = "reply lost"
    """The request was applied, and the client does not learn the result."""
    REQUEST_LATE = "request late"
    """The request, and those after it, are applied when the client has given up the connection, before it connects again."""


@dataclass(slots=True)
class _Request:
    """A request on its way. A ping and the end of the session have no operation, and a ping has no callback.

    Attributes:
        operation: as the server sees it: with the chroot in its paths.
    """

    operation: Operation[Any] | None = None
    callback: Callable[[Any], None] | None = None
    is_close: bool = False


@dataclass(slots=True)
class _Delivery:
    """A message or an event for the client.

    Attributes:
        connection: the connection over which the message comes; None for an event of the client itself.
    """

    act: Step
    connection: Connection | None = None


class ModelClient:
    """A `ZooKeeperClient` of a model.

    Args:
        schedule: receives a step for each message and each attempt to connect; it runs each step later, once.
        timeout_ms: the timeout of the session.
        chroot: the znode below which all paths are; `""` for the root. It is not created.

    Attributes:
        choose_fault: is asked about each operation before the server answers it.
    """

    def __init__(
        self,
        server: ModelServer,
        schedule: Scheduler,
        now_ms: Callable[[], int],
        *,
        timeout_ms: int = 18_000,
        chroot: str = "",
    ) -> None:
        self._server = server
        self._schedule = schedule
        self._now_ms = now_ms
        self._timeout_ms = timeout_ms
        self._chroot = chroot
        self._state = SessionState.CONNECTING
        self._session: tuple[int, bytes] | None = None
        self._told_session_id: int | None = None
        self._connection: Connection | None = None
        # The connection of the last CONNECTED. A request over a newer one could overtake the SUSPENDED before it.
        self._told_connection: Connection | None = None
        self._is_closing = False
        self._requests: deque[_Request] = deque()
        self._late: tuple[Connection, list[_Request]] | None = None
        self._unanswered: deque[_Request] = deque()
        self._deliveries: deque[_Delivery] = deque()
        self._state_listeners: list[Callable[[SessionState], None]] = []
        self._watch_listeners: list[Callable[[WatchEvent], None]] = []
        self._are_requests_cut = self._are_replies_cut = False
        self._heard_at_ms = self._sent_at_ms = now_ms()
        self.choose_fault: Callable[[Operation[Any]], Fault | None] = lambda operation: None
        schedule(self._connect)

    # The port.

    @property
    def state(self) -> SessionState:
        """The state with which the listeners were called last."""
        return self._state

    @property
    def session_id(self) -> int | None:
        """The session of the last CONNECTED."""
        return self._told_session_id

    def add_state_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Calls `listener` with every state that begins from now on."""
        self._state_listeners.append(listener)

    def add_watch_listener(self, listener: Callable[[WatchEvent], None]) -> None:
        """Calls `listener` with every event of the watches of this client from now on."""
        self._watch_listeners.append(listener)

    def submit(self, operation: Operation[R], callback: Callable[[R | ZooKeeperError], None]) -> None:
        """Sends an operation."""
        if self._is_closing or self._state is SessionState.LOST:
            self._fail(callback, ZooKeeperErrorCode.SESSION_EXPIRED)
        elif self._connection is None or self._connection is not self._told_connection:
            self._fail(callback, ZooKeeperErrorCode.CONNECTION_LOSS)
        else:
            self._send(_Request(_in_chroot(operation, self._chroot), callback))

    def close(self) -> None:
        """Ends the session, or without a connection gives it up; it expires then."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._connection is None:
            self._tell(SessionState.CLOSED)
        else:
            self._send(_Request(is_close=True))

    # What a test or a simulation does.

    def tick(self) -> None:
        """Connects again, pings after a third of the timeout, and gives a silent connection up after two thirds."""
        now_ms = self._now_ms()
        if self._connection is None:
            self._connect()
        elif now_ms - self._heard_at_ms >= self._timeout_ms * 2 // 3:
            self.lose_connection()
        elif now_ms - self._sent_at_ms >= self._timeout_ms // 3:
            self._send(_Request())

    def cut(self, *, requests: bool = True, replies: bool = True) -> None:
        """Holds back the messages in these directions, and every attempt to connect. The client notices it by a timeout."""
        self._are_requests_cut, self._are_replies_cut = requests, replies

    @property
    def is_cut(self) -> bool:
        """Whether messages are stopped in any direction."""
        return self._are_requests_cut or self._are_replies_cut

    def heal(self) -> None:
        """Lets messages travel again, also those that were held back, unless the connection has been given up."""
        self._are_requests_cut = self._are_replies_cut = False
        for _ in self._requests:
            self._schedule(self._serve)
        for _ in self._deliveries:
            self._schedule(self._deliver)
        if self._connection is None:
            self._schedule(self._connect)

    def lose_connection(self) -> None:
        """Breaks the connection, if there is one. Unanswered requests are lost, and so are replies on their way."""
        if self._connection is None:
            return
        self._connection.disconnect()
        self._abandon()

    # Connecting.

    def _connect(self) -> None:
        """Connects to the session, or to a new one if there is none or it has expired."""
        if self._connection is not None or self._is_closing or self.is_cut:
            return
        self._apply_late()
        if self._session is None:
            self._begin(self._server.connect(self, self._timeout_ms))
            return
        connection = self._server.reconnect(self, *self._session)
        if connection is not None:
            self._begin(connection)
            return
        self._session = None
        self._tell(SessionState.LOST)
        self._schedule(self._connect)

    def _apply_late(self) -> None:
        """The server receives the messages that were in flight over the former connection."""
        if self._late is None:
            return
        (connection, requests), self._late = self._late, None
        for request in requests:
            self._answer(connection, request)

    def _begin(self, connection: Connection) -> None:
        self._connection = connection
        self._session = connection.session_id, connection.password
        self._heard_at_ms = self._sent_at_ms = self._now_ms()
        self._tell(SessionState.CONNECTED)

    def _abandon(self) -> None:
        """Completes what has no reply, after the connection has ended, and tries to connect again."""
        connection, self._connection = self._connection, None
        self._deliveries = deque(each for each in self._deliveries if each.connection is not connection)
        self._requests.clear()
        unanswered, self._unanswered = self._unanswered, deque()
        for request in unanswered:
            if request.callback is not None:
                self._fail(request.callback, ZooKeeperErrorCode.CONNECTION_LOSS)
        self._tell(SessionState.CLOSED if self._is_closing else SessionState.SUSPENDED)
        self._schedule(self._connect)

    # From the client to the server.

    def _send(self, request: _Request) -> None:
        self._sent_at_ms = self._now_ms()
        self._requests.append(request)
        self._unanswered.append(request)
        self._schedule(self._serve)

    def _serve(self) -> None:
        """The server receives and answers the first request."""
        if not self._requests or self._are_requests_cut:
            return
        connection = self._connection
        assert connection is not None, "requests are dropped with the connection"
        request = self._requests.popleft()
        fault = None if request.operation is None else self.choose_fault(request.operation)
        if fault is Fault.REQUEST_LOST:
            self.lose_connection()
            return
        if fault is Fault.REQUEST_LATE:
            self._late = connection, [request, *self._requests]
            self._abandon()
            return
        answer = self._answer(connection, request)
        if fault is Fault.REPLY_LOST:
            self.lose_connection()
        else:
            self._arrive(connection, lambda: self._complete(request, answer))

    def _answer(self, connection: Connection, request: _Request) -> Any:
        try:
            if request.is_close:
                connection.close_session()
            elif request.operation is None:
                connection.ping()
            else:
                return connection.request(request.operation)
        except ZooKeeperError as error:
            return error
        return None

    # From the server to the client.

    def on_watch_event(self, event: WatchEvent) -> None:
        """The server sends an event; over a connection that was given up it does not arrive."""
        if self._connection is not None:
            self._arrive(self._connection, lambda: self._tell_event(event))

    def on_disconnect(self) -> None:
        """The server closes the connection; the client learns it after everything that was sent before."""
        if self._connection is not None:
            self._arrive(self._connection, self._abandon)

    def _arrive(self, connection: Connection | None, act: Step) -> None:
        self._deliveries.append(_Delivery(act, connection))
        self._schedule(self._deliver)

    def _fail(self, callback: Callable[[Any], None], code: ZooKeeperErrorCode) -> None:
        self._find_out(lambda: callback(ZooKeeperError(code)))

    def _find_out(self, act: Step) -> None:
        """Delivers what needs no message, in order with all else."""
        self._arrive(None, act)

    def _deliver(self) -> None:
        """The client receives what is first."""
        if not self._deliveries or (self._are_replies_cut and self._deliveries[0].connection is not None):
            return
        delivery = self._deliveries.popleft()
        if delivery.connection is not None:
            self._heard_at_ms = self._now_ms()
        delivery.act()

    def _complete(self, request: _Request, answer: Any) -> None:
        assert self._unanswered.popleft() is request, "replies come in the order of the requests"
        if request.callback is not None:
            request.callback(_out_of_chroot(answer, self._chroot))

    def _tell_event(self, event: WatchEvent) -> None:
        event = replace(event, path=_without(event.path, self._chroot))
        for listener in self._watch_listeners:
            listener(event)

    def _tell(self, state: SessionState) -> None:
        connection = self._connection
        self._find_out(lambda: self._change_state(state, connection))

    def _change_state(self, state: SessionState, connection: Connection | None) -> None:
        self._state = state
        if connection is not None:
            self._told_connection, self._told_session_id = connection, connection.session_id
        for listener in self._state_listeners:
            listener(state)


Op = TypeVar("Op")


def _in_chroot(operation: Op, chroot: str) -> Op:
    """Returns the operation with the paths that the server knows."""
    if not chroot:
        return operation
    if isinstance(operation, Multi):
        return replace(operation, operations=tuple(_in_chroot(each, chroot) for each in operation.operations))
    path: str = operation.path  # type: ignore[attr-defined]
    return replace(operation, path=chroot if path == "/" else chroot + path)  # type: ignore[type-var]


def _out_of_chroot(answer: Any, chroot: str) -> Any:
    """Returns a result or an error with the paths that the client knows."""
    if not chroot:
        return answer
    match answer:
        case tuple():
            return tuple(_out_of_chroot(each, chroot) for each in answer)
        case Created() | ZooKeeperError() if answer.path is not None:
            return replace(answer, path=_without(answer.path, chroot))
    return answer


def _without(path: str, chroot: str) -> str:
    return path.removeprefix(chroot) or "/"
