"""ListPartitionReassignments: the partitions whose replicas are being reassigned.

Behaviour:
    The list is empty, because a broker without other brokers reassigns nothing. Topics that do not exist have no error.
    A member of a cluster answers NOT_CONTROLLER.

Versions:
    0: as described (KIP-455).

Differs from Apache Kafka:
    A broker without other brokers reassigns no partition. In a cluster, the controller answers.

Source: ReplicationControlManager.listPartitionReassignments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.controller_events import not_controller
from wirekafka.api.registry import Call, serves
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.wire.types import Int16, Int32, Message, NullableString, String, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class ListPartitionReassignmentsTopics(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class ListPartitionReassignmentsRequest(Message):
    timeout_ms: Int32 = 60000
    topics: Annotated[list[ListPartitionReassignmentsTopics] | None, nullable(0)] = None


class OngoingPartitionReassignment(Message):
    partition_index: Int32 = 0
    replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    removing_replicas: list[Int32] = []


class OngoingTopicReassignment(Message):
    name: String = ""
    partitions: list[OngoingPartitionReassignment] = []


class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    topics: list[OngoingTopicReassignment] = []


@serves(46, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, versions=range(1), flexible_since=0)
def list_partition_reassignments(
    broker: Broker, call: Call[ListPartitionReassignmentsRequest]
) -> ListPartitionReassignmentsResponse:
    """Answers with an empty list."""
    call.authorize(Operation.DESCRIBE, CLUSTER)
    if broker.member is not None:
        raise not_controller()
    return ListPartitionReassignmentsResponse(error_message=None)
