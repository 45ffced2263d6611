"""ConsumerGroupDescribe: the state of consumer groups and their members (KIP-848).

Behaviour:
    The response has each group with its epochs, and each member with its current and its target assignment. Partitions of deleted
    topics are left out. A group that does not exist or has another type gets GROUP_ID_NOT_FOUND, and an empty id gets
    INVALID_GROUP_ID. The error is UNSUPPORTED_VERSION if `group.coordinator.rebalance.protocols` lacks `consumer`, or the feature
    group.version is off.

Versions:
    0. The description, and the operations that the client may do on the group, if the request asks for them.
    1. The type of each member's protocol (KIP-1099).

Differs from Apache Kafka:
    A group that is named twice is described once.

Source: GroupMetadataManager.consumerGroupDescribe, ConsumerGroup.asDescribedGroup, KafkaApis.handleConsumerGroupDescribe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups.consumer.requests import DescribedConsumer
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import NOT_ASKED, Operation, Resource
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Message, NullableString, String, Uuid, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class ConsumerGroupDescribeRequest(Message):
    group_ids: list[String] = []
    include_authorized_operations: Bool = False


class DescribedTopicPartitions(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    topic_name: String = ""
    partitions: list[Int32] = []


class DescribedAssignment(Message):
    topic_partitions: list[DescribedTopicPartitions] = []


class DescribedConsumerGroupMember(Message):
    member_id: String = ""
    instance_id: Annotated[NullableString, nullable(0)] = None
    rack_id: Annotated[NullableString, nullable(0)] = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: Annotated[NullableString, nullable(0)] = None
    assignment: DescribedAssignment = DescribedAssignment()
    target_assignment: DescribedAssignment = DescribedAssignment()
    member_type: Annotated[Int8, since(1)] = -1


class DescribedConsumerGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[DescribedConsumerGroupMember] = []
    authorized_operations: Int32 = NOT_ASKED


class ConsumerGroupDescribeResponse(Message):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedConsumerGroup] = []


CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


@serves(69, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, versions=range(2), flexible_since=0)
def consumer_group_describe(
    broker: Broker, call: Call[ConsumerGroupDescribeRequest]
) -> ConsumerGroupDescribeResponse | Pending[Any]:
    """Describes each group of the request."""
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _description(broker, call))


def _description(broker: Broker, call: Call[ConsumerGroupDescribeRequest]) -> Work[ConsumerGroupDescribeResponse]:
    names = dict.fromkeys(call.request.group_ids)
    groups = []
    for name in names:
        groups.append((yield from _described(broker, call, name)))
        yield
    return ConsumerGroupDescribeResponse(groups=groups)


def _described(broker: Broker, call: Call[ConsumerGroupDescribeRequest], group_id: str) -> Work[DescribedConsumerGroup]:
    group = Resource.group(group_id)
    try:
        call.authorize(Operation.DESCRIBE, group)
        found = broker.consumer_groups.describe(group_id)
        authorize_topics(broker, call, (ids for member in found.members for ids in (*member.assignment, *member.target)))
    except KafkaError as error:
        return DescribedConsumerGroup(group_id=group_id, error_code=error.code, error_message=error.message)
    members = yield from collect(_member(broker, member) for member in found.members)
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=found.state,
        group_epoch=found.group_epoch,
        assignment_epoch=found.assignment_epoch,
        assignor_name=found.assignor,
        members=members,
        authorized_operations=(call.authorized_operations(group) if call.request.include_authorized_operations else NOT_ASKED),
    )


def _member(broker: Broker, member: DescribedConsumer) -> DescribedConsumerGroupMember:
    return DescribedConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=assignment_of(broker, member.assignment),
        target_assignment=assignment_of(broker, member.target),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def authorize_topics(broker: Broker, call: Call[Any], topic_ids: Iterable[bytes]) -> None:
    """Raises unless the client may describe all topics that the members of a group have.

    Raises:
        KafkaError: TOPIC_AUTHORIZATION_FAILED.

    Source: KafkaApis.handleConsumerGroupDescribe.
    """
    for topic_id in set(topic_ids):
        topic = broker.topics.find_by_id(topic_id)
        if topic is not None:
            call.authorize(Operation.DESCRIBE, Resource.topic(topic.name))


def assignment_of(broker: Broker, partitions: Mapping[bytes, Collection[int]]) -> DescribedAssignment:
    """Returns the partitions with the names of their topics; partitions of deleted topics are left out."""
    topics = []
    for topic_id, indexes in partitions.items():
        topic = broker.topics.find_by_id(topic_id)
        if topic is not None:
            topics.append(DescribedTopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=sorted(indexes)))
    return DescribedAssignment(topic_partitions=topics)
