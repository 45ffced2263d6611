"""JoinGroup: a client becomes a member of the group's next generation.

Behaviour:
    The response waits until all members have joined, or the longest of their rebalance timeouts is over. A new group waits
    `group.initial.rebalance.delay.ms` for its first members, and as long again after each round in which members joined. Then
    each member gets the generation, the protocol that most members prefer, and the leader. The leader also gets all members.
    Members that have not joined in time are removed, except static members.
    A follower that sends JoinGroup to a stable group without changes gets the current generation. A JoinGroup of the leader
    starts a rebalance.
    A static member that joins without a member id replaces the member with its instance id, which is fenced (FENCED_INSTANCE_ID).
    If the group is stable and its protocol does not change, this starts no rebalance.
    The errors are INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT (outside `group.min.session.timeout.ms` and
    `group.max.session.timeout.ms`), MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL
    (no protocol in common with the members), GROUP_MAX_SIZE_REACHED, and COORDINATOR_NOT_AVAILABLE if the disk is full.

Versions:
    0. The session timeout is also the rebalance timeout.
    1. `rebalance_timeout_ms` (KIP-62).
    2. `throttle_time_ms`. 3: as 2 (KIP-219).
    4. A dynamic member gets its member id with MEMBER_ID_REQUIRED, and joins again with the id (KIP-394).
    5. Static members (KIP-345).
    6. Flexible.
    7. The protocol type in the response (KIP-559); an absent protocol is null instead of empty.
    8. The client's reason for joining, which is logged (KIP-800).
    9. A static leader that joins a stable group again is told that it leads, and that it must skip the assignment (KIP-814).

Differs from Apache Kafka:
    If a member sends JoinGroup while its earlier JoinGroup waits, the earlier one gets REBALANCE_IN_PROGRESS. Apache Kafka never
    answers the earlier one.
    A JoinGroup without protocols does not create a group.
    A client that joins with a group.instance.id and a member id from MEMBER_ID_REQUIRED gets INVALID_REQUEST. Apache Kafka
    answers UNKNOWN_SERVER_ERROR.
    On a full disk the error is COORDINATOR_NOT_AVAILABLE, because this broker stays the coordinator. Apache Kafka takes the
    directory offline and answers NOT_COORDINATOR. After either error clients look the coordinator up and try again.

Source: GroupMetadataManager.classicGroupJoin, JoinGroupRequest, JoinGroupResponse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups.requests import JoinRequest, JoinResult
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.pending import Pending
from wirekafka.wire.types import Bool, Bytes, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_REBALANCE_TIMEOUT = 1
FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4
FIRST_VERSION_WITH_PROTOCOL_TYPE = 7
FIRST_VERSION_WITH_SKIP_ASSIGNMENT = 9


class JoinGroupRequestProtocol(Message):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(Message):
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, since(1)] = -1
    member_id: String = ""
    group_instance_id: Annotated[NullableString, since(5), nullable(5)] = None
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[NullableString, since(8), nullable(8)] = None


class JoinGroupResponseMember(Message):
    member_id: String = ""
    group_instance_id: Annotated[NullableString, since(5), nullable(5)] = None
    metadata: Bytes = b""


class JoinGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, since(2)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[NullableString, since(7), nullable(7)] = None
    protocol_name: Annotated[NullableString, nullable(7)] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, since(9)] = False
    member_id: String = ""
    members: list[JoinGroupResponseMember] = []


@serves(11, JoinGroupRequest, JoinGroupResponse, versions=range(10), flexible_since=6)
def join_group(broker: Broker, call: Call[JoinGroupRequest]) -> Pending[JoinGroupResponse]:
    """Adds the client to its group; the versions differ in what clients understand."""
    request = call.request
    call.authorize(Operation.READ, Resource.group(request.group_id))
    has_rebalance_timeout = call.version >= FIRST_VERSION_WITH_REBALANCE_TIMEOUT
    joined = broker.groups.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            client_id=call.client_id or "",
            client_host=f"/{call.client.host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
            group_instance_id=request.group_instance_id,
            is_member_id_required=call.version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED,
            can_skip_assignment=call.version >= FIRST_VERSION_WITH_SKIP_ASSIGNMENT,
            reason=request.reason,
        )
    )
    return joined.map(_response_since_7 if call.version >= FIRST_VERSION_WITH_PROTOCOL_TYPE else _response_until_6)


def _response_since_7(result: JoinResult) -> JoinGroupResponse:
    response = _response_until_6(result)
    response.protocol_name = result.protocol_name or None
    return response


def _response_until_6(result: JoinResult) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name or "",
        leader=result.leader,
        skip_assignment=result.is_assignment_skipped,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )
