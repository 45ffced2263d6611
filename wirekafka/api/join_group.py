from __future__ import annotations

from typing import Annotated

from wirekafka.wire.types import Message, Bool, Bytes, Int16, Int32, NullableString, String, nullable, since

# JoinGroup: key 11, versions 0-9, flexible since 6


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
