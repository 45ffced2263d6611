from __future__ import annotations

from wirekafka.wire.types import Message, Int16, Int32, String

# DeleteGroups: key 42, versions 0-2, flexible since 2


class DeleteGroupsRequest(Message):
    groups_names: list[String] = []


class DeletableGroupResult(Message):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []
