"""Migration: the first consumer member makes a classic group a consumer group; after the last one has left, it is classic again.

How it works: during the migration a group has members of both protocols. To a classic member the consumer group looks like
a classic group whose rebalances never wait: the member is told to join again when its assignment changes, and its generation is
its member epoch. An upgrade keeps the members' ids, partitions and sessions. A downgrade makes a stable classic group of the
members that remain. The group then rebalances, because none of them has been its leader.

Rule of this file: nothing changes before the records are in the log. A conversion replaces the group in `Effects.then`.

Source: GroupMetadataManager (validateOnlineUpgrade, convertToConsumerGroup, validateOnlineDowngradeWith*, convertToClassicGroup,
consumerGroupFenceMembers), ConsumerGroup.fromClassicGroup, ClassicGroup.fromConsumerGroup of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.effects import join_timer as classic_join_timer
from wirekafka.coordinator.effects import session_timer as classic_session_timer
from wirekafka.coordinator.effects import sync_timer as classic_sync_timer
from wirekafka.coordinator.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, GroupState, Member
from wirekafka.coordinator.groups.classic.rebalance import Rebalancer
from wirekafka.coordinator.groups.consumer.consumer_protocol import (
    assignment_version,
    read_assignment,
    read_subscription,
    write_assignment,
)
from wirekafka.coordinator.groups.consumer.group import ConsumerGroup
from wirekafka.coordinator.groups.consumer.groups import ConsumerGroups
from wirekafka.coordinator.groups.consumer.member import ClassicMembership, ConsumerMember, with_epoch
from wirekafka.coordinator.groups.consumer.records import (
    ConsumerRecord,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from wirekafka.coordinator.groups.consumer.timers import cancel_all, renew_session
from wirekafka.coordinator.groups.modern.subscriptions import Counts, count_out
from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.coordinator.groups.records import GroupRecord
from wirekafka.coordinator.groups.requests import JoinResult, SyncResult
from wirekafka.coordinator.groups.types import Group
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError

log = structlog.get_logger(__name__)


class Migration:
    """Conversions between the protocols, and the removal of members, which may cause one.

    Args:
        table: all groups of all types, by id.
    """

    def __init__(self, table: dict[str, Group], groups: ConsumerGroups, rebalancer: Rebalancer) -> None:
        self._table = table
        self._groups = groups
        self._rebalancer = rebalancer

    def consumer_group_for(self, group_id: str, effects: Effects) -> ConsumerGroup:
        """Returns the group that a consumer member joins: a consumer group, a new one, or a converted classic group.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND if the group cannot be converted.
        """
        known = self._table.get(group_id)
        if isinstance(known, ConsumerGroup):
            return known
        if known is None:
            return self._groups.new_group(group_id)
        if not isinstance(known, ClassicGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if known.is_empty:
            effects.records += known.tombstones()
            return self._groups.new_group(group_id)
        self._check_upgrade(known)
        return self._upgrade(known, effects)

    def _check_upgrade(self, group: ClassicGroup) -> None:
        settings = self._groups.settings
        reason = None
        if not settings.migration_policy.can_upgrade:
            reason = "online upgrade is disabled"
        elif not group.is_consumer_group:
            reason = "the group does not use the consumer embedded protocol"
        elif len(group.members) > settings.max_size:
            reason = "the group size exceeds the consumer group maximum size"
        if reason is not None:
            raise _no_upgrade(group, reason)

    def _upgrade(self, classic: ClassicGroup, effects: Effects) -> ConsumerGroup:
        try:
            members, targets = self._members_of(classic)
        except ProtocolError:
            raise _no_upgrade(classic, "the embedded consumer protocol is malformed") from None
        group = self._groups.new_group(classic.group_id)
        topics = {topic for member in members for topic in member.subscribed_topic_names}
        records = _records_of(classic, members, targets, self._groups.metadata_hash(topics))
        for record in records:
            group.apply(record)
        effects.records += [*classic.tombstones(), *records]
        effects.must_be_atomic = True

        def decided(error: ErrorCode | None, now_ms: int) -> Effects:
            after = Effects()
            if error is None:
                self._end_classic(classic, group, after)
            return after

        effects.then = decided
        return group

    def _end_classic(self, classic: ClassicGroup, group: ConsumerGroup, effects: Effects) -> None:
        """Tells members that wait in the classic group to join again; they then join the consumer group."""
        log.info("Converted a classic group to a consumer group", group=group.group_id, members=len(classic.members))
        effects.cancel_timer(classic_join_timer(classic.group_id))
        effects.cancel_timer(classic_sync_timer(classic.group_id))
        for member_id in [*classic.members, *classic.pending_members]:
            effects.cancel_timer(classic_session_timer(classic.group_id, member_id))
        for member in classic.members.values():
            result = JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            self._rebalancer.answer_join(classic, member, result, effects)
            self._rebalancer.answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS), effects)
            renew_session(group.group_id, member.member_id, member.session_timeout_ms, effects)

    def _members_of(self, classic: ClassicGroup) -> tuple[list[ConsumerMember], dict[str, Partitions]]:
        """Returns the members as consumer members, with the partitions that the last rebalance gave them."""
        if not classic.members:
            return [], {}
        protocol_name = _protocol_of(classic)
        members, targets = [], {}
        for member in classic.members.values():
            partitions, is_custom = read_assignment(member.assignment, self._groups.image)
            if is_custom:
                raise _no_upgrade(classic, "an unsupported custom assignor is in use")
            subscription = read_subscription(member.metadata(protocol_name))
            targets[member.member_id] = partitions
            members.append(
                ConsumerMember(
                    member.member_id,
                    member_epoch=classic.generation_id,
                    previous_member_epoch=classic.generation_id,
                    instance_id=member.group_instance_id,
                    rack_id=subscription.rack_id or None,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=frozenset(subscription.topics),
                    assigned=with_epoch(partitions, classic.generation_id),
                    classic=ClassicMembership(member.session_timeout_ms, member.protocols),
                )
            )
        places = [(topic, index) for target in targets.values() for topic, indexes in target.items() for index in indexes]
        if len(set(places)) < len(places):
            raise _no_upgrade(classic, "two of its members have the same partition")
        return members, targets

    def remove_members(self, group: ConsumerGroup, leaving: Sequence[ConsumerMember], now_ms: int, effects: Effects) -> None:
        """Removes members at once; if only classic members remain, the group becomes a classic group.

        Source: GroupMetadataManager.consumerGroupFenceMembers.
        """
        if not leaving:
            return
        gone = {member.member_id for member in leaving}
        left_count = len(group.members) - len(gone)
        left_classic_count = group.classic_count - sum(member.is_classic for member in leaving)
        if 0 < left_count == left_classic_count and self._can_downgrade(group, left_count):
            left = [member for member in group.members.values() if member.member_id not in gone]
            reason = "the last member that used the consumer protocol has left"
            self._downgrade(group, self._classic_group(group, left, None, now_ms), None, reason, effects)
            return
        for member_id in gone:
            effects.records += [
                CurrentRecord(group.group_id, member_id, None),
                TargetRecord(group.group_id, member_id, None),
                MemberRecord(group.group_id, member_id, None),
            ]
        effects.records += self._end_regexes(group, leaving)
        metadata_hash = self._groups.hash_without(group, leaving, _ended_regexes(group, leaving))
        effects.records.append(GroupEpochRecord(group.group_id, group.group_epoch + 1, metadata_hash))
        log.info("Group epoch begins", group=group.group_id, epoch=group.group_epoch + 1)

        def decided(error: ErrorCode | None, now_ms: int) -> Effects:
            after = Effects()
            if error is None:
                for member_id in gone:
                    cancel_all(group.group_id, member_id, after)
            return after

        effects.then = decided

    def _end_regexes(self, group: ConsumerGroup, leaving: Sequence[ConsumerMember]) -> list[ConsumerRecord]:
        ended = _ended_regexes(group, leaving)
        return [RegexRecord(group.group_id, regex, None) for regex in group.resolved if regex in ended]

    def can_downgrade_with(self, group: ConsumerGroup, replaced: ConsumerMember | None) -> bool:
        """Whether the group becomes a classic group when a classic member replaces this static member."""
        if replaced is None or replaced.is_classic or group.classic_count != len(group.members) - 1:
            return False
        return self._can_downgrade(group, len(group.members))

    def _can_downgrade(self, group: ConsumerGroup, size: int) -> bool:
        settings = self._groups.settings
        if not settings.migration_policy.can_downgrade:
            log.info("The group stays a consumer group, because online downgrade is disabled", group=group.group_id)
            return False
        if size > settings.classic_max_size:
            log.info("The group stays a consumer group, because it exceeds group.max.size", group=group.group_id, members=size)
            return False
        return True

    def downgrade_with(
        self,
        group: ConsumerGroup,
        replaced: ConsumerMember,
        joining: ConsumerMember,
        *,
        is_stale: bool,
        now_ms: int,
        effects: Effects,
    ) -> None:
        """Converts the group to a classic group, in which a static member has a new id.

        Args:
            is_stale: the target is older than the group epoch, so the classic group has to rebalance.
        """
        left = [*(member for member in group.members.values() if member is not replaced), joining]
        reason = "its assignment was out of date when it became a classic group" if is_stale else None
        renamed = (replaced.member_id, joining.member_id)
        self._downgrade(group, self._classic_group(group, left, renamed, now_ms), renamed, reason, effects)

    def _downgrade(
        self,
        group: ConsumerGroup,
        classic: ClassicGroup,
        renamed: tuple[str, str] | None,
        reason: str | None,
        effects: Effects,
    ) -> None:
        """Ends the consumer group and begins the classic group of the members that remain.

        Args:
            renamed: the static member that is replaced, and its new id; None if no member is replaced.
            reason: why the classic group has to rebalance; None if it need not.
        """
        assignments = {member.member_id: member.assignment for member in classic.members.values()}
        effects.records += [*group.tombstones(renamed), GroupRecord(group.group_id, classic.to_record(assignments))]
        effects.is_replayed = False

        def decided(error: ErrorCode | None, now_ms: int) -> Effects:
            after = Effects()
            if error is None:
                self._begin_classic(group, classic, reason, now_ms, after)
            return after

        effects.then = decided

    def _begin_classic(
        self, group: ConsumerGroup, classic: ClassicGroup, reason: str | None, now_ms: int, effects: Effects
    ) -> None:
        log.info("Converted a consumer group to a classic group", group=group.group_id, members=len(classic.members))
        self._table[group.group_id] = classic
        for member_id in group.members:
            cancel_all(group.group_id, member_id, effects)
        for member in classic.members.values():
            self._rebalancer.renew_session(classic, member, effects)
        if reason is not None:
            self._rebalancer.prepare(classic, reason, now_ms, effects)

    def _classic_group(
        self, group: ConsumerGroup, left: Sequence[ConsumerMember], renamed: tuple[str, str] | None, now_ms: int
    ) -> ClassicGroup:
        classic = ClassicGroup(
            group.group_id,
            group.partition,
            state=GroupState.STABLE,
            previous_state=GroupState.STABLE,
            state_timestamp_ms=now_ms,
            generation_id=group.group_epoch,
        )
        for member in left:
            assert member.classic is not None
            classic.add(
                Member(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.classic.session_timeout_ms,
                    protocols=member.classic.protocols,
                ),
                CONSUMER_PROTOCOL_TYPE,
            )
        classic.protocol_name = classic.select_protocol()
        classic.update_subscribed_topics()
        for known in classic.members.values():
            is_new = renamed is not None and known.member_id == renamed[1]
            target = group.targets.get(renamed[0] if renamed is not None and is_new else known.member_id, {})
            version = assignment_version(known.metadata(classic.protocol_name))
            known.assignment = write_assignment(target, self._groups.image, version)
        return classic


def _protocol_of(classic: ClassicGroup) -> str:
    """Returns a protocol for which every member has metadata: the group's, unless a joined member does not support it."""
    name = classic.protocol_name
    is_supported = name is not None and classic.supported_protocols[name] == len(classic.members)
    return name if name is not None and is_supported else classic.select_protocol()


def _records_of(
    classic: ClassicGroup, members: Sequence[ConsumerMember], targets: dict[str, Partitions], metadata_hash: int
) -> list[ConsumerRecord]:
    """Source: ConsumerGroup.createConsumerGroupRecords."""
    group_id, epoch = classic.group_id, classic.generation_id
    return [
        *(MemberRecord(group_id, member.member_id, member) for member in members),
        GroupEpochRecord(group_id, epoch, metadata_hash),
        *(TargetRecord(group_id, member_id, target) for member_id, target in targets.items()),
        TargetEpochRecord(group_id, epoch),
        *(CurrentRecord(group_id, member.member_id, member) for member in members),
    ]


def _no_upgrade(group: ClassicGroup, reason: str) -> KafkaError:
    log.info("A classic group cannot become a consumer group", group=group.group_id, reason=reason)
    message = f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _ended_regexes(group: ConsumerGroup, leaving: Sequence[ConsumerMember]) -> set[str]:
    """Returns the regular expressions without subscribers once these members have left."""
    regexes: Counts = dict(group.regexes)
    count_out(regexes, (member.subscribed_topic_regex for member in leaving if member.subscribed_topic_regex))
    return group.regexes.keys() - regexes.keys()
