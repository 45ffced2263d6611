"""ListGroups: the ids, types and states of all groups.

Behaviour:
    Lists all groups. A group that only stores offsets has an empty protocol type. Filters name states and types in upper or
    lower case; a filter that matches no group gives an empty list.

Versions:
    0: the groups. 1: `throttle_time_ms`. 2: as 1 (KIP-219). 3: flexible. 4: each group's state, and a filter by it (KIP-518).
    5: each group's type, and a filter by it (KIP-848).

Differs from Apache Kafka:
    Streams groups are not served, so none is listed.

Source: GroupMetadataManager.listGroups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.metadata.operations import CLUSTER, Operation, Resource
from wirekafka.wire.types import Int16, Int32, Message, String, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.pending import Pending, Work


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


@serves(16, ListGroupsRequest, ListGroupsResponse, versions=range(6), flexible_since=3)
def list_groups(broker: Broker, call: Call[ListGroupsRequest]) -> ListGroupsResponse | Pending[ListGroupsResponse]:
    """Lists the groups that pass the filters."""
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _listed(broker, call))


def _listed(broker: Broker, call: Call[ListGroupsRequest]) -> Work[ListGroupsResponse]:
    may_list_all = call.is_authorized(Operation.DESCRIBE, CLUSTER)
    response = ListGroupsResponse()
    for group in (yield from broker.groups.list_groups(call.request.states_filter, call.request.types_filter)):
        if may_list_all or call.is_authorized(Operation.DESCRIBE, Resource.group(group.group_id)):
            listed = ListedGroup(
                group_id=group.group_id, protocol_type=group.protocol_type, group_state=group.state, group_type=group.group_type
            )
            response.groups.append(listed)
        yield
    return response
