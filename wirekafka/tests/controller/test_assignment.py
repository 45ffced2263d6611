"""The replicas of new partitions. The tables are those of AdminUtils' documentation and of Kafka's tests."""

from __future__ import annotations

from collections import Counter

import pytest

from wirekafka.controller.assignment import alternating_brokers, assign_replicas
from wirekafka.errors import ErrorCode, KafkaError

SIX_IN_THREE_RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}


def without_racks(count: int) -> dict[int, str | None]:
    return dict.fromkeys(range(count))


def test_assignment_without_racks_is_kafkas() -> None:
    """From the first broker on, the round of AdminUtils' documentation, with its larger shift in the second round."""
    assigned = [*assign_replicas(without_racks(5), 10, 3, start=0, shift=0)]
    assert assigned == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


def test_assignment_with_racks_is_kafkas() -> None:
    """The example of AdminUtils' documentation, with its seventh partition."""
    assert alternating_brokers(SIX_IN_THREE_RACKS) == [0, 3, 1, 5, 4, 2]
    assigned = [*assign_replicas(SIX_IN_THREE_RACKS, 7, 3, start=0, shift=0)]
    assert assigned == [(0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2)]


@pytest.mark.parametrize(
    ("racks", "order"),
    [
        ({0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "b", 6: "c", 7: "c", 8: "c"}, [0, 3, 6, 1, 4, 7, 2, 5, 8]),
        ({5: "a", 1: "a", 3: "b"}, [1, 3, 5]),
        ({4: None, 2: None, 9: None}, [2, 4, 9]),
        ({}, []),
    ],
)
def test_brokers_alternate_between_racks(racks: dict[int, str | None], order: list[int]) -> None:
    assert alternating_brokers(racks) == order


@pytest.mark.parametrize(("start", "shift"), [(0, 0), (3, 1), (5, 4)])
def test_each_rack_has_a_replica_and_each_broker_as_many(start: int, shift: int) -> None:
    assigned = [*assign_replicas(SIX_IN_THREE_RACKS, 12, 3, start=start, shift=shift)]
    assert all(len({SIX_IN_THREE_RACKS[each] for each in replicas}) == 3 for replicas in assigned)
    assert set(Counter(each for replicas in assigned for each in replicas).values()) == {6}
    assert set(Counter(replicas[0] for replicas in assigned).values()) == {2}


@pytest.mark.parametrize("replication_factor", [1, 2, 3, 5, 6])
def test_replicas_of_a_partition_are_different_brokers(replication_factor: int) -> None:
    for racks in (SIX_IN_THREE_RACKS, without_racks(6), {0: "a", 1: "a", 2: "a", 3: "a", 4: "a", 5: "b"}):
        for replicas in assign_replicas(racks, 20, replication_factor, start=2, shift=7):
            assert len(set(replicas)) == len(replicas) == replication_factor


def test_more_replicas_than_racks_use_every_rack() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    for replicas in assign_replicas(racks, 16, 3, start=1, shift=2):
        assert {racks[each] for each in replicas} == {"a", "b"}


def test_added_partitions_continue_the_round() -> None:
    whole = [*assign_replicas(without_racks(5), 10, 3, start=0, shift=0)]
    assert [*assign_replicas(without_racks(5), 3, 3, start=0, shift=0, first_partition=2)] == whole[2:5]


def test_one_broker_has_all_partitions() -> None:
    assert [*assign_replicas({7: "a"}, 3, 1, start=0, shift=0)] == [(7,), (7,), (7,)]


@pytest.mark.parametrize(
    ("racks", "partition_count", "replication_factor", "error"),
    [
        (without_racks(2), 0, 1, ErrorCode.INVALID_PARTITIONS),
        (without_racks(2), 1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (without_racks(2), 1, 3, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({}, 1, 1, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({0: "a", 1: None}, 1, 1, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_impossible_assignment_is_refused_at_once(
    racks: dict[int, str | None], partition_count: int, replication_factor: int, error: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as refused:
        assign_replicas(racks, partition_count, replication_factor, start=0, shift=0)
    assert refused.value.code is error
