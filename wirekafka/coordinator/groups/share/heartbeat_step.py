"""One heartbeat of a member of a share group: the partitions with state, and the member's target.

The part that consumer groups have too is in `modern/heartbeat_step.py`. A member reaches its target at once, because several
members may fetch from the same partition.

Source: GroupMetadataManager (shareGroupHeartbeat, maybeReconcile), ShareGroupAssignmentBuilder of Apache Kafka 4.3; KIP-932.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wirekafka.coordinator.groups.modern.assignors import AssignedMember, Assignor
from wirekafka.coordinator.groups.modern.heartbeat_step import HeartbeatStep, StepContext
from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.coordinator.groups.share.assignor import NAME, assign_simply
from wirekafka.coordinator.groups.share.group import ShareGroup
from wirekafka.coordinator.groups.share.records import (
    InitializedTopics,
    ShareCurrentRecord,
    ShareMember,
    ShareMemberRecord,
    StatePartitionsRecord,
)


class ShareHeartbeatStep(HeartbeatStep[ShareMember]):
    """The step of one heartbeat.

    Args:
        initialized: the partitions that get state with this heartbeat.
    """

    def __init__(
        self,
        group: ShareGroup,
        member: ShareMember,
        updated: ShareMember,
        context: StepContext,
        initialized: InitializedTopics,
    ) -> None:
        super().__init__(group, member, updated, context)
        self._group = group
        self._initialized = _joined(group.initialized, initialized) if initialized else group.initialized
        self._is_initialized_anew = bool(initialized)

    def run(self) -> None:
        """Runs the whole step."""
        must_grow = self._record_member()
        if self._is_initialized_anew:
            self._out.records.append(StatePartitionsRecord(self._group.group_id, self._initialized))
        if self._group.assignment_epoch >= self._group.group_epoch:
            must_grow |= self._group.is_assignment_pending(self._initialized, self._names_after())
        self.update_epoch(must_grow=must_grow)
        self.update_target()
        self._reconcile()

    def _record_member(self) -> bool:
        """Records the member if it is new or has changed; returns whether its subscription has changed."""
        if self.updated == self._member and self.updated.member_id in self._group.members:
            return False
        self._out.records.append(ShareMemberRecord(self._group.group_id, self.updated.member_id, self.updated))
        return self.updated.subscribed_topic_names != self._member.subscribed_topic_names

    def _assignor(self) -> tuple[str, Assignor]:
        assignable = {topic_id: partitions for topic_id, (_, partitions) in self._initialized.items()}

        def assign(members: Sequence[AssignedMember], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
            return assign_simply(members, assignable)

        return NAME, assign

    def _reconcile(self) -> None:
        """Moves the member to its target."""
        member = self.updated
        if self.target_epoch == member.member_epoch and self.group_epoch == self._group.group_epoch:
            return
        topics = (self._group.image.find(name) for name in member.subscribed_topic_names)
        subscribed = {topic.topic_id for topic in topics if topic is not None}
        assigned = {topic_id: partitions for topic_id, partitions in self.target.items() if topic_id in subscribed}
        self.updated = replace(member, assigned=assigned)
        if self.target_epoch != member.member_epoch:
            self.updated = replace(self.updated, member_epoch=self.target_epoch, previous_member_epoch=member.member_epoch)
        if self.updated != member:
            self._out.records.append(ShareCurrentRecord(self._group.group_id, member.member_id, self.updated))


def _joined(topics: InitializedTopics, more: InitializedTopics) -> InitializedTopics:
    joined = dict(topics)
    for topic_id, (name, partitions) in more.items():
        _, known = joined.get(topic_id, (name, frozenset[int]()))
        joined[topic_id] = name, known | partitions
    return joined
