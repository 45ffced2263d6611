from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirekafka.coordinator.groups.modern.assignors import AssignedMember
from wirekafka.coordinator.groups.share import assignor
from wirekafka.coordinator.groups.share.assignor import assign_simply

T, U = b"t" * 16, b"u" * 16
Partitions = dict[bytes, frozenset[int]]


def members(count: int, targets: dict[str, Partitions] | None = None, topics: tuple[bytes, ...] = (T,)) -> list[AssignedMember]:
    return [AssignedMember(f"m{n}", None, frozenset(topics), (targets or {}).get(f"m{n}", {})) for n in range(count)]


def indexes(targets: dict[str, Partitions], topic_id: bytes = T) -> list[list[int]]:
    return [sorted(target.get(topic_id, ())) for target in targets.values()]


def test_fewer_members_than_partitions_have_their_own() -> None:
    targets = assign_simply(members(2), {T: frozenset(range(5))})
    assert sorted(index for own in indexes(targets) for index in own) == [0, 1, 2, 3, 4]
    assert sorted(map(len, indexes(targets))) == [2, 3]


def test_more_members_than_partitions_share_them() -> None:
    targets = assign_simply(members(5), {T: frozenset(range(2))})
    assert all(indexes(targets))
    assert sum(map(len, indexes(targets))) == 6


def test_member_that_comes_leaves_the_others_most_of_what_they_have() -> None:
    before = assign_simply(members(2), {T: frozenset(range(6))})
    after = assign_simply(members(3, before), {T: frozenset(range(6))})
    assert [sorted(map(len, indexes(after)))] == [[2, 2, 2]]
    for member_id, target in before.items():
        assert after[member_id][T] < target[T]


def test_same_members_and_partitions_keep_everything() -> None:
    before = assign_simply(members(3), {T: frozenset(range(7))})
    assert assign_simply(members(3, before), {T: frozenset(range(7))}) == before


def test_partitions_without_state_and_topics_without_subscribers_are_not_assigned() -> None:
    targets = assign_simply(members(1), {T: frozenset({1}), U: frozenset({0})})
    assert targets == {"m0": {T: frozenset({1})}}


def test_nobody_gets_nothing() -> None:
    assert assign_simply([], {T: frozenset({0})}) == {}
    assert assign_simply(members(1), {}) == {"m0": {}}


@settings(max_examples=150)
@given(
    subscriptions=st.lists(st.frozensets(st.sampled_from([T, U]), min_size=1), min_size=1, max_size=7),
    counts=st.fixed_dictionaries({T: st.integers(0, 6), U: st.integers(0, 6)}),
    later=st.lists(st.frozensets(st.sampled_from([T, U]), min_size=1), min_size=1, max_size=7),
)
def test_every_partition_has_subscribers_and_members_of_one_subscription_have_as_many(
    subscriptions: list[frozenset[bytes]], counts: dict[bytes, int], later: list[frozenset[bytes]]
) -> None:
    assignable = {topic_id: frozenset(range(count)) for topic_id, count in counts.items()}
    targets: dict[str, Partitions] = {}
    for wanted in (subscriptions, later):
        group = [AssignedMember(f"m{n}", None, topic_ids, targets.get(f"m{n}", {})) for n, topic_ids in enumerate(wanted)]
        targets = assign_simply(group, assignable)
        assert targets.keys() == {member.member_id for member in group}
        for member in group:
            assert targets[member.member_id].keys() <= member.topic_ids
        for topic_id, partitions in assignable.items():
            owned = frozenset[int]().union(*(target.get(topic_id, frozenset()) for target in targets.values()))
            assert owned == (partitions if any(topic_id in topic_ids for topic_ids in wanted) else frozenset())
        if len(set(wanted)) == 1:
            sizes = [sum(map(len, target.values())) for target in targets.values()]
            assert max(sizes) - min(sizes) <= 1


class CountedTarget(dict[bytes, frozenset[int]]):
    """A target assignment that counts how many of its topics are read."""

    def __init__(self, target: Partitions) -> None:
        super().__init__(target)
        self.read_count = 0

    def get(self, topic_id: bytes, default: Any = None) -> Any:
        self.read_count += 1
        return super().get(topic_id, default)

    def items(self) -> Any:
        self.read_count += len(self)
        return super().items()

    def __iter__(self) -> Iterator[bytes]:
        self.read_count += len(self)
        return super().__iter__()


def test_members_of_different_subscriptions_cost_two_reads_at_most_for_each_topic_of_a_target() -> None:
    topic_ids = [number.to_bytes(16, "big") for number in range(200)]
    assignable = {topic_id: frozenset({0}) for topic_id in topic_ids}
    different = [frozenset(topic_ids), frozenset(topic_ids[1:])]
    first = assign_simply([AssignedMember(f"m{n}", None, different[n % 2], {}) for n in range(10)], assignable)
    counted = {member_id: CountedTarget(target) for member_id, target in first.items()}
    again = assign_simply([AssignedMember(f"m{n}", None, different[n % 2], counted[f"m{n}"]) for n in range(10)], assignable)
    assert again == first
    assert max(target.read_count for target in counted.values()) <= 2 * len(topic_ids)


def test_topics_with_the_same_subscribers_and_partitions_are_dealt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    topic_ids = [number.to_bytes(16, "big") for number in range(100)]
    assignable = {topic_id: frozenset(range(3)) for topic_id in topic_ids}
    different = [frozenset(topic_ids), frozenset(topic_ids[1:])]
    deals: list[object] = []
    deal = assignor._deal
    monkeypatch.setattr(assignor, "_deal", lambda *args: (deals.append(args[0]), deal(*args)))
    targets = assign_simply([AssignedMember(f"m{n}", None, different[n > 0], {}) for n in range(10)], assignable)
    assert len(deals) == 2
    assert all(sorted(map(len, target.values())) for target in targets.values())
    again = assign_simply([AssignedMember(f"m{n}", None, different[n > 0], targets[f"m{n}"]) for n in range(10)], assignable)
    assert len(deals) == 4
    assert again == targets
