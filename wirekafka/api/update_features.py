"""UpdateFeatures: changes the levels of features, such as transaction.version, for the whole cluster.

Behaviour:
    All levels are changed or none: what is wrong with one is the error of the whole request. 0 switches a feature off. To go
    down, the request must say so; both ways down, safe and unsafe, are the same here, for no level loses anything. The new
    levels are on disk and hold when the answer is sent, and clients see them in ApiVersions, under an epoch that has grown.
    They have effect:
    transaction.version below 2 makes clients use the older transactions, which take AddPartitionsToTxn; what the coordinator
    itself aborts goes by it, and with 0 its records are of the version that Kafka wrote before 4.0.
    group.version 0 refuses ConsumerGroupHeartbeat and ConsumerGroupDescribe with UNSUPPORTED_VERSION, share.version 0 what share
    groups ask for, whose members lose their sessions with it.

Versions:
    0. `allow_downgrade` is of no effect, as in Kafka since it has no ZooKeeper: levels can only be raised.
    1. `upgrade_type` and `validate_only` (KIP-778).
    2. The answer names no features, for all fare alike (KIP-1022).

Differs from Apache Kafka:
    If several features cannot be changed, the error names the first one of the request, in Apache Kafka any of them.
    The only metadata.version is 30. Apache Kafka supports lower ones, but cannot be downgraded from 30 to any of them.
    Features that ApiVersions does not report are refused. `kafka-features.sh upgrade --release-version` asks for all features of
    Apache Kafka, and is therefore refused.

Source: org.apache.kafka.controller.QuorumController.updateFeatures, FeatureControlManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import FeatureUpdate, UpgradeType
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Message, NullableString, String, nullable, since, until

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class FeatureUpdateKey(Message):
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Annotated[Bool, until(0)] = False
    upgrade_type: Annotated[Int8, since(1)] = UpgradeType.UPGRADE.value


class UpdateFeaturesRequest(Message):
    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Annotated[Bool, since(1)] = False


class UpdatableFeatureResult(Message):
    feature: String = ""
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""


class UpdateFeaturesResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    results: Annotated[list[UpdatableFeatureResult], until(1)] = []


@serves(57, UpdateFeaturesRequest, UpdateFeaturesResponse, versions=range(3), flexible_since=0)
def update_features(broker: Broker, call: Call[UpdateFeaturesRequest]) -> UpdateFeaturesResponse:
    """Answers one UpdateFeatures request."""
    request = call.request
    call.authorize(Operation.ALTER, CLUSTER)
    updates = [FeatureUpdate(each.feature, each.max_version_level, each.upgrade_type) for each in request.feature_updates]
    try:
        broker.topics.features.update(updates, validate_only=request.validate_only)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
            raise
        message = f"The update failed for all features since the following feature had an error: {error.message}"
        return UpdateFeaturesResponse(error_code=error.code, error_message=message)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[UpdatableFeatureResult(feature=update.name, error_message=ErrorCode.NONE.name) for update in updates],
    )
