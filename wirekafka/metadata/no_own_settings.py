"""The store of what a member of a cluster does not store by itself: settings of groups and levels of features, which are in
ZooKeeper. Members follow them there.

Source: kafka.server.FinalizedFeatureChangeListener of Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping

from wirekafka.errors import ErrorCode, KafkaError


class NoOwnSettings:
    """A `GroupConfigStore` and `FeatureStore` of what was read from ZooKeeper.

    Attributes:
        group_configs: the settings of groups, by group id.
        feature_levels: the finalized levels, which `ClusterFeatures.follow` replaces.
        features_epoch: the version of the znode /feature.
    """

    def __init__(self) -> None:
        self.group_configs: dict[str, Mapping[str, str]] = {}
        self.feature_levels: Mapping[str, int] = {}
        self.features_epoch = 0

    def put_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Takes over the settings of a group."""
        if configs:
            self.group_configs[group_id] = configs
        else:
            self.group_configs.pop(group_id, None)

    def put_features(self, levels: Mapping[str, int], epoch: int) -> None:
        """Refuses levels of features.

        Raises:
            KafkaError: UNSUPPORTED_VERSION.
        """
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The controller changes features.")
