"""InitializeShareGroupState: gives share partitions a state, or a new start offset.

Behaviour:
    The coordinator of a share group sends it to the brokers that lead the partitions of `__share_group_state`. A share partition
    that has a state of a later state epoch gets FENCED_STATE_EPOCH. A start offset of -1 leaves the decision to the first fetch.

Versions:
    0: as described (KIP-932).

Differs from Apache Kafka:
    A repeated request without a start offset, in the same state epoch, changes nothing. Apache Kafka resets the state.

Source: KafkaApis.handleInitializeShareGroupStateRequest, ShareCoordinatorShard.initializeState.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves_type
from wirekafka.api.share_state_requests import answer_each
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import KafkaError
from wirekafka.wire.messages.share_group_state import (
    INITIALIZE_SHARE_GROUP_STATE,
    InitializePartition,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    PartitionResult,
    TopicResult,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(INITIALIZE_SHARE_GROUP_STATE)
def initialize_share_group_state(broker: Broker, call: Call[InitializeShareGroupStateRequest]) -> Any:
    """Initializes each share partition of the request."""

    def act(key: ShareKey, asked: InitializePartition) -> PartitionResult:
        start_offset = asked.start_offset if asked.start_offset >= 0 else None
        broker.share_groups.coordinator.initialize(key, asked.state_epoch, start_offset)
        return PartitionResult(partition=key.partition)

    return answer_each(broker, call, act, topic_result, refused, lambda each: InitializeShareGroupStateResponse(results=each))


def topic_result(topic_id: bytes, partitions: list[PartitionResult]) -> TopicResult:
    """Returns the results of one topic."""
    return TopicResult(topic_id=topic_id, partitions=partitions)


def refused(partition: int, error: KafkaError) -> PartitionResult:
    """Returns the result of a partition whose operation has failed."""
    return PartitionResult(partition=partition, error_code=error.code, error_message=error.message)
