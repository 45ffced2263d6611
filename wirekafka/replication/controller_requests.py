"""LeaderAndIsr and StopReplica, by which a controller tells a broker its roles, in one form for all versions.

Rules of this file: pure.

Source: org.apache.kafka.common.requests.{LeaderAndIsrRequest, LeaderAndIsrResponse, StopReplicaRequest}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wirekafka.errors import ErrorCode
from wirekafka.names import ZERO_TOPIC_ID, TopicPartition
from wirekafka.pending import Work
from wirekafka.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from wirekafka.wire.messages.stop_replica import StopReplicaRequest

UNKNOWN_BROKER_EPOCH = -1
FULL = 2
"""The type of a request that names all partitions of the broker (AbstractControlRequest.Type)."""

STATES_AT_ONCE = 200
"""The number of partitions of a request that are looked at in one step, if nothing is done with them."""

NO_EPOCHS = frozenset({-1, -2})
"""The leader epochs of a StopReplica that are not checked: none, and that of a topic that is deleted (EpochDuringDelete)."""


class TopicState(NamedTuple):
    """The partitions of one topic in a LeaderAndIsr. In versions 0 and 1, there is one `TopicState` for each partition."""

    name: str
    topic_id: bytes
    partitions: list[LeaderAndIsrPartitionState]


class Stop(NamedTuple):
    """One partition of a StopReplica.

    Attributes:
        leader_epoch: one of `NO_EPOCHS` if it is not checked: the version has none, or the topic is deleted.
        is_deletion: whether the log is deleted.
    """

    name: TopicPartition
    leader_epoch: int
    is_deletion: bool


def is_broker_epoch_stale(request_epoch: int, broker_epoch: int, *, is_kraft_controller: bool) -> bool:
    """Whether a request is meant for an earlier registration of this broker.

    Args:
        request_epoch: -1 if the version has none.

    Source: kafka.server.ZkSupport.isBrokerEpochStale.
    """
    return not is_kraft_controller and request_epoch != UNKNOWN_BROKER_EPOCH and request_epoch < broker_epoch


def topic_states(request: LeaderAndIsrRequest) -> Iterator[TopicState]:
    """Yields the topics of a LeaderAndIsr of any version."""
    for state in request.ungrouped_partition_states:
        yield TopicState(state.topic_name, ZERO_TOPIC_ID, [state])
    for topic in request.topic_states:
        yield TopicState(topic.topic_name, bytes(topic.topic_id), topic.partition_states)


def few_states(request: LeaderAndIsrRequest) -> Iterator[tuple[TopicState, list[LeaderAndIsrPartitionState]]]:
    """Yields the partitions of a LeaderAndIsr of any version with their topics, at most `STATES_AT_ONCE` together."""
    for topic in topic_states(request):
        for start in range(0, len(topic.partitions), STATES_AT_ONCE):
            yield topic, topic.partitions[start : start + STATES_AT_ONCE]


def stops(request: StopReplicaRequest) -> Iterator[Stop]:
    """Yields the partitions of a StopReplica of any version."""
    for partition in request.ungrouped_partitions:
        yield Stop(TopicPartition(partition.topic_name, partition.partition_index), -1, request.delete_partitions)
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield Stop(TopicPartition(topic.name, index), -1, request.delete_partitions)
    for state in request.topic_states:
        for each in state.partition_states:
            yield Stop(TopicPartition(state.topic_name, each.partition_index), each.leader_epoch, each.delete_partition)


class LeaderAndIsrAnswer:
    """The answer to a LeaderAndIsr, for all versions: before version 5 the partitions are in one list, then by topic id.

    Attributes:
        response: holds the errors that were added.
    """

    __slots__ = ("_topics", "response")

    def __init__(self) -> None:
        self.response = LeaderAndIsrResponse()
        self._topics: dict[bytes, LeaderAndIsrTopicError] = {}

    def add(self, topic: TopicState, index: int, error: ErrorCode) -> None:
        """Adds the answer for one partition."""
        by_topic = self._topics.get(topic.topic_id)
        if by_topic is None:
            by_topic = self._topics[topic.topic_id] = LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=[])
            self.response.topics.append(by_topic)
        by_topic.partition_errors.append(LeaderAndIsrPartitionError(partition_index=index, error_code=error))
        self.response.partition_errors.append(
            LeaderAndIsrPartitionError(topic_name=topic.name, partition_index=index, error_code=error)
        )


def refusal(request: LeaderAndIsrRequest, error: ErrorCode) -> Work[LeaderAndIsrResponse]:
    """Returns the response to a LeaderAndIsr that is refused as a whole: it has the error for each partition too.

    Source: LeaderAndIsrRequest.getErrorResponse.
    """
    answer = LeaderAndIsrAnswer()
    for topic, states in few_states(request):
        for state in states:
            answer.add(topic, state.partition_index, error)
        yield
    answer.response.error_code = error
    return answer.response
