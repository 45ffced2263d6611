"""Metadata: the brokers, and the leaders of the partitions of topics.

Behaviour:
    Null topics ask for all topics, an empty list for none; version 0 has no null, and its empty list asks for all.
    A topic that does not exist is created if the client and `auto.create.topics.enable` allow it; the same response describes
    the new topic. Topics that the request names by id are never created. If the request names an id, its names are ignored.
    The address of the broker is the advertised address, or else the address on which this client reached the broker.
    A member of a cluster describes the cluster's image: the live brokers that have the listener of this client, and all topics.
    A partition gets LEADER_NOT_AVAILABLE if its leader is not live, and from version 6 on LISTENER_NOT_FOUND if the leader lacks
    the listener; in version 0 it gets REPLICA_NOT_AVAILABLE if a replica cannot be reached. The controller is asked to create a
    topic, and the client gets UNKNOWN_TOPIC_OR_PARTITION until the topic is there, or the reason why the controller refused it.

Versions:
    0: brokers and topics. 1: null asks for all topics; rack, controller, `is_internal`. 2: cluster id. 3: throttle time.
    4: `allow_auto_topic_creation`. 5: offline replicas (KIP-112). 6: as 5. 7: leader epochs (KIP-320).
    8: authorized operations (KIP-430). 9: flexible. 10: topic ids in the answer (KIP-516).
    11: the cluster's authorized operations move to DescribeCluster (KIP-700). 12: topics by id.
    13: an error code for the whole answer (KIP-1102).

Differs from Apache Kafka:
    The response describes a topic that the request has created; Apache Kafka answers UNKNOWN_TOPIC_OR_PARTITION at first.
    A partition whose directory has failed or whose log is damaged is offline and has no leader; a partition on a full disk keeps
    its leader. Without `zookeeper.connect`, its leader epoch does not change, because no other broker is elected.
    A request creates topics only up to 10,000 metadata records; its other unknown topics get UNKNOWN_TOPIC_OR_PARTITION, and are
    created by the client's next request. A topic that another request is creating gets LEADER_NOT_AVAILABLE.
    A topic that ZooKeeper had when the broker started gets LEADER_NOT_AVAILABLE until the controller has told the broker about
    its partitions. Apache Kafka answers UNKNOWN_TOPIC_OR_PARTITION, by which librdkafka takes the topic for deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, cast

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, NOT_ASKED, Operation, Resource
from wirekafka.metadata.topic_names import is_valid_topic_name
from wirekafka.metadata.topics import MAX_RECORDS_AT_ONCE
from wirekafka.names import INTERNAL_TOPICS, NO_LEADER_ID, ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.replication.partition import Partition
from wirekafka.replication.replica_manager import HostedTopic
from wirekafka.wire.types import Bool, Int16, Int32, Message, NullableString, String, Uuid, nullable, since, until

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.membership.member import Member
    from wirekafka.metadata.image import ClusterImage, TopicImage

NO_CONTROLLER_ID = -1
FIRST_VERSION_WITH_LISTENER_NOT_FOUND = 6


class MetadataRequestTopic(Message):
    topic_id: Annotated[Uuid, since(10)] = ZERO_TOPIC_ID
    name: Annotated[NullableString, nullable(10)] = ""


class MetadataRequest(Message):
    topics: Annotated[list[MetadataRequestTopic] | None, nullable(1)] = []
    allow_auto_topic_creation: Annotated[Bool, since(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, since(8), until(10)] = False
    include_topic_authorized_operations: Annotated[Bool, since(8)] = False


class MetadataResponseBroker(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[NullableString, since(1), nullable(1)] = None


class MetadataResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, since(7)] = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    offline_replicas: Annotated[list[Int32], since(5)] = []


class MetadataResponseTopic(Message):
    error_code: Int16 = 0
    name: Annotated[NullableString, nullable(12)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_TOPIC_ID
    is_internal: Annotated[Bool, since(1)] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[Int32, since(8)] = -2147483648


class MetadataResponse(Message):
    throttle_time_ms: Annotated[Int32, since(3)] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[NullableString, since(2), nullable(2)] = None
    controller_id: Annotated[Int32, since(1)] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[Int32, since(8), until(10)] = -2147483648
    error_code: Annotated[Int16, since(13)] = 0


@serves(3, MetadataRequest, MetadataResponse, versions=range(14), flexible_since=9)
def metadata(broker: Broker, call: Call[MetadataRequest]) -> MetadataResponse | Pending[Any]:
    """Answers one Metadata request; the topics that one slice creates are synced to the disk together."""
    request = call.request
    if call.version in (10, 11) and request.topics is not None and _asks_for_ids(request.topics):
        return _refused(request.topics)
    if broker.member is None and request.topics is not None and len(request.topics) == 1:
        # The usual request, for one topic, is answered without a generator.
        [asked] = request.topics
        if asked.name is not None and asked.topic_id == ZERO_TOPIC_ID:
            topic = broker.topics.find(asked.name)
            if topic is not None and (topic.described is not None or len(topic.partitions) <= PARTITIONS_AT_ONCE):
                return _response(broker, call, [_describe_by_name(call, topic)])
    if broker.member is not None:
        return broker.slices.run(_cluster_description(broker, broker.member, call))
    return broker.slices.run(_description(broker, call), around=broker.topics.together)


def _cluster_description(broker: Broker, member: Member, call: Call[MetadataRequest]) -> Work[MetadataResponse]:
    """Describes the cluster of a member.

    Source: KafkaApis.handleTopicMetadataRequest of Apache Kafka 3.9.
    """
    topics = yield from _cluster_topics(broker, member, call)
    image = member.image
    return _respond(
        call,
        topics,
        brokers=[
            MetadataResponseBroker(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack)
            for node in image.nodes(call.client.listener)
        ],
        cluster_id=broker.cluster_id,
        controller_id=NO_CONTROLLER_ID if image.controller_id is None else image.controller_id,
    )


def _cluster_topics(broker: Broker, member: Member, call: Call[MetadataRequest]) -> Work[list[MetadataResponseTopic]]:
    """Describes topics of the cluster, one or some partitions of one in each step."""
    asked = call.request.topics
    if asked is None or (call.version == 0 and not asked):
        return (yield from _all_in_cluster(member.image, call))
    ids = {topic.topic_id: None for topic in asked if topic.topic_id != ZERO_TOPIC_ID}
    if ids:
        return (yield from _in_cluster_by_id(member.image, call, ids))
    names = {topic.name: None for topic in asked if topic.name is not None}
    return (yield from _in_cluster_by_name(broker, member, call, names))


def _all_in_cluster(image: ClusterImage, call: Call[MetadataRequest]) -> Work[list[MetadataResponseTopic]]:
    described = []
    for name in sorted(image.topics):
        found = image.topics.get(name)
        if found is not None and _may_describe(call, name):
            described.append((yield from _describe_image(image, found, call)))
        yield
    return described


def _in_cluster_by_id(
    image: ClusterImage, call: Call[MetadataRequest], ids: Iterable[bytes]
) -> Work[list[MetadataResponseTopic]]:
    described = []
    for topic_id in ids:
        found = image.by_id.get(topic_id)
        if found is None or not _may_describe(call, found.name):
            described.append(_unknown_id(topic_id))
        else:
            described.append((yield from _describe_image(image, found, call)))
        yield
    return described


def _in_cluster_by_name(
    broker: Broker, member: Member, call: Call[MetadataRequest], names: Iterable[str]
) -> Work[list[MetadataResponseTopic]]:
    """Describes topics; asks the controller to create those that do not exist, if the client and the broker allow it."""
    described: list[MetadataResponseTopic] = []
    missing: dict[str, MetadataResponseTopic] = {}
    for name in names:
        found = member.image.topics.get(name)
        if not _may_describe(call, name):
            described.append(_unavailable(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif found is not None:
            described.append((yield from _describe_image(member.image, found, call)))
        elif name in member.image.untold:
            described.append(_unavailable(name, ErrorCode.LEADER_NOT_AVAILABLE))
        else:
            described.append(_missing(broker, call, name))
            if described[-1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                missing[name] = described[-1]
        yield
    if missing and _may_create(broker, call):
        for name, code in member.controller_requests.create_topics(missing).items():
            missing[name].error_code = code
    return described


def _may_create(broker: Broker, call: Call[MetadataRequest]) -> bool:
    return call.request.allow_auto_topic_creation and broker.config.boolean("auto.create.topics.enable")


def _missing(broker: Broker, call: Call[MetadataRequest], name: str) -> MetadataResponseTopic:
    """Describes a topic that does not exist; with UNKNOWN_TOPIC_OR_PARTITION it may be created."""
    if _may_create(broker, call):
        try:
            if not call.is_authorized(Operation.CREATE, CLUSTER):
                call.authorize(Operation.CREATE, Resource.topic(name))
        except KafkaError as error:
            return _unavailable(name, ErrorCode(error.code))
    is_valid = is_valid_topic_name(name)
    return _unavailable(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION)


def _describe_image(image: ClusterImage, topic: TopicImage, call: Call[MetadataRequest]) -> Work[MetadataResponseTopic]:
    """Describes a topic of the image, some partitions in each step."""
    listener, version = call.client.listener, call.version
    described = []
    for index in sorted(topic.partitions):
        state = topic.partitions.get(index)
        if state is None:
            # The partition was deleted between two steps.
            continue
        found = image.describe(
            state, listener, only_live=version == 0, knows_listeners=version >= FIRST_VERSION_WITH_LISTENER_NOT_FOUND
        )
        described.append(
            MetadataResponsePartition(
                error_code=found.error,
                partition_index=index,
                leader_id=found.leader,
                leader_epoch=found.leader_epoch,
                replica_nodes=list(found.replicas),
                isr_nodes=list(found.in_sync_replicas),
                offline_replicas=list(found.offline_replicas),
            )
        )
        if len(described) % PARTITIONS_AT_ONCE == 0:
            yield
    return MetadataResponseTopic(name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal, partitions=described)


def _description(broker: Broker, call: Call[MetadataRequest]) -> Work[MetadataResponse]:
    return _response(broker, call, (yield from _topics(broker, call)))


def _response(broker: Broker, call: Call[MetadataRequest], topics: list[MetadataResponseTopic]) -> MetadataResponse:
    host, port = broker.advertised_address(call.client)
    return _respond(
        call,
        topics,
        brokers=[MetadataResponseBroker(node_id=broker.node_id, host=host, port=port, rack=broker.config.rack)],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
    )


def _respond(
    call: Call[MetadataRequest],
    topics: list[MetadataResponseTopic],
    *,
    brokers: list[MetadataResponseBroker],
    cluster_id: str,
    controller_id: int,
) -> MetadataResponse:
    request = call.request
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.name is not None:
                topic.topic_authorized_operations = call.authorized_operations(Resource.topic(topic.name))
    return MetadataResponse(
        brokers=brokers,
        cluster_id=cluster_id,
        controller_id=controller_id,
        topics=topics,
        cluster_authorized_operations=(
            call.authorized_operations(CLUSTER) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _asks_for_ids(topics: list[MetadataRequestTopic]) -> bool:
    return any(topic.name is None or topic.topic_id != ZERO_TOPIC_ID for topic in topics)


def _refused(topics: list[MetadataRequestTopic]) -> MetadataResponse:
    """Refuses topic ids in versions 10 and 11, whose messages have the fields but whose brokers do not support them."""
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id)
            for topic in topics
        ]
    )


def _topics(broker: Broker, call: Call[MetadataRequest]) -> Work[list[MetadataResponseTopic]]:
    """Describes the topics, one in each step; creates those that do not exist if the client and the broker allow it."""
    request = call.request
    asked = request.topics
    described: list[MetadataResponseTopic] = []
    if asked is None or (call.version == 0 and not asked):
        for topic in broker.topics:
            if _may_describe(call, topic.name):
                yield from _describing(topic)
                described.append(_describe(topic))
            yield
        return described
    ids = {topic.topic_id: None for topic in asked if topic.topic_id != ZERO_TOPIC_ID}
    if ids:
        for topic_id in ids:
            described.append(_by_id(broker, call, topic_id))
            yield
        return described
    may_create = _may_create(broker, call)
    left_records = MAX_RECORDS_AT_ONCE if may_create else 0
    for name in {topic.name: None for topic in asked if topic.name is not None}:
        found = broker.topics.find(name)
        if found is not None:
            yield from _describing(found)
            described.append(_describe_by_name(call, found))
        else:
            size = 1 + broker.topics.automatic_size(name)
            described.append((yield from _create(broker, call, name, may_create=size <= left_records)))
            left_records -= size
        yield
    return described


def _may_describe(call: Call[MetadataRequest], name: str) -> bool:
    return call.is_authorized(Operation.DESCRIBE, Resource.topic(name))


def _by_id(broker: Broker, call: Call[MetadataRequest], topic_id: bytes) -> MetadataResponseTopic:
    topic = broker.topics.find_by_id(topic_id)
    if topic is None or not _may_describe(call, topic.name):
        return _unknown_id(topic_id)
    return _describe(topic)


def _unknown_id(topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)


def _describe_by_name(call: Call[MetadataRequest], topic: HostedTopic) -> MetadataResponseTopic:
    if not _may_describe(call, topic.name):
        return _unavailable(topic.name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return _describe(topic)


def _create(broker: Broker, call: Call[MetadataRequest], name: str, *, may_create: bool) -> Work[MetadataResponseTopic]:
    """Creates a topic that does not exist, or answers why it is not created."""
    if not _may_describe(call, name):
        return _unavailable(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if not may_create:
        is_valid = is_valid_topic_name(name)
        return _unavailable(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION)
    try:
        if not call.is_authorized(Operation.CREATE, CLUSTER):
            call.authorize(Operation.CREATE, Resource.topic(name))
        return _describe((yield from broker.topics.automatic_creation(name)))
    except KafkaError as error:
        # Another request is creating the topic, so the client must retry.
        is_being_created = error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        return _unavailable(name, ErrorCode.LEADER_NOT_AVAILABLE if is_being_created else error.code)


def _unavailable(name: str, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)


PARTITIONS_AT_ONCE = 200
"""The number of partitions that are described between two yields."""


def _describing(topic: HostedTopic) -> Work[None]:
    """Describes the partitions of a large topic in steps, unless they have been described before."""
    if topic.described is None and len(topic.partitions) > PARTITIONS_AT_ONCE:
        partitions, described = topic.partitions, []
        for first in range(0, len(partitions), PARTITIONS_AT_ONCE):
            described += [_describe_partition(partition) for partition in partitions[first : first + PARTITIONS_AT_ONCE]]
            yield
        if topic.partitions is partitions and not any(partition.is_offline for partition in partitions):
            topic.described = described


def _describe(topic: HostedTopic) -> MetadataResponseTopic:
    # The description is kept, because clients send Metadata often: 500 partitions take a millisecond to describe.
    if topic.described is None:
        topic.described = [_describe_partition(partition) for partition in topic.partitions]
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=cast(list[MetadataResponsePartition], topic.described),
    )


def _describe_partition(partition: Partition) -> MetadataResponsePartition:
    """Describes one partition; LEADER_NOT_AVAILABLE while it is offline.

    Source: KRaftMetadataCache.getPartitionMetadata.
    """
    if partition.is_offline:
        return MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=partition.index,
            leader_id=NO_LEADER_ID,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.in_sync_replicas),
            offline_replicas=list(partition.replicas),
        )
    return MetadataResponsePartition(
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.in_sync_replicas),
    )
