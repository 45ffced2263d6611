"""ReadShareGroupState: reads the state of share partitions, for the leader of the partitions with the records.

Behaviour:
    A leader epoch that is greater than the known one is stored, and from then on earlier leaders get FENCED_LEADER_EPOCH. A share
    partition without state gets INVALID_REQUEST.

Versions:
    0: as described (KIP-932).

Differs from Apache Kafka:
    Nothing.

Source: KafkaApis.handleReadShareGroupStateRequest, ShareCoordinatorShard.readStateAndMaybeUpdateLeaderEpoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves_type
from wirekafka.api.share_state_requests import answer_each
from wirekafka.coordinator.share_state.operations import to_batches
from wirekafka.coordinator.share_state.records import NO_OFFSET, ShareKey
from wirekafka.errors import KafkaError
from wirekafka.wire.messages.share_group_state import (
    READ_SHARE_GROUP_STATE,
    ReadPartition,
    ReadPartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadTopicResult,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(READ_SHARE_GROUP_STATE)
def read_share_group_state(broker: Broker, call: Call[ReadShareGroupStateRequest]) -> Any:
    """Reads the state of each share partition of the request."""

    def act(key: ShareKey, asked: ReadPartition) -> ReadPartitionResult:
        state = broker.share_groups.coordinator.read(key, asked.leader_epoch)
        return ReadPartitionResult(
            partition=key.partition,
            state_epoch=state.state_epoch,
            start_offset=NO_OFFSET if state.start_offset is None else state.start_offset,
            state_batches=to_batches(state.batches),
        )

    return answer_each(broker, call, act, _topic_result, _refused, lambda results: ReadShareGroupStateResponse(results=results))


def _topic_result(topic_id: bytes, partitions: list[ReadPartitionResult]) -> ReadTopicResult:
    return ReadTopicResult(topic_id=topic_id, partitions=partitions)


def _refused(partition: int, error: KafkaError) -> ReadPartitionResult:
    return ReadPartitionResult(partition=partition, error_code=error.code, error_message=error.message)
