"""Features: the levels of protocols that span several APIs, which a cluster switches on as a whole.

How it works: a level is supported if the broker serves everything that the level promises. One supported level of each feature is
finalized, which means that it is in effect. Clients choose by it how they use transactions and groups (KIP-584, KIP-890, KIP-848,
KIP-932), and so do the callers of `level`. A feature that was never changed has its newest supported level. This broker is the
whole cluster, so no other broker is asked.

Rules of this file:
    A change is on disk before `update` returns, and before a client or `on_change` sees it.
    Invariant: a finalized level is a supported level; level 0 means that the feature is off.

Source: org.apache.kafka.controller.{FeatureControlManager, QuorumFeatures}; org.apache.kafka.server.common.{Feature,
TransactionVersion, GroupVersion, ShareVersion, MetadataVersion} of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

import structlog

from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.store import FeatureStore

log = structlog.get_logger(__name__)

GROUP_VERSION = "group.version"
METADATA_VERSION = "metadata.version"
SHARE_VERSION = "share.version"
TRANSACTION_VERSION = "transaction.version"

_NEEDS: dict[str, dict[int, dict[str, int]]] = {
    # 1: consumer groups (KIP-848).
    GROUP_VERSION: {0: {}, 1: {"ConsumerGroupHeartbeat": 0}},
    # 30: 4.3-IV0, the release that came with that API. Older levels are formats of KRaft's metadata log, which wirekafka does not
    # have; Apache Kafka refuses a downgrade to them, too.
    METADATA_VERSION: {30: {"DescribeLogDirs": 5}},
    # 1: share groups (KIP-932).
    SHARE_VERSION: {0: {}, 1: {"ShareGroupHeartbeat": 1}},
    # 1: the coordinator writes flexible records. 2: transactions v2, an epoch for each transaction (KIP-890).
    TRANSACTION_VERSION: {0: {}, 1: {}, 2: {"Produce": 12, "EndTxn": 5, "TxnOffsetCommit": 5}},
}
"""The APIs that each level of a feature needs, each with the version that must be served, in the order of the levels.

Invariant: a level needs everything that the levels below it need.
"""


class UpgradeType(IntEnum):
    """The direction in which a level may be changed. A downgrade loses nothing in wirekafka, so both kinds of downgrade are the
    same.

    Source: org.apache.kafka.clients.admin.FeatureUpdate.UpgradeType.
    """

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """The level that a client requests for a feature; `upgrade_type` is the number from the request."""

    name: str
    level: int
    upgrade_type: int


class Levels(NamedTuple):
    """The supported levels of a feature, from `least` to `most`; a `least` of 0 means that the feature can be off."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}-{self.most}"


class Features:
    """The features of this broker.

    Attributes:
        supported: every feature, by name in alphabetical order.
        on_change: called after levels have changed.

    Args:
        supported: the supported levels; None for all that the broker serves.
    """

    def __init__(self, config: BrokerConfig, store: FeatureStore, supported: Mapping[str, Levels] | None = None) -> None:
        self.supported = supported_features(config) if supported is None else supported
        self.on_change: list[Callable[[], object]] = []
        self._node_id = config.node_id
        self._store = store

    @property
    def epoch(self) -> int:
        """The number of changes of finalized levels, by which clients know the newer of two responses."""
        return self._store.features_epoch

    @property
    def finalized(self) -> dict[str, int]:
        """The level of each feature that is on, by name."""
        return {name: level for name in self.supported if (level := self.level(name))}

    def level(self, name: str) -> int:
        """Returns the finalized level of a feature; 0 if the feature is off."""
        levels = self.supported.get(name)
        if levels is None:
            return 0
        level = self._store.feature_levels.get(name)
        return levels.most if level is None or level > levels.most else level

    def require(self, name: str) -> None:
        """Raises unless a feature is on.

        Raises:
            KafkaError: UNSUPPORTED_VERSION.
        """
        if not self.level(name):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    def update(self, updates: Iterable[FeatureUpdate], *, validate_only: bool) -> None:
        """Changes all levels or none. If several updates name one feature, the last one counts.

        Durability: on disk when it returns.

        Raises:
            KafkaError: INVALID_UPDATE_VERSION for the first invalid update; KAFKA_STORAGE_ERROR. No level has changed then.
        """
        wanted = {update.name: update for update in updates}
        for update in wanted.values():
            reason = self._refusal(update)
            if reason is not None:
                raise invalid_update(update, reason)
        changes = {update.name: update.level for update in wanted.values() if update.level != self.level(update.name)}
        if validate_only or not changes:
            return
        self._store.put_features({**self._store.feature_levels, **changes}, self.epoch + 1)
        log.info("Changed features", levels=changes, epoch=self.epoch)
        for callback in tuple(self.on_change):
            callback()

    def _refusal(self, update: FeatureUpdate) -> str | None:
        """Returns why a feature cannot have this level; None if it can have the level.

        Source: FeatureControlManager.updateFeature, QuorumFeatures.reasonNotLocallySupported, Feature.featureFromName.
        """
        name, level, _ = update
        fault = fault_of_form(update)
        if fault is not None:
            return fault
        levels = self.supported.get(name)
        if levels is None:
            return f"Local controller {self._node_id} does not support this feature." if level else f"Feature {name} not found."
        if not levels.least <= level <= levels.most:
            return f"Local controller {self._node_id} only supports versions {levels}"
        return fault_of_direction(update, self.level(name))


def invalid_update(update: FeatureUpdate, reason: str) -> KafkaError:
    """Returns the error for an update that cannot be made."""
    message = f"Invalid update version {update.level} for feature {update.name}. {reason}"
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)


def fault_of_form(update: FeatureUpdate) -> str | None:
    """Returns why no feature can be updated so; None if the update has a known type and a possible level."""
    if update.upgrade_type not in UpgradeType.__members__.values():
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    return None


def fault_of_direction(update: FeatureUpdate, current: int) -> str | None:
    """Returns why an update does not lead from the current level to its own; None if it does."""
    if update.level < current and update.upgrade_type == UpgradeType.UPGRADE:
        return "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
    if update.level > current and update.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def supported_features(config: BrokerConfig) -> Mapping[str, Levels]:
    """Returns all supported features.

    If the configuration hides versions of APIs, levels that need those versions are not supported, so clients do not rely on
    them.
    """
    hidden = dict(item.split(":") for item in config.items("wirekafka.api.versions.max"))
    features = {}
    for name, levels in _NEEDS.items():
        served = [
            level
            for level, needs in levels.items()
            if not any(_is_hidden(hidden.get(api), version) for api, version in needs.items())
        ]
        if served and served[-1]:
            features[name] = Levels(served[0], served[-1])
    return features


def _is_hidden(limit: str | None, version: int) -> bool:
    """Whether the configured limit hides this version of an API; a limit of None hides no version."""
    return limit is not None and (limit == "none" or int(limit) < version)
