"""Rebalances of classic groups: the steps from one generation to the next, and the handlers of a group's timers.

Rules of this file: each function is one step of one group, and adds the effects of the step to `effects`. A parked request
gets exactly one response, before its member is removed.

Source: GroupMetadataManager (prepareRebalance, completeClassicGroupJoin, tryCompleteInitialRebalanceElseSchedule,
expireClassicGroupMemberHeartbeat, expirePendingSync); KIP-134 for the initial delay.
"""

from __future__ import annotations

import structlog

from wirekafka.coordinator.effects import (
    Effects,
    InitialJoinExpired,
    JoinExpired,
    SessionExpired,
    SetTimer,
    SyncExpired,
    join_timer,
    session_timer,
    sync_timer,
)
from wirekafka.coordinator.groups.classic.group import ClassicGroup, GroupState, Member, classic_group
from wirekafka.coordinator.groups.records import GroupRecord
from wirekafka.coordinator.groups.requests import UNKNOWN_MEMBER_ID, JoinedMember, JoinResult, SyncResult
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.coordinator.groups.types import Group
from wirekafka.errors import ErrorCode

log = structlog.get_logger(__name__)

MIN_REPEATED_WAIT_MS = 1000
"""The shortest time that a group waits for JoinGroup again if no member has joined: a rebalance timeout may be 0 ms."""


class Rebalancer:
    """Drives the rebalances of all groups."""

    def __init__(self, groups: dict[str, Group], settings: GroupSettings) -> None:
        self._groups = groups
        self._settings = settings

    def renew_session(self, group: ClassicGroup, member: Member, effects: Effects, timeout_ms: int | None = None) -> None:
        """Starts the session of a member again, because the member has sent a request."""
        delay_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        renewal = member.renewal
        if renewal is None or renewal.delay_ms != delay_ms or renewal.key.member_id != member.member_id:
            event = SessionExpired(group.group_id, member.member_id)
            renewal = member.renewal = SetTimer(session_timer(group.group_id, member.member_id), delay_ms, event)
        effects.timers.append(renewal)

    def rebalance_or_complete(self, group: ClassicGroup, reason: str, now_ms: int, effects: Effects) -> None:
        """Begins a rebalance; if one is in progress, ends its wait for JoinGroup if all members have joined."""
        if group.can_rebalance:
            self.prepare(group, reason, now_ms, effects)
        else:
            self.complete_join_if_all_joined(group, now_ms, effects)

    def prepare(self, group: ClassicGroup, reason: str, now_ms: int, effects: Effects) -> None:
        """Begins a rebalance: JoinGroup requests are parked until all members have sent one.

        An empty group waits for its first members for `group.initial.rebalance.delay.ms`.
        """
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.refuse_sync(group, ErrorCode.REBALANCE_IN_PROGRESS, effects)
        effects.cancel_timer(sync_timer(group.group_id))
        is_initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, now_ms)
        log.info("Preparing a rebalance", group=group.group_id, generation=group.generation_id, reason=reason)
        if is_initial:
            delay_ms = self._settings.initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.has_new_member = False
            effects.set_timer(join_timer(group.group_id), delay_ms, InitialJoinExpired(group.group_id, delay_ms, remaining_ms))
        elif group.has_all_members_joined:
            self.complete_join(group, now_ms, effects)
        else:
            self._wait_for_members(group, effects)

    def complete_join_if_all_joined(self, group: ClassicGroup, now_ms: int, effects: Effects) -> None:
        """Ends the wait for JoinGroup if all members have joined; the first wait of a new group ends by its timer only."""
        if group.state is not GroupState.PREPARING_REBALANCE or group.previous_state is GroupState.EMPTY:
            return
        if group.has_all_members_joined:
            self.complete_join(group, now_ms, effects)

    def complete_join(self, group: ClassicGroup, now_ms: int, effects: Effects) -> None:
        """Ends the wait for JoinGroup: removes dynamic members that have not joined; the others are the next generation."""
        effects.cancel_timer(join_timer(group.group_id))
        self._remove_missing(group, effects)
        if not group.elect_joined_leader() and group.members:
            # Only static members are left and none has joined: the members whose sessions expire are removed.
            log.warning("A rebalance continues to wait, because no member has joined", group=group.group_id)
            delay_ms = max(group.rebalance_timeout_ms, MIN_REPEATED_WAIT_MS)
            effects.set_timer(join_timer(group.group_id), delay_ms, JoinExpired(group.group_id))
            return
        group.start_generation(now_ms)
        if group.state is GroupState.EMPTY:
            log.info("Group is empty", group=group.group_id, generation=group.generation_id)
            # If the append fails, the members of the former generation exist again after a restart, until their sessions expire.
            effects.records.append(GroupRecord(group.group_id, group.to_record({})))
            effects.is_replayed = False
        else:
            self._answer_joins(group, effects)

    def member_failed(self, group: ClassicGroup, member: Member, reason: str, now_ms: int, effects: Effects) -> None:
        """Removes a member whose session has expired; the group rebalances without the member."""
        self.remove_member(group, member, effects)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.rebalance_or_complete(group, reason, now_ms, effects)
        elif group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete_join(group, now_ms, effects)

    def remove_member(self, group: ClassicGroup, member: Member, effects: Effects) -> None:
        """Removes a member; its parked requests get UNKNOWN_MEMBER_ID, so that a client that is alive joins again."""
        self.answer_join(group, member, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID), effects)
        self.answer_sync(member, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID), effects)
        group.remove(member.member_id)

    def remove_pending(self, group: ClassicGroup, member_id: str, now_ms: int, effects: Effects) -> None:
        """Removes a client that got a member id and has not joined with it."""
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete_join(group, now_ms, effects)

    def answer_join(self, group: ClassicGroup, member: Member, result: JoinResult, effects: Effects) -> None:
        """Answers the parked JoinGroup of the member, if there is one."""
        parked = group.park_join(member, None)
        if parked is not None:
            effects.reply(parked, result)

    def answer_sync(self, member: Member, result: SyncResult, effects: Effects) -> bool:
        """Answers the parked SyncGroup of the member; returns False if there is none."""
        parked, member.awaiting_sync = member.awaiting_sync, None
        if parked is None:
            return False
        effects.reply(parked, result)
        return True

    def refuse_sync(self, group: ClassicGroup, error: ErrorCode, effects: Effects) -> None:
        """Answers all parked SyncGroup requests with an error, because this generation gets no assignment."""
        for member in group.members.values():
            member.assignment = b""
            if self.answer_sync(member, SyncResult(error), effects):
                self.renew_session(group, member, effects)

    def on_session_expired(self, event: SessionExpired, now_ms: int, effects: Effects) -> None:
        """Handles the end of the session of a member, or of the wait for a client that got a member id."""
        group = classic_group(self._groups, event.group_id)
        if group is None:
            return
        if event.member_id in group.pending_members:
            log.info("A client with a new member id did not join", group=group.group_id, member=event.member_id)
            self.remove_pending(group, event.member_id, now_ms, effects)
            return
        member = group.members.get(event.member_id)
        if member is None or member.has_satisfied_heartbeat:
            return
        log.info("Member failed", group=group.group_id, member=member.member_id, generation=group.generation_id)
        self.member_failed(group, member, f"member {member.member_id} sent no heartbeat in time", now_ms, effects)

    def on_initial_join_expired(self, event: InitialJoinExpired, now_ms: int, effects: Effects) -> None:
        """Waits another round for the members of a new group if one has joined in this round; else ends the wait."""
        group = classic_group(self._groups, event.group_id)
        if group is None:
            return
        if not group.has_new_member or event.remaining_ms == 0:
            self.complete_join(group, now_ms, effects)
            return
        group.has_new_member = False
        delay_ms = min(self._settings.initial_rebalance_delay_ms, event.remaining_ms)
        remaining_ms = max(event.remaining_ms - event.delay_ms, 0)
        effects.set_timer(join_timer(group.group_id), delay_ms, InitialJoinExpired(group.group_id, delay_ms, remaining_ms))

    def on_join_expired(self, event: JoinExpired, now_ms: int, effects: Effects) -> None:
        """Ends the wait for JoinGroup, because the rebalance timeout is over."""
        group = classic_group(self._groups, event.group_id)
        if group is not None:
            self.complete_join(group, now_ms, effects)

    def on_sync_expired(self, event: SyncExpired, now_ms: int, effects: Effects) -> None:
        """Removes the members that have not sent SyncGroup within the rebalance timeout."""
        group = classic_group(self._groups, event.group_id)
        if group is None or not group.pending_sync_members:
            return
        late = list(group.pending_sync_members)
        for member_id in late:
            effects.cancel_timer(session_timer(group.group_id, member_id))
            self.remove_member(group, group.members[member_id], effects)
        self.prepare(group, f"members {', '.join(late)} did not send SyncGroup in time", now_ms, effects)

    def _wait_for_members(self, group: ClassicGroup, effects: Effects) -> None:
        effects.set_timer(join_timer(group.group_id), group.rebalance_timeout_ms, JoinExpired(group.group_id))

    def _remove_missing(self, group: ClassicGroup, effects: Effects) -> None:
        missing = [
            member.member_id
            for member in group.members.values()
            if member.awaiting_join is None and member.group_instance_id is None
        ]
        for member_id in missing:
            effects.cancel_timer(session_timer(group.group_id, member_id))
            self.remove_member(group, group.members[member_id], effects)
        if missing:
            log.info("Removed members that have not joined in time", group=group.group_id, members=missing)

    def _answer_joins(self, group: ClassicGroup, effects: Effects) -> None:
        for member in group.members.values():
            self.answer_join(group, member, join_result(group, member), effects)
            self.renew_session(group, member, effects)
            member.is_new = False
            group.pending_sync_members[member.member_id] = None
        effects.set_timer(sync_timer(group.group_id), group.rebalance_timeout_ms, SyncExpired(group.group_id))
        log.info(
            "Generation begins",
            group=group.group_id,
            generation=group.generation_id,
            protocol=group.protocol_name,
            leader=group.leader,
            members=len(group.members),
        )


def join_result(group: ClassicGroup, member: Member) -> JoinResult:
    """Returns the response to the JoinGroup of a member; the leader's response has the list of all members."""
    return JoinResult(
        ErrorCode.NONE,
        member.member_id,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or UNKNOWN_MEMBER_ID,
        members=joined_members(group) if group.leader == member.member_id else [],
    )


def joined_members(group: ClassicGroup) -> list[JoinedMember]:
    """Returns all members with their metadata for the chosen protocol."""
    return [
        JoinedMember(member.member_id, member.group_instance_id, member.metadata(group.protocol_name))
        for member in group.members.values()
    ]
