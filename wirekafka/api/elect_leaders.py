"""ElectLeaders: elects the preferred replica of partitions as leader, or any replica.

Behaviour:
    This broker already leads every partition: ELECTION_NOT_NEEDED. A partition whose log is offline cannot have a leader: it gets
    PREFERRED_LEADER_NOT_AVAILABLE, or ELIGIBLE_LEADERS_NOT_AVAILABLE in an unclean election. A partition that does not exist gets
    UNKNOWN_TOPIC_OR_PARTITION. If the request asks for all partitions, the response leaves out those that need no election. From
    version 1 on, an unknown type of election gets INVALID_REQUEST.
    A member of a cluster answers NOT_CONTROLLER for each partition.

Versions:
    0: preferred leaders (KIP-183). 1: `election_type`, an error code for the whole response (KIP-460). 2: flexible.

Differs from Apache Kafka:
    Nothing.

Source: ReplicationControlManager.electLeaders, electLeader.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.controller_events import not_controller
from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Int8, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class ElectionType(IntEnum):
    """The replicas that may become leader, by Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


class TopicPartitions(Message):
    topic: String = ""
    partitions: list[Int32] = []


class ElectLeadersRequest(Message):
    election_type: Annotated[Int8, since(1)] = ElectionType.PREFERRED
    topic_partitions: Annotated[list[TopicPartitions] | None, nullable(0)] = []
    timeout_ms: Int32 = 60000


class PartitionResult(Message):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""


class ReplicaElectionResult(Message):
    topic: String = ""
    partition_result: list[PartitionResult] = []


class ElectLeadersResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(1)] = 0
    replica_election_results: list[ReplicaElectionResult] = []


@serves(43, ElectLeadersRequest, ElectLeadersResponse, versions=range(3), flexible_since=2)
def elect_leaders(broker: Broker, call: Call[ElectLeadersRequest]) -> ElectLeadersResponse | Pending[Any]:
    """Answers for each partition why the controller elects no other leader."""
    request = call.request
    if request.election_type not in tuple(ElectionType):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no election of type {request.election_type}")
    return broker.slices.run(_election(broker, call, ElectionType(request.election_type)))


def _election(broker: Broker, call: Call[ElectLeadersRequest], election: ElectionType) -> Work[ElectLeadersResponse]:
    wanted = call.request.topic_partitions
    asked = (
        [(topic.name, range(len(topic.partitions))) for topic in broker.topics]
        if wanted is None
        else [(topic.topic, topic.partitions) for topic in wanted]
    )
    results = []
    for name, indexes in asked:
        answers = yield from collect((index, _refusal(broker, call, name, index, election)) for index in indexes)
        told = [
            PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
            for index, error in answers
            if wanted is not None or error.code is not ErrorCode.ELECTION_NOT_NEEDED
        ]
        if told:
            results.append(ReplicaElectionResult(topic=name, partition_result=told))
        yield
    return ElectLeadersResponse(replica_election_results=results)


def _refusal(broker: Broker, call: Call[ElectLeadersRequest], name: str, index: int, election: ElectionType) -> KafkaError:
    try:
        call.authorize(Operation.ALTER, CLUSTER)
        if broker.member is not None:
            raise not_controller()
        partition = broker.topics.find_partition(name, index)
    except KafkaError as error:
        return error
    if not partition.is_offline:
        return KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "the partition has its leader")
    if election is ElectionType.PREFERRED:
        return KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "the preferred leader's log is offline")
    return KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "the only replica's log is offline")
