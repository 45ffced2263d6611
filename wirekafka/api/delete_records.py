"""DeleteRecords: moves the log start offset of partitions forward.

Behaviour:
    No client can read the records before the offset after the response is sent; retention deletes their segments later. Offset -1
    stands for the high watermark. An offset after the high watermark gets OFFSET_OUT_OF_RANGE; an offset before the log start
    offset changes nothing. A topic with the cleanup policy `compact` alone gets POLICY_VIOLATION, an internal topic
    INVALID_TOPIC_EXCEPTION. The low watermark in the response is the log start offset.

Versions:
    0: as described (KIP-107). 1: as 0 (KIP-219). 2: flexible.

Differs from Apache Kafka:
    `timeout_ms` has no effect, because the partition has no followers.

Source: KafkaApis.handleDeleteRecordsRequest, ReplicaManager.deleteRecordsOnLocalLog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import INTERNAL_TOPICS
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Int16, Int32, Int64, Message, String

if TYPE_CHECKING:
    from wirekafka.broker import Broker

NO_LOW_WATERMARK = -1


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
def delete_records(broker: Broker, call: Call[DeleteRecordsRequest]) -> DeleteRecordsResponse | Pending[DeleteRecordsResponse]:
    """Answers for each partition by itself."""
    return broker.slices.run(_deletion(broker, call))


def _deletion(broker: Broker, call: Call[DeleteRecordsRequest]) -> Work[DeleteRecordsResponse]:
    results = []
    for asked_topic in call.request.topics:
        result = DeleteRecordsTopicResult(name=asked_topic.name)
        results.append(result)
        for asked in asked_topic.partitions:
            result.partitions.append(_delete(broker, call, asked_topic.name, asked))
            yield
        yield
    return DeleteRecordsResponse(topics=results)


def _delete(
    broker: Broker, call: Call[DeleteRecordsRequest], topic: str, asked: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    index = asked.partition_index
    try:
        call.authorize(Operation.DELETE, Resource.topic(topic))
        partition = broker.find_partition(topic, index)
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        low_watermark = partition.delete_records(asked.offset)
    except KafkaError as error:
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=NO_LOW_WATERMARK, error_code=error.code)
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark)
