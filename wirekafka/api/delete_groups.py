"""DeleteGroups: deletes groups without members, and their committed offsets or their state of share partitions.

Behaviour:
    Each group succeeds or fails by itself. The errors are GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP while the group has members, and
    COORDINATOR_NOT_AVAILABLE if the disk is full. A group that is named twice is deleted and answered once.

Versions:
    0: as described (KIP-229). 1: as 0 (KIP-219). 2: flexible (KIP-482).

Differs from Apache Kafka:
    Nothing.

Source: GroupCoordinatorShard.deleteGroups, KafkaApis.handleDeleteGroupsRequest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Int16, Int32, Message, String

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class DeleteGroupsRequest(Message):
    groups_names: list[String] = []


class DeletableGroupResult(Message):
    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []


@serves(42, DeleteGroupsRequest, DeleteGroupsResponse, versions=range(3), flexible_since=2)
def delete_groups(broker: Broker, call: Call[DeleteGroupsRequest]) -> DeleteGroupsResponse | Pending[Any]:
    """Deletes each group of the request."""
    names = [name for name in call.request.groups_names if call.is_authorized(Operation.DELETE, Resource.group(name))]
    deleting = broker.share_groups.delete_states_elsewhere(names)
    if deleting is None:
        return broker.reply_gate.run_in_slices(broker.slices, lambda: _deletion(broker, call, {}))
    return deleting.map(lambda errors: broker.reply_gate.run_late(broker.slices, lambda: _deletion(broker, call, errors)))


def _deletion(
    broker: Broker, call: Call[DeleteGroupsRequest], errors: Mapping[str, KafkaError | None]
) -> Work[DeleteGroupsResponse]:
    """Deletes the groups, except those whose states on other brokers could not be deleted."""
    results = []
    for name in dict.fromkeys(call.request.groups_names):
        results.append((yield from _delete(broker, call, name, errors)))
        yield
    return DeleteGroupsResponse(results=results)


def _delete(
    broker: Broker, call: Call[DeleteGroupsRequest], group_id: str, errors: Mapping[str, KafkaError | None]
) -> Work[DeletableGroupResult]:
    try:
        call.authorize(Operation.DELETE, Resource.group(group_id))
        refusal = errors.get(group_id)
        if refusal is not None:
            raise refusal
        yield from broker.share_groups.delete_state(group_id, is_deleted_elsewhere=group_id in errors)
        yield from broker.groups.delete_group(group_id)
    except KafkaError as error:
        return DeletableGroupResult(group_id=group_id, error_code=error.code)
    return DeletableGroupResult(group_id=group_id, error_code=ErrorCode.NONE)
