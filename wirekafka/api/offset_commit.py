"""OffsetCommit: stores the committed offsets of a group.

Behaviour:
    A member commits with its id and generation, which restarts its session timeout. A client that uses the group only to store
    offsets commits without an id and generation, while the group has no members. Each partition has its own error:
    UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE (`offset.metadata.max.bytes`). Errors of the group
    are in every partition: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS (after JoinGroup
    and before SyncGroup), COORDINATOR_NOT_AVAILABLE if the disk is full. If the error is NONE, the offset is in the log. In a
    consumer group, a member commits with its member epoch, or with an older one if it has owned the partitions since then
    (KIP-1251); otherwise it gets STALE_MEMBER_EPOCH. Before version 9 it gets UNSUPPORTED_VERSION.

Versions:
    0. Offsets without a member.
    1. The member and its generation; each offset's commit time.
    2. A retention time, after which the offsets expire, instead of the commit times.
    3. `throttle_time_ms`. 4: as 3 (KIP-219).
    5. No retention time: only the broker's setting counts (KIP-211).
    6. The leader epoch of the last consumed record (KIP-320).
    7. Static members (KIP-345).
    8. Flexible.
    9. A generation of a group that does not exist gets GROUP_ID_NOT_FOUND; earlier versions have ILLEGAL_GENERATION (KIP-848).
    10. Topics by their ids (KIP-848).

Differs from Apache Kafka:
    Version 0 stores offsets where the other versions do. Apache Kafka kept them in ZooKeeper, and did not check the member.
    On a full disk the error is COORDINATOR_NOT_AVAILABLE, because this broker stays the coordinator. Apache Kafka takes the
    directory offline and answers NOT_COORDINATOR. After either error clients look the coordinator up and try again.

Source: OffsetMetadataManager.commitOffset, KafkaApis.handleOffsetCommitRequest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.groups.requests import CommitRequest, PartitionCommit
from wirekafka.errors import KafkaError
from wirekafka.metadata.operations import READ, Resource
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Int16, Int32, Int64, Message, NullableString, String, Uuid, nullable, since, until

if TYPE_CHECKING:
    from wirekafka.broker import Broker

FIRST_VERSION_WITH_CONSUMER_PROTOCOL = 9
FIRST_VERSION_WITH_TOPIC_IDS = 10

AT_ONCE = 100
"""A request with at most so many topics and partitions together is handled without slices, in less than 2 ms."""

COMMITS_AT_ONCE = 500
"""The number of offsets that are appended in one step, which takes about 5 ms."""


class OffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, since(6)] = -1
    commit_timestamp: Annotated[Int64, since(1), until(1)] = -1
    committed_metadata: Annotated[NullableString, nullable(0)] = ""


class OffsetCommitRequestTopic(Message):
    name: Annotated[String, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_TOPIC_ID
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Message):
    group_id: String = ""
    generation_id_or_member_epoch: Annotated[Int32, since(1)] = -1
    member_id: Annotated[String, since(1)] = ""
    group_instance_id: Annotated[NullableString, since(7), nullable(7)] = None
    retention_time_ms: Annotated[Int64, since(2), until(4)] = -1
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Message):
    name: Annotated[String, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_TOPIC_ID
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Message):
    throttle_time_ms: Annotated[Int32, since(3)] = 0
    topics: list[OffsetCommitResponseTopic] = []


@serves(8, OffsetCommitRequest, OffsetCommitResponse, versions=range(11), flexible_since=8)
def offset_commit(broker: Broker, call: Call[OffsetCommitRequest]) -> OffsetCommitResponse | Pending[Any]:
    """Commits offsets for the partitions that exist; from version 10 on the request names topics by their ids."""
    if not _is_small(call.request):
        return broker.reply_gate.run_in_slices(broker.slices, lambda: _commit_in_slices(broker, call))
    response = OffsetCommitResponse()
    for _ in _commit_request(broker, call, response):
        pass
    return response


def _is_small(request: OffsetCommitRequest) -> bool:
    """Whether the offsets can be committed at once. Slices add a quarter to the time of a commit of one offset (2026-11)."""
    left = AT_ONCE
    for topic in request.topics:
        left -= 1 + len(topic.partitions)
    return left >= 0


def _commit_in_slices(broker: Broker, call: Call[OffsetCommitRequest]) -> Work[OffsetCommitResponse]:
    response = OffsetCommitResponse()
    yield from _commit_request(broker, call, response)
    return response


def _commit_request(broker: Broker, call: Call[OffsetCommitRequest], response: OffsetCommitResponse) -> Iterator[None]:
    """Commits the offsets of a request, in steps, and fills the response."""
    request = call.request
    has_topic_ids = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    find_partition = broker.topics.find_partition
    commits: list[PartitionCommit] = []
    answers: list[OffsetCommitResponsePartition] = []
    refusal = None
    try:
        call.authorize(READ, Resource.group(request.group_id))
    except KafkaError as error:
        refusal = error
    for asked in request.topics:
        topic = asked.topic_id if has_topic_ids else asked.name
        answered: list[OffsetCommitResponsePartition] = []
        response.topics.append(OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=answered))
        for partition in asked.partitions:
            answer = OffsetCommitResponsePartition(partition_index=partition.partition_index)
            answered.append(answer)
            if refusal is not None:
                answer.error_code = refusal.code
                continue
            try:
                found = find_partition(topic, partition.partition_index)
                call.authorize(READ, Resource.topic(found.topic))
            except KafkaError as error:
                answer.error_code = error.code
            else:
                commits.append(
                    PartitionCommit(
                        found.topic,
                        partition.partition_index,
                        partition.committed_offset,
                        None if partition.committed_leader_epoch == -1 else partition.committed_leader_epoch,
                        partition.committed_metadata or "",
                        None if partition.commit_timestamp == -1 else partition.commit_timestamp,
                    )
                )
                answers.append(answer)
                if len(commits) == COMMITS_AT_ONCE:
                    yield
                    _commit_all(broker, call, commits, answers)
                    commits, answers = [], []
            yield
    if commits:
        _commit_all(broker, call, commits, answers)


def _commit_all(
    broker: Broker,
    call: Call[OffsetCommitRequest],
    commits: list[PartitionCommit],
    answers: list[OffsetCommitResponsePartition],
) -> None:
    """Commits offsets in one step, and sets the error code in the answer of each partition."""
    request = call.request
    try:
        errors = broker.groups.commit_offsets(
            CommitRequest(
                request.group_id,
                commits,
                member_id=request.member_id,
                generation_id=request.generation_id_or_member_epoch,
                group_instance_id=request.group_instance_id,
                retention_time_ms=None if request.retention_time_ms == -1 else request.retention_time_ms,
                knows_consumer_protocol=call.version >= FIRST_VERSION_WITH_CONSUMER_PROTOCOL,
            )
        )
    except KafkaError as error:
        errors = [error.code] * len(commits)
    for answer, error_code in zip(answers, errors, strict=True):
        answer.error_code = error_code
