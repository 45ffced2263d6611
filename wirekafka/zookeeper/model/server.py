"""The server of the model: sessions, their connections, and requests.

How it works: a client begins a session, or connects to one with its id and password. Its `Connection` answers requests at once.
The model has no timers: the caller's `expire_sessions` ends the sessions that were silent for their timeout.

Rules: a session has one connection at a time; the next one takes it over. Watches belong to the connection. Every write has a
zxid of its own, refused ones too, and so have the beginning and the end of a session. Events are delivered before the request
that fired them is answered.

Source: org.apache.zookeeper.server.ZooKeeperServer, SessionTrackerImpl, PrepRequestProcessor and FinalRequestProcessor of
ZooKeeper 3.8.

Differs from ZooKeeper: a session expires exactly at its timeout, not up to a tick later. Timeouts are not limited.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from wirekafka.zookeeper.model.tree import Transaction, Tree
from wirekafka.zookeeper.model.watches import Watcher, Watches
from wirekafka.zookeeper.session import (
    Check,
    Children,
    Create,
    Data,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Operation,
    R,
    SetData,
    Sync,
    WatchEvent,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

FIRST_SESSION_ID = 0x100000000000001
"""The id of the first session of a new model."""


class ConnectionListener(Watcher, Protocol):
    """The client's side of a connection."""

    def on_disconnect(self) -> None:
        """Learns that the server has closed the connection: the session ended, or another connection took it over."""


@dataclass(slots=True)
class _Session:
    """A session that has not ended.

    Attributes:
        expires_at_ms: when the session expires unless the client sends something before.
        connection: the connection that has it; None while the client is away.
    """

    session_id: int
    password: bytes
    timeout_ms: int
    expires_at_ms: int
    connection: Connection | None = None


class ModelServer:
    """A ZooKeeper of one server.

    Args:
        now_ms: returns the time in milliseconds since 1970; it is called for stats and timeouts.
        first_session_id: the id of the first session; the following ids follow it.

    Attributes:
        last_zxid: the zxid of the last transaction.
        tree: the znodes.
    """

    def __init__(self, now_ms: Callable[[], int], *, last_zxid: int = 0, first_session_id: int = FIRST_SESSION_ID) -> None:
        self._now_ms = now_ms
        self.tree = Tree()
        self._watches = Watches()
        self._sessions: dict[int, _Session] = {}
        self._next_session_id = first_session_id
        self.last_zxid = last_zxid

    def connect(self, listener: ConnectionListener, timeout_ms: int) -> Connection:
        """Begins a session, with its first connection."""
        session_id = self._next_session_id
        self._next_session_id += 1
        self.last_zxid += 1
        password = hashlib.blake2b(session_id.to_bytes(8, "big"), digest_size=16).digest()
        session = _Session(session_id, password, timeout_ms, self._now_ms() + timeout_ms)
        self._sessions[session_id] = session
        return self._attach(session, listener)

    def reconnect(self, listener: ConnectionListener, session_id: int, password: bytes) -> Connection | None:
        """Takes a session over; None if it has ended or the password is not its own."""
        self.expire_sessions()
        session = self._sessions.get(session_id)
        if session is None or session.password != password:
            return None
        if session.connection is not None:
            session.connection.end()
        return self._attach(session, listener)

    def _attach(self, session: _Session, listener: ConnectionListener) -> Connection:
        session.connection = connection = Connection(self, session, listener)
        self.touch(session)
        return connection

    def expire_sessions(self) -> list[int]:
        """Ends the sessions whose time is over, and returns their ids."""
        now_ms = self._now_ms()
        expired = [session for session in self._sessions.values() if session.expires_at_ms <= now_ms]
        for session in expired:
            self.end_session(session)
        return [session.session_id for session in expired]

    def expire_session(self, session_id: int) -> None:
        """Ends a session before its time, if it lives."""
        session = self._sessions.get(session_id)
        if session is not None:
            self.end_session(session)

    def next_expiry_ms(self) -> int | None:
        """Returns when the next session expires unless its client is heard; None without sessions."""
        return min((session.expires_at_ms for session in self._sessions.values()), default=None)

    def touch(self, session: _Session) -> None:
        """Notes that the client has sent something, and moves the expiry of its session."""
        session.expires_at_ms = self._now_ms() + session.timeout_ms

    def has_session(self, session_id: int) -> bool:
        """Whether the session lives."""
        return session_id in self._sessions

    def watch_count(self) -> int:
        """Returns how many watches have not fired."""
        return len(self._watches)

    def end_session(self, session: _Session) -> None:
        """Deletes the ephemeral znodes of a session, and then closes its connection."""
        del self._sessions[session.session_id]
        paths = self.tree.ephemerals.get(session.session_id, set())
        self._write(Multi(tuple(Delete(path) for path in sorted(paths))), session)
        if session.connection is not None:
            session.connection.end()

    def end_watches(self, watcher: Watcher) -> None:
        """Ends the watches of a connection."""
        self._watches.remove(watcher)

    def answer(self, operation: Operation[Any] | Check, session: _Session, watcher: Watcher) -> Any:
        """Executes a request, and returns the result.

        Raises:
            ZooKeeperError: the request failed and changed nothing.
        """
        match operation:
            case Create() | SetData() | Delete() | Check() | Multi():
                return self._write(operation, session)
            case GetData():
                return self._get_data(operation, watcher)
            case GetChildren():
                return self._get_children(operation, watcher)
            case Exists():
                return self._exists(operation, watcher)
            case Sync():
                return None
        raise AssertionError(f"no such operation: {operation!r}")

    def _write(self, operation: Create | SetData | Delete | Check | Multi, session: _Session) -> Any:
        self.last_zxid += 1
        transaction = Transaction(self.last_zxid, self._now_ms(), session.session_id)
        result = self.tree.apply(operation, transaction)
        for event in transaction.events:
            self._watches.fire(event)
        return result

    def _get_data(self, operation: GetData, watcher: Watcher) -> Data:
        znode = self.tree.get(operation.path)
        if operation.watch:
            self._watches.watch_data(operation.path, watcher)
        return Data(znode.data or b"", znode.stat())

    def _get_children(self, operation: GetChildren, watcher: Watcher) -> Children:
        znode = self.tree.get(operation.path)
        if operation.watch:
            self._watches.watch_children(operation.path, watcher)
        return Children(tuple(sorted(znode.children)), znode.stat())

    def _exists(self, operation: Exists, watcher: Watcher) -> Any:
        znode = self.tree.find(operation.path)
        if operation.watch:
            self._watches.watch_data(operation.path, watcher)
        return None if znode is None else znode.stat()


class Connection:
    """A client's connection to the server, for as long as it has the session."""

    def __init__(self, server: ModelServer, session: _Session, listener: ConnectionListener) -> None:
        self._server = server
        self._session = session
        self._listener = listener
        self._is_open = True

    @property
    def session_id(self) -> int:
        """The session, as in `Stat.ephemeral_owner`."""
        return self._session.session_id

    @property
    def password(self) -> bytes:
        """What another connection needs to take the session over: 16 bytes."""
        return self._session.password

    @property
    def timeout_ms(self) -> int:
        """How long the session lives without a request or a ping."""
        return self._session.timeout_ms

    def request(self, operation: Operation[R] | Check) -> R:
        """Executes an operation, and returns its result.

        Raises:
            ZooKeeperError: the operation failed and changed nothing; SESSION_EXPIRED if the connection has ended.
        """
        self.ping()
        result: R = self._server.answer(operation, self._session, self)
        return result

    def ping(self) -> None:
        """Keeps the session alive.

        Raises:
            ZooKeeperError: SESSION_EXPIRED: the connection has ended.
        """
        if not self._is_open:
            raise ZooKeeperError(ZooKeeperErrorCode.SESSION_EXPIRED)
        self._server.touch(self._session)

    def close_session(self) -> None:
        """Ends the session, and with it the connection."""
        self.ping()
        self._server.end_session(self._session)

    def disconnect(self) -> None:
        """Ends the connection, as the client does or because it broke; the listener is not told. The session lives on."""
        if self._is_open:
            self._leave()

    def end(self) -> None:
        """Ends the connection, as the server does, and tells the listener."""
        self._leave()
        self._listener.on_disconnect()

    def _leave(self) -> None:
        self._is_open = False
        self._session.connection = None
        self._server.end_watches(self)

    def on_watch_event(self, event: WatchEvent) -> None:
        """Passes an event on to the client."""
        self._listener.on_watch_event(event)
