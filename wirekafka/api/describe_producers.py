"""DescribeProducers: the producers that have written to a partition, and their open transactions (KIP-664).

Behaviour:
    The response has every idempotent or transactional producer in the partition's producer state: its epoch, its last sequence
    number, the greatest timestamp of its last batch, the epoch of the coordinator that last ended one of its transactions (-1 if
    none), and the first offset of its open transaction (-1 if none). A producer expires `producer.id.expiration.ms` after its
    last batch, unless its transaction is open. A topic or partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, an
    invalid topic name INVALID_TOPIC_EXCEPTION, and a partition whose directory has failed KAFKA_STORAGE_ERROR. In a cluster every
    replica answers, leader or not; a broker without a replica answers NOT_LEADER_OR_FOLLOWER.

Versions:
    0: as described.

Differs from Apache Kafka:
    A topic or partition that is named twice is described once.

Source: KafkaApis.handleDescribeProducersRequest, UnifiedLog.activeProducers.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.metadata.topic_names import check_topic_name
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Int16, Int32, Int64, Message, NullableString, String, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.log.producer import Producer

PRODUCERS_AT_ONCE = 200
"""The number of producers that are described between two yields."""

NO_OFFSET = -1


class TopicRequest(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class DescribeProducersRequest(Message):
    topics: list[TopicRequest] = []


class ProducerState(Message):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    active_producers: list[ProducerState] = []


class TopicResponse(Message):
    name: String = ""
    partitions: list[PartitionResponse] = []


class DescribeProducersResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = []


@serves(61, DescribeProducersRequest, DescribeProducersResponse, versions=range(1), flexible_since=0)
def describe_producers(
    broker: Broker, call: Call[DescribeProducersRequest]
) -> DescribeProducersResponse | Pending[DescribeProducersResponse]:
    """Answers for each partition by itself."""
    return broker.slices.run(_description(broker, call))


def _description(broker: Broker, call: Call[DescribeProducersRequest]) -> Work[DescribeProducersResponse]:
    asked: defaultdict[str, dict[int, None]] = defaultdict(dict)
    for each in call.request.topics:
        asked[each.name].update(dict.fromkeys(each.partition_indexes))
        yield
    responses = []
    for name, indexes in asked.items():
        response = TopicResponse(name=name)
        responses.append(response)
        for index in indexes:
            response.partitions.append((yield from _describe(broker, call, name, index)))
            yield
        yield
    return DescribeProducersResponse(topics=responses)


def _describe(broker: Broker, call: Call[DescribeProducersRequest], name: str, index: int) -> Work[PartitionResponse]:
    try:
        check_topic_name(name)
        call.authorize(Operation.READ, Resource.topic(name))
        partition = broker.topics.find_partition(name, index)
        partition.check_online()
        # Copied here, because an absent log refuses it, and because batches may arrive between two steps.
        producers = tuple(partition.log.producers)
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
    response = PartitionResponse(partition_index=index)
    for first in range(0, len(producers), PRODUCERS_AT_ONCE):
        response.active_producers += map(_state, producers[first : first + PRODUCERS_AT_ONCE])
        yield
    return response


def _state(producer: Producer) -> ProducerState:
    first_offset = producer.transaction_first_offset
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=NO_OFFSET if first_offset is None else first_offset,
    )
