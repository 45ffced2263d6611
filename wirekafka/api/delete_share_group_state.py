"""DeleteShareGroupState: deletes the state of share partitions.

Behaviour:
    The coordinator of a share group sends it before it deletes the group or its offsets. A share partition without state is no
    error.

Versions:
    0: as described (KIP-932).

Differs from Apache Kafka:
    Nothing.

Source: KafkaApis.handleDeleteShareGroupStateRequest, ShareCoordinatorShard.deleteState.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.initialize_share_group_state import refused, topic_result
from wirekafka.api.registry import Call, serves_type
from wirekafka.api.share_state_requests import answer_each
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.wire.messages.share_group_state import (
    DELETE_SHARE_GROUP_STATE,
    DeletePartition,
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    PartitionResult,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(DELETE_SHARE_GROUP_STATE)
def delete_share_group_state(broker: Broker, call: Call[DeleteShareGroupStateRequest]) -> Any:
    """Deletes the state of each share partition of the request."""

    def act(key: ShareKey, asked: DeletePartition) -> PartitionResult:
        broker.share_groups.coordinator.delete(key)
        return PartitionResult(partition=key.partition)

    return answer_each(broker, call, act, topic_result, refused, lambda each: DeleteShareGroupStateResponse(results=each))
