from __future__ import annotations

from typing import Annotated

from wirekafka.wire.types import Message, Int16, Int32, String, since

# ListGroups: key 16, versions 0-5, flexible since 3


class ListGroupsRequest(Message):
    states_filter: Annotated[list[String], since(4)] = []
    types_filter: Annotated[list[String], since(5)] = []


class ListedGroup(Message):
    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, since(4)] = ""
    group_type: Annotated[String, since(5)] = ""


class ListGroupsResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = []
