"""Features: the levels of protocols that span several APIs, which a cluster switches on as a whole.

Theory of operation: a level is supported once everything that it promises is served, and one level of each feature is finalized:
it holds now. Clients decide by it how they go about transactions and groups (KIP-584, KIP-890, KIP-848, KIP-932), and so does
the callers of `level`. A feature that was never changed is at the newest level that is supported, a changed one where it was
left. This broker is the whole cluster, so no other broker is asked.

Rules of this file:
    A change is on disk before `update` returns, and before anybody is told of it.
    Invariant: a finalized level is one of those that are supported; 0 is to be without the feature.

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
from wirekafka.metadata.store import MetadataStore

log = structlog.get_logger(__name__)

GROUP_VERSION = "group.version"
METADATA_VERSION = "metadata.version"
SHARE_VERSION = "share.version"
TRANSACTION_VERSION = "transaction.version"

_NEEDS: dict[str, dict[int, dict[str, int]]] = {
    # 1: consumer groups (KIP-848).
    GROUP_VERSION: {0: {}, 1: {"ConsumerGroupHeartbeat": 0}},
    # 30: 4.3-IV0, the release that came with that API. Older ones are formats of a metadata log that is not there; to go back to
    # one is refused by Apache Kafka, too.
    METADATA_VERSION: {30: {"DescribeLogDirs": 5}},
    # 1: share groups (KIP-932).
    SHARE_VERSION: {0: {}, 1: {"ShareGroupHeartbeat": 1}},
    # 1: the coordinator writes flexible records. 2: transactions v2, an epoch for each transaction (KIP-890).
    TRANSACTION_VERSION: {0: {}, 1: {}, 2: {"Produce": 12, "EndTxn": 5, "TxnOffsetCommit": 5}},
}
"""What each level of a feature asks of the APIs, in the order of the levels: a version that must be served.

Invariant: what a level asks, those above it ask too.
"""


class UpgradeType(IntEnum):
    """Which way a level may be changed. Nothing is lost by going down here, so that both ways down are the same.

    Source: org.apache.kafka.clients.admin.FeatureUpdate.UpgradeType.
    """

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A level that somebody wants a feature to have; `upgrade_type` is the number that they gave."""

    name: str
    level: int
    upgrade_type: int


class Levels(NamedTuple):
    """The levels of a feature that can be had; a `least` of 0 says that one can be without it."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}-{self.most}"


class Features:
    """The features of this broker.

    Attributes:
        supported: every feature, by name in alphabetical order.
        on_change: called after levels have changed.
    """

    def __init__(self, config: BrokerConfig, store: MetadataStore) -> None:
        self.supported = supported_features(config)
        self.on_change: list[Callable[[], object]] = []
        self._node_id = config.node_id
        self._store = store

    @property
    def epoch(self) -> int:
        """Grows with each change of a finalized level, so that clients know the newer of two responses."""
        return self._store.features_epoch

    @property
    def finalized(self) -> dict[str, int]:
        """The level of each feature that is not switched off, by name."""
        return {name: level for name in self.supported if (level := self.level(name))}

    def level(self, name: str) -> int:
        """The finalized level of a feature, 0 without it."""
        levels = self.supported.get(name)
        if levels is None:
            return 0
        return min(self._store.feature_levels.get(name, levels.most), levels.most)

    def require(self, name: str) -> None:
        """Raises unless a feature is switched on.

        Raises:
            KafkaError: UNSUPPORTED_VERSION.
        """
        if not self.level(name):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    def update(self, updates: Iterable[FeatureUpdate], *, validate_only: bool) -> None:
        """Changes levels, all of them or none; of several for one feature the last counts.

        Durability: on disk when it returns.

        Raises:
            KafkaError: INVALID_UPDATE_VERSION, for the first that cannot be; KAFKA_STORAGE_ERROR. Nothing has changed then.
        """
        wanted = {update.name: update for update in updates}
        for update in wanted.values():
            reason = self._refusal(update)
            if reason is not None:
                message = f"Invalid update version {update.level} for feature {update.name}. {reason}"
                raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
        changes = {update.name: update.level for update in wanted.values() if update.level != self.level(update.name)}
        if validate_only or not changes:
            return
        self._store.put_features(self._store.feature_levels | changes, self.epoch + 1)
        log.info("Changed features", levels=changes, epoch=self.epoch)
        for callback in self.on_change:
            callback()

    def _refusal(self, update: FeatureUpdate) -> str | None:
        """Why a feature cannot have this level; None if it can.

        Source: FeatureControlManager.updateFeature, QuorumFeatures.reasonNotLocallySupported, Feature.featureFromName.
        """
        name, level, upgrade_type = update
        if upgrade_type not in UpgradeType.__members__.values():
            return "The controller does not support the given upgrade type."
        if level < 0:
            return "A feature version cannot be less than 0."
        levels = self.supported.get(name)
        if levels is None:
            return f"Local controller {self._node_id} does not support this feature." if level else f"Feature {name} not found."
        if not levels.least <= level <= levels.most:
            return f"Local controller {self._node_id} only supports versions {levels}"
        current = self.level(name)
        if level < current and upgrade_type == UpgradeType.UPGRADE:
            return (
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
            )
        if level > current and upgrade_type != UpgradeType.UPGRADE:
            return "Can't downgrade to a newer version."
        return None


def supported_features(config: BrokerConfig) -> Mapping[str, Levels]:
    """Returns all supported features.

    A broker that hides versions of its APIs is without the levels that need them, or clients would look for what is hidden.
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
    """Whether an API is not served in a version; None if nothing of it is hidden."""
    return limit is not None and (limit == "none" or int(limit) < version)
