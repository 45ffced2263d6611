"""The features of a member of a cluster with ZooKeeper: their levels are in the znode `/feature`, which all brokers follow.

How it works: each broker registers the levels that it supports, and the controller finalizes a level once all registered brokers
support it (KIP-584). `wirekafka.membership.feature_watch` reads the levels here after each change.

Rules of this file:
    A feature is off until its level is finalized. A broker of Apache Kafka 3.9 supports no feature, and exits when it finds one,
    so features are on in clusters of wirekafka alone.
    There is no metadata.version in a cluster with ZooKeeper; `inter.broker.protocol.version` has its place.

Source: kafka.server.{BrokerFeatures, ZkMetadataCache, FinalizedFeatureChangeListener} of Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from wirekafka.config import BrokerConfig
from wirekafka.faults import isolate
from wirekafka.metadata.features import GROUP_VERSION, SHARE_VERSION, TRANSACTION_VERSION, Features, Levels, supported_features
from wirekafka.metadata.no_own_settings import NoOwnSettings

log = structlog.get_logger(__name__)

FEATURES_OF_MEMBERS = (GROUP_VERSION, SHARE_VERSION, TRANSACTION_VERSION)
"""The features that a cluster can finalize, in alphabetical order."""


class ClusterFeatures(Features):
    """The features of a member, whose levels `follow` sets."""

    def __init__(self, config: BrokerConfig) -> None:
        self._followed = NoOwnSettings()
        super().__init__(config, self._followed, features_of_member(config))

    def level(self, name: str) -> int:
        """Returns the finalized level of a feature; 0 if the feature is off, or if this broker does not support it."""
        levels = self.supported.get(name)
        return 0 if levels is None else min(self._followed.feature_levels.get(name, 0), levels.most)

    def follow(self, levels: Mapping[str, int], epoch: int) -> None:
        """Takes over the levels in ZooKeeper, and calls `on_change` if one of them has changed.

        Args:
            levels: the finalized levels; the other features are off.
            epoch: the version of the znode.
        """
        before = self.finalized
        self._followed.feature_levels, self._followed.features_epoch = dict(levels), epoch
        if self.finalized == before:
            return
        log.info("Features have changed", levels=self.finalized, epoch=epoch)
        for callback in tuple(self.on_change):
            with isolate("A change of features could not be handled"):
                callback()


def features_of_member(config: BrokerConfig) -> dict[str, Levels]:
    """Returns the features that a member supports, with their levels."""
    supported = supported_features(config)
    return {name: supported[name] for name in FEATURES_OF_MEMBERS if name in supported}


def unsupported(finalized: Mapping[str, int], supported: Mapping[str, Levels]) -> dict[str, int]:
    """Returns the finalized features that a broker with these supported levels cannot serve, with their levels.

    Source: BrokerFeatures.incompatibleFeatures.
    """
    return {name: level for name, level in finalized.items() if name not in supported or level > supported[name].most}
