"""A share group: its members, its epochs, and the partitions from which each member fetches.

How it works: members, epochs and targets are those of `ModernGroup`. Several members may have the same partition, so a
member reaches its target with its next heartbeat, and never waits until another member has revoked a partition.

Rule of this file: `apply` applies the records of live steps and of the log at the start; nothing else changes stored state.

Source: ShareGroup, ModernGroup of Apache Kafka 4.3; KIP-932.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from wirekafka.coordinator.groups.modern.group import FIRST_EPOCH, ModernGroup
from wirekafka.coordinator.groups.modern.topics import Partitions, TopicImage
from wirekafka.coordinator.groups.records import CommittedOffset, CoordinatorRecord
from wirekafka.coordinator.groups.requests import CommitRequest
from wirekafka.coordinator.groups.share.records import (
    InitializedTopics,
    ShareCurrentRecord,
    ShareGroupEpochRecord,
    ShareGroupRecord,
    ShareMember,
    ShareMemberRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitionsRecord,
)
from wirekafka.coordinator.groups.types import SHARE
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError


class ShareGroup(ModernGroup[ShareMember]):
    """A share group; see `ModernGroup` for the part that consumer groups have too.

    Attributes:
        initialized: the partitions whose state is in __share_group_state, so that they can be assigned.
        initializing: in a cluster, the partitions whose state is being initialized (False), or has been since the last change
            of `initialized` (True).
        change_count: increases with each record of the group.
    """

    type_name = SHARE
    epoch_record = ShareGroupEpochRecord
    target_record = ShareTargetRecord
    target_epoch_record = ShareTargetEpochRecord

    __slots__ = ("_is_assignment_pending", "_member_counts", "_uninitialized", "change_count", "initialized", "initializing")

    def __init__(self, group_id: str, partition: int, image: TopicImage) -> None:
        super().__init__(group_id, partition, image)
        self.initialized: InitializedTopics = {}
        self.initializing: dict[ShareKey, bool] = {}
        self.change_count = 0
        # How many members have each partition in their target, by topic id and partition.
        self._member_counts: dict[bytes, dict[int, int]] = {}
        self._is_assignment_pending: tuple[object, bool] = (None, False)
        self._uninitialized: tuple[object, InitializedTopics] = (None, {})

    @property
    def state_name(self) -> str:
        """`Stable` with members, `Empty` without; a share group has no other state."""
        return "Stable" if self.members else "Empty"

    def check_commit(self, request: CommitRequest, *, is_transactional: bool) -> None:
        """Always raises, because a share group has no committed offsets.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        raise self._no_offsets()

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Always raises, because a share group has no committed offsets.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        raise self._no_offsets()

    def check_offset_delete(self) -> None:
        """Always raises, because a share group has no committed offsets.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        raise self._no_offsets()

    def _no_offsets(self) -> KafkaError:
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def check_delete(self) -> None:
        """Raises unless the group may be deleted, or its offsets may be set.

        Raises:
            KafkaError: NON_EMPTY_GROUP.
        """
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def offset_age_starts_ms(self, offset: CommittedOffset) -> int | None:
        """Returns None, because a share group has no committed offsets."""
        return None

    def tombstones(self) -> list[CoordinatorRecord]:
        """Returns the tombstones that delete the group from the log.

        Source: ShareGroup.createGroupTombstoneRecords.
        """
        group_id = self.group_id
        records: list[CoordinatorRecord] = []
        records += [ShareCurrentRecord(group_id, member_id, None) for member_id in self.members]
        records += [ShareTargetRecord(group_id, member_id, None) for member_id in self.members]
        records.append(ShareTargetEpochRecord(group_id, None))
        records += [ShareMemberRecord(group_id, member_id, None) for member_id in self.members]
        records.append(StatePartitionsRecord(group_id, None))
        records.append(ShareGroupEpochRecord(group_id, None))
        return records

    def uninitialized(self, names: Iterable[str] = ()) -> InitializedTopics:
        """Returns the partitions without state, of the topics to which the group subscribes and of the topics `names`.

        The partitions of the group's own topics are cached until a topic or the group changes.
        """
        key = (self.image.revision, self.change_count)
        if self._uninitialized[0] != key:
            self._uninitialized = key, self._uninitialized_of(self.subscriptions)
        missing = self._uninitialized[1]
        added = [name for name in names if name not in self.subscriptions]
        return missing | self._uninitialized_of(added) if added else missing

    def _uninitialized_of(self, names: Iterable[str]) -> InitializedTopics:
        missing: InitializedTopics = {}
        for name in names:
            topic = self.image.find(name)
            if topic is None:
                continue
            _, known = self.initialized.get(topic.topic_id, (name, frozenset[int]()))
            if len(known) < len(topic.partitions):
                missing[topic.topic_id] = name, frozenset(range(len(topic.partitions))) - known
        return missing

    def is_assignment_pending(self, initialized: InitializedTopics, names: Container[str] | None) -> bool:
        """Whether a partition that has state and a subscriber is in no member's target.

        The result for the current group is cached until a topic or the group changes.

        Args:
            initialized: the partitions that have state, including those that get state in this step.
            names: the topics to which the members subscribe after this step; None if they do not change.

        Source: GroupMetadataManager.initializedAssignmentPending.
        """
        if not self.members:
            return False
        if names is not None or initialized is not self.initialized:
            return self._has_unassigned(initialized, self.subscriptions if names is None else names)
        key = (self.image.revision, self.change_count)
        if self._is_assignment_pending[0] != key:
            self._is_assignment_pending = key, self._has_unassigned(initialized, self.subscriptions)
        return self._is_assignment_pending[1]

    def _has_unassigned(self, initialized: InitializedTopics, names: Container[str]) -> bool:
        targeted, nothing = self._member_counts, dict[int, int]()
        return any(
            name in names and targeted.get(topic_id, nothing).keys() != partitions and self.image.find_by_id(topic_id) is not None
            for topic_id, (name, partitions) in initialized.items()
        )

    def _apply_target(self, member_id: str, target: Partitions | None) -> None:
        former, new = self.targets.pop(member_id, {}), target or {}
        for topic_id, partitions in former.items():
            if new.get(topic_id) != partitions:
                self._count(topic_id, partitions, -1)
        for topic_id, partitions in new.items():
            if former.get(topic_id) != partitions:
                self._count(topic_id, partitions, 1)
        if target is not None:
            self.targets[member_id] = target

    def _count(self, topic_id: bytes, partitions: Iterable[int], change: int) -> None:
        counts = self._member_counts.setdefault(topic_id, {})
        for partition in partitions:
            count = counts.get(partition, 0) + change
            if count:
                counts[partition] = count
            else:
                del counts[partition]
        if not counts:
            del self._member_counts[topic_id]

    def apply(self, record: ShareGroupRecord) -> None:
        """Applies a record of the group, except the tombstone of the group itself."""
        self.change_count += 1
        match record:
            case ShareMemberRecord():
                self._apply_member(record)
            case ShareGroupEpochRecord():
                assert record.epoch is not None
                self.group_epoch, self.metadata_hash = record.epoch, record.metadata_hash
            case ShareTargetEpochRecord():
                self.assignment_epoch = FIRST_EPOCH if record.epoch is None else record.epoch
                self.assignment_timestamp_ms = record.timestamp_ms
            case ShareTargetRecord():
                self._apply_target(record.member_id, record.target)
            case ShareCurrentRecord():
                self._apply_current(record)
            case StatePartitionsRecord():
                self.initialized = record.initialized or {}
                self.initializing = {key: False for key, has_state in self.initializing.items() if not has_state}

    def _apply_member(self, record: ShareMemberRecord) -> None:
        former = self.members.get(record.member_id)
        if former is not None:
            self.subscriptions.remove(former.subscribed_topic_names)
        if record.member is None:
            self.members.pop(record.member_id, None)
            return
        said = record.member
        names = self.subscriptions.share(said.subscribed_topic_names)
        self.subscriptions.add(names)
        self.members[record.member_id] = replace(
            former or ShareMember(record.member_id),
            rack_id=said.rack_id,
            client_id=said.client_id,
            client_host=said.client_host,
            subscribed_topic_names=names,
        )

    def _apply_current(self, record: ShareCurrentRecord) -> None:
        former = self.members.get(record.member_id)
        if record.member is None:
            if former is not None:
                self.members[record.member_id] = replace(former, member_epoch=-1, previous_member_epoch=-1, assigned={})
            return
        has = record.member
        self.members[record.member_id] = replace(
            former or ShareMember(record.member_id),
            member_epoch=has.member_epoch,
            previous_member_epoch=has.previous_member_epoch,
            assigned=has.assigned,
        )
