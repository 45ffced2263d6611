"""The messages of LeaderAndIsr: the controller tells a broker which partitions the broker leads or follows.

Versions:
    0: partitions one by one. 1: `is_new`. 2: partitions by topic, `broker_epoch` (KIP-380). 3: `adding_replicas` and
    `removing_replicas` (KIP-455). 4: flexible. 5: `topic_id`, also in the response, and `type` (KIP-516).
    6: `leader_recovery_state` (KIP-704). 7: `is_kraft_controller` (KIP-866).

Source: LeaderAndIsrRequest.json, LeaderAndIsrResponse.json of Kafka 3.9.
"""

from __future__ import annotations

from typing import Annotated

from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Int64, Message, String, Uuid, since, until


class LeaderAndIsrPartitionState(Message):
    topic_name: Annotated[String, until(1)] = ""
    partition_index: Int32 = 0
    controller_epoch: Int32 = 0
    leader: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = []
    partition_epoch: Int32 = 0
    replicas: list[Int32] = []
    adding_replicas: Annotated[list[Int32], since(3)] = []
    removing_replicas: Annotated[list[Int32], since(3)] = []
    is_new: Annotated[Bool, since(1)] = False
    leader_recovery_state: Annotated[Int8, since(6)] = 0


class LeaderAndIsrTopicState(Message):
    topic_name: String = ""
    topic_id: Annotated[Uuid, since(5)] = ZERO_TOPIC_ID
    partition_states: list[LeaderAndIsrPartitionState] = []


class LeaderAndIsrLiveLeader(Message):
    broker_id: Int32 = 0
    host_name: String = ""
    port: Int32 = 0


class LeaderAndIsrRequest(Message):
    controller_id: Int32 = 0
    is_kraft_controller: Annotated[Bool, since(7)] = False
    controller_epoch: Int32 = 0
    broker_epoch: Annotated[Int64, since(2)] = -1
    type: Annotated[Int8, since(5)] = 0
    ungrouped_partition_states: Annotated[list[LeaderAndIsrPartitionState], until(1)] = []
    topic_states: Annotated[list[LeaderAndIsrTopicState], since(2)] = []
    live_leaders: list[LeaderAndIsrLiveLeader] = []


class LeaderAndIsrPartitionError(Message):
    topic_name: Annotated[String, until(4)] = ""
    partition_index: Int32 = 0
    error_code: Int16 = 0


class LeaderAndIsrTopicError(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partition_errors: list[LeaderAndIsrPartitionError] = []


class LeaderAndIsrResponse(Message):
    error_code: Int16 = 0
    partition_errors: Annotated[list[LeaderAndIsrPartitionError], until(4)] = []
    topics: Annotated[list[LeaderAndIsrTopicError], since(5)] = []


LEADER_AND_ISR = RequestType(4, LeaderAndIsrRequest, LeaderAndIsrResponse, range(8), flexible_since=4)
