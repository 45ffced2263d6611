"""ShareGroupDescribe: the states of share groups, their members and their assignments.

Behaviour:
    Each group succeeds or fails by itself. A group that does not exist or has another type gets GROUP_ID_NOT_FOUND with a
    message, an empty id gets INVALID_GROUP_ID. Partitions of deleted topics are left out.

Versions:
    1: as described (KIP-932).

Differs from Apache Kafka:
    Version 0, of an early preview that Apache Kafka 4 does not serve, is not served.
    A group that is named twice is described once.

Source: GroupCoordinatorService.shareGroupDescribe, ShareGroup.asDescribedGroup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.consumer_group_describe import DescribedAssignment, assignment_of, authorize_topics
from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.metadata.operations import NOT_ASKED, Operation, Resource
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Bool, Int16, Int32, Message, NullableString, String, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.coordinator.groups.share.records import ShareMember


class ShareGroupDescribeRequest(Message):
    group_ids: list[String] = []
    include_authorized_operations: Bool = False


class Member(Message):
    member_id: String = ""
    rack_id: Annotated[NullableString, nullable(0)] = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    assignment: DescribedAssignment = DescribedAssignment()


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = []
    authorized_operations: Int32 = NOT_ASKED


class ShareGroupDescribeResponse(Message):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []


@serves(77, ShareGroupDescribeRequest, ShareGroupDescribeResponse, versions=range(1, 2), flexible_since=0)
def share_group_describe(broker: Broker, call: Call[ShareGroupDescribeRequest]) -> ShareGroupDescribeResponse | Pending[Any]:
    """Describes each group of the request."""
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _description(broker, call))


def _description(broker: Broker, call: Call[ShareGroupDescribeRequest]) -> Work[ShareGroupDescribeResponse]:
    names = dict.fromkeys(call.request.group_ids)
    groups = []
    for name in names:
        groups.append((yield from _described(broker, call, name)))
        yield
    return ShareGroupDescribeResponse(groups=groups)


def _described(broker: Broker, call: Call[ShareGroupDescribeRequest], group_id: str) -> Work[DescribedGroup]:
    group = Resource.group(group_id)
    try:
        call.authorize(Operation.DESCRIBE, group)
        broker.topics.features.require(SHARE_VERSION)
        if not group_id:
            return DescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID)
        found = broker.share_groups.describe(group_id)
        authorize_topics(broker, call, (topic_id for member in found.members for topic_id in member.assigned))
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
    members = yield from collect(_member(broker, member) for member in found.members)
    return DescribedGroup(
        group_id=group_id,
        group_state=found.state,
        group_epoch=found.group_epoch,
        assignment_epoch=found.assignment_epoch,
        assignor_name=broker.share_groups.assignor,
        members=members,
        authorized_operations=(call.authorized_operations(group) if call.request.include_authorized_operations else NOT_ASKED),
    )


def _member(broker: Broker, member: ShareMember) -> Member:
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        assignment=assignment_of(broker, member.assigned),
    )
