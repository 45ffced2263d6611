"""The store of what a member of a cluster of Apache Kafka 3.9 does not have: settings of groups, and features.

While a broker of Apache Kafka is a member, no feature may be on: it exits when it finds a feature that it does not know. So there
are no groups of the newer protocols (KIP-848, KIP-932), which have settings, and transactions are those of version 1.

Source: kafka.server.FinalizedFeatureChangeListener of Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping

from wirekafka.errors import ErrorCode, KafkaError


class NoOwnSettings:
    """A `GroupConfigStore` and `FeatureStore` that is empty and stays empty.

    Attributes:
        features_epoch: the version of the empty znode /feature, as brokers of Apache Kafka report it.
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
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "There are no features in a cluster with ZooKeeper.")
