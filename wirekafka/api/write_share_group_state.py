"""WriteShareGroupState: stores changes of share partitions, for the leader of the partitions with the records.

Behaviour:
    A write of an earlier leader gets FENCED_LEADER_EPOCH, and one that was decided before a new start offset was set gets
    FENCED_STATE_EPOCH. A share partition without state gets INVALID_REQUEST. The response is sent when the changes are committed.

Versions:
    0: as described (KIP-932). 1: the number of records from the start offset on that are in a final state.

Differs from Apache Kafka:
    Nothing.

Source: KafkaApis.handleWriteShareGroupStateRequest, ShareCoordinatorShard.writeState.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.initialize_share_group_state import refused, topic_result
from wirekafka.api.registry import Call, serves_type
from wirekafka.api.share_state_requests import answer_each
from wirekafka.coordinator.share_state.batches import StateChange
from wirekafka.coordinator.share_state.operations import from_batches
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.wire.messages.share_group_state import (
    WRITE_SHARE_GROUP_STATE,
    PartitionResult,
    WritePartition,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(WRITE_SHARE_GROUP_STATE)
def write_share_group_state(broker: Broker, call: Call[WriteShareGroupStateRequest]) -> Any:
    """Stores the change of each share partition of the request."""

    def act(key: ShareKey, asked: WritePartition) -> PartitionResult:
        change = StateChange(asked.start_offset, asked.delivery_complete_count, from_batches(asked.state_batches))
        broker.share_groups.coordinator.write(key, asked.state_epoch, asked.leader_epoch, change)
        return PartitionResult(partition=key.partition)

    return answer_each(broker, call, act, topic_result, refused, lambda each: WriteShareGroupStateResponse(results=each))
