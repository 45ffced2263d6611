"""The store of what a member of a cluster does not store by itself: settings of groups, which do not exist in a cluster with
ZooKeeper, and levels of features, which the controller stores.

Source: kafka.server.FinalizedFeatureChangeListener of Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping

from wirekafka.errors import ErrorCode, KafkaError


class NoOwnSettings:
    """A `GroupConfigStore` and `FeatureStore` that refuses changes.

    Attributes:
        feature_levels: the finalized levels, which `ClusterFeatures.follow` replaces.
        features_epoch: the version of the znode /feature.
    """

    def __init__(self) -> None:
        self.group_configs: Mapping[str, Mapping[str, str]] = {}
        self.feature_levels: Mapping[str, int] = {}
        self.features_epoch = 0

    def put_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Refuses the settings of a group.

        Raises:
            KafkaError: INVALID_REQUEST.
        """
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Groups have no settings in a cluster with ZooKeeper.")

    def put_features(self, levels: Mapping[str, int], epoch: int) -> None:
        """Refuses levels of features.

        Raises:
            KafkaError: UNSUPPORTED_VERSION.
        """
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The controller changes features.")
