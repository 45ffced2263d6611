"""All share groups: their members' heartbeats, and what the rest of the coordinator needs of them.

Theory of operation: a heartbeat is one step. It says what the member is now; that may bring the group to a new epoch, a new
epoch to a new target, and a new target brings the member to its epoch. Before partitions can be assigned, their state is
initialised in __share_group_state; the runtime does that for those that `uninitialized` names, before the step.

Rules of this file: no I/O, no clock, no chance.
    A group is in the coordinator's table of groups once the log has a record of it, and only then.

Source: GroupMetadataManager (shareGroupHeartbeat, shareGroupFenceMember, maybeUpdateTargetAssignment, maybeReconcile) of
Apache Kafka 4.3; KIP-932.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog

from wirekafka.coordinator.effects import Effects, TimerKey
from wirekafka.coordinator.groups.share.assignor import SharingMember, assign_simply
from wirekafka.coordinator.groups.share.group import ShareGroup
from wirekafka.coordinator.groups.share.records import (
    SHARE_DECODERS,
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
from wirekafka.coordinator.groups.share.requests import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    DescribedShareGroup,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from wirekafka.coordinator.groups.types import SHARE
from wirekafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from wirekafka.config import GroupConfig
    from wirekafka.coordinator.groups.modern.topics import MetadataHashes, Partitions, TopicImage
    from wirekafka.coordinator.groups.records import Decoder
    from wirekafka.coordinator.groups.types import Group

log = structlog.get_logger(__name__)

RETRY_MS = 500
"""How long after a failed append the removal of a member is tried again."""


@dataclass(frozen=True, slots=True)
class ShareMemberExpired:
    """A member has not been heard of for its session timeout."""

    group_id: str
    member_id: str


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """The key of a member's session timeout."""
    return TimerKey("share-session", group_id, member_id)


class ShareGroups:
    """The share groups among all groups; a `GroupType`.

    Args:
        groups: all groups, by id, of whatever type.
        image: the topics as they are now.
        config_of: the settings of a group.
        max_size: how many members a group may have (group.share.max.size).
        partition_of: the partition of __consumer_offsets that holds a group of this id.
        forget: takes a group whose end is in the log out of `groups`.
    """

    def __init__(
        self,
        groups: dict[str, Group],
        image: TopicImage,
        hashes: MetadataHashes,
        config_of: Callable[[str], GroupConfig],
        max_size: int,
        partition_of: Callable[[str], int],
        forget: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._image = image
        self._hashes = hashes
        self._config_of = config_of
        self._max_size = max_size
        self._partition_of = partition_of
        self._forget = forget

    @property
    def group_type(self) -> str:
        """That of share groups."""
        return SHARE

    @property
    def decoders(self) -> Mapping[int, Decoder]:
        """How their records are read."""
        return SHARE_DECODERS

    @property
    def replayers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        """What takes their records over."""
        kinds = (
            *(ShareCurrentRecord, ShareGroupEpochRecord, ShareMemberRecord),
            *(ShareTargetEpochRecord, ShareTargetRecord, StatePartitionsRecord),
        )
        return dict.fromkeys(kinds, self.replay)

    @property
    def timers(self) -> Mapping[type[Any], Callable[[Any, int, Effects], None]]:
        """What happens when a member's session expires."""
        return {ShareMemberExpired: self._on_expired}

    def on_loaded(self, group: ShareGroup, now_ms: int, effects: Effects) -> None:
        """Gives the members found in the log a session to show up in."""
        for member_id in group.members:
            self._renew_session(group.group_id, member_id, effects)

    def on_unload(self, group: ShareGroup, effects: Effects) -> None:
        """The log is gone, and the group with it."""
        for member_id in group.members:
            effects.cancel_timer(session_timer(group.group_id, member_id))

    def replay(self, record: ShareGroupRecord) -> None:
        """Takes over what a record of the log says."""
        group = self.find(record.group_id)
        if isinstance(record, ShareGroupEpochRecord) and record.epoch is None:
            if group is not None:
                self._forget(record.group_id)
            return
        if group is None:
            if _is_tombstone(record):
                return
            group = ShareGroup(record.group_id, self._partition_of(record.group_id), self._image)
            self._groups[record.group_id] = group
        group.apply(record)

    def find(self, group_id: str) -> ShareGroup | None:
        """The group of this id, if it is a share group."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ShareGroup) else None

    def group(self, group_id: str) -> ShareGroup:
        """The share group of this id.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        group = self.find(group_id)
        if group is None:
            is_other = group_id in self._groups
            message = f"Group {group_id} is not a share group." if is_other else f"Group {group_id} not found."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        return group

    def group_or_new(self, group_id: str) -> ShareGroup:
        """The share group of this id, or one that is not in the log yet, nor in the table.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND for the id of a group of another type.
        """
        if group_id in self._groups:
            return self.group(group_id)
        return ShareGroup(group_id, self._partition_of(group_id), self._image)

    def all(self) -> list[ShareGroup]:
        """Every share group."""
        return [group for group in self._groups.values() if isinstance(group, ShareGroup)]

    def describe(self, group_id: str) -> DescribedShareGroup:
        """A group and its members.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        group = self.group(group_id)
        return DescribedShareGroup(
            group_id, group.state_name, group.group_epoch, group.assignment_epoch, list(group.members.values())
        )

    def check(self, request: ShareHeartbeat) -> tuple[ShareGroup, ShareMember]:
        """The group of a heartbeat and its member, either of which may be new.

        Raises:
            KafkaError: see `heartbeat`.
        """
        if request.member_epoch == JOIN_EPOCH:
            group = self.group_or_new(request.group_id)
        else:
            group = self.group(request.group_id)
        is_known = request.member_id in group.members
        if request.member_epoch != LEAVE_EPOCH and len(group.members) >= self._max_size and not is_known:
            message = f"The share group has reached its maximum capacity of {self._max_size} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        if request.member_epoch == JOIN_EPOCH and not is_known:
            return group, ShareMember(request.member_id)
        member = group.member(request.member_id)
        if request.member_epoch > 0:
            _check_epoch(member, request.member_epoch)
        return group, member

    def uninitialized(self, request: ShareHeartbeat) -> InitializedTopics:
        """Partitions to which the group subscribes, with this member, and of which there is no state yet.

        Raises:
            KafkaError: see `heartbeat`.
        """
        group, _ = self.check(request)
        if request.member_epoch == LEAVE_EPOCH:
            return {}
        return group.uninitialized(request.subscribed_topic_names or ())

    def heartbeat(
        self, request: ShareHeartbeat, initialized: InitializedTopics, now_ms: int
    ) -> tuple[ShareHeartbeatResult, Effects]:
        """A member's heartbeat.

        Args:
            initialized: those that `uninitialized` named, now that there is state of them.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, GROUP_MAX_SIZE_REACHED.
        """
        effects = Effects()
        group, member = self.check(request)
        if request.member_epoch == LEAVE_EPOCH:
            log.info("Member left", group=group.group_id, member=member.member_id)
            self._remove(group, member, effects)
            return ShareHeartbeatResult(member.member_id, LEAVE_EPOCH), effects
        updated = _updated(member, request)
        step = _HeartbeatStep(self, group, member, updated, initialized, now_ms, effects)
        step.run()
        self._renew_session(group.group_id, member.member_id, effects)
        is_told = request.member_epoch == JOIN_EPOCH or request.subscribed_topic_names is not None
        has_changed = step.updated.assigned != member.assigned
        result = ShareHeartbeatResult(
            member.member_id,
            step.updated.member_epoch,
            self._config_of(group.group_id).integer("share.heartbeat.interval.ms"),
            step.updated.assigned if is_told or has_changed else None,
        )
        return result, effects

    def hash_after(self, group: ShareGroup, member: ShareMember, updated: ShareMember | None) -> int:
        """The hash over the topics to which the members subscribe once a member is `updated`; None: once it has left."""
        added = [] if updated is None else [updated.subscribed_topic_names]
        names = group.subscriptions.topics_after([member.subscribed_topic_names], added)
        return group.current_hash(self._hashes) if names is None else self._hashes.of_topics(names)

    def topic_ids(self, names: Iterable[str]) -> frozenset[bytes]:
        """The ids of those of the topics that exist."""
        found = (self._image.find(name) for name in names)
        return frozenset(topic.topic_id for topic in found if topic is not None)

    def assignment_interval_ms(self, group_id: str) -> int:
        """How long a group's target stays at least."""
        return self._config_of(group_id).integer("share.assignment.interval.ms")

    def _renew_session(self, group_id: str, member_id: str, effects: Effects) -> None:
        timeout_ms = self._config_of(group_id).integer("share.session.timeout.ms")
        effects.set_timer(session_timer(group_id, member_id), timeout_ms, ShareMemberExpired(group_id, member_id))

    def _on_expired(self, event: ShareMemberExpired, now_ms: int, effects: Effects) -> None:
        group = self.find(event.group_id)
        member = None if group is None else group.members.get(event.member_id)
        if group is not None and member is not None:
            log.info("Member is removed", group=event.group_id, member=event.member_id, reason="its session has expired")
            self._remove(group, member, effects)

    def _remove(self, group: ShareGroup, member: ShareMember, effects: Effects) -> None:
        """Removes a member; the next heartbeat of another member assigns its partitions to the members that stay.

        If the append fails, the member stays, and its removal is tried again after `RETRY_MS`.
        """
        group_id, member_id = group.group_id, member.member_id
        timer = session_timer(group_id, member_id)

        def decided(error: ErrorCode | None, now_ms: int) -> Effects:
            after = Effects()
            if error is None:
                after.cancel_timer(timer)
            else:
                after.set_timer_if_absent(timer, RETRY_MS, ShareMemberExpired(group_id, member_id))
            return after

        effects.then = decided
        effects.records += [
            ShareCurrentRecord(group_id, member_id, None),
            ShareTargetRecord(group_id, member_id, None),
            ShareMemberRecord(group_id, member_id, None),
            ShareGroupEpochRecord(group_id, group.group_epoch + 1, self.hash_after(group, member, None)),
        ]


class _HeartbeatStep:
    """One heartbeat of a member.

    Its results go into the records and into the step, never into the group: the group changes when the records are replayed.

    Attributes:
        updated: the member with all changes so far.
    """

    def __init__(
        self,
        groups: ShareGroups,
        group: ShareGroup,
        member: ShareMember,
        updated: ShareMember,
        initialized: InitializedTopics,
        now_ms: int,
        effects: Effects,
    ) -> None:
        self.updated = updated
        self._groups = groups
        self._group = group
        self._member = member
        self._initialized = _joined(group.initialized, initialized) if initialized else group.initialized
        self._is_initialized_anew = bool(initialized)
        self._now_ms = now_ms
        self._out = effects

    def run(self) -> None:
        """The whole step."""
        group = self._group
        group_id, member_id = group.group_id, self.updated.member_id
        must_bump = False
        if self.updated != self._member or member_id not in group.members:
            self._out.records.append(ShareMemberRecord(group_id, member_id, self.updated))
            must_bump = self.updated.subscribed_topic_names != self._member.subscribed_topic_names
        if self._is_initialized_anew:
            self._out.records.append(StatePartitionsRecord(group_id, self._initialized))
        if group.assignment_epoch >= group.group_epoch:
            names = group.subscriptions.topics_after([self._member.subscribed_topic_names], [self.updated.subscribed_topic_names])
            must_bump |= group.is_assignment_pending(self._initialized, names)
        group_epoch = self._update_epoch(must_bump=must_bump)
        target_epoch, target = self._update_target(group_epoch)
        self._reconcile(target_epoch, target, has_changed=group_epoch != group.group_epoch)

    def _update_epoch(self, *, must_bump: bool) -> int:
        """The group's epoch after this step."""
        group, groups = self._group, self._groups
        if not must_bump and not group.is_refresh_due:
            return group.group_epoch
        metadata_hash = groups.hash_after(group, self._member, self.updated)
        group_epoch = group.group_epoch
        if must_bump or metadata_hash != group.metadata_hash:
            group_epoch += 1
            self._out.records.append(ShareGroupEpochRecord(group.group_id, group_epoch, metadata_hash))
            log.info("New epoch of a share group", group=group.group_id, epoch=group_epoch)
        group.refreshed = group.image.revision, group_epoch
        return group_epoch

    def _update_target(self, group_epoch: int) -> tuple[int, Partitions]:
        """The epoch of the target and this member's, computed anew if that is due."""
        group, groups = self._group, self._groups
        member_id = self.updated.member_id
        last = group.assignment_epoch, group.targets.get(member_id, {})
        if group.assignment_epoch >= group_epoch:
            return last
        interval_ms = groups.assignment_interval_ms(group.group_id)
        if not group.can_assign(self._now_ms, interval_ms):
            return last
        members = dict(group.members)
        members[member_id] = self.updated
        targets = assign_simply(
            [
                SharingMember(
                    each.member_id, groups.topic_ids(each.subscribed_topic_names), group.targets.get(each.member_id, {})
                )
                for each in members.values()
            ],
            {topic_id: partitions for topic_id, (_, partitions) in self._initialized.items()},
        )
        for each, target in targets.items():
            if group.targets.get(each) != target:
                self._out.records.append(ShareTargetRecord(group.group_id, each, target))
        self._out.records.append(ShareTargetEpochRecord(group.group_id, group_epoch, self._now_ms))
        return group_epoch, targets[member_id]

    def _reconcile(self, target_epoch: int, target: Partitions, *, has_changed: bool) -> None:
        """Brings the member to the target.

        Source: ShareGroupAssignmentBuilder.
        """
        member = self.updated
        if target_epoch == member.member_epoch and not has_changed:
            return
        subscribed = self._groups.topic_ids(member.subscribed_topic_names)
        assigned = {topic_id: partitions for topic_id, partitions in target.items() if topic_id in subscribed}
        self.updated = replace(member, assigned=assigned)
        if target_epoch != member.member_epoch:
            self.updated = replace(self.updated, member_epoch=target_epoch, previous_member_epoch=member.member_epoch)
        if self.updated != member:
            self._out.records.append(ShareCurrentRecord(self._group.group_id, member.member_id, self.updated))


def _updated(member: ShareMember, request: ShareHeartbeat) -> ShareMember:
    """The member as it says it is now."""
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
    )


def _check_epoch(member: ShareMember, epoch: int) -> None:
    """Raises unless a heartbeat has the member's epoch, or the one before, after an answer that was lost.

    Raises:
        KafkaError: FENCED_MEMBER_EPOCH.
    """
    if epoch > member.member_epoch:
        message = (
            f"The share group member has a greater member epoch ({epoch}) than the one known by the group coordinator "
            f"({member.member_epoch}). The member must abandon all its partitions and rejoin."
        )
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)
    if epoch < member.member_epoch and epoch != member.previous_member_epoch:
        message = (
            f"The share group member has a smaller member epoch ({epoch}) than the one known by the group coordinator "
            f"({member.member_epoch}), and it does not match the previous member epoch ({member.previous_member_epoch}). "
            "The member must abandon all its partitions and rejoin."
        )
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _joined(topics: InitializedTopics, more: InitializedTopics) -> InitializedTopics:
    joined = dict(topics)
    for topic_id, (name, partitions) in more.items():
        _, known = joined.get(topic_id, (name, frozenset[int]()))
        joined[topic_id] = name, known | partitions
    return joined


def _is_tombstone(record: ShareGroupRecord) -> bool:
    match record:
        case ShareMemberRecord() | ShareCurrentRecord():
            return record.member is None
        case ShareTargetRecord():
            return record.target is None
        case ShareTargetEpochRecord() | ShareGroupEpochRecord():
            return record.epoch is None
        case StatePartitionsRecord():
            return record.initialized is None
