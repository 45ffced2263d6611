"""What the APIs have in common by which brokers use the state of share groups: one result for each share partition.

Source: KafkaApis.handleInitializeShareGroupStateRequest and its siblings, ShareCoordinatorService of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from wirekafka.api.registry import Call
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.pending import Pending, Work

if TYPE_CHECKING:
    from wirekafka.broker import Broker

R = TypeVar("R")
T = TypeVar("T")


def answer_each(
    broker: Broker,
    call: Call[Any],
    act: Callable[[ShareKey, Any], R],
    topic_result: Callable[[bytes, list[R]], T],
    refused: Callable[[int, KafkaError], R],
    respond: Callable[[list[T]], Any],
) -> Any | Pending[Any]:
    """Does one operation for each share partition of a request; each succeeds or fails by itself.

    Each partition gets UNSUPPORTED_VERSION while share groups are off, and CLUSTER_AUTHORIZATION_FAILED if the client is not a
    broker: the responses have no error code for the whole request.

    Args:
        act: does the operation, and returns its result.
        topic_result: returns the results of one topic.
        refused: returns the result of a partition whose operation has failed.
        respond: returns the response.
    """
    refusal = _refusal(broker, call)

    def answer() -> Work[Any]:
        topics = []
        for topic in call.request.topics:
            results = []
            for each in topic.partitions:
                try:
                    if refusal is not None:
                        raise refusal
                    results.append(act(ShareKey(call.request.group_id, topic.topic_id, each.partition), each))
                except KafkaError as error:
                    results.append(refused(each.partition, error))
                yield
            topics.append(topic_result(topic.topic_id, results))
        return respond(topics)

    return broker.reply_gate.run_in_slices(broker.slices, answer)


def _refusal(broker: Broker, call: Call[Any]) -> KafkaError | None:
    """Returns why the whole request is refused; None if it is not."""
    try:
        call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
        broker.topics.features.require(SHARE_VERSION)
    except KafkaError as error:
        return error
    return None
