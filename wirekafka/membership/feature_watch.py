"""Watches the finalized features of the cluster in the znode `/feature`.

Differs from Apache Kafka: a broker that runs and finds a feature that it does not support logs an error, and serves the highest
level that it has. Apache Kafka exits. A controller finalizes no level that a registered broker does not support.

Source: kafka.server.FinalizedFeatureChangeListener, kafka.zk.FeatureZNode.
"""

from __future__ import annotations

import structlog

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.metadata.cluster_features import ClusterFeatures, unsupported
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FEATURES_ENABLED, FinalizedFeatures
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.session import Exists, GetData

log = structlog.get_logger(__name__)


class FeatureWatch:
    """Watches the levels of features for one broker.

    Args:
        features: follows the levels in ZooKeeper.
    """

    def __init__(self, zookeeper: RetryingClient, features: ClusterFeatures) -> None:
        self._zookeeper = zookeeper
        self._features = features
        self._hint = zookeeper.hint(paths.FEATURE)

    async def load(self) -> None:
        """Reads the levels for the first time, before the broker registers.

        Raises:
            KafkaError: INVALID_CONFIG, a feature is finalized that this broker does not support.
            MalformedZnodeError: the znode has content that Kafka would not write.
            ZooKeeperError: ZooKeeper refuses a request.
        """
        refused = unsupported(await self._read(), self._features.supported)
        if refused:
            names = ", ".join(f"{name} at level {level}" for name, level in sorted(refused.items()))
            message = f"The cluster of zookeeper.connect has finalized features that this broker does not support: {names}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)

    async def run(self) -> None:
        """Reads the levels after each change, until it is cancelled.

        Raises:
            ZooKeeperError: ZooKeeper refuses a request. `run` may be called again.
        """
        while True:
            # `Exists` also watches a znode that does not exist, and fires for changes of its data.
            await self._zookeeper.ask(Exists(paths.FEATURE, watch=True))
            try:
                refused = unsupported(await self._read(), self._features.supported)
            except MalformedZnodeError as error:
                remedy = f"correct {paths.FEATURE}; until then this broker keeps the levels that it has read before"
                log.error("The znode of the features cannot be read", error=str(error), remedy=remedy)
            else:
                self._warn(refused)
            await self._hint.wait()

    def _warn(self, refused: dict[str, int]) -> None:
        if refused:
            remedy = "stop this broker, or lower the levels; clients take for granted what this broker does not serve"
            log.error("The cluster has finalized features that this broker does not support", levels=refused, remedy=remedy)

    async def _read(self) -> dict[str, int]:
        """Reads the levels, and lets the features follow them; returns the levels."""
        found = await self._zookeeper.find(GetData(paths.FEATURE))
        if found is None:
            self._features.follow({}, 0)
            return {}
        content = FinalizedFeatures.read(found.data)
        levels = dict(content.features) if content.status == FEATURES_ENABLED else {}
        self._features.follow(levels, found.stat.version)
        return levels
