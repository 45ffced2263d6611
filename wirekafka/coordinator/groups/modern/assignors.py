"""The broker's own assignors, which compute the partitions of each member.

How it works: an assignor gets all members, with the topics to which they subscribe and their current targets, and returns
the next target of each member. A target that stays the same is the same object, so changes are found by identity. An assignor
changes as few targets as balance allows.

Rules of this file: pure, and linear where possible: a group may have a thousand members and ten thousand partitions. The order of
members and topics decides between equals, so the same input gives the same result.
    Invariant: every partition of a topic with subscribers has exactly one owner, which subscribes to it.

Source: org.apache.kafka.coordinator.group.assignor (UniformAssignor, UniformHomogeneousAssignmentBuilder,
UniformHeterogeneousAssignmentBuilder, RangeAssignor) of Apache Kafka 4.3; since 4.0 none of them uses racks.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

from wirekafka.coordinator.groups.modern.topics import Partitions

MAX_BALANCING_PASSES = 16
"""The most passes over all topics for balance, as in Kafka: moving partitions of one topic can unbalance another."""


class AssignedMember(NamedTuple):
    """A member in the input of an assignor.

    Attributes:
        topic_ids: the existing topics to which the member subscribes; members share the set wherever possible.
        target: the member's current target.
    """

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[bytes]
    target: Partitions


Assignor = Callable[[Sequence[AssignedMember], Mapping[bytes, int]], dict[str, Partitions]]
"""Returns the target of each member, given the members and the number of partitions of each topic with a subscriber."""


def assign_uniformly(members: Sequence[AssignedMember], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Gives every member the same number of partitions, as far as their subscriptions allow, and moves few partitions."""
    if not members:
        return {}
    topic_ids = members[0].topic_ids
    if all(member.topic_ids is topic_ids or member.topic_ids == topic_ids for member in members):
        return _assign_evenly(members, topic_ids, partition_counts)
    return _Balancer(members, partition_counts).assign()


def assign_ranges(members: Sequence[AssignedMember], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Assigns a range of each topic's partitions to each member, in the order of the members' ids.

    Topics with the same number of partitions and the same subscribers are assigned alike, so that members can join topics.
    """
    in_order = sorted(members, key=_range_order)
    subscribers: dict[bytes, list[AssignedMember]] = defaultdict(list)
    for member in in_order:
        for topic_id in member.topic_ids:
            subscribers[topic_id].append(member)
    targets: dict[str, Partitions] = {member.member_id: {} for member in members}
    for topic_id, readers in subscribers.items():
        quota, extra = divmod(partition_counts[topic_id], len(readers))
        start = 0
        for place, member in enumerate(readers):
            end = start + quota + (place < extra)
            if start < end:
                targets[member.member_id][topic_id] = frozenset(range(start, end))
            start = end
    return {member.member_id: _kept(member, targets[member.member_id]) for member in members}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
"""The assignors that members may ask for, by name; the first one is the default, as in `group.consumer.assignors`."""


def _range_order(member: AssignedMember) -> tuple[bool, str]:
    """Orders static members first, by instance id, so that a restart of a member changes nothing."""
    return (True, member.member_id) if member.instance_id is None else (False, member.instance_id)


def _kept(member: AssignedMember, target: Partitions) -> Partitions:
    return member.target if member.target == target else target


def _assign_evenly(
    members: Sequence[AssignedMember], topic_ids: frozenset[bytes], partition_counts: Mapping[bytes, int]
) -> dict[str, Partitions]:
    """Assigns topics to which all members subscribe: each member gets its quota, and keeps partitions of its target."""
    quota, extra = divmod(sum(partition_counts[topic_id] for topic_id in topic_ids), len(members))
    targets: dict[str, Partitions] = {}
    wanting: list[tuple[AssignedMember, int]] = []
    taken: dict[bytes, set[int]] = defaultdict(set)
    for member in members:
        allowed = quota + (extra > 0)
        kept = _first_partitions(_free_of(member.target, taken), topic_ids, allowed)
        count = sum(map(len, kept.values()))
        # Members that have more than the plain quota keep one more; other members get the remaining extra partitions.
        extra -= count > quota
        targets[member.member_id] = kept
        for topic_id, partitions in kept.items():
            taken[topic_id] |= partitions
        if count <= quota:
            wanting.append((member, count))
    free = (
        (topic_id, partition)
        for topic_id in sorted(topic_ids)
        for partition in range(partition_counts[topic_id])
        if partition not in taken[topic_id]
    )
    for member, count in wanting:
        missing = quota + (extra > 0) - count
        extra -= extra > 0
        if missing:
            targets[member.member_id] = _with_partitions(targets[member.member_id], islice(free, missing))
    assert next(free, None) is None, "partitions were left unassigned"
    return targets


def _free_of(target: Partitions, taken: Mapping[bytes, Collection[int]]) -> Partitions:
    """Returns the target without partitions that another member keeps; the target itself if there are none.

    The log has a partition in two targets if only some records of the last assignment were appended.
    """
    if all(partitions.isdisjoint(taken.get(topic_id, ())) for topic_id, partitions in target.items()):
        return target
    free = {topic_id: partitions.difference(taken.get(topic_id, ())) for topic_id, partitions in target.items()}
    return {topic_id: partitions for topic_id, partitions in free.items() if partitions}


def _first_partitions(target: Partitions, topic_ids: frozenset[bytes], allowed: int) -> Partitions:
    """Returns at most `allowed` partitions of subscribed topics from a target; the target itself if that is all of it."""
    if target.keys() <= topic_ids and sum(map(len, target.values())) <= allowed:
        return target
    kept: Partitions = {}
    for topic_id, partitions in target.items():
        if topic_id in topic_ids and allowed > 0:
            kept[topic_id] = partitions if len(partitions) <= allowed else frozenset(sorted(partitions)[:allowed])
            allowed -= len(kept[topic_id])
    return kept


def _with_partitions(target: Partitions, added: Iterable[tuple[bytes, int]]) -> Partitions:
    by_topic: dict[bytes, list[int]] = defaultdict(list)
    for topic_id, partition in added:
        by_topic[topic_id].append(partition)
    grown = dict(target)
    for topic_id, partitions in by_topic.items():
        grown[topic_id] = target[topic_id].union(partitions) if topic_id in target else frozenset(partitions)
    return grown


@dataclass(slots=True)
class _Readers:
    """The members that subscribe to a topic; topics with the same members share one object.

    Attributes:
        indexes: the indexes of the members.
        least: a heap of their loads and indexes. Loads only grow while partitions are assigned, so an outdated load is too small,
            and comes first.
        even_at: the number of moves at the time when these members were last found balanced.
    """

    indexes: list[int]
    least: list[tuple[int, int]] = field(default_factory=list)
    even_at: int = -1


def _readers_of_topics(members: Sequence[AssignedMember]) -> dict[bytes, _Readers]:
    by_subscription: dict[frozenset[bytes], list[int]] = defaultdict(list)
    for index, member in enumerate(members):
        by_subscription[member.topic_ids].append(index)
    subscriptions: dict[bytes, list[int]] = defaultdict(list)
    for number, topic_ids in enumerate(by_subscription):
        for topic_id in topic_ids:
            subscriptions[topic_id].append(number)
    if len(by_subscription) == len(members):
        # Each member has a subscription of its own, so a subscription has the number of its member, and few topics share readers.
        return {topic_id: _Readers(numbers) for topic_id, numbers in subscriptions.items()}
    subscribers = list(by_subscription.values())
    known: dict[tuple[int, ...], _Readers] = {}
    readers = {}
    for topic_id, numbers in subscriptions.items():
        key = tuple(numbers)
        if key not in known:
            known[key] = _Readers(list(chain.from_iterable(subscribers[number] for number in numbers)))
        readers[topic_id] = known[key]
    return readers


class _Balancer:
    """Assigns topics with different subscribers: the least loaded subscriber gets a free partition, then loads are balanced."""

    def __init__(self, members: Sequence[AssignedMember], partition_counts: Mapping[bytes, int]) -> None:
        self._members = members
        self._counts = partition_counts
        self._loads = [0] * len(members)
        self._moves = 0
        self._readers = _readers_of_topics(members)
        # For each topic, the owner of each partition; None while it is free.
        self._owners: dict[bytes, list[int | None]] = {
            topic_id: [None] * partition_counts[topic_id] for topic_id in self._readers
        }

    def assign(self) -> dict[str, Partitions]:
        self._keep_targets()
        topic_ids = sorted(self._readers, key=self._topic_order)
        for topic_id in topic_ids:
            self._give_out(topic_id)
        for _ in range(MAX_BALANCING_PASSES):
            if not sum(self._balance(topic_id) for topic_id in topic_ids):
                break
        return self._targets()

    def _keep_targets(self) -> None:
        for index, member in enumerate(self._members):
            for topic_id, partitions in member.target.items():
                if topic_id in member.topic_ids:
                    owners = self._owners[topic_id]
                    for partition in partitions:
                        # A partition is in two targets if only some records of the last assignment were appended.
                        if owners[partition] is None:
                            owners[partition] = index
                            self._loads[index] += 1

    def _topic_order(self, topic_id: bytes) -> tuple[float, int, bytes]:
        """Orders topics with many partitions for few subscribers first, because they leave the least choice."""
        readers = len(self._readers[topic_id].indexes)
        return -self._counts[topic_id] / readers, readers, topic_id

    def _give_out(self, topic_id: bytes) -> None:
        owners = self._owners[topic_id]
        if None not in owners:
            return
        readers, loads = self._readers[topic_id], self._loads
        least = readers.least
        if not least:
            least += [(loads[index], index) for index in readers.indexes]
            heapq.heapify(least)
        for partition, owner in enumerate(owners):
            if owner is None:
                load, index = least[0]
                while load != loads[index]:
                    heapq.heapreplace(least, (loads[index], index))
                    load, index = least[0]
                owners[partition] = index
                loads[index] = load + 1
                heapq.heapreplace(least, (load + 1, index))

    def _balance(self, topic_id: bytes) -> int:
        """Moves partitions of one topic from its most loaded to its least loaded subscribers; returns their number."""
        readers, loads, owners = self._readers[topic_id], self._loads, self._owners[topic_id]
        if readers.even_at == self._moves:
            return 0
        theirs = [loads[index] for index in readers.indexes]
        if max(theirs) - min(theirs) <= 1:
            readers.even_at = self._moves
            return 0
        owned: dict[int, list[int]] = defaultdict(list)
        for partition, owner in enumerate(owners):
            assert owner is not None
            owned[owner].append(partition)
        most = [(-loads[index], index) for index in owned]
        least = [(loads[index], index) for index in readers.indexes]
        heapq.heapify(most)
        heapq.heapify(least)
        moved = 0
        while most:
            giver, taker = most[0][1], least[0][1]
            if loads[giver] - loads[taker] <= 1:
                break
            if most[0][0] != -loads[giver] or not owned[giver]:
                heapq.heappop(most)
                continue
            if least[0][0] != loads[taker]:
                heapq.heapreplace(least, (loads[taker], taker))
                continue
            owners[owned[giver].pop()] = taker
            loads[giver] -= 1
            loads[taker] += 1
            heapq.heapreplace(most, (-loads[giver], giver))
            heapq.heapreplace(least, (loads[taker], taker))
            moved += 1
        self._moves += moved
        return moved

    def _targets(self) -> dict[str, Partitions]:
        built: list[dict[bytes, set[int]]] = [defaultdict(set) for _ in self._members]
        for topic_id, owners in self._owners.items():
            for partition, owner in enumerate(owners):
                assert owner is not None
                built[owner][topic_id].add(partition)
        return {
            member.member_id: _kept(member, {topic_id: frozenset(owned) for topic_id, owned in target.items()})
            for member, target in zip(self._members, built, strict=True)
        }
