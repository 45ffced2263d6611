"""Small batches that are read at once give the rows that they give one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from wirekafka.inspection.files import DamageError
from wirekafka.pipelines.log_source import reading, runs
from wirekafka.pipelines.log_source.columns import Limits
from wirekafka.pipelines.log_source.plan import Selection, plan
from wirekafka.pipelines.log_source.reading import Reading, read_split
from wirekafka.tests.inspection.folders import sealed_again, write_log
from wirekafka.tests.log.logs import NOW_MS, World, append, batch, config_with, end_transaction, transactional
from wirekafka.tests.pipelines.log_source.rows import Row, offsets_of, rows_of
from wirekafka.wire.batch import CRC_OFFSET, HEADER_SIZE, BatchHeader, Record, build_batch
from wirekafka.wire.compression import Compression

COUNT = 200


def small_batches(chance: random.Random, *, most_records: int = 3, **fields: Any) -> list[bytearray]:
    """Returns batches with records of random sizes; every tenth offset is missing."""
    batches, offset = [], 0
    for number in range(COUNT):
        records = [
            Record(
                chance.choice([None, b"", b"key %d" % number]),
                chance.choice([None, bytes(chance.randrange(300))]),
                chance.choice([(), ((b"name", b"value"), (b"other", None))]),
                chance.choice([-1, NOW_MS + number]),
            )
            for _ in range(chance.randint(1, most_records))
        ]
        batches.append(build_batch(records, base_offset=offset, **fields))
        offset += len(records) + (number % 10 == 0)
    return batches


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], list[Row]]], list[Row]]:
    """Returns a function that reads without runs."""

    def read(rows: Callable[[], list[Row]]) -> list[Row]:
        with monkeypatch.context() as patch:
            patch.setattr(reading, "find_run", lambda *arguments: None)
            return rows()

    return read


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list of the numbers of records in the runs that are read."""
    found: list[int] = []

    def find_run(*arguments: Any) -> runs.Passed | None:
        run = runs.find_run(*arguments)
        if run is not None:
            found.append(0 if run.run is None else len(run.run.starts))
        return run

    monkeypatch.setattr(reading, "find_run", find_run)
    return found


OneByOne = Callable[[Callable[[], list[Row]]], list[Row]]


@pytest.mark.parametrize("seed", range(6))
def test_runs_have_the_rows_of_their_batches(tmp_path: Path, one_by_one: OneByOne, passed: list[int], seed: int) -> None:
    chance = random.Random(seed)
    batches = small_batches(chance, most_records=chance.choice([1, 3, 40]), producer_id=7, producer_epoch=1, base_sequence=5)
    for number in chance.sample(range(COUNT), 2):  # runs end before these
        batches[number] = build_batch([Record(b"large", bytes(20_000))], base_offset=BatchHeader(batches[number]).base_offset)
    write_log(tmp_path, *batches)
    last = rows_of(tmp_path)[-1]["offset"]

    within = {"starting_offset": last // 3, "ending_offset": last - 10}
    for wanted in ({}, within, {"starting_timestamp": NOW_MS + COUNT // 2}):
        rows = rows_of(tmp_path, **wanted)
        assert rows
        assert rows == one_by_one(partial(rows_of, tmp_path, **wanted))
    assert sum(passed) > COUNT


def test_runs_of_compressed_batches_are_read_one_by_one(tmp_path: Path, passed: list[int]) -> None:
    write_log(tmp_path, *small_batches(random.Random(1), compression=Compression.GZIP))

    assert len(rows_of(tmp_path)) >= COUNT
    assert passed == []


def test_runs_without_aborted_records_and_markers_are_read_if_only_committed_ones_are_wanted(
    tmp_path: Path, one_by_one: OneByOne, passed: list[int]
) -> None:
    log = World().open_log(tmp_path / "topic-0", config_with(segment_bytes=1 << 20))
    for number in range(100):
        append(log, batch(b"plain %d" % number))
        append(log, transactional(number, producer_id=1))
        end_transaction(log, 1, is_commit=number % 3 != 0)

    rows = rows_of(tmp_path, is_committed=True)

    assert len(rows) == 100 + 66
    assert rows == one_by_one(lambda: rows_of(tmp_path, is_committed=True))
    assert sum(passed) > 100
    assert len(rows_of(tmp_path)) == 300


@pytest.mark.parametrize("number", [0, 31, 150, COUNT - 2])
@pytest.mark.parametrize("at", [CRC_OFFSET, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 3, HEADER_SIZE + 4])
def test_damage_in_a_run_is_that_of_its_batch(tmp_path: Path, one_by_one: OneByOne, number: int, at: int) -> None:
    batches = small_batches(random.Random(2))
    data = build_batch([Record(b"key", b"value")], base_offset=BatchHeader(batches[number]).base_offset)
    data[at] ^= 0x41
    batches[number] = data if at == CRC_OFFSET else sealed_again(data)
    write_log(tmp_path, *batches)

    def damage() -> list[Row]:
        with pytest.raises(DamageError) as caught:
            rows_of(tmp_path)
        return [{"damage": str(caught.value)}]

    found = damage()

    assert f"at byte {sum(map(len, batches[:number]))}, offset " in found[0]["damage"]
    assert found == one_by_one(damage)


def test_a_wrong_checksum_in_a_run_is_read_if_checksums_do_not_count(tmp_path: Path, passed: list[int]) -> None:
    batches = small_batches(random.Random(3), most_records=1)
    batches[100][CRC_OFFSET] ^= 1
    write_log(tmp_path, *batches)
    (split,) = plan(str(tmp_path), Selection())

    assert sum(columns.num_rows for columns in read_split(split, Reading(has_crc_checks=False))) == COUNT
    assert sum(passed) == COUNT - 1, "the first batch is read before there is a chunk"


def test_runs_end_at_the_limits_of_an_arrow_batch(tmp_path: Path, passed: list[int]) -> None:
    write_log(tmp_path, *small_batches(random.Random(4), most_records=1))
    (split,) = plan(str(tmp_path), Selection())

    sizes = [columns.num_rows for columns in read_split(split, Reading(limits=Limits(most_records=64)))]

    assert sum(sizes) == COUNT
    assert max(sizes) <= 64
    assert max(passed) == 64


def test_a_run_before_the_first_wanted_offset_has_no_rows(tmp_path: Path) -> None:
    write_log(tmp_path, *small_batches(random.Random(5), most_records=1))

    assert offsets_of(rows_of(tmp_path, starting_offset=212)) == list(range(212, 220))


def test_batches_that_are_read_by_themselves_are_not_followed_again_and_again() -> None:
    compressed = build_batch([Record(b"k", b"v")], base_offset=0, compression=Compression.GZIP)
    chunk, looked_at = bytes(compressed) * 1000, 0
    for number in range(1000):
        positions, _ = runs._follow(chunk, number * len(compressed), len(chunk))
        looked_at += len(positions)
    assert looked_at == 0
