"""The five operations on the state of share partitions, as brokers send them to the share coordinator.

How it works: an `Operation` concerns one share partition. Its `Kind` knows how many of them become a request, how their results
are read from the response, and how the coordinator does the operation if it is this broker.

Source: org.apache.kafka.server.share.persister.{DefaultStatePersister, PersisterStateManager} of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wirekafka.coordinator.share_state.batches import StateBatch, StateChange
from wirekafka.coordinator.share_state.coordinator import ReadState, ShareCoordinator, Summary
from wirekafka.coordinator.share_state.records import NO_COUNT, NO_OFFSET, ShareKey, state_of
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import Pending
from wirekafka.wire.messages import share_group_state as messages
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message


@dataclass(slots=True)
class Operation:
    """An operation on the state of one share partition.

    Attributes:
        pending: the result: None, a `ReadState`, a `Summary`, or the KafkaError.
        deadline_ms: until when it is tried again, by the monotonic clock.
        state_epoch, leader_epoch, start_offset, change: what the kind of the operation needs.
    """

    kind: Kind
    key: ShareKey
    pending: Pending[Any]
    deadline_ms: int
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int | None = None
    change: StateChange | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of operations.

    Attributes:
        purpose: the part of the client id by which the operator of the coordinator recognizes the connection.
        version: the version of the requests; all brokers that share groups are on for have it.
        topic: the class of the part of a request for one topic.
        partition: returns the part of a request for one operation.
        result: reads the result of an operation that has succeeded.
        act: does the operation on the broker that is the coordinator.
    """

    purpose: str
    request_type: RequestType[Any, Any]
    version: int
    topic: type[Message]
    partition: Callable[[Operation], Message]
    result: Callable[[Any], object]
    act: Callable[[ShareCoordinator, Operation], object]

    def request(self, group_id: str, operations: Sequence[Operation]) -> Any:
        """Returns the request for operations on share partitions of one group."""
        by_topic: dict[bytes, list[Message]] = {}
        for each in operations:
            by_topic.setdefault(each.key.topic_id, []).append(self.partition(each))
        make_topic: Any = self.topic
        topics = [make_topic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in by_topic.items()]
        return self.request_type.request(group_id=group_id, topics=topics)

    def results(self, group_id: str, response: Any) -> dict[ShareKey, object]:
        """Returns the results in a response by share partition, each with its value or its KafkaError."""
        found: dict[ShareKey, object] = {}
        for topic in response.results:
            for each in topic.partitions:
                key = ShareKey(group_id, topic.topic_id, each.partition)
                error = ErrorCode.of(each.error_code) if each.error_code else None
                found[key] = self.result(each) if error is None else KafkaError(error, each.error_message)
        return found


def to_batches(batches: Sequence[StateBatch]) -> list[messages.StateBatch]:
    """Returns states in the form of the messages."""
    return [
        messages.StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
        for first, last, state, count in batches
    ]


def from_batches(batches: Sequence[messages.StateBatch]) -> list[StateBatch]:
    """Returns the states in a message.

    Raises:
        KafkaError: INVALID_REQUEST, a state is not known.
    """
    try:
        return [
            StateBatch(each.first_offset, each.last_offset, state_of(each.delivery_state), each.delivery_count)
            for each in batches
        ]
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _none(result: object) -> None:
    """Reads a result that has only an error."""


def _initialize_partition(operation: Operation) -> messages.InitializePartition:
    start_offset = NO_OFFSET if operation.start_offset is None else operation.start_offset
    return messages.InitializePartition(
        partition=operation.key.partition, state_epoch=operation.state_epoch, start_offset=start_offset
    )


def _read_partition(operation: Operation) -> messages.ReadPartition:
    return messages.ReadPartition(partition=operation.key.partition, leader_epoch=operation.leader_epoch)


def _write_partition(operation: Operation) -> messages.WritePartition:
    change = operation.change
    assert change is not None, "a write has a change"
    return messages.WritePartition(
        partition=operation.key.partition,
        state_epoch=operation.state_epoch,
        leader_epoch=operation.leader_epoch,
        start_offset=change.start_offset,
        delivery_complete_count=change.delivery_complete_count,
        state_batches=to_batches(change.batches),
    )


def _write(coordinator: ShareCoordinator, operation: Operation) -> None:
    assert operation.change is not None, "a write has a change"
    coordinator.write(operation.key, operation.state_epoch, operation.leader_epoch, operation.change)


def _read_result(result: messages.ReadPartitionResult) -> ReadState | KafkaError:
    try:
        batches = from_batches(result.state_batches)
    except KafkaError as error:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message)
    return ReadState(result.state_epoch, None if result.start_offset == NO_OFFSET else result.start_offset, batches)


def _summary(result: messages.SummaryPartitionResult) -> Summary:
    return Summary(
        result.state_epoch,
        result.leader_epoch,
        None if result.start_offset == NO_OFFSET else result.start_offset,
        None if result.delivery_complete_count == NO_COUNT else result.delivery_complete_count,
    )


INITIALIZE = Kind(
    "share-state-initialize",
    messages.INITIALIZE_SHARE_GROUP_STATE,
    0,
    messages.InitializeTopic,
    _initialize_partition,
    _none,
    lambda coordinator, each: coordinator.initialize(each.key, each.state_epoch, each.start_offset),
)
READ = Kind(
    "share-state-read",
    messages.READ_SHARE_GROUP_STATE,
    0,
    messages.ReadTopic,
    _read_partition,
    _read_result,
    lambda coordinator, each: coordinator.read(each.key, each.leader_epoch),
)
WRITE = Kind(
    "share-state-write",
    messages.WRITE_SHARE_GROUP_STATE,
    1,
    messages.WriteTopic,
    _write_partition,
    _none,
    _write,
)
DELETE = Kind(
    "share-state-delete",
    messages.DELETE_SHARE_GROUP_STATE,
    0,
    messages.DeleteTopic,
    lambda each: messages.DeletePartition(partition=each.key.partition),
    _none,
    lambda coordinator, each: coordinator.delete(each.key),
)
SUMMARIZE = Kind(
    "share-state-summary",
    messages.READ_SHARE_GROUP_STATE_SUMMARY,
    1,
    messages.ReadTopic,
    _read_partition,
    _summary,
    lambda coordinator, each: coordinator.summarize(each.key),
)
KINDS = (INITIALIZE, READ, WRITE, DELETE, SUMMARIZE)
