"""OffsetFetch: the committed offsets of groups.

Behaviour:
    A partition without a committed offset has offset -1 and no error, whether the group and the partition exist or not.
    Null topics ask for all partitions of the group that have offsets.
    With `require_stable`, a partition whose offset an open transaction is about to change has UNSTABLE_OFFSET_COMMIT, and the
    client asks again.
    In a group of the consumer protocol, the member id and epoch of the request are checked. The errors of the group are
    UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, and ILLEGAL_GENERATION for a member that uses the classic protocol.
    A partition that the request names twice is answered once, because its metadata can be a thousand times as long as its name.

Versions:
    0. A partition without an offset gets UNKNOWN_TOPIC_OR_PARTITION.
    1. A partition without an offset has offset -1 and no error.
    2. Null topics ask for all partitions; an error code for the whole response.
    3. `throttle_time_ms`. 4: as 3 (KIP-219).
    5. The leader epoch that was committed (KIP-320).
    6. Flexible.
    7. `require_stable`: the client waits for offsets that open transactions change (KIP-447).
    8. Several groups at once (KIP-709).
    9. The member and its epoch, which are ignored in a group of the classic protocol (KIP-848).
    10. Topics by their ids; an unknown id gets UNKNOWN_TOPIC_ID (KIP-848).

Differs from Apache Kafka:
    Version 0 reads the offsets that the other versions read. Apache Kafka read them from ZooKeeper.
    A member epoch without a member id gets UNKNOWN_MEMBER_ID. Apache Kafka answers UNKNOWN_SERVER_ERROR.
    A partition that is named twice is answered once.
    In a cluster, the response waits until the replicas have the commits before the request, as under "Coordinators in a cluster".

Source: OffsetMetadataManager.fetchOffsets and fetchAllOffsets, KafkaApis.handleOffsetFetchRequest, OffsetFetchResponse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups.requests import GroupOffsets
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import NO_LEADER_EPOCH, ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Bool, Int16, Int32, Int64, Message, NullableString, String, Uuid, nullable, since, until

if TYPE_CHECKING:
    from wirekafka.broker import Broker

NameOrId = TypeVar("NameOrId", str, bytes)

FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10


class OffsetFetchRequestTopic(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class OffsetFetchRequestTopics(Message):
    name: Annotated[String, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_TOPIC_ID
    partition_indexes: list[Int32] = []


class OffsetFetchRequestGroup(Message):
    group_id: String = ""
    member_id: Annotated[NullableString, since(9), nullable(9)] = None
    member_epoch: Annotated[Int32, since(9)] = -1
    topics: Annotated[list[OffsetFetchRequestTopics] | None, nullable(8)] = []


class OffsetFetchRequest(Message):
    group_id: Annotated[String, until(7)] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, until(7), nullable(2)] = []
    groups: Annotated[list[OffsetFetchRequestGroup], since(8)] = []
    require_stable: Annotated[Bool, since(7)] = False


class OffsetFetchResponsePartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, since(5)] = -1
    metadata: Annotated[NullableString, nullable(0)] = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Message):
    name: String = ""
    partitions: list[OffsetFetchResponsePartition] = []


class OffsetFetchResponsePartitions(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: Annotated[NullableString, nullable(8)] = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Message):
    name: Annotated[String, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_TOPIC_ID
    partitions: list[OffsetFetchResponsePartitions] = []


class OffsetFetchResponseGroup(Message):
    group_id: String = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: Int16 = 0


class OffsetFetchResponse(Message):
    throttle_time_ms: Annotated[Int32, since(3)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], until(7)] = []
    error_code: Annotated[Int16, since(2), until(7)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], since(8)] = []


@serves(9, OffsetFetchRequest, OffsetFetchResponse, versions=range(11), flexible_since=6)
def offset_fetch(broker: Broker, call: Call[OffsetFetchRequest]) -> OffsetFetchResponse | Pending[Any]:
    """Answers with the committed offsets of one group, and from version 8 on of several groups."""
    if call.version < FIRST_VERSION_WITH_GROUPS:
        return broker.reply_gate.run_in_slices(broker.slices, lambda: _answer_of_one_group(broker, call))
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _answer_of_groups(broker, call))


def _answer_of_groups(broker: Broker, call: Call[OffsetFetchRequest]) -> Work[OffsetFetchResponse]:
    told: defaultdict[str, Told] = defaultdict(set)
    response = OffsetFetchResponse()
    for group in call.request.groups:
        response.groups.append((yield from _group(broker, call, group, told[group.group_id])))
        yield
    return response


def _answer_of_one_group(broker: Broker, call: Call[OffsetFetchRequest]) -> Work[OffsetFetchResponse]:
    request = call.request
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if call.version == 0 else ErrorCode.NONE
    try:
        call.authorize(Operation.DESCRIBE, Resource.group(request.group_id))
        committed = broker.groups.fetch_offsets(request.group_id)
    except KafkaError as error:
        # Versions 0 and 1 have no error for the group, so each partition gets it.
        topics = request.topics or []
        return OffsetFetchResponse(error_code=error.code, topics=[_failed_topic(topic, error.code) for topic in topics])
    offsets = _Offsets(broker, call, request.group_id, committed, request.require_stable)
    response = OffsetFetchResponse()
    for name, indexes in _each_once(_asked(request.topics, offsets), set()):
        partitions = yield from collect(OffsetFetchResponsePartition(**offsets.fields(name, index, missing)) for index in indexes)
        response.topics.append(OffsetFetchResponseTopic(name=name, partitions=partitions))
        yield
    return response


def _failed_topic(topic: OffsetFetchRequestTopic, code: ErrorCode) -> OffsetFetchResponseTopic:
    partitions = [OffsetFetchResponsePartition(**_missing(index, code)) for index in topic.partition_indexes]
    return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)


Told = set[tuple[str | bytes, int]]
"""The partitions of a group that the response already has."""


def _each_once(asked: Iterable[tuple[NameOrId, list[int]]], told: Told) -> Iterator[tuple[NameOrId, list[int]]]:
    """Yields the topics of a request with their partitions, without partitions that the request has named before."""
    for topic, indexes in asked:
        new = [index for index in dict.fromkeys(indexes) if (topic, index) not in told]
        told.update((topic, index) for index in new)
        yield topic, new


def _group(
    broker: Broker, call: Call[OffsetFetchRequest], group: OffsetFetchRequestGroup, told: Told
) -> Work[OffsetFetchResponseGroup]:
    try:
        call.authorize(Operation.DESCRIBE, Resource.group(group.group_id))
        committed = broker.groups.fetch_offsets(group.group_id, group.member_id, group.member_epoch)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    offsets = _Offsets(broker, call, group.group_id, committed, call.request.require_stable)
    has_topic_ids = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    topics = yield from (_topics_by_id(broker, group, offsets, told) if has_topic_ids else _topics_by_name(group, offsets, told))
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _topics_by_name(group: OffsetFetchRequestGroup, offsets: _Offsets, told: Told) -> Work[list[OffsetFetchResponseTopics]]:
    answered = []
    for name, indexes in _each_once(_asked(group.topics, offsets), told):
        partitions = yield from collect(OffsetFetchResponsePartitions(**offsets.fields(name, index)) for index in indexes)
        answered.append(OffsetFetchResponseTopics(name=name, partitions=partitions))
        yield
    return answered


def _asked(
    topics: list[OffsetFetchRequestTopic] | list[OffsetFetchRequestTopics] | None, offsets: _Offsets
) -> Iterable[tuple[str, list[int]]]:
    """Returns the partitions that the request names; if its topics are null, all partitions that have offsets."""
    if topics is None:
        return ((name, list(offsets.committed.get(name, ()))) for name in offsets.visible_topics())
    return ((topic.name, topic.partition_indexes) for topic in topics)


def _topics_by_id(
    broker: Broker, group: OffsetFetchRequestGroup, offsets: _Offsets, told: Told
) -> Work[list[OffsetFetchResponseTopics]]:
    committed = offsets.committed
    if group.topics is None:
        known = [topic for name in offsets.visible_topics() if (topic := broker.topics.find(name)) is not None]
        asked = [(topic.topic_id, list(committed[topic.name])) for topic in known]
    else:
        asked = [(topic.topic_id, topic.partition_indexes) for topic in group.topics]
    answered = []
    for topic_id, indexes in _each_once(asked, told):
        topic = broker.topics.find_by_id(topic_id)
        if topic is None:
            fields = (_missing(index, ErrorCode.UNKNOWN_TOPIC_ID) for index in indexes)
        else:
            fields = (offsets.fields(topic.name, index) for index in indexes)
        partitions = yield from collect(OffsetFetchResponsePartitions(**each) for each in fields)
        answered.append(OffsetFetchResponseTopics(topic_id=topic_id, partitions=partitions))
        yield
    return answered


class _Offsets(NamedTuple):
    """The offsets of a group that one request may see."""

    broker: Broker
    call: Call[OffsetFetchRequest]
    group_id: str
    committed: GroupOffsets
    require_stable: bool

    def visible_topics(self) -> list[str]:
        """Returns the topics with offsets that the client may describe."""
        return [name for name in self.committed if self.call.is_authorized(Operation.DESCRIBE, Resource.topic(name))]

    def fields(self, topic: str, index: int, missing: ErrorCode = ErrorCode.NONE) -> dict[str, Any]:
        """Returns the fields of a partition in the response, for any version."""
        if not self.call.is_authorized(Operation.DESCRIBE, Resource.topic(topic)):
            return _missing(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if self.require_stable and self.broker.groups.is_unstable(self.group_id, topic, index):
            return _missing(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        offset = self.committed.get(topic, {}).get(index)
        if offset is None:
            return _missing(index, missing)
        return {
            "partition_index": index,
            "committed_offset": offset.offset,
            "committed_leader_epoch": NO_LEADER_EPOCH if offset.leader_epoch is None else offset.leader_epoch,
            "metadata": offset.metadata,
        }


def _missing(index: int, error_code: ErrorCode) -> dict[str, Any]:
    return {"partition_index": index, "committed_offset": -1, "error_code": error_code}
