"""One heartbeat of a member: how it changes the group's epochs, the target assignment, and the member's own assignment.

Theory of operation: a step begins with the member as the group has it and with the member as the heartbeat describes it. Each
method is one part of the heartbeat. Its result goes into the records and into the step, never into the group: the group changes
when the records are replayed. So a method looks at the group as it will be: the subscriptions include the member's new ones, and
the regular expressions include the new lookups.

Source: GroupMetadataManager (consumerGroupHeartbeat and what it calls), TargetAssignmentBuilder of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.groups.consumer.group import ConsumerGroup
from wirekafka.coordinator.groups.consumer.member import ConsumerMember, MemberState, ResolvedRegex
from wirekafka.coordinator.groups.consumer.reconciliation import Owned, Target, reconcile
from wirekafka.coordinator.groups.consumer.records import (
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    PartitionMetadataRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from wirekafka.coordinator.groups.consumer.regexes import MIN_REFRESH_INTERVAL_MS, check_regex, resolve, some_of
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings
from wirekafka.coordinator.groups.consumer.timers import RevocationExpired, revocation_timer
from wirekafka.coordinator.groups.modern.assignors import ASSIGNORS, AssignedMember
from wirekafka.coordinator.groups.modern.subscriptions import Counts, count_in, count_out
from wirekafka.coordinator.groups.modern.topics import MetadataHashes, Partitions

log = structlog.get_logger(__name__)

RECORDS_AT_ONCE = 1000
"""How many records stay together in one batch. What exceeds it are targets, which no member follows before the record of their
epoch. The conversion of a classic group is one batch whatever its size: half of a group cannot be converted."""


class HeartbeatStep:
    """The step of one heartbeat, or of one JoinGroup of a classic member.

    Args:
        member: the member as the group has it; a new member is not in the group yet.
        updated: the member as the heartbeat describes it.
        interval_ms: how long after an assignment of the group the next is computed.

    Attributes:
        updated: the member with all changes so far.
        target_epoch, target: the member's target; the next one after `update_target`.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        *,
        hashes: MetadataHashes,
        settings: ConsumerSettings,
        interval_ms: int,
        now_ms: int,
        effects: Effects,
    ) -> None:
        self.updated = updated
        self.target_epoch = group.assignment_epoch
        self.target: Partitions = group.target_of(updated)
        self._group = group
        self._member = member
        self._hashes = hashes
        self._settings = settings
        self._interval_ms = interval_ms
        self._now_ms = now_ms
        self._out = effects
        self._group_epoch = group.group_epoch
        self._resolved = group.resolved

    @property
    def group_epoch(self) -> int:
        """The group epoch after this step."""
        return self._group_epoch

    def record_member(self) -> bool:
        """Records the member if it has changed; returns whether the topic names to which it subscribes have changed."""
        if self.updated == self._member:
            return False
        self._out.records.append(MemberRecord(self._group.group_id, self.updated.member_id, self.updated))
        return self.updated.subscribed_topic_names != self._member.subscribed_topic_names

    def update_regexes(self) -> bool:
        """Looks up the topics of regular expressions if that is due; returns whether the member's own expression is new.

        A new expression is looked up at once. All expressions of the group are looked up again when topics were created, and
        after `regex_refresh_interval_ms`.

        Raises:
            KafkaError: INVALID_REGULAR_EXPRESSION.
        """
        old, new = self._member.subscribed_topic_regex, self.updated.subscribed_topic_regex
        regexes, is_lookup_due = self._group.regexes, self._is_lookup_due()
        if old == new and not is_lookup_due and len(regexes) == len(self._group.resolved):
            return False
        wanted = {*regexes, new} - {""}
        if old != new:
            if old and regexes.get(old) == 1:
                wanted.discard(old)
                self._resolve(old, None)
            if new and new not in regexes:
                check_regex(new)
        # First the member's own, then what was never looked up, then the oldest lookups.
        missing = sorted(wanted - self._resolved.keys(), key=lambda regex: regex != new)
        known = [regex for regex in self._resolved if regex in wanted] if is_lookup_due else []
        for regex, found in resolve(some_of([*missing, *known]), self._group.image, self._now_ms).items():
            self._resolve(regex, found)
        return old != new

    def _is_lookup_due(self) -> bool:
        """Whether to look up all expressions: the one that was looked up longest ago, which is the first, says when."""
        oldest = next(iter(self._group.resolved.values()), None)
        if oldest is None:
            return False
        since_ms = self._now_ms - oldest.timestamp_ms
        if since_ms <= MIN_REFRESH_INTERVAL_MS:
            return False
        return oldest.version < self._group.image.version or since_ms > self._settings.regex_refresh_interval_ms

    def _resolve(self, regex: str, found: ResolvedRegex | None) -> None:
        self._out.records.append(RegexRecord(self._group.group_id, regex, found))
        if self._resolved is self._group.resolved:
            self._resolved = dict(self._resolved)
        self._resolved.pop(regex, None)
        if found is not None:
            self._resolved[regex] = found

    def update_epoch(self, *, has_subscription_changed: bool) -> None:
        """Increases the group epoch if the member's subscription or a topic of the group has changed."""
        group = self._group
        is_resolved_anew = self._resolved is not group.resolved
        if not (has_subscription_changed or is_resolved_anew or group.is_refresh_due):
            return
        metadata_hash = self._metadata_hash()
        if has_subscription_changed or metadata_hash != group.metadata_hash or self._have_regex_topics_changed():
            self._group_epoch += 1
            self._out.records.append(GroupEpochRecord(group.group_id, self._group_epoch, metadata_hash))
            log.info("Group epoch begins", group=group.group_id, epoch=self._group_epoch)
        group.refreshed = (group.image.revision, self._group_epoch)
        if group.has_partition_metadata:
            self._out.records.append(PartitionMetadataRecord(group.group_id))

    def _metadata_hash(self) -> int:
        """The hash over the topics to which the members subscribe after this step."""
        group = self._group
        names = group.subscriptions.topics_after([self._member.subscribed_topic_names], [self.updated.subscribed_topic_names])
        if names is None and self._resolved is group.resolved:
            return group.current_hash(self._hashes)
        named = {*group.subscriptions} if names is None else names
        return self._hashes.of_topics(named | _topics_of(self._resolved.values()))

    def _have_regex_topics_changed(self) -> bool:
        """Whether members that subscribe by an expression have other topics now, be they new or gone.

        An expression may have come without its topics, for Apache Kafka writes them down later.
        """
        before = self._group.resolved
        return any(
            found.topics != (before[regex].topics if regex in before else set()) for regex, found in self._resolved.items()
        )

    def update_target(self) -> None:
        """Computes the target assignment for the group epoch, unless it was computed or the assignment interval is not over."""
        group = self._group
        if group.assignment_epoch >= self._group_epoch or not group.can_assign(self._now_ms, self._interval_ms):
            return
        members = self._assigned_members()
        image = group.image
        topic_ids = set[bytes]().union(*{member.topic_ids for member in members})
        topics = [image.find_by_id(topic_id) for topic_id in topic_ids]
        counts = {topic.topic_id: len(topic.partitions) for topic in topics if topic is not None}
        assignor = self._assignor()
        targets = ASSIGNORS[assignor](members, counts)
        changed = 0
        for member in members:
            target = targets[member.member_id]
            is_new = member.member_id not in group.targets and member.target is target and not target
            if is_new or target is not member.target:
                self._out.records.append(TargetRecord(group.group_id, member.member_id, target))
                changed += 1
        self._out.records.append(TargetEpochRecord(group.group_id, self._group_epoch, self._now_ms))
        self._out.is_atomic = self._out.must_be_atomic or len(self._out.records) <= RECORDS_AT_ONCE
        self.target_epoch, self.target = self._group_epoch, targets[self.updated.member_id]
        log.info(
            "Assigned partitions",
            group=group.group_id,
            epoch=self._group_epoch,
            assignor=assignor,
            members=len(members),
            changed=changed,
        )

    def _assignor(self) -> str:
        """The assignor that most members ask for."""
        counts: Counts = dict(self._group.assignors)
        if self.updated.server_assignor is not None:
            count_in(counts, (self.updated.server_assignor,))
        if self._member.server_assignor is not None:
            count_out(counts, (self._member.server_assignor,))
        known = {name: count for name, count in counts.items() if name in ASSIGNORS}
        return max(known, key=known.__getitem__) if known else self._settings.assignors[0]

    def _assigned_members(self) -> list[AssignedMember]:
        group, updated = self._group, self.updated
        replaced = group.static_member(updated.instance_id)
        members = dict(group.members)
        if replaced is not None and replaced.member_id != updated.member_id:
            members = {updated.member_id if name == replaced.member_id else name: member for name, member in members.items()}
        members[updated.member_id] = updated
        by_subscription: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}
        assigned = []
        for name, member in members.items():
            key = (member.subscribed_topic_names, member.subscribed_topic_regex)
            topic_ids = by_subscription.get(key)
            if topic_ids is None:
                topic_ids = by_subscription[key] = self._topic_ids_of(member)
            target = self.target if member is updated else group.targets.get(name, {})
            assigned.append(AssignedMember(name, member.instance_id, topic_ids, target))
        return assigned

    def reconcile(self, owned: Owned | None, *, has_subscription_changed: bool) -> None:
        """Reconciles the member with its target.

        Raises:
            KafkaError: FENCED_MEMBER_EPOCH.
        """
        member = self.updated
        if not has_subscription_changed and member.is_reconciled_to(self.target_epoch):
            return
        target = Target(self.target_epoch, self.target, self._topic_ids_of(member), self._group.is_free, owned)
        next_state = reconcile(member, target, has_subscription_changed=has_subscription_changed)
        if next_state == member:
            return
        self.updated = next_state
        group_id, member_id = self._group.group_id, member.member_id
        self._out.records.append(CurrentRecord(group_id, member_id, next_state))
        if next_state.is_classic:
            return
        timer = revocation_timer(group_id, member_id)
        if next_state.state is MemberState.UNREVOKED_PARTITIONS:
            event = RevocationExpired(group_id, member_id, next_state.member_epoch)
            self._out.set_timer(timer, next_state.rebalance_timeout_ms, event)
        else:
            self._out.cancel_timer(timer)

    def _topic_ids_of(self, member: ConsumerMember) -> frozenset[bytes]:
        names: Iterable[str] = member.subscribed_topic_names
        found = self._resolved.get(member.subscribed_topic_regex)
        if found is not None:
            names = member.subscribed_topic_names | found.topics
        topics = (self._group.image.find(name) for name in names)
        return frozenset(topic.topic_id for topic in topics if topic is not None)


def _topics_of(resolved: Iterable[ResolvedRegex]) -> set[str]:
    return set[str]().union(*(found.topics for found in resolved))
