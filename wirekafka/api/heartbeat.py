"""Heartbeat: keeps the session of a member alive, and tells the member to join again in a rebalance.

Behaviour:
    The heartbeat restarts the member's session timeout. REBALANCE_IN_PROGRESS tells the member to send JoinGroup. While the
    members wait for their assignments, the response has no error. The errors are INVALID_GROUP_ID for an empty group id,
    UNKNOWN_MEMBER_ID for a group or member that does not exist, ILLEGAL_GENERATION for a generation that is not the current one,
    and FENCED_INSTANCE_ID if another member has taken the instance id over.

Versions:
    0: as described. 1: `throttle_time_ms`. 2: as 1 (KIP-219). 3: static members (KIP-345). 4: flexible (KIP-482).

Differs from Apache Kafka:
    Nothing.

Source: GroupMetadataManager.classicGroupHeartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups import requests
from wirekafka.metadata.operations import READ, Resource
from wirekafka.wire.types import Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class HeartbeatRequest(Message):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[NullableString, since(3), nullable(3)] = None


class HeartbeatResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0


@serves(12, HeartbeatRequest, HeartbeatResponse, versions=range(5), flexible_since=4)
def heartbeat(broker: Broker, call: Call[HeartbeatRequest]) -> HeartbeatResponse:
    """Keeps a member's session alive."""
    request = call.request
    call.authorize(READ, Resource.group(request.group_id))
    beat = requests.HeartbeatRequest(request.group_id, request.member_id, request.generation_id, request.group_instance_id)
    return HeartbeatResponse(error_code=broker.groups.heartbeat(beat))
