from __future__ import annotations

import pytest

from wirekafka.log.checkpoint import MalformedFileError
from wirekafka.log.epochs import EpochStart, LeaderEpochs


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs()
    for epoch, start_offset in entries:
        made.assign(epoch, start_offset)
    return made


def test_assign_of_the_latest_epoch_again_is_no_news() -> None:
    made = epochs((1, 10))

    assert not made.assign(1, 20)
    assert made.entries == (EpochStart(1, 10),)


def test_assign_drops_entries_that_contradict_it() -> None:
    made = epochs((1, 10), (2, 20), (3, 30))

    assert made.assign(2, 15)
    assert made.entries == ((1, 10), (2, 15))


def test_assign_of_an_epoch_without_records_takes_the_place_of_the_one_before() -> None:
    made = epochs((1, 10), (2, 10))

    assert made.entries == ((2, 10),)


@pytest.mark.parametrize(
    ("epoch", "expected"), [(-1, None), (0, (0, 10)), (1, (1, 20)), (2, (1, 20)), (3, (3, 30)), (5, (5, 99)), (6, None)]
)
def test_end_offset_of_is_where_the_next_epoch_begins(epoch: int, expected: tuple[int, int] | None) -> None:
    assert epochs((1, 10), (3, 20), (5, 30)).end_offset_of(epoch, 99) == expected


def test_end_offset_of_any_epoch_is_unknown_where_there_are_none() -> None:
    assert LeaderEpochs().end_offset_of(0, 99) is None


@pytest.mark.parametrize(("offset", "expected"), [(9, None), (10, 1), (19, 1), (20, 3), (500, 3)])
def test_at_is_the_epoch_of_the_record(offset: int, expected: int | None) -> None:
    assert epochs((1, 10), (3, 20)).at(offset) == expected


def test_truncate_end_drops_what_begins_there_or_later() -> None:
    made = epochs((1, 10), (2, 20), (3, 30))

    assert made.truncate_end(20)
    assert made.entries == ((1, 10),)
    assert not made.truncate_end(20)


def test_truncate_start_lets_the_present_epoch_begin_there() -> None:
    made = epochs((1, 10), (2, 20), (3, 30))

    assert made.truncate_start(25)
    assert made.entries == ((2, 25), (3, 30))
    assert not made.truncate_start(25)
    assert not epochs((1, 10)).truncate_start(5)


def test_file_is_kafkas_and_comes_back() -> None:
    data = epochs((0, 0), (4, 1234)).write()

    assert data == b"0\n2\n0 0\n4 1234\n"
    assert LeaderEpochs.read(data).entries == ((0, 0), (4, 1234))


def test_empty_file_says_nothing_yet() -> None:
    assert LeaderEpochs.read(b"").entries == ()


@pytest.mark.parametrize(
    "data", [b"1\n0\n", b"0\n", b"0\nx\n", b"0\n2\n0 0\n", b"0\n1\n0\n", b"0\n1\na b\n", b"0\n1\n-1 5\n", b"\xff"]
)
def test_file_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFileError):
        LeaderEpochs.read(data)
