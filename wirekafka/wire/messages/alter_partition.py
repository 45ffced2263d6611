"""The messages of AlterPartition: the leader of partitions asks the controller to change their in-sync replicas (KIP-497).

Versions:
    0: topics by name. 1: `leader_recovery_state` (KIP-704). 2: topics by id (KIP-841). 3: the broker epochs of the in-sync
    replicas (KIP-903).

Source: AlterPartitionRequest.json, AlterPartitionResponse.json of Kafka 3.9.
"""

from __future__ import annotations

from typing import Annotated

from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Int8, Int16, Int32, Int64, Message, String, Uuid, since, until


class BrokerState(Message):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class AlterPartitionPartition(Message):
    partition_index: Int32 = 0
    leader_epoch: Int32 = 0
    new_isr: Annotated[list[Int32], until(2)] = []
    new_isr_with_epochs: Annotated[list[BrokerState], since(3)] = []
    leader_recovery_state: Annotated[Int8, since(1)] = 0
    partition_epoch: Int32 = 0


class AlterPartitionTopic(Message):
    topic_name: Annotated[String, until(1)] = ""
    topic_id: Annotated[Uuid, since(2)] = ZERO_TOPIC_ID
    partitions: list[AlterPartitionPartition] = []


class AlterPartitionRequest(Message):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[AlterPartitionTopic] = []


class AlterPartitionPartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = []
    leader_recovery_state: Annotated[Int8, since(1)] = 0
    partition_epoch: Int32 = 0


class AlterPartitionTopicResponse(Message):
    topic_name: Annotated[String, until(1)] = ""
    topic_id: Annotated[Uuid, since(2)] = ZERO_TOPIC_ID
    partitions: list[AlterPartitionPartitionResponse] = []


class AlterPartitionResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[AlterPartitionTopicResponse] = []


ALTER_PARTITION = RequestType(56, AlterPartitionRequest, AlterPartitionResponse, range(4), flexible_since=0)
