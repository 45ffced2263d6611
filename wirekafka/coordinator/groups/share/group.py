"""A share group: its members, its epochs, and which partitions each member fetches from.

Theory of operation: as in a consumer group (KIP-848), the group epoch grows when a member comes, goes or subscribes anew, or
when a topic changes; the target is computed for a group epoch; each member comes to it with its next heartbeat. Since several
members may have the same partition, nobody has to give anything up first, and no member is ever in between.

Rules of this file: `apply` takes over what a record says, live and at the start alike; nothing else changes what is persisted.
    Invariant: `topic_names` counts the members that subscribe to each topic.

Source: ShareGroup, ModernGroup of Apache Kafka 4.3; KIP-932.
"""

from __future__ import annotations

from dataclasses import replace

from wirekafka.coordinator.groups.modern.subscriptions import Counts, count_in, count_out
from wirekafka.coordinator.groups.modern.topics import Partitions
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
from wirekafka.errors import ErrorCode, KafkaError

SHARE_PROTOCOL_TYPE = "share"

FIRST_EPOCH = 1
"""The epoch of a group before its first member; of its target before the first one."""


class ShareGroup:
    """A group; see the module's invariants.

    Attributes:
        partition: the partition of __consumer_offsets that holds it.
        metadata_hash: over the topics to which its members subscribe, as they were at this epoch.
        assignment_epoch: the epoch for which `targets` were computed.
        assignment_timestamp_ms: when they were; 0 if never.
        targets: what each member is to have.
        initialized: the partitions whose state is in __share_group_state, so that they can be assigned.
        refreshed: the revision of the topics that were compared with the metadata hash last, and the group epoch which that
            came to; if the group did not reach it, they are compared again.
    """

    __slots__ = (
        "assignment_epoch",
        "assignment_timestamp_ms",
        "group_epoch",
        "group_id",
        "initialized",
        "members",
        "metadata_hash",
        "partition",
        "refreshed",
        "targets",
        "topic_names",
    )

    def __init__(self, group_id: str, partition: int) -> None:
        self.group_id = group_id
        self.partition = partition
        self.group_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp_ms = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.topic_names: Counts = {}
        self.initialized: InitializedTopics = {}
        self.refreshed = (0, 0)

    @property
    def group_type(self) -> str:
        """That of all share groups."""
        return SHARE

    @property
    def listed_protocol_type(self) -> str:
        """The protocol type in listings."""
        return SHARE_PROTOCOL_TYPE

    @property
    def state_name(self) -> str:
        """Whether it has members: there is nothing in between."""
        return "Stable" if self.members else "Empty"

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    def check_commit(self, request: CommitRequest, *, is_transactional: bool) -> None:
        """Nobody commits offsets to a share group.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        raise self._no_offsets()

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Nobody reads offsets of a share group.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        raise self._no_offsets()

    def check_offset_delete(self) -> None:
        """Nobody deletes offsets of a share group.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        raise self._no_offsets()

    def _no_offsets(self) -> KafkaError:
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def check_delete(self) -> None:
        """Whether the group may be deleted, or its offsets set.

        Raises:
            KafkaError: NON_EMPTY_GROUP.
        """
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may be reading the topic."""
        return topic in self.topic_names

    def offset_age_starts_ms(self, offset: CommittedOffset) -> int | None:
        """It has no committed offsets that could expire."""
        return None

    def tombstones(self) -> list[CoordinatorRecord]:
        """What makes the log forget the group.

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

    def member(self, member_id: str) -> ShareMember:
        """The member of this id.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID.
        """
        member = self.members.get(member_id)
        if member is None:
            message = f"Member {member_id} is not a member of group {self.group_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member

    def names_with(self, member: ShareMember | None, updated: ShareMember | None) -> Counts:
        """The subscriptions as they are once a member is as it says it is now."""
        counts = dict(self.topic_names)
        if member is not None and member.member_id in self.members:
            count_out(counts, self.members[member.member_id].subscribed_topic_names)
        if updated is not None:
            count_in(counts, updated.subscribed_topic_names)
        return counts

    def apply(self, record: ShareGroupRecord) -> None:
        """Takes over what a record says, but for the group's end."""
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
                if record.target is None:
                    self.targets.pop(record.member_id, None)
                else:
                    self.targets[record.member_id] = record.target
            case ShareCurrentRecord():
                self._apply_current(record)
            case StatePartitionsRecord():
                self.initialized = record.initialized or {}

    def _apply_member(self, record: ShareMemberRecord) -> None:
        former = self.members.get(record.member_id)
        if former is not None:
            count_out(self.topic_names, former.subscribed_topic_names)
        if record.member is None:
            self.members.pop(record.member_id, None)
            return
        said = record.member
        count_in(self.topic_names, said.subscribed_topic_names)
        self.members[record.member_id] = replace(
            former or ShareMember(record.member_id),
            rack_id=said.rack_id,
            client_id=said.client_id,
            client_host=said.client_host,
            subscribed_topic_names=said.subscribed_topic_names,
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
