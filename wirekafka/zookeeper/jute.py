"""ZooKeeper's client protocol: its records, and frames <-> records.

A frame is a length of four bytes and its body. The first frame of a connection is a `ConnectRequest`, and its response is a
`ConnectResponse`. Every other request is a `RequestHeader` and the record of its operation; ping and closeSession have no
record. A response is a `ReplyHeader` and, if there was no error, a record. A `ReplyHeader` whose xid is a `SpecialXid` answers no
numbered request. Numbers are big-endian.

A record is declared once: its annotations are the fields in the order of the wire, and both directions follow from them.

Source: zookeeper.jute, org.apache.jute.BinaryInputArchive, and org.apache.zookeeper.MultiOperationRecord of ZooKeeper 3.8.
Differs from ZooKeeper: a null string or vector reads as an empty one. Text that is not UTF-8 is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, Self, get_args, get_origin, get_type_hints

MAX_FRAME_BYTES = 0xFFFFF
"""The longest body that ZooKeeper accepts: the default of `jute.maxbuffer`, one byte less than 1 MiB."""

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


class JuteError(Exception):
    """The bytes are not the record that they should be."""


class OpCode(IntEnum):
    """The operations by their numbers on the wire. Source: org.apache.zookeeper.ZooDefs.OpCode."""

    ERROR = -1
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    AUTH = 100
    SET_WATCHES = 101
    SET_WATCHES2 = 105
    CLOSE_SESSION = -11


class SpecialXid(IntEnum):
    """The xids of frames that are outside of the numbering of requests. Source: org.apache.zookeeper.ClientCnxn."""

    NOTIFICATION = -1
    PING = -2
    AUTH = -4
    SET_WATCHES = -8


class Reader:
    """Reads values from the body of a frame.

    Memory: a value takes what it takes in the frame, whatever length it announces.

    Raises:
        JuteError: the body ends too early, or a value is impossible. Every method may raise it.
    """

    __slots__ = ("_body", "_position")

    def __init__(self, body: bytes | bytearray | memoryview) -> None:
        self._body = memoryview(body)
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        """Whether everything has been read."""
        return self._position == len(self._body)

    def int32(self) -> int:
        """Reads a number of four bytes."""
        (value,) = _INT.unpack(self._take(4))
        return int(value)

    def int64(self) -> int:
        """Reads a number of eight bytes."""
        (value,) = _LONG.unpack(self._take(8))
        return int(value)

    def boolean(self) -> bool:
        """Reads a byte: everything but 0 is true."""
        return self._take(1)[0] != 0

    def buffer(self) -> bytes | None:
        """Reads a length and bytes; None if the length is -1."""
        length = self.int32()
        return None if length == -1 else bytes(self._take(length))

    def text(self) -> str:
        """Reads a string."""
        try:
            return (self.buffer() or b"").decode()
        except UnicodeDecodeError as error:
            raise JuteError(f"a string is not UTF-8: {error}") from error

    def _take(self, length: int) -> memoryview:
        end = self._position + length
        if length < 0 or end > len(self._body):
            raise JuteError(f"{length} bytes at {self._position} in a frame of {len(self._body)}")
        taken = self._body[self._position : end]
        self._position = end
        return taken


class Kind(NamedTuple):
    """How values of one type are read and written."""

    read: Callable[[Reader], Any]
    write: Callable[[bytearray, Any], None]


def _write_buffer(out: bytearray, value: bytes | None) -> None:
    out += _INT.pack(-1 if value is None else len(value))
    out += value or b""


Int = Annotated[int, Kind(Reader.int32, lambda out, value: out.extend(_INT.pack(value)))]
Long = Annotated[int, Kind(Reader.int64, lambda out, value: out.extend(_LONG.pack(value)))]
Boolean = Annotated[bool, Kind(Reader.boolean, lambda out, value: out.append(value))]
Buffer = Annotated[bytes | None, Kind(Reader.buffer, _write_buffer)]
Text = Annotated[str, Kind(Reader.text, lambda out, value: _write_buffer(out, value.encode()))]


@dataclass(frozen=True, slots=True)
class Record:
    """A value of several fields, in the order of the wire."""

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Reads the fields.

        Raises:
            JuteError: the bytes are not such a record.
        """
        return cls(*(kind.read(reader) for _, kind in kinds_of(cls)))

    def write(self, out: bytearray) -> None:
        """Appends the fields to `out`."""
        for name, kind in kinds_of(type(self)):
            kind.write(out, getattr(self, name))


def kinds_of(record: type[Record]) -> tuple[tuple[str, Kind], ...]:
    """Returns the names of the fields of a class of records, and how their values are read and written."""
    name = record.__qualname__
    if name not in _KINDS:
        hints = get_type_hints(record, include_extras=True)
        _KINDS[name] = tuple((field, _kind_of(hint)) for field, hint in hints.items())
    return _KINDS[name]


_KINDS: dict[str, tuple[tuple[str, Kind], ...]] = {}
"""The fields of the records that were used."""


def _kind_of(hint: Any) -> Kind:
    if get_origin(hint) is Annotated:
        return next(kind for kind in get_args(hint) if isinstance(kind, Kind))
    if get_origin(hint) is tuple:
        return _vector_of(_kind_of(get_args(hint)[0]))
    return Kind(hint.read, lambda out, value: value.write(out))


def _vector_of(kind: Kind) -> Kind:
    def read(reader: Reader) -> tuple[Any, ...]:
        count = reader.int32()
        if count < -1:
            raise JuteError(f"a vector of {count} elements")
        return tuple([kind.read(reader) for _ in range(count)])

    def write(out: bytearray, values: tuple[Any, ...]) -> None:
        out += _INT.pack(len(values))
        for value in values:
            kind.write(out, value)

    return Kind(read, write)


@dataclass(frozen=True, slots=True)
class Id(Record):
    scheme: Text
    id: Text


@dataclass(frozen=True, slots=True)
class Acl(Record):
    perms: Int
    id: Id


OPEN_ACL = Acl(31, Id("world", "anyone"))
"""Everybody may do everything with the znode. Source: ZooDefs.Ids.OPEN_ACL_UNSAFE."""


@dataclass(frozen=True, slots=True)
class StatRecord(Record):
    czxid: Long
    mzxid: Long
    ctime_ms: Long
    mtime_ms: Long
    version: Int
    cversion: Int
    aversion: Int
    ephemeral_owner: Long
    data_length: Int
    num_children: Int
    pzxid: Long


@dataclass(frozen=True, slots=True)
class ConnectRequest(Record):
    """The first frame of a client.

    Attributes:
        session_id: 0 asks for a new session.
        read_only: whether the client also accepts a server that serves reads only. Clients before 3.4 do not send the field.
    """

    protocol_version: Int
    last_zxid_seen: Long
    timeout_ms: Int
    session_id: Long
    password: Buffer
    read_only: Boolean

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Reads the fields, with or without the last one."""
        fields: list[Any] = [kind.read(reader) for _, kind in kinds_of(cls)[:-1]]
        fields.append(not reader.is_at_end and reader.boolean())
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class ConnectResponse(Record):
    """The first frame of the server. A timeout of 0 says that the session of the request has expired."""

    protocol_version: Int
    timeout_ms: Int
    session_id: Long
    password: Buffer
    read_only: Boolean


@dataclass(frozen=True, slots=True)
class RequestHeader(Record):
    """The head of a request. `type` is an `OpCode`, or the number of an operation that is not known here."""

    xid: Int
    type: Int


@dataclass(frozen=True, slots=True)
class ReplyHeader(Record):
    """The head of a response. `zxid` is the last transaction that the server has applied; `error` is an error code, or 0."""

    xid: Int
    zxid: Long
    error: Int


@dataclass(frozen=True, slots=True)
class PathRequest(Record):
    """GetACLRequest and SyncRequest."""

    path: Text


@dataclass(frozen=True, slots=True)
class ReadRequest(Record):
    """ExistsRequest, GetDataRequest, GetChildrenRequest and GetChildren2Request."""

    path: Text
    watch: Boolean


@dataclass(frozen=True, slots=True)
class VersionRequest(Record):
    """DeleteRequest and CheckVersionRequest."""

    path: Text
    version: Int


class CreateFlag(IntEnum):
    """The kinds of znodes that `CreateRequest.flags` names. Source: org.apache.zookeeper.CreateMode."""

    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3


@dataclass(frozen=True, slots=True)
class CreateRequest(Record):
    """CreateRequest and Create2Request. The response to the second has a stat."""

    path: Text
    data: Buffer
    acl: tuple[Acl, ...]
    flags: Int


@dataclass(frozen=True, slots=True)
class SetDataRequest(Record):
    path: Text
    data: Buffer
    version: Int


@dataclass(frozen=True, slots=True)
class SetWatches(Record):
    """The watches that a client had on its former connection. Those of what changed after `relative_zxid` fire at once."""

    relative_zxid: Long
    data_watches: tuple[Text, ...]
    exist_watches: tuple[Text, ...]
    child_watches: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class SetWatches2(SetWatches):
    persistent_watches: tuple[Text, ...]
    persistent_recursive_watches: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class AuthPacket(Record):
    type: Int
    scheme: Text
    auth: Buffer


@dataclass(frozen=True, slots=True)
class PathResponse(Record):
    """CreateResponse and SyncResponse."""

    path: Text


@dataclass(frozen=True, slots=True)
class Create2Response(Record):
    path: Text
    stat: StatRecord


@dataclass(frozen=True, slots=True)
class StatResponse(Record):
    """ExistsResponse and SetDataResponse."""

    stat: StatRecord


@dataclass(frozen=True, slots=True)
class GetDataResponse(Record):
    data: Buffer
    stat: StatRecord


@dataclass(frozen=True, slots=True)
class GetChildrenResponse(Record):
    children: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class GetChildren2Response(Record):
    children: tuple[Text, ...]
    stat: StatRecord


@dataclass(frozen=True, slots=True)
class GetAclResponse(Record):
    acl: tuple[Acl, ...]
    stat: StatRecord


@dataclass(frozen=True, slots=True)
class WatcherEvent(Record):
    """The body of a notification. `state` is 3 (SyncConnected) whenever a server sends it."""

    type: Int
    state: Int
    path: Text


@dataclass(frozen=True, slots=True)
class ErrorResponse(Record):
    error: Int


@dataclass(frozen=True, slots=True)
class MultiHeader(Record):
    """The head of one operation in a multi, or of one result; the last one has `done` and no record."""

    type: Int
    done: Boolean
    error: Int


END_OF_MULTI = MultiHeader(-1, True, -1)


@dataclass(frozen=True, slots=True)
class MultiPart:
    """One operation of a multi, or its result.

    Attributes:
        record: None for a result that has no record.
    """

    type: OpCode
    record: Record | None


@dataclass(frozen=True, slots=True)
class MultiRequest(Record):
    """The operations of a multi: for each a `MultiHeader` and its record, and then `END_OF_MULTI`."""

    parts: tuple[MultiPart, ...]

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Reads the operations.

        Raises:
            JuteError: the bytes are not a multi, or one of its operations is not among `WRITE_REQUESTS`.
        """
        return cls(tuple(_multi_parts(reader, WRITE_REQUESTS)))

    def write(self, out: bytearray) -> None:
        """Appends the operations to `out`."""
        _write_multi(out, self.parts)


@dataclass(frozen=True, slots=True)
class MultiResponse(Record):
    """The results of a multi, in the same form. If the multi failed, all of them are errors."""

    parts: tuple[MultiPart, ...]

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Reads the results.

        Raises:
            JuteError: the bytes are not the results of a multi.
        """
        return cls(tuple(_multi_parts(reader, WRITE_RESPONSES)))

    def write(self, out: bytearray) -> None:
        """Appends the results to `out`."""
        _write_multi(out, self.parts)


WRITE_REQUESTS: Mapping[OpCode, type[Record]] = {
    OpCode.CREATE: CreateRequest,
    OpCode.DELETE: VersionRequest,
    OpCode.SET_DATA: SetDataRequest,
    OpCode.CHECK: VersionRequest,
}
"""The records of the operations that a multi may have."""

WRITE_RESPONSES: Mapping[OpCode, type[Record] | None] = {
    OpCode.CREATE: PathResponse,
    OpCode.DELETE: None,
    OpCode.SET_DATA: StatResponse,
    OpCode.CHECK: None,
    OpCode.ERROR: ErrorResponse,
}
"""The records of the results in a multi; None for a result without a record."""

REQUESTS: Mapping[OpCode, type[Record]] = {
    OpCode.CREATE: CreateRequest,
    OpCode.CREATE2: CreateRequest,
    OpCode.DELETE: VersionRequest,
    OpCode.SET_DATA: SetDataRequest,
    OpCode.EXISTS: ReadRequest,
    OpCode.GET_DATA: ReadRequest,
    OpCode.GET_CHILDREN: ReadRequest,
    OpCode.GET_CHILDREN2: ReadRequest,
    OpCode.GET_ACL: PathRequest,
    OpCode.SYNC: PathRequest,
    OpCode.MULTI: MultiRequest,
    OpCode.AUTH: AuthPacket,
    OpCode.SET_WATCHES: SetWatches,
    OpCode.SET_WATCHES2: SetWatches2,
}
"""The records of requests; ping and closeSession have none."""


def _multi_parts(reader: Reader, records: Mapping[OpCode, type[Record] | None]) -> Iterator[MultiPart]:
    while not (header := MultiHeader.read(reader)).done:
        if header.type not in records:
            raise JuteError(f"an operation {header.type} in a multi")
        kind = OpCode(header.type)
        record = records[kind]
        yield MultiPart(kind, record.read(reader) if record is not None else None)


def _write_multi(out: bytearray, parts: tuple[MultiPart, ...]) -> None:
    for part in parts:
        error = part.record.error if isinstance(part.record, ErrorResponse) else 0
        MultiHeader(part.type, False, error).write(out)
        if part.record is not None:
            part.record.write(out)
    END_OF_MULTI.write(out)


def frame_of(*records: Record) -> bytes:
    """Returns one frame with the records, such as a header and a response."""
    frame = bytearray(_INT.size)
    for record in records:
        record.write(frame)
    _INT.pack_into(frame, 0, len(frame) - _INT.size)
    return bytes(frame)


class Frames:
    """Cuts received bytes into the bodies of frames.

    Memory: at most one incomplete frame, of at most `MAX_FRAME_BYTES`, and what was received last.
    """

    def __init__(self) -> None:
        self._received = bytearray()

    def receive(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Yields the bodies of the frames that are complete with `data`.

        Raises:
            JuteError: a frame is longer than `MAX_FRAME_BYTES`, or has a negative length. Nothing after it can be read.
        """
        self._received += data
        while (body := self._first_body()) is not None:
            yield body

    def _first_body(self) -> bytes | None:
        if len(self._received) < _INT.size:
            return None
        (length,) = _INT.unpack_from(self._received)
        if not 0 <= length <= MAX_FRAME_BYTES:
            raise JuteError(f"a frame of {length} bytes")
        end = _INT.size + length
        if len(self._received) < end:
            return None
        body = bytes(self._received[_INT.size : end])
        del self._received[:end]
        return body
