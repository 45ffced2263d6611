"""The reconciliation of a member with its target, one heartbeat after the other.

    STABLE                 there is a newer target                                        -> any of the three
    UNREVOKED_PARTITIONS   it still owns partitions to revoke, or names no partitions     -> stays, in its epoch
                           it has revoked all of them                                     -> any of the three
    UNRELEASED_PARTITIONS  every heartbeat: other members may have revoked partitions     -> any of the three
    UNKNOWN                it owns partitions, or names none: fenced; else begins again   -> any of the three

The three: UNREVOKED_PARTITIONS if the member still has to revoke partitions. Else the member moves to the epoch of the target and
gets the partitions that are free. It is UNRELEASED_PARTITIONS if other members have partitions of its target, STABLE if not.

Rule of this file: pure. A member never gets a partition that another member may be reading, and never moves to an epoch before it
has revoked all partitions that are not in that epoch's target.

Source: CurrentAssignmentBuilder of Apache Kafka 4.3; KIP-848, "Assignment / Reconciliation Process".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from wirekafka.coordinator.groups.consumer.member import ConsumerMember, MemberState, OwnedPartitions
from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.errors import ErrorCode, KafkaError

Owned = Mapping[bytes, Collection[int]]
"""The partitions that the member owns according to its heartbeat."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a member, and the other inputs of the reconciliation.

    Attributes:
        epoch: the assignment epoch.
        subscribed_topic_ids: the topics to which the member subscribes now; it revokes partitions of other topics at once.
        is_free: returns whether no member may be reading a partition.
        owned: the partitions in the heartbeat; None if it has none.
    """

    epoch: int
    partitions: Partitions
    subscribed_topic_ids: Collection[bytes]
    is_free: Callable[[bytes, int], bool]
    owned: Owned | None


def reconcile(member: ConsumerMember, target: Target, *, has_subscription_changed: bool = False) -> ConsumerMember:
    """Returns the member in its next state; the same object if nothing changes.

    Raises:
        KafkaError: FENCED_MEMBER_EPOCH, from the state UNKNOWN.
    """
    match member.state:
        case MemberState.STABLE:
            if member.member_epoch != target.epoch:
                return _advance(member, target)
        case MemberState.UNREVOKED_PARTITIONS:
            if not _owns_any(target.owned, member.pending_revocation):
                return _advance(member, target)
        case MemberState.UNRELEASED_PARTITIONS:
            return _advance(member, target)
        case MemberState.UNKNOWN:
            if target.owned is None or target.owned:
                message = "The member's state is not known. It must abandon all its partitions and rejoin."
                raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)
            return _advance(member, target)
    return _without_unsubscribed(member, target) if has_subscription_changed else member


def _advance(member: ConsumerMember, target: Target) -> ConsumerMember:
    wanted = {
        topic_id: partitions for topic_id, partitions in target.partitions.items() if topic_id in target.subscribed_topic_ids
    }
    kept, revoked = _split(member.assigned, wanted)
    if _owns_any(target.owned, revoked):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_member_epoch=member.member_epoch,
            assigned=kept,
            pending_revocation=revoked,
        )
    has_unreleased = False
    for topic_id, partitions in wanted.items():
        already = kept.get(topic_id, {})
        given_up = member.pending_revocation.get(topic_id, ())
        missing = [partition for partition in sorted(partitions) if partition not in already]
        free = [partition for partition in missing if partition in given_up or target.is_free(topic_id, partition)]
        has_unreleased |= len(free) < len(missing)
        if free:
            kept[topic_id] = already | dict.fromkeys(free, target.epoch)
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE,
        member_epoch=target.epoch,
        previous_member_epoch=member.member_epoch,
        assigned=kept,
        pending_revocation={},
    )


def _without_unsubscribed(member: ConsumerMember, target: Target) -> ConsumerMember:
    """Revokes partitions of topics to which the member no longer subscribes, before a new target exists."""
    kept = {topic_id: owned for topic_id, owned in member.assigned.items() if topic_id in target.subscribed_topic_ids}
    if len(kept) == len(member.assigned):
        return member
    revoked: OwnedPartitions = dict(member.pending_revocation)
    for topic_id, owned in member.assigned.items():
        if topic_id not in kept:
            revoked[topic_id] = revoked.get(topic_id, {}) | owned
    if _owns_any(target.owned, revoked):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_member_epoch=member.member_epoch,
            assigned=kept,
            pending_revocation=revoked,
        )
    return replace(member, previous_member_epoch=member.member_epoch, assigned=kept)


def _split(owned: OwnedPartitions, wanted: Partitions) -> tuple[OwnedPartitions, OwnedPartitions]:
    """Divides partitions into the wanted ones and the others."""
    kept: OwnedPartitions = {}
    rest: OwnedPartitions = {}
    for topic_id, epochs in owned.items():
        partitions = wanted.get(topic_id, frozenset())
        if epochs.keys() <= partitions:
            kept[topic_id] = epochs
            continue
        rest[topic_id] = {partition: epoch for partition, epoch in epochs.items() if partition not in partitions}
        if len(rest[topic_id]) < len(epochs):
            kept[topic_id] = {partition: epoch for partition, epoch in epochs.items() if partition in partitions}
    return kept, rest


def _owns_any(owned: Owned | None, partitions: OwnedPartitions) -> bool:
    """Whether the member may still own any of the partitions; True if the heartbeat does not name its partitions."""
    if not partitions:
        return False
    if owned is None:
        return True
    return any(not epochs.keys().isdisjoint(owned.get(topic_id, ())) for topic_id, epochs in partitions.items())
