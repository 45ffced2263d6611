"""All consumer groups: how records of the log change them, their heartbeat steps, and their descriptions.

Source: GroupMetadataManager (replay, onLoaded, consumerGroupDescribe).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.groups.classic.group import ClassicGroup, GroupState
from wirekafka.coordinator.groups.consumer.group import ConsumerGroup
from wirekafka.coordinator.groups.consumer.heartbeat_step import ConsumerHeartbeatStep
from wirekafka.coordinator.groups.consumer.member import ConsumerMember, MemberState
from wirekafka.coordinator.groups.consumer.records import (
    CONSUMER_DECODERS,
    ConsumerRecord,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    PartitionMetadataRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from wirekafka.coordinator.groups.consumer.requests import DescribedConsumer, DescribedConsumerGroup
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings, GroupTimes
from wirekafka.coordinator.groups.consumer.timers import RevocationExpired, cancel_all, renew_session, revocation_timer
from wirekafka.coordinator.groups.modern.groups import ModernGroups
from wirekafka.coordinator.groups.modern.heartbeat_step import StepContext
from wirekafka.coordinator.groups.modern.topics import MetadataHashes, TopicImage
from wirekafka.coordinator.groups.records import Decoder
from wirekafka.coordinator.groups.types import Group
from wirekafka.errors import ProtocolError


class ConsumerGroups(ModernGroups[ConsumerGroup]):
    """The consumer groups; a `GroupType`. See `ModernGroups` for the other arguments.

    Args:
        times_of: returns the timeouts and intervals of a group, from its own settings or the broker's.

    Attributes:
        timers: the handlers of timers, by the class of the event; `machine` sets them.
    """

    def __init__(
        self,
        groups: dict[str, Group],
        settings: ConsumerSettings,
        times_of: Callable[[str], GroupTimes],
        image: TopicImage,
        hashes: MetadataHashes,
        partition_of: Callable[[str], int],
        forget: Callable[[str], None],
    ) -> None:
        super().__init__(ConsumerGroup, groups, image, hashes, settings.max_size, partition_of, forget)
        self.settings = settings
        self.times_of = times_of
        self.timers: dict[type[Any], Callable[[Any, int, Effects], None]] = {}

    @property
    def decoders(self) -> Mapping[int, Decoder]:
        """The decoders of the records of consumer groups, by the version of their key."""
        return CONSUMER_DECODERS

    @property
    def replayers(self) -> Mapping[type[Any], Callable[[Any], None]]:
        """The functions that apply a record to its group, by the class of the record."""
        return dict.fromkeys(
            (
                *(CurrentRecord, GroupEpochRecord, MemberRecord, PartitionMetadataRecord),
                *(RegexRecord, TargetEpochRecord, TargetRecord),
            ),
            self.replay,
        )

    def heartbeat_step(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        times: GroupTimes,
        now_ms: int,
        effects: Effects,
    ) -> ConsumerHeartbeatStep:
        """Returns the step of one heartbeat or JoinGroup of a member.

        Args:
            times: the timeouts and intervals of the group, from `times_of`.
        """
        context = StepContext(self.find, self._hashes, times.assignment_interval_ms, now_ms, effects)
        return ConsumerHeartbeatStep(group, member, updated, context, self.settings)

    def is_assignment_due(self, group: ConsumerGroup, now_ms: int) -> bool:
        """Whether the next member that joins again will compute a target for the group epoch."""
        interval_ms = self.times_of(group.group_id).assignment_interval_ms
        return group.assignment_epoch < group.group_epoch and group.can_assign(now_ms, interval_ms)

    def hash_without(self, group: ConsumerGroup, leaving: Sequence[ConsumerMember], ended_regexes: Set[str]) -> int:
        """Returns the hash over the topics to which the members subscribe once these members have left.

        Args:
            ended_regexes: the regular expressions to which no other member subscribes.
        """
        names = group.subscriptions.topics_after([member.subscribed_topic_names for member in leaving])
        if names is None and not ended_regexes:
            return group.current_hash(self._hashes)
        topics = {*group.subscriptions} if names is None else names
        found = (resolved.topics for regex, resolved in group.resolved.items() if regex not in ended_regexes)
        return self.metadata_hash(topics.union(*found))

    def metadata_hash(self, topics: set[str]) -> int:
        """Returns the hash over those of the topics that exist."""
        return self._hashes.of_topics(topics)

    def replay(self, record: ConsumerRecord) -> None:
        """Applies a record of the log to its group.

        Raises:
            ProtocolError: a group of another type has the id.
        """
        group = self._groups.get(record.group_id)
        if not isinstance(group, ConsumerGroup):
            if _is_tombstone(record):
                return
            if group is not None and not _is_simple(group):
                raise ProtocolError(f"a record of consumer group {record.group_id}, which is a {group.group_type} group")
            group = self._groups[record.group_id] = self.new_group(record.group_id)
        if isinstance(record, GroupEpochRecord) and record.epoch is None:
            self._forget(record.group_id)
        else:
            group.apply(record)

    def on_loaded(self, group: ConsumerGroup, now_ms: int, effects: Effects) -> None:
        """Sets the timers of the members in the log: for their sessions, and for the revocation of partitions.

        The regular expressions are resolved again soon, because topics may have changed before this broker had the group.

        Source: GroupMetadataManager.onLoaded.
        """
        times = self.times_of(group.group_id)
        group.image.outgrow(max((found.version for found in group.resolved.values()), default=0))
        for member in group.members.values():
            renew_session(group.group_id, member.member_id, times.session_timeout_ms, effects)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                event = RevocationExpired(group.group_id, member.member_id, member.member_epoch)
                effects.set_timer(revocation_timer(group.group_id, member.member_id), member.rebalance_timeout_ms, event)

    def on_unload(self, group: ConsumerGroup, effects: Effects) -> None:
        """Cancels the timers of a group whose log was deleted; no request of a consumer group waits for an answer."""
        for member_id in group.members:
            cancel_all(group.group_id, member_id, effects)

    def describe(self, group_id: str) -> DescribedConsumerGroup:
        """Returns a description of a group and its members.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        group = self.group(group_id)
        preferred = max(group.assignors, key=group.assignors.__getitem__) if group.assignors else self.settings.assignors[0]
        return DescribedConsumerGroup(
            group_id,
            group.state_name,
            group.group_epoch,
            group.assignment_epoch,
            preferred,
            [_described(group, member) for member in group.members.values()],
        )


def _described(group: ConsumerGroup, member: ConsumerMember) -> DescribedConsumer:
    has: dict[bytes, set[int]] = {}
    for owned in (member.assigned, member.pending_revocation):
        for topic_id, partitions in owned.items():
            has.setdefault(topic_id, set()).update(partitions)
    return DescribedConsumer(
        member.member_id,
        member.member_epoch,
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        sorted(member.subscribed_topic_names),
        member.subscribed_topic_regex,
        has,
        group.targets.get(member.member_id, {}),
        member.is_classic,
    )


def _is_tombstone(record: ConsumerRecord) -> bool:
    match record:
        case CurrentRecord(member=None) | MemberRecord(member=None) | TargetRecord(target=None) | RegexRecord(resolved=None):
            return True
        case GroupEpochRecord(epoch=None) | TargetEpochRecord(epoch=None) | PartitionMetadataRecord(is_tombstone=True):
            return True
        case _:
            return False


def _is_simple(group: Group) -> bool:
    """Whether a group has offsets and has never had members."""
    return isinstance(group, ClassicGroup) and group.state is GroupState.EMPTY and group.protocol_type is None
