"""ShareAcknowledge: a member of a share group says what became of records that it has.

Behaviour:
    A record is accepted (1), released for another try (2), rejected (3) or said not to exist (0); one type for a range of
    offsets, or one for each. With `is_renew_ack` a member may also ask for more time (4). Each partition is taken as a whole or
    not at all: INVALID_RECORD_STATE if the member does not have one of the records any more, INVALID_REQUEST for ranges that are
    not in order, types that there are not, or records that nobody ever had. What is taken is written before it is answered.
    The session's epoch must be the next one: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH. Epoch -1 ends the session,
    and what the member still has goes back.

Versions:
    1: as described (KIP-932). 2: renewal, and the lock's duration in the answer (KIP-1222).

Differs from Apache Kafka:
    With an error, `current_leader` is -1 (no leader). Kafka leaves it at broker 0, and some clients then look for broker 0.
    Version 0, of an early preview that Kafka 4 does not serve, is not served.
    The group's start offset moves, and is written, with the acknowledgement that lets it, and not with the next one.

Source: KafkaApis.handleShareAcknowledgeRequest, validateAcknowledgementBatches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

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

LONGEST_MEMBER_ID = 36


class AcknowledgementBatch(Message):
    """What is said of a range of records. This and the two that follow are those of ShareFetch, too."""

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
def share_acknowledge(broker: Broker, call: Call[ShareAcknowledgeRequest]) -> ShareAcknowledgeResponse:
    """Takes the member's word, partition by partition."""
    broker.topics.features.require(SHARE_VERSION)
    request = call.request
    call.authorize(Operation.READ, Resource.group(request.group_id or ""))
    key = session_key(request.group_id, request.member_id)
    _check_epoch(broker, key, request.share_session_epoch)
    errors = acknowledge_all(broker, call, key, request.topics, is_renewal=request.is_renew_ack)
    if request.share_session_epoch == FINAL_EPOCH:
        broker.share_groups.close_session(key)
    by_topic: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    for (topic_id, index), error in errors.items():
        response = by_topic.setdefault(topic_id, ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=[]))
        data = PartitionData(partition_index=index)
        if error is not None:
            data.error_code, data.error_message = error.code, error.message
            data.current_leader = LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
        response.partitions.append(data)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=broker.share_groups.partitions.limits(key.group_id).lock_duration_ms,
        responses=list(by_topic.values()),
    )


def session_key(group_id: str | None, member_id: str | None) -> SessionKey:
    """Whose session a request belongs to.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    if group_id is None or not member_id or len(member_id) > LONGEST_MEMBER_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return SessionKey(group_id, member_id)


def _check_epoch(broker: Broker, key: SessionKey, epoch: int) -> None:
    """Moves the session on.

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
) -> dict[PartitionKey, KafkaError | None]:
    """Takes acknowledgements; for each partition that is named, what is wrong with them, None if nothing is.

    Of a partition that is named twice, the last that is said counts. Those of which nothing is said are told of only beside
    others that could be carried out, as Kafka does.

    Args:
        is_renewal: records may be asked for longer.

    Source: KafkaApis.handleAcknowledgements.
    """
    said = {
        (topic.topic_id, partition.partition_index): [
            Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
            for batch in partition.acknowledgement_batches
        ]
        for topic in topics
        for partition in topic.partitions
    }
    errors = {name: _refusal(broker, call, name, words, is_renewal=is_renewal) for name, words in said.items()}
    sound = {name: words for name, words in said.items() if words and errors[name] is None}
    if not sound:
        return {name: error for name, error in errors.items() if error is not None}
    return errors | broker.share_groups.acknowledge(key, sound)


def _refusal(
    broker: Broker, call: Call[Any], name: PartitionKey, said: list[Acknowledgement], *, is_renewal: bool
) -> KafkaError | None:
    """What is wrong with acknowledgements, whoever has the records."""
    topic_id, index = name
    try:
        call.authorize(Operation.READ, Resource.topic(broker.topics.get(topic_id).name))
        if not _are_sound(said, is_renewal=is_renewal):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        broker.topics.find_partition(topic_id, index)
    except KafkaError as error:
        return KafkaError(error.code)  # Kafka gives no message here
    return None


def _are_sound(said: list[Acknowledgement], *, is_renewal: bool) -> bool:
    """Whether the ranges are in order and have types as they should.

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
