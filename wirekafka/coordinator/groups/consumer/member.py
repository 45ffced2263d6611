"""A member of a consumer group, and the part of its target that it has.

Rules of this file: a `ConsumerMember` is never changed: a step makes a new one, and the record of the step puts it into the
group. So a step whose append fails changes nothing.

Source: ConsumerGroupMember, MemberState, ResolvedRegularExpression of Apache Kafka 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.coordinator.groups.requests import Protocols

JOIN_EPOCH = 0
"""The epoch of a member that joins."""

LEAVE_EPOCH = -1
"""The epoch with which a member leaves for good."""

STATIC_LEAVE_EPOCH = -2
"""The epoch with which a static member leaves temporarily, and its epoch until it rejoins."""

OwnedPartitions = dict[bytes, dict[int, int]]
"""The epoch at which each partition was assigned, by topic id and partition; never changed in place."""


class MemberState(IntEnum):
    """The progress of a member towards its target, by the numbers of its record."""

    STABLE = 0
    """The member has all of the target that its last heartbeat found."""

    UNREVOKED_PARTITIONS = 1
    """The member has partitions to revoke, and stays in its epoch until it has revoked them."""

    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that other members have to revoke."""

    UNKNOWN = 127
    """A state that a later release wrote."""


@dataclass(frozen=True, slots=True)
class ClassicMembership:
    """The part of a member that only members of the classic protocol have.

    Attributes:
        protocols: the protocols that the member supports, best first, with its metadata for each.
    """

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member as its records describe it.

    Attributes:
        member_epoch: the epoch of the target to which the member is reconciled; `STATIC_LEAVE_EPOCH` while it is away.
        previous_member_epoch: the epoch before, which a member that missed a response still has.
        subscribed_topic_regex: empty if the member has none.
        server_assignor: the assignor that the member asks for; None if it accepts any.
        assigned: the partitions that the member may read.
        pending_revocation: the partitions that the member has to revoke, and may still be reading.
        classic: None for a member of the consumer protocol.
    """

    member_id: str
    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str = ""
    server_assignor: str | None = None
    assigned: OwnedPartitions = field(default_factory=dict)
    pending_revocation: OwnedPartitions = field(default_factory=dict)
    classic: ClassicMembership | None = None

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol."""
        return self.classic is not None

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Whether the member has all of the target of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """Returns the epoch at which the member got a partition; None if it does not have the partition."""
        epoch = self.assigned.get(topic_id, {}).get(partition)
        return self.pending_revocation.get(topic_id, {}).get(partition) if epoch is None else epoch


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that match a regular expression.

    Attributes:
        version: the version of the `TopicImage` that was searched.
        timestamp_ms: the time of the search.
    """

    topics: frozenset[str]
    version: int
    timestamp_ms: int


def with_epoch(partitions: Partitions, epoch: int) -> OwnedPartitions:
    """Returns all of the partitions, assigned at the same epoch."""
    return {topic_id: dict.fromkeys(indexes, epoch) for topic_id, indexes in partitions.items()}


def without_epochs(owned: OwnedPartitions) -> Partitions:
    """Returns the partitions without their epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in owned.items()}
