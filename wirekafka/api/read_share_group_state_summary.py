"""ReadShareGroupStateSummary: reads how far share groups are in share partitions.

Behaviour:
    The coordinator of a share group sends it to describe the group's offsets. A share partition without state has the start
    offset -1.

Versions:
    0: as described (KIP-932). 1: the number of records from the start offset on that are in a final state.

Differs from Apache Kafka:
    The leader epoch of the request has no effect.

Source: KafkaApis.handleReadShareGroupStateSummaryRequest, ShareCoordinatorShard.readStateSummary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves_type
from wirekafka.api.share_state_requests import answer_each
from wirekafka.coordinator.share_state.records import NO_COUNT, NO_OFFSET, ShareKey
from wirekafka.errors import KafkaError
from wirekafka.wire.messages.share_group_state import (
    READ_SHARE_GROUP_STATE_SUMMARY,
    ReadPartition,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    SummaryPartitionResult,
    SummaryTopicResult,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(READ_SHARE_GROUP_STATE_SUMMARY)
def read_share_group_state_summary(broker: Broker, call: Call[ReadShareGroupStateSummaryRequest]) -> Any:
    """Reads the progress in each share partition of the request."""

    def act(key: ShareKey, asked: ReadPartition) -> SummaryPartitionResult:
        found = broker.share_groups.coordinator.summarize(key)
        return SummaryPartitionResult(
            partition=key.partition,
            state_epoch=found.state_epoch,
            leader_epoch=found.leader_epoch,
            start_offset=NO_OFFSET if found.start_offset is None else found.start_offset,
            delivery_complete_count=NO_COUNT if found.delivery_complete_count is None else found.delivery_complete_count,
        )

    return answer_each(
        broker, call, act, _topic_result, _refused, lambda results: ReadShareGroupStateSummaryResponse(results=results)
    )


def _topic_result(topic_id: bytes, partitions: list[SummaryPartitionResult]) -> SummaryTopicResult:
    return SummaryTopicResult(topic_id=topic_id, partitions=partitions)


def _refused(partition: int, error: KafkaError) -> SummaryPartitionResult:
    return SummaryPartitionResult(partition=partition, error_code=error.code, error_message=error.message)
