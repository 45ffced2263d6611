"""With `committed`, the data source returns what a read_committed consumer returns."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from wirekafka.pipelines.log_source import transactions
from wirekafka.pipelines.log_source.plan import Selection, plan
from wirekafka.pipelines.log_source.segments import list_transaction_indexes
from wirekafka.pipelines.log_source.transactions import AbortedRange, read_transactions
from wirekafka.tests.inspection.folders import PARTITION, segment_file
from wirekafka.tests.log.logs import World, append, batch, close, config_with, end_transaction, transactional
from wirekafka.tests.pipelines.log_source.rows import offsets_of, rows_in, rows_of

PRODUCERS = (1, 2, 3)


def test_control_records_are_rows_of_all_only(tmp_path: Path) -> None:
    log = World().open_log(tmp_path / str(PARTITION))
    append(log, transactional(0, producer_id=1))
    end_transaction(log, 1)

    assert [(row["offset"], row["is_control"]) for row in rows_of(tmp_path)] == [(0, False), (1, True)]
    assert offsets_of(rows_of(tmp_path, is_committed=True)) == [0]


def test_records_of_an_aborted_transaction_are_rows_of_all_only(tmp_path: Path) -> None:
    log = World().open_log(tmp_path / str(PARTITION))
    append(log, batch(b"before"))
    append(log, transactional(0, 2, producer_id=1))
    append(log, batch(b"between"))
    end_transaction(log, 1, is_commit=False)

    assert offsets_of(rows_of(tmp_path)) == [0, 1, 2, 3, 4]
    assert offsets_of(rows_of(tmp_path, is_committed=True)) == [0, 3]


def test_the_index_of_a_compacted_segment_is_read_while_it_is_swapped_in(tmp_path: Path) -> None:
    folder = tmp_path / str(PARTITION)
    log = World().open_log(folder)
    append(log, transactional(0, producer_id=1))
    end_transaction(log, 1, is_commit=False)
    close(log)
    index = segment_file(folder, 0, ".txnindex")
    index.rename(f"{index}.swap")

    assert read_transactions(str(folder), 0, 2).aborted == (AbortedRange(1, 0, 1),)
    assert offsets_of(rows_of(tmp_path, is_committed=True)) == []


def test_an_index_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / str(PARTITION)
    log = World().open_log(folder)
    append(log, transactional(0, producer_id=1))
    end_transaction(log, 1, is_commit=False)
    close(log)
    index, listings = segment_file(folder, 0, ".txnindex"), [0]

    def listing(folder: str) -> dict[str, int]:
        found = list_transaction_indexes(folder)
        listings[0] += 1
        if listings[0] == 1:
            index.rename(f"{index}.swap")
        return found

    monkeypatch.setattr(transactions, "list_transaction_indexes", listing)

    assert read_transactions(str(folder), 0, 2).aborted == (AbortedRange(1, 0, 1),)


def test_an_open_transaction_ends_the_committed_records(tmp_path: Path) -> None:
    log = World().open_log(tmp_path / str(PARTITION))
    append(log, batch(b"before"))
    append(log, transactional(0, producer_id=1))
    append(log, batch(b"after"))

    assert offsets_of(rows_of(tmp_path)) == [0, 1, 2]
    assert offsets_of(rows_of(tmp_path, is_committed=True)) == [0]


def test_a_transaction_that_ends_after_the_plan_stays_open_for_the_read(tmp_path: Path) -> None:
    log = World().open_log(tmp_path / str(PARTITION))
    append(log, batch(b"before"))
    append(log, transactional(0, producer_id=1))
    wanted = Selection(is_committed=True)
    splits = plan(str(tmp_path), wanted)
    end_transaction(log, 1, is_commit=False)

    assert offsets_of(rows_in(splits, wanted)) == [0]


def test_an_open_transaction_of_a_snapshot_is_open(tmp_path: Path) -> None:
    log = World().open_log(tmp_path / str(PARTITION), config_with(segment_bytes=300))
    append(log, transactional(0, producer_id=1))
    for _ in range(10):
        append(log, batch(b"other" * 20))
    close(log)
    folder = tmp_path / str(PARTITION)
    # The batch that opened the transaction cannot be read any more, so that only the snapshots name the transaction.
    first = min(folder.glob("*.log"))
    first.write_bytes(b"")

    assert read_transactions(str(folder), 0, 11).last_stable_offset == 0


def test_a_corrupt_snapshot_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    log = World().open_log(tmp_path / str(PARTITION), config_with(segment_bytes=300))
    append(log, batch(b"first"))
    append(log, transactional(0, producer_id=1))
    for _ in range(10):
        append(log, batch(b"other" * 20))
    close(log)
    for snapshot in (tmp_path / str(PARTITION)).glob("*.snapshot"):
        snapshot.write_bytes(b"corrupt")

    assert offsets_of(rows_of(tmp_path, is_committed=True)) == [0]


def test_an_abort_that_the_index_does_not_have_yet_is_found_in_the_log(tmp_path: Path) -> None:
    log = World().open_log(tmp_path / str(PARTITION))
    append(log, transactional(0, producer_id=1))
    end_transaction(log, 1, is_commit=False)
    for index in (tmp_path / str(PARTITION)).glob("*.txnindex"):
        index.write_bytes(index.read_bytes()[:-1])

    found = read_transactions(str(tmp_path / str(PARTITION)), 0, 2)

    assert found.aborted == (AbortedRange(1, 0, 1),)
    assert offsets_of(rows_of(tmp_path, is_committed=True)) == []


@pytest.mark.parametrize("seed", range(10))
def test_committed_rows_equal_those_of_a_list_of_transactions(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = World().open_log(
        tmp_path / str(PARTITION), config_with(segment_bytes=chance.choice([700, 3000]), index_interval_bytes=1)
    )
    sequences = dict.fromkeys(PRODUCERS, 0)
    pending: dict[int, list[int]] = {}
    committed: list[int] = []
    for _ in range(80):
        producer_id = chance.choice(PRODUCERS)
        offset = log.reader.log_end_offset
        action = chance.random()
        if action < 0.2:
            append(log, batch(b"plain"))
            committed.append(offset)
        elif action < 0.7:
            count = chance.randint(1, 3)
            append(log, transactional(sequences[producer_id], count, producer_id=producer_id))
            sequences[producer_id] += count
            pending.setdefault(producer_id, []).extend(range(offset, offset + count))
        elif producer_id in pending:
            is_commit = chance.random() < 0.5
            end_transaction(log, producer_id, is_commit=is_commit)
            ended = pending.pop(producer_id)
            committed += ended if is_commit else []
    stable = min((offsets[0] for offsets in pending.values()), default=log.reader.log_end_offset)
    if seed % 2:
        close(log)

    rows = rows_of(tmp_path, chance.choice([1, 500, 1 << 20]), is_committed=True)

    assert offsets_of(rows) == [offset for offset in sorted(committed) if offset < stable]
