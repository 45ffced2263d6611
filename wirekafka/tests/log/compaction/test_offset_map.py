from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from wirekafka.log.compaction import offset_map
from wirekafka.log.compaction.offset_map import DROPPED, STAYS, STAYS_AS_TOMBSTONE, OffsetMap, Window


def filled(first_offset: int, keys: list[bytes], tombstones: Sequence[int] = ()) -> OffsetMap:
    """Returns a map that has records with these keys at the offsets from `first_offset` on."""
    offsets = OffsetMap(1000, first_offset)
    assert offsets.put(keys, range(first_offset, first_offset + len(keys)), tombstones) == len(keys)
    offsets.end_offset = first_offset + len(keys)
    return offsets


def test_offset_map_takes_no_more_keys_than_it_may() -> None:
    offsets = OffsetMap(2)

    assert offsets.put([b"a", b"b"], [1, 2]) == 2
    assert offsets.put([b"b", b"c"], [3, 4]) == 1
    assert offsets.put([b"a"], [5]) == 1
    assert [offsets.get(key) for key in (b"a", b"b", b"c")] == [5, 3, -1]
    assert len(offsets) == 2


def test_offset_map_passes_over_records_without_a_key() -> None:
    offsets = OffsetMap(2)

    assert offsets.put([b"a", None, 7], [1, 2, 3], has_nulls=True) == 3

    assert (offsets.get(b"a"), offsets.get(None), offsets.get(7)) == (1, -1, 3)


def test_marks_are_for_the_last_record_of_each_key() -> None:
    offsets = filled(10, [b"a", b"b", b"a", b"c", b"b"], [3])

    assert offsets.marks([b"a", b"b", b"a", b"c", b"b"], range(10, 15), [3]) == bytes(
        (DROPPED, DROPPED, STAYS, STAYS_AS_TOMBSTONE, STAYS)
    )


def test_marks_before_the_map_are_for_keys_that_it_does_not_have() -> None:
    offsets = filled(10, [b"a"], [0])

    assert offsets.marks([b"a", b"b", None, b"c"], range(4), [3]) == bytes((DROPPED, STAYS, DROPPED, STAYS_AS_TOMBSTONE))


def test_marks_behind_the_map_are_for_all() -> None:
    offsets = filled(0, [b"a"])

    assert offsets.marks([b"a", None, b"a"], [5, 6, 7], [1]) == bytes((STAYS, STAYS_AS_TOMBSTONE, STAYS))


@pytest.mark.parametrize("window_offsets", [7, 50, 10_000])
def test_window_says_the_same_as_the_keys(monkeypatch: pytest.MonkeyPatch, window_offsets: int) -> None:
    monkeypatch.setattr(offset_map, "WINDOW_OFFSETS", window_offsets)
    chance = random.Random(1)
    keys = [b"%d" % chance.randrange(100) for _ in range(500)]
    tombstones = [number for number in range(500) if chance.random() < 0.1]
    offsets = filled(1000, keys, tombstones)
    steps: list[None] = []
    window = Window(offsets, lambda: steps.append(None))

    expected = offsets.marks(keys, range(1000, 1500), tombstones)
    for first in range(0, 500, 5):
        assert window.marks(1000 + first, 1005 + first) == expected[first : first + 5]
    assert steps


def test_window_does_not_know_what_the_map_does_not() -> None:
    offsets = filled(10, [b"a"] * 10)
    window = Window(offsets, lambda: None)

    assert window.marks(5, 10) is None
    assert window.marks(9, 12) is None
    assert window.marks(15, 25) is None
    assert window.marks(10, 20) == bytes((DROPPED,)) * 9 + bytes((STAYS,))


def test_window_does_not_know_of_batches_without_a_record_for_each_offset() -> None:
    offsets = filled(10, [b"a"] * 10)
    offsets.has_odd_batches = True

    assert Window(offsets, lambda: None).marks(10, 20) is None
