"""The part that consumer groups and share groups share: members, epochs, targets, subscriptions.

How it works: the group epoch grows when a member joins, leaves or changes its subscription, and when a topic changes. The
target assignment of every member is computed for a group epoch, which then becomes the assignment epoch. Each member follows its
target by its own heartbeats, and its member epoch is the epoch that it has reached.

Rule of this file: no effects and no records; the groups change by `apply`, which each type of groups implements.
    Invariant: `subscriptions` counts the members.

Source: ModernGroup of Apache Kafka 4.3; KIP-848, KIP-932.
"""

from __future__ import annotations

from typing import ClassVar, Generic, Protocol, TypeVar

from wirekafka.coordinator.groups.modern.records import EpochRecord, MemberTargetRecord, TargetsRecord
from wirekafka.coordinator.groups.modern.subscriptions import Subscriptions, TopicNames
from wirekafka.coordinator.groups.modern.topics import MetadataHashes, Partitions, TopicImage
from wirekafka.errors import ErrorCode, KafkaError

FIRST_EPOCH = 1
"""The epoch of a group before its first member, and of its target before the first one is computed."""


class ModernMember(Protocol):
    """A member of a consumer group or a share group."""

    @property
    def member_id(self) -> str:
        """The member's id."""

    @property
    def subscribed_topic_names(self) -> TopicNames:
        """The topics to which the member subscribes by name."""

    @property
    def instance_id(self) -> str | None:
        """The instance id of a static member; None for a dynamic member. All members of share groups are dynamic."""


M = TypeVar("M", bound=ModernMember)


class ModernGroup(Generic[M]):
    """A consumer group or a share group.

    Attributes:
        partition: the partition of __consumer_offsets that holds the group.
        group_epoch: the epoch in the group's last record.
        metadata_hash: the hash over the topics to which the members subscribed at this epoch.
        assignment_epoch: the epoch for which `targets` were computed.
        assignment_timestamp_ms: the time at which `targets` were computed; 0 if never.
        targets: the target assignment of each member, by member id.
        refreshed: the revision of the topics at their last comparison with the metadata hash, and the resulting group epoch. If
            that epoch was not stored, the topics are compared again.
        assigning: the assignment that is being computed off the loop; None if there is none.
        image: the topics of the broker.
        type_name: the type of the group, in lower case.
        epoch_record, target_record, target_epoch_record: the classes of the records that both types of groups have.
    """

    type_name: ClassVar[str]
    epoch_record: ClassVar[type[EpochRecord]]
    target_record: ClassVar[type[MemberTargetRecord]]
    target_epoch_record: ClassVar[type[TargetsRecord]]

    __slots__ = (
        "_known_hash",
        "assigning",
        "assignment_epoch",
        "assignment_timestamp_ms",
        "group_epoch",
        "group_id",
        "image",
        "members",
        "metadata_hash",
        "partition",
        "refreshed",
        "subscriptions",
        "targets",
    )

    def __init__(self, group_id: str, partition: int, image: TopicImage) -> None:
        self.group_id = group_id
        self.partition = partition
        self.image = image
        self.group_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp_ms = 0
        self.members: dict[str, M] = {}
        self.targets: dict[str, Partitions] = {}
        self.subscriptions = Subscriptions()
        self.refreshed = (0, 0)
        self.assigning: object | None = None
        self._known_hash: tuple[object, int] = (None, 0)

    @property
    def group_type(self) -> str:
        """The type of the group, in lower case: `consumer` or `share`."""
        return self.type_name

    @property
    def listed_protocol_type(self) -> str:
        """The protocol type in listings, which is the same as the group type."""
        return self.type_name

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    def member(self, member_id: str) -> M:
        """Returns the member with this id.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID.
        """
        member = self.members.get(member_id)
        if member is None:
            message = f"Member {member_id} is not a member of group {self.group_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member

    def current_member_id(self, member_id: str, instance_id: str | None) -> str | None:
        """Returns the current id of a member that had this id earlier; None if the member has left."""
        return member_id if member_id in self.members else None

    def target_of(self, member: M) -> Partitions:
        """Returns the target of a member; empty if it has none."""
        return self.targets.get(member.member_id, {})

    def has_stored(self, record: MemberTargetRecord) -> bool:
        """Whether the member's target is the one in the record, as it is once the record is in the log."""
        return self.targets.get(record.member_id) is record.target

    @property
    def is_refresh_due(self) -> bool:
        """Whether topics may have changed since they were compared with the metadata hash."""
        revision, group_epoch = self.refreshed
        return revision != self.image.revision or self.group_epoch < group_epoch

    def can_assign(self, now_ms: int, interval_ms: int) -> bool:
        """Whether the next target may be computed: the last one is old enough, and none is being computed.

        Because of the interval, members that join together are assigned together.

        Source: KIP-1263.
        """
        if self.assigning is not None:
            return False
        last_ms = self.assignment_timestamp_ms
        return not last_ms or not interval_ms or now_ms >= last_ms + interval_ms

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members subscribe to the topic."""
        return topic in self.subscriptions

    @property
    def topics_revision(self) -> object:
        """A value that stays equal while the members subscribe to the same topics."""
        return self.subscriptions.revision

    def topics(self) -> set[str]:
        """Returns the names of the topics to which the members subscribe."""
        return {*self.subscriptions}

    def current_hash(self, hashes: MetadataHashes) -> int:
        """Returns the hash over the topics to which the members subscribe; cached until a topic or a subscription changes."""
        key = (self.image.revision, self.topics_revision)
        if self._known_hash[0] != key:
            self._known_hash = key, hashes.of_topics(self.topics())
        return self._known_hash[1]
