"""DescribeGroups: the state of groups and their members.

Behaviour:
    A stable group has its protocol in the response, and its members have their metadata and assignment. During a rebalance the
    protocol and the metadata are empty. A group that does not exist, or is not a classic group, has the state Dead.
    A group that the request names twice is described once, so that a small request cannot ask for a response of any size.

Versions:
    0. The description. 1: `throttle_time_ms`. 2: as 1 (KIP-219).
    3. The operations that the client may do on the group, if the request asks for them (KIP-430).
    4. The instance ids of static members (KIP-345).
    5. Flexible.
    6. A group that does not exist gets GROUP_ID_NOT_FOUND, with a message (KIP-1043); in earlier versions it has no error.

Differs from Apache Kafka:
    A group that is named twice is described once.

Source: GroupMetadataManager.describeGroups, KafkaApis.handleDescribeGroupsRequest, AclEntry.supportedOperations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups.types import DEAD
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Bool, Bytes, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 6


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
def describe_groups(broker: Broker, call: Call[DescribeGroupsRequest]) -> DescribeGroupsResponse | Pending[Any]:
    """Describes each group of the request."""
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _description(broker, call))


def _description(broker: Broker, call: Call[DescribeGroupsRequest]) -> Work[DescribeGroupsResponse]:
    names = dict.fromkeys(call.request.groups)
    return DescribeGroupsResponse(groups=(yield from collect(_authorized(broker, call, name) for name in names)))


def _authorized(broker: Broker, call: Call[DescribeGroupsRequest], group_id: str) -> DescribedGroup:
    resource = Resource.group(group_id)
    try:
        call.authorize(Operation.DESCRIBE, resource)
        group = _described(broker, group_id, call.version >= FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    if call.request.include_authorized_operations and group.error_code == ErrorCode.NONE:
        group.authorized_operations = call.authorized_operations(resource)
    return group


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
