"""DeleteRecords: moves the log start offset of partitions forward.

Behaviour:
    No client can read the records before the offset after the response is sent; retention deletes their segments later. Offset -1
    stands for the high watermark. An offset after the high watermark gets OFFSET_OUT_OF_RANGE; an offset before the log start
    offset changes nothing. A topic with the cleanup policy `compact` alone gets POLICY_VIOLATION, an internal topic
    INVALID_TOPIC_EXCEPTION. The low watermark in the response is the least log start offset of all live replicas. The response
    waits until it has reached the offset, or `timeout_ms` have passed: REQUEST_TIMED_OUT.

Versions:
    0: as described (KIP-107). 1: as 0 (KIP-219). 2: flexible.

Differs from Apache Kafka:
    A partition that is deleted while the request waits gets NOT_LEADER_OR_FOLLOWER, as one that another broker leads. Apache
    Kafka answers UNKNOWN_TOPIC_OR_PARTITION.

Source: KafkaApis.handleDeleteRecordsRequest, ReplicaManager.deleteRecords, kafka.server.DelayedDeleteRecords.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import INTERNAL_TOPICS
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Int16, Int32, Int64, Message, String

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.replication.delayed_deletion import Deleted

NO_LOW_WATERMARK = -1
HIGH_WATERMARK = -1
"""The offset that stands for the high watermark."""


class DeleteRecordsPartition(Message):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Message):
    name: String = ""
    partitions: list[DeleteRecordsPartition] = []


class DeleteRecordsRequest(Message):
    topics: list[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Message):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Message):
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = []


class DeleteRecordsResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = []


@serves(21, DeleteRecordsRequest, DeleteRecordsResponse, versions=range(3), flexible_since=2)
def delete_records(broker: Broker, call: Call[DeleteRecordsRequest]) -> DeleteRecordsResponse | Pending[Any]:
    """Answers for each partition by itself."""
    return broker.slices.run(_deletion(broker, call))


def _deletion(broker: Broker, call: Call[DeleteRecordsRequest]) -> Work[DeleteRecordsResponse | Pending[Any]]:
    response = DeleteRecordsResponse()
    deleted: list[Deleted] = []
    for asked_topic in call.request.topics:
        result = DeleteRecordsTopicResult(name=asked_topic.name)
        response.topics.append(result)
        for asked in asked_topic.partitions:
            result.partitions.append(_delete(broker, call, asked_topic.name, asked, deleted))
            yield
        yield
    if not deleted:
        return response
    # Imported here, because a broker without other brokers imports nothing of replication.
    from wirekafka.replication.delayed_deletion import DelayedDeletion

    delayed = DelayedDeletion(broker.clock, timeout_ms=call.request.timeout_ms, response=response)
    delayed.wait_for(deleted)
    return delayed.pending


def _delete(
    broker: Broker, call: Call[DeleteRecordsRequest], topic: str, asked: DeleteRecordsPartition, deleted: list[Deleted]
) -> DeleteRecordsPartitionResult:
    """Deletes records from the log of one partition, and notes the deletion if other replicas must follow it."""
    index = asked.partition_index
    try:
        call.authorize(Operation.DELETE, Resource.topic(topic))
        partition = broker.find_partition(topic, index)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        before_offset = partition.log.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
        low_watermark = partition.delete_records(before_offset)
    except KafkaError as error:
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=NO_LOW_WATERMARK, error_code=error.code)
    result = DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark)
    leader = broker.leader_replicas.get(partition)
    if leader is not None:
        deleted.append((leader, before_offset, result))
    return result
