from __future__ import annotations

from typing import Annotated

from wirekafka.wire.types import Message, Bytes, Int16, Int32, NullableString, String, nullable, since

# SyncGroup: key 14, versions 0-5, flexible since 4


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
