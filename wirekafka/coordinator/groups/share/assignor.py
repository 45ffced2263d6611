"""The assignor of share groups, which computes the partitions from which each member fetches. Members may share a partition.

How it works: if the group has more members than partitions, each partition is assigned to several members, so that all
members have one. Each member has a quota of partitions. It keeps partitions of its former target up to the quota, and gets other
partitions for the rest of the quota, so few assignments change when a member joins or leaves.

Rules of this file: pure; the order of members and partitions decides between equals.
    Invariant: every assignable partition with a subscriber is assigned to at least one member.

Source: SimpleAssignor, SimpleHomogeneousAssignmentBuilder, SimpleHeterogeneousAssignmentBuilder of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from wirekafka.coordinator.groups.modern.assignors import AssignedMember
from wirekafka.coordinator.groups.modern.topics import Partitions

NAME = "simple"


_Partition = tuple[bytes, int]


def assign_simply(members: Sequence[AssignedMember], assignable: Partitions) -> dict[str, Partitions]:
    """Gives members with the same subscription the same number of partitions, as far as possible.

    The cost grows with the number of assigned partitions: for each topic it reads only that topic's part of the targets.

    Args:
        assignable: the partitions whose state is initialised.

    Returns:
        The new target of each member.
    """
    if not members:
        return {}
    targets: list[Partitions] = [{} for _ in members]
    topic_ids = members[0].topic_ids
    if all(member.topic_ids is topic_ids or member.topic_ids == topic_ids for member in members):
        _deal(range(len(members)), members, topic_ids, assignable, targets)
    else:
        subscribers: defaultdict[bytes, list[int]] = defaultdict(list)
        for number, member in enumerate(members):
            for topic_id in member.topic_ids:
                subscribers[topic_id].append(number)
        dealt: dict[object, list[frozenset[int] | None]] = {}
        for topic_id in sorted(subscribers):
            numbers, indexes = subscribers[topic_id], assignable.get(topic_id, frozenset())
            # Topics with equal subscribers, partitions and former assignments are dealt together.
            former = tuple(members[number].target.get(topic_id) for number in numbers)
            key = (tuple(numbers), indexes, former)
            shares = dealt.get(key)
            if shares is None:
                _deal(numbers, [members[number] for number in numbers], frozenset((topic_id,)), assignable, targets)
                dealt[key] = [targets[number].get(topic_id) for number in numbers]
                continue
            for number, share in zip(numbers, shares, strict=True):
                if share is not None:
                    targets[number][topic_id] = share
    return {member.member_id: target for member, target in zip(members, targets, strict=True)}


def _deal(
    numbers: Sequence[int],
    members: Sequence[AssignedMember],
    topic_ids: frozenset[bytes],
    assignable: Partitions,
    targets: Sequence[Partitions],
) -> None:
    """Deals the partitions of the topics out to the members, all of which subscribe to these topics.

    Args:
        numbers: the index of each member's target in `targets`.
        targets: the new targets, which get these topics.
    """
    owners: dict[_Partition, dict[int, None]] = {
        (topic_id, index): {} for topic_id in sorted(topic_ids) for index in sorted(assignable.get(topic_id, ()))
    }
    if not owners:
        return
    # Each partition is shared by as many members as necessary for all members to have one.
    sharing = -(-len(members) // len(owners))
    hands = sharing * len(owners)
    quotas = [-(-hands * (number + 1) // len(members)) + (-hands * number // len(members)) for number in range(len(members))]
    counts = [_keep(number, member.target, topic_ids, owners, sharing, quotas[number]) for number, member in enumerate(members)]
    unfilled = [number for number, quota in enumerate(quotas) if counts[number] < quota]
    place = 0
    for sharers in owners.values():
        passed = 0
        while len(sharers) < sharing and passed < len(unfilled):
            place %= len(unfilled)
            number = unfilled[place]
            if number in sharers:
                place += 1
                passed += 1
                continue
            sharers[number] = None
            counts[number] += 1
            passed = 0
            if counts[number] == quotas[number]:
                del unfilled[place]
            else:
                place += 1
    dealt: list[dict[bytes, list[int]]] = [{} for _ in members]
    for (topic_id, index), sharers in owners.items():
        for number in sharers or (counts.index(min(counts)),):
            dealt[number].setdefault(topic_id, []).append(index)
    # Equal sets are one object: garbage collection of a million sets takes 100 ms.
    shared: dict[frozenset[int], frozenset[int]] = {}
    for number, by_topic in zip(numbers, dealt, strict=True):
        for topic_id, indexes in by_topic.items():
            share = frozenset(indexes)
            targets[number][topic_id] = shared.setdefault(share, share)


def _keep(
    number: int,
    target: Partitions,
    topic_ids: frozenset[bytes],
    owners: Mapping[_Partition, dict[int, None]],
    sharing: int,
    quota: int,
) -> int:
    """Keeps partitions of a member's former target, up to its quota; returns their number."""
    kept = 0
    # In the order of the target. A deal of one topic looks up this topic only, because a target may be long.
    for topic_id in target if len(topic_ids) > 1 else topic_ids:
        if topic_id not in topic_ids:
            continue
        for index in sorted(target.get(topic_id, ())):
            if kept == quota:
                return kept
            sharers = owners.get((topic_id, index))
            if sharers is not None and len(sharers) < sharing:
                sharers[number] = None
                kept += 1
    return kept
