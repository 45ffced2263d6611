"""AlterPartitionReassignments: assigns other replicas to partitions.

Behaviour:
    The only possible assignment is this broker alone, which every partition already has, so it succeeds at once. An assignment
    that names another broker, names a broker twice, or is empty gets INVALID_REPLICA_ASSIGNMENT. Null replicas cancel a
    reassignment; none is in progress, so they get NO_REASSIGNMENT_IN_PROGRESS. A partition that does not exist gets
    UNKNOWN_TOPIC_OR_PARTITION. AlterReplicaLogDirs, which kafka-reassign-partitions.sh sends after this request, moves partitions
    between the directories of a broker.
    A member of a cluster answers NOT_CONTROLLER.

Versions:
    0: as described (KIP-455). 1: `allow_replication_factor_change` (KIP-860), which has no effect on an assignment to this broker
    alone.

Differs from Apache Kafka:
    A broker without other brokers can assign no other replicas. In a cluster, the controller answers.

Source: ReplicationControlManager.alterPartitionReassignments, validateManualPartitionAssignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.controller_events import not_controller
from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Bool, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class ReassignablePartition(Message):
    partition_index: Int32 = 0
    replicas: Annotated[list[Int32] | None, nullable(0)] = None


class ReassignableTopic(Message):
    name: String = ""
    partitions: list[ReassignablePartition] = []


class AlterPartitionReassignmentsRequest(Message):
    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, since(1)] = True
    topics: list[ReassignableTopic] = []


class ReassignablePartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""


class ReassignableTopicResponse(Message):
    name: String = ""
    partitions: list[ReassignablePartitionResponse] = []


class AlterPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, since(1)] = True
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    responses: list[ReassignableTopicResponse] = []


@serves(45, AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, versions=range(2), flexible_since=0)
def alter_partition_reassignments(
    broker: Broker, call: Call[AlterPartitionReassignmentsRequest]
) -> AlterPartitionReassignmentsResponse | Pending[Any]:
    """Answers for each partition whether it can have the replicas that the request names."""
    call.authorize(Operation.ALTER, CLUSTER)
    if broker.member is not None:
        raise not_controller()
    return broker.slices.run(_reassignment(broker, call))


def _reassignment(broker: Broker, call: Call[AlterPartitionReassignmentsRequest]) -> Work[AlterPartitionReassignmentsResponse]:
    response = AlterPartitionReassignmentsResponse(
        error_message=None, allow_replication_factor_change=call.request.allow_replication_factor_change
    )
    for topic in call.request.topics:
        answers = yield from collect(_answer(broker, topic.name, partition) for partition in topic.partitions)
        response.responses.append(ReassignableTopicResponse(name=topic.name, partitions=answers))
        yield
    return response


def _answer(broker: Broker, name: str, wish: ReassignablePartition) -> ReassignablePartitionResponse:
    response = ReassignablePartitionResponse(partition_index=wish.partition_index, error_message=None)
    try:
        _check(broker, name, wish)
    except KafkaError as error:
        response.error_code, response.error_message = error.code, error.message
    return response


def _check(broker: Broker, name: str, wish: ReassignablePartition) -> None:
    broker.topics.find_partition(name, wish.partition_index)
    if wish.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is in progress")
    if not wish.replicas:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition needs at least one replica")
    if len(set(wish.replicas)) != len(wish.replicas):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a broker is named twice")
    if wish.replicas != [broker.node_id]:
        unknown = next(replica for replica in wish.replicas if replica != broker.node_id)
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is no broker {unknown}, this is a broker of its own: {broker.node_id}"
        )
