"""DeleteTopics: deletes topics, by name or by id.

Behaviour:
    Each topic succeeds or fails by itself. The name of a deleted topic is free when the response is sent; its files are
    deleted after `file.delete.delay.ms`. A name or id that is named twice is refused, and so is a name whose topic id is named
    too.
    In a cluster, the controller deletes the topics. The response is sent when this broker has none of them and their names are
    free, or after `timeout_ms` with REQUEST_TIMED_OUT for the topics that this broker still has. A topic with replicas on
    brokers that are not available keeps its name until they return; the response waits one second for such a name. Other members
    answer NOT_CONTROLLER for each topic.

Versions:
    0: names. 1: throttle time. 2: as 1. 3: TOPIC_DELETION_DISABLED, where earlier versions have INVALID_REQUEST. 4: flexible.
    5: error messages, may be throttled (KIP-599). 6: topics by id (KIP-516).

Differs from Apache Kafka:
    __consumer_offsets is refused with INVALID_REQUEST, because committed offsets would be lost.
    The response keeps the order of the request; Apache Kafka shuffles it.
    A start of the broker deletes the committed offsets of topics that do not exist, because a crash may come between the deletion
    of a topic and that of its offsets. Apache Kafka keeps these offsets until they expire, and a new topic of the same name
    inherits them.
    Apache Kafka with ZooKeeper does not wait until the names are free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.controller_events import active_controller, enter, enter_each, not_controller
from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import INTERNAL_TOPICS, ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.replication.replica_manager import HostedTopic
from wirekafka.slices import collect
from wirekafka.wire.types import Int16, Int32, Message, NullableString, String, Uuid, nullable, since, until

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.controller.administration import Deletion
    from wirekafka.controller.context import ControllerContext
    from wirekafka.controller.local_controller import Event, LocalController
    from wirekafka.controller.requests import RequestBatch
    from wirekafka.controller.scripts import Script
    from wirekafka.membership.member import Member

FIRST_VERSION_WITH_DELETION_DISABLED = 3

MOST_WAIT_FOR_NAMES_MS = 1_000
LOOK_MS = 20
"""How long a response waits until names are free, and how often the controller is asked."""


class DeleteTopicState(Message):
    name: Annotated[NullableString, nullable(6)] = None
    topic_id: Uuid = ZERO_TOPIC_ID


class DeleteTopicsRequest(Message):
    topics: Annotated[list[DeleteTopicState], since(6)] = []
    topic_names: Annotated[list[String], until(5)] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message):
    name: Annotated[NullableString, nullable(6)] = ""
    topic_id: Annotated[Uuid, since(6)] = ZERO_TOPIC_ID
    error_code: Int16 = 0
    error_message: Annotated[NullableString, since(5), nullable(5)] = None


class DeleteTopicsResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    responses: list[DeletableTopicResult] = []


@serves(20, DeleteTopicsRequest, DeleteTopicsResponse, versions=range(7), flexible_since=4)
def delete_topics(broker: Broker, call: Call[DeleteTopicsRequest]) -> DeleteTopicsResponse | Pending[Any]:
    """Answers one DeleteTopics request; without a cluster, the deletions of one slice are synced to the disk together."""
    states = call.request.topics + [DeleteTopicState(name=name) for name in call.request.topic_names]
    controller = None if broker.member is None else active_controller(broker.member)
    if broker.member is not None and controller is None:
        return broker.slices.run(_refusal(states, not_controller()))
    if not broker.config.boolean("delete.topic.enable"):
        has_code = call.version >= FIRST_VERSION_WITH_DELETION_DISABLED
        code = ErrorCode.TOPIC_DELETION_DISABLED if has_code else ErrorCode.INVALID_REQUEST
        error = KafkaError(code, "Topic deletion is disabled.")
        return broker.slices.run(_refusal(states, error))
    if broker.member is not None and controller is not None:
        return broker.slices.run(_deletion_in_cluster(broker, broker.member, controller, call, states))
    return broker.slices.run(_deletion(broker, call, states), around=broker.topics.together, outlives_client=True)


def _refusal(states: list[DeleteTopicState], error: KafkaError) -> Work[DeleteTopicsResponse]:
    return DeleteTopicsResponse(responses=(yield from collect(_failure(state, error) for state in states)))


def _deletion(broker: Broker, call: Call[DeleteTopicsRequest], states: list[DeleteTopicState]) -> Work[DeleteTopicsResponse]:
    responses: list[DeletableTopicResult] = []
    times = Counter((state.name, state.topic_id) for state in states)
    by_id = {state.topic_id for state in states if state.name is None}
    for (name, topic_id), count in times.items():
        state = DeleteTopicState(name=name, topic_id=topic_id)
        try:
            _check_once(state, count)
            responses.append((yield from _delete(broker, call, state, by_id)))
        except KafkaError as error:
            responses.append(_failure(state, error))
        yield
    return DeleteTopicsResponse(responses=responses)


def _check_once(state: DeleteTopicState, count: int) -> None:
    if count > 1:
        what = "name" if state.name is not None else "id"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")


def _delete(
    broker: Broker, call: Call[DeleteTopicsRequest], state: DeleteTopicState, by_id: set[bytes]
) -> Work[DeletableTopicResult]:
    if state.name is not None:
        call.authorize(Operation.DELETE, Resource.topic(state.name))
    topic = _find(broker, state)
    call.authorize(Operation.DELETE, Resource.topic(topic.name))
    if state.name is not None and topic.topic_id in by_id:
        raise _named_by_id()
    if topic.is_internal:
        raise _internal(topic.name)
    yield from broker.topics.deletion(topic)
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)


def _named_by_id() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied.")


def _internal(name: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is internal and cannot be deleted.")


def _find(broker: Broker, state: DeleteTopicState) -> HostedTopic:
    return broker.topics.get(_name_or_id(state))


def _name_or_id(state: DeleteTopicState) -> str | bytes:
    """Returns the name, or the id as bytes, that the request has for a topic.

    Raises:
        KafkaError: INVALID_REQUEST unless it has one of them.
    """
    if state.name is None:
        if state.topic_id == ZERO_TOPIC_ID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        return state.topic_id
    if state.topic_id != ZERO_TOPIC_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    return state.name


def _failure(state: DeleteTopicState, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=error.code, error_message=error.message)


# In a cluster


def _deletion_in_cluster(
    broker: Broker, member: Member, controller: LocalController, call: Call[DeleteTopicsRequest], states: list[DeleteTopicState]
) -> Work[Pending[Any]]:
    """Lets the controller of this broker delete the topics that the client may delete, and waits until they are deleted.

    Source: KafkaApis.handleDeleteTopicsRequest, ZkAdminManager.deleteTopics.
    """
    times = Counter((state.name, state.topic_id) for state in states)
    by_id = {state.topic_id for state in states if state.name is None}
    results: list[DeletableTopicResult] = []
    asked: list[tuple[DeletableTopicResult, str | bytes]] = []
    for (name, topic_id), count in times.items():
        state = DeleteTopicState(name=name, topic_id=topic_id)
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        try:
            _check_once(state, count)
            asked.append((result, _name_or_id(state)))
        except KafkaError as error:
            result = _failure(state, error)
        results.append(result)
        yield
    event_of = partial(_event_of, call, by_id)
    deleted = enter_each(controller, asked, event_of)

    def wait(outcomes: list[Deletion | KafkaError]) -> Pending[Any]:
        gone: Pending[list[str]] = broker.slices.run(_wait_for_deletion(broker, member, call.request, asked, outcomes))
        free: Pending[None] = gone.map(lambda names: _wait_for_names(broker, controller, names, call.request.timeout_ms))
        return free.map(lambda _: DeleteTopicsResponse(responses=results))

    return deleted.map(wait)


def _event_of(
    call: Call[DeleteTopicsRequest], by_id: set[bytes], asked: Sequence[tuple[DeletableTopicResult, str | bytes]]
) -> Event[list[Deletion]]:
    from wirekafka.controller.administration import delete_topics

    def check(name: str, topic_id: bytes | None, *, is_named: bool) -> None:
        call.authorize(Operation.DELETE, Resource.topic(name))
        if is_named and topic_id in by_id:
            raise _named_by_id()
        if name in INTERNAL_TOPICS:
            raise _internal(name)

    return lambda context, batch: delete_topics(context, [each for _, each in asked], check)


def _wait_for_deletion(
    broker: Broker,
    member: Member,
    request: DeleteTopicsRequest,
    asked: Sequence[tuple[DeletableTopicResult, str | bytes]],
    outcomes: Sequence[Deletion | KafkaError],
) -> Work[Pending[list[str]]]:
    """Completes the results of the topics that the controller was asked to delete, and waits until this broker has none of them.

    Returns:
        A Pending of the topics that this broker no longer has.
    """
    from wirekafka.membership.topic_waits import is_gone

    awaited: dict[str, DeletableTopicResult] = {}
    for (result, _), outcome in zip(asked, outcomes, strict=True):
        error = outcome if isinstance(outcome, KafkaError) else outcome.error
        if error is not None:
            result.error_code, result.error_message = error.code, error.message
        elif not isinstance(outcome, KafkaError) and outcome.name is not None:
            result.name = outcome.name
            awaited[outcome.name] = result
        yield

    def note(late: set[str]) -> list[str]:
        for name in late:
            awaited[name].error_code = ErrorCode.REQUEST_TIMED_OUT
        return [name for name in awaited if name not in late]

    return member.topic_waits.wait(dict.fromkeys(awaited, is_gone), request.timeout_ms, broker.clock).map(note)


def _wait_for_names(broker: Broker, controller: LocalController, names: list[str], timeout_ms: int) -> Pending[None]:
    """Waits until topics with these names can be created again, for a limited time: clients often create them at once."""
    clock = broker.clock
    deadline_ms = clock.monotonic_ms() + min(timeout_ms, MOST_WAIT_FOR_NAMES_MS)
    free: Pending[None] = Pending()

    def look() -> None:
        if not free.is_done:
            enter(controller, still_deleting).then(take)

    def still_deleting(context: ControllerContext, batch: RequestBatch) -> Script[list[str]]:
        yield from ()
        return [name for name in names if context.is_deleting(name)]

    def take(deleting: list[str] | KafkaError) -> None:
        if isinstance(deleting, KafkaError) or not deleting or clock.monotonic_ms() >= deadline_ms:
            free.complete(None)
        else:
            clock.call_later(LOOK_MS, look)

    if names:
        look()
    else:
        free.complete(None)
    return free
