"""AlterShareGroupOffsets: sets the start offsets of a share group without members.

Behaviour:
    The state of these partitions in the group is reset, and the group continues at the given offset. A group that does not exist
    is created. The errors are NON_EMPTY_GROUP while the group has members, GROUP_ID_NOT_FOUND for a group of another type, and
    INVALID_GROUP_ID for an empty id. A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, and the others are altered.

Versions:
    0: as described (KIP-932).

Differs from Apache Kafka:
    A negative partition index gets UNKNOWN_TOPIC_OR_PARTITION; Apache Kafka answers UNKNOWN_SERVER_ERROR.
    If none of the partitions exists, no group is created; Apache Kafka creates the group if one of the topics exists.

Source: GroupCoordinatorService.alterShareGroupOffsets, GroupMetadataManager.alterShareGroupOffsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Int16, Int32, Int64, Message, NullableString, String, Uuid, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class AlterShareGroupOffsetsRequestPartition(Message):
    partition_index: Int32 = 0
    start_offset: Int64 = 0


class AlterShareGroupOffsetsRequestTopic(Message):
    topic_name: String = ""
    partitions: list[AlterShareGroupOffsetsRequestPartition] = []


class AlterShareGroupOffsetsRequest(Message):
    group_id: String = ""
    topics: list[AlterShareGroupOffsetsRequestTopic] = []


class AlterShareGroupOffsetsResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None


class AlterShareGroupOffsetsResponseTopic(Message):
    topic_name: String = ""
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[AlterShareGroupOffsetsResponsePartition] = []


class AlterShareGroupOffsetsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    responses: list[AlterShareGroupOffsetsResponseTopic] = []


@serves(91, AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse, versions=range(1), flexible_since=0)
def alter_share_group_offsets(
    broker: Broker, call: Call[AlterShareGroupOffsetsRequest]
) -> AlterShareGroupOffsetsResponse | Pending[Any]:
    """Sets the share-partition start offsets of one group."""
    broker.topics.features.require(SHARE_VERSION)
    request = call.request
    call.authorize(Operation.READ, Resource.group(request.group_id))
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is invalid.")
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _alteration(broker, call))


def _alteration(broker: Broker, call: Call[AlterShareGroupOffsetsRequest]) -> Work[AlterShareGroupOffsetsResponse | Pending[Any]]:
    request = call.request
    start_offsets: dict[str, dict[int, int]] = {}
    responses = []
    for asked in request.topics:
        topic = broker.topics.find(asked.topic_name)
        response = AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name, partitions=[])
        if topic is not None:
            response.topic_id = topic.topic_id
        for partition in asked.partitions:
            data = AlterShareGroupOffsetsResponsePartition(partition_index=partition.partition_index)
            response.partitions.append(data)
            try:
                call.authorize(Operation.READ, Resource.topic(asked.topic_name))
                broker.topics.find_partition(asked.topic_name, data.partition_index)
            except KafkaError as error:
                data.error_code, data.error_message = error.code, error.message
            else:
                start_offsets.setdefault(asked.topic_name, {})[data.partition_index] = partition.start_offset
            yield
        responses.append(response)
        yield
    altering = yield from broker.share_groups.alter_offsets(request.group_id, start_offsets)
    whole = AlterShareGroupOffsetsResponse(responses=responses)
    return whole if altering is None else altering.map(lambda error: whole if error is None else error)
