"""The znode with the finalized features, which a new controller creates or enables.

Source: kafka.controller.KafkaController (maybeSetupFeatureVersioning, enableFeatureVersioning) of Kafka 3.9; KIP-584.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from wirekafka.config.cluster_table import RELEASES
from wirekafka.controller.context import ControllerContext
from wirekafka.controller.scripts import Script
from wirekafka.controller.settings import ControllerSettings
from wirekafka.controller.writes import multi
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FEATURES_ENABLED, FinalizedFeatures
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.session import Create, Data, GetData, SetData, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)

FIRST_RELEASE_WITH_VERSION_2 = "3.3"
"""From this release on, the znode has no lowest levels."""


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
