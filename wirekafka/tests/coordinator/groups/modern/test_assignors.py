from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirekafka.coordinator.groups.modern.assignors import ASSIGNORS, AssignedMember, Assignor, assign_ranges, assign_uniformly
from wirekafka.coordinator.groups.modern.topics import Partitions

A, B, C = (name.encode() * 16 for name in "abc")


def members(*names: str, topics: Sequence[bytes] = (A,), targets: Mapping[str, Partitions] | None = None) -> list[AssignedMember]:
    subscribed = frozenset(topics)
    return [AssignedMember(name, None, subscribed, (targets or {}).get(name, {})) for name in names]


def shares(assigned: dict[str, Partitions], topic: bytes = A) -> dict[str, list[int]]:
    return {name: sorted(target.get(topic, ())) for name, target in assigned.items()}


def check(assigned: dict[str, Partitions], given_: Sequence[AssignedMember], counts: Mapping[bytes, int]) -> None:
    """Raises unless every partition of a topic with subscribers has one owner, which subscribes to the topic."""
    owners: dict[tuple[bytes, int], str] = {}
    for member in given_:
        for topic_id, partitions in assigned[member.member_id].items():
            assert topic_id in member.topic_ids
            assert partitions
            for partition in partitions:
                assert (topic_id, partition) not in owners
                owners[topic_id, partition] = member.member_id
    read = {topic_id for member in given_ for topic_id in member.topic_ids}
    assert owners.keys() == {(topic_id, partition) for topic_id in read for partition in range(counts[topic_id])}


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
def test_assignment_of_nobody_is_nothing(assign: Assignor) -> None:
    assert assign([], {}) == {}


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
def test_member_without_topics_gets_nothing(assign: Assignor) -> None:
    assert assign(members("m", topics=()), {}) == {"m": {}}


def test_uniform_gives_everybody_as_much_and_the_first_the_rest() -> None:
    assert shares(assign_uniformly(members("m1", "m2", "m3"), {A: 7})) == {"m1": [0, 1, 2], "m2": [3, 4], "m3": [5, 6]}


def test_uniform_moves_only_what_the_new_member_is_to_have() -> None:
    before = assign_uniformly(members("m1", "m2"), {A: 6})
    after = assign_uniformly(members("m1", "m2", "m3", targets=before), {A: 6})
    assert shares(after) == {"m1": [0, 1], "m2": [3, 4], "m3": [2, 5]}


def test_uniform_leaves_a_target_that_stays_as_it_is() -> None:
    before = assign_uniformly(members("m1", "m2"), {A: 3})
    after = assign_uniformly(members("m1", "m2", targets=before), {A: 4})
    assert shares(after) == {"m1": [0, 1], "m2": [2, 3]}
    assert after["m1"] is before["m1"]


def test_uniform_takes_away_topics_nobody_reads_any_more() -> None:
    before = assign_uniformly(members("m1", "m2", topics=(A, B)), {A: 2, B: 2})
    after = assign_uniformly(members("m1", "m2", targets=before), {A: 2})
    assert shares(after) == {"m1": [0], "m2": [1]}
    assert all(target.keys() == {A} for target in after.values())


def test_uniform_evens_out_loads_of_members_with_different_topics() -> None:
    both, one = members("both", topics=(A, B)), members("one")
    assigned = assign_uniformly(both + one, {A: 4, B: 2})
    assert [sum(map(len, target.values())) for target in assigned.values()] == [3, 3]
    check(assigned, both + one, {A: 4, B: 2})


def test_uniform_looks_again_at_loads_that_were_even_before_something_moved() -> None:
    both = frozenset({A, B})
    given_ = [
        AssignedMember("m0", None, both, {B: frozenset({0, 1})}),
        AssignedMember("m1", None, frozenset({A}), {}),
        AssignedMember("m2", None, both, {A: frozenset({0})}),
    ]
    assigned = assign_uniformly(given_, {A: 1, B: 4})
    assert [sum(map(len, target.values())) for target in assigned.values()] == [2, 1, 2]
    check(assigned, given_, {A: 1, B: 4})


def test_range_gives_partitions_of_equal_topics_to_the_same_members() -> None:
    assigned = assign_ranges(members("m2", "m1", topics=(A, B)), {A: 5, B: 5})
    assert shares(assigned, A) == shares(assigned, B) == {"m1": [0, 1, 2], "m2": [3, 4]}


def test_range_goes_by_the_names_of_static_members_first() -> None:
    given_ = [
        AssignedMember("a", None, frozenset({A}), {}),
        AssignedMember("c", "i2", frozenset({A}), {}),
        AssignedMember("b", "i1", frozenset({A}), {}),
    ]
    assert shares(assign_ranges(given_, {A: 3})) == {"b": [0], "c": [1], "a": [2]}


def test_range_with_more_members_than_partitions_leaves_the_last_without() -> None:
    assert shares(assign_ranges(members("m1", "m2", "m3"), {A: 2})) == {"m1": [0], "m2": [1], "m3": []}


TOPICS = st.frozensets(st.sampled_from((A, B, C)))


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@settings(max_examples=200, derandomize=True)
@given(
    first=st.lists(TOPICS, max_size=6),
    second=st.lists(TOPICS, max_size=6),
    counts=st.tuples(*(st.integers(1, 9) for _ in range(3))),
    more=st.integers(0, 3),
)
def test_assignment_of_anybody_is_whole_and_settles(
    assign: Assignor, first: list[frozenset[bytes]], second: list[frozenset[bytes]], counts: tuple[int, int, int], more: int
) -> None:
    partition_counts = dict(zip((A, B, C), counts, strict=True))
    before = [AssignedMember(f"m{number}", None, topics, {}) for number, topics in enumerate(first)]
    targets = assign(before, partition_counts)
    check(targets, before, partition_counts)
    partition_counts[A] += more
    after = [AssignedMember(f"m{n}", None, topics, targets.get(f"m{n}", {})) for n, topics in enumerate(second)]
    moved = assign(after, partition_counts)
    check(moved, after, partition_counts)
    settled = [member._replace(target=moved[member.member_id]) for member in after]
    again = assign(settled, partition_counts)
    assert all(again[member.member_id] is member.target for member in settled), "who has the right target keeps it"


@settings(max_examples=200, derandomize=True)
@given(owned=st.lists(st.integers(0, 5), min_size=0, max_size=30), count=st.integers(1, 6))
def test_uniform_assignment_of_like_members_differs_by_one_and_moves_no_more_than_it_must(owned: list[int], count: int) -> None:
    has = {f"m{n}": frozenset(p for p, owner in enumerate(owned) if owner == n) for n in range(6)}
    given_ = members(*(f"m{n}" for n in range(count)), targets={name: {A: held} if held else {} for name, held in has.items()})
    assigned = assign_uniformly(given_, {A: max(len(owned), 1)})
    sizes = [sum(map(len, target.values())) for target in assigned.values()]
    assert max(sizes) - min(sizes) <= 1
    for member in given_:
        held, now = has[member.member_id], assigned[member.member_id].get(A, frozenset())
        assert held <= now or now <= held, "nobody both loses and gains"
