"""Proposals for the replicas of partitions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.cli.cluster.balancing import (
    PartitionLoad,
    loads_after,
    moved_bytes,
    propose_by_bytes,
    propose_by_leaders,
    propose_replication_factor,
)
from wirekafka.names import TopicPartition

NO_RACKS: dict[int, str | None] = {1: None, 2: None, 3: None}


def part(index: int, replicas: tuple[int, ...], size_bytes: int = 0, *, is_movable: bool = True) -> PartitionLoad:
    return PartitionLoad(TopicPartition("t", index), replicas, size_bytes, is_movable)


def name(index: int) -> TopicPartition:
    return TopicPartition("t", index)


@pytest.mark.parametrize(
    ("sizes", "moved"),
    [
        pytest.param([50, 50], {1: (2,)}, id="one of two equal ones"),
        pytest.param([60, 30, 10], {1: (2,), 2: (2,)}, id="all that is smaller than the largest"),
        pytest.param([50, 30, 20], {0: (2,)}, id="exactly half of it in one replica"),
        pytest.param([49, 30, 21], {0: (2,)}, id="nearly half of it in one replica"),
        pytest.param([45, 40, 15], {0: (2,)}, id="the smallest that is enough"),
        pytest.param([100], {}, id="a single replica stays"),
        pytest.param([], {}, id="nothing"),
        pytest.param([0, 0], {}, id="no bytes"),
    ],
)
def test_bytes_of_a_full_broker_are_shared_with_an_empty_one(sizes: list[int], moved: dict[int, tuple[int, ...]]) -> None:
    partitions = [part(index, (1,), size) for index, size in enumerate(sizes)]
    proposal = propose_by_bytes(partitions, {1: None, 2: None})
    assert sorted(proposal.values()) == sorted(moved.values())
    sent = moved_bytes(partitions, proposal)
    assert sent == sum(partitions[index].size_bytes for index in moved)


def test_new_broker_gets_its_share_and_no_byte_moves_between_the_old_ones() -> None:
    partitions = [part(index, (1 + index % 2,), 10) for index in range(30)]
    proposal = propose_by_bytes(partitions, NO_RACKS)
    assert set(proposal.values()) == {(3,)}
    assert 80 <= moved_bytes(partitions, proposal) <= 100


def test_balanced_brokers_get_no_proposal() -> None:
    partitions = [part(index, (1 + index % 3,), 100) for index in range(30)]
    assert propose_by_bytes(partitions, NO_RACKS) == {}


def test_brokers_within_the_percentage_get_no_proposal() -> None:
    partitions = [part(0, (1,), 100), part(1, (2,), 90), part(2, (2,), 20)]
    racks = {1: None, 2: None}
    assert propose_by_bytes(partitions, racks, within_percent=5) == {}
    assert propose_by_bytes(partitions, racks, within_percent=1) == {}
    assert propose_by_bytes([*partitions, part(3, (2,), 10)], racks, within_percent=1) == {name(3): (1,)}


def test_replica_does_not_join_the_rack_of_another_replica() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "b"}
    partitions = [part(index, (1, 2), 10) for index in range(4)]
    proposal = propose_by_bytes(partitions, racks)
    assert proposal
    assert all(replicas[0] == 1 and set(replicas) == {1, 3} for replicas in proposal.values())


def test_replica_that_may_not_move_and_one_on_a_dead_broker_stay() -> None:
    partitions = [part(0, (1,), 50, is_movable=False), part(1, (9,), 500), part(2, (1, 9), 40)]
    assert propose_by_bytes(partitions, {1: None, 2: None}) == {name(2): (2, 9)}


def test_follower_moves_rather_than_a_preferred_leader_of_the_same_size() -> None:
    partitions = [part(0, (3, 1), 10), part(1, (1, 3), 10)]
    assert propose_by_bytes(partitions, NO_RACKS) == {name(1): (1, 2)}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[PartitionLoad], dict[int, str | None]]:
    racks = {broker: draw(st.sampled_from(["a", "b", "c", None])) for broker in range(1, draw(st.integers(2, 6)) + 1)}
    everyone = [*racks, 99]
    partitions = []
    for index in range(draw(st.integers(0, 25))):
        replicas = draw(st.lists(st.sampled_from(everyone), min_size=1, max_size=3, unique=True))
        size = draw(st.one_of(st.integers(0, 20), st.integers(0, 10_000)))
        partitions.append(part(index, tuple(replicas), size, is_movable=draw(st.integers(0, 9)) > 0))
    return partitions, racks


def rack_count(replicas: tuple[int, ...], racks: dict[int, str | None]) -> int:
    return len({racks.get(each) or each for each in replicas})


@given(clusters())
def test_any_proposal_by_bytes_keeps_the_rules_and_brings_brokers_closer(
    cluster: tuple[list[PartitionLoad], dict[int, str | None]],
) -> None:
    partitions, racks = cluster
    proposal = propose_by_bytes(partitions, racks)
    assert proposal == propose_by_bytes(list(reversed(partitions)), dict(reversed(racks.items())))
    by_name = {each.name: each for each in partitions}
    for changed, after in proposal.items():
        before = by_name[changed]
        assert before.is_movable
        assert len(set(after)) == len(after) == len(before.replicas)
        assert rack_count(after, racks) >= rack_count(before.replicas, racks)
        assert all(new == old or (new in racks and old in racks) for new, old in zip(after, before.replicas, strict=True))
    old, new = (loads_after(partitions, racks, each)[0] for each in ({}, proposal))
    assert sum(new[each] ** 2 for each in racks) <= sum(old[each] ** 2 for each in racks)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(2, 5))
def test_bytes_moved_are_at_most_what_the_full_brokers_have_too_many(sizes: list[int], broker_count: int) -> None:
    """With small replicas and without racks, only the excess over the mean leaves a broker, and one replica past it at most."""
    partitions = [part(index, (1,), size) for index, size in enumerate(sizes)]
    racks: dict[int, str | None] = dict.fromkeys(range(1, broker_count + 1))
    excess = sum(sizes) * (broker_count - 1) / broker_count
    assert moved_bytes(partitions, propose_by_bytes(partitions, racks)) <= excess + max(sizes)


def leaders_after(partitions: list[PartitionLoad], live: list[int]) -> Counter[int]:
    return loads_after(partitions, live, propose_by_leaders(partitions, live))[1]


def test_leaders_of_one_broker_are_shared_by_all() -> None:
    partitions = [part(index, (1, 2, 3)) for index in range(9)]
    proposal = propose_by_leaders(partitions, [1, 2, 3])
    assert loads_after(partitions, [1, 2, 3], proposal)[1] == {1: 3, 2: 3, 3: 3}
    assert len(proposal) == 6
    assert set(proposal.values()) == {(2, 1, 3), (3, 1, 2)}


def test_leaders_go_through_a_broker_between_two_that_share_no_partition() -> None:
    partitions = [part(0, (1, 2)), part(1, (1, 2)), part(2, (1, 2)), part(3, (2, 3)), part(4, (2, 3)), part(5, (2, 3))]
    assert leaders_after(partitions, [1, 2, 3]) == {1: 2, 2: 2, 3: 2}


def test_leaders_that_cannot_be_shared_stay() -> None:
    partitions = [part(0, (1,)), part(1, (1,)), part(2, (1, 9)), part(3, (1, 2), is_movable=False)]
    assert propose_by_leaders(partitions, [1, 2]) == {}


@given(clusters())
def test_any_proposal_by_leaders_keeps_the_replicas_and_leaves_no_better_single_change(
    cluster: tuple[list[PartitionLoad], dict[int, str | None]],
) -> None:
    partitions, racks = cluster
    proposal = propose_by_leaders(partitions, racks)
    by_name = {each.name: each for each in partitions}
    assert all(by_name[changed].is_movable for changed in proposal)
    assert all(set(after) == set(by_name[changed].replicas) and after[0] in racks for changed, after in proposal.items())
    counts = loads_after(partitions, racks, proposal)[1]
    for each in partitions:
        leader = proposal.get(each.name, each.replicas)[0]
        if each.is_movable and leader in racks:
            assert all(counts[leader] - counts[other] < 2 for other in each.replicas if other in racks)


def test_partitions_of_the_first_broker_get_replicas_and_leaders_on_the_others() -> None:
    partitions = [part(index, (1,)) for index in range(6)]
    proposal = propose_replication_factor(partitions, NO_RACKS, 3)
    assert all(sorted(replicas) == [1, 2, 3] for replicas in proposal.values())
    assert loads_after(partitions, NO_RACKS, proposal)[1] == {1: 2, 2: 2, 3: 2}


def test_new_replica_goes_to_a_rack_without_one_before_the_broker_with_fewest_bytes() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b"}
    partitions = [part(0, (1,), 10), part(1, (3,), 500, is_movable=False)]
    assert propose_replication_factor(partitions, racks, 2) == {name(0): (1, 3)}


def test_new_replica_of_full_racks_goes_to_the_one_with_fewer() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b"}
    assert propose_replication_factor([part(0, (1, 2, 4))], racks, 4) == {name(0): (1, 2, 4, 5)}


def test_largest_partition_gets_the_broker_with_fewest_bytes() -> None:
    partitions = [part(0, (1,), 10), part(1, (1,), 90), part(2, (1,), 80)]
    found = propose_replication_factor(partitions, NO_RACKS, 2)
    assert {each: set(replicas) for each, replicas in found.items()} == {name(0): {1, 3}, name(1): {1, 2}, name(2): {1, 3}}


def test_empty_partitions_are_spread_by_their_number() -> None:
    found = propose_replication_factor([part(index, (1,)) for index in range(4)], NO_RACKS, 2)
    assert Counter(each for replicas in found.values() for each in replicas) == {1: 4, 2: 2, 3: 2}


def test_partition_with_enough_replicas_and_one_of_another_topic_stay() -> None:
    other = PartitionLoad(TopicPartition("other", 0), (1,), 5)
    partitions = [part(0, (1, 2, 3)), part(1, (1, 2)), part(2, (1,), is_movable=False), other]
    assert propose_replication_factor(partitions, NO_RACKS, 2, ["t"]) == {}
    assert propose_replication_factor(partitions, NO_RACKS, 2, ["other"]).keys() == {other.name}


def test_leaders_of_partitions_that_stay_count_where_new_replicas_come() -> None:
    partitions = [part(0, (1, 2)), part(1, (1, 2)), part(2, (1,))]
    assert propose_replication_factor(partitions, {1: None, 2: None}, 2) == {name(2): (2, 1)}


@given(clusters(), st.data())
def test_any_proposal_of_more_replicas_keeps_the_former_ones_and_uses_as_many_racks_as_possible(
    cluster: tuple[list[PartitionLoad], dict[int, str | None]], data: st.DataObject
) -> None:
    partitions, racks = cluster
    factor = data.draw(st.integers(1, len(racks)))
    proposal = propose_replication_factor(partitions, racks, factor)
    assert proposal == propose_replication_factor(list(reversed(partitions)), dict(reversed(racks.items())), factor)
    assert proposal.keys() == {each.name for each in partitions if each.is_movable and len(each.replicas) < factor}
    for each in partitions:
        after = proposal.get(each.name, each.replicas)
        assert set(after) >= set(each.replicas)
        if each.name in proposal:
            added = set(after) - set(each.replicas)
            assert len(set(after)) == len(after) == factor and added <= racks.keys()
            most = rack_count((*each.replicas, *racks), racks)
            assert rack_count(after, racks) == min(most, rack_count(each.replicas, racks) + len(added))


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), st.integers(3, 6))
def test_second_replicas_fill_the_new_brokers_evenly(sizes: list[int], broker_count: int) -> None:
    brokers = range(1, broker_count + 1)
    partitions = [part(index, (1,), size) for index, size in enumerate(sizes)]
    after, _ = loads_after(partitions, brokers, propose_replication_factor(partitions, dict.fromkeys(brokers), 2))
    new = [after[each] for each in brokers[1:]]
    assert max(new) - min(new) <= max(sizes)


@given(st.integers(0, 40), st.integers(0, 5), st.integers(2, 6), st.data())
def test_leaders_of_equal_partitions_are_spread_evenly(count: int, size: int, broker_count: int, data: st.DataObject) -> None:
    brokers = range(1, broker_count + 1)
    factor = data.draw(st.integers(2, broker_count))
    partitions = [part(index, (1,), size) for index in range(count)]
    proposal = propose_replication_factor(partitions, dict.fromkeys(brokers), factor)
    leaders = loads_after(partitions, brokers, proposal)[1]
    assert max(leaders.values()) - min(leaders.values()) <= 1
