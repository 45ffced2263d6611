"""Offsets of open transactions, compared with a plain list as the model."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from wirekafka.coordinator.groups.pending_offsets import OpenTransaction, PendingOffsets, Place
from wirekafka.coordinator.groups.records import CommittedOffset, OffsetRecord

TRANSACTIONS = [OpenTransaction(partition, producer_id) for partition in range(2) for producer_id in range(2)]
PLACES: list[Place] = [(group_id, topic, partition) for group_id in "gh" for topic in "tu" for partition in range(2)]


class Added(NamedTuple):
    transaction: OpenTransaction
    place: Place
    offset: int


class Dropped(NamedTuple):
    place: Place


class Ended(NamedTuple):
    transaction: OpenTransaction


Step = Added | Dropped | Ended
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(Added, st.sampled_from(TRANSACTIONS), st.sampled_from(PLACES), st.integers(0, 9)),
    st.builds(Dropped, st.sampled_from(PLACES)),
    st.builds(Ended, st.sampled_from(TRANSACTIONS)),
)


def record(place: Place, offset: int = 1) -> OffsetRecord:
    return OffsetRecord(*place, CommittedOffset(offset, None, "", 0, None))


@given(st.lists(STEPS, max_size=40))
def test_pending_offsets_are_those_of_the_model(story: list[Step]) -> None:
    pending = PendingOffsets()
    model: dict[tuple[OpenTransaction, Place], int] = {}
    for step in story:
        match step:
            case Added(transaction, place, offset):
                pending.add(transaction, record(place, offset))
                model[transaction, place] = offset
            case Dropped(place):
                pending.drop(place)
                model = {key: offset for key, offset in model.items() if key[1] != place}
            case Ended(transaction):
                ended = {key[1]: offset for key, offset in model.items() if key[0] == transaction}
                assert {place: kept.offset for place, kept in pending.take(transaction).items()} == ended
                model = {key: offset for key, offset in model.items() if key[0] != transaction}
        check(pending, {place for _, place in model})
    for index in range(2):
        pending.forget_partition(index)
        model = {key: offset for key, offset in model.items() if key[0].partition != index}
        check(pending, {place for _, place in model})


def check(pending: PendingOffsets, held: set[Place]) -> None:
    """Raises unless exactly these offsets are pending."""
    assert bool(pending) == bool(held)
    assert [pending.has(place) for place in PLACES] == [place in held for place in PLACES]
    for group_id in "gh":
        assert sorted(pending.of_group(group_id)) == sorted(place[1:] for place in held if place[0] == group_id)
        assert pending.has_group(group_id) == any(place[0] == group_id for place in held)


class CountedId(str):
    """A group id that counts its comparisons."""

    comparisons = 0

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedId.comparisons += 1
        return str.__eq__(self, other)


def test_an_offset_is_dropped_without_a_look_at_those_of_other_groups() -> None:
    pending, transaction = PendingOffsets(), OpenTransaction(0, 1)
    for group_id in (CountedId("g"), "h"):
        for partition in range(100):
            pending.add(transaction, record((group_id, "t", partition)))
    CountedId.comparisons = 0
    for partition in range(100):
        pending.drop(("h", "t", partition))
    assert CountedId.comparisons < 100
    assert not pending.has_group("h")
    assert len(list(pending.of_group("g"))) == 100
