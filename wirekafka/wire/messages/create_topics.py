"""The messages of CreateTopics.

Source: CreateTopicsRequest.json, CreateTopicsResponse.json.
"""

from __future__ import annotations

from typing import Annotated

from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Message, NullableString, String, Uuid, nullable, since, tag


class CreatableReplicaAssignment(Message):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = []


class CreatableTopicConfig(Message):
    name: String = ""
    value: Annotated[NullableString, nullable(0)] = ""


class CreatableTopic(Message):
    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(Message):
    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: Annotated[Bool, since(1)] = False


class CreatableTopicConfigs(Message):
    name: String = ""
    value: Annotated[NullableString, nullable(5)] = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatableTopicResult(Message):
    name: String = ""
    topic_id: Annotated[Uuid, since(7)] = ZERO_TOPIC_ID
    error_code: Int16 = 0
    error_message: Annotated[NullableString, since(1), nullable(0)] = ""
    topic_config_error_code: Annotated[Int16, tag(0, since=5)] = 0
    num_partitions: Annotated[Int32, since(5)] = -1
    replication_factor: Annotated[Int16, since(5)] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, since(5), nullable(5)] = []


class CreateTopicsResponse(Message):
    throttle_time_ms: Annotated[Int32, since(2)] = 0
    topics: list[CreatableTopicResult] = []


CREATE_TOPICS = RequestType(19, CreateTopicsRequest, CreateTopicsResponse, range(8), flexible_since=5)
