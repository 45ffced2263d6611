"""LeaveGroup: members leave, or an administrator removes members.

Behaviour:
    Members are removed at once, and the group rebalances without them. A request may name a static member by its instance id
    alone. A client that got its member id with MEMBER_ID_REQUIRED and has not joined yet can leave too. Waiting requests of a
    removed member get UNKNOWN_MEMBER_ID. The errors are INVALID_GROUP_ID for the whole request, and UNKNOWN_MEMBER_ID or
    FENCED_INSTANCE_ID for each member. A group that does not exist has no members.

Versions:
    0: one member, by its id. 1: `throttle_time_ms`. 2: as 1 (KIP-219). 3: several members, by id or instance id, each with its
    own error (KIP-345). 4: flexible. 5: the reason for leaving, which is logged (KIP-800).

Differs from Apache Kafka:
    Nothing.

Source: GroupMetadataManager.classicGroupLeave, LeaveGroupRequest, LeaveGroupResponse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups.requests import LeavingMember
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.wire.types import Int16, Int32, Message, NullableString, String, nullable, since, until

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_SEVERAL_MEMBERS = 3


class MemberIdentity(Message):
    member_id: String = ""
    group_instance_id: Annotated[NullableString, nullable(3)] = None
    reason: Annotated[NullableString, since(5), nullable(5)] = None


class LeaveGroupRequest(Message):
    group_id: String = ""
    member_id: Annotated[String, until(2)] = ""
    members: Annotated[list[MemberIdentity], since(3)] = []


class MemberResponse(Message):
    member_id: String = ""
    group_instance_id: Annotated[NullableString, nullable(3)] = ""
    error_code: Int16 = 0


class LeaveGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], since(3)] = []


@serves(13, LeaveGroupRequest, LeaveGroupResponse, versions=range(6), flexible_since=4)
def leave_group(broker: Broker, call: Call[LeaveGroupRequest]) -> LeaveGroupResponse:
    """Removes members; until version 2 a request names one member, whose error is the error of the response."""
    request = call.request
    call.authorize(Operation.READ, Resource.group(request.group_id))
    if call.version < FIRST_VERSION_WITH_SEVERAL_MEMBERS:
        result = broker.groups.leave(request.group_id, [LeavingMember(request.member_id)])
        return LeaveGroupResponse(error_code=result.error or result.members[0])
    leaving = [LeavingMember(member.member_id, member.group_instance_id, member.reason) for member in request.members]
    result = broker.groups.leave(request.group_id, leaving)
    if result.error:
        return LeaveGroupResponse(error_code=result.error)
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)
            for member, error in zip(request.members, result.members, strict=True)
        ]
    )
