"""ShareAcknowledge: a member of a share group acknowledges records that it has acquired.

Behaviour:
    A record is accepted (1), released for another delivery (2), rejected (3), or marked as a gap (0). A batch has one type for a
    range of offsets, or one type for each offset. With `is_renew_ack` a member may also renew its acquisition locks (4). The
    acknowledgements of a partition are applied together or not at all: INVALID_RECORD_STATE if the member no longer has one of
    the records; INVALID_REQUEST for ranges out of order, for unknown types, and for records that were never acquired. The
    response is sent after the new state is written.
    In a cluster, NOT_LEADER_OR_FOLLOWER comes with the leader of the partition and its address (KIP-951).
    The session's epoch must be the next one: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH. Epoch -1 ends the session, and
    releases the records that the member still has.

Versions:
    1: as described (KIP-932). 2: renewal, and the lock's duration in the answer (KIP-1222).

Differs from Apache Kafka:
    With another error, `current_leader` is -1 (no leader). Apache Kafka leaves it at 0, and some clients then look for broker 0.
    Version 0, of an early preview that Apache Kafka 4 does not serve, is not served.
    The group's start offset moves, and is written, with the acknowledgement that allows it. Apache Kafka moves it with the next
    one.

Source: KafkaApis.handleShareAcknowledgeRequest, validateAcknowledgementBatches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.current_leader import UNKNOWN, current_leader
from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.share_delivery.sessions import FINAL_EPOCH, INITIAL_EPOCH, PartitionKey, SessionKey
from wirekafka.coordinator.share_delivery.share_partition import Acknowledgement, AcknowledgeType
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Int64, Message, NullableString, String, Uuid, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.pending import Pending, Work
    from wirekafka.replication.partition import Partition

LONGEST_MEMBER_ID = 36


class AcknowledgementBatch(Message):
    """The acknowledgement of a range of records. ShareFetch also uses this message and the next two."""

    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = []


class AcknowledgePartition(Message):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []


class AcknowledgeTopic(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[AcknowledgePartition] = []


class ShareAcknowledgeRequest(Message):
    group_id: Annotated[NullableString, nullable(0)] = None
    member_id: Annotated[NullableString, nullable(0)] = ""
    share_session_epoch: Int32 = 0
    is_renew_ack: Annotated[Bool, since(2)] = False
    topics: list[AcknowledgeTopic] = []


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class PartitionData(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()


class ShareAcknowledgeTopicResponse(Message):
    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[PartitionData] = []


class NodeEndpoint(Message):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[NullableString, nullable(0)] = None


class ShareAcknowledgeResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    acquisition_lock_timeout_ms: Annotated[Int32, since(2)] = 0
    responses: list[ShareAcknowledgeTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []


@serves(79, ShareAcknowledgeRequest, ShareAcknowledgeResponse, versions=range(1, 3), flexible_since=0)
def share_acknowledge(
    broker: Broker, call: Call[ShareAcknowledgeRequest]
) -> ShareAcknowledgeResponse | Pending[ShareAcknowledgeResponse]:
    """Applies the member's acknowledgements, partition by partition."""
    broker.topics.features.require(SHARE_VERSION)
    request = call.request
    call.authorize(Operation.READ, Resource.group(request.group_id or ""))
    key = session_key(request.group_id, request.member_id)
    _check_epoch(broker, key, request.share_session_epoch)
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _acknowledged(broker, call, key))


def _acknowledged(broker: Broker, call: Call[ShareAcknowledgeRequest], key: SessionKey) -> Work[ShareAcknowledgeResponse]:
    request = call.request
    errors = yield from acknowledge_all(broker, call, key, request.topics, is_renewal=request.is_renew_ack)
    if request.share_session_epoch == FINAL_EPOCH:
        broker.share_groups.close_session(key)
    by_topic: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    hints = LeaderHints(broker, call)
    for (topic_id, index), error in errors.items():
        response = by_topic.setdefault(topic_id, ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=[]))
        data = PartitionData(partition_index=index)
        if error is not None:
            data.error_code, data.error_message = error.code, error.message
            data.current_leader = hints.leader_of((topic_id, index), error)
        response.partitions.append(data)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=broker.share_groups.partitions.limits(key.group_id).lock_duration_ms,
        responses=list(by_topic.values()),
        node_endpoints=hints.node_endpoints,
    )


class LeaderHints:
    """The leaders that a response names, so that the client finds the partitions that this broker does not lead.

    Source: KafkaApis.processShareAcknowledgeResponse, processShareFetchResponse.
    """

    def __init__(self, broker: Broker, call: Call[Any]) -> None:
        self._broker = broker
        self._listener = call.client.listener
        self._nodes: dict[int, NodeEndpoint] = {}

    @property
    def node_endpoints(self) -> list[NodeEndpoint]:
        """The addresses of the leaders that were named."""
        return list(self._nodes.values())

    def leader_of(self, partition: PartitionKey, error: KafkaError) -> LeaderIdAndEpoch:
        """Returns what the response says of the leader of a partition that has an error; -1 if it says nothing."""
        found, member = UNKNOWN, self._broker.member
        if member is not None and error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            topic = member.image.by_id.get(partition[0])
            found = UNKNOWN if topic is None else current_leader(self._broker, member, self._listener, topic.name, partition[1])
        if found.node is not None:
            node_id, host, port, rack = found.node
            self._nodes[node_id] = NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
        return LeaderIdAndEpoch(leader_id=found.leader_id, leader_epoch=found.leader_epoch)


def session_key(group_id: str | None, member_id: str | None) -> SessionKey:
    """Returns the key of the session to which a request belongs.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    if group_id is None or not member_id or len(member_id) > LONGEST_MEMBER_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return SessionKey(group_id, member_id)


def _check_epoch(broker: Broker, key: SessionKey, epoch: int) -> None:
    """Advances the session by one epoch, or ends it.

    Raises:
        KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.

    Source: SharePartitionManager.acknowledgeSessionUpdate.
    """
    sessions = broker.share_groups.sessions
    if epoch == INITIAL_EPOCH:
        raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    if epoch == FINAL_EPOCH:
        sessions.get(key)
    else:
        sessions.proceed(key, epoch)


def acknowledge_all(
    broker: Broker, call: Call[Any], key: SessionKey, topics: Iterable[AcknowledgeTopic], *, is_renewal: bool
) -> Work[dict[PartitionKey, KafkaError | None]]:
    """Applies acknowledgements; returns for each named partition its error, or None.

    If a partition is named twice, the last acknowledgements count. A partition without acknowledgements is in the result only
    beside partitions whose acknowledgements were applied, as in Kafka.

    Args:
        is_renewal: the acknowledgements may renew acquisition locks.

    Source: KafkaApis.handleAcknowledgements.
    """
    said: dict[PartitionKey, list[Acknowledgement]] = {}
    for topic in topics:
        for partition in topic.partitions:
            said[topic.topic_id, partition.partition_index] = [
                Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in partition.acknowledgement_batches
            ]
            yield
    errors: dict[PartitionKey, KafkaError | None] = {}
    sound: dict[PartitionKey, list[Acknowledgement]] = {}
    for name, words in said.items():
        errors[name] = _refusal(broker, call, name, words, is_renewal=is_renewal)
        if words and errors[name] is None:
            sound[name] = words
        yield
    if not sound:
        return {name: error for name, error in errors.items() if error is not None}
    return errors | (yield from broker.share_groups.acknowledge(key, sound))


def _refusal(
    broker: Broker, call: Call[Any], name: PartitionKey, said: list[Acknowledgement], *, is_renewal: bool
) -> KafkaError | None:
    """Returns the error of acknowledgements that does not depend on the member; None if they are valid."""
    topic_id, index = name
    try:
        call.authorize(Operation.READ, Resource.topic(broker.topics.get(topic_id).name))
        if not _are_sound(said, is_renewal=is_renewal):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        check_leader(broker, broker.topics.find_partition(topic_id, index))
    except KafkaError as error:
        return KafkaError(error.code)  # Kafka gives no message in this case
    return None


def check_leader(broker: Broker, partition: Partition) -> None:
    """Raises unless this broker leads the partition; one that is closed finds its error later.

    Raises:
        KafkaError: NOT_LEADER_OR_FOLLOWER.
    """
    if partition.leader != broker.node_id and not partition.is_gone:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _are_sound(said: list[Acknowledgement], *, is_renewal: bool) -> bool:
    """Whether the ranges are in order and have valid types.

    Source: KafkaApis.validateAcknowledgementBatches.
    """
    greatest = AcknowledgeType.RENEW if is_renewal else AcknowledgeType.REJECT
    previous_offset = -1
    for first_offset, last_offset, types in said:
        if not previous_offset <= first_offset <= last_offset or not types:
            return False
        if len(types) > 1 and last_offset - first_offset != len(types) - 1:
            return False
        if not all(AcknowledgeType.GAP <= each <= greatest for each in types):
            return False
        previous_offset = last_offset
    return True
