"""DescribeGroups: the state of groups and their members.

Behaviour:
    A stable group is described with its protocol, and its members with metadata and assignment for it; in a rebalance
    there is no protocol and no metadata. A group that does not exist is Dead, and so is one of another type than the classic.
    One that is named twice is described once, lest a small request makes a response of any size.

Versions:
    0. The description. 1: `throttle_time_ms`. 2: as 1 (KIP-219).
    3. What the client may do to the group, if it asks (KIP-430): everything, as in Apache Kafka without an authorizer.
    4. The instance ids of static members (KIP-345).
    5. Flexible.
    6. A group that does not exist is GROUP_ID_NOT_FOUND, with a message (KIP-1043); until then it is Dead without an error.

Differs from Apache Kafka:
    A group that is named twice is described once.

Source: GroupMetadataManager.describeGroups, KafkaApis.handleDescribeGroupsRequest, AclEntry.supportedOperations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups.types import DEAD
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.wire.types import Bool, Bytes, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class DescribeGroupsRequest(Message):
    groups: list[String] = []
    include_authorized_operations: Annotated[Bool, since(3)] = False


class DescribedGroupMember(Message):
    member_id: String = ""
    group_instance_id: Annotated[NullableString, since(4), nullable(4)] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, since(6), nullable(6)] = None
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Annotated[Int32, since(3)] = -2147483648


class DescribeGroupsResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    groups: list[DescribedGroup] = []


@serves(15, DescribeGroupsRequest, DescribeGroupsResponse, versions=range(7), flexible_since=5)
def describe_groups(broker: Broker, call: Call[DescribeGroupsRequest]) -> DescribeGroupsResponse:
    """Describes each of the groups; only a client of version 6 can be told that one does not exist."""
    groups = [_authorized(broker, call, group_id) for group_id in dict.fromkeys(call.request.groups)]
    if call.request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = call.authorized_operations(Resource.group(group.group_id))
    return DescribeGroupsResponse(groups=groups)


def _authorized(broker: Broker, call: Call[DescribeGroupsRequest], group_id: str) -> DescribedGroup:
    try:
        call.authorize(Operation.DESCRIBE, Resource.group(group_id))
        return _described(broker, group_id, call.version >= 6)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)


def _described(broker: Broker, group_id: str, is_not_found_known: bool) -> DescribedGroup:
    found = broker.groups.describe(group_id)
    if found is None:
        missing = DescribedGroup(group_id=group_id, group_state=DEAD)
        if is_not_found_known:
            missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            is_other = broker.groups.has_group(group_id)
            missing.error_message = f"Group {group_id} {'is not a classic group' if is_other else 'not found'}."
        return missing
    return DescribedGroup(
        group_id=group_id,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in found.members
        ],
    )
