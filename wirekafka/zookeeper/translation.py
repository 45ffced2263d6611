"""Translates ZooKeeper's client protocol: records of requests -> operations of the port, and results -> records of responses.

Differs from ZooKeeper: a znode is open for everybody. Another ACL, a container and a znode with a time to live are refused with
UNIMPLEMENTED.

Source: org.apache.zookeeper.server.PrepRequestProcessor and FinalRequestProcessor of ZooKeeper 3.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from wirekafka.zookeeper import jute
from wirekafka.zookeeper.jute import OpCode, Record
from wirekafka.zookeeper.session import (
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Operation,
    SetData,
    Stat,
    Sync,
    ZooKeeperError,
    ZooKeeperErrorCode,
)


@dataclass(frozen=True, slots=True)
class Service:
    """The translation of one kind of request.

    Attributes:
        operation_of: the operation that a record asks for. It raises ZooKeeperError if there is none.
        response_of: the response, from the record and the result of the operation; None for a response without a record. It
            raises ZooKeeperError if the result is an error of this kind of request.
    """

    operation_of: Callable[[Any], Operation[Any] | Check]
    response_of: Callable[[Any, Any], Record | None]


def refused_multi(codes: tuple[ZooKeeperErrorCode, ...]) -> jute.MultiResponse:
    """Returns the response to a multi of which no operation was applied, from the codes of the operations."""
    return jute.MultiResponse(tuple(jute.MultiPart(OpCode.ERROR, jute.ErrorResponse(code)) for code in codes))


def _create(record: jute.CreateRequest) -> Create:
    if not record.acl:
        raise ZooKeeperError(ZooKeeperErrorCode.INVALID_ACL, record.path)
    if record.acl != (jute.OPEN_ACL,) or record.flags not in _KNOWN_FLAGS:
        raise ZooKeeperError(ZooKeeperErrorCode.UNIMPLEMENTED, record.path)
    is_ephemeral = bool(record.flags & jute.CreateFlag.EPHEMERAL)
    is_sequential = bool(record.flags & jute.CreateFlag.PERSISTENT_SEQUENTIAL)
    return Create(record.path, record.data, is_ephemeral, is_sequential)


_KNOWN_FLAGS = frozenset(jute.CreateFlag)


def _stat(stat: Stat) -> jute.StatRecord:
    return jute.StatRecord(*astuple(stat))


def _found(record: jute.ReadRequest | jute.PathRequest, stat: Stat | None) -> jute.StatRecord:
    if stat is None:
        raise ZooKeeperError(ZooKeeperErrorCode.NO_NODE, record.path)
    return _stat(stat)


def _multi(record: jute.MultiRequest) -> Multi:
    operations = [SERVICES[part.type].operation_of(part.record) for part in record.parts]
    return Multi(tuple(operations))  # type: ignore[arg-type]  # `MultiRequest` has writes only


def _multi_results(record: jute.MultiRequest, results: tuple[Any, ...]) -> jute.MultiResponse:
    answered = zip(record.parts, results, strict=True)
    return jute.MultiResponse(
        tuple(jute.MultiPart(part.type, SERVICES[part.type].response_of(part.record, result)) for part, result in answered)
    )


SERVICES: Mapping[OpCode, Service] = {
    OpCode.CREATE: Service(_create, lambda record, created: jute.PathResponse(created.path)),
    OpCode.CREATE2: Service(_create, lambda record, created: jute.Create2Response(created.path, _stat(created.stat))),
    OpCode.DELETE: Service(lambda record: Delete(record.path, record.version), lambda record, result: None),
    OpCode.SET_DATA: Service(
        lambda record: SetData(record.path, record.data or b"", record.version),
        lambda record, stat: jute.StatResponse(_stat(stat)),
    ),
    OpCode.CHECK: Service(lambda record: Check(record.path, record.version), lambda record, result: None),
    OpCode.EXISTS: Service(
        lambda record: Exists(record.path, record.watch),
        lambda record, stat: jute.StatResponse(_found(record, stat)),
    ),
    OpCode.GET_DATA: Service(
        lambda record: GetData(record.path, record.watch),
        lambda record, result: jute.GetDataResponse(result.data, _stat(result.stat)),
    ),
    OpCode.GET_CHILDREN: Service(
        lambda record: GetChildren(record.path, record.watch),
        lambda record, children: jute.GetChildrenResponse(children.names),
    ),
    OpCode.GET_CHILDREN2: Service(
        lambda record: GetChildren(record.path, record.watch),
        lambda record, children: jute.GetChildren2Response(children.names, _stat(children.stat)),
    ),
    OpCode.GET_ACL: Service(
        lambda record: Exists(record.path),
        lambda record, stat: jute.GetAclResponse((jute.OPEN_ACL,), _found(record, stat)),
    ),
    OpCode.SYNC: Service(lambda record: Sync(record.path), lambda record, result: jute.PathResponse(record.path)),
    OpCode.MULTI: Service(_multi, _multi_results),
}
"""The requests that are one operation each."""
