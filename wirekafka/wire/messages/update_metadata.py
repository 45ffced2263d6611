"""The messages of UpdateMetadata: the controller tells a broker the live brokers and the state of partitions.

Versions:
    0: the address of a broker. 1: endpoints. 2: `rack`. 3: `listener`. 4: `offline_replicas`. 5: partitions by topic,
    `broker_epoch` (KIP-380). 6: flexible. 7: `topic_id` (KIP-516). 8: `is_kraft_controller` and `type` (KIP-866).

Source: UpdateMetadataRequest.json, UpdateMetadataResponse.json of Kafka 3.9.
"""

from __future__ import annotations

from typing import Annotated

from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    String,
    Uuid,
    nullable,
    since,
    tag,
    until,
)


class UpdateMetadataPartitionState(Message):
    topic_name: Annotated[String, until(4)] = ""
    partition_index: Int32 = 0
    controller_epoch: Int32 = 0
    leader: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = []
    zk_version: Int32 = 0
    replicas: list[Int32] = []
    offline_replicas: Annotated[list[Int32], since(4)] = []


class UpdateMetadataTopicState(Message):
    topic_name: String = ""
    topic_id: Annotated[Uuid, since(7)] = ZERO_TOPIC_ID
    partition_states: list[UpdateMetadataPartitionState] = []


class UpdateMetadataEndpoint(Message):
    port: Int32 = 0
    host: String = ""
    listener: Annotated[String, since(3)] = ""
    security_protocol: Int16 = 0


class UpdateMetadataBroker(Message):
    id: Int32 = 0
    v0_host: Annotated[String, until(0)] = ""
    v0_port: Annotated[Int32, until(0)] = 0
    endpoints: Annotated[list[UpdateMetadataEndpoint], since(1)] = []
    rack: Annotated[NullableString, since(2), nullable(0)] = ""


class UpdateMetadataRequest(Message):
    controller_id: Int32 = 0
    is_kraft_controller: Annotated[Bool, since(8)] = False
    type: Annotated[Int8, tag(0, since=8)] = 0
    controller_epoch: Int32 = 0
    broker_epoch: Annotated[Int64, since(5)] = -1
    ungrouped_partition_states: Annotated[list[UpdateMetadataPartitionState], until(4)] = []
    topic_states: Annotated[list[UpdateMetadataTopicState], since(5)] = []
    live_brokers: list[UpdateMetadataBroker] = []


class UpdateMetadataResponse(Message):
    error_code: Int16 = 0


UPDATE_METADATA = RequestType(6, UpdateMetadataRequest, UpdateMetadataResponse, range(9), flexible_since=6)
