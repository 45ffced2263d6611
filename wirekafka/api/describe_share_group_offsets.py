"""DescribeShareGroupOffsets: the start offsets and lags of share groups.

Behaviour:
    The start offset is the offset of the first record that the group has not finished. The lag is the number of records from
    there on that the group has not finished. Both are -1 if the group never fetched from the partition, or if the partition or
    the group does not exist. A partition that is offline gets LEADER_NOT_AVAILABLE. Null topics ask for all partitions that the
    group was ever assigned.

Versions:
    0: as described (KIP-932). 1: the lag (KIP-1226).

Differs from Apache Kafka:
    The start offset is the current one. Apache Kafka answers with the last one that it stored, some acknowledgements ago.
    A partition that does not exist has offset -1. Apache Kafka 4.3.1 looks for the partition until the client gives up.
    A group that is named twice is described once, for the first entry.

Source: KafkaApis.handleDescribeShareGroupOffsetsRequest, GroupCoordinatorService.describeShareGroupOffsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Int16, Int32, Int64, Message, NullableString, String, Uuid, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.coordinator.groups.share.requests import ShareOffset
    from wirekafka.coordinator.share_delivery.cluster_states import LookedUp

NOT_KNOWN = -1


class DescribeShareGroupOffsetsRequestTopic(Message):
    topic_name: String = ""
    partitions: list[Int32] = []


class DescribeShareGroupOffsetsRequestGroup(Message):
    group_id: String = ""
    topics: Annotated[list[DescribeShareGroupOffsetsRequestTopic] | None, nullable(0)] = []


class DescribeShareGroupOffsetsRequest(Message):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = []


class DescribeShareGroupOffsetsResponsePartition(Message):
    partition_index: Int32 = 0
    start_offset: Int64 = 0
    leader_epoch: Int32 = 0
    lag: Annotated[Int64, since(1)] = NOT_KNOWN
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None


class DescribeShareGroupOffsetsResponseTopic(Message):
    topic_name: String = ""
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = []


class DescribeShareGroupOffsetsResponseGroup(Message):
    group_id: String = ""
    topics: list[DescribeShareGroupOffsetsResponseTopic] = []
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None


class DescribeShareGroupOffsetsResponse(Message):
    throttle_time_ms: Int32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = []


@serves(90, DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse, versions=range(2), flexible_since=0)
def describe_share_group_offsets(
    broker: Broker, call: Call[DescribeShareGroupOffsetsRequest]
) -> DescribeShareGroupOffsetsResponse | Pending[Any]:
    """Describes the share-partition start offsets of each group of the request."""
    looking_up = None
    if broker.topics.features.level(SHARE_VERSION):
        looking_up = broker.share_groups.look_up_offsets({group.group_id: _wanted(group) for group in call.request.groups})
    if looking_up is None:
        return broker.reply_gate.run_in_slices(broker.slices, lambda: _description(broker, call, None))
    return looking_up.map(lambda found: broker.reply_gate.run_late(broker.slices, lambda: _description(broker, call, found)))


def _wanted(asked: DescribeShareGroupOffsetsRequestGroup) -> dict[str, list[int]] | None:
    """Returns the partitions of a group by topic name; None for all that are initialized."""
    return None if asked.topics is None else {topic.topic_name: topic.partitions for topic in asked.topics}


def _description(
    broker: Broker, call: Call[DescribeShareGroupOffsetsRequest], looked_up: LookedUp | None
) -> Work[DescribeShareGroupOffsetsResponse]:
    asked: dict[str, DescribeShareGroupOffsetsRequestGroup] = {}
    for group in call.request.groups:
        asked.setdefault(group.group_id, group)
    groups = []
    for group in asked.values():
        groups.append((yield from _described(broker, call, group, looked_up)))
        yield
    return DescribeShareGroupOffsetsResponse(groups=groups)


def _described(
    broker: Broker,
    call: Call[DescribeShareGroupOffsetsRequest],
    asked: DescribeShareGroupOffsetsRequestGroup,
    looked_up: LookedUp | None,
) -> Work[DescribeShareGroupOffsetsResponseGroup]:
    if not broker.topics.features.level(SHARE_VERSION):
        return DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)
    try:
        call.authorize(Operation.DESCRIBE, Resource.group(asked.group_id))
        wanted = _wanted(asked)
        described = yield from broker.share_groups.describe_offsets(asked.group_id, wanted, looked_up)
    except KafkaError as error:
        return DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id, error_code=error.code)
    topics = []
    for name, offsets in described.items():
        topic = broker.topics.find(name)
        topic_id = ZERO_TOPIC_ID if topic is None else topic.topic_id
        if call.is_authorized(Operation.DESCRIBE, Resource.topic(name)):
            partitions = yield from collect(map(_partition, offsets))
        elif wanted is None:
            continue
        else:
            partitions = [_denied(offset) for offset in offsets]
        topics.append(DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id, partitions=partitions))
    return DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id, topics=topics)


def _denied(offset: ShareOffset) -> DescribeShareGroupOffsetsResponsePartition:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return DescribeShareGroupOffsetsResponsePartition(partition_index=offset.partition, error_code=code)


def _partition(offset: ShareOffset) -> DescribeShareGroupOffsetsResponsePartition:
    described = DescribeShareGroupOffsetsResponsePartition(partition_index=offset.partition)
    if offset.error is not None:
        described.error_code, described.error_message = offset.error.code, offset.error.message
        return described
    described.start_offset = NOT_KNOWN if offset.start_offset is None else offset.start_offset
    described.leader_epoch = offset.leader_epoch
    described.lag = NOT_KNOWN if offset.lag is None else offset.lag
    return described
