"""OffsetForLeaderEpoch: the end offset of a leader epoch, by which a consumer detects that its log was truncated.

Behaviour:
    The response has the greatest known epoch up to the requested epoch, and one past its last record; for the current epoch that
    is the log end offset. A requested epoch that is newer than all, or older than the stored ones, gives epoch -1 and offset -1.

Versions:
    0: the end offset (KIP-101). 1: `leader_epoch` (KIP-279). 2: `current_leader_epoch` (KIP-320). 3: `replica_id` (KIP-392).
    4: flexible.

Differs from Apache Kafka:
    Without `zookeeper.connect`, every leader epoch is 0, unless the log came from a cluster.

Source: ReplicaManager.lastOffsetForLeaderEpoch, Partition.lastOffsetForLeaderEpoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.pending import Pending, Work
from wirekafka.wire.messages.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(OFFSET_FOR_LEADER_EPOCH)
def offset_for_leader_epoch(
    broker: Broker, call: Call[OffsetForLeaderEpochRequest]
) -> OffsetForLeaderEpochResponse | Pending[OffsetForLeaderEpochResponse]:
    """Answers for each partition by itself."""
    return broker.slices.run(_ends(broker, call))


def _ends(broker: Broker, call: Call[OffsetForLeaderEpochRequest]) -> Work[OffsetForLeaderEpochResponse]:
    results = []
    for asked_topic in call.request.topics:
        result = OffsetForLeaderTopicResult(topic=asked_topic.topic)
        results.append(result)
        for asked in asked_topic.partitions:
            result.partitions.append(_find_end(broker, call, asked_topic.topic, asked))
            yield
        yield
    return OffsetForLeaderEpochResponse(topics=results)


def _find_end(
    broker: Broker, call: Call[OffsetForLeaderEpochRequest], topic: str, asked: OffsetForLeaderPartition
) -> EpochEndOffset:
    index = asked.partition
    try:
        call.authorize(Operation.DESCRIBE, Resource.topic(topic))
        partition = broker.find_partition(topic, index, asked.current_leader_epoch)
        end = partition.end_offset_for_epoch(asked.leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=index, error_code=error.code)
    if end is None:
        return EpochEndOffset(partition=index)
    return EpochEndOffset(partition=index, leader_epoch=end[0], end_offset=end[1])
