"""The messages by which brokers use the state of share groups: InitializeShareGroupState, ReadShareGroupState,
WriteShareGroupState, DeleteShareGroupState and ReadShareGroupStateSummary (KIP-932).

A request has the partitions of one group, by topic, and its response has a result for each of them.
"""

from __future__ import annotations

from typing import Annotated

from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Int8, Int16, Int32, Int64, Message, NullableString, String, Uuid, nullable, since


class StateBatch(Message):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class PartitionResult(Message):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None


class TopicResult(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[PartitionResult] = []


class InitializePartition(Message):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    start_offset: Int64 = 0


class InitializeTopic(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[InitializePartition] = []


class InitializeShareGroupStateRequest(Message):
    group_id: String = ""
    topics: list[InitializeTopic] = []


class InitializeShareGroupStateResponse(Message):
    results: list[TopicResult] = []


class ReadPartition(Message):
    partition: Int32 = 0
    leader_epoch: Int32 = 0


class ReadTopic(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[ReadPartition] = []


class ReadShareGroupStateRequest(Message):
    group_id: String = ""
    topics: list[ReadTopic] = []


class ReadPartitionResult(Message):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    state_epoch: Int32 = 0
    start_offset: Int64 = 0
    state_batches: list[StateBatch] = []


class ReadTopicResult(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[ReadPartitionResult] = []


class ReadShareGroupStateResponse(Message):
    results: list[ReadTopicResult] = []


class WritePartition(Message):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, since(1)] = -1
    state_batches: list[StateBatch] = []


class WriteTopic(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[WritePartition] = []


class WriteShareGroupStateRequest(Message):
    group_id: String = ""
    topics: list[WriteTopic] = []


class WriteShareGroupStateResponse(Message):
    results: list[TopicResult] = []


class DeletePartition(Message):
    partition: Int32 = 0


class DeleteTopic(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[DeletePartition] = []


class DeleteShareGroupStateRequest(Message):
    group_id: String = ""
    topics: list[DeleteTopic] = []


class DeleteShareGroupStateResponse(Message):
    results: list[TopicResult] = []


class ReadShareGroupStateSummaryRequest(Message):
    group_id: String = ""
    topics: list[ReadTopic] = []


class SummaryPartitionResult(Message):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, since(1)] = -1


class SummaryTopicResult(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[SummaryPartitionResult] = []


class ReadShareGroupStateSummaryResponse(Message):
    results: list[SummaryTopicResult] = []


INITIALIZE_SHARE_GROUP_STATE = RequestType(
    83, InitializeShareGroupStateRequest, InitializeShareGroupStateResponse, range(1), flexible_since=0
)
READ_SHARE_GROUP_STATE = RequestType(84, ReadShareGroupStateRequest, ReadShareGroupStateResponse, range(1), flexible_since=0)
WRITE_SHARE_GROUP_STATE = RequestType(85, WriteShareGroupStateRequest, WriteShareGroupStateResponse, range(2), flexible_since=0)
DELETE_SHARE_GROUP_STATE = RequestType(
    86, DeleteShareGroupStateRequest, DeleteShareGroupStateResponse, range(1), flexible_since=0
)
READ_SHARE_GROUP_STATE_SUMMARY = RequestType(
    87, ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse, range(2), flexible_since=0
)
