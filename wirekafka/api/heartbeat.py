from __future__ import annotations

from typing import Annotated

from wirekafka.wire.types import Message, Int16, Int32, NullableString, String, nullable, since

# Heartbeat: key 12, versions 0-4, flexible since 4


class HeartbeatRequest(Message):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[NullableString, since(3), nullable(3)] = None


class HeartbeatResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0
