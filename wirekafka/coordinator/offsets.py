"""What groups have read: committed offsets, their deletion and their expiry.

Rules of this file: offsets change in `replay` only; what wants them changed writes records.
    Invariant: who has offsets is in `groups`; a group that exists for its offsets only is a simple one, without a protocol.

Source: OffsetMetadataManager, OffsetExpirationConditionImpl, ClassicGroup (validateOffsetCommit, offsetExpirationCondition);
KIP-211 for what expires when.
"""

from __future__ import annotations

from collections.abc import Iterator

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.group import ClassicGroup, GroupState
from wirekafka.coordinator.group_types import AnyGroup
from wirekafka.coordinator.rebalance import Rebalancer
from wirekafka.coordinator.records import MAX_STRING_BYTES, CommittedOffset, OffsetRecord
from wirekafka.coordinator.requests import CommitRequest, GroupOffsets, PartitionCommit
from wirekafka.coordinator.settings import GroupSettings
from wirekafka.errors import ErrorCode, KafkaError

MAX_TIMESTAMP_MS = 0x7FFFFFFFFFFFFFFF


class Offsets:
    """The committed offsets of all groups.

    Args:
        groups: all groups, by id; shared with the rest of the coordinator.
    """

    def __init__(self, groups: dict[str, AnyGroup], settings: GroupSettings, rebalancer: Rebalancer) -> None:
        self._groups = groups
        self._settings = settings
        self._rebalancer = rebalancer
        self._by_group: dict[str, GroupOffsets] = {}

    def of_group(self, group_id: str) -> GroupOffsets:
        """What the group has committed; empty if there is no such group. Not to be changed."""
        return self._by_group.get(group_id, {})

    def commit(self, request: CommitRequest, now_ms: int) -> tuple[list[ErrorCode], Effects]:
        """Commits offsets; each gets an error or NONE, in the order of the request.

        A member's commit keeps its session alive, and one from outside is accepted while the group has no members.

        Raises:
            KafkaError: for all of them: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND,
                REBALANCE_IN_PROGRESS. For one it is OFFSET_METADATA_TOO_LARGE.
        """
        out = Effects()
        group = self._check_commit(request)
        if isinstance(group, ClassicGroup) and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalancer.renew_session(group, group.members[request.member_id], out)
        expire_timestamp_ms = None
        if request.retention_time_ms is not None:
            expire_timestamp_ms = min(now_ms + request.retention_time_ms, MAX_TIMESTAMP_MS)
        errors = []
        for commit in request.commits:
            if self._is_too_large(commit.metadata):
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(ErrorCode.NONE)
            value = _committed(commit, now_ms, expire_timestamp_ms)
            out.records.append(OffsetRecord(request.group_id, commit.topic, commit.partition, value))
        return errors, out

    def delete(self, group_id: str, partitions: list[tuple[str, int]]) -> tuple[list[ErrorCode], Effects]:
        """Forgets offsets of topics that no member reads; each gets GROUP_SUBSCRIBED_TO_TOPIC or NONE.

        Raises:
            KafkaError: for all of them: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP if the members' topics are
                not known to the coordinator.
        """
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
        out = Effects()
        errors = []
        committed = self.of_group(group_id)
        for topic, partition in partitions:
            if group.is_subscribed_to(topic):
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            errors.append(ErrorCode.NONE)
            if partition in committed.get(topic, {}):
                out.records.append(OffsetRecord(group_id, topic, partition, None))
        return errors, out

    def tombstones(self, group_id: str) -> Iterator[OffsetRecord]:
        """What makes a group forget all its offsets."""
        for topic, partitions in self.of_group(group_id).items():
            for partition in partitions:
                yield OffsetRecord(group_id, topic, partition, None)

    def tombstones_of_topic(self, group_id: str, topic: str) -> Iterator[OffsetRecord]:
        """What makes a group forget its offsets in a topic."""
        for partition in self.of_group(group_id).get(topic, {}):
            yield OffsetRecord(group_id, topic, partition, None)

    def expired(self, group: AnyGroup, now_ms: int) -> tuple[list[OffsetRecord], bool]:
        """The tombstones of a group's expired offsets, and whether none will be left."""
        committed = self._by_group.get(group.group_id)
        if committed is None:
            return [], True
        tombstones = [
            OffsetRecord(group.group_id, topic, partition, None)
            for topic, partitions in committed.items()
            if not group.is_subscribed_to(topic)
            for partition, offset in partitions.items()
            if self._is_expired(group, offset, now_ms)
        ]
        return tombstones, len(tombstones) == sum(map(len, committed.values()))

    def replay(self, record: OffsetRecord) -> None:
        """Takes over what a record says."""
        if record.value is not None:
            self._by_group.setdefault(record.group_id, {}).setdefault(record.topic, {})[record.partition] = record.value
            return
        by_topic = self._by_group.get(record.group_id, {})
        by_partition = by_topic.get(record.topic, {})
        by_partition.pop(record.partition, None)
        if not by_partition:
            by_topic.pop(record.topic, None)
        if not by_topic:
            self._by_group.pop(record.group_id, None)

    def clear(self) -> None:
        """Forgets everything: the log that holds it is gone."""
        self._by_group.clear()

    def _check_commit(self, request: CommitRequest) -> AnyGroup | None:
        """The group, or None for one that comes to be by this commit.

        Source: OffsetMetadataManager.validateOffsetCommit.
        """
        group = self._groups.get(request.group_id)
        if group is None:
            if request.generation_id < 0:
                return None
            is_known = request.knows_consumer_protocol
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if is_known else ErrorCode.ILLEGAL_GENERATION)
        group.check_commit(request, is_transactional=False)
        return group

    def _is_too_large(self, metadata: str) -> bool:
        if not metadata:
            return False
        return len(metadata) > self._settings.offset_metadata_max_bytes or len(metadata.encode()) > MAX_STRING_BYTES

    def _is_expired(self, group: AnyGroup, offset: CommittedOffset, now_ms: int) -> bool:
        """Whether an offset that no member reads on from is to be forgotten.

        Where offsets expire at all, a commit that named its own retention goes by that.
        """
        since_ms = group.offset_age_starts_ms(offset)
        if since_ms is None:
            return False
        if offset.expire_timestamp_ms is not None:
            return now_ms >= offset.expire_timestamp_ms
        return now_ms - since_ms >= self._settings.offsets_retention_ms


def _committed(commit: PartitionCommit, now_ms: int, expire_timestamp_ms: int | None) -> CommittedOffset:
    timestamp_ms = now_ms if commit.commit_timestamp_ms is None else commit.commit_timestamp_ms
    return CommittedOffset(commit.offset, commit.leader_epoch, commit.metadata, timestamp_ms, expire_timestamp_ms)
