"""CreatePartitions: adds partitions to topics.

Behaviour:
    `count` is the new number of partitions of a topic, which must be greater than the current number. Each topic succeeds or
    fails by itself. `validate_only` checks everything and changes nothing. A topic that is named twice is refused.
    Without `zookeeper.connect`, the new partitions can be used when the response is sent, so `timeout_ms` has no effect.
    In a cluster, the controller spreads the new replicas over brokers and racks, or uses the brokers that the request names. A
    topic whose partitions are being reassigned gets REASSIGNMENT_IN_PROGRESS. The response is sent when all partitions of the
    topics have leaders, or after `timeout_ms` with REQUEST_TIMED_OUT for the topics that lack leaders. Other members answer
    NOT_CONTROLLER for each topic.

Versions:
    0: as described (KIP-195). 1: as 0. 2: flexible. 3: may be throttled (KIP-599).

Differs from Apache Kafka:
    The broker has no quotas.
    Internal topics cannot grow: INVALID_REQUEST. Apache Kafka allows it, and then looks for groups and transactions in other
    partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.controller_events import active_controller, enter_each, not_controller
from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.metadata.topics import MAX_RECORDS_AT_ONCE, check_assignment
from wirekafka.names import INTERNAL_TOPICS
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Bool, Int16, Int32, Message, NullableString, String, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.controller.administration import Growth
    from wirekafka.controller.local_controller import Event
    from wirekafka.membership.member import Member


class CreatePartitionsAssignment(Message):
    broker_ids: list[Int32] = []


class CreatePartitionsTopic(Message):
    name: String = ""
    count: Int32 = 0
    assignments: Annotated[list[CreatePartitionsAssignment] | None, nullable(0)] = []


class CreatePartitionsRequest(Message):
    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Message):
    name: String = ""
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None


class CreatePartitionsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []


@serves(37, CreatePartitionsRequest, CreatePartitionsResponse, versions=range(4), flexible_since=2)
def create_partitions(broker: Broker, call: Call[CreatePartitionsRequest]) -> CreatePartitionsResponse | Pending[Any]:
    """Answers one CreatePartitions request; without a cluster, the partitions of one slice are synced to the disk together."""
    if broker.member is not None:
        return broker.slices.run(_growth_in_cluster(broker, broker.member, call))
    return broker.slices.run(_growth(broker, call), around=broker.topics.together, outlives_client=True)


def _growth(broker: Broker, call: Call[CreatePartitionsRequest]) -> Work[CreatePartitionsResponse]:
    request = call.request
    times = Counter(topic.name for topic in request.topics)
    results = [
        CreatePartitionsTopicResult(name=name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic name.")
        for name, count in times.items()
        if count > 1
    ]
    allowance = Allowance(MAX_RECORDS_AT_ONCE)
    for topic in request.topics:
        if times[topic.name] == 1:
            results.append((yield from _result(broker, call, topic, allowance)))
            yield
    return CreatePartitionsResponse(results=results)


def _failure(name: str, error: KafkaError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message)


class Allowance:
    """The number of partitions that the rest of a request may add."""

    def __init__(self, partition_count: int) -> None:
        self._left_count = partition_count

    def take(self, partition_count: int) -> None:
        """Subtracts partitions from the allowance.

        Raises:
            KafkaError: POLICY_VIOLATION if the allowance is smaller.

        Source: QuorumController.MAX_RECORDS_PER_USER_OP.
        """
        if partition_count > self._left_count:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
        self._left_count -= partition_count


def _result(
    broker: Broker, call: Call[CreatePartitionsRequest], asked: CreatePartitionsTopic, allowance: Allowance
) -> Work[CreatePartitionsTopicResult]:
    try:
        call.authorize(Operation.ALTER, Resource.topic(asked.name))
        yield from _grow(broker, asked, allowance, call.request.validate_only)
    except KafkaError as error:
        return _failure(asked.name, error)
    return CreatePartitionsTopicResult(name=asked.name)


def _grow(broker: Broker, asked: CreatePartitionsTopic, allowance: Allowance, validate_only: bool) -> Work[None]:
    topic = broker.topics.get(asked.name)
    broker.topics.check_growth(topic, asked.count)
    allowance.take(asked.count - len(topic.partitions))
    if asked.assignments is not None:
        additional = asked.count - len(topic.partitions)
        if len(asked.assignments) != additional:
            message = (
                f"Attempted to add {additional} additional partition(s), but only {len(asked.assignments)} "
                "assignment(s) were specified."
            )
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        for assignment in asked.assignments:
            check_assignment(assignment.broker_ids, broker.node_id)
    if not validate_only:
        yield from broker.topics.growth(topic, asked.count)


# In a cluster


def _growth_in_cluster(
    broker: Broker, member: Member, call: Call[CreatePartitionsRequest]
) -> Work[CreatePartitionsResponse | Pending[Any]]:
    """Lets the controller of this broker add the partitions that the client may add, and waits for their leaders.

    Source: KafkaApis.handleCreatePartitionsRequest, ZkAdminManager.createPartitions.
    """
    request = call.request
    controller = active_controller(member)
    if controller is None:
        refused = yield from collect(_failure(topic.name, not_controller()) for topic in request.topics)
        return CreatePartitionsResponse(results=refused)
    times = Counter(topic.name for topic in request.topics)
    results: dict[str, CreatePartitionsTopicResult] = {}
    wanted: list[Growth] = []
    for topic in request.topics:
        results[topic.name] = CreatePartitionsTopicResult(name=topic.name)
        try:
            if times[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            wanted.append(_wanted_growth(call, topic))
        except KafkaError as error:
            results[topic.name] = _failure(topic.name, error)
        yield
    grown = enter_each(controller, wanted, partial(_event_of, request, Allowance(MAX_RECORDS_AT_ONCE)))
    return grown.map(lambda outcomes: broker.slices.run(_wait_for_leaders(broker, member, request, wanted, outcomes, results)))


def _wanted_growth(call: Call[CreatePartitionsRequest], asked: CreatePartitionsTopic) -> Growth:
    """Returns what the controller does for a topic.

    Raises:
        KafkaError: TOPIC_AUTHORIZATION_FAILED; INVALID_REQUEST for an internal topic.
    """
    from wirekafka.controller.administration import Growth

    call.authorize(Operation.ALTER, Resource.topic(asked.name))
    if asked.name in INTERNAL_TOPICS:
        message = f"No partitions can be added to {asked.name}: the partition count locates the state in it."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    chosen = None if asked.assignments is None else [tuple(each.broker_ids) for each in asked.assignments]
    return Growth(asked.name, asked.count, chosen)


def _event_of(request: CreatePartitionsRequest, allowance: Allowance, growths: Sequence[Growth]) -> Event[list[int | KafkaError]]:
    from wirekafka.controller.administration import create_partitions

    return lambda context, batch: create_partitions(context, growths, allowance.take, validate_only=request.validate_only)


def _wait_for_leaders(
    broker: Broker,
    member: Member,
    request: CreatePartitionsRequest,
    wanted: Sequence[Growth],
    outcomes: Sequence[int | KafkaError],
    results: dict[str, CreatePartitionsTopicResult],
) -> Work[Pending[Any]]:
    """Waits for the leaders of all partitions of the topics that have more of them now.

    Args:
        results: those of all topics, with the errors that are known.
    """
    from wirekafka.membership.topic_waits import Condition, has_leaders

    grown: dict[str, Condition] = {}
    for growth, outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, KafkaError):
            results[growth.name] = _failure(growth.name, outcome)
        elif not request.validate_only:
            grown[growth.name] = has_leaders(range(outcome))
        yield

    def response(late: set[str]) -> CreatePartitionsResponse:
        for name in late:
            results[name].error_code = ErrorCode.REQUEST_TIMED_OUT
        return CreatePartitionsResponse(results=[*results.values()])

    return member.topic_waits.wait(grown, request.timeout_ms, broker.clock).map(response)
