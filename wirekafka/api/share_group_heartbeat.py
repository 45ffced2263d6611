"""ShareGroupHeartbeat: a member of a share group joins, stays or leaves, and gets the partitions to fetch from.

Behaviour:
    A member generates its id, joins with epoch 0 and its subscribed topics, stays with the epoch from the last response, and
    leaves with epoch -1. A heartbeat contains only what has changed. The response has the assignment only if it has changed, or
    if the heartbeat names the topics. A partition may be assigned to several members. A member that sends no heartbeat for
    share.session.timeout.ms is removed.
    After UNKNOWN_MEMBER_ID and FENCED_MEMBER_EPOCH the member has to join again. The other errors are GROUP_ID_NOT_FOUND for a
    group that does not exist or has another type, GROUP_MAX_SIZE_REACHED (group.share.max.size), and INVALID_REQUEST for
    malformed heartbeats. While the feature share.version is off, all APIs of share groups answer UNSUPPORTED_VERSION.

Versions:
    1: as described (KIP-932).

Differs from Apache Kafka:
    Version 0, of an early preview that Apache Kafka 4 does not serve, is not served.
    The state of share partitions is written at once, so the first heartbeat of a new group gets an assignment. In Apache Kafka
    the second heartbeat gets it.

Source: KafkaApis.handleShareGroupHeartbeat, GroupCoordinatorService.throwIfShareGroupHeartbeatRequestIsInvalid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.api.share_acknowledge import LONGEST_MEMBER_ID
from wirekafka.coordinator.groups.share.requests import JOIN_EPOCH, LEAVE_EPOCH, ShareHeartbeat
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.types import Int16, Int32, Message, NullableString, String, Uuid, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.pending import Pending, Work


class ShareGroupHeartbeatRequest(Message):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    rack_id: Annotated[NullableString, nullable(0)] = None
    subscribed_topic_names: Annotated[list[String] | None, nullable(0)] = None


class TopicPartitions(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[Int32] = []


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = []


class ShareGroupHeartbeatResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    member_id: Annotated[NullableString, nullable(0)] = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Annotated[Assignment | None, nullable(0)] = None


@serves(76, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse, versions=range(1, 2), flexible_since=0)
def share_group_heartbeat(
    broker: Broker, call: Call[ShareGroupHeartbeatRequest]
) -> ShareGroupHeartbeatResponse | Pending[ShareGroupHeartbeatResponse]:
    """Handles the heartbeat of one member."""
    broker.topics.features.require(SHARE_VERSION)
    request = call.request
    _check(request)
    call.authorize(Operation.READ, Resource.group(request.group_id))
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _heartbeat(broker, call))


def _heartbeat(broker: Broker, call: Call[ShareGroupHeartbeatRequest]) -> Work[ShareGroupHeartbeatResponse]:
    request = call.request
    for topic in request.subscribed_topic_names or ():
        call.authorize(Operation.DESCRIBE, Resource.topic(topic))
        yield
    result = yield from broker.share_groups.heartbeat(
        ShareHeartbeat(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            client_id=call.client_id or "",
            client_host=f"/{call.client.host}",
            rack_id=request.rack_id,
            subscribed_topic_names=request.subscribed_topic_names,
        )
    )
    assignment = None
    if result.assignment is not None:
        assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in result.assignment.items()
            ]
        )
    return ShareGroupHeartbeatResponse(
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=assignment,
    )


def _check(request: ShareGroupHeartbeatRequest) -> None:
    """Raises unless the heartbeat is well-formed.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    if not request.member_id or len(request.member_id) > LONGEST_MEMBER_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    wrong = None
    if not request.member_id.strip():
        wrong = "MemberId can't be empty."
    elif not request.group_id.strip():
        wrong = "GroupId can't be empty."
    elif request.rack_id is not None and not request.rack_id.strip():
        wrong = "RackId can't be empty."
    elif request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        wrong = "SubscribedTopicNames must be set in first request."
    elif request.member_epoch < LEAVE_EPOCH:
        wrong = "MemberEpoch is invalid."
    if wrong is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, wrong)
