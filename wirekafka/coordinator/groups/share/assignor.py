"""The assignor of share groups: which partitions each member fetches from. Several members may have the same.

Theory of operation: where there are more members than partitions, each partition goes to as many members as it takes to keep
all busy. Each member has a number of partitions that it should have; it keeps what it had up to that, and what is missing is
dealt out, so that members that come or go move little.

Rules of this file: pure; the order of members and partitions decides between equals.
    Invariant: every partition that can be assigned and has a subscriber is assigned to one at least.

Source: SimpleAssignor, SimpleHomogeneousAssignmentBuilder, SimpleHeterogeneousAssignmentBuilder of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wirekafka.coordinator.groups.modern.topics import Partitions

NAME = "simple"


class SharingMember(NamedTuple):
    """A member as the assignor sees it.

    Attributes:
        topic_ids: of the topics that exist and to which it subscribes.
        target: what it has so far.
    """

    member_id: str
    topic_ids: frozenset[bytes]
    target: Partitions


_Partition = tuple[bytes, int]


def assign_simply(members: Sequence[SharingMember], assignable: Partitions) -> dict[str, Partitions]:
    """Gives every member of the same subscription the same number of partitions, or as near as it goes.

    Args:
        assignable: the partitions whose state is initialised.

    Returns:
        What each member is to have.
    """
    if not members:
        return {}
    dealt: dict[str, set[_Partition]] = {member.member_id: set() for member in members}
    topic_ids = members[0].topic_ids
    if all(member.topic_ids == topic_ids for member in members):
        _deal(members, _partitions(topic_ids, assignable), dealt)
    else:
        for topic_id in sorted({topic_id for member in members for topic_id in member.topic_ids}):
            subscribers = [member for member in members if topic_id in member.topic_ids]
            _deal(subscribers, _partitions([topic_id], assignable), dealt)
    return {member_id: _by_topic(partitions) for member_id, partitions in dealt.items()}


def _partitions(topic_ids: Sequence[bytes] | frozenset[bytes], assignable: Partitions) -> list[_Partition]:
    return [
        (topic_id, partition) for topic_id in sorted(topic_ids) for partition in sorted(assignable.get(topic_id, frozenset()))
    ]


def _deal(members: Sequence[SharingMember], partitions: list[_Partition], dealt: Mapping[str, set[_Partition]]) -> None:
    """Deals partitions out to members that all subscribe to them."""
    if not partitions:
        return
    # As many members share each partition as it takes for all members to have one.
    sharing = -(-len(members) // len(partitions))
    hands = sharing * len(partitions)
    quotas = {
        member.member_id: -(-hands * (place + 1) // len(members)) + (-hands * place // len(members))
        for place, member in enumerate(members)
    }
    wanted = set(partitions)
    owners: defaultdict[_Partition, list[str]] = defaultdict(list)
    counts: dict[str, int] = {}
    for member in members:
        former = [(topic_id, index) for topic_id, indexes in member.target.items() for index in sorted(indexes)]
        kept = [each for each in former if each in wanted and len(owners[each]) < sharing][: quotas[member.member_id]]
        for each in kept:
            owners[each].append(member.member_id)
        counts[member.member_id] = len(kept)
    unfilled = [member.member_id for member in members if counts[member.member_id] < quotas[member.member_id]]
    turn = 0
    for partition in partitions:
        missing = sharing - len(owners[partition])
        passed = 0
        while missing > 0 and unfilled and passed < len(unfilled):
            turn %= len(unfilled)
            member_id = unfilled[turn]
            if member_id in owners[partition]:
                turn += 1
                passed += 1
                continue
            owners[partition].append(member_id)
            counts[member_id] += 1
            missing -= 1
            passed = 0
            if counts[member_id] == quotas[member_id]:
                del unfilled[turn]
            else:
                turn += 1
    for partition, member_ids in owners.items():
        for member_id in member_ids or [min(counts, key=counts.__getitem__)]:
            dealt[member_id].add(partition)


def _by_topic(partitions: set[_Partition]) -> Partitions:
    by_topic: defaultdict[bytes, set[int]] = defaultdict(set)
    for topic_id, partition in partitions:
        by_topic[topic_id].add(partition)
    return {topic_id: frozenset(by_topic[topic_id]) for topic_id in sorted(by_topic)}
