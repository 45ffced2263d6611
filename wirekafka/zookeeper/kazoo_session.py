"""kazoo on trio: the `ZooKeeperClient` of a real ZooKeeper.

How it works: kazoo has one thread, which owns the socket. The thread passes results, watch events and states to the loop by
`TrioToken.run_sync_soon`, in the order in which they occur. kazoo's stock handler has two more threads, one for results and one
for watch events, which may change that order. The client sends kazoo's records directly, because some methods of `KazooClient`
deliver their results in two steps, and so out of order.

Rules of this file:
    All state belongs to the loop, except for `_connection_number`, which `_lock` guards.
    A request is sent only on the connection whose CONNECTED the loop has handled. So no request from before SUSPENDED is sent
    after the next CONNECTED.
    Every request completes once, in the order of the requests.
    kazoo's thread sends a ping only after the loop has answered the thread. So a broker whose loop hangs loses its session, and
    the cluster elects other leaders.
    Calls of kazoo that may block run in a worker thread.
    If kazoo's thread ends by a defect, a new client continues the same session.

Source: kazoo.client, kazoo.handlers.threading and kazoo.protocol.connection of kazoo 2.11. No other module imports kazoo.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, assert_never

import structlog
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, ZookeeperError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization as records
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent
from kazoo.security import OPEN_ACL_UNSAFE

from wirekafka.config.zookeeper_connect import split_connect
from wirekafka.faults import isolate, log_once
from wirekafka.zookeeper.buffered_socket import BufferedSocket
from wirekafka.zookeeper.session import (
    Check,
    Children,
    Create,
    Created,
    Data,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Operation,
    SessionState,
    SetData,
    Stat,
    Sync,
    WatchEvent,
    WatchEventType,
    Write,
    WriteResult,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

log = structlog.get_logger(__name__)

R = TypeVar("R")

MOST_RECONNECT_DELAY_S = 1.0
"""The longest pause between two attempts to connect. Source: org.apache.zookeeper.ClientCnxn, which waits up to a second."""

LEAST_CONNECT_TIMEOUT_S = 1.0
ATTEMPTS_IN_SESSION = 3
"""How many attempts to connect to each server fit into the timeout of a session."""

CLOSE_TIMEOUT_S = 5.0
"""How long the end of `open_kazoo_session` waits for ZooKeeper's answer. Without it the session ends by its timeout."""

RECEIVE_BYTES = 4096

CALLS_OF_A_TURN = 256
"""The most results and events that the loop takes in one turn."""

LOOP_CHECK_S = 1.0
"""How often kazoo's thread looks whether the client is closed, while it waits for a loop that hangs."""

_EVENT_TYPES = {
    EventType.CREATED: WatchEventType.NODE_CREATED,
    EventType.DELETED: WatchEventType.NODE_DELETED,
    EventType.CHANGED: WatchEventType.NODE_DATA_CHANGED,
    EventType.CHILD: WatchEventType.NODE_CHILDREN_CHANGED,
}
_CODES = frozenset(ZooKeeperErrorCode)
_WITHOUT_PATH = frozenset({ZooKeeperErrorCode.CONNECTION_LOSS, ZooKeeperErrorCode.SESSION_EXPIRED})


class ZooKeeperUnreachableError(Exception):
    """No session was opened in time. The message says what the operator can do."""


@asynccontextmanager
async def open_kazoo_session(
    connect: str, *, session_timeout_ms: int = 18_000, connection_timeout_ms: int = 18_000
) -> AsyncIterator[KazooSession]:
    """Opens a session, and creates the chroot if it does not exist. At the end the session is closed.

    Args:
        connect: `host:port,host:port/chroot`, as in Kafka's `zookeeper.connect`.
        session_timeout_ms: what the client asks for; ZooKeeper may change it (to 2 to 20 times its `tickTime`).

    Raises:
        ValueError: `connect` has another form.
        ZooKeeperUnreachableError: there is no session and no chroot after `connection_timeout_ms`.
        ZooKeeperError: ZooKeeper refuses to create the chroot.

    Cancellation: the session is closed too, which takes at most `CLOSE_TIMEOUT_S`.
    """
    hosts, chroot = split_connect(connect)
    session = KazooSession(hosts, chroot, session_timeout_ms)
    try:
        with trio.move_on_after(connection_timeout_ms / 1000) as deadline:
            await session.connect()
        if deadline.cancelled_caught:
            raise ZooKeeperUnreachableError(session.why_not_connected(connection_timeout_ms))
        yield session
    finally:
        await session.aclose()


def connect_timeout(session_timeout_s: float, host_count: int, *, has_session: bool) -> float:
    """Returns the seconds that an attempt to connect to one server may take.

    A server that restarts may accept a connection and never answer it. The session must outlive such an attempt.

    Args:
        has_session: whether there is a session to be kept. A new session needs a write of ZooKeeper, so it gets more time.
    """
    share_s = session_timeout_s / host_count
    return min(share_s, max(LEAST_CONNECT_TIMEOUT_S, share_s / ATTEMPTS_IN_SESSION)) if has_session else share_s


class _LoopQueue:
    """The queue of a handler: what is put into it is called on the loop, in the order of the puts, many calls in one turn."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token
        self._calls: deque[Callable[[], object]] = deque()
        self._is_turn_due = False

    def put(self, call: Callable[[], object]) -> None:
        """Calls `call` on the loop, from any thread. Does nothing after the end of the loop."""
        self._calls.append(call)
        if not self._is_turn_due:
            self._ask_for_turn()

    def _ask_for_turn(self) -> None:
        self._is_turn_due = True
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._take_turn)

    def _take_turn(self) -> None:
        # Before the calls: what is put from now on asks for the next turn, or this turn takes it.
        self._is_turn_due = False
        for _ in range(CALLS_OF_A_TURN):
            if not self._calls:
                return
            _call_isolated(self._calls.popleft())
        if self._calls:
            self._ask_for_turn()


def _call_isolated(call: Callable[[], object]) -> None:
    with isolate("A callback of ZooKeeper's client failed"):
        call()


class _Result:
    """The result of one request; kazoo's thread sets it, and then the queue calls back.

    kazoo's own class has a lock and a condition for waiting threads, which take longer than the rest.
    """

    __slots__ = ("_finish", "_queue", "exception", "value")

    def __init__(self, queue: _LoopQueue, finish: Callable[[_Result], object]) -> None:
        self.value: Any = None
        self.exception: Exception | None = None
        self._queue = queue
        self._finish = finish

    def set(self, value: object = None) -> None:
        """Takes the value."""
        self.value = value
        self._queue.put(partial(self._finish, self))

    def set_exception(self, exception: Exception) -> None:
        """Takes the error."""
        self.exception = exception
        self._queue.put(partial(self._finish, self))


class _WakeUp:
    """Both ends of kazoo's wake-up of its thread: readable while requests wait.

    kazoo itself sends one byte for each request over a pair of sockets. The pair holds some 280 bytes, and then the send blocks
    until kazoo's thread has read one. So the loop would wait for a thread that may be waiting for ZooKeeper, or for the loop.
    Here one byte wakes the thread for all requests that wait.

    Args:
        has_requests: whether requests wait. kazoo adds a request before it sends the byte, and removes it before it reads one.
    """

    def __init__(self, has_requests: Callable[[], bool]) -> None:
        self._has_requests = has_requests
        self._is_awake = False
        """Whether a byte is on its way."""
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Returns what `select` waits for."""
        return self._reader.fileno()

    def send(self, data: bytes) -> None:
        """Wakes the thread, unless it is awake."""
        if self._is_awake:
            return
        self._is_awake = True
        with suppress(BlockingIOError):
            self._writer.send(data)

    def recv(self, size: int) -> None:
        """Makes the pair unreadable if no request waits. `size` is kazoo's, and means nothing here."""
        if self._has_requests():
            return
        with suppress(BlockingIOError):
            self._reader.recv(RECEIVE_BYTES)
        self._is_awake = False
        if self._has_requests():  # the request was added meanwhile, when a byte seemed to be on its way
            self.send(b"\0")

    def close(self) -> None:
        """Closes both ends; kazoo calls it for each."""
        self._reader.close()
        self._writer.close()


class _TrioHandler(SequentialThreadingHandler):
    """kazoo's handler for one client: one thread, which delivers everything to the loop.

    Args:
        connect_timeout_s: returns how long an attempt to connect may take, and then its handshake.
        has_requests: whether requests of the client wait for the thread.
        on_end: is called on the loop when the thread has ended.

    Attributes:
        is_closing: ends the wait for a loop that hangs.
    """

    name = "trio_handler"
    running = True
    """Always: a handler that does not run would make kazoo call back in its own thread."""

    def __init__(
        self,
        token: trio.lowlevel.TrioToken,
        connect_timeout_s: Callable[[], float],
        delay_s: float,
        has_requests: Callable[[], bool],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        super().__init__()
        self._token = token
        self._has_requests = has_requests
        self._connect_timeout_s = connect_timeout_s
        self._delay_s = delay_s
        self._on_end = on_end
        self.callback_queue = self.completion_queue = _LoopQueue(token)
        self.is_closing = threading.Event()
        self._is_in_handshake = False
        """Belongs to kazoo's thread."""

    def start(self) -> None:
        """Starts nothing: the queues have no threads."""

    def stop(self) -> None:
        """Stops nothing."""

    def spawn(self, func: Callable[..., object], *args: object, **kwargs: object) -> threading.Thread:
        """Starts kazoo's thread. Its end is reported to the loop, with the exception that ended it."""

        def run() -> None:
            error = None
            try:
                time.sleep(self._delay_s)
                func(*args, **kwargs)
            except Exception as unexpected:  # noqa: BLE001 - the loop logs it
                error = unexpected
            finally:
                self.completion_queue.put(partial(self._on_end, error))

        thread = threading.Thread(target=run, name="kazoo", daemon=True)
        thread.start()
        return thread

    def create_socket_pair(self) -> tuple[_WakeUp, _WakeUp]:
        """Returns the two ends of the wake-up of kazoo's thread."""
        wake_up = _WakeUp(self._has_requests)
        return wake_up, wake_up

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connects to one of the hosts, in a share of the session's timeout, so that there is time for further attempts."""
        self._is_in_handshake = True
        return BufferedSocket(super().create_connection(*args, **{**kwargs, "timeout": self._connect_timeout_s()}))

    def note_handshake_end(self) -> None:
        """Lets waits be as long as kazoo says again."""
        self._is_in_handshake = False

    def select(self, readers: list[Any], writers: list[Any], others: list[Any], timeout_s: float | None = None) -> Any:
        """Waits for the socket. After a wait without a result kazoo sends a ping, so that wait ends with the loop's answer.

        Args:
            readers: the `BufferedSocket`, and the `_WakeUp` while kazoo waits for requests too.
            writers: the `BufferedSocket`, or nothing.
            others: nothing.
        """
        if self._is_in_handshake:
            # kazoo would wait for the session's timeout for the answer of its only server, and lose the session.
            timeout_s = min(self._connect_timeout_s(), float("inf") if timeout_s is None else timeout_s)
        if writers:
            [connection] = writers
            connection.wait_until_not_full(timeout_s)
            writers = [] if connection.is_full else writers
            return [], writers, others
        ready = self._until_readable(*readers, timeout_s=timeout_s)
        if not ready:
            self._wait_for_loop()
        return ready, writers, others

    def _until_readable(
        self, connection: BufferedSocket, wake_up: _WakeUp | None = None, *, timeout_s: float | None
    ) -> list[BufferedSocket | _WakeUp]:
        """Returns what can be read. Requests are collected first, and then sent together."""
        awake: list[BufferedSocket | _WakeUp] = [wake_up] if wake_up is not None and self._has_requests() else []
        if not awake and connection.pending():
            connection.flush()
        elif not awake:
            descriptors = [] if wake_up is None else [wake_up.fileno()]
            if connection.wait_until_received(descriptors, timeout_s) and wake_up is not None:
                awake = [wake_up]
        return [connection, *awake] if connection.pending() else awake

    def _wait_for_loop(self) -> None:
        answered = threading.Event()
        try:
            self._token.run_sync_soon(answered.set)
        except trio.RunFinishedError:
            # The loop has ended: the thread ends silently, and ZooKeeper ends the session by its timeout.
            raise SystemExit from None
        while not answered.wait(LOOP_CHECK_S) and not self.is_closing.is_set():
            pass


class _LastWarning(logging.Handler):
    """kazoo's log: keeps the last warning, which says why there is no connection."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the message, unless it only says what kazoo does next."""
        text = record.getMessage()
        if text != "Transition to CONNECTING":
            self.text = text


@dataclass(eq=False, slots=True)
class _Request:
    """A request without an outcome, below its chroot."""

    chroot: str
    operation: Operation[Any]
    callback: Callable[[Any], None]


class KazooSession:
    """A `ZooKeeperClient` by kazoo. `open_kazoo_session` makes it."""

    def __init__(self, hosts: str, chroot: str, session_timeout_ms: int) -> None:
        self._hosts = hosts
        self._chroot = chroot
        self._session_timeout_ms = session_timeout_ms
        self._token = trio.lowlevel.current_trio_token()
        self._state = SessionState.CONNECTING
        self._state_listeners: list[Callable[[SessionState], None]] = []
        self._watch_listeners: list[Callable[[WatchEvent], None]] = []
        self._requests: dict[_Request, None] = {}
        """The requests without an outcome, in their order."""
        self._client_id: tuple[int, bytes] | None = None
        """The id and the password of the session."""
        self._last_event: object = None
        """kazoo's last watch event, which kazoo passes once for the data watches and once for the child watches."""
        self._lock = threading.Lock()
        self._connection_number = 0
        """Counts the changes of the state that kazoo's thread has seen."""
        self._known_connection: int | None = None
        """The number with which the state CONNECTED began for the loop; None in other states."""
        self._changed = trio.Event()
        """Set, and replaced, when the state changes."""
        self._is_closing = False
        self._warning = _LastWarning()
        self._logger = logging.Logger("kazoo", logging.WARNING)
        self._logger.addHandler(self._warning)
        self._handler: _TrioHandler
        self._client: KazooClient
        self._start_client(delay_s=0)

    @property
    def state(self) -> SessionState:
        """The state with which the listeners were called last."""
        return self._state

    @property
    def session_id(self) -> int | None:
        """The session of the last CONNECTED; None before the first."""
        return self._client_id[0] if self._client_id is not None else None

    def add_state_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Calls `listener` with every state that begins from now on."""
        self._state_listeners.append(listener)

    def add_watch_listener(self, listener: Callable[[WatchEvent], None]) -> None:
        """Calls `listener` with every event of the watches of this client from now on."""
        self._watch_listeners.append(listener)

    def submit(self, operation: Operation[R], callback: Callable[[R | ZooKeeperError], None]) -> None:
        """Sends an operation; `callback` receives its result or error, once."""
        self._submit_below(self._chroot, operation, callback)

    def close(self) -> None:
        """Begins to end the session, so that its ephemeral znodes are deleted. CLOSED follows when kazoo's thread has ended.

        If there is no connection, ZooKeeper deletes the znodes after the timeout of the session.
        """
        if self._is_closing:
            return
        self._is_closing = True
        self._handler.is_closing.set()
        trio.lowlevel.start_thread_soon(partial(_stop, self._client), _do_nothing, name="kazoo stop")

    async def aclose(self) -> None:
        """Closes the session, and waits until its state is CLOSED.

        Cancellation: none; it takes at most `CLOSE_TIMEOUT_S`.
        """
        self.close()
        with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S):
            await self._until(SessionState.CLOSED)
        self._enter(SessionState.CLOSED)

    async def connect(self) -> None:
        """Waits for the session, and creates the chroot.

        Raises:
            ZooKeeperError: ZooKeeper refuses to create the chroot.

        Cancellation: the client goes on to connect; the chroot may be created.
        """
        while True:
            await self._until(SessionState.CONNECTED)
            if await self._has_created_chroot():
                return

    def why_not_connected(self, timeout_ms: int) -> str:
        """Returns the message for the operator after a wait of `timeout_ms`."""
        cause = f" ({self._warning.text})" if self._warning.text else ""
        return (
            f"No ZooKeeper at {self._hosts} has opened a session within {timeout_ms / 1000:g} s{cause}. "
            "Start ZooKeeper, or correct zookeeper.connect"
        )

    async def _until(self, state: SessionState) -> None:
        while self._state is not state:
            await self._changed.wait()

    async def _has_created_chroot(self) -> bool:
        """Returns whether the chroot exists; False if the connection was lost."""
        names = self._chroot.split("/")
        for length in range(2, len(names) + 1):
            outcome = await self._create_absolute("/".join(names[:length]))
            if not isinstance(outcome, ZooKeeperError) or outcome.code is ZooKeeperErrorCode.NODE_EXISTS:
                continue
            if outcome.is_outcome_unknown:
                return False
            raise outcome
        return True

    async def _create_absolute(self, path: str) -> Created | ZooKeeperError:
        outcomes: list[Created | ZooKeeperError] = []
        done = trio.Event()

        def finish(outcome: Created | ZooKeeperError) -> None:
            outcomes.append(outcome)
            done.set()

        self._submit_below("", Create(path, b""), finish)
        await done.wait()
        return outcomes[0]

    def _submit_below(self, chroot: str, operation: Operation[R], callback: Callable[[R | ZooKeeperError], None]) -> None:
        record = _record_of(operation, chroot, self._on_watch)
        request = _Request(chroot, operation, callback)
        self._requests[request] = None
        with self._lock:
            is_sent = self._connection_number == self._known_connection and not self._is_closing
            if is_sent:
                result = _Result(self._handler.completion_queue, partial(self._on_result, request))
                self._client._call(record, result)  # noqa: SLF001 - docstring of the module
        if not is_sent:
            self._handler.completion_queue.put(partial(self._finish, request, self._refusal()))

    def _refusal(self) -> ZooKeeperError:
        has_ended = self._is_closing or self._state is SessionState.LOST
        return ZooKeeperError(ZooKeeperErrorCode.SESSION_EXPIRED if has_ended else ZooKeeperErrorCode.CONNECTION_LOSS)

    def _start_client(self, *, delay_s: float) -> None:
        """Starts kazoo's thread, with the session of the former thread if there was one."""
        timeout_s, host_count = self._session_timeout_ms / 1000, self._hosts.count(",") + 1
        connect_timeout_s = lambda: connect_timeout(timeout_s, host_count, has_session=bool(self._client._session_id))  # noqa: E731, SLF001
        has_requests = lambda: bool(self._client._queue)  # noqa: E731, SLF001 - kazoo replaces the queue now and then
        self._handler = _TrioHandler(self._token, connect_timeout_s, delay_s, has_requests, self._on_thread_end)
        self._client = KazooClient(
            self._hosts,
            timeout=self._session_timeout_ms / 1000,
            client_id=self._client_id,
            handler=self._handler,
            connection_retry={"max_tries": -1, "max_delay": MOST_RECONNECT_DELAY_S},
            logger=self._logger,
        )
        self._client.add_listener(self._on_kazoo_state)
        self._client.start_async()

    def _on_kazoo_state(self, kazoo_state: str) -> None:
        """Passes a state to the loop. It is called in kazoo's thread, before that sends anything on a new connection."""
        keeper_state = self._client.client_state
        self._handler.note_handshake_end()
        with self._lock:
            self._connection_number += 1
            if kazoo_state != KazooState.CONNECTED:
                # kazoo has done this before it called; a request may have come since, and would be sent after the next CONNECTED.
                self._client._notify_pending(keeper_state)  # noqa: SLF001
        if kazoo_state == KazooState.CONNECTED:
            tell = partial(self._on_connected, self._connection_number, self._client.client_id)
        else:
            is_expired = keeper_state == KeeperState.EXPIRED_SESSION
            tell = partial(self._on_disconnected, SessionState.LOST if is_expired else SessionState.SUSPENDED)
        self._handler.completion_queue.put(tell)

    def _on_connected(self, connection_number: int, client_id: tuple[int, bytes]) -> None:
        if self._is_closing:
            return
        if self._state is SessionState.SUSPENDED and client_id != self._client_id:
            self._enter(SessionState.LOST)  # the session of a former thread has expired, which kazoo does not report
        self._client_id = client_id
        self._known_connection = connection_number
        log.info("Connected to ZooKeeper", session=f"{client_id[0]:#x}")
        self._enter(SessionState.CONNECTED)

    def _on_disconnected(self, state: SessionState) -> None:
        if self._is_closing or self._state is SessionState.CONNECTING:
            return
        cause = self._warning.text
        if state is SessionState.LOST:
            log.warning("The session of ZooKeeper has expired; a new one begins with the next connection", cause=cause)
        elif self._state is SessionState.CONNECTED:
            log.warning("The connection to ZooKeeper was lost; the client connects again", hosts=self._hosts, cause=cause)
        self._enter(state)

    def _on_thread_end(self, error: Exception | None) -> None:
        if self._is_closing:
            self._enter(SessionState.CLOSED)
            return
        if error is not None:
            log_once(error, "The thread of ZooKeeper's client has failed; a new thread continues the session")
        _stop(self._client)
        self._start_client(delay_s=MOST_RECONNECT_DELAY_S)

    def _enter(self, state: SessionState) -> None:
        if self._state in (state, SessionState.CLOSED):
            return
        if state is not SessionState.CONNECTED:
            self._known_connection = None
            for request in list(self._requests):
                self._finish(request, ZooKeeperError(ZooKeeperErrorCode.CONNECTION_LOSS))
        self._state = state
        for listener in list(self._state_listeners):
            with isolate("A listener to the states of ZooKeeper failed"):
                listener(state)
        self._changed.set()
        self._changed = trio.Event()

    def _on_watch(self, event: WatchedEvent) -> None:
        if event is self._last_event or event.type not in _EVENT_TYPES or self._state is SessionState.CLOSED:
            return
        self._last_event = event
        told = WatchEvent(_EVENT_TYPES[event.type], _relative(event.path, self._chroot))
        for listener in list(self._watch_listeners):
            with isolate("A listener to the watches of ZooKeeper failed"):
                listener(told)

    def _on_result(self, request: _Request, result: _Result) -> None:
        self._finish(request, _outcome_of(request, result))

    def _finish(self, request: _Request, outcome: object) -> None:
        """Completes a request, unless it is completed."""
        if request not in self._requests:
            return
        del self._requests[request]
        with isolate("A callback for a result of ZooKeeper failed"):
            request.callback(outcome)


def _stop(client: KazooClient) -> None:
    """Ends kazoo's thread and the session. It blocks until ZooKeeper has answered, or for the timeout of the session."""
    with isolate("ZooKeeper's client did not stop"):
        client.stop()
        client.close()


def _do_nothing(outcome: object) -> None:
    """Takes the result of a thread, which tells the loop by itself."""


def _absolute(path: str, chroot: str) -> str:
    return (chroot if path == "/" else chroot + path) or "/"


def _relative(path: str, chroot: str) -> str:
    return path.removeprefix(chroot) or "/"


def _record_of(operation: Operation[Any], chroot: str, watcher: Callable[[WatchedEvent], None]) -> Any:
    """Returns kazoo's record of an operation."""
    match operation:
        case Exists():
            return records.Exists(_absolute(operation.path, chroot), watcher if operation.watch else None)
        case GetData():
            return records.GetData(_absolute(operation.path, chroot), watcher if operation.watch else None)
        case GetChildren():
            return records.GetChildren2(_absolute(operation.path, chroot), watcher if operation.watch else None)
        case Sync():
            return records.Sync(_absolute(operation.path, chroot))
        case Multi():
            return records.Transaction([_write_record_of(part, chroot, records.Create) for part in operation.operations])
        case Create() | SetData() | Delete():
            return _write_record_of(operation, chroot, records.Create2)
    raise AssertionError(f"no operation for `submit`: {operation!r}")


def _write_record_of(operation: Write, chroot: str, create: Any) -> Any:
    path = _absolute(operation.path, chroot)
    match operation:
        case Create():
            return create(path, operation.data, OPEN_ACL_UNSAFE, operation.ephemeral | operation.sequential << 1)
        case SetData():
            return records.SetData(path, operation.data, operation.version)
        case Delete():
            return records.Delete(path, operation.version)
        case Check():
            return records.CheckVersion(path, operation.version)
        case _:
            assert_never(operation)


def _outcome_of(request: _Request, result: _Result) -> object:
    """Returns the result or the error of a request, as the port has it."""
    operation = request.operation
    error = result.exception
    if error is not None:
        code = _code_of(error)
        return ZooKeeperError(code) if code in _WITHOUT_PATH else ZooKeeperError(code, getattr(operation, "path", None))
    value = result.value
    match operation:
        case GetData():
            return Data(value[0] or b"", Stat(*value[1]))
        case GetChildren():
            return Children(tuple(sorted(value[0])), Stat(*value[1]))
        case Exists():
            return Stat(*value) if value is not None else None
        case Sync():
            return None
        case Multi():
            return _multi_outcome_of(operation, value, request.chroot)
        case Create():
            path, stat = value
            return Created(_relative(path, request.chroot), Stat(*stat))
        case _:
            return _write_result_of(value, request.chroot)


def _multi_outcome_of(operation: Multi, values: list[Any], chroot: str) -> tuple[WriteResult, ...] | ZooKeeperError:
    codes = tuple(_code_of(value) for value in values if isinstance(value, Exception))
    if not codes:
        return tuple(_write_result_of(value, chroot) for value in values)
    failed = next(index for index, code in enumerate(codes) if code is not ZooKeeperErrorCode.OK)
    return ZooKeeperError(codes[failed], operation.operations[failed].path, codes)


def _write_result_of(value: Any, chroot: str) -> WriteResult:
    """Returns the result of a write, which kazoo gives as a path, a stat or True."""
    if isinstance(value, str):
        return Created(_relative(value, chroot), None)
    return None if value is True else Stat(*value)


def _code_of(error: Exception) -> ZooKeeperErrorCode:
    """Returns the code of kazoo's exception. Any other exception is about a response that kazoo could not read."""
    if isinstance(error, ConnectionClosedError):
        return ZooKeeperErrorCode.CONNECTION_LOSS
    if isinstance(error, ZookeeperError) and error.code in _CODES:
        return ZooKeeperErrorCode(error.code)
    log_once(error, "A response of ZooKeeper could not be read")
    return ZooKeeperErrorCode.SYSTEM_ERROR
