"""UpdateFeatures: changes the levels of features, such as transaction.version, for the whole cluster.

Behaviour:
    All levels change or none: an error of one feature is the error of the whole request. Level 0 turns a feature off. A request
    that lowers a level must say so; safe and unsafe downgrades are the same, because no level loses data. The new levels are on
    disk and in effect when the response is sent, and ApiVersions reports them with a greater epoch.
    With transaction.version below 2, clients use transactions v1, which need AddPartitionsToTxn, and so does the coordinator for
    transactions that it aborts itself. With level 0, its records have the version that Apache Kafka wrote before 4.0.
    With group.version 0, ConsumerGroupHeartbeat and ConsumerGroupDescribe answer UNSUPPORTED_VERSION. With share.version 0, so do
    the APIs of share groups, and members lose their share sessions.
    A member of a cluster answers NOT_CONTROLLER.

Versions:
    0. `allow_downgrade` has no effect, as in Apache Kafka without ZooKeeper: levels can only be raised.
    1. `upgrade_type` and `validate_only` (KIP-778).
    2. The response does not name the features, because all succeed or fail together (KIP-1022).

Differs from Apache Kafka:
    If several features cannot be changed, the error names the first one of the request; Apache Kafka names any of them.
    The only metadata.version is 30. Apache Kafka supports lower ones, but cannot be downgraded from 30 to any of them.
    Features that ApiVersions does not report are refused. `kafka-features.sh upgrade --release-version` asks for all features of
    Apache Kafka, and is therefore refused.

Source: org.apache.kafka.controller.QuorumController.updateFeatures, FeatureControlManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.controller_events import not_controller
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
    if broker.member is not None:
        raise not_controller()
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
