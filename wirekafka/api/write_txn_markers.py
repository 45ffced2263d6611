"""WriteTxnMarkers: ends transactions in the partitions that they wrote to.

Behaviour:
    Coordinators of other brokers would use it; here it is for who ends a transaction that no coordinator knows of any more
    (KIP-664: `kafka-transactions.sh abort`). A marker is written to each partition by itself, to a producer without an open
    transaction too; the partitions of `__consumer_offsets` get it by way of the group coordinator, which takes the offsets
    over or drops them. An epoch below the producer's gives INVALID_PRODUCER_EPOCH, a coordinator epoch below that of the last
    marker TRANSACTION_COORDINATOR_FENCED, a partition that does not exist UNKNOWN_TOPIC_OR_PARTITION.
    A marker without a producer id or an epoch, which nobody has, is an UNKNOWN_SERVER_ERROR. Markers of one producer are
    answered together.

Versions:
    0: as it is (KIP-98). 1: flexible. 2: `transaction_version`: with 2 the marker's epoch is above that of the transaction's
    records (KIP-890).

Differs from Apache Kafka:
    Version 0, which Kafka 4 has dropped, is served.
    A partition whose directory has failed is a KAFKA_STORAGE_ERROR; there it is UNKNOWN_TOPIC_OR_PARTITION.

Source: KafkaApis.handleWriteTxnMarkersRequest, WriteTxnMarkersResponse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.transactions.requests import Marker
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.names import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Int64, Message, String, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class WritableTxnMarkerTopic(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class WritableTxnMarker(Message):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, since(2)] = 0


class WriteTxnMarkersRequest(Message):
    markers: list[WritableTxnMarker] = []


class WritableTxnMarkerPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Message):
    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Message):
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


class WriteTxnMarkersResponse(Message):
    markers: list[WritableTxnMarkerResult] = []


Results = dict[int, dict[str, dict[int, int]]]
"""Error codes by producer id, topic and partition."""


@serves(27, WriteTxnMarkersRequest, WriteTxnMarkersResponse, versions=range(3), flexible_since=1)
def write_txn_markers(broker: Broker, call: Call[WriteTxnMarkersRequest]) -> WriteTxnMarkersResponse:
    """Writes each marker to each of its partitions."""
    results: Results = {}
    broker.purgatory.hold()
    try:
        for asked in call.request.markers:
            by_topic = results.setdefault(asked.producer_id, {})
            for topic in asked.topics:
                by_partition = by_topic.setdefault(topic.name, {})
                for index in topic.partition_indexes:
                    by_partition[index] = _write(broker, call, asked, TopicPartition(topic.name, index))
    finally:
        broker.purgatory.release()
    return WriteTxnMarkersResponse(markers=[_result(producer_id, by_topic) for producer_id, by_topic in results.items()])


def _write(
    broker: Broker, call: Call[WriteTxnMarkersRequest], asked: WritableTxnMarker, topic_partition: TopicPartition
) -> ErrorCode:
    marker = Marker(topic_partition, asked.producer_id, asked.producer_epoch, asked.transaction_result, asked.transaction_version)
    if marker.producer_id == NO_PRODUCER_ID or marker.producer_epoch == NO_PRODUCER_EPOCH:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    try:
        if not call.is_authorized(Operation.ALTER, CLUSTER):
            call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
        broker.markers.write(marker, coordinator_epoch=asked.coordinator_epoch, now_ms=call.now_ms)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def _result(producer_id: int, by_topic: dict[str, dict[int, int]]) -> WritableTxnMarkerResult:
    topics = []
    for name, by_partition in by_topic.items():
        partitions = [
            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code) for index, code in by_partition.items()
        ]
        topics.append(WritableTxnMarkerTopicResult(name=name, partitions=partitions))
    return WritableTxnMarkerResult(producer_id=producer_id, topics=topics)
