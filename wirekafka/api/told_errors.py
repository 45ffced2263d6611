"""The errors in responses that a client does not survive without help, and what to do about each; the log gets them once.

How it works: the dispatcher wraps the handlers of `LOOKS` by `telling`, which looks at their responses. Produce and Fetch call
this module where they refuse a partition, so that their usual path has no further step.

Rules of this file: an error that clients handle themselves, such as NOT_COORDINATOR, is not told.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import format_topic_id
from wirekafka.pending import Pending

if TYPE_CHECKING:
    from wirekafka.api.registry import Call, Client, Handler, Response
    from wirekafka.broker import Broker
    from wirekafka.replication.partition import Partition

Look = Callable[["Broker", "Call[Any]", Any], None]
"""Looks at a response, and tells its errors."""

_SAME_TRANSACTIONAL_ID = "Give each running producer a transactional.id of its own"
_SAME_INSTANCE_ID = "Give each running consumer a group.instance.id of its own"
_FENCED_PRODUCER = "Another producer with the same transactional.id has fenced this producer", _SAME_TRANSACTIONAL_ID

_REMEDIES: dict[int, tuple[str, str]] = {
    ErrorCode.FENCED_INSTANCE_ID: (
        "Another consumer with the same group.instance.id has taken the place of this consumer in group {group_id}",
        _SAME_INSTANCE_ID,
    ),
    ErrorCode.UNRELEASED_INSTANCE_ID: (
        "Another consumer with the same group.instance.id is still a member of group {group_id}",
        _SAME_INSTANCE_ID,
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "The consumer's session.timeout.ms of {session_timeout_ms} is not allowed in group {group_id}",
        "Set session.timeout.ms between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms",
    ),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "The consumer shares no partition.assignment.strategy with the other members of group {group_id}",
        "Set the same partition.assignment.strategy in all members, or use another group.id",
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (
        "Group {group_id} has as many members as the broker allows",
        "Raise group.max.size (for the consumer protocol: group.consumer.max.size), or start fewer consumers",
    ),
    ErrorCode.INVALID_PRODUCER_EPOCH: _FENCED_PRODUCER,
    ErrorCode.PRODUCER_FENCED: _FENCED_PRODUCER,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "The producer's transaction.timeout.ms of {transaction_timeout_ms} is not allowed",
        "Lower transaction.timeout.ms in the producer, or raise the broker's transaction.max.timeout.ms",
    ),
}
"""By error code: the reason, with fields of the request, and the remedy."""

_TOO_LARGE = "Raise max.message.bytes of the topic (message.max.bytes of the broker), or let the producer send smaller batches"


def telling(key: int, handler: Handler) -> Handler:
    """Returns the handler of an API; if its errors are told, a handler that tells them."""
    look = LOOKS.get(key)
    return handler if look is None else partial(_handle, handler, look)


def _handle(handler: Handler, look: Look, broker: Broker, call: Call[Any]) -> Response:
    try:
        response = handler(broker, call)
    except KafkaError as error:
        _tell_error(broker, call, error.code)
        raise

    def seen(answer: Any) -> Any:
        look(broker, call, answer)
        return answer

    return response.map(seen) if isinstance(response, Pending) else seen(response)


def _look_at_error(broker: Broker, call: Call[Any], response: Any) -> None:
    """Tells the error of a whole response, or of a handler that failed late."""
    code = response.code if isinstance(response, KafkaError) else getattr(response, "error_code", 0)
    if code:
        _tell_error(broker, call, code)


def _tell_error(broker: Broker, call: Call[Any], code: int) -> None:
    if code not in _REMEDIES:
        return
    reason, remedy = _REMEDIES[code]
    request = call.request
    fields = {name: getattr(request, name) for name in type(request).field_defaults if f"{{{name}}}" in reason}
    broker.troubles.tell(call.client, call.client_id, reason.format(**fields), remedy, subject=str(fields.get("group_id", "")))


def _look_at_topics(broker: Broker, call: Call[Any], response: Any) -> None:
    """Tells the topics that do not exist, and that nobody creates."""
    if call.request.topics is None:
        return
    for topic in getattr(response, "topics", ()):
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic.name:
            creates = broker.config.boolean("auto.create.topics.enable")
            remedy = (
                "Create the topic; this client does not ask for topics to be created (allow.auto.create.topics)"
                if creates
                else "Create the topic, or set auto.create.topics.enable=true in the broker"
            )
            # A client that does not ask for the topic's creation may only look whether it is there.
            wants = call.request.allow_auto_topic_creation
            reason = f"Topic {topic.name} does not exist"
            broker.troubles.tell(call.client, call.client_id, reason, remedy, subject=topic.name, is_certain=wants)


LOOKS: dict[int, Look] = {
    3: _look_at_topics,  # Metadata
    11: _look_at_error,  # JoinGroup
    12: _look_at_error,  # Heartbeat
    14: _look_at_error,  # SyncGroup
    22: _look_at_error,  # InitProducerId
    25: _look_at_error,  # AddOffsetsToTxn
    26: _look_at_error,  # EndTxn
    68: _look_at_error,  # ConsumerGroupHeartbeat
}
"""By API key."""


# Partitions


def tell_refused_batch(
    broker: Broker, client: Client, client_id: str | None, topic: str | bytes, index: int, error: KafkaError
) -> None:
    """Tells that a batch is too large, or its producer fenced; other errors are not told.

    Args:
        topic: the topic's name or id.
    """
    name = f"{topic if isinstance(topic, str) else format_topic_id(topic)}-{index}"
    if error.code is ErrorCode.MESSAGE_TOO_LARGE:
        broker.troubles.tell(client, client_id, f"A batch for {name} is too large: {error.message}", _TOO_LARGE, subject=name)
    elif error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
        broker.troubles.tell(client, client_id, *_FENCED_PRODUCER)


def tell_offset_out_of_range(broker: Broker, call: Call[Any], partition: Partition, offset: int) -> None:
    """Tells that a consumer asks for records that are not there."""
    name, log = f"{partition.topic}-{partition.index}", partition.log
    reason = (
        f"Offset {offset} of {name} is out of range: the partition has offsets {log.log_start_offset} to {log.log_end_offset}"
    )
    remedy = (
        "The consumer goes where its auto.offset.reset says, and fails if that is none. If records are deleted before they are "
        "read, raise retention.ms and retention.bytes of the topic"
    )
    broker.troubles.tell(call.client, call.client_id, reason, remedy, subject=name)
