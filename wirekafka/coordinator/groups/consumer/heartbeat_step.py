"""One heartbeat of a member of a consumer group: its regular expressions, the assignor, and the reconciliation with its target.

The part that share groups have too is in `modern/heartbeat_step.py`.

Source: GroupMetadataManager (consumerGroupHeartbeat and what it calls), TargetAssignmentBuilder of Apache Kafka 4.3.
"""

from __future__ import annotations

from wirekafka.coordinator.groups.consumer.group import ConsumerGroup
from wirekafka.coordinator.groups.consumer.member import ConsumerMember, MemberState, ResolvedRegex
from wirekafka.coordinator.groups.consumer.reconciliation import Owned, Target, reconcile
from wirekafka.coordinator.groups.consumer.records import CurrentRecord, MemberRecord, PartitionMetadataRecord, RegexRecord
from wirekafka.coordinator.groups.consumer.regexes import MIN_REFRESH_INTERVAL_MS, check_regex, resolve, some_of
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings
from wirekafka.coordinator.groups.consumer.timers import RevocationExpired, revocation_timer
from wirekafka.coordinator.groups.modern.assignors import ASSIGNORS, Assignor
from wirekafka.coordinator.groups.modern.heartbeat_step import HeartbeatStep, StepContext
from wirekafka.coordinator.groups.modern.subscriptions import Counts, TopicNames, count_in, count_out


class ConsumerHeartbeatStep(HeartbeatStep[ConsumerMember]):
    """The step of one heartbeat, or of one JoinGroup of a classic member."""

    def __init__(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        context: StepContext,
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(group, member, updated, context)
        self._group = group
        self._settings = settings
        self._resolved = group.resolved

    def record_member(self) -> bool:
        """Records the member if it has changed; returns whether the topic names to which it subscribes have changed."""
        if self.updated == self._member:
            return False
        self._out.records.append(MemberRecord(self._group.group_id, self.updated.member_id, self.updated))
        return self.updated.subscribed_topic_names != self._member.subscribed_topic_names

    def update_regexes(self) -> bool:
        """Resolves regular expressions if that is due; returns whether the member's own expression is new.

        A new expression is resolved at once. All expressions of the group are resolved again when topics were created, and
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
        # The order is: the member's own expression, then expressions never resolved, then those resolved longest ago.
        missing = sorted(wanted - self._resolved.keys(), key=lambda regex: regex != new)
        known = [regex for regex in self._resolved if regex in wanted] if is_lookup_due else []
        for regex, found in resolve(some_of([*missing, *known]), self._group.image, self._context.now_ms).items():
            self._resolve(regex, found)
        return old != new

    def _is_lookup_due(self) -> bool:
        """Whether to resolve all expressions: the one that was resolved longest ago, which is the first, decides."""
        oldest = next(iter(self._group.resolved.values()), None)
        if oldest is None:
            return False
        since_ms = self._context.now_ms - oldest.timestamp_ms
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

    def update_epoch(self, *, must_grow: bool) -> None:
        """See `HeartbeatStep.update_epoch`; also deletes the record of the group's partitions that an older Kafka wrote."""
        is_old = self._group.has_partition_metadata and (must_grow or self._has_new_topics() or self._group.is_refresh_due)
        super().update_epoch(must_grow=must_grow)
        if is_old:
            self._out.records.append(PartitionMetadataRecord(self._group.group_id))

    def _has_new_topics(self) -> bool:
        return self._resolved is not self._group.resolved

    def _metadata_hash(self) -> int:
        names = self._names_after()
        if names is None and not self._has_new_topics():
            return self._group.current_hash(self._context.hashes)
        named = {*self._group.subscriptions} if names is None else names
        return self._context.hashes.of_topics(named.union(*(found.topics for found in self._resolved.values())))

    def _must_grow_for_topics(self) -> bool:
        """Whether members that subscribe by an expression have other topics now, because topics were created or deleted.

        An expression may have no topics yet, because Apache Kafka writes them to the log later.
        """
        before = self._group.resolved
        return any(
            found.topics != (before[regex].topics if regex in before else set()) for regex, found in self._resolved.items()
        )

    def _assignor(self) -> tuple[str, Assignor]:
        """Returns the assignor that most members ask for."""
        counts: Counts = dict(self._group.assignors)
        if self.updated.server_assignor is not None:
            count_in(counts, (self.updated.server_assignor,))
        if self._member.server_assignor is not None:
            count_out(counts, (self._member.server_assignor,))
        known = {name: count for name, count in counts.items() if name in ASSIGNORS}
        name = max(known, key=known.__getitem__) if known else self._settings.assignors[0]
        return name, ASSIGNORS[name]

    def _members_after(self) -> dict[str, ConsumerMember]:
        members, updated = self._group.members, self.updated
        replaced = self._group.static_member(updated.instance_id)
        if replaced is not None and replaced.member_id != updated.member_id:
            members = {updated.member_id if name == replaced.member_id else name: member for name, member in members.items()}
        return {**members, updated.member_id: updated}

    def _subscription(self, member: ConsumerMember) -> tuple[TopicNames, ...]:
        found = self._resolved.get(member.subscribed_topic_regex)
        return (member.subscribed_topic_names,) if found is None else (member.subscribed_topic_names, found.topics)

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
        topics = (self._group.image.find(name) for names in self._subscription(member) for name in names)
        return frozenset(topic.topic_id for topic in topics if topic is not None)
