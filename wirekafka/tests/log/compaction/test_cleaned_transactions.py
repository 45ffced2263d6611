"""The compaction of transactions, batch by batch."""

from __future__ import annotations

from wirekafka.log.compaction.cleaned_transactions import CleanedTransactions
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.wire.batch import BatchHeader, Record, build_batch
from wirekafka.wire.control import EndMarker, build_end_marker

ABORTED = AbortedTransaction(0, 7, 10, 12, 13)


def data(offset: int, *, producer_id: int = 7, is_transactional: bool = True) -> BatchHeader:
    record = Record(b"k", b"v")
    return BatchHeader(build_batch([record], base_offset=offset, producer_id=producer_id, is_transactional=is_transactional))


def end(transactions: CleanedTransactions, *, is_commit: bool, producer_id: int = 7) -> tuple[bool, AbortedTransaction | None]:
    batch = build_end_marker(EndMarker(is_commit, 0), producer_id=producer_id, producer_epoch=0, timestamp=0)
    return transactions.end(BatchHeader(batch), memoryview(batch))


def test_marker_of_a_commit_stays_as_long_as_there_is_something_of_it() -> None:
    transactions = CleanedTransactions([])
    assert not transactions.is_aborted(data(0))

    assert end(transactions, is_commit=True) == (False, None)
    assert end(transactions, is_commit=True) == (True, None)


def test_marker_of_an_abort_stays_as_long_as_there_is_something_of_it() -> None:
    transactions = CleanedTransactions([ABORTED])
    assert not transactions.is_aborted(data(9, is_transactional=False))
    assert transactions.is_aborted(data(10))
    assert not transactions.is_aborted(data(11, producer_id=8))

    assert end(transactions, is_commit=False) == (False, ABORTED)
    assert not transactions.is_aborted(data(13))


def test_marker_of_an_abort_of_which_nothing_is_left_may_go() -> None:
    transactions = CleanedTransactions([ABORTED])
    assert not transactions.is_aborted(data(20, producer_id=8))

    assert end(transactions, is_commit=False) == (True, None)
    assert not transactions.is_aborted(data(21))
