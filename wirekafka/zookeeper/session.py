"""The port to ZooKeeper: operations, their results and errors, session states and watch events.

Rules for every `ZooKeeperClient`:

- **One order.** Completions of operations, watch events and states reach the caller in one order, on one thread, and never inside
  `submit`, `close` or another callback. Operations complete in the order in which they were submitted. A watch event arrives
  before the completion of any read that shows the change, as ZooKeeper guarantees.
- **Watches are hints.** A read with `watch=True` leaves a watch, which ends with its first event. All watches end without an
  event when the state is no longer CONNECTED. So the caller reads everything again after each CONNECTED. If several watches of
  one client are on a znode, the client receives one event for one change.
- **CONNECTION_LOSS means that the outcome is unknown.** The operation was applied, or was not, or is applied before the next
  CONNECTED. After that the caller reads back to find out. When the connection breaks, the operations without a reply complete
  with CONNECTION_LOSS first, and then the listeners are told SUSPENDED. An operation that is submitted while the state is not
  CONNECTED completes with CONNECTION_LOSS too; while the state is LOST, and after `close`, with SESSION_EXPIRED.
- **A new session begins by itself** after LOST. All ephemeral znodes of the former session were deleted.

Paths are relative to the chroot of the client, in operations, results and watch events. Every znode is created for everybody
(`world:anyone`, all permissions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Generic, Protocol, TypeVar

ANY_VERSION = -1
"""The version that matches every version of a znode (ZooKeeper's own sentinel; it is on the wire)."""


class ZooKeeperErrorCode(IntEnum):
    """ZooKeeper's error codes, by ZooKeeper's names and numbers.

    Source: org.apache.zookeeper.KeeperException.Code of ZooKeeper 3.8.
    """

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    DATA_INCONSISTENCY = -3
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    NEW_CONFIG_NO_QUORUM = -13
    RECONFIG_IN_PROGRESS = -14
    API_ERROR = -100
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_CALLBACK = -113
    INVALID_ACL = -114
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NOT_READ_ONLY = -119
    EPHEMERAL_ON_LOCAL_SESSION = -120
    NO_WATCHER = -121
    REQUEST_TIMEOUT = -122
    RECONFIG_DISABLED = -123
    SESSION_CLOSED_REQUIRE_SASL_AUTH = -124
    QUOTA_EXCEEDED = -125
    THROTTLED_OP = -127


@dataclass(slots=True, unsafe_hash=True)
class ZooKeeperError(Exception):
    """The error with which an operation completes.

    Attributes:
        code: why the operation failed; of a `Multi`, the code of the operation that failed first.
        path: the path of the operation that failed; None if the whole `Multi` has no outcome (CONNECTION_LOSS, SESSION_EXPIRED).
        codes: of a `Multi` that ZooKeeper refused, one code for each of its operations: OK before the operation that failed, and
            RUNTIME_INCONSISTENCY after it. None of them was applied. Otherwise empty.
    """

    code: ZooKeeperErrorCode
    path: str | None = None
    codes: tuple[ZooKeeperErrorCode, ...] = ()

    def __str__(self) -> str:
        return self.code.name if self.path is None else f"{self.code.name} for {self.path}"

    @property
    def is_outcome_unknown(self) -> bool:
        """Whether the operation may have been applied."""
        return self.code is ZooKeeperErrorCode.CONNECTION_LOSS


@dataclass(frozen=True, slots=True)
class Stat:
    """The metadata of a znode.

    Attributes:
        czxid, mzxid, pzxid: the transactions that created the znode, last changed its data, and last changed its children.
        ctime_ms, mtime_ms: when the znode was created and its data last changed, in ms since 1970, by ZooKeeper's clock.
        version: how often the data were changed.
        cversion: how often the list of children was changed.
        aversion: how often the ACL was changed.
        ephemeral_owner: the session that the znode ends with; 0 for a persistent znode (the sentinel is ZooKeeper's).
        data_length: the size of the data in bytes.
        num_children: the number of children.
    """

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


@dataclass(frozen=True, slots=True)
class Created:
    """The result of `Create`.

    Attributes:
        path: the path of the znode, with the number of a sequential one.
        stat: the new znode's; None in the result of a `Multi`, whose response has no stat for it.
    """

    path: str
    stat: Stat | None


@dataclass(frozen=True, slots=True)
class Data:
    """The result of `GetData`."""

    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Children:
    """The result of `GetChildren`.

    Attributes:
        names: names of the children, not paths, sorted.
        stat: the parent's.
    """

    names: tuple[str, ...]
    stat: Stat


R = TypeVar("R")
"""The type of the result of an operation."""


class Operation(Generic[R]):
    """A request to ZooKeeper with a result of type R."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Create(Operation[Created]):
    """Creates a znode; its parent must exist.

    Errors: NODE_EXISTS, NO_NODE (no parent), NO_CHILDREN_FOR_EPHEMERALS (the parent is ephemeral).

    Attributes:
        data: None for a znode without data, as Kafka creates its directories; it is read as empty data.
        ephemeral: the znode is deleted when the session of the client ends.
        sequential: ZooKeeper appends ten digits to the path, which grow with each znode that was created below the parent.
    """

    path: str
    data: bytes | None
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData(Operation[Stat]):
    """Replaces the data of a znode. Errors: NO_NODE, BAD_VERSION."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete(Operation[None]):
    """Deletes a znode without children. Errors: NO_NODE, BAD_VERSION, NOT_EMPTY."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Fails unless the znode exists with this version of its data. It is only part of a `Multi`. Errors: NO_NODE, BAD_VERSION."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class GetData(Operation[Data]):
    """Reads the data of a znode. A watch fires when the data change and when the znode is deleted.

    Errors: NO_NODE; no watch is left.
    """

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class GetChildren(Operation[Children]):
    """Reads the names of the children. A watch fires when a child is created or deleted, and when the znode is deleted.

    Errors: NO_NODE; no watch is left.
    """

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Exists(Operation[Stat | None]):
    """Reads the stat of a znode; None if it does not exist.

    A watch fires when the znode is created, when its data change and when it is deleted.
    """

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Sync(Operation[None]):
    """Completes when this client's ZooKeeper server has applied all that was committed before. Reads after it are not older."""

    path: str


Write = Create | SetData | Delete | Check
"""The operations that a `Multi` has."""

WriteResult = Created | Stat | None
"""The result of one operation of a `Multi`, by its class: `Created`, `Stat` or None."""


@dataclass(frozen=True, slots=True)
class Multi(Operation[tuple[WriteResult, ...]]):
    """Applies all operations in one transaction, or none of them.

    The error is a `ZooKeeperError` with `codes`.
    """

    operations: tuple[Write, ...]


class SessionState(Enum):
    """The state of a client's session.

    CONNECTING -> CONNECTED -> SUSPENDED -> CONNECTED (the same session) or LOST -> CONNECTED (a new session). CLOSED may follow
    each.
    """

    CONNECTING = "connecting"
    """The client has not had a session yet."""
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The connection was lost. The session may have expired; the client learns it when it connects again."""
    LOST = "lost"
    """The session has expired."""
    CLOSED = "closed"
    """The client is closed. No other state follows."""


class WatchEventType(IntEnum):
    """What happened to a znode. Source: org.apache.zookeeper.Watcher.Event.EventType."""

    NODE_CREATED = 1
    NODE_DELETED = 2
    NODE_DATA_CHANGED = 3
    NODE_CHILDREN_CHANGED = 4


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """The event that ended a watch."""

    type: WatchEventType
    path: str


class ZooKeeperClient(Protocol):
    """A client of ZooKeeper: one session, and after its expiry the next one. The rules are in the docstring of the module."""

    @property
    def state(self) -> SessionState:
        """The state with which the listeners were called last."""

    @property
    def session_id(self) -> int | None:
        """The session of the last CONNECTED, as in `Stat.ephemeral_owner`; None before the first."""

    def submit(self, operation: Operation[R], callback: Callable[[R | ZooKeeperError], None]) -> None:
        """Sends an operation; `callback` receives its result or error, once."""

    def add_state_listener(self, listener: Callable[[SessionState], None]) -> None:
        """Calls `listener` with every state that begins from now on."""

    def add_watch_listener(self, listener: Callable[[WatchEvent], None]) -> None:
        """Calls `listener` with every event of the watches of this client from now on."""

    def close(self) -> None:
        """Begins to end the session, so that its ephemeral znodes are deleted.

        Operations that were submitted before complete with their outcome or with CONNECTION_LOSS. Then the listeners are told
        CLOSED.
        """
