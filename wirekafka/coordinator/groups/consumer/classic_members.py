"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup for them.

How it works: the JoinGroup of a classic member is its heartbeat step: it has the subscription and the owned partitions,
and reconciles the member with its target. The response comes at once, with the member epoch as the generation and without a list
of members, so no member leads or assigns. SyncGroup returns the assignment. The response to a Heartbeat tells the member to join
again when its assignment changes; the member has its rebalance timeout to do so.

Source: GroupMetadataManager (classicGroupJoinToConsumerGroup, classicGroupSyncToConsumerGroup,
classicGroupHeartbeatToConsumerGroup, classicGroupLeaveToConsumerGroup) of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from wirekafka.coordinator.effects import Effects, append_error
from wirekafka.coordinator.groups.consumer.consumer_protocol import (
    Subscription,
    assignment_version,
    partitions_of,
    read_subscription,
    write_assignment,
)
from wirekafka.coordinator.groups.consumer.group import CONSUMER_PROTOCOL_TYPE, ConsumerGroup
from wirekafka.coordinator.groups.consumer.groups import ConsumerGroups
from wirekafka.coordinator.groups.consumer.heartbeats import check_static, replace_static
from wirekafka.coordinator.groups.consumer.member import ClassicMembership, ConsumerMember, MemberState
from wirekafka.coordinator.groups.consumer.migration import Migration
from wirekafka.coordinator.groups.consumer.settings import MigrationPolicy
from wirekafka.coordinator.groups.consumer.timers import (
    ClassicJoinExpired,
    ClassicSyncExpired,
    join_timer,
    renew_session,
    sync_timer,
)
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
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.pending import Pending

log = structlog.get_logger(__name__)


class ConsumerGroupsClassicMembers:
    """The classic members of all consumer groups; a `ClassicMembers`.

    Args:
        new_id: returns a new random member id.
    """

    def __init__(self, groups: ConsumerGroups, migration: Migration, new_id: Callable[[], str]) -> None:
        self._groups = groups
        self._migration = migration
        self._new_id = new_id

    def join(self, group: ConsumerGroup, request: JoinRequest, pending: Pending[JoinResult], now_ms: int) -> Effects:
        """Makes the client a member of the group, or reconciles the member with its target.

        The response's error is COORDINATOR_LOAD_IN_PROGRESS, INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED,
        MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, UNKNOWN_SERVER_ERROR for metadata that is not a consumer's, or
        the error of an append.
        """
        effects = Effects()
        try:
            self._join(group, request, pending, now_ms, effects)
        except KafkaError as error:
            effects = Effects()
            effects.reply(pending, JoinResult(error.code, request.member_id))
        return effects

    def _join(
        self, group: ConsumerGroup, request: JoinRequest, pending: Pending[JoinResult], now_ms: int, effects: Effects
    ) -> None:
        group.image.check_known()
        member_id = request.member_id or self._new_id()
        self._check_join(group, request, member_id)
        if request.is_member_id_required and request.member_id == UNKNOWN_MEMBER_ID and request.group_instance_id is None:
            log.info("Client must join again with a member id", group=group.group_id, member=member_id)
            effects.reply(pending, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
            return
        replaced = group.static_member(request.group_instance_id)
        member = self._member(group, request, member_id, effects)
        is_downgrade = self._migration.can_downgrade_with(group, replaced)
        subscription = _subscription_of(request)
        times = self._groups.times_of(group.group_id)
        step = self._groups.heartbeat_step(group, member, _updated(member, request, subscription), times, now_ms, effects)
        has_changed = step.record_member()
        has_changed |= step.update_regexes()
        step.update_epoch(must_grow=has_changed)
        is_stale = is_downgrade and group.assignment_epoch < step.group_epoch
        if not is_downgrade:
            step.update_target()
        if not is_stale:
            owned = partitions_of(subscription.owned_partitions, self._groups.image)
            step.reconcile(owned, has_subscription_changed=has_changed)
        updated = step.updated
        if is_downgrade:
            assert replaced is not None
            self._migration.downgrade_with(group, replaced, updated, is_stale=is_stale, now_ms=now_ms, effects=effects)
        self._answer_join(group, request, updated, pending, effects, is_downgrade=is_downgrade)

    def _answer_join(
        self,
        group: ConsumerGroup,
        request: JoinRequest,
        member: ConsumerMember,
        pending: Pending[JoinResult],
        effects: Effects,
        *,
        is_downgrade: bool,
    ) -> None:
        convert = effects.then

        def decided(error: ErrorCode | None, now_ms: int) -> Effects:
            after = Effects() if convert is None else convert(error, now_ms)
            if error is not None:
                after.reply(pending, JoinResult(append_error(error), UNKNOWN_MEMBER_ID))
                return after
            after.cancel_timer(join_timer(group.group_id, member.member_id))
            if not is_downgrade:
                renew_session(group.group_id, member.member_id, request.session_timeout_ms, after)
                event = ClassicSyncExpired(group.group_id, member.member_id)
                after.set_timer(sync_timer(group.group_id, member.member_id), request.rebalance_timeout_ms, event)
            protocol_name = request.protocols[0][0]
            result = JoinResult(ErrorCode.NONE, member.member_id, member.member_epoch, CONSUMER_PROTOCOL_TYPE, protocol_name)
            after.reply(pending, result)
            return after

        effects.then = decided

    def _check_join(self, group: ConsumerGroup, request: JoinRequest, member_id: str) -> None:
        if self._groups.settings.migration_policy is MigrationPolicy.DISABLED:
            log.info("Client cannot join with the classic protocol, because migration is disabled", group=group.group_id)
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._groups.check_room(group, member_id)
        names = [name for name, _ in request.protocols]
        is_supported = any(group.classic_protocols.get(name, 0) == group.classic_count for name in names)
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not is_supported:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _member(self, group: ConsumerGroup, request: JoinRequest, member_id: str, effects: Effects) -> ConsumerMember:
        instance_id = request.group_instance_id
        if instance_id is None:
            log.info("Member joins", group=group.group_id, member=member_id, protocol="classic")
            return group.members.get(member_id) or ConsumerMember(member_id)
        if request.member_id != UNKNOWN_MEMBER_ID:
            return check_static(group, instance_id, member_id)
        known = group.static_member(instance_id)
        log.info("Static member joins", group=group.group_id, member=member_id, instance=instance_id, protocol="classic")
        return ConsumerMember(member_id) if known is None else replace_static(group, known, member_id, effects)

    def sync(self, group: ConsumerGroup, request: SyncRequest, pending: Pending[SyncResult], now_ms: int) -> Effects:
        """Gives the member its assignment.

        The response's error is UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
        REBALANCE_IN_PROGRESS.
        """
        effects = Effects()
        try:
            member, classic = self._classic_member(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
            _check_protocol(classic, request)
        except KafkaError as error:
            effects.reply(pending, SyncResult(error.code))
            return effects
        if group.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            _expect_join(group, member, effects)
            effects.reply(pending, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
            return effects
        effects.cancel_timer(sync_timer(group.group_id, member.member_id))
        renew_session(group.group_id, member.member_id, classic.session_timeout_ms, effects)
        version = assignment_version(classic.protocols[0][1])
        assignment = write_assignment(member.assigned, self._groups.image, version)
        effects.reply(pending, SyncResult(ErrorCode.NONE, request.protocol_type, request.protocol_name, assignment))
        return effects

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, now_ms: int) -> tuple[ErrorCode, Effects]:
        """Keeps a session alive; REBALANCE_IN_PROGRESS tells the member to join again.

        A member must join again to get a newer target, to revoke partitions, to get partitions that other members have revoked,
        or to trigger the computation of a target for a new group epoch.

        The other errors are UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
        """
        effects = Effects()
        try:
            member, classic = self._classic_member(group, request.member_id, request.group_instance_id)
            _check_generation(member, request.generation_id)
        except KafkaError as error:
            return error.code, effects
        renew_session(group.group_id, member.member_id, classic.session_timeout_ms, effects)
        is_behind = member.member_epoch < group.assignment_epoch or member.state is MemberState.UNREVOKED_PARTITIONS
        # No heartbeat of this protocol computes a target. Without a rejoin, a group whose last consumer member has left would
        # never compute one.
        is_behind = is_behind or self._groups.is_assignment_due(group, now_ms)
        can_take = member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_partition(member)
        if not (is_behind or can_take):
            return ErrorCode.NONE, effects
        _expect_join(group, member, effects)
        return ErrorCode.REBALANCE_IN_PROGRESS, effects

    def leave(self, group: ConsumerGroup, leaving: list[LeavingMember], now_ms: int) -> tuple[LeaveResult, Effects]:
        """Removes members of either protocol at once, at the request of the members or of an administrator.

        The errors are, for each member, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
        """
        effects = Effects()
        results: list[ErrorCode] = []
        gone: dict[str, ConsumerMember] = {}
        for asked in leaving:
            try:
                member = _leaving_member(group, asked)
            except KafkaError as error:
                results.append(error.code)
                continue
            log.info("Member leaves", group=group.group_id, member=member.member_id, reason=asked.reason)
            gone[member.member_id] = member
            results.append(ErrorCode.NONE)
        self._migration.remove_members(group, list(gone.values()), now_ms, effects)
        return LeaveResult(ErrorCode.NONE, results), effects

    def _classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerMember, ClassicMembership]:
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = check_static(group, instance_id, member_id)
        if member.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
        return member, member.classic


def _subscription_of(request: JoinRequest) -> Subscription:
    try:
        return read_subscription(request.protocols[0][1])
    except ProtocolError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None


def _updated(member: ConsumerMember, request: JoinRequest, subscription: Subscription) -> ConsumerMember:
    names = frozenset(subscription.topics)
    return replace(
        member,
        instance_id=member.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=member.subscribed_topic_names if names == member.subscribed_topic_names else names,
        subscribed_topic_regex="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicMembership(request.session_timeout_ms, request.protocols),
    )


def _check_generation(member: ConsumerMember, generation_id: int) -> None:
    if member.member_epoch != generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _check_protocol(classic: ClassicMembership, request: SyncRequest) -> None:
    has_other_type = request.protocol_type is not None and request.protocol_type != CONSUMER_PROTOCOL_TYPE
    if has_other_type or (request.protocol_name is not None and request.protocol_name != classic.protocols[0][0]):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _expect_join(group: ConsumerGroup, member: ConsumerMember, effects: Effects) -> None:
    """Sets the timer for the rejoin of a member, its rebalance timeout, when the member is first told to join again."""
    event = ClassicJoinExpired(group.group_id, member.member_id)
    effects.set_timer_if_absent(join_timer(group.group_id, member.member_id), member.rebalance_timeout_ms, event)


def _leaving_member(group: ConsumerGroup, asked: LeavingMember) -> ConsumerMember:
    if asked.group_instance_id is None:
        return group.member(asked.member_id)
    known = group.static_member(asked.group_instance_id)
    if known is not None and asked.member_id == UNKNOWN_MEMBER_ID:
        return known
    return check_static(group, asked.group_instance_id, asked.member_id)
