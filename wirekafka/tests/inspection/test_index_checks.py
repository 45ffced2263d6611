"""Indexes that agree with their log, and each way in which an index can disagree."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from wirekafka.log.transaction_index import ENTRY as TRANSACTION_ENTRY
from wirekafka.tests.inspection.folders import (
    SEGMENTS,
    batch_at,
    look,
    make_data,
    only_damage,
    overwrite,
    sealed_again,
    segment_file,
    write_log,
)
from wirekafka.tests.log.logs import NOW_MS, World, append, close, config_with, end_transaction, transactional
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.control import EndMarker, build_end_marker

SEALED, ACTIVE = SEGMENTS
OFFSET_ENTRY, TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_data(tmp_path)


@pytest.mark.parametrize("timestamp", [NOW_MS, NOW_MS + 5])
def test_verify_of_a_time_index_may_or_may_not_count_an_emptied_batch(tmp_path: Path, timestamp: int) -> None:
    emptied = batch_at(2, 0, last_offset=3)
    struct.pack_into(">q", emptied, 35, NOW_MS + 5)
    log = write_log(tmp_path, batch_at(0), sealed_again(emptied))
    log.with_suffix(".timeindex").write_bytes(TIME_ENTRY.pack(timestamp, 3))
    log.with_suffix(".index").touch()
    write_log(tmp_path, batch_at(4), base_offset=4)
    assert not look(tmp_path)[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda offset, position: (offset, position + 1),
        lambda offset, position: (offset - 1, position),
        lambda offset, position: (offset, position - 1),
        lambda offset, position: (0, 0),
        lambda offset, position: (0x7FFF_0000, 0x7FFF_0000),
    ],
)
def test_verify_of_an_offset_index_that_disagrees_names_the_entry(
    folder: Path, change: Callable[[int, int], tuple[int, int]]
) -> None:
    index = segment_file(folder, SEALED, ".index")
    last = index.stat().st_size - OFFSET_ENTRY.size
    entry = OFFSET_ENTRY.unpack_from(index.read_bytes(), last)
    overwrite(index, last, OFFSET_ENTRY.pack(*change(*entry)))
    damage = only_damage(folder)
    assert (damage.path, damage.position) == (str(index), last)


def test_verify_of_an_offset_index_that_names_the_last_of_several_batches_is_sound(folder: Path) -> None:
    index = segment_file(folder, SEALED, ".index")
    offset, position = OFFSET_ENTRY.unpack_from(index.read_bytes(), 0)
    overwrite(index, 0, OFFSET_ENTRY.pack(offset + 2, position))
    assert not look(folder)[1]


def two_segments(root: Path, offset_entries: bytes, time_entries: bytes) -> Path:
    """Makes a sealed segment of the batches 0-1, 2-3 and 4-5 with these indexes, and an active one; returns the sealed log."""
    log = write_log(root, batch_at(0), batch_at(2), batch_at(4))
    log.with_suffix(".index").write_bytes(offset_entries)
    log.with_suffix(".timeindex").write_bytes(time_entries)
    write_log(root, batch_at(6), base_offset=6)
    return log


@pytest.mark.parametrize(("awaited", "is_damage"), [(5, False), (6, True), (4, True)])
def test_verify_of_the_last_offset_entry_of_a_sealed_segment_needs_a_batch_that_ends_there(
    tmp_path: Path, awaited: int, *, is_damage: bool
) -> None:
    size = len(batch_at(0))
    log = two_segments(tmp_path, OFFSET_ENTRY.pack(awaited, size), TIME_ENTRY.pack(NOW_MS, 1))
    if not is_damage:
        assert not look(tmp_path)[1]
        return
    damage = only_damage(tmp_path)
    assert (damage.path, damage.offset) == (str(log.with_suffix(".index")), awaited)


def test_verify_of_the_last_offset_entry_of_an_active_segment_may_be_ahead_of_the_batches(tmp_path: Path) -> None:
    log = write_log(tmp_path, batch_at(0))
    log.with_suffix(".index").write_bytes(OFFSET_ENTRY.pack(3, 0))
    assert not look(tmp_path)[1]


@pytest.mark.parametrize("second", [(NOW_MS, 3), (NOW_MS + 1, 1)], ids=["same timestamp", "same offset"])
def test_verify_of_a_time_index_whose_entries_do_not_ascend_names_the_second(tmp_path: Path, second: tuple[int, int]) -> None:
    log = two_segments(tmp_path, OFFSET_ENTRY.pack(3, len(batch_at(0))), TIME_ENTRY.pack(NOW_MS, 1) + TIME_ENTRY.pack(*second))
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position) == (str(log.with_suffix(".timeindex")), TIME_ENTRY.size)


@pytest.mark.parametrize(
    "change",
    [
        lambda timestamp, offset: (timestamp + 1, offset),
        lambda timestamp, offset: (timestamp - 1, offset),
        lambda timestamp, offset: (timestamp, offset - 1),
        lambda timestamp, offset: (0, 0),
        lambda timestamp, offset: (timestamp, 5000),
    ],
)
def test_verify_of_a_time_index_that_disagrees_names_the_entry(
    folder: Path, change: Callable[[int, int], tuple[int, int]]
) -> None:
    index = segment_file(folder, SEALED, ".timeindex")
    last = index.stat().st_size - TIME_ENTRY.size
    entry = TIME_ENTRY.unpack_from(index.read_bytes(), last)
    overwrite(index, last, TIME_ENTRY.pack(*change(*entry)))
    damage = only_damage(folder)
    assert (damage.path, damage.position) == (str(index), last)


def test_verify_of_a_time_index_whose_offsets_fall_names_the_entry(folder: Path) -> None:
    index = segment_file(folder, SEALED, ".timeindex")
    last = index.stat().st_size - TIME_ENTRY.size
    (timestamp, _), (_, former) = TIME_ENTRY.unpack_from(index.read_bytes(), last), TIME_ENTRY.unpack_from(index.read_bytes(), 0)
    overwrite(index, last, TIME_ENTRY.pack(timestamp, former))
    damage = only_damage(folder)
    assert (damage.path, damage.position) == (str(index), last)
    assert "do not ascend" in damage.reason


def test_verify_of_a_time_index_without_the_greatest_timestamp_is_damage_in_a_sealed_segment(folder: Path) -> None:
    for base_offset in reversed(SEGMENTS):
        index = segment_file(folder, base_offset, ".timeindex")
        index.write_bytes(index.read_bytes()[: -TIME_ENTRY.size])
    damage = only_damage(folder)
    assert damage.path == str(segment_file(folder, SEALED, ".timeindex"))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_verify_of_an_index_that_ends_in_an_entry_names_the_place(folder: Path, suffix: str) -> None:
    index = segment_file(folder, SEALED, suffix)
    size = index.stat().st_size
    index.write_bytes(index.read_bytes() + b"\x7f\x01\x02")
    damage = only_damage(folder)
    assert (damage.path, damage.position) == (str(index), size)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_verify_of_a_sealed_segment_without_an_index_is_damage(folder: Path, suffix: str) -> None:
    for base_offset in SEGMENTS:
        segment_file(folder, base_offset, suffix).unlink()
    assert only_damage(folder).path == str(segment_file(folder, SEALED, suffix))


def test_verify_of_an_index_without_its_log_is_damage(folder: Path) -> None:
    index = segment_file(folder, 1000, ".index")
    index.touch()
    assert only_damage(folder).path == str(index)


def transactional_log(root: Path) -> tuple[Path, int]:
    """Makes a log with an aborted transaction, offsets 0 and 1, whose marker is at 2; and its index of aborted transactions."""
    data = batch_at(0, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = build_batch(
        [Record(struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 3), timestamp=NOW_MS)],
        base_offset=2,
        producer_id=7,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
    )
    log = write_log(root, data, marker)
    log.with_suffix(".txnindex").write_bytes(TRANSACTION_ENTRY.pack(0, 7, 0, 2, 3))
    return log, len(data)


def test_verify_of_an_aborted_transaction_finds_it_sound(tmp_path: Path) -> None:
    transactional_log(tmp_path)
    verification, damages = look(tmp_path, reads_records=True)
    assert not damages
    assert verification.checked.index_entries == 1


@pytest.mark.parametrize("entry", [(0, 8, 0, 2, 3), (0, 7, 0, 1, 3), (0, 7, 3, 2, 3), (9, 7, 0, 2, 3)])
def test_verify_of_a_transaction_index_that_disagrees_names_the_entry(tmp_path: Path, entry: tuple[int, ...]) -> None:
    log, _ = transactional_log(tmp_path)
    index = log.with_suffix(".txnindex")
    index.write_bytes(TRANSACTION_ENTRY.pack(*entry))
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position) == (str(index), 0)


def marker_at(offset: int, *, is_commit: bool) -> bytes:
    batch = build_end_marker(EndMarker(is_commit, 3), producer_id=7, producer_epoch=0, timestamp=NOW_MS)
    struct.pack_into(">q", batch, 0, offset)
    return bytes(batch)


def data_at(offset: int) -> bytes:
    return bytes(batch_at(offset, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True))


def test_verify_of_a_transaction_index_that_names_a_committed_one_is_damage(tmp_path: Path) -> None:
    log = write_log(tmp_path, data_at(0), marker_at(2, is_commit=True))
    log.with_suffix(".txnindex").write_bytes(TRANSACTION_ENTRY.pack(0, 7, 0, 2, 3))
    assert only_damage(tmp_path).path == str(log.with_suffix(".txnindex"))


@pytest.mark.parametrize("entries", [None, b"", TRANSACTION_ENTRY.pack(0, 7, 0, 2, 3)])
def test_verify_of_a_segment_at_rest_misses_an_aborted_transaction(tmp_path: Path, entries: bytes | None) -> None:
    batches = data_at(0), marker_at(2, is_commit=False), data_at(3), marker_at(5, is_commit=False)
    log = write_log(tmp_path, *batches)
    index = log.with_suffix(".txnindex")
    if entries is not None:
        index.write_bytes(entries)
    write_log(tmp_path, batch_at(6), base_offset=6)
    damage = only_damage(tmp_path)
    assert damage.path == str(index)
    assert damage.offset == (5 if entries else 2)


def test_verify_of_what_a_log_wrote_misses_nothing(tmp_path: Path) -> None:
    log = World().open_log(tmp_path / "other-0", config_with(segment_bytes=700))
    for number in range(20):
        append(log, transactional(number))
        end_transaction(log, is_commit=bool(number % 3))
        end_transaction(log, is_commit=False)
    assert len(log.reader.segments) > 3
    close(log)
    verification, damages = look(tmp_path, reads_records=True)
    assert not damages
    assert verification.checked.index_entries >= 7


def test_verify_of_an_active_segment_lets_the_index_be_behind(tmp_path: Path) -> None:
    write_log(tmp_path, data_at(0), marker_at(2, is_commit=False))
    assert not look(tmp_path)[1]
