from __future__ import annotations

import os
from pathlib import Path

import pytest

from wirekafka.log.storage import Folder, Storage
from wirekafka.log.transaction_index import ENTRY, AbortedTransaction, BadTransactionIndexError, TransactionIndex

BASE = 1000
NAME = "00000000000000001000.txnindex"


def entry(number: int, *, first: int = 0, stable: int | None = None) -> AbortedTransaction:
    """Makes a transaction that ends at BASE + 10 * number and begins `first` before, 5 by default."""
    last_offset = BASE + 10 * number
    return AbortedTransaction(0, number, last_offset - (first or 5), last_offset, last_offset + 1 if stable is None else stable)


def index_of(path: Path, *entries: AbortedTransaction) -> TransactionIndex:
    index = TransactionIndex(Folder(str(path), Storage()), BASE)
    for each in entries:
        index.add(each)
    index.save()
    return index


def reopened(path: Path) -> TransactionIndex:
    return TransactionIndex(Folder(str(path), Storage()), BASE, size_bytes=(path / NAME).stat().st_size)


def test_index_without_entries_has_no_file(tmp_path: Path) -> None:
    index = index_of(tmp_path)

    assert (index.count, list(index), os.listdir(tmp_path)) == (0, [], [])


def test_index_is_kafkas_byte_for_byte(tmp_path: Path) -> None:
    index_of(tmp_path, AbortedTransaction(0, 7, 1001, 1005, 1003))

    expected = "0000" "0000000000000007" "00000000000003e9" "00000000000003ed" "00000000000003eb"  # fmt: skip
    assert (tmp_path / NAME).read_bytes().hex() == expected


def test_index_grows_by_what_is_saved(tmp_path: Path) -> None:
    index = index_of(tmp_path, entry(1))
    index.add(entry(2))
    assert (index.count, (tmp_path / NAME).stat().st_size) == (2, ENTRY.size)

    index.save()

    assert list(reopened(tmp_path)) == list(index) == [entry(1), entry(2)]


def test_index_answers_from_what_is_not_saved_too(tmp_path: Path) -> None:
    index = index_of(tmp_path, entry(1))
    index.add(entry(2))

    assert index.overlapping(BASE, BASE + 100)[0] == [entry(1), entry(2)]


@pytest.mark.parametrize(
    ("from_offset", "to_offset", "numbers", "is_complete"),
    [
        (BASE, BASE + 5, [], True),
        (BASE, BASE + 6, [1], True),
        (BASE, BASE + 11, [1], True),
        (BASE, BASE + 12, [1], True),
        (BASE, BASE + 30, [1, 2, 3], True),
        (BASE, BASE + 31, [1, 2, 3], True),
        (BASE, BASE + 99, [1, 2, 3], False),
        (BASE + 10, BASE + 99, [1, 2, 3], False),
        (BASE + 11, BASE + 99, [2, 3], False),
        (BASE + 31, BASE + 99, [], False),
    ],
)
def test_overlapping_gives_what_may_be_in_the_range(
    tmp_path: Path, from_offset: int, to_offset: int, numbers: list[int], is_complete: bool
) -> None:
    index = index_of(tmp_path, entry(1), entry(2), entry(3))

    found, complete = index.overlapping(from_offset, to_offset)

    assert [each.producer_id for each in found] == numbers
    assert complete == is_complete


def test_overlapping_goes_on_while_an_earlier_transaction_was_open(tmp_path: Path) -> None:
    index = index_of(tmp_path, entry(1, stable=BASE + 2), entry(2, stable=BASE + 2), entry(3, first=28))

    found, is_complete = index.overlapping(BASE, BASE + 4)

    assert [each.producer_id for each in found] == [3]
    assert is_complete


def test_overlapping_of_many_entries_bisects_the_file(tmp_path: Path) -> None:
    class Counting(Storage):
        reads = 0

        def read(self, fd: int, size: int, position: int) -> bytes:
            self.reads += 1
            return super().read(fd, size, position)

    index_of(tmp_path, *(entry(number) for number in range(1, 5001)))
    storage = Counting()
    index = TransactionIndex(Folder(str(tmp_path), storage), BASE, size_bytes=5000 * ENTRY.size)

    found, is_complete = index.overlapping(BASE + 40_001, BASE + 40_021)

    assert [each.producer_id for each in found] == [4001, 4002]
    assert is_complete
    assert storage.reads < 20


def test_truncate_drops_what_ends_at_the_offset_or_behind(tmp_path: Path) -> None:
    index = index_of(tmp_path, entry(1), entry(2), entry(3))

    index.truncate(BASE + 20)

    assert list(index) == list(reopened(tmp_path)) == [entry(1)]
    index.truncate(BASE)
    assert (index.count, os.listdir(tmp_path)) == (0, [])


def test_clear_makes_the_file_anew(tmp_path: Path) -> None:
    index = index_of(tmp_path, entry(1), entry(2))
    index.clear()
    index.add(entry(3))

    index.save()

    assert list(reopened(tmp_path)) == [entry(3)]


@pytest.mark.parametrize("is_full", [True, False])
def test_save_that_fails_is_done_by_the_next(tmp_path: Path, is_full: bool) -> None:
    class Full(Storage):
        is_full = False

        def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
            if self.is_full:
                os.pwrite(fd, data[: len(data) // 2], position)
                raise OSError("full")
            super().write(fd, data, position)

    storage = Full()
    index = TransactionIndex(Folder(str(tmp_path), storage), BASE)
    if not is_full:
        index.add(entry(1))
        index.save()
    storage.is_full = True
    index.add(entry(2))
    with pytest.raises(OSError, match="full"):
        index.save()
    storage.is_full = False
    index.add(entry(3))

    index.save()

    assert list(index) == list(reopened(tmp_path))
    assert list(index)[-2:] == [entry(2), entry(3)]


def check(path: Path, next_base_offset: int | None = None) -> None:
    reopened(path).check((path / NAME).stat().st_size, next_base_offset)


def test_check_passes_what_was_saved(tmp_path: Path) -> None:
    index_of(tmp_path, entry(1), entry(2, first=40), entry(3))

    check(tmp_path, BASE + 31)


@pytest.mark.parametrize(
    "entries",
    [
        [entry(2), entry(1)],
        [entry(1), entry(1)],
        [entry(1)._replace(version=1)],
        [entry(1)._replace(first_offset=BASE + 11)],
        [entry(1)._replace(first_offset=-1)],
        [entry(-1)],
        [entry(1), entry(2)._replace(last_stable_offset=BASE)],
        [entry(4)],
    ],
)
def test_check_refuses_what_no_log_leads_to(tmp_path: Path, entries: list[AbortedTransaction]) -> None:
    index_of(tmp_path, *entries)

    with pytest.raises(BadTransactionIndexError):
        check(tmp_path, BASE + 40)


@pytest.mark.parametrize("cut", [1, ENTRY.size - 1])
def test_check_refuses_a_torn_file(tmp_path: Path, cut: int) -> None:
    index_of(tmp_path, entry(1), entry(2))
    os.truncate(tmp_path / NAME, 2 * ENTRY.size - cut)

    with pytest.raises(BadTransactionIndexError):
        check(tmp_path)


def test_reading_a_file_that_has_shrunk_is_an_error(tmp_path: Path) -> None:
    index = index_of(tmp_path, entry(1), entry(2))
    os.truncate(tmp_path / NAME, ENTRY.size)

    with pytest.raises(BadTransactionIndexError):
        index.overlapping(BASE, BASE + 99)


@pytest.mark.parametrize("offset", [BASE + 2000, BASE + 2003, BASE + 2005, BASE + 2006, BASE + 2009])
def test_transaction_that_has_begun_before_is_found_among_many(tmp_path: Path, offset: int) -> None:
    index = index_of(tmp_path, *(entry(number) for number in range(1, 300)))

    found, is_complete = index.overlapping(offset, offset + 7)

    assert found == [each for each in index if each.last_offset >= offset and each.first_offset < offset + 7]
    assert is_complete
