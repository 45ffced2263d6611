"""ConsumerGroupHeartbeat: a member of a consumer group joins, stays or leaves, and gets its assignment (KIP-848).

Behaviour:
    A client joins with epoch 0 and leaves with epoch -1. A static member that leaves with epoch -2 keeps its assignment for the
    session timeout. Other heartbeats contain only what has changed, which is mostly nothing. The response has the member's epoch,
    and its assignment if that has changed. The member revokes the partitions that are not in the assignment, and reports the
    partitions that it still owns. It then gets the partitions that other members have revoked.
    The broker computes the assignment with the assignor from `group.consumer.assignors` that most members ask for. Two
    assignments of a group are at least `group.consumer.assignment.interval.ms` apart. A member is removed if it sends no
    heartbeat for `group.consumer.session.timeout.ms`, or does not revoke its partitions within its rebalance timeout.
    A classic group with members becomes a consumer group when a member joins by this API (`group.consumer.migration.policy`).
    The errors are INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION; GROUP_ID_NOT_FOUND, also for a classic group
    that cannot become a consumer group; GROUP_MAX_SIZE_REACHED (`group.consumer.max.size`); UNKNOWN_MEMBER_ID,
    FENCED_MEMBER_EPOCH; UNRELEASED_INSTANCE_ID if another member has the instance id; FENCED_INSTANCE_ID if another member has
    taken the instance id over; COORDINATOR_NOT_AVAILABLE if the disk is full. The error is UNSUPPORTED_VERSION if
    `group.coordinator.rebalance.protocols` lacks `consumer`, or the feature group.version is off.

Versions:
    0. The broker generates a member id for a member that joins without one.
    1. Members generate their ids (KIP-1082), and may subscribe by a regular expression, which the broker evaluates with RE2.

Differs from Apache Kafka:
    A new regular expression is evaluated at once, and the first response has the member's partitions. Apache Kafka evaluates it
    in the background, and the second response has the partitions. RE2 is Google's own library; Apache Kafka has its port to Java.
    `group.consumer.assignors` accepts the two assignors of Apache Kafka, and no classes of users.
    A classic group that cannot be converted gets GROUP_ID_NOT_FOUND in every case. Apache Kafka answers UNKNOWN_SERVER_ERROR if a
    length in an assignment is wrong, or two members have the same partition.
    A classic group whose members are changing their assignor is converted. Apache Kafka answers UNKNOWN_SERVER_ERROR until the
    rebalance is over.
    A consumer group becomes a classic group again even if its members' metadata cannot be read. In Apache Kafka the last member
    that uses the consumer protocol can then neither leave nor expire.

Source: GroupCoordinatorService.consumerGroupHeartbeat, KafkaApis.handleConsumerGroupHeartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat
from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import READ, Operation, Resource
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.types import Int16, Int32, Message, NullableString, String, Uuid, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 1


class HeartbeatTopicPartitions(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[Int32] = []


class ConsumerGroupHeartbeatRequest(Message):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: Annotated[NullableString, nullable(0)] = None
    rack_id: Annotated[NullableString, nullable(0)] = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: Annotated[list[String] | None, nullable(0)] = None
    subscribed_topic_regex: Annotated[NullableString, since(1), nullable(1)] = None
    server_assignor: Annotated[NullableString, nullable(0)] = None
    topic_partitions: Annotated[list[HeartbeatTopicPartitions] | None, nullable(0)] = None


class HeartbeatAssignment(Message):
    topic_partitions: list[HeartbeatTopicPartitions] = []


class ConsumerGroupHeartbeatResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    member_id: Annotated[NullableString, nullable(0)] = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Annotated[HeartbeatAssignment | None, nullable(0)] = None


@serves(68, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, versions=range(2), flexible_since=0)
def consumer_group_heartbeat(broker: Broker, call: Call[ConsumerGroupHeartbeatRequest]) -> ConsumerGroupHeartbeatResponse:
    """Handles the heartbeat of one member."""
    try:
        call.authorize(READ, Resource.group(call.request.group_id))
        for topic in call.request.subscribed_topic_names or ():
            call.authorize(Operation.DESCRIBE, Resource.topic(topic))
        result = broker.consumer_groups.heartbeat(_heartbeat_of(call))
    except KafkaError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    return ConsumerGroupHeartbeatResponse(
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=None if result.assignment is None else _assignment_of(result.assignment),
    )


def _heartbeat_of(call: Call[ConsumerGroupHeartbeatRequest]) -> ConsumerHeartbeat:
    request = call.request
    return ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=call.client_id or "",
        client_host=f"/{call.client.host}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=None if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        subscribed_topic_names=request.subscribed_topic_names,
        subscribed_topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _owned_of(request.topic_partitions),
        is_member_id_required=call.version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED,
    )


def _owned_of(topics: list[HeartbeatTopicPartitions]) -> dict[bytes, list[int]]:
    owned: dict[bytes, list[int]] = {}
    for topic in topics:
        owned.setdefault(topic.topic_id, []).extend(topic.partitions)
    return owned


def _assignment_of(partitions: Partitions) -> HeartbeatAssignment:
    topics = [HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(owned)) for topic_id, owned in partitions.items()]
    return HeartbeatAssignment(topic_partitions=topics)
