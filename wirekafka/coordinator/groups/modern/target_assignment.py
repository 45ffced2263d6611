"""The target assignment of a group: the inputs of its computation, and the computation of large ones off the loop.

How it works: a heartbeat that finds a target due makes a `TargetAssignment`, a snapshot of the members and topics. A small
one is computed in the heartbeat. A large one would hold the loop, so it is computed in a thread, while heartbeats are answered
with the assignment that the group has. Its records are appended in pieces, and the record of the assignment epoch is the last.
The members follow the new target with their next heartbeats.

Rules of this file:
    `compute` reads the snapshot alone, so a thread may run it.
    At most one assignment of a group is computed off the loop: it is the group's `assigning` from `begin` to the last piece.
    An assignment that has begun is stored even if the group epoch has grown meanwhile, because a group whose members come and go
    all the time would never get a target otherwise. The next heartbeat begins the assignment for the newer epoch. Members that
    have left get no record.

Source: KIP-1263 (assignor offload), TargetAssignmentBuilder of Apache Kafka 4.3. Kafka computes every target off the loop, unless
`group.consumer.assignor.offload.enable` or `group.share.assignor.offload.enable` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from wirekafka.coordinator.effects import BackgroundWork, Effects
from wirekafka.coordinator.groups.modern.assignors import AssignedMember, Assignor
from wirekafka.coordinator.groups.modern.group import ModernGroup
from wirekafka.coordinator.groups.modern.records import MemberTargetRecord
from wirekafka.coordinator.groups.modern.subscriptions import TopicNames
from wirekafka.coordinator.groups.modern.topics import Partitions

log = structlog.get_logger(__name__)

COMPUTED_AT_ONCE = 4000
"""The largest `TargetAssignment.size` that is computed on the loop: about 10 ms with its records where no two members subscribe
to the same topics (2026-11-22)."""

STORED_AT_ONCE = 2000
"""The most members, topics and partitions that the target records of one piece have together, unless a single target has more.
One costs up to 3 us."""

FindGroup = Callable[[str], "ModernGroup[Any] | None"]
"""Returns the current group with an id; None if there is no such group of this type."""


class Subscriber(NamedTuple):
    """A member in the snapshot.

    Attributes:
        subscription: the topics to which the member subscribes, in one or more sets that members share.
        target: the target in the log; None if there is none.
    """

    member_id: str
    instance_id: str | None
    subscription: tuple[TopicNames, ...]
    target: Partitions | None


class ComputedTargets(NamedTuple):
    """The result of an assignor.

    Attributes:
        of_member: the target of each member.
        changed: the ids of the members whose target is not in the log yet.
    """

    of_member: dict[str, Partitions]
    changed: list[str]


@dataclass(slots=True)
class TargetAssignment:
    """The inputs of one target assignment.

    Attributes:
        epoch: the group epoch of the assignment.
        assignor: the name of the assignor.
        topics: the id and the number of partitions of each topic that exists, by its name.
    """

    group_id: str
    epoch: int
    assignor: str
    assign: Assignor
    members: Sequence[Subscriber]
    topics: Mapping[str, tuple[bytes, int]]

    @property
    def size(self) -> int:
        """The number of members and partitions; also of the members' topics, unless all members subscribe to the same ones."""
        subscriptions = {member.subscription for member in self.members}
        size = len(self.members) + sum(count for _, count in self.topics.values())
        if len(subscriptions) > 1:
            size += sum(len(names) for member in self.members for names in member.subscription)
        return size

    def compute(self) -> ComputedTargets:
        """Runs the assignor."""
        topic_ids: dict[tuple[TopicNames, ...], frozenset[bytes]] = {}
        members = []
        for member in self.members:
            subscribed = topic_ids.get(member.subscription)
            if subscribed is None:
                names = frozenset[str]().union(*member.subscription)
                found = (self.topics.get(name) for name in names)
                subscribed = topic_ids[member.subscription] = frozenset(topic[0] for topic in found if topic is not None)
            members.append(AssignedMember(member.member_id, member.instance_id, subscribed, member.target or {}))
        targets = self.assign(members, dict(self.topics.values()))
        return ComputedTargets(
            targets, [member.member_id for member in self.members if _differs(member.target, targets[member.member_id])]
        )

    def in_background(self, find: FindGroup) -> BackgroundWork:
        """Returns the assignment as work off the loop, whose result becomes records."""
        return BackgroundWork(lambda: self._begin(find), self.compute, lambda targets, now_ms: self._store(find, targets, now_ms))

    def _begin(self, find: FindGroup) -> bool:
        group = find(self.group_id)
        if group is None or group.assigning is not None:
            return False
        group.assigning = self
        log.info("Computing an assignment", group=self.group_id, epoch=self.epoch, members=len(self.members))
        return True

    def _store(self, find: FindGroup, targets: ComputedTargets | None, now_ms: int) -> Iterator[Effects]:
        group = find(self.group_id)
        if group is None or group.assigning is not self:
            return
        try:
            if targets is not None:
                yield from self._pieces(group, lambda: find(self.group_id) is group, targets, now_ms)
        finally:
            group.assigning = None

    def _pieces(
        self, group: ModernGroup[Any], is_current: Callable[[], bool], targets: ComputedTargets, now_ms: int
    ) -> Iterator[Effects]:
        """Yields the records of the targets, then the record of the epoch. Ends early if the group ends or an append fails."""
        records: list[MemberTargetRecord] = []
        size = 0
        instance_ids = {member.member_id: member.instance_id for member in self.members}
        for assigned_id in targets.changed:
            target = targets.of_member[assigned_id]
            target_size = 1 + len(target) + sum(map(len, target.values()))
            if records and size + target_size > STORED_AT_ONCE:
                yield Effects(records=[*records], is_atomic=False)
                if not is_current() or not group.has_stored(records[-1]):
                    return
                records, size = [], 0
            member_id = group.current_member_id(assigned_id, instance_ids[assigned_id])
            if member_id is not None:
                records.append(group.target_record(group.group_id, member_id, target))
                size += target_size
        yield Effects(records=[*records, group.target_epoch_record(group.group_id, self.epoch, now_ms)], is_atomic=False)
        log_assigned(self, targets)


def log_assigned(assignment: TargetAssignment, targets: ComputedTargets) -> None:
    """Logs that a group has a new target."""
    log.info(
        "Assigned partitions",
        group=assignment.group_id,
        epoch=assignment.epoch,
        assignor=assignment.assignor,
        members=len(assignment.members),
        changed=len(targets.changed),
    )


def _differs(stored: Partitions | None, target: Partitions) -> bool:
    return stored is not target and stored != target
