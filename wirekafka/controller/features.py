"""The finalized features of the cluster in the znode `/feature`, which all brokers follow.

How it works: a new controller creates the znode. UpdateFeatures changes the levels. ZooKeeper tells all brokers.

Rules of this file: a level is finalized only if every registered broker supports it. A broker that is not registered now, and
does not support it, refuses to start later.

Differs from Apache Kafka: all levels of a request change or none, as with KRaft. With ZooKeeper, Apache Kafka changes those that
it can, and says nothing about the others.

Source: kafka.controller.KafkaController (maybeSetupFeatureVersioning, enableFeatureVersioning,
processFeatureUpdatesWithActiveController) of Kafka 3.9; org.apache.kafka.controller.FeatureControlManager; KIP-584.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import structlog

from wirekafka.config.cluster_table import RELEASES
from wirekafka.controller.context import ControllerContext
from wirekafka.controller.scripts import Script
from wirekafka.controller.settings import ControllerSettings
from wirekafka.controller.writes import multi
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import FeatureUpdate, fault_of_direction, fault_of_form, invalid_update
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FEATURES_ENABLED, FinalizedFeatures
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.session import Create, Data, GetData, SetData, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)

FIRST_RELEASE_WITH_VERSION_2 = "3.3"
"""From this release on, the znode has no lowest levels."""

_CHANGED_MEANWHILE = (ZooKeeperErrorCode.BAD_VERSION, ZooKeeperErrorCode.NO_NODE, ZooKeeperErrorCode.NODE_EXISTS)


def set_up_features(context: ControllerContext, settings: ControllerSettings) -> Script[None]:
    """Creates the znode without features, or enables it. Features that are finalized stay.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: the outcome is unknown, or somebody else has written the znode meanwhile.
    """
    version = 2 if RELEASES.index(settings.release) >= RELEASES.index(FIRST_RELEASE_WITH_VERSION_2) else 1
    try:
        found: Data = yield GetData(paths.FEATURE)
    except ZooKeeperError as error:
        if error.code is not ZooKeeperErrorCode.NO_NODE:
            raise
        yield from multi(context, [Create(paths.FEATURE, FinalizedFeatures({}, version=version).write())])
        return
    try:
        former = FinalizedFeatures.read(found.data)
    except MalformedZnodeError as error:
        remedy = f"correct {paths.FEATURE}, or delete it if the cluster has no finalized features"
        log.error("The features of the cluster cannot be read; they stay as they are", reason=str(error), remedy=remedy)
        return
    features = former.features if former.status == FEATURES_ENABLED else {}
    wanted = replace(former, features=features, status=FEATURES_ENABLED, version=version)
    if wanted != former:
        yield from multi(context, [SetData(paths.FEATURE, wanted.write(), found.stat.version)])


def update_features(context: ControllerContext, updates: Iterable[FeatureUpdate], *, validate_only: bool) -> Script[int | None]:
    """Changes all levels or none; returns the new epoch of the features, or None if nothing was written.

    Args:
        updates: if several name one feature, the last one counts.
        validate_only: nothing is written.

    Raises:
        KafkaError: INVALID_UPDATE_VERSION for the first invalid update; UNKNOWN_SERVER_ERROR if the znode is malformed.
        DeposedError: another broker has the next epoch.
        ZooKeeperError: the outcome is unknown, or ZooKeeper refuses a request.
    """
    wanted = {update.name: update for update in updates}
    while True:
        former, version = yield from _read()
        levels = dict(former.features) if former.status == FEATURES_ENABLED else {}
        for update in wanted.values():
            fault = _fault(context, update, levels.get(update.name, 0))
            if fault is not None:
                raise invalid_update(update, fault)
        target = {**levels, **{update.name: update.level for update in wanted.values()}}
        target = {name: level for name, level in target.items() if level}
        if validate_only or target == levels:
            return None
        content = replace(former, features=target, status=FEATURES_ENABLED).write()
        write = Create(paths.FEATURE, content) if version is None else SetData(paths.FEATURE, content, version)
        try:
            yield from multi(context, [write])
        except ZooKeeperError as error:
            if error.code not in _CHANGED_MEANWHILE:
                raise
            continue
        log.info("Changed features", levels=target)
        return 0 if version is None else version + 1


def _read() -> Script[tuple[FinalizedFeatures, int | None]]:
    """Returns the features and the version of the znode; None if it does not exist."""
    try:
        found: Data = yield GetData(paths.FEATURE)
        return FinalizedFeatures.read(found.data), found.stat.version
    except ZooKeeperError as error:
        if error.code is not ZooKeeperErrorCode.NO_NODE:
            raise
        return FinalizedFeatures({}), None
    except MalformedZnodeError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None


def _fault(context: ControllerContext, update: FeatureUpdate, current: int) -> str | None:
    """Returns why a feature cannot have a level; None if it can have the level."""
    return fault_of_form(update) or _unsupported(context, update, current) or fault_of_direction(update, current)


def _unsupported(context: ControllerContext, update: FeatureUpdate, current: int) -> str | None:
    """Returns which broker does not support a level. Every feature can be off in a cluster with ZooKeeper."""
    if update.level == 0:
        is_known = current or any(update.name in broker.registration.features for broker in context.live.values())
        return None if is_known else f"Feature {update.name} not found."
    for broker_id, broker in sorted(context.live.items()):
        levels = broker.registration.features.get(update.name)
        if levels is None:
            return f"Broker {broker_id} does not support this feature."
        least, most = levels.get("min_version", 1), levels.get("max_version", 0)
        if not least <= update.level <= most:
            return f"Broker {broker_id} only supports versions {least}-{most}"
    return None
