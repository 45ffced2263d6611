"""ConsumerGroupHeartbeat: a member of a consumer group joins, stays or leaves, and learns what it may read (KIP-848).

Behaviour:
    With epoch 0 a client joins, with -1 it leaves; a static member leaves with -2 for a while, and finds its partitions when it
    is back. In between it says what is new, most often nothing. The answer has the member's epoch, and its assignment where
    that has changed: the member gives up what is not in it, says so by what it has then, and gets what others have given up.
    The broker assigns: by the assignor that most members ask for of `group.consumer.assignors`, a second after the last time at
    the earliest (`group.consumer.assignment.interval.ms`). A member that is silent for `group.consumer.session.timeout.ms`, or
    does not give up its partitions within its rebalance timeout, is removed.
    A classic group with members becomes a consumer group when a member joins by this API (`group.consumer.migration.policy`).
    Errors: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION; GROUP_ID_NOT_FOUND, also for a classic group that
    cannot become a consumer group; GROUP_MAX_SIZE_REACHED (`group.consumer.max.size`); UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH;
    of static members UNRELEASED_INSTANCE_ID, whose name another has, and FENCED_INSTANCE_ID, from whom another has taken it;
    COORDINATOR_NOT_AVAILABLE when the disk is full. UNSUPPORTED_VERSION if `group.coordinator.rebalance.protocols` is without
    `consumer`, or the feature group.version is switched off.

Versions:
    0. Members are named by the broker, unless they name themselves.
    1. Members name themselves (KIP-1082), and may subscribe by a regular expression, which the broker evaluates with RE2.

Differs from Apache Kafka:
    A new regular expression is looked up at once, and the member has its partitions with the first answer; in Apache Kafka it is
    looked up in the background, and they come with the second. RE2 is Google's own; Apache Kafka has its port to Java.
    `group.consumer.assignors` names no classes of users: there are the two assignors that Apache Kafka brings along.
    A classic group that cannot be converted is GROUP_ID_NOT_FOUND for whatever reason; there it is UNKNOWN_SERVER_ERROR if the
    length of something in an assignment is wrong, or two members have the same partition. One whose members are changing their
    assignor is converted; there it is UNKNOWN_SERVER_ERROR until the rebalance is over.
    A group whose members' metadata cannot be read becomes a classic one again nonetheless; there the member that is the last
    to use the consumer protocol can then neither leave nor expire.

Source: GroupCoordinatorService.consumerGroupHeartbeat, KafkaApis.handleConsumerGroupHeartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat
from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import Operation, Resource
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
    """Takes a member's heartbeat to its group."""
    try:
        call.authorize(Operation.READ, Resource.group(call.request.group_id))
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
