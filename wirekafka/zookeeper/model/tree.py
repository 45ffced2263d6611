"""The znodes of the model: versions, transactions, and the events that each change fires.

Rules: a write changes everything or nothing. All changes of one transaction have its zxid and its time. Times are milliseconds
since 1970.

Source: org.apache.zookeeper.server.PrepRequestProcessor (the order of the checks) and DataTree (stats and events) of
ZooKeeper 3.8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from wirekafka.zookeeper.session import (
    ANY_VERSION,
    Check,
    Create,
    Created,
    Delete,
    Multi,
    SetData,
    Stat,
    WatchEvent,
    WatchEventType,
    Write,
    WriteResult,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

RESERVED_PATHS = ("/zookeeper", "/zookeeper/config", "/zookeeper/quota")
"""The znodes of ZooKeeper itself, which cannot be deleted."""

_BAD_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


@dataclass(slots=True)
class Znode:
    """One znode. The fields are those of `Stat`, but for the children.

    Attributes:
        data: None for a znode that was created without data.
        created_children: how many children were ever created below it. It numbers sequential children.
        children: the names of the children.
    """

    data: bytes | None
    czxid: int
    mzxid: int
    pzxid: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int = 0
    version: int = 0
    created_children: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        """Returns the stat. `cversion` counts children that were created and children that were deleted."""
        return Stat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            ctime_ms=self.ctime_ms,
            mtime_ms=self.mtime_ms,
            version=self.version,
            cversion=2 * self.created_children - len(self.children),
            aversion=0,
            ephemeral_owner=self.ephemeral_owner,
            data_length=len(self.data or b""),
            num_children=len(self.children),
            pzxid=self.pzxid,
        )


@dataclass(slots=True)
class Transaction:
    """One transaction in progress.

    Attributes:
        session_id: the owner of the ephemeral znodes that it creates.
        events: what its changes fire, in order; nothing if it fails.
        undo: takes the changes back, if called from the last to the first.
    """

    zxid: int
    now_ms: int
    session_id: int
    events: list[WatchEvent] = field(default_factory=list)
    undo: list[Callable[[], object]] = field(default_factory=list)

    def fire(self, event_type: WatchEventType, path: str) -> None:
        """Adds an event."""
        self.events.append(WatchEvent(event_type, path))


class Tree:
    """All znodes.

    Attributes:
        ephemerals: the paths of the ephemeral znodes of each session that has any.
    """

    def __init__(self) -> None:
        self._znodes: dict[str, Znode] = {path: Znode(None, 0, 0, 0, 0, 0) for path in ("/", *RESERVED_PATHS)}
        for path in RESERVED_PATHS:
            parent, name = _split(path)
            self._znodes[parent].children.add(name)
        self.ephemerals: dict[int, set[str]] = {}

    def persistent(self) -> Iterator[tuple[str, Znode]]:
        """Yields all persistent znodes with their paths, but for those of ZooKeeper itself. The caller does not change them."""
        for path, znode in self._znodes.items():
            if path != "/" and path not in RESERVED_PATHS and not znode.ephemeral_owner:
                yield path, znode

    def restore(self, path: str, znode: Znode) -> None:
        """Adds a znode without children, which another tree had. No watch fires.

        Raises:
            KeyError: its parent does not exist.
        """
        parent_path, _ = _split(path)
        if parent_path not in self._znodes:
            raise KeyError(parent_path)
        self._link(path, znode)

    def get(self, path: str) -> Znode:
        """Returns a znode, which the caller does not change.

        Raises:
            ZooKeeperError: NO_NODE; BAD_ARGUMENTS if `path` is not a path.
        """
        validate_path(path)
        znode = self._znodes.get(path)
        if znode is None:
            raise ZooKeeperError(ZooKeeperErrorCode.NO_NODE, path)
        return znode

    def find(self, path: str) -> Znode | None:
        """Returns a znode, which the caller does not change; None if it does not exist.

        Raises:
            ZooKeeperError: BAD_ARGUMENTS if `path` is not a path.
        """
        validate_path(path)
        return self._znodes.get(path)

    def apply(self, operation: Write | Multi, transaction: Transaction) -> WriteResult | tuple[WriteResult, ...]:
        """Applies one write, and adds its events to the transaction.

        Raises:
            ZooKeeperError: nothing was changed.
        """
        if isinstance(operation, Multi):
            return self._apply_all(operation.operations, transaction)
        return self._apply_one(operation, transaction)

    def _apply_all(self, operations: tuple[Write, ...], transaction: Transaction) -> tuple[WriteResult, ...]:
        results = []
        for index, operation in enumerate(operations):
            try:
                result = self._apply_one(operation, transaction)
            except ZooKeeperError as error:
                while transaction.undo:
                    transaction.undo.pop()()
                after = len(operations) - index - 1
                ok, skipped = ZooKeeperErrorCode.OK, ZooKeeperErrorCode.RUNTIME_INCONSISTENCY
                raise ZooKeeperError(error.code, operation.path, (*[ok] * index, error.code, *[skipped] * after)) from None
            results.append(Created(result.path, None) if isinstance(result, Created) else result)
        return tuple(results)

    def _apply_one(self, operation: Write, transaction: Transaction) -> WriteResult:
        match operation:
            case Create():
                return self._create(operation, transaction)
            case SetData():
                return self._set_data(operation, transaction)
            case Delete():
                self._delete(operation, transaction)
            case Check():
                _check_version(self.get(operation.path), operation.version, operation.path)
            case _:
                assert_never(operation)
        return None

    def _create(self, operation: Create, transaction: Transaction) -> Created:
        validate_path(operation.path + "0" * operation.sequential)
        parent_path, _ = _split(operation.path)
        parent = self._parent(parent_path, operation.path)
        path = operation.path + (f"{parent.created_children:010d}" if operation.sequential else "")
        if path in self._znodes:
            raise ZooKeeperError(ZooKeeperErrorCode.NODE_EXISTS, operation.path)
        if parent.ephemeral_owner:
            raise ZooKeeperError(ZooKeeperErrorCode.NO_CHILDREN_FOR_EPHEMERALS, operation.path)
        owner = transaction.session_id if operation.ephemeral else 0
        zxid, now_ms = transaction.zxid, transaction.now_ms
        znode = Znode(operation.data, zxid, zxid, zxid, now_ms, now_ms, owner)
        before = parent.created_children, parent.pzxid
        self._link(path, znode)
        parent.created_children, parent.pzxid = parent.created_children + 1, zxid

        def undo() -> None:
            self._unlink(path)
            parent.created_children, parent.pzxid = before

        transaction.undo.append(undo)
        transaction.fire(WatchEventType.NODE_CREATED, path)
        transaction.fire(WatchEventType.NODE_CHILDREN_CHANGED, parent_path)
        return Created(path, znode.stat())

    def _set_data(self, operation: SetData, transaction: Transaction) -> Stat:
        znode = self.get(operation.path)
        _check_version(znode, operation.version, operation.path)
        before = znode.data, znode.version, znode.mzxid, znode.mtime_ms

        def undo() -> None:
            znode.data, znode.version, znode.mzxid, znode.mtime_ms = before

        transaction.undo.append(undo)
        znode.data, znode.version = operation.data, znode.version + 1
        znode.mzxid, znode.mtime_ms = transaction.zxid, transaction.now_ms
        transaction.fire(WatchEventType.NODE_DATA_CHANGED, operation.path)
        return znode.stat()

    def _delete(self, operation: Delete, transaction: Transaction) -> None:
        path = operation.path
        if path == "/" or path in RESERVED_PATHS:
            raise ZooKeeperError(ZooKeeperErrorCode.BAD_ARGUMENTS, path)
        parent_path, _ = _split(path)
        parent = self._parent(parent_path, path)
        znode = self.get(path)
        _check_version(znode, operation.version, path)
        if znode.children:
            raise ZooKeeperError(ZooKeeperErrorCode.NOT_EMPTY, path)
        pzxid = parent.pzxid
        self._unlink(path)
        parent.pzxid = transaction.zxid

        def undo() -> None:
            self._link(path, znode)
            parent.pzxid = pzxid

        transaction.undo.append(undo)
        transaction.fire(WatchEventType.NODE_DELETED, path)
        transaction.fire(WatchEventType.NODE_CHILDREN_CHANGED, parent_path)

    def _parent(self, parent_path: str, path: str) -> Znode:
        parent = self._znodes.get(parent_path)
        if parent is None:
            raise ZooKeeperError(ZooKeeperErrorCode.NO_NODE, path)
        return parent

    def _link(self, path: str, znode: Znode) -> None:
        """Puts a znode below its parent."""
        parent_path, name = _split(path)
        self._znodes[path] = znode
        self._znodes[parent_path].children.add(name)
        if znode.ephemeral_owner:
            self.ephemerals.setdefault(znode.ephemeral_owner, set()).add(path)

    def _unlink(self, path: str) -> None:
        """Takes a znode away from its parent."""
        parent_path, name = _split(path)
        znode = self._znodes.pop(path)
        self._znodes[parent_path].children.remove(name)
        if znode.ephemeral_owner:
            paths = self.ephemerals[znode.ephemeral_owner]
            paths.remove(path)
            if not paths:
                del self.ephemerals[znode.ephemeral_owner]


def validate_path(path: str) -> None:
    """Checks the form of a path.

    Raises:
        ZooKeeperError: BAD_ARGUMENTS.

    Source: org.apache.zookeeper.common.PathUtils.validatePath.
    """
    names = path.split("/")[1:]
    is_bad = not path.startswith("/") or _BAD_CHARACTERS.search(path) or (path != "/" and {"", ".", ".."} & {*names})
    if is_bad:
        raise ZooKeeperError(ZooKeeperErrorCode.BAD_ARGUMENTS, path)


def _split(path: str) -> tuple[str, str]:
    """Returns the path of the parent, and the name below it."""
    parent, slash, name = path.rpartition("/")
    if not slash:
        raise ZooKeeperError(ZooKeeperErrorCode.BAD_ARGUMENTS, path)
    return parent or "/", name


def _check_version(znode: Znode, version: int, path: str) -> None:
    if version not in (ANY_VERSION, znode.version):
        raise ZooKeeperError(ZooKeeperErrorCode.BAD_VERSION, path)
