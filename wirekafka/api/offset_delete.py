"""OffsetDelete: deletes the committed offsets of a group for topics to which it is no longer subscribed.

Behaviour:
    A partition of a topic to which a member is subscribed gets GROUP_SUBSCRIBED_TO_TOPIC. The broker does not know the
    subscriptions of members that are not consumers; if the group has such members, the whole request gets NON_EMPTY_GROUP. Other
    errors of the whole request are INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, and COORDINATOR_NOT_AVAILABLE if the disk is full. A
    partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION; a partition without an offset gets no error.

Versions:
    0: as described (KIP-496).

Differs from Apache Kafka:
    Nothing.

Source: OffsetMetadataManager.deleteOffsets, KafkaApis.handleOffsetDeleteRequest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Int16, Int32, Message, String

if TYPE_CHECKING:
    from wirekafka.broker import Broker

DELETIONS_AT_ONCE = 500
"""The number of offsets that are deleted in one step, which takes about 5 ms."""


class OffsetDeleteRequestPartition(Message):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Message):
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Message):
    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message):
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Message):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []


@serves(47, OffsetDeleteRequest, OffsetDeleteResponse, versions=range(1), flexible_since=None)
def offset_delete(broker: Broker, call: Call[OffsetDeleteRequest]) -> OffsetDeleteResponse | Pending[Any]:
    """Deletes the offsets of the partitions that exist."""
    call.authorize(Operation.DELETE, Resource.group(call.request.group_id))
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _deletion(broker, call))


def _deletion(broker: Broker, call: Call[OffsetDeleteRequest]) -> Work[OffsetDeleteResponse]:
    request = call.request
    partitions: list[tuple[str, int]] = []
    answers: list[OffsetDeleteResponsePartition] = []
    response = OffsetDeleteResponse()
    for asked in request.topics:
        answered = OffsetDeleteResponseTopic(name=asked.name)
        response.topics.append(answered)
        for partition in asked.partitions:
            answer = OffsetDeleteResponsePartition(partition_index=partition.partition_index)
            answered.partitions.append(answer)
            try:
                call.authorize(Operation.READ, Resource.topic(asked.name))
                broker.topics.find_partition(asked.name, partition.partition_index)
            except KafkaError as error:
                answer.error_code = error.code
            else:
                partitions.append((asked.name, partition.partition_index))
                answers.append(answer)
            yield
        yield
    # At least one step, so that the group is checked even if no partition of the request exists.
    for first in range(0, max(1, len(partitions)), DELETIONS_AT_ONCE):
        try:
            errors = broker.groups.delete_offsets(request.group_id, partitions[first : first + DELETIONS_AT_ONCE])
        except KafkaError as error:
            return OffsetDeleteResponse(error_code=error.code)
        for answer, error_code in zip(answers[first:], errors, strict=False):
            answer.error_code = error_code
        yield
    return response
