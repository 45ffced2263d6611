"""ElectLeaders: elects the preferred replica of partitions as leader, or any replica.

Behaviour:
    A partition that has its leader gets ELECTION_NOT_NEEDED: the preferred one, or in an unclean election any that is online. A
    partition that can have no leader gets PREFERRED_LEADER_NOT_AVAILABLE, or ELIGIBLE_LEADERS_NOT_AVAILABLE in an unclean
    election. A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION. If the request asks for all partitions, the
    response leaves out those that need no election. From version 1 on, an unknown type of election gets INVALID_REQUEST.
    Without `zookeeper.connect`, this broker leads every partition whose log is online.
    In a cluster, the controller elects the leaders. The response is sent when this broker has heard of all of them, or after
    `timeout_ms` with REQUEST_TIMED_OUT for the others. Other members answer NOT_CONTROLLER for each partition.

Versions:
    0: preferred leaders (KIP-183). 1: `election_type`, an error code for the whole response (KIP-460). 2: flexible.

Differs from Apache Kafka:
    Nothing.

Source: ReplicationControlManager.electLeaders, electLeader; KafkaApis.handleElectLeaders, ReplicaManager.electLeaders of Apache
Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.controller_events import active_controller, enter, not_controller
from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Int8, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.controller.context import ControllerContext
    from wirekafka.controller.local_controller import LocalController
    from wirekafka.controller.requests import RequestBatch
    from wirekafka.controller.scripts import Script
    from wirekafka.membership.member import Member
    from wirekafka.membership.topic_waits import ExpectedLeaders


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
    """Elects leaders, or answers for each partition why there is no other leader."""
    request = call.request
    if request.election_type not in tuple(ElectionType):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no election of type {request.election_type}")
    election = ElectionType(request.election_type)
    controller = None if broker.member is None else active_controller(broker.member)
    if broker.member is not None and controller is not None and call.is_authorized(Operation.ALTER, CLUSTER):
        elected = _ElectionInCluster(broker, broker.member, request, election)
        return broker.slices.run(elected.work(controller))
    return broker.slices.run(_election(broker, call, election))


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


# In a cluster

Outcomes = dict[TopicPartition, "KafkaError | int"]
"""For each partition its new leader, or why it has no new one."""


class _ElectionInCluster:
    """A request that the controller of this broker answers.

    Source: kafka.server.ReplicaManager.electLeaders, kafka.server.DelayedElectLeader.
    """

    def __init__(self, broker: Broker, member: Member, request: ElectLeadersRequest, election: ElectionType) -> None:
        self._broker = broker
        self._member = member
        self._request = request
        self._election = election
        self._deadline_ms = broker.clock.monotonic_ms() + request.timeout_ms

    def work(self, controller: LocalController) -> Work[Pending[Any]]:
        """Lets the controller elect leaders, and waits until this broker has heard of them."""
        names: list[TopicPartition] | None = None
        wanted = self._request.topic_partitions
        if wanted is not None:
            names = yield from collect(TopicPartition(each.topic, index) for each in wanted for index in each.partitions)
        elected = enter(controller, lambda context, batch: self._elect(context, batch, names))
        return elected.map(lambda outcome: self._broker.slices.run(self._wait(names, outcome)))

    def _elect(self, context: ControllerContext, batch: RequestBatch, names: Iterable[TopicPartition] | None) -> Script[Outcomes]:
        from wirekafka.controller.elections import Election
        from wirekafka.controller.requested_elections import elect_leaders as elect
        from wirekafka.controller.requests import SLICE
        from wirekafka.controller.scripts import PAUSE

        election = Election.PREFERRED if self._election is ElectionType.PREFERRED else Election.UNCLEAN
        errors = yield from elect(context, batch, names, election)
        outcomes: Outcomes = {}
        for count, (name, error) in enumerate(errors.items(), 1):
            outcomes[name] = context.states[name].state.leader if error is None else error
            if count % SLICE == 0:
                yield PAUSE
        return outcomes

    def _wait(
        self, names: list[TopicPartition] | None, outcomes: Outcomes | KafkaError
    ) -> Work[ElectLeadersResponse | Pending[Any]]:
        from wirekafka.membership.topic_waits import ExpectedLeaders

        if isinstance(outcomes, KafkaError):
            error = outcomes
            if names is None:
                return ElectLeadersResponse(error_code=error.code)
            outcomes = dict.fromkeys(names, error)
        expected: dict[str, ExpectedLeaders] = {}
        for name, outcome in outcomes.items():
            if not isinstance(outcome, KafkaError):
                expected.setdefault(name.topic, ExpectedLeaders()).missing[name.partition] = outcome
            yield
        remaining_ms = self._deadline_ms - self._broker.clock.monotonic_ms()
        late = self._member.topic_waits.wait(expected, remaining_ms, self._broker.clock)
        found = outcomes
        return late.map(lambda _: self._broker.slices.run(self._response(found, expected)))

    def _response(self, outcomes: Outcomes, expected: dict[str, ExpectedLeaders]) -> Work[ElectLeadersResponse]:
        results: dict[str, list[PartitionResult]] = {}
        for name, outcome in outcomes.items():
            result = PartitionResult(partition_id=name.partition, error_message=None)
            if isinstance(outcome, KafkaError):
                if self._request.topic_partitions is None and outcome.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                result.error_code, result.error_message = outcome.code, outcome.message
            elif name.partition in expected[name.topic].missing:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
            results.setdefault(name.topic, []).append(result)
            yield
        return ElectLeadersResponse(
            replica_election_results=[ReplicaElectionResult(topic=name, partition_result=told) for name, told in results.items()]
        )
