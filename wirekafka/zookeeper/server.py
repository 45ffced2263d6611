"""A ZooKeeper server on a socket: serves a `ModelServer` to ZooKeeper's own clients.

It is for tests and for small clusters on one machine: everything is in memory, and there is no access control.

How it works: two tasks for each connection. The reader cuts bytes into frames and handles each frame in one plain function, which
appends the response to `_unsent`. Watch events are appended there too, so responses and events leave in the order of the model.
The writer sends `_unsent`. One more task ends expired sessions.

Rules of this file:
    No bytes of a client stop the server: a malformed frame ends its connection, and a malformed record is answered with
    MARSHALLING_ERROR.
    Memory is bounded for each connection: one frame of `MAX_FRAME_BYTES`, and the bytes that are not sent yet. From
    `MOST_UNSENT_BYTES` on, no further frame is handled; from `MOST_UNSENT_EVENT_BYTES` of events on, the connection ends.

Source: org.apache.zookeeper.server.NIOServerCnxn, ZooKeeperServer and DataTree.setWatches of ZooKeeper 3.8.

Differs from ZooKeeper: an operation that is not served is answered with UNIMPLEMENTED, and the connection goes on. Credentials of
the scheme `digest` are accepted and change nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
import trio

from wirekafka.faults import isolate
from wirekafka.zookeeper.jute import (
    REQUESTS,
    AuthPacket,
    ConnectRequest,
    ConnectResponse,
    Frames,
    JuteError,
    OpCode,
    Reader,
    Record,
    ReplyHeader,
    RequestHeader,
    SetWatches,
    SetWatches2,
    SpecialXid,
    WatcherEvent,
    frame_of,
)
from wirekafka.zookeeper.model.server import Connection, ModelServer
from wirekafka.zookeeper.session import (
    Exists,
    GetChildren,
    WatchEvent,
    WatchEventType,
    ZooKeeperError,
    ZooKeeperErrorCode,
)
from wirekafka.zookeeper.translation import SERVICES, refused_multi

log = structlog.get_logger(__name__)

MOST_UNSENT_BYTES = 1 << 20
MOST_UNSENT_EVENT_BYTES = 1 << 24
RECEIVE_BYTES = 1 << 16
EXPIRY_CHECK_S = 0.1
"""The time in seconds between two checks for expired sessions."""
CLOSE_TIMEOUT_S = 1.0
"""How many seconds the last bytes of a connection may take."""
FOUR_LETTER_WORDS = {b"ruok": b"imok", b"envi": b"Environment:\nzookeeper.version=3.8.4\n"}
"""Commands outside of the protocol, with their answers: whether the server runs, and which version's protocol it speaks.

Source: org.apache.zookeeper.server.command.FourLetterCommands.
"""
_SYNC_CONNECTED = 3
"""The state in every watch event. Source: org.apache.zookeeper.Watcher.Event.KeeperState."""


@asynccontextmanager
async def serve_model(
    model: ModelServer, *, host: str = "127.0.0.1", port: int = 0, session_timeouts_ms: tuple[int, int] = (4_000, 40_000)
) -> AsyncIterator[str]:
    """Serves a model on a socket, and yields the address as in `zookeeper.connect`.

    Args:
        port: 0 lets the kernel choose.
        session_timeouts_ms: the least and the greatest timeout of a session; ZooKeeper's defaults.

    Raises:
        OSError: the address cannot be used.

    Cancellation: all connections are closed; the model keeps its znodes and sessions.
    """
    listeners = await trio.open_tcp_listeners(port, host=host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_expire_sessions, model)
        nursery.start_soon(trio.serve_listeners, lambda stream: serve_client(model, stream, session_timeouts_ms), listeners)
        address = listeners[0].socket.getsockname()
        yield f"{address[0]}:{address[1]}"
        nursery.cancel_scope.cancel()


async def _expire_sessions(model: ModelServer) -> None:
    while True:
        await trio.sleep(EXPIRY_CHECK_S)
        for session_id in model.expire_sessions():
            log.info("A session of ZooKeeper has expired", session=f"{session_id:#x}")


async def serve_client(model: ModelServer, stream: trio.abc.Stream, session_timeouts_ms: tuple[int, int]) -> None:
    """Serves one connection until it ends. An exception is logged and ends this connection only."""
    with isolate("A connection to the model of ZooKeeper failed"):
        async with stream:
            await _Client(model, stream, session_timeouts_ms).run()


class _Client:
    """One connection of a client; the listener of its session.

    `_session` is None before the `ConnectRequest`. After `_end` no frame is handled, and the connection is closed once everything
    is sent.
    """

    def __init__(self, model: ModelServer, stream: trio.abc.Stream, session_timeouts_ms: tuple[int, int]) -> None:
        self._model = model
        self._stream = stream
        self._session_timeouts_ms = session_timeouts_ms
        self._session: Connection | None = None
        self._unsent = bytearray()
        self._is_ending = False
        self._tasks = trio.CancelScope()
        self._changed = trio.Event()
        """Set, and replaced, when `_unsent` or `_is_ending` changes."""

    async def run(self) -> None:
        """Serves the connection until it ends."""
        try:
            with self._tasks:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read()
                    self._end()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has disconnected
        finally:
            if self._session is not None:
                self._session.disconnect()

    async def _read(self) -> None:
        """Handles what the client sends, until the end of the connection."""
        frames = Frames()
        while data := await self._stream.receive_some(RECEIVE_BYTES):
            if self._session is None and (answer := FOUR_LETTER_WORDS.get(bytes(data[:4]))):
                self._send(answer)
                return
            try:
                for body in frames.receive(data):
                    self._handle(body)
                    await self._until_sent()
                    if self._is_ending:
                        return
            except JuteError as error:
                log.warning("Closed a connection that does not speak ZooKeeper's protocol", error=str(error))
                return

    async def _until_sent(self) -> None:
        await trio.lowlevel.checkpoint()
        while len(self._unsent) > MOST_UNSENT_BYTES:
            await self._changed.wait()

    async def _write(self) -> None:
        """Sends what is appended to `_unsent`, until the end of the connection."""
        while self._unsent or not self._is_ending:
            if not self._unsent:
                await self._changed.wait()
                continue
            data, self._unsent = self._unsent, bytearray()
            self._notify()
            await self._stream.send_all(data)
        self._tasks.cancel()

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _end(self) -> None:
        """Closes the connection when everything is sent, or after `CLOSE_TIMEOUT_S`."""
        if not self._is_ending:
            self._is_ending = True
            self._tasks.deadline = trio.current_time() + CLOSE_TIMEOUT_S
            self._notify()

    def on_disconnect(self) -> None:
        """Ends the connection: the session has ended, or another connection has it."""
        self._end()

    def on_watch_event(self, event: WatchEvent) -> None:
        """Sends a watch event."""
        if len(self._unsent) > MOST_UNSENT_EVENT_BYTES:
            self._end()
            return
        record = WatcherEvent(event.type, _SYNC_CONNECTED, event.path)
        self._send(frame_of(ReplyHeader(SpecialXid.NOTIFICATION, -1, 0), record))

    def _handle(self, body: bytes) -> None:
        """Handles one frame.

        Raises:
            JuteError: it has no head that could be answered.
        """
        reader = Reader(body)
        if self._session is None:
            self._connect(ConnectRequest.read(reader))
        else:
            self._answer(self._session, RequestHeader.read(reader), reader)

    def _connect(self, request: ConnectRequest) -> None:
        if request.last_zxid_seen > self._model.last_zxid:
            log.warning("Closed a connection of a client that has seen a later state: was the server started again?")
            self._end()
            return
        if request.session_id:
            self._session = self._model.reconnect(self, request.session_id, request.password or b"")
        else:
            least_ms, greatest_ms = self._session_timeouts_ms
            self._session = self._model.connect(self, min(max(request.timeout_ms, least_ms), greatest_ms))
        if self._session is None:
            self._send(frame_of(ConnectResponse(0, 0, 0, bytes(16), False)))
            self._end()
            return
        session = self._session
        self._send(frame_of(ConnectResponse(0, session.timeout_ms, session.session_id, session.password, False)))

    def _answer(self, session: Connection, header: RequestHeader, reader: Reader) -> None:
        match header.type:
            case OpCode.PING:
                session.ping()
                self._reply(SpecialXid.PING)
            case OpCode.CLOSE_SESSION:
                session.close_session()
                self._reply(header.xid)
            case known if known in REQUESTS:
                self._answer_operation(session, header.xid, OpCode(known), reader)
            case _:
                self._reply(header.xid, error=ZooKeeperErrorCode.UNIMPLEMENTED)

    def _answer_operation(self, session: Connection, xid: int, op_code: OpCode, reader: Reader) -> None:
        try:
            response = _respond(session, op_code, REQUESTS[op_code].read(reader))
        except JuteError:
            self._reply(xid, error=ZooKeeperErrorCode.MARSHALLING_ERROR)
        except ZooKeeperError as error:
            if error.codes:
                self._reply(xid, refused_multi(error.codes))
                return
            self._reply(xid, error=error.code)
            if error.code is ZooKeeperErrorCode.AUTH_FAILED:
                self._end()
        else:
            self._reply(xid, response)

    def _reply(self, xid: int, response: Record | None = None, *, error: ZooKeeperErrorCode = ZooKeeperErrorCode.OK) -> None:
        header = ReplyHeader(xid, self._model.last_zxid, error)
        self._send(frame_of(header) if response is None else frame_of(header, response))


def _respond(session: Connection, op_code: OpCode, record: Record) -> Record | None:
    """Executes a request; returns the record of the response, or None if it has none.

    Raises:
        ZooKeeperError: the request failed.
    """
    match record:
        case SetWatches():
            _restore_watches(session, record)
            return None
        case AuthPacket():
            if record.scheme != "digest":
                raise ZooKeeperError(ZooKeeperErrorCode.AUTH_FAILED)
            return None
    service = SERVICES[op_code]
    return service.response_of(record, session.request(service.operation_of(record)))


def _restore_watches(session: Connection, watches: SetWatches) -> None:
    """Sets the watches of a former connection again. Those that missed an event fire at once.

    Raises:
        ZooKeeperError: BAD_ARGUMENTS for a path, UNIMPLEMENTED for persistent watches.
    """
    if isinstance(watches, SetWatches2) and (watches.persistent_watches or watches.persistent_recursive_watches):
        raise ZooKeeperError(ZooKeeperErrorCode.UNIMPLEMENTED)
    seen = watches.relative_zxid
    for path in watches.data_watches:
        stat = session.request(Exists(path))
        is_changed = stat is not None and stat.mzxid > seen
        _restore_watch(session, Exists(path, watch=True), WatchEventType.NODE_DATA_CHANGED, stat is None, is_changed)
    for path in watches.exist_watches:
        is_created = session.request(Exists(path)) is not None
        _restore_watch(session, Exists(path, watch=True), WatchEventType.NODE_CREATED, False, is_created)
    for path in watches.child_watches:
        stat = session.request(Exists(path))
        is_changed = stat is not None and stat.pzxid > seen
        _restore_watch(session, GetChildren(path, watch=True), WatchEventType.NODE_CHILDREN_CHANGED, stat is None, is_changed)


def _restore_watch(
    session: Connection, read: Exists | GetChildren, event_type: WatchEventType, is_deleted: bool, is_changed: bool
) -> None:
    if is_deleted:
        session.on_watch_event(WatchEvent(WatchEventType.NODE_DELETED, read.path))
        return
    if is_changed:
        session.on_watch_event(WatchEvent(event_type, read.path))
        return
    match read:
        case Exists():
            session.request(read)
        case GetChildren():
            session.request(read)
