"""Members of the consumer protocol: ConsumerGroupHeartbeat.

How it works: a heartbeat is checked, its member is found or created, and takes its `ConsumerHeartbeatStep`: the step
records the member, begins a group epoch and computes targets if that is due, and reconciles the member with its target. The
response has the member after the step, because the log then has it.

Rule of this file: an entry point raises the error of the response, or returns the response with the records to append first.

Source: GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid, GroupMetadataManager.consumerGroupHeartbeat and
consumerGroupLeave of Apache Kafka 4.3; KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.groups.consumer.group import ConsumerGroup
from wirekafka.coordinator.groups.consumer.groups import ConsumerGroups
from wirekafka.coordinator.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    OwnedPartitions,
    without_epochs,
)
from wirekafka.coordinator.groups.consumer.migration import Migration
from wirekafka.coordinator.groups.consumer.reconciliation import Owned
from wirekafka.coordinator.groups.consumer.records import CurrentRecord, MemberRecord, TargetRecord
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from wirekafka.coordinator.groups.consumer.timers import renew_session
from wirekafka.errors import ErrorCode, KafkaError

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Heartbeats:
    """Members of the consumer protocol.

    Args:
        groups: all consumer groups.
        migration: converts a classic group to a consumer group, and back.
        new_id: returns a new random member id.
    """

    def __init__(self, groups: ConsumerGroups, migration: Migration, new_id: Callable[[], str]) -> None:
        self._groups = groups
        self._migration = migration
        self._new_id = new_id

    def heartbeat(self, request: ConsumerHeartbeat, now_ms: int) -> tuple[ConsumerHeartbeatResult, Effects]:
        """Handles a heartbeat: the client becomes a member, stays one, or leaves.

        Raises:
            KafkaError: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION; GROUP_ID_NOT_FOUND,
                GROUP_MAX_SIZE_REACHED; UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID.
        """
        self._check(request)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request, now_ms)
        effects = Effects()
        is_joining = request.member_epoch == JOIN_EPOCH
        group = (
            self._migration.consumer_group_for(request.group_id, effects) if is_joining else self._groups.group(request.group_id)
        )
        self._groups.check_room(group, request.member_id)
        request.member_id = request.member_id or self._new_id()
        if request.instance_id is None:
            member = self._dynamic_member(group, request)
        else:
            member = self._static_member(group, request, request.instance_id, effects)
        return self._take_step(group, member, request, now_ms, effects), effects

    def _take_step(
        self, group: ConsumerGroup, member: ConsumerMember, request: ConsumerHeartbeat, now_ms: int, effects: Effects
    ) -> ConsumerHeartbeatResult:
        times = self._groups.times_of(group.group_id)
        step = self._groups.heartbeat_step(group, member, _updated(member, request), times, now_ms, effects)
        has_changed = step.record_member()
        has_changed |= step.update_regexes()
        step.update_epoch(must_grow=has_changed)
        step.update_target()
        step.reconcile(request.owned, has_subscription_changed=has_changed)
        renew_session(group.group_id, member.member_id, times.session_timeout_ms, effects)
        updated = step.updated
        is_told = request.member_epoch == JOIN_EPOCH or _is_full(request) or member.assigned != updated.assigned
        return ConsumerHeartbeatResult(
            updated.member_id,
            updated.member_epoch,
            times.heartbeat_interval_ms,
            without_epochs(updated.assigned) if is_told else None,
        )

    def _check(self, request: ConsumerHeartbeat) -> None:
        if request.is_member_id_required or request.member_epoch > 0 or request.member_epoch == LEAVE_EPOCH:
            _check_text(request.member_id, "MemberId can't be empty.")
        _check_text(request.group_id, "GroupId can't be empty.")
        if request.instance_id is not None:
            _check_text(request.instance_id, "InstanceId can't be empty.")
        if request.rack_id is not None:
            _check_text(request.rack_id, "RackId can't be empty.")
        if request.member_epoch == JOIN_EPOCH:
            _check_join(request)
        elif request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
        elif request.member_epoch < STATIC_LEAVE_EPOCH:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
        assignors = self._groups.settings.assignors
        if request.server_assignor is not None and request.server_assignor not in assignors:
            message = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}."
            raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)

    def _dynamic_member(self, group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerMember:
        if request.member_epoch != JOIN_EPOCH:
            member = group.member(request.member_id)
            _check_epoch(member, request.member_epoch, request.owned)
            return member
        log.info("Member joins", group=group.group_id, member=request.member_id, protocol="consumer")
        return group.members.get(request.member_id) or ConsumerMember(request.member_id)

    def _static_member(
        self, group: ConsumerGroup, request: ConsumerHeartbeat, instance_id: str, effects: Effects
    ) -> ConsumerMember:
        known = group.static_member(instance_id)
        if request.member_epoch != JOIN_EPOCH:
            known = check_static(group, instance_id, request.member_id)
            _check_epoch(known, request.member_epoch, request.owned)
            return known
        log.info("Static member joins", group=group.group_id, member=request.member_id, instance=instance_id, protocol="consumer")
        if known is None:
            return group.members.get(request.member_id) or ConsumerMember(request.member_id)
        if not known.is_classic and known.member_epoch != STATIC_LEAVE_EPOCH:
            message = (
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {known.member_id} member."
            )
            raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, message)
        return replace_static(group, known, request.member_id, effects)

    def _leave(self, request: ConsumerHeartbeat, now_ms: int) -> tuple[ConsumerHeartbeatResult, Effects]:
        group = self._groups.group(request.group_id)
        result = ConsumerHeartbeatResult(request.member_id, request.member_epoch)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = check_static(group, request.instance_id, request.member_id)
        if request.instance_id is not None and request.member_epoch == STATIC_LEAVE_EPOCH:
            log.info("Static member leaves temporarily", group=group.group_id, member=member.member_id)
            return result, Effects(records=[CurrentRecord(group.group_id, member.member_id, _away(member))])
        log.info("Member leaves", group=group.group_id, member=member.member_id)
        effects = Effects()
        self._migration.remove_members(group, [member], now_ms, effects)
        return result, effects


def check_static(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """Returns the static member with this instance id; raises unless the member id is its current one.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
    """
    known = group.static_member(instance_id)
    if known is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if known.member_id != member_id:
        log.info(
            "Fenced a static member", group=group.group_id, instance=instance_id, member=member_id, replaced_by=known.member_id
        )
        message = f"Static member {member_id} with instance id {instance_id} was fenced by member {known.member_id}."
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
    return known


def replace_static(group: ConsumerGroup, known: ConsumerMember, member_id: str, effects: Effects) -> ConsumerMember:
    """Gives a static member that has rejoined its new id; it keeps its partitions, and begins at the epoch of a new member.

    Source: GroupMetadataManager.replaceMember.
    """
    log.info("Static member rejoined", group=group.group_id, instance=known.instance_id, member=member_id, was=known.member_id)
    member = replace(known, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
    effects.records += [
        CurrentRecord(group.group_id, known.member_id, None),
        TargetRecord(group.group_id, known.member_id, None),
        MemberRecord(group.group_id, known.member_id, None),
        MemberRecord(group.group_id, member_id, member),
        TargetRecord(group.group_id, member_id, group.targets.get(known.member_id, {})),
        CurrentRecord(group.group_id, member_id, member),
    ]
    return member


def _away(member: ConsumerMember) -> ConsumerMember:
    """Returns the static member after it has left temporarily: it keeps its partitions, and has none to revoke."""
    reset: OwnedPartitions = {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in member.assigned.items()}
    return replace(member, member_epoch=STATIC_LEAVE_EPOCH, assigned=reset, pending_revocation={})


def _updated(member: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
    """Returns the member with the changes of a heartbeat; the same object if there are none."""
    if not _has_changes(member, request):
        return member
    names = request.subscribed_topic_names
    new_names = member.subscribed_topic_names if names is None else frozenset(names)
    if new_names == member.subscribed_topic_names:
        new_names = member.subscribed_topic_names
    updated = replace(
        member,
        instance_id=_or(request.instance_id, member.instance_id),
        rack_id=_or(request.rack_id, member.rack_id),
        rebalance_timeout_ms=_or(request.rebalance_timeout_ms, member.rebalance_timeout_ms),
        server_assignor=_or(request.server_assignor, member.server_assignor),
        subscribed_topic_names=new_names,
        subscribed_topic_regex=_or(request.subscribed_topic_regex, member.subscribed_topic_regex),
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )
    return member if updated == member else updated


def _has_changes(member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
    """Whether a heartbeat may change the member; False for most heartbeats, which only keep the session alive."""
    return (
        request.subscribed_topic_names is not None
        or request.subscribed_topic_regex is not None
        or request.rebalance_timeout_ms is not None
        or request.server_assignor is not None
        or request.instance_id != member.instance_id
        or (request.rack_id is not None and request.rack_id != member.rack_id)
        or request.client_id != member.client_id
        or request.client_host != member.client_host
        or member.is_classic
    )


def _or(said: T | None, known: T) -> T:
    return known if said is None else said


def _check_join(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        message = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_text(text: str | None, message: str) -> None:
    if text is not None and not text.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_epoch(member: ConsumerMember, epoch: int, owned: Owned | None) -> None:
    """Raises unless a heartbeat has the member's epoch, or its previous epoch because a response was lost.

    Source: GroupMetadataManager.throwIfConsumerGroupMemberEpochIsInvalid.
    """
    if epoch == member.member_epoch:
        return
    is_behind = epoch < member.member_epoch
    if is_behind and epoch == member.previous_member_epoch and _is_part_of(owned, member.assigned):
        return
    message = (
        f"The consumer group member has a {'smaller' if is_behind else 'greater'} member epoch ({epoch}) than the one known by "
        f"the group coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin."
    )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _is_part_of(owned: Owned | None, assigned: OwnedPartitions) -> bool:
    if owned is None:
        return False
    return all(
        topic_id in assigned and all(partition in assigned[topic_id] for partition in partitions)
        for topic_id, partitions in owned.items()
    )


def _is_full(request: ConsumerHeartbeat) -> bool:
    """Whether a heartbeat has all fields, as a heartbeat after a lost response has."""
    is_subscribed = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms is not None and is_subscribed and request.owned is not None
