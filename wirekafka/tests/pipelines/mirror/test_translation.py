"""Source offsets become target offsets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.pipelines.mirror.translation import Action, Places, action_for
from wirekafka.pipelines.transactional_sink.progress import Run

PLACES = Places([Run(5, 0, 3), Run(8, 4, 2), Run(20, 6, 1)], next_source_offset=21)
"""The source has the offsets 5 to 9 and 20; the target has a marker at 3."""


@pytest.mark.parametrize(
    ("source_offset", "target_offset"),
    [(0, 0), (5, 0), (6, 1), (7, 2), (8, 4), (9, 5), (10, 6), (15, 6), (20, 6)],
)
def test_an_offset_becomes_that_of_the_first_mirrored_record_at_it_or_later(source_offset: int, target_offset: int) -> None:
    assert PLACES.target_offset(source_offset) == target_offset


def test_the_end_of_the_source_becomes_the_offset_after_the_last_record() -> None:
    assert PLACES.target_offset(21) == 7


def test_an_offset_of_records_that_are_not_mirrored_yet_is_unknown() -> None:
    assert PLACES.target_offset(22) is None


def test_an_offset_after_a_marker_at_the_end_of_the_source_becomes_the_end() -> None:
    assert PLACES.target_offset(22, mirrored_until=22) == 7
    assert PLACES.target_offset(23, mirrored_until=22) is None


def test_the_beginning_of_an_empty_mirror_is_its_first_offset() -> None:
    assert Places([], 0).target_offset(0) == 0
    assert Places([], 0).target_offset(3) is None


@given(data=st.data())
def test_the_translation_is_that_of_a_search_through_all_records(data: st.DataObject) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(0, 60), max_size=30)))
    target = 0
    records: list[tuple[int, int]] = []
    runs: list[Run] = []
    for offset in offsets:
        target += data.draw(st.integers(0, 2))
        records.append((offset, target))
        last = runs[-1] if runs else None
        if last is not None and offset == last.source_offset + last.count and target == last.target_offset + last.count:
            runs[-1] = replace(last, count=last.count + 1)
        else:
            runs.append(Run(offset, target, 1))
        target += 1
    end = offsets[-1] + 1 if offsets else 0
    places = Places(runs, end)
    for asked in range(end + 1):
        expected = next((there for here, there in records if here >= asked), target)
        assert places.target_offset(asked) == expected


@pytest.mark.parametrize(
    ("translated", "committed", "is_in_use", "action"),
    [
        (5, None, False, Action.COMMIT),
        (5, 3, False, Action.COMMIT),
        (5, 5, False, Action.KEEP),
        (5, 5, True, Action.KEEP),
        (5, 7, False, Action.BACKWARDS),
        (5, 3, True, Action.IN_USE),
        (5, None, True, Action.IN_USE),
        (None, 3, False, Action.WAIT),
    ],
)
def test_an_offset_is_committed_only_forwards_and_for_groups_without_members(
    translated: int | None, committed: int | None, is_in_use: bool, action: Action
) -> None:
    assert action_for(translated, committed, is_in_use=is_in_use) is action


def test_an_offset_is_set_back_if_that_is_allowed() -> None:
    assert action_for(5, 7, is_in_use=False, allows_backwards=True) is Action.COMMIT
