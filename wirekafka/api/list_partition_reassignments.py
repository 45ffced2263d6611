"""ListPartitionReassignments: the partitions whose replicas are being reassigned.

Behaviour:
    The response has the reassignments in progress, of the partitions that the request names, or all. Partitions that are not
    reassigned, or do not exist, are left out.
    Without `zookeeper.connect`, the list is empty. In a cluster, members that are not the controller answer NOT_CONTROLLER.

Versions:
    0: as described (KIP-455).

Differs from Apache Kafka:
    A broker without other brokers reassigns no partition.

Source: ReplicationControlManager.listPartitionReassignments; KafkaController.processListPartitionReassignments of Apache Kafka
3.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.controller_events import enter, require_controller
from wirekafka.api.registry import Call, serves
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Int16, Int32, Message, NullableString, String, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.controller.local_controller import LocalController
    from wirekafka.zookeeper.layout.topics import ReplicaAssignment


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
) -> ListPartitionReassignmentsResponse | Pending[Any]:
    """Lists reassignments.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER.
    """
    call.authorize(Operation.DESCRIBE, CLUSTER)
    if broker.member is not None:
        return broker.slices.run(_list_in_cluster(broker, require_controller(broker.member), call.request))
    return ListPartitionReassignmentsResponse(error_message=None)


def _list_in_cluster(
    broker: Broker, controller: LocalController, request: ListPartitionReassignmentsRequest
) -> Work[Pending[Any]]:
    from wirekafka.controller.reassignment import list_reassignments

    names: list[TopicPartition] | None = None
    if request.topics is not None:
        asked = (TopicPartition(topic.name, index) for topic in request.topics for index in topic.partition_indexes)
        names = yield from collect(asked)
    listed = enter(controller, lambda context, batch: list_reassignments(context, names))
    return listed.map(lambda found: broker.slices.run(_response(found)))


def _response(
    found: dict[TopicPartition, ReplicaAssignment] | KafkaError,
) -> Work[ListPartitionReassignmentsResponse]:
    if isinstance(found, KafkaError):
        return ListPartitionReassignmentsResponse(error_code=found.code, error_message=found.message)
    topics: dict[str, OngoingTopicReassignment] = {}
    for name, assignment in found.items():
        entry = OngoingPartitionReassignment(
            partition_index=name.partition,
            replicas=[*assignment.replicas],
            adding_replicas=[*assignment.adding_replicas],
            removing_replicas=[*assignment.removing_replicas],
        )
        topics.setdefault(name.topic, OngoingTopicReassignment(name=name.topic, partitions=[])).partitions.append(entry)
        yield
    return ListPartitionReassignmentsResponse(error_message=None, topics=[*topics.values()])
