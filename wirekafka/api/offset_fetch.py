from __future__ import annotations

from typing import Annotated

from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.types import Message, Bool, Int16, Int32, Int64, NullableString, String, Uuid, nullable, since, until

# OffsetFetch: key 9, versions 0-10, flexible since 6


class OffsetFetchRequestTopic(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class OffsetFetchRequestTopics(Message):
    name: Annotated[String, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_TOPIC_ID
    partition_indexes: list[Int32] = []


class OffsetFetchRequestGroup(Message):
    group_id: String = ""
    member_id: Annotated[NullableString, since(9), nullable(9)] = None
    member_epoch: Annotated[Int32, since(9)] = -1
    topics: Annotated[list[OffsetFetchRequestTopics] | None, nullable(8)] = []


class OffsetFetchRequest(Message):
    group_id: Annotated[String, until(7)] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, until(7), nullable(2)] = []
    groups: Annotated[list[OffsetFetchRequestGroup], since(8)] = []
    require_stable: Annotated[Bool, since(7)] = False


class OffsetFetchResponsePartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, since(5)] = -1
    metadata: Annotated[NullableString, nullable(0)] = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Message):
    name: String = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponsePartitions(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: Annotated[NullableString, nullable(8)] = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Message):
    name: Annotated[String, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_TOPIC_ID
    partitions: list[OffsetFetchResponsePartitions] = []


class OffsetFetchResponseGroup(Message):
    group_id: String = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: Int16 = 0


class OffsetFetchResponse(Message):
    throttle_time_ms: Annotated[Int32, since(3)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], until(7)] = []
    error_code: Annotated[Int16, since(2), until(7)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], since(8)] = []
