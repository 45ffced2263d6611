"""AlterPartitionReassignments: assigns other replicas to partitions.

Behaviour:
    An assignment that names a broker that is not live, names a broker twice, or is empty gets INVALID_REPLICA_ASSIGNMENT. Null
    replicas cancel a reassignment; if none is in progress, they get NO_REASSIGNMENT_IN_PROGRESS. A partition that does not exist
    gets UNKNOWN_TOPIC_OR_PARTITION. AlterReplicaLogDirs, which kafka-reassign-partitions.sh sends after this request, moves
    partitions between the directories of a broker.
    Without `zookeeper.connect`, the only possible assignment is this broker alone, which every partition already has, so it
    succeeds at once.
    In a cluster, the response is sent when the reassignments have begun. They are complete when ListPartitionReassignments does
    not list them any more. Members that are not the controller answer NOT_CONTROLLER.

Versions:
    0: as described (KIP-455). 1: `allow_replication_factor_change` (KIP-860), which has no effect on an assignment to this broker
    alone.

Differs from Apache Kafka:
    A broker without other brokers can assign no other replicas.

Source: ReplicationControlManager.alterPartitionReassignments, validateManualPartitionAssignment;
KafkaApis.handleAlterPartitionReassignmentsRequest of Apache Kafka 3.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.controller_events import enter, require_controller
from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Bool, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.controller.local_controller import LocalController
    from wirekafka.controller.reassignment import Outcomes


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
    """Answers for each partition whether it can have the replicas that the request names.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER.
    """
    call.authorize(Operation.ALTER, CLUSTER)
    if broker.member is not None:
        return broker.slices.run(_reassignment_in_cluster(broker, require_controller(broker.member), call.request))
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


# In a cluster


def _reassignment_in_cluster(
    broker: Broker, controller: LocalController, request: AlterPartitionReassignmentsRequest
) -> Work[Pending[Any]]:
    """Lets the controller of this broker begin reassignments. If a partition is named twice, the last entry counts."""
    from wirekafka.controller.reassignment import alter_reassignments

    targets: dict[TopicPartition, tuple[int, ...] | None] = {}
    for topic in request.topics:
        for wish in topic.partitions:
            target = None if wish.replicas is None else tuple(wish.replicas)
            targets[TopicPartition(topic.name, wish.partition_index)] = target
            yield
    begun = enter(controller, lambda context, batch: alter_reassignments(context, batch, targets))
    return begun.map(lambda outcomes: broker.slices.run(_response(request, outcomes)))


def _response(
    request: AlterPartitionReassignmentsRequest, outcomes: Outcomes | KafkaError
) -> Work[AlterPartitionReassignmentsResponse]:
    response = AlterPartitionReassignmentsResponse(
        error_message=None, allow_replication_factor_change=request.allow_replication_factor_change
    )
    if isinstance(outcomes, KafkaError):
        response.error_code, response.error_message = outcomes.code, outcomes.message
        return response
    topics: dict[str, ReassignableTopicResponse] = {}
    for name, error in outcomes.items():
        answer = ReassignablePartitionResponse(partition_index=name.partition, error_message=None)
        if error is not None:
            answer.error_code, answer.error_message = error.code, error.message
        topics.setdefault(name.topic, ReassignableTopicResponse(name=name.topic, partitions=[])).partitions.append(answer)
        yield
    response.responses = [*topics.values()]
    return response
