"""One heartbeat of a member of a consumer group or a share group: the group epoch, the target, the member's own assignment.

How it works: a step begins with the member as the group has it and with the member as the heartbeat describes it. Each
method is one part of the heartbeat. Its result goes into the records and into the step, never into the group: the group changes
when the records are replayed. So a method looks at the group as it will be: the subscriptions include the member's new ones.

The two types of groups differ in what makes a new epoch, in the assignor, and in how a member comes to its target: the partitions
of a consumer group have one owner each, and those of a share group do not.

Source: GroupMetadataManager (consumerGroupHeartbeat, shareGroupHeartbeat and what they call) of Apache Kafka 4.3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.groups.modern.assignors import Assignor
from wirekafka.coordinator.groups.modern.group import ModernGroup, ModernMember
from wirekafka.coordinator.groups.modern.subscriptions import TopicNames
from wirekafka.coordinator.groups.modern.target_assignment import (
    COMPUTED_AT_ONCE,
    FindGroup,
    Subscriber,
    TargetAssignment,
    log_assigned,
)
from wirekafka.coordinator.groups.modern.topics import MetadataHashes, Partitions

log = structlog.get_logger(__name__)

RECORDS_AT_ONCE = 1000
"""The number of records that stay together in one batch. Only targets may exceed it, which no member follows before the record of
their epoch. The conversion of a classic group is one batch of any size, because a group cannot be converted in part."""

M = TypeVar("M", bound=ModernMember)


@dataclass(slots=True)
class StepContext:
    """The inputs of a step other than the group and the member.

    Attributes:
        find: returns the current group with an id.
        interval_ms: the time between two assignments of the group.
        effects: receives the records and timers of the step.
    """

    find: FindGroup
    hashes: MetadataHashes
    interval_ms: int
    now_ms: int
    effects: Effects


class HeartbeatStep(ABC, Generic[M]):
    """The step of one heartbeat, or of one JoinGroup of a classic member.

    Args:
        member: the member as the group has it; a new member is not in the group yet.
        updated: the member as the heartbeat describes it.

    Attributes:
        updated: the member with all changes so far.
        group_epoch: the group epoch with all changes so far.
        target_epoch, target: the member's target; the next one after `update_target`.
    """

    def __init__(self, group: ModernGroup[M], member: M, updated: M, context: StepContext) -> None:
        self.updated = updated
        self.group_epoch = group.group_epoch
        self.target_epoch = group.assignment_epoch
        self.target: Partitions = group.target_of(updated)
        self._modern = group
        self._member = member
        self._context = context
        self._out = context.effects

    def update_epoch(self, *, must_grow: bool) -> None:
        """Increases the group epoch if it must grow, or if a topic of the group has changed since topics were last compared."""
        group = self._modern
        if not (must_grow or self._has_new_topics() or group.is_refresh_due):
            return
        metadata_hash = self._metadata_hash()
        if must_grow or metadata_hash != group.metadata_hash or self._must_grow_for_topics():
            self.group_epoch += 1
            self._out.records.append(group.epoch_record(group.group_id, self.group_epoch, metadata_hash))
            log.info("Group epoch begins", group=group.group_id, epoch=self.group_epoch)
        group.refreshed = (group.image.revision, self.group_epoch)

    def _has_new_topics(self) -> bool:
        """Whether this step has looked up topics of the group."""
        return False

    def _must_grow_for_topics(self) -> bool:
        """Whether topics that this step has looked up make a new epoch, whatever their hash is."""
        return False

    def _names_after(self) -> set[str] | None:
        """Returns the topics to which members subscribe by name after this step; None if they stay the same."""
        subscriptions = self._modern.subscriptions
        return subscriptions.topics_after([self._member.subscribed_topic_names], [self.updated.subscribed_topic_names])

    def _metadata_hash(self) -> int:
        """Returns the hash over the topics to which the members subscribe after this step."""
        names, hashes = self._names_after(), self._context.hashes
        return self._modern.current_hash(hashes) if names is None else hashes.of_topics(names)

    def update_target(self) -> None:
        """Computes the target assignment for the group epoch, unless it was computed or the assignment interval is not over.

        A large assignment is computed off the loop; until then the member keeps its current target.
        """
        group, context = self._modern, self._context
        if group.assignment_epoch >= self.group_epoch or not group.can_assign(context.now_ms, context.interval_ms):
            return
        assignment = self._assignment()
        if assignment.size > COMPUTED_AT_ONCE:
            self._out.background = assignment.in_background(context.find)
            return
        targets = assignment.compute()
        self._out.records += [
            group.target_record(group.group_id, member_id, targets.of_member[member_id]) for member_id in targets.changed
        ]
        self._out.records.append(group.target_epoch_record(group.group_id, self.group_epoch, context.now_ms))
        self._out.is_atomic = self._out.must_be_atomic or len(self._out.records) <= RECORDS_AT_ONCE
        self.target_epoch, self.target = self.group_epoch, targets.of_member[self.updated.member_id]
        log_assigned(assignment, targets)

    def _assignment(self) -> TargetAssignment:
        group = self._modern
        name, assign = self._assignor()
        topics = self._topics()
        return TargetAssignment(group.group_id, self.group_epoch, name, assign, self._subscribers(), topics)

    def _topics(self) -> Mapping[str, tuple[bytes, int]]:
        """Returns the id and the number of partitions of each topic of the group after this step, by name."""
        names = self._modern.topics().union(*self._subscription(self.updated))
        found = (self._modern.image.find(name) for name in names)
        return {topic.name: (topic.topic_id, len(topic.partitions)) for topic in found if topic is not None}

    def _subscribers(self) -> Sequence[Subscriber]:
        """Returns the members after this step."""
        group, updated = self._modern, self.updated
        members = self._members_after()
        subscribers = []
        for member_id, member in members.items():
            target = group.targets.get(member_id)
            if member is updated and target is None and self.target:
                target = self.target
            subscribers.append(Subscriber(member_id, member.instance_id, self._subscription(member), target))
        return subscribers

    def _members_after(self) -> dict[str, M]:
        return {**self._modern.members, self.updated.member_id: self.updated}

    def _subscription(self, member: M) -> tuple[TopicNames, ...]:
        """Returns the topics to which a member subscribes, in sets that members share wherever possible."""
        return (member.subscribed_topic_names,)

    @abstractmethod
    def _assignor(self) -> tuple[str, Assignor]:
        """Returns the name of the assignor, and the assignor."""
