"""All share groups: the heartbeats of their members, how records of the log change them, and their descriptions.

How it works: a heartbeat is one step (`heartbeat_step.py`). Before partitions can be assigned, their state is initialised
in __share_group_state. `uninitialized` names the partitions without state, and the runtime initialises them before the step.

Rules of this file: no I/O, no clock, no randomness.

Source: GroupMetadataManager (shareGroupHeartbeat, shareGroupFenceMember, replay) of
Apache Kafka 4.3; KIP-932.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog

from wirekafka.coordinator.effects import Effects, TimerKey
from wirekafka.coordinator.groups.modern.groups import ModernGroups
from wirekafka.coordinator.groups.modern.heartbeat_step import StepContext
from wirekafka.coordinator.groups.share.group import ShareGroup
from wirekafka.coordinator.groups.share.heartbeat_step import ShareHeartbeatStep
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
from wirekafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from wirekafka.config import GroupConfig
    from wirekafka.coordinator.groups.modern.topics import MetadataHashes, TopicImage
    from wirekafka.coordinator.groups.records import Decoder
    from wirekafka.coordinator.groups.types import Group

log = structlog.get_logger(__name__)

RETRY_MS = 500
"""The time between a failed append and the next try to remove the member."""


@dataclass(frozen=True, slots=True)
class ShareMemberExpired:
    """A member has sent no heartbeat for its session timeout."""

    group_id: str
    member_id: str


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """Returns the key of a member's session timeout."""
    return TimerKey("share-session", group_id, member_id)


class ShareGroups(ModernGroups[ShareGroup]):
    """The share groups; a `GroupType`. See `ModernGroups` for the other arguments.

    Args:
        config_of: returns the settings of a group.
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
        super().__init__(ShareGroup, groups, image, hashes, max_size, partition_of, forget)
        self._config_of = config_of

    @property
    def decoders(self) -> Mapping[int, Decoder]:
        """The decoders of the records of share groups, by the version of their key."""
        return SHARE_DECODERS

    @property
    def replayers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        """The functions that apply a record to its group, by the class of the record."""
        kinds = (
            *(ShareCurrentRecord, ShareGroupEpochRecord, ShareMemberRecord),
            *(ShareTargetEpochRecord, ShareTargetRecord, StatePartitionsRecord),
        )
        return dict.fromkeys(kinds, self.replay)

    @property
    def timers(self) -> Mapping[type[Any], Callable[[Any, int, Effects], None]]:
        """The handler of the end of a member's session."""
        return {ShareMemberExpired: self._on_expired}

    def on_loaded(self, group: ShareGroup, now_ms: int, effects: Effects) -> None:
        """Starts the sessions of the members in the log."""
        for member_id in group.members:
            self._renew_session(group.group_id, member_id, effects)

    def on_unload(self, group: ShareGroup, effects: Effects) -> None:
        """Cancels the sessions of a group that this broker no longer has."""
        for member_id in group.members:
            effects.cancel_timer(session_timer(group.group_id, member_id))

    def replay(self, record: ShareGroupRecord) -> None:
        """Applies a record of the log to its group."""
        group = self.find(record.group_id)
        if isinstance(record, ShareGroupEpochRecord) and record.epoch is None:
            if group is not None:
                self._forget(record.group_id)
            return
        if group is None:
            if _is_tombstone(record):
                return
            group = self._groups[record.group_id] = self.new_group(record.group_id)
        group.apply(record)

    def group_or_new(self, group_id: str) -> ShareGroup:
        """Returns the share group with this id, or a new one that is neither in the log nor in the table yet.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND if a group of another type has the id.
        """
        if group_id in self._groups:
            return self.group(group_id)
        return self.new_group(group_id)

    def all(self) -> list[ShareGroup]:
        """Returns all share groups."""
        return [group for group in self._groups.values() if isinstance(group, ShareGroup)]

    def describe(self, group_id: str) -> DescribedShareGroup:
        """Returns a description of a group and its members.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        group = self.group(group_id)
        return DescribedShareGroup(
            group_id, group.state_name, group.group_epoch, group.assignment_epoch, list(group.members.values())
        )

    def check(self, request: ShareHeartbeat) -> tuple[ShareGroup, ShareMember]:
        """Returns the group and the member of a heartbeat, either of which may be new.

        Raises:
            KafkaError: see `heartbeat`.
        """
        if request.member_epoch == JOIN_EPOCH:
            group = self.group_or_new(request.group_id)
        else:
            group = self.group(request.group_id)
        if request.member_epoch != LEAVE_EPOCH:
            self.check_room(group, request.member_id)
        if request.member_epoch == JOIN_EPOCH and request.member_id not in group.members:
            return group, ShareMember(request.member_id)
        member = group.member(request.member_id)
        if request.member_epoch > 0:
            _check_epoch(member, request.member_epoch)
        return group, member

    def uninitialized(self, request: ShareHeartbeat) -> InitializedTopics:
        """Returns the partitions without state to which the group subscribes after the heartbeat.

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
        """Handles a heartbeat: the client becomes a member, stays one, or leaves.

        Args:
            initialized: the partitions that `uninitialized` returned, which have state now.

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
        interval_ms = self._config_of(group.group_id).integer("share.assignment.interval.ms")
        context = StepContext(self.find, self._hashes, interval_ms, now_ms, effects)
        step = ShareHeartbeatStep(group, member, updated, context, initialized)
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

    def _hash_without(self, group: ShareGroup, member: ShareMember) -> int:
        """Returns the hash over the topics to which the members subscribe after a member has left."""
        names = group.subscriptions.topics_after([member.subscribed_topic_names])
        return group.current_hash(self._hashes) if names is None else self._hashes.of_topics(names)

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
        """Removes a member; the next heartbeat of another member assigns its partitions to the remaining members.

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
            ShareGroupEpochRecord(group_id, group.group_epoch + 1, self._hash_without(group, member)),
        ]


def _updated(member: ShareMember, request: ShareHeartbeat) -> ShareMember:
    """Returns the member with the changes of a heartbeat."""
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
    )


def _check_epoch(member: ShareMember, epoch: int) -> None:
    """Raises unless a heartbeat has the member's epoch, or its previous epoch because a response was lost.

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
