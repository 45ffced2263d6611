"""The messages of Produce."""

from __future__ import annotations

from typing import Annotated

from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.types import Int16, Int32, Int64, Message, NullableString, Records, String, Uuid, nullable, since, tag, until


class PartitionProduceData(Message):
    index: Int32 = 0
    records: Annotated[Records, nullable(0)] = None


class TopicProduceData(Message):
    name: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_TOPIC_ID
    partition_data: list[PartitionProduceData] = []


class ProduceRequest(Message):
    transactional_id: Annotated[NullableString, since(3), nullable(3)] = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []


class BatchIndexAndErrorMessage(Message):
    batch_index: Int32 = 0
    batch_index_error_message: Annotated[NullableString, nullable(8)] = None


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Message):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Annotated[Int64, since(2)] = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], since(8)] = []
    error_message: Annotated[NullableString, since(8), nullable(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, tag(0, since=10)] = None


class TopicProduceResponse(Message):
    name: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_TOPIC_ID
    partition_responses: list[PartitionProduceResponse] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[NullableString, nullable(10)] = None


class ProduceResponse(Message):
    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    node_endpoints: Annotated[list[NodeEndpoint], tag(0, since=10)] = []
