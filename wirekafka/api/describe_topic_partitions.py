"""DescribeTopicPartitions: the leaders and replicas of partitions, in pages.

Behaviour:
    A request without topics asks for all topics. The response has the topics in alphabetical order, with at most
    `response_partition_limit` and at most `max.request.partition.size.limit` partitions. `next_cursor` is the beginning of the
    next page. A topic that does not exist has an error, and does not count towards the limits. Topics are never created.

Versions:
    0: as described (KIP-966).

Differs from Apache Kafka:
    The lists of eligible leader replicas are empty: each partition has one replica, which is in sync.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.metadata.topic_names import is_valid_topic_name
from wirekafka.names import INTERNAL_TOPICS, NO_LEADER_ID, ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.replication.partition import Partition
from wirekafka.slices import collect
from wirekafka.wire.types import Bool, Int16, Int32, Message, NullableString, String, Uuid, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class TopicRequest(Message):
    name: String = ""


class Cursor(Message):
    topic_name: String = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(Message):
    topics: list[TopicRequest] = []
    response_partition_limit: Int32 = 2000
    cursor: Annotated[Cursor | None, nullable(0)] = None


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    eligible_leader_replicas: Annotated[list[Int32] | None, nullable(0)] = None
    last_known_elr: Annotated[list[Int32] | None, nullable(0)] = None
    offline_replicas: list[Int32] = []


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: Int16 = 0
    name: Annotated[NullableString, nullable(0)] = ""
    topic_id: Uuid = ZERO_TOPIC_ID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: Int32 = -2147483648


class DescribeTopicPartitionsResponseCursor(Message):
    topic_name: String = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Annotated[DescribeTopicPartitionsResponseCursor | None, nullable(0)] = None


@serves(75, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, versions=range(1), flexible_since=0)
def describe_topic_partitions(
    broker: Broker, call: Call[DescribeTopicPartitionsRequest]
) -> DescribeTopicPartitionsResponse | Pending[Any]:
    """Answers one DescribeTopicPartitions request."""
    return broker.slices.run(_description(broker, call))


def _description(broker: Broker, call: Call[DescribeTopicPartitionsRequest]) -> Work[DescribeTopicPartitionsResponse]:
    request = call.request
    cursor = request.cursor
    asks_for_all = not request.topics
    names = [topic.name for topic in broker.topics] if asks_for_all else sorted({topic.name for topic in request.topics})
    denied = {name for name in names if not call.is_authorized(Operation.DESCRIBE, Resource.topic(name))}
    names = [name for name in names if name not in denied]
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        is_foreign = not asks_for_all and cursor.topic_name not in names
        if is_foreign or cursor.partition_index < 0:
            return _refused(request)
    limit = max(1, min(request.response_partition_limit, broker.config.integer("max.request.partition.size.limit")))
    response = yield from _page(broker, call, names, cursor, limit)
    if not asks_for_all:
        response.topics += [
            DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
            for name in sorted(denied)
        ]
    return response


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)
            for topic in request.topics
        ]
    )


def _page(
    broker: Broker, call: Call[DescribeTopicPartitionsRequest], names: Iterable[str], cursor: Cursor | None, limit: int
) -> Work[DescribeTopicPartitionsResponse]:
    response = DescribeTopicPartitionsResponse()
    left = limit
    for name in names:
        if left == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=0)
            break
        topic = broker.topics.find(name)
        if topic is None:
            response.topics.append(_unavailable(call, name))
            yield
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        partitions = topic.partitions[first : first + left]
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=(yield from collect(_describe(partition) for partition in partitions)),
                topic_authorized_operations=call.authorized_operations(Resource.topic(name)),
            )
        )
        if first + len(partitions) < len(topic.partitions):
            following = first + len(partitions)
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=following)
            break
        left -= len(partitions)
    return response


def _unavailable(call: Call[DescribeTopicPartitionsRequest], name: str) -> DescribeTopicPartitionsResponseTopic:
    is_valid = is_valid_topic_name(name)
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        topic_id=ZERO_TOPIC_ID,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=call.authorized_operations(Resource.topic(name)),
    )


def _describe(partition: Partition) -> DescribeTopicPartitionsResponsePartition:
    is_offline = partition.is_offline
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if is_offline else ErrorCode.NONE,
        partition_index=partition.index,
        leader_id=NO_LEADER_ID if is_offline else partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.in_sync_replicas),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=list(partition.replicas) if is_offline else [],
    )
