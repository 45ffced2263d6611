"""The messages of StopReplica: the controller tells a broker to stop replicas of partitions, and perhaps to delete their logs.

Versions:
    0: partitions one by one, `delete_partitions` for all. 1: partitions by topic, `broker_epoch` (KIP-380). 2: flexible.
    3: `delete_partition` and `leader_epoch` for each partition (KIP-570). 4: `is_kraft_controller` (KIP-866).

Source: StopReplicaRequest.json, StopReplicaResponse.json of Kafka 3.9.
"""

from __future__ import annotations

from typing import Annotated

from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Bool, Int16, Int32, Int64, Message, String, since, until


class StopReplicaPartitionV0(Message):
    topic_name: String = ""
    partition_index: Int32 = 0


class StopReplicaTopicV1(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class StopReplicaPartitionState(Message):
    partition_index: Int32 = 0
    leader_epoch: Int32 = -1
    delete_partition: Bool = False


class StopReplicaTopicState(Message):
    topic_name: String = ""
    partition_states: list[StopReplicaPartitionState] = []


class StopReplicaRequest(Message):
    controller_id: Int32 = 0
    is_kraft_controller: Annotated[Bool, since(4)] = False
    controller_epoch: Int32 = 0
    broker_epoch: Annotated[Int64, since(1)] = -1
    delete_partitions: Annotated[Bool, until(2)] = False
    ungrouped_partitions: Annotated[list[StopReplicaPartitionV0], until(0)] = []
    topics: Annotated[list[StopReplicaTopicV1], since(1), until(2)] = []
    topic_states: Annotated[list[StopReplicaTopicState], since(3)] = []


class StopReplicaPartitionError(Message):
    topic_name: String = ""
    partition_index: Int32 = 0
    error_code: Int16 = 0


class StopReplicaResponse(Message):
    error_code: Int16 = 0
    partition_errors: list[StopReplicaPartitionError] = []


STOP_REPLICA = RequestType(5, StopReplicaRequest, StopReplicaResponse, range(5), flexible_since=2)
