"""A group of the consumer protocol: its members, its epochs, and the owners of partitions.

How it works: members, epochs and targets are those of `ModernGroup`. A partition has one owner. So a member first revokes
partitions, then moves to the epoch of the target, and then gets the partitions that other members have revoked. No member waits
for all others, so there is no barrier as in the classic protocol.

Rules of this file: `apply` applies the records of live steps and of the log at the start; nothing else changes stored state.
    Invariant: `partition_epochs` has each partition that a member may be reading (assigned or to be revoked), with that
        member's epoch; so a partition that is not in it is free. No partition has two such members.
    Invariant: `static_members` maps the instance id of each static member to its id.
    Invariant: `regexes` and `assignors` count the members, `regex_topics` the resolved regular expressions.

Source: ConsumerGroup, ModernGroup of Apache Kafka 4.3; KIP-848, KIP-1251 (offsets committed with an older epoch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from wirekafka.coordinator.groups.consumer.member import ConsumerMember, MemberState, OwnedPartitions, ResolvedRegex
from wirekafka.coordinator.groups.consumer.records import (
    ConsumerRecord,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    PartitionMetadataRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from wirekafka.coordinator.groups.modern.group import ModernGroup
from wirekafka.coordinator.groups.modern.subscriptions import Counts, count_in, count_out
from wirekafka.coordinator.groups.modern.topics import Partitions, TopicImage
from wirekafka.coordinator.groups.records import CommittedOffset, CoordinatorRecord
from wirekafka.coordinator.groups.requests import UNKNOWN_MEMBER_ID, CommitRequest
from wirekafka.coordinator.groups.types import CONSUMER
from wirekafka.errors import ErrorCode, KafkaError

CONSUMER_PROTOCOL_TYPE = "consumer"

NO_EPOCH = -1


class ConsumerGroup(ModernGroup[ConsumerMember]):
    """A consumer group; see the module's invariants, and `ModernGroup` for the part that share groups have too.

    Attributes:
        static_members: the member id of each static member, by its instance id.
        resolved: the topics that match the members' regular expressions, the oldest lookup first.
        has_partition_metadata: the log has a record with the metadata of the group's topics, from Apache Kafka before 4.1.
    """

    type_name = CONSUMER
    epoch_record = GroupEpochRecord
    target_record = TargetRecord
    target_epoch_record = TargetEpochRecord

    __slots__ = (
        "_regex_revision",
        "assignors",
        "classic_count",
        "classic_protocols",
        "has_partition_metadata",
        "partition_epochs",
        "regex_topics",
        "regexes",
        "resolved",
        "static_members",
    )

    def __init__(self, group_id: str, partition: int, image: TopicImage) -> None:
        super().__init__(group_id, partition, image)
        self.static_members: dict[str, str] = {}
        self.partition_epochs: dict[bytes, dict[int, int]] = {}
        self.regexes: Counts = {}
        self.regex_topics: Counts = {}
        self.resolved: dict[str, ResolvedRegex] = {}
        self.assignors: Counts = {}
        self.classic_count = 0
        self.classic_protocols: Counts = {}
        self.has_partition_metadata = False
        self._regex_revision = 0

    @property
    def state_name(self) -> str:
        """The state of the group, which follows from its epochs and the states of its members."""
        if not self.members:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Returns the static member with this instance id; None if there is none."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def current_member_id(self, member_id: str, instance_id: str | None) -> str | None:
        """Returns the current id of a member that had this id earlier; a static member may have rejoined with another id."""
        if member_id in self.members or instance_id is None:
            return super().current_member_id(member_id, instance_id)
        return self.static_members.get(instance_id)

    def target_of(self, member: ConsumerMember) -> Partitions:
        """Returns the target of a member; a static member has the target of its instance id, whatever its member id is."""
        member_id: str | None = member.member_id
        if member.instance_id is not None:
            member_id = self.static_members.get(member.instance_id)
        return {} if member_id is None else self.targets.get(member_id, {})

    def is_free(self, topic_id: bytes, partition: int) -> bool:
        """Whether no member may be reading a partition."""
        return partition not in self.partition_epochs.get(topic_id, ())

    def waits_for_partition(self, member: ConsumerMember) -> bool:
        """Whether another member still has a partition of the member's target.

        Source: ConsumerGroup.waitingOnUnreleasedPartition.
        """
        return member.state is MemberState.UNRELEASED_PARTITIONS and any(
            partition not in member.assigned.get(topic_id, ()) and not self.is_free(topic_id, partition)
            for topic_id, partitions in self.targets.get(member.member_id, {}).items()
            for partition in partitions
        )

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members subscribe to a topic, by its name or by a regular expression."""
        return topic in self.subscriptions or topic in self.regex_topics

    @property
    def topics_revision(self) -> object:
        """A value that stays equal while the members subscribe, by name or by regular expression, to the same topics."""
        return self.subscriptions.revision, self._regex_revision

    def topics(self) -> set[str]:
        """Returns the names of the topics to which the members subscribe, by name or by regular expression."""
        return {*self.subscriptions, *self.regex_topics}

    def check_commit(self, request: CommitRequest, *, is_transactional: bool) -> None:
        """Raises unless the sender of the request may commit offsets.

        A member may commit with an older epoch for partitions that it has owned since that epoch (KIP-1251).

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID; STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a classic member or in a transaction;
                UNSUPPORTED_VERSION if the version of the request does not know the consumer protocol.

        Source: ConsumerGroup.validateOffsetCommit, OffsetMetadataManager.validateTransactionalOffsetCommit.
        """
        epoch = request.generation_id
        if epoch < 0 and not self.members:
            return
        is_anonymous = request.member_id == UNKNOWN_MEMBER_ID and request.group_instance_id is None
        if is_transactional and epoch == NO_EPOCH and is_anonymous:
            return
        member = self.member(request.member_id)
        if not is_transactional and not member.is_classic and not request.knows_consumer_protocol:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        stale = ErrorCode.ILLEGAL_GENERATION if member.is_classic or is_transactional else ErrorCode.STALE_MEMBER_EPOCH
        if epoch > member.member_epoch:
            raise KafkaError(stale)
        if epoch == member.member_epoch:
            return
        for commit in request.commits:
            topic = self.image.find(commit.topic)
            since = None if topic is None else member.assignment_epoch(topic.topic_id, commit.partition)
            if since is None or epoch < since:
                raise KafkaError(stale)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raises unless this member, or a client that is not a member, may read offsets.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID; STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a classic member.

        Source: ConsumerGroup.validateOffsetFetch.
        """
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or UNKNOWN_MEMBER_ID)
        if member_epoch != member.member_epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH)

    def check_offset_delete(self) -> None:
        """Never raises: offsets of topics without subscribers may be deleted at any time."""

    def check_delete(self) -> None:
        """Raises unless the group may be deleted.

        Raises:
            KafkaError: NON_EMPTY_GROUP.
        """
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def offset_age_starts_ms(self, offset: CommittedOffset) -> int | None:
        """Returns the commit time of the offset, at which the retention for a topic without subscribers begins."""
        return offset.commit_timestamp_ms

    def tombstones(self, renamed: tuple[str, str] | None = None) -> list[CoordinatorRecord]:
        """Returns the tombstones that delete the group from the log, without those of its offsets.

        Args:
            renamed: a member whose id in the log differs from its id in the group: the group's id, then the log's.
        """
        member_ids = [renamed[1] if renamed is not None and name == renamed[0] else name for name in self.members]
        return [
            *(CurrentRecord(self.group_id, member_id, None) for member_id in member_ids),
            *(TargetRecord(self.group_id, member_id, None) for member_id in member_ids),
            TargetEpochRecord(self.group_id, None),
            *(MemberRecord(self.group_id, member_id, None) for member_id in member_ids),
            *(RegexRecord(self.group_id, regex, None) for regex in self.resolved),
            PartitionMetadataRecord(self.group_id),
            GroupEpochRecord(self.group_id, None),
        ]

    def apply(self, record: ConsumerRecord) -> None:
        """Applies a record; the caller deletes the group after the tombstone of its epoch."""
        match record:
            case CurrentRecord():
                self._apply_current(record)
            case TargetRecord(target=None):
                self.targets.pop(record.member_id, None)
            case TargetRecord(target=target):
                assert target is not None
                self.targets[record.member_id] = target
            case TargetEpochRecord():
                self.assignment_epoch = NO_EPOCH if record.epoch is None else record.epoch
                self.assignment_timestamp_ms = record.timestamp_ms
            case MemberRecord():
                self._apply_member(record)
            case GroupEpochRecord():
                if record.epoch is not None:
                    self.group_epoch, self.metadata_hash = record.epoch, record.metadata_hash
            case RegexRecord():
                self._apply_regex(record)
            case PartitionMetadataRecord():
                self.has_partition_metadata = not record.is_tombstone

    def _apply_member(self, record: MemberRecord) -> None:
        if record.member is None:
            self._replace(record.member_id, None)
            return
        known = self.members.get(record.member_id)
        said = record.member
        if known is None:
            known = ConsumerMember(record.member_id)
        self._replace(
            record.member_id,
            replace(
                said,
                subscribed_topic_names=self.subscriptions.share(said.subscribed_topic_names),
                member_epoch=known.member_epoch,
                previous_member_epoch=known.previous_member_epoch,
                state=known.state,
                assigned=known.assigned,
                pending_revocation=known.pending_revocation,
            ),
        )

    def _apply_current(self, record: CurrentRecord) -> None:
        known = self.members.get(record.member_id)
        if record.member is None:
            # The tombstone of the member itself follows.
            if known is not None:
                gone = replace(known, member_epoch=NO_EPOCH, previous_member_epoch=NO_EPOCH, assigned={}, pending_revocation={})
                self._replace(record.member_id, gone)
            return
        has = record.member
        self._replace(
            record.member_id,
            replace(
                known or ConsumerMember(record.member_id),
                member_epoch=has.member_epoch,
                previous_member_epoch=has.previous_member_epoch,
                state=has.state,
                assigned=has.assigned,
                pending_revocation=has.pending_revocation,
            ),
        )

    def _apply_regex(self, record: RegexRecord) -> None:
        self._regex_revision += 1
        known = self.resolved.pop(record.regex, None)
        if known is not None:
            count_out(self.regex_topics, known.topics)
        if record.resolved is not None:
            self.resolved[record.regex] = record.resolved
            count_in(self.regex_topics, record.resolved.topics)

    def _replace(self, member_id: str, new: ConsumerMember | None) -> None:
        """Replaces the member with this id, and updates all counts."""
        old = self.members.get(member_id)
        is_counted = old is not None and new is not None and _subscribe_alike(old, new)
        if old is not None:
            if not is_counted:
                self._count_subscriptions(old, count_out)
            self._release(old.assigned, old.member_epoch)
            self._release(old.pending_revocation, old.member_epoch)
            if old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
                del self.static_members[old.instance_id]
        if new is None:
            self.members.pop(member_id, None)
            return
        self.members[member_id] = new
        if not is_counted:
            self._count_subscriptions(new, count_in)
        self._take(new.assigned, new.member_epoch)
        self._take(new.pending_revocation, new.member_epoch)
        if new.instance_id is not None:
            self.static_members[new.instance_id] = member_id

    def _count_subscriptions(self, member: ConsumerMember, count: Callable[[Counts, Iterable[str]], None]) -> None:
        if count is count_in:
            self.subscriptions.add(member.subscribed_topic_names)
        else:
            self.subscriptions.remove(member.subscribed_topic_names)
        if member.subscribed_topic_regex:
            count(self.regexes, (member.subscribed_topic_regex,))
        if member.server_assignor is not None:
            count(self.assignors, (member.server_assignor,))
        if member.classic is not None:
            self.classic_count += 1 if count is count_in else -1
            count(self.classic_protocols, dict(member.classic.protocols))

    def _release(self, owned: OwnedPartitions, epoch: int) -> None:
        for topic_id, partitions in owned.items():
            epochs = self.partition_epochs.get(topic_id)
            if epochs is None:
                continue
            for partition in partitions:
                if epochs.get(partition) == epoch:
                    del epochs[partition]
            if not epochs:
                del self.partition_epochs[topic_id]

    def _take(self, owned: OwnedPartitions, epoch: int) -> None:
        for topic_id, partitions in owned.items():
            epochs = self.partition_epochs.setdefault(topic_id, {})
            for partition in partitions:
                epochs[partition] = max(epoch, epochs.get(partition, epoch))


def _subscribe_alike(one: ConsumerMember, other: ConsumerMember) -> bool:
    return (
        one.subscribed_topic_names is other.subscribed_topic_names
        and one.subscribed_topic_regex == other.subscribed_topic_regex
        and one.server_assignor == other.server_assignor
        and one.classic is other.classic
    )
