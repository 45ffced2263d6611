"""UpdateFeatures: changes the levels of features, such as transaction.version, for the whole cluster.

Behaviour:
    All levels change or none: an error of one feature is the error of the whole request. Level 0 turns a feature off. A request
    that lowers a level must say so; safe and unsafe downgrades are the same, because no level loses data. The new levels are on
    disk and in effect when the response is sent, and ApiVersions reports them with a greater epoch. If a request names a feature
    twice, the last update counts, as in Apache Kafka.
    With transaction.version below 2, clients use transactions v1, which need AddPartitionsToTxn, and so does the coordinator for
    transactions that it aborts itself. With level 0, its records have the version that Apache Kafka wrote before 4.0.
    With group.version 0, ConsumerGroupHeartbeat and ConsumerGroupDescribe answer UNSUPPORTED_VERSION. With share.version 0, so do
    the APIs of share groups, and members lose their share sessions.
    In a cluster, the controller changes the levels if all registered brokers support them. The levels are in ZooKeeper and in
    effect on the controller's broker when the response is sent; after `timeout_ms` the error is FEATURE_UPDATE_FAILED. Other
    members answer NOT_CONTROLLER.

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

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.controller_events import enter, require_controller
from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import FeatureUpdate, UpgradeType
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Message, NullableString, String, nullable, since, until

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.controller.local_controller import LocalController


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
def update_features(broker: Broker, call: Call[UpdateFeaturesRequest]) -> UpdateFeaturesResponse | Pending[Any]:
    """Answers one UpdateFeatures request.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED; NOT_CONTROLLER; KAFKA_STORAGE_ERROR.
    """
    request = call.request
    call.authorize(Operation.ALTER, CLUSTER)
    updates = [FeatureUpdate(each.feature, each.max_version_level, each.upgrade_type) for each in request.feature_updates]
    if broker.member is not None:
        return _update_in_cluster(broker, require_controller(broker.member), request, updates)
    try:
        broker.topics.features.update(updates, validate_only=request.validate_only)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
            raise
        return _refusal(error)
    return _success(updates)


def _refusal(error: KafkaError) -> UpdateFeaturesResponse:
    message = error.message
    if error.code is ErrorCode.INVALID_UPDATE_VERSION:
        message = f"The update failed for all features since the following feature had an error: {message}"
    return UpdateFeaturesResponse(error_code=error.code, error_message=message)


def _success(updates: Sequence[FeatureUpdate]) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(
        error_message=None,
        results=[UpdatableFeatureResult(feature=update.name, error_message=ErrorCode.NONE.name) for update in updates],
    )


def _update_in_cluster(
    broker: Broker, controller: LocalController, request: UpdateFeaturesRequest, updates: Sequence[FeatureUpdate]
) -> Pending[Any]:
    """Lets the controller of this broker change the levels, and waits until this broker follows them.

    Source: KafkaApis.handleUpdateFeatures, KafkaController.processFeatureUpdates.
    """
    from wirekafka.controller import features

    def answer(outcome: int | KafkaError | None) -> UpdateFeaturesResponse | Pending[UpdateFeaturesResponse]:
        if isinstance(outcome, KafkaError):
            return _refusal(outcome)
        if outcome is None:
            return _success(updates)
        return _follow(broker, outcome, request.timeout_ms).map(
            lambda is_followed: _success(updates) if is_followed else _refusal(KafkaError(ErrorCode.FEATURE_UPDATE_FAILED))
        )

    changed = enter(
        controller,
        lambda context, batch: features.update_features(context, updates, validate_only=request.validate_only),
    )
    return changed.map(answer)


def _follow(broker: Broker, epoch: int, timeout_ms: int) -> Pending[bool]:
    """Waits until this broker follows the features of an epoch; the result is False if it does not in time."""
    features = broker.topics.features

    def end() -> None:
        timer.cancel()
        if look in features.on_change:
            features.on_change.remove(look)

    def look() -> None:
        if features.epoch >= epoch:
            end()
            followed.complete(True)

    def give_up() -> None:
        end()
        followed.complete(False)

    followed: Pending[bool] = Pending(on_abandon=end)
    timer = broker.clock.call_later(max(0, timeout_ms), give_up)
    features.on_change.append(look)
    look()
    return followed
