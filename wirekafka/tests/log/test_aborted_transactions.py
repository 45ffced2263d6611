"""Aborted transactions of one log, through rolls, retention and restarts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode
from wirekafka.log.log import Log
from wirekafka.log.storage import Bytes
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.testing.faulty_storage import FaultyStorage
from wirekafka.tests.log.logs import (
    World,
    append,
    batch,
    close,
    config_with,
    end_transaction,
    marker_refusal,
    read,
    records_of,
    transactional,
)

SMALL = config_with(segment_bytes=700, index_interval_bytes=0, segment_index_bytes=4096)


def open_log(path: Path) -> Log:
    return World().open_log(path)


def aborted(log: Log, from_offset: int = 0, to_offset: int | None = None) -> list[tuple[int, int, int, int]]:
    end = log.reader.log_end_offset if to_offset is None else to_offset
    return [tuple(found)[1:] for found in log.reader.aborted_transactions(from_offset, end)]


# What is aborted


def abort_many(log: Log, count: int) -> list[AbortedTransaction]:
    """Appends transactions of one record each, every second one aborted; returns the aborted ones."""
    expected = []
    for number in range(count):
        first_offset = append(log, transactional(number)).base_offset
        is_commit = bool(number % 2)
        last_offset = end_transaction(log, is_commit=is_commit).last_offset
        if not is_commit:
            expected.append(AbortedTransaction(0, 7, first_offset, last_offset, last_offset + 1))
    return expected


def index_files(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("*.txnindex"))


def test_index_of_aborted_transactions_is_on_the_disk_once_a_segment_before_the_recovery_point_is_sealed(tmp_path: Path) -> None:
    """No start reads such a segment again, so an index that a power failure has removed would stay lost."""
    storage = FaultyStorage()
    log = World(storage=storage).open_log(tmp_path)
    abort_many(log, 1)
    log.flusher.flush()
    log.roll()
    assert log.flusher.recovery_point == log.reader.log_end_offset
    (index,) = index_files(tmp_path)
    size_bytes = (tmp_path / index).stat().st_size
    assert size_bytes > 0

    storage.lose_power(str(tmp_path))

    assert (tmp_path / index).stat().st_size == size_bytes


class StorageWithoutIndexes(FaultyStorage):
    """A disk that refuses writes to indexes of aborted transactions for a time."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False

    def write(self, fd: int, data: Bytes, position: int) -> None:
        if self.refuses and os.readlink(f"/proc/self/fd/{fd}").endswith(".txnindex"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data, position)


def test_index_that_is_written_as_late_as_the_seal_is_on_the_disk_too(tmp_path: Path) -> None:
    storage = StorageWithoutIndexes()
    log = World(storage=storage).open_log(tmp_path)
    storage.refuses = True
    abort_many(log, 1)
    storage.refuses = False
    log.flusher.flush()

    log.roll()
    storage.lose_power(str(tmp_path))

    (index,) = index_files(tmp_path)
    assert (tmp_path / index).stat().st_size > 0


def test_aborted_transactions_are_in_the_index_of_the_markers_segment(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)

    assert len(log.reader.segments) > 3
    assert log.reader.aborted_transactions(0, log.reader.log_end_offset) == expected
    for number, segment in enumerate(log.reader.segments):
        following = log.reader.segments.items[number + 1 : number + 2]
        end_offset = following[0].base_offset if following else log.reader.log_end_offset
        assert all(segment.base_offset <= entry.last_offset < end_offset for entry in segment.transaction_index)
    assert len(index_files(tmp_path)) == sum(bool(segment.transaction_index.count) for segment in log.reader.segments)


def test_aborted_transactions_of_a_range_are_those_that_touch_it(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)

    for start in range(0, log.reader.log_end_offset, 3):
        for end in range(start, log.reader.log_end_offset, 5):
            found = log.reader.aborted_transactions(start, end)
            assert set(found) == {each for each in expected if each.last_offset >= start and each.first_offset < end}


def test_aborted_in_a_read_covers_what_the_read_gives(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)

    for start in range(log.reader.log_end_offset):
        data = read(log, start, 200)
        given = records_of(data)[-1].offset
        found = log.reader.aborted_in_read(start, len(data), log.reader.log_end_offset)
        needed = [each for each in expected if each.last_offset >= start and each.first_offset <= given]
        assert found[: len(needed)] == needed
        assert len(found) <= len(needed) + 2


def test_transaction_that_begins_segments_before_its_marker_is_found_from_the_beginning(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    append(log, transactional(0, producer_id=1))
    for number in range(20):
        append(log, b"%d" % number)
    end_transaction(log, 1, is_commit=False)
    assert len(log.reader.segments) > 2

    assert aborted(log, 0, 1) == [(1, 0, 21, 22)]
    assert [each.producer_id for each in log.reader.aborted_in_read(0, 10, log.reader.last_stable_offset)] == [1]


def test_retention_takes_the_index_with_the_segment(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, SMALL)
    abort_many(log, 20)
    before = index_files(tmp_path)

    log.retention.delete_records(log.reader.segments.items[2].base_offset)
    world.pass_delays()
    world.pass_delays()

    assert index_files(tmp_path) == [name for name in before if int(name[:20]) >= log.reader.log_start_offset]


def test_truncation_cuts_the_index(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)

    log.truncate_to(expected[4].last_offset)
    log.reader.high_watermark = log.reader.log_end_offset

    assert log.reader.aborted_transactions(0, log.reader.log_end_offset) == expected[:4]
    assert log.reader.last_stable_offset == expected[4].first_offset
    end_transaction(log, is_commit=False)
    assert log.reader.aborted_transactions(0, log.reader.log_end_offset) == expected[:5]


# Coming back


def reopen(log: Log, path: Path, *, is_clean: bool, recovery_point: int = 0) -> Log:
    config = log.reader.config
    close(log)
    return World().open_log(path, config, is_clean=is_clean, recovery_point=recovery_point)


@pytest.mark.parametrize("is_clean", [True, False])
def test_open_transactions_come_back(tmp_path: Path, is_clean: bool) -> None:
    log = World().open_log(tmp_path, SMALL)
    append(log, transactional(0, producer_id=1))
    append(log, transactional(0, producer_id=2))
    end_transaction(log, 1, coordinator_epoch=9)
    for _ in range(20):
        append(log, b"x")

    log = reopen(log, tmp_path, is_clean=is_clean)

    assert log.reader.last_stable_offset == 1
    assert log.reader.has_open_transaction(2, 0)
    assert not log.reader.has_open_transaction(1, 0)
    end_transaction(log, 2, is_commit=False)
    assert aborted(log) == [(2, 1, 23, 24)]
    assert marker_refusal(log, 0, producer_id=1, coordinator_epoch=8) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize("is_clean", [True, False])
def test_aborted_transactions_come_back(tmp_path: Path, is_clean: bool) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)

    log = reopen(log, tmp_path, is_clean=is_clean)

    assert log.reader.aborted_transactions(0, log.reader.log_end_offset) == expected


def test_recovery_makes_the_indexes_that_it_finds_missing(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)
    files = {name: (tmp_path / name).read_bytes() for name in index_files(tmp_path)}
    close(log)
    for name in files:
        (tmp_path / name).unlink()

    log = World().open_log(tmp_path, SMALL)

    assert log.reader.aborted_transactions(0, log.reader.log_end_offset) == expected
    assert {name: (tmp_path / name).read_bytes() for name in index_files(tmp_path)} == files


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("number", [0, 2, -1])
def test_start_makes_an_index_anew_that_cannot_be_right(tmp_path: Path, is_clean: bool, number: int) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)
    end_offset = log.reader.log_end_offset
    name = index_files(tmp_path)[number]
    data = (tmp_path / name).read_bytes()
    close(log)
    (tmp_path / name).write_bytes(data[:-1])

    log = World().open_log(tmp_path, SMALL, is_clean=is_clean, recovery_point=end_offset)

    assert (tmp_path / name).read_bytes() == data
    assert log.reader.aborted_transactions(0, log.reader.log_end_offset) == expected
    assert append(log, transactional(20)).base_offset == end_offset


def test_index_made_anew_knows_transactions_that_began_before_its_segment(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    append(log, transactional(0, producer_id=1))
    for number in range(20):
        append(log, b"%d" % number)
    end_transaction(log, 1, is_commit=False)
    for number in range(20):
        append(log, b"%d" % number)
    [name] = index_files(tmp_path)
    data = (tmp_path / name).read_bytes()
    end_offset = log.reader.log_end_offset
    close(log)
    (tmp_path / name).write_bytes(b"x")

    log = World().open_log(tmp_path, SMALL, is_clean=True, recovery_point=end_offset)

    assert (tmp_path / name).read_bytes() == data
    assert aborted(log) == [(1, 0, 21, 22)]


def test_recovery_forgets_an_abort_whose_marker_was_torn_off(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, 3))
    size = log.reader.segments.active.size
    end_transaction(log, is_commit=False)
    log_name = log.reader.segments.active.log_name
    log.reader.close()
    with (tmp_path / log_name).open("r+b") as file:
        file.truncate(size + 20)

    log = open_log(tmp_path)

    assert (log.reader.log_end_offset, log.reader.last_stable_offset, aborted(log), index_files(tmp_path)) == (3, 0, [], [])


def test_marker_that_compaction_emptied_ends_nothing_in_replay(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0))
    emptied = batch(producer_id=7, producer_epoch=0, is_transactional=True, is_control=True, base_offset=1)
    log_name = log.reader.segments.active.log_name
    log.reader.close()
    with (tmp_path / log_name).open("ab") as file:
        file.write(emptied)

    log = open_log(tmp_path)

    assert (log.reader.log_end_offset, log.reader.last_stable_offset) == (2, 0)


def test_start_forgets_transactions_whose_records_are_all_gone(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, SMALL)
    append(log, transactional(0))
    for number in range(5):
        append(log, b"%d" % number)
    log.roll()
    log.retention.delete_records(log.reader.log_end_offset)
    world.pass_delays()
    world.pass_delays()
    start_offset = log.reader.log_start_offset
    close(log)

    log = World().open_log(tmp_path, SMALL, is_clean=True, log_start_offset=start_offset, recovery_point=start_offset)

    assert (log.reader.log_start_offset, log.reader.last_stable_offset, log.reader.high_watermark) == (6, 6, 6)
    assert not log.reader.has_open_transaction(7, 0)
    append(log, transactional(1))
    assert (log.reader.last_stable_offset, log.reader.log_end_offset) == (6, 7)
