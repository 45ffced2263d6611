"""SyncGroup: members request their assignments, and the leader sends the assignments of all members.

Behaviour:
    The response waits until the leader's assignments are in the log. Then each member gets its assignment with exactly the
    leader's bytes, or an empty one if the leader has left the member out. In a stable group the response is sent at once. A
    member that sends no SyncGroup within the rebalance timeout is removed.
    The errors are INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS,
    INCONSISTENT_GROUP_PROTOCOL, and COORDINATOR_NOT_AVAILABLE when the disk is full, which also starts a rebalance.

Versions:
    0: as described. 1: `throttle_time_ms`. 2: as 1 (KIP-219). 3: static members (KIP-345). 4: flexible (KIP-482).
    5: the protocol's type and name, which must be the group's (KIP-559).

Differs from Apache Kafka:
    If a member sends SyncGroup while its earlier SyncGroup waits, the earlier one gets REBALANCE_IN_PROGRESS. The waiting
    SyncGroup of a member that is removed gets UNKNOWN_MEMBER_ID. Apache Kafka never answers either.
    If a static member is replaced before it has sent SyncGroup, the group no longer waits for it. Apache Kafka waits for the
    former member id, and rebalances the group when the rebalance timeout is over.
    On a full disk the error is COORDINATOR_NOT_AVAILABLE, because this broker stays the coordinator. Apache Kafka takes the
    directory offline and answers NOT_COORDINATOR. After either error clients look the coordinator up and try again.

Source: GroupMetadataManager.classicGroupSync, SyncGroupRequest.areMandatoryProtocolTypeAndNamePresent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups.requests import SyncRequest, SyncResult
from wirekafka.errors import ErrorCode
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.pending import Pending
from wirekafka.wire.types import Bytes, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_PROTOCOL_NAMES = 5


class SyncGroupRequestAssignment(Message):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(Message):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[NullableString, since(3), nullable(3)] = None
    protocol_type: Annotated[NullableString, since(5), nullable(5)] = None
    protocol_name: Annotated[NullableString, since(5), nullable(5)] = None
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[NullableString, since(5), nullable(5)] = None
    protocol_name: Annotated[NullableString, since(5), nullable(5)] = None
    assignment: Bytes = b""


@serves(14, SyncGroupRequest, SyncGroupResponse, versions=range(6), flexible_since=4)
def sync_group(broker: Broker, call: Call[SyncGroupRequest]) -> SyncGroupResponse | Pending[SyncGroupResponse]:
    """Answers with the member's assignment; a client of version 5 must name the group's protocol."""
    request = call.request
    call.authorize(Operation.READ, Resource.group(request.group_id))
    if call.version >= FIRST_VERSION_WITH_PROTOCOL_NAMES and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    synced = broker.groups.sync(
        SyncRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            generation_id=request.generation_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments={assigned.member_id: assigned.assignment for assigned in request.assignments},
        )
    )
    return synced.map(_response)


def _response(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )
