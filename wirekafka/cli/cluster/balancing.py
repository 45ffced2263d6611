"""Proposes other replicas for partitions, so that brokers have about equal bytes, or lead about equally many partitions.

Rules of this file: the functions are pure, and the same cluster always gets the same proposal. Replicas on brokers that are not
live stay where they are. A proposal never puts two replicas on one broker, and keeps the replicas of a partition in at least as
many racks as before. Only `propose_replication_factor` changes the number of replicas, and it never lowers it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise

from wirekafka.names import TopicPartition

Proposal = dict[TopicPartition, tuple[int, ...]]
"""The new replicas of the partitions that change; the first one is the preferred leader."""


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """What balancing needs of one partition.

    Attributes:
        replicas: the first one is the preferred leader.
        size_bytes: the bytes that each replica has.
        is_movable: a proposal may change its replicas.
    """

    name: TopicPartition
    replicas: tuple[int, ...]
    size_bytes: int
    is_movable: bool = True


def propose_by_bytes(
    partitions: Iterable[PartitionLoad], racks: Mapping[int, str | None], within_percent: float = 10.0
) -> Proposal:
    """Moves replicas from brokers with more bytes than the mean to brokers with fewer, until all are near the mean.

    How it works: each step takes the broker with most bytes and the one with fewest, and the replica whose size comes nearest to
    what they lack. A move does not pass the mean on either side, and a replica moves once, so no byte is moved that did not have
    to leave its broker. Only if no replica is small enough, one is moved that passes the mean and still leaves the two brokers
    closer to each other. So the proposal is near the minimum; the exact one is as hard as packing bins.

    Args:
        racks: the live brokers and their racks.
        within_percent: how far a broker may be from the mean at the end.
    """
    return _ByteBalance(partitions, racks, within_percent).run()


class _ByteBalance:
    """The state of `propose_by_bytes`."""

    def __init__(self, partitions: Iterable[PartitionLoad], racks: Mapping[int, str | None], within_percent: float) -> None:
        self._racks = racks
        self._partitions = {each.name: each for each in partitions}
        self._replicas = {name: each.replicas for name, each in self._partitions.items()}
        self._loads = dict.fromkeys(sorted(racks), 0)
        self._movable: dict[int, list[tuple[int, bool, TopicPartition]]] = {broker_id: [] for broker_id in self._loads}
        """For each broker the replicas that may leave it, by size; of equal ones first those that are no preferred leaders."""
        for name, each in self._partitions.items():
            for replica in each.replicas:
                if replica in self._loads:
                    self._loads[replica] += each.size_bytes
                    if each.is_movable and each.size_bytes:
                        self._movable[replica].append((each.size_bytes, replica == each.replicas[0], name))
        for replicas in self._movable.values():
            replicas.sort()
        self._mean = sum(self._loads.values()) / max(len(self._loads), 1)
        self._slack = self._mean * within_percent / 100

    def run(self) -> Proposal:
        while self._step():
            pass
        return {name: new for name, new in self._replicas.items() if new != self._partitions[name].replicas}

    def _step(self) -> bool:
        """Moves one replica; returns False if nothing is left to do, or nothing can be done."""
        pairs = list(self._pairs())
        return any(self._move_up_to_the_mean(*pair) for pair in pairs) or any(self._move_past_the_mean(*pair) for pair in pairs)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Yields the brokers to move from and to; one of the two is too far from the mean."""
        by_load = sorted(self._loads, key=lambda broker_id: (self._loads[broker_id], broker_id))
        over = [each for each in reversed(by_load) if self._loads[each] > self._mean + self._slack]
        under = [each for each in by_load if self._loads[each] < self._mean - self._slack]
        if not over and not under:
            return
        for source in over or [each for each in reversed(by_load) if self._loads[each] > self._mean]:
            for target in under or [each for each in by_load if self._loads[each] < self._mean]:
                yield source, target

    def _move_up_to_the_mean(self, source: int, target: int) -> bool:
        excess, lack = self._loads[source] - self._mean, self._mean - self._loads[target]
        room = min(excess, lack)
        need = min(max(excess, lack) - self._slack, room)
        replicas = self._movable[source]
        first, end = bisect_left(replicas, (need,)), bisect_right(replicas, room, key=lambda each: each[0])
        return self._move_one(chain(range(first, end), _by_falling_size(replicas, min(first, end))), source, target)

    def _move_past_the_mean(self, source: int, target: int) -> bool:
        replicas, difference = self._movable[source], self._loads[source] - self._loads[target]
        end = bisect_left(replicas, (difference,))
        return self._move_one(range(end), source, target)

    def _move_one(self, places: Iterable[int], source: int, target: int) -> bool:
        """Moves the first replica, of those at the places in `_movable`, that may move; returns False if none may."""
        for place in places:
            size, _, name = self._movable[source][place]
            before = self._replicas[name]
            after = tuple(target if each == source else each for each in before)
            if target not in before and self._rack_count(after) >= self._rack_count(before):
                self._replicas[name] = after
                self._loads[source] -= size
                self._loads[target] += size
                del self._movable[source][place]
                return True
        return False

    def _rack_count(self, replicas: Iterable[int]) -> int:
        return len({_rack_of(each, self._racks) for each in replicas})


def _rack_of(broker_id: int, racks: Mapping[int, str | None]) -> str | int:
    """Returns the rack of a broker. A broker without a rack counts as a rack of its own."""
    return racks.get(broker_id) or broker_id


def _by_falling_size(replicas: list[tuple[int, bool, TopicPartition]], end: int) -> Iterator[int]:
    """Yields the places before `end` by falling size, those of equal sizes in their order."""
    while end:
        first = bisect_left(replicas, (replicas[end - 1][0],))
        yield from range(first, end)
        end = first


def propose_by_leaders(partitions: Iterable[PartitionLoad], live: Collection[int]) -> Proposal:
    """Reorders the replicas of partitions, so that the preferred leaders are spread as evenly as the replicas allow.

    No data move. How it works: a broker is connected to another one if it is the preferred leader of a partition of which the
    other has a replica. While a chain of such connections leads from a broker to one with at least two fewer leaders, each link
    of the shortest chain gives one partition on.
    """
    return _LeaderBalance(partitions, live).run()


class _LeaderBalance:
    """The state of `propose_by_leaders`."""

    def __init__(self, partitions: Iterable[PartitionLoad], live: Collection[int]) -> None:
        self._brokers = sorted(live)
        self._partitions = {each.name: each for each in partitions}
        self._leaders = {name: each.replicas[0] for name, each in self._partitions.items() if each.replicas}
        self._counts = Counter(leader for leader in self._leaders.values() if leader in live)
        self._links: defaultdict[int, defaultdict[int, list[TopicPartition]]] = defaultdict(lambda: defaultdict(list))
        """The partitions that one broker can give another; those that it has given already are removed when they are found."""
        for each in self._partitions.values():
            if each.is_movable and each.replicas and each.replicas[0] in live:
                for other in each.replicas[1:]:
                    if other in live:
                        self._links[each.replicas[0]][other].append(each.name)
        for links in self._links.values():
            for names in links.values():
                heapify(names)

    def run(self) -> Proposal:
        while sum(self._give_from(each) for each in sorted(self._brokers, key=lambda each: (-self._counts[each], each))):
            pass
        return {
            name: (leader, *(each for each in self._partitions[name].replicas if each != leader))
            for name, leader in self._leaders.items()
            if leader != self._partitions[name].replicas[0]
        }

    def _give_from(self, broker_id: int) -> bool:
        """Gives one partition to a broker with fewer, through a chain of brokers; returns False if there is no such chain."""
        brokers = self._shortest_chain(broker_id)
        for giver, taker in pairwise(brokers):
            name = heappop(self._links[giver][taker])
            self._leaders[name] = taker
            for other in self._partitions[name].replicas:
                if other != taker and other in self._brokers:
                    heappush(self._links[taker][other], name)
            self._counts[giver] -= 1
            self._counts[taker] += 1
        return bool(brokers)

    def _shortest_chain(self, first: int) -> list[int]:
        by_count = sorted(self._brokers, key=lambda each: (self._counts[each], each))
        before: dict[int, int | None] = {first: None}
        waiting = deque([first])
        while waiting:
            broker_id = waiting.popleft()
            if self._counts[broker_id] <= self._counts[first] - 2:
                return _chain_to(broker_id, before)
            for other in by_count:
                if other not in before and self._can_give(broker_id, other):
                    before[other] = broker_id
                    waiting.append(other)
        return []

    def _can_give(self, giver: int, taker: int) -> bool:
        names = self._links[giver][taker]
        while names and self._leaders[names[0]] != giver:
            heappop(names)
        return bool(names)


def _chain_to(last: int, before: Mapping[int, int | None]) -> list[int]:
    brokers: list[int] = []
    each: int | None = last
    while each is not None:
        brokers.append(each)
        each = before[each]
    return brokers[::-1]


def propose_replication_factor(
    partitions: Iterable[PartitionLoad],
    racks: Mapping[int, str | None],
    factor: int,
    topics: Collection[str] | None = None,
) -> Proposal:
    """Adds replicas to the partitions that have fewer than `factor`, and spreads the preferred leaders of these partitions.

    How it works: the largest partition comes first. Each new replica goes to the broker whose rack has the fewest replicas of the
    partition. Among several such brokers, the one with the fewest bytes gets the replica, then the one with the fewest replicas
    (for empty partitions), then the one with the lowest id. A partition keeps the replicas that it has. `propose_by_leaders`
    then reorders the replicas of these partitions, and counts the preferred leaders of all partitions.

    Args:
        racks: the live brokers and their racks.
        factor: at most the number of live brokers.
        topics: the topics that get replicas; None for all.
    """
    before = list(partitions)
    raised = _with_more_replicas(before, racks, factor, topics)
    after = [replace(each, replicas=raised.get(each.name, each.replicas), is_movable=each.name in raised) for each in before]
    return raised | propose_by_leaders(after, racks)


def _with_more_replicas(
    partitions: list[PartitionLoad], racks: Mapping[int, str | None], factor: int, topics: Collection[str] | None
) -> Proposal:
    sizes, _ = loads_after(partitions, racks, {})
    counts = Counter(replica for each in partitions for replica in each.replicas)
    raised: Proposal = {}
    for each in sorted(partitions, key=lambda each: (-each.size_bytes, each.name)):
        if each.is_movable and len(each.replicas) < factor and (topics is None or each.name.topic in topics):
            raised[each.name] = _with_replicas_on_other_brokers(each.replicas, factor, racks, sizes, counts)
            added = raised[each.name][len(each.replicas) :]
            counts.update(added)
            sizes.update(dict.fromkeys(added, each.size_bytes))
    return raised


def _with_replicas_on_other_brokers(
    replicas: tuple[int, ...], factor: int, racks: Mapping[int, str | None], sizes: Counter[int], counts: Counter[int]
) -> tuple[int, ...]:
    """Returns the replicas of a partition with new ones at the end, so that there are `factor`."""
    while len(replicas) < factor:
        used = Counter(_rack_of(each, racks) for each in replicas)
        others = (each for each in racks if each not in replicas)
        best = min(others, key=lambda each: (used[_rack_of(each, racks)], sizes[each], counts[each], each))
        replicas = (*replicas, best)
    return replicas


def moved_bytes(partitions: Iterable[PartitionLoad], proposal: Proposal) -> int:
    """Returns the bytes that brokers copy to carry out a proposal."""
    return sum(
        each.size_bytes * len(set(proposal[each.name]) - set(each.replicas)) for each in partitions if each.name in proposal
    )


def loads_after(
    partitions: Iterable[PartitionLoad], brokers: Iterable[int], proposal: Proposal
) -> tuple[Counter[int], Counter[int]]:
    """Returns the bytes and the preferred leaders of each broker once a proposal is carried out."""
    sizes, leaders = Counter(dict.fromkeys(brokers, 0)), Counter(dict.fromkeys(brokers, 0))
    for each in partitions:
        replicas = proposal.get(each.name, each.replicas)
        for replica in replicas:
            sizes[replica] += each.size_bytes
        leaders.update(replicas[:1])
    return sizes, leaders
