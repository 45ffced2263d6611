"""ListPartitionReassignments: the partitions that are getting other replicas.

Behaviour:
    There are none: a broker of its own gives partitions no other replicas. Topics that do not exist are left out, too.

Versions:
    0: as described (KIP-455).

Differs from Apache Kafka:
    Nothing but that there is one broker.

Source: ReplicationControlManager.listPartitionReassignments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
    """Lists nothing."""
    call.authorize(Operation.DESCRIBE, CLUSTER)
    return ListPartitionReassignmentsResponse(error_message=None)
