"""DeleteTopics: deletes topics, by name or by id.

Behaviour:
    Each topic succeeds or fails by itself. The name of a deleted topic is free when the response is sent; its files are
    deleted after `file.delete.delay.ms`. A name or id that is named twice is refused, and so is a name whose topic id is named
    too.
    A member of a cluster answers NOT_CONTROLLER for each topic.

Versions:
    0: names. 1: throttle time. 2: as 1. 3: TOPIC_DELETION_DISABLED, where earlier versions have INVALID_REQUEST. 4: flexible.
    5: error messages, may be throttled (KIP-599). 6: topics by id (KIP-516).

Differs from Apache Kafka:
    __consumer_offsets is refused with INVALID_REQUEST, because committed offsets would be lost.
    The response keeps the order of the request; Apache Kafka shuffles it.
    A start of the broker deletes the committed offsets of topics that do not exist, because a crash may come between the deletion
    of a topic and that of its offsets. Apache Kafka keeps these offsets until they expire, and a new topic of the same name
    inherits them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.not_controller import not_controller
from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.replication.replica_manager import HostedTopic
from wirekafka.wire.types import Int16, Int32, Message, NullableString, String, Uuid, nullable, since, until

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_DELETION_DISABLED = 3


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
    """Answers one DeleteTopics request; the deletions of one slice are synced to the disk together."""
    states = call.request.topics + [DeleteTopicState(name=name) for name in call.request.topic_names]
    if broker.member is not None:
        return DeleteTopicsResponse(responses=[_failure(state, not_controller()) for state in states])
    if not broker.config.boolean("delete.topic.enable"):
        has_code = call.version >= FIRST_VERSION_WITH_DELETION_DISABLED
        code = ErrorCode.TOPIC_DELETION_DISABLED if has_code else ErrorCode.INVALID_REQUEST
        error = KafkaError(code, "Topic deletion is disabled.")
        return DeleteTopicsResponse(responses=[_failure(state, error) for state in states])
    return broker.slices.run(_deletion(broker, call, states), around=broker.topics.together, outlives_client=True)


def _deletion(broker: Broker, call: Call[DeleteTopicsRequest], states: list[DeleteTopicState]) -> Work[DeleteTopicsResponse]:
    responses: list[DeletableTopicResult] = []
    times = Counter((state.name, state.topic_id) for state in states)
    by_id = {state.topic_id for state in states if state.name is None}
    for (name, topic_id), count in times.items():
        state = DeleteTopicState(name=name, topic_id=topic_id)
        try:
            if count > 1:
                what = "name" if name is not None else "id"
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")
            responses.append((yield from _delete(broker, call, state, by_id)))
        except KafkaError as error:
            responses.append(_failure(state, error))
        yield
    return DeleteTopicsResponse(responses=responses)


def _delete(
    broker: Broker, call: Call[DeleteTopicsRequest], state: DeleteTopicState, by_id: set[bytes]
) -> Work[DeletableTopicResult]:
    if state.name is not None:
        call.authorize(Operation.DELETE, Resource.topic(state.name))
    topic = _find(broker, state)
    call.authorize(Operation.DELETE, Resource.topic(topic.name))
    if state.name is not None and topic.topic_id in by_id:
        message = "The provided topic name maps to an ID that was already supplied."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if topic.is_internal:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{topic.name} is internal and cannot be deleted.")
    yield from broker.topics.deletion(topic)
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)


def _find(broker: Broker, state: DeleteTopicState) -> HostedTopic:
    if state.name is None:
        if state.topic_id == ZERO_TOPIC_ID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        return broker.topics.get(state.topic_id)
    if state.topic_id != ZERO_TOPIC_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    return broker.topics.get(state.name)


def _failure(state: DeleteTopicState, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=error.code, error_message=error.message)
