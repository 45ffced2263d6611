"""Members of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Rules of this file: an entry point finds the group, checks the request, and calls `Rebalancer`. An entry point never raises,
because its response may have to wait. JoinGroup and SyncGroup respond through the `Pending` that they get.

Source: GroupMetadataManager (classicGroupJoin, classicGroupSync, classicGroupHeartbeat, classicGroupLeave),
GroupCoordinatorService for the checks before; KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED),
KIP-814 (static leaders that skip the assignment).
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from wirekafka.coordinator.effects import Effects, SessionExpired, append_error, join_timer, session_timer, sync_timer
from wirekafka.coordinator.groups.classic.group import (
    PREPARING_REBALANCE,
    ClassicGroup,
    GroupState,
    Member,
    classic_group,
    empty_record,
)
from wirekafka.coordinator.groups.classic.rebalance import Rebalancer, join_result
from wirekafka.coordinator.groups.records import CoordinatorRecord, GroupRecord
from wirekafka.coordinator.groups.requests import (
    UNKNOWN_MEMBER_ID,
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from wirekafka.coordinator.groups.settings import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupSettings
from wirekafka.coordinator.groups.types import CONSUMER, ClassicMembers, Group
from wirekafka.errors import NONE, ErrorCode, KafkaError
from wirekafka.pending import Pending

log = structlog.get_logger(__name__)

MAX_MEMBER_ID_PREFIX = 255
"""The longest part of a client id, in characters, that a member id begins with."""


MOST_REASON = 255
"""The longest part of a client's reason, in characters, that is logged; Kafka's own clients send no more.

Source: JoinGroupRequest.maybeTruncateReason."""


class Membership:
    """The members of all classic groups.

    Args:
        groups: all groups, by id; shared with the rest of the coordinator.
        create: creates a group and adds it to `groups`.
        new_uuid: returns a new random UUID in its usual form.

    Attributes:
        others: handles members of the classic protocol in groups of other types, by type. Groups of a type that is not listed
            have no such members.
    """

    def __init__(
        self,
        groups: dict[str, Group],
        settings: GroupSettings,
        rebalancer: Rebalancer,
        create: Callable[[str, int], ClassicGroup],
        new_uuid: Callable[[], str],
    ) -> None:
        self._groups = groups
        self._settings = settings
        self._rebalancer = rebalancer
        self._create = create
        self._new_uuid = new_uuid
        self.others: dict[str, ClassicMembers] = {}

    def join(self, request: JoinRequest, pending: Pending[JoinResult], now_ms: int) -> Effects:
        """Makes the client a member of the next generation.

        The response's error is INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
        MEMBER_ID_REQUIRED, INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED, INVALID_REQUEST, or the error of an append.
        """
        effects = Effects()
        error = self._check_join(request)
        if error is not ErrorCode.NONE:
            effects.reply(pending, JoinResult(error, request.member_id))
            return effects
        known = self._groups.get(request.group_id)
        if known is None or isinstance(known, ClassicGroup):
            return self._join_classic(request, known, pending, now_ms, [], effects)
        if known.group_type in self.others and not known.is_empty:
            return self.others[known.group_type].join(known, request, pending, now_ms)
        if known.group_type == CONSUMER:
            # The consumer group has no members, so a classic group may replace it. The classic group keeps the offsets.
            return self._join_classic(request, None, pending, now_ms, known.tombstones(), effects)
        effects.reply(pending, JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID))
        return effects

    def _join_classic(
        self,
        request: JoinRequest,
        group: ClassicGroup | None,
        pending: Pending[JoinResult],
        now_ms: int,
        tombstones: list[CoordinatorRecord],
        effects: Effects,
    ) -> Effects:
        """Handles a JoinGroup for a classic group.

        Args:
            tombstones: the tombstones of the empty group of another type that the classic group replaces, if any.

        Source: GroupMetadataManager.classicGroupJoinToClassicGroup, maybeDeleteEmptyConsumerGroup.
        """
        if group is None:
            error = _check_first_join(request)
            if error is not ErrorCode.NONE:
                effects.reply(pending, JoinResult(error, request.member_id))
                return effects
        is_new_group = group is None
        replaced = self._groups.get(request.group_id) if is_new_group else None
        if group is None:
            group = self._create(request.group_id, now_ms)
        if not self._accepts(group, request.member_id):
            group.remove(request.member_id)
            effects.reply(pending, JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID))
        elif not group.supports(request.protocol_type, request.protocols):
            effects.reply(pending, JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(request, group, pending, now_ms, effects)
        else:
            self._join_known(request, group, pending, now_ms, effects)
        if is_new_group:
            self._persist_new(group, replaced, tombstones, pending, effects)
        return effects

    def sync(self, request: SyncRequest, pending: Pending[SyncResult], now_ms: int) -> Effects:
        """Gives the member its assignment once the leader has sent the assignments and the log has them.

        The response's error is INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS, or the error of an append.
        """
        effects = Effects()
        other = self._groups.get(request.group_id)
        if other is not None and other.group_type in self.others and not other.is_empty:
            return self.others[other.group_type].sync(other, request, pending, now_ms)
        try:
            group = self._check_sync(request)
        except KafkaError as error:
            effects.reply(pending, SyncResult(error.code))
            return effects
        member = group.members[request.member_id]
        group.pending_sync_members.pop(request.member_id, None)
        if not group.pending_sync_members:
            effects.cancel_timer(sync_timer(group.group_id))
        if group.state is GroupState.STABLE:
            effects.reply(pending, SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment))
            return effects
        self._rebalancer.answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS), effects)
        member.awaiting_sync = pending
        if group.leader == request.member_id:
            self._store_assignments(group, request, effects)
        return effects

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> tuple[ErrorCode, Effects]:
        """Keeps a session alive, which changes timers only; REBALANCE_IN_PROGRESS tells the member to join again.

        The other errors are INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
        """
        group = self._groups.get(request.group_id)
        if not isinstance(group, ClassicGroup) or not request.group_id:
            return self._heartbeat_of_no_classic_group(group, request, now_ms)
        effects = Effects()
        try:
            group.check_member(request.member_id, request.group_instance_id)
        except KafkaError as error:
            return error.code, effects
        if request.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION, effects
        self._rebalancer.renew_session(group, group.members[request.member_id], effects)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING_REBALANCE else NONE, effects

    def _heartbeat_of_no_classic_group(
        self, group: Group | None, request: HeartbeatRequest, now_ms: int
    ) -> tuple[ErrorCode, Effects]:
        if group is not None and group.group_type in self.others:
            return self.others[group.group_type].heartbeat(group, request, now_ms)
        return ErrorCode.UNKNOWN_MEMBER_ID if request.group_id else ErrorCode.INVALID_GROUP_ID, Effects()

    def leave(self, group_id: str, leaving: list[LeavingMember], now_ms: int) -> tuple[LeaveResult, Effects]:
        """Removes members at once, at the request of the members or of an administrator.

        The errors are INVALID_GROUP_ID for the whole request, and UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID for each member.
        """
        effects = Effects()
        if not group_id:
            return LeaveResult(ErrorCode.INVALID_GROUP_ID), effects
        other = self._groups.get(group_id)
        if other is not None and other.group_type in self.others:
            return self.others[other.group_type].leave(other, leaving, now_ms)
        group = classic_group(self._groups, group_id)
        if group is None:
            return LeaveResult(ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)), effects
        results = [self._leave(group, member, effects) for member in leaving]
        if ErrorCode.NONE in results and group.state is not GroupState.EMPTY:
            self._rebalancer.rebalance_or_complete(group, "members left", now_ms, effects)
        return LeaveResult(ErrorCode.NONE, results), effects

    def _find(self, group_id: str) -> ClassicGroup:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = classic_group(self._groups, group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _check_join(self, request: JoinRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not self._settings.min_session_timeout_ms <= request.session_timeout_ms <= self._settings.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether the group has room for a member; a member of the group, or one that has joined the rebalance, keeps its place.

        Source: GroupMetadataManager.acceptJoiningMember.
        """
        member = group.members.get(member_id)
        match group.state:
            case GroupState.EMPTY:
                return True
            case GroupState.PREPARING_REBALANCE:
                # The members that have joined are counted, not all members: this shrinks a group that exceeds its maximum.
                has_joined = member is not None and member.awaiting_join is not None
                return has_joined or group.awaiting_join_count < self._settings.max_size
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member is not None or len(group.members) < self._settings.max_size

    def _persist_new(
        self,
        group: ClassicGroup,
        replaced: Group | None,
        tombstones: list[CoordinatorRecord],
        pending: Pending[JoinResult],
        effects: Effects,
    ) -> None:
        """Stores a new group. If the append fails, the group is removed, and the client gets an error.

        Args:
            replaced: the empty group of another type that the new group replaces; `tombstones` delete it.
        """
        assert not effects.records, "the first JoinGroup of a group writes nothing else"
        effects.records += [*tombstones, GroupRecord(group.group_id, empty_record(group))]
        effects.is_replayed = False

        def decided(error: ErrorCode | None, now_ms: int) -> Effects:
            after = Effects()
            if error is not None and self._groups.get(group.group_id) is group:
                for member_id in [*group.members, *group.pending_members]:
                    after.cancel_timer(session_timer(group.group_id, member_id))
                after.cancel_timer(join_timer(group.group_id))
                after.reply(pending, JoinResult(append_error(error), UNKNOWN_MEMBER_ID))
                del self._groups[group.group_id]
                if replaced is not None:
                    self._groups[group.group_id] = replaced
            return after

        effects.then = decided

    def _join_new(
        self, request: JoinRequest, group: ClassicGroup, pending: Pending[JoinResult], now_ms: int, effects: Effects
    ) -> None:
        prefix = request.client_id if request.group_instance_id is None else request.group_instance_id
        member_id = f"{prefix[:MAX_MEMBER_ID_PREFIX]}-{self._new_uuid()}"
        if request.group_instance_id is not None and request.group_instance_id in group.static_members:
            self._replace_static(request, group, member_id, pending, now_ms, effects)
        elif request.group_instance_id is None and request.is_member_id_required:
            group.pending_members.add(member_id)
            event = SessionExpired(group.group_id, member_id)
            effects.set_timer(session_timer(group.group_id, member_id), request.session_timeout_ms, event)
            effects.reply(pending, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(request, group, member_id, pending, now_ms, effects)

    def _join_known(
        self, request: JoinRequest, group: ClassicGroup, pending: Pending[JoinResult], now_ms: int, effects: Effects
    ) -> None:
        if request.member_id in group.pending_members:
            if request.group_instance_id is not None:
                # Kafka throws an IllegalStateException: only dynamic members are told to join again with a member id.
                effects.reply(pending, JoinResult(ErrorCode.INVALID_REQUEST, request.member_id))
            else:
                self._add(request, group, request.member_id, pending, now_ms, effects)
            return
        try:
            group.check_member(request.member_id, request.group_instance_id)
        except KafkaError as error:
            effects.reply(pending, JoinResult(error.code, request.member_id))
            return
        member = group.members[request.member_id]
        if self._needs_rebalance(group, member, request):
            self._update(request, group, member, pending, effects)
            reason = f"member {member.member_id} joins again: {_reason_of(request)}"
            self._rebalancer.rebalance_or_complete(group, reason, now_ms, effects)
        else:
            # The member missed the response, or is a follower without changes: it gets the current generation.
            effects.reply(pending, join_result(group, member))

    def _needs_rebalance(self, group: ClassicGroup, member: Member, request: JoinRequest) -> bool:
        """Whether the JoinGroup of a member begins a rebalance, instead of asking for the current generation.

        A leader that joins a stable group asks for a new assignment, for example because topics have more partitions now.
        """
        match group.state:
            case GroupState.PREPARING_REBALANCE:
                return True
            case GroupState.COMPLETING_REBALANCE:
                return member.protocols != request.protocols
            case GroupState.STABLE:
                return group.leader == member.member_id or member.protocols != request.protocols
            case GroupState.EMPTY:
                raise AssertionError("an empty group has no members")

    def _add(
        self,
        request: JoinRequest,
        group: ClassicGroup,
        member_id: str,
        pending: Pending[JoinResult],
        now_ms: int,
        effects: Effects,
    ) -> None:
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
        )
        group.has_new_member = True
        group.add(member, request.protocol_type)
        group.park_join(member, pending)
        self._rebalancer.renew_session(group, member, effects, NEW_MEMBER_JOIN_TIMEOUT_MS)
        reason = f"new member {member_id}: {_reason_of(request)}"
        self._rebalancer.rebalance_or_complete(group, reason, now_ms, effects)

    def _update(
        self, request: JoinRequest, group: ClassicGroup, member: Member, pending: Pending[JoinResult], effects: Effects
    ) -> None:
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        # A client that sends JoinGroup again has abandoned its first JoinGroup, whose connection may still wait for a response.
        self._rebalancer.answer_join(group, member, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id), effects)
        group.park_join(member, pending)

    def _replace_static(
        self,
        request: JoinRequest,
        group: ClassicGroup,
        new_member_id: str,
        pending: Pending[JoinResult],
        now_ms: int,
        effects: Effects,
    ) -> None:
        """Gives a static member that joins without a member id, as after a restart, its place again; the former id is fenced.

        Source: GroupMetadataManager.updateStaticMemberThenRebalanceOrCompleteJoin.
        """
        instance_id = request.group_instance_id
        assert instance_id is not None
        old_member_id, old_leader = group.static_members[instance_id], group.leader
        member = group.members[old_member_id]
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        fenced = JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_member_id)
        self._rebalancer.answer_join(group, member, fenced, effects)
        self._rebalancer.answer_sync(member, SyncResult(ErrorCode.FENCED_INSTANCE_ID), effects)
        effects.cancel_timer(session_timer(group.group_id, old_member_id))
        group.replace_static(instance_id, new_member_id)
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        group.park_join(member, pending)
        self._rebalancer.renew_session(group, member, effects)
        log.info("Static member rejoined", group=group.group_id, instance=instance_id, member=new_member_id, was=old_member_id)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            self._persist_static(request, group, member, old_member_id, old_leader, before, effects)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self._rebalancer.complete_join_if_all_joined(group, now_ms, effects)
        else:
            reason = f"static member {instance_id} rejoined, and changes the protocol or interrupts a rebalance"
            self._rebalancer.prepare(group, reason, now_ms, effects)

    def _persist_static(
        self,
        request: JoinRequest,
        group: ClassicGroup,
        member: Member,
        old_member_id: str,
        old_leader: str | None,
        before: tuple[list[tuple[str, bytes]], int, int],
        effects: Effects,
    ) -> None:
        """Stores the new id of a static member; no rebalance is needed, because nothing else has changed."""
        assignments = {known.member_id: known.assignment for known in group.members.values()}
        effects.records.append(GroupRecord(group.group_id, group.to_record(assignments)))
        effects.is_replayed = False

        def decided(error: ErrorCode | None, now_ms: int) -> Effects:
            after = Effects()
            if error is not None:
                self._restore_static(group, member, old_member_id, before, append_error(error), after)
                return after
            result = join_result(group, member)
            if request.can_skip_assignment:
                result.is_assignment_skipped = group.leader == member.member_id
            else:
                # The response names the leader's old member id as leader, so that the member does not compute an assignment.
                result.leader, result.members = old_leader or UNKNOWN_MEMBER_ID, []
            self._rebalancer.answer_join(group, member, result, after)
            return after

        effects.then = decided

    def _restore_static(
        self,
        group: ClassicGroup,
        member: Member,
        old_member_id: str,
        before: tuple[list[tuple[str, bytes]], int, int],
        error: ErrorCode,
        effects: Effects,
    ) -> None:
        assert member.group_instance_id is not None
        self._rebalancer.answer_join(group, member, JoinResult(error, UNKNOWN_MEMBER_ID), effects)
        effects.cancel_timer(session_timer(group.group_id, member.member_id))
        group.replace_static(member.group_instance_id, old_member_id)
        group.update(member, *before)
        self._rebalancer.renew_session(group, member, effects)

    def _check_sync(self, request: SyncRequest) -> ClassicGroup:
        group = self._find(request.group_id)
        group.check_member(request.member_id, request.group_instance_id)
        _check_generation(group, request.generation_id)
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        return group

    def _store_assignments(self, group: ClassicGroup, request: SyncRequest, effects: Effects) -> None:
        """Stores the assignments of the leader; the group is stable then, and every member gets its assignment."""
        effects.records.append(GroupRecord(group.group_id, group.to_record(request.assignments)))
        effects.is_replayed = False

        def decided(error: ErrorCode | None, now_ms: int) -> Effects:
            after = Effects()
            if error is not None:
                self._rebalancer.refuse_sync(group, append_error(error), after)
                reason = f"the assignment could not be stored: {error.name}"
                self._rebalancer.rebalance_or_complete(group, reason, now_ms, after)
                return after
            group.transition_to(GroupState.STABLE, now_ms)
            for member in group.members.values():
                member.assignment = request.assignments.get(member.member_id, b"")
                result = SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment)
                if self._rebalancer.answer_sync(member, result, after):
                    self._rebalancer.renew_session(group, member, after)
            return after

        effects.then = decided

    def _leave(self, group: ClassicGroup, leaving: LeavingMember, effects: Effects) -> ErrorCode:
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            static = group.static_members.get(leaving.group_instance_id) if leaving.group_instance_id is not None else None
            if static is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = static
        elif member_id not in group.pending_members:
            try:
                group.check_member(member_id, leaving.group_instance_id)
            except KafkaError as error:
                return error.code
        effects.cancel_timer(session_timer(group.group_id, member_id))
        log.info("Member leaves", group=group.group_id, member=member_id, reason=(leaving.reason or "")[:MOST_REASON] or None)
        if member_id in group.pending_members:
            group.remove(member_id)
        else:
            self._rebalancer.remove_member(group, group.members[member_id], effects)
        return ErrorCode.NONE


def _check_first_join(request: JoinRequest) -> ErrorCode:
    if request.member_id != UNKNOWN_MEMBER_ID:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not (request.protocol_type and request.protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _reason_of(request: JoinRequest) -> str:
    return (request.reason or "no reason given")[:MOST_REASON]


def _check_generation(group: ClassicGroup, generation_id: int) -> None:
    if generation_id != group.generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _differs(asked: str | None, chosen: str | None) -> bool:
    return asked is not None and chosen is not None and asked != chosen
