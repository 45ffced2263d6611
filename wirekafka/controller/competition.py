"""The election of the controller: brokers compete for the znode `/controller`.

How it works: a broker becomes the controller by one transaction, which creates the ephemeral znode `/controller` and raises
`/controller_epoch`. If the outcome of the transaction is unknown, the broker reads whose session owns the znode.

Invariant: the znode `/controller` of a session and the epoch with which it was created are read together; the epoch of a later
controller would let this one write as that one.

Source: kafka.zk.KafkaZkClient.registerControllerAndIncrementControllerEpoch, kafka.controller.KafkaController.elect.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import structlog

from wirekafka.controller.scripts import Script
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.membership import ControllerRegistration, read_controller_epoch, write_controller_epoch
from wirekafka.zookeeper.session import (
    Create,
    Data,
    Exists,
    GetData,
    Multi,
    SetData,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

log = structlog.get_logger(__name__)

T = TypeVar("T")

EPOCH_BEFORE_THE_FIRST = 0
"""KafkaController.InitialControllerEpoch."""


_LOST = (ZooKeeperErrorCode.NODE_EXISTS, ZooKeeperErrorCode.BAD_VERSION, ZooKeeperErrorCode.NO_NODE)
"""The errors of the transaction if another broker was faster, or somebody has deleted the epoch."""


class Term(NamedTuple):
    """The time in which a broker is the controller.

    Attributes:
        epoch: the controller epoch.
        epoch_version: the version of `/controller_epoch`.
    """

    epoch: int
    epoch_version: int


class _Found(NamedTuple):
    """What ZooKeeper says about the controller; the epoch was the same before and after."""

    controller: Data | None
    epoch: Data | None
    is_migrating: bool


def compete(broker_id: int, session_id: int, now_ms: int) -> Script[Term | None]:
    """Becomes the controller, unless there is one; returns the term of this session, and None if another one is the controller.

    It leaves watches on `/controller` and `/migration`. There is no competition with KRaft controllers.

    Raises:
        ZooKeeperError: the outcome is unknown, or ZooKeeper refuses the transaction whoever is the controller.
        MalformedZnodeError: the controller epoch cannot be read.
    """
    while True:
        found = yield from _look()
        if found is None:
            continue
        if found.epoch is None:
            yield from _create_epoch()
            continue
        if found.controller is not None:
            if found.controller.stat.ephemeral_owner == session_id:
                return Term(read_controller_epoch(found.epoch.data), found.epoch.stat.version)
            _check(found.controller)
            return None
        if found.is_migrating:
            log.error(
                "The cluster migrates to KRaft, so this broker does not become the controller",
                remedy=f"end the migration, or delete {paths.MIGRATION} if there is none",
            )
            return None
        term = yield from _take(broker_id, now_ms, found.epoch)
        if term is not None:
            return term


def _look() -> Script[_Found | None]:
    """Reads the controller; returns None if it has changed meanwhile."""
    results: list[Any] = yield [
        # `Exists` also watches a znode that does not exist, and fires for changes of its data.
        Exists(paths.CONTROLLER, watch=True),
        Exists(paths.MIGRATION, watch=True),
        GetData(paths.CONTROLLER_EPOCH),
        GetData(paths.CONTROLLER),
        GetData(paths.CONTROLLER_EPOCH),
    ]
    _, migration, before, controller, after = (_existing(each) for each in results)
    is_stable = _version(before) == _version(after)
    return _Found(controller, after, migration is not None) if is_stable else None


def _existing(result: T | ZooKeeperError) -> T | None:
    if isinstance(result, ZooKeeperError):
        if result.code is not ZooKeeperErrorCode.NO_NODE:
            raise result
        return None
    return result


def _version(epoch: Data | None) -> int | None:
    return None if epoch is None else epoch.stat.version


def _check(found: Data) -> None:
    """Logs that the controller is none of this cluster's brokers."""
    try:
        controller = ControllerRegistration.read(found.data)
    except MalformedZnodeError as error:
        remedy = f"delete {paths.CONTROLLER} if no broker has written it; the brokers then elect a controller"
        log.error("The znode of the controller cannot be read", reason=str(error), remedy=remedy)
        return
    if controller.kraft_controller_epoch is not None:
        remedy = "end the migration to KRaft; until then this broker does not become the controller"
        log.error("A KRaft controller rules the cluster", controller=controller.broker_id, remedy=remedy)


def _create_epoch() -> Script[None]:
    try:
        yield Create(paths.CONTROLLER_EPOCH, write_controller_epoch(EPOCH_BEFORE_THE_FIRST))
    except ZooKeeperError as error:
        if error.code is not ZooKeeperErrorCode.NODE_EXISTS:
            raise


def _take(broker_id: int, now_ms: int, former: Data) -> Script[Term | None]:
    """Becomes the controller after the one with the former epoch; returns None if another broker has done so."""
    epoch = read_controller_epoch(former.data) + 1
    create = Create(paths.CONTROLLER, ControllerRegistration(broker_id, now_ms).write(), ephemeral=True)
    try:
        yield Multi((create, SetData(paths.CONTROLLER_EPOCH, write_controller_epoch(epoch), former.stat.version)))
    except ZooKeeperError as error:
        if error.code not in _LOST:
            raise
        return None
    return Term(epoch, former.stat.version + 1)
