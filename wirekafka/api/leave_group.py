from __future__ import annotations

from typing import Annotated

from wirekafka.wire.types import Message, Int16, Int32, NullableString, String, nullable, since, until

# LeaveGroup: key 13, versions 0-5, flexible since 4


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
