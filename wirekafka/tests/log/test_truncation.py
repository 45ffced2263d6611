"""Truncation as a follower does it, with a crash at every step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from wirekafka.errors import KafkaError
from wirekafka.log.epochs import EpochStart, LeaderEpochs
from wirekafka.log.log import Log
from wirekafka.log.producer_state import Ending
from wirekafka.log.storage import FileRegion
from wirekafka.pending import finish
from wirekafka.testing.faulty_storage import FaultyStorage
from wirekafka.testing.remembering_storage import Fate, RememberingStorage
from wirekafka.tests.log.logs import (
    NOW_MS,
    World,
    all_records,
    append,
    batch,
    check_indexes,
    close,
    config_with,
    end_transaction,
    idempotent,
    read,
    records_of,
    transactional,
)
from wirekafka.wire.batch import BatchHeader, write_offsets
from wirekafka.wire.control import EndMarker

CONFIG = config_with(segment_bytes=300, index_interval_bytes=100)
EPOCHS = (EpochStart(0, 0), EpochStart(1, 4), EpochStart(2, 8))
"""The leader epochs of `grown`."""


class RefusingStorage(FaultyStorage):
    """A disk that refuses one call."""

    def _change(self) -> None:
        self.calls += 1
        if self.calls == self.crash_at:
            raise OSError(28, "No space left on device")


def grown(log: Log, count: int = 12) -> None:
    for number in range(count):
        append(log, idempotent(number), leader_epoch=number // 4)


def test_truncation_within_the_batch_of_the_log_start_offset_keeps_that_offset(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a", b"b", b"c"))
    log.retention.delete_records(2)

    log.truncate_to(2)

    assert (log.reader.log_start_offset, log.reader.high_watermark, log.reader.log_end_offset) == (2, 2, 2)
    assert append(log, b"d").base_offset == 2


def test_truncation_removes_the_snapshots_of_producers_behind_the_new_end(tmp_path: Path) -> None:
    """Otherwise a snapshot at the former end would be used once the log has grown past it with other records."""
    log = World().open_log(tmp_path, CONFIG)
    grown(log)
    close(log)
    log = World().open_log(tmp_path, CONFIG, is_clean=True)
    assert any(int(name[:20]) == 12 for name in os.listdir(tmp_path) if name.endswith(".snapshot"))

    log.truncate_to(5)

    assert all(int(name[:20]) <= 5 for name in os.listdir(tmp_path) if name.endswith(".snapshot"))


def test_truncation_stores_the_recovery_point_before_it_cuts(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, CONFIG)
    grown(log)
    log.flusher.flush()
    seen: list[tuple[int, int]] = []
    log.reader.services.store_offsets = lambda stored: seen.append((log.flusher.recovery_point, len(log.reader.segments)))
    count = len(log.reader.segments)

    log.truncate_to(5)

    assert seen == [(5, count)]


def test_truncation_that_cannot_store_the_recovery_point_changes_nothing(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, CONFIG)
    grown(log)
    log.flusher.flush()

    def fail(stored: object) -> None:
        raise OSError(28, "No space left on device")

    log.reader.services.store_offsets = fail
    with pytest.raises(KafkaError):
        log.truncate_to(5)

    assert [record.offset for record in all_records(log)] == list(range(12))


def test_truncation_that_the_disk_refuses_at_any_call_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    for refused in range(1, 100):
        path = tmp_path / str(refused)
        storage = RefusingStorage()
        log = World(storage=storage).open_log(path, CONFIG)
        grown(log)
        storage.calls, storage.crash_at = 0, refused
        try:
            log.truncate_to(5)
        except KafkaError:
            assert 5 <= log.reader.log_end_offset <= 12
            kept = tuple(entry for entry in EPOCHS if entry.start_offset < log.reader.log_end_offset)
            assert log.reader.epochs.entries == kept
            log.truncate_to(5)
        assert log.reader.log_end_offset == 5
        if storage.calls < refused:
            break
        if log.reader.folder.ledger.has_failed:
            continue
        append(log, idempotent(5), leader_epoch=9)
        assert [record.offset for record in all_records(log)] == list(range(6))
        check_indexes(log)
    assert refused > 5


def test_leader_epochs_that_a_truncation_could_not_write_are_written_when_it_is_repeated(tmp_path: Path) -> None:
    storage = RefusingStorage()
    log = World(storage=storage).open_log(tmp_path, CONFIG)
    grown(log)
    log.begin_leader_epoch(9)
    storage.calls, storage.crash_at = 0, 1
    with pytest.raises(KafkaError):
        log.truncate_to(12)

    log.truncate_to(12)

    assert LeaderEpochs.read((tmp_path / "leader-epoch-checkpoint").read_bytes()).entries == EPOCHS


@pytest.mark.parametrize(("contents", "names"), [(Fate.KEPT, Fate.KEPT), (Fate.LOST, Fate.LOST), (Fate.LOST, Fate.KEPT)])
def test_crash_at_any_call_of_a_truncation_leaves_the_beginning_of_the_log(tmp_path: Path, contents: Fate, names: Fate) -> None:
    storage = RememberingStorage(tmp_path)
    log = World(storage=storage).open_log(tmp_path / "topic-0", CONFIG)
    log.reader.folder.ledger.place.written += 1
    grown(log)
    log.flusher.flush()
    stored = [(0, 12)]
    log.reader.services.store_offsets = lambda each: stored.append((len(storage.operations), log.flusher.recovery_point))
    began_at = len(storage.operations)

    log.truncate_to(5)

    for crash_at in range(began_at, len(storage.operations) + 1):
        image = storage.lose_power(crash_at, contents=contents, names=names)
        recovery_point = max(point for point in stored if point[0] <= crash_at)[1]
        with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
            image.put(Path(top) / "disk")
            again = World().open_log(
                Path(top) / "disk" / "topic-0", CONFIG, recovery_point=recovery_point, has_lost_power=contents is Fate.LOST
            )
            assert 5 <= again.reader.log_end_offset <= 12
            assert [record.offset for record in all_records(again)] == list(range(again.reader.log_end_offset))
            assert again.reader.epochs.entries[-1].start_offset < again.reader.log_end_offset


@pytest.mark.parametrize("offset", [12, 50])
def test_truncation_at_the_end_drops_only_leader_epochs_that_have_no_records(tmp_path: Path, offset: int) -> None:
    """A leader that has lost its leadership before its first append knows an epoch that no other replica knows."""
    log = World().open_log(tmp_path, CONFIG)
    grown(log)
    log.reader.epochs.assign(7, 12)

    log.truncate_to(offset)

    assert [entry.epoch for entry in log.reader.epochs.entries] == [0, 1, 2]
    assert log.reader.log_end_offset == 12
    assert b"7 12" not in (tmp_path / "leader-epoch-checkpoint").read_bytes()


def test_truncation_cuts_transactions_and_producers(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, CONFIG)
    append(log, transactional(0))
    end_transaction(log, is_commit=False)
    append(log, transactional(1))
    end_transaction(log, is_commit=False)

    log.truncate_to(3)

    assert [entry.last_offset for entry in log.reader.aborted_transactions(0, 9)] == [1]
    assert log.reader.producers.open_transactions == {7: 2}
    assert log.reader.last_stable_offset == 2


def test_transaction_whose_marker_is_not_committed_stays_unstable_after_a_truncation(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    log.append(transactional(0), leader_epoch=0, now_ms=NOW_MS)
    log.append_marker(7, 0, Ending(EndMarker(True, 0), 1), leader_epoch=0, now_ms=NOW_MS)
    log.append(idempotent(0, producer_id=8), leader_epoch=0, now_ms=NOW_MS)
    log.reader.advance_high_watermark(1)

    log.truncate_to(2)

    assert log.reader.last_stable_offset == 0
    log.reader.advance_high_watermark(2)
    assert log.reader.last_stable_offset == 2


def test_truncation_below_the_log_start_offset_moves_it_back(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    grown(log, 6)
    log.retention.delete_records(4)
    seen: list[tuple[int, int, int]] = []
    log.reader.services.store_offsets = lambda _: seen.append(
        (log.reader.log_start_offset, log.reader.high_watermark, log.reader.log_end_offset)
    )

    log.truncate_to(3)

    assert seen == [(3, 3, 6)]
    assert (log.reader.log_start_offset, log.reader.high_watermark, log.reader.log_end_offset) == (3, 3, 3)


def test_truncation_before_the_first_segment_leaves_an_empty_log_at_that_offset(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, CONFIG)
    grown(log)
    log.retention.delete_records(9)
    assert log.reader.segments.items[0].base_offset > 1

    log.truncate_to(1)

    assert (log.reader.log_start_offset, log.reader.high_watermark, log.reader.log_end_offset) == (1, 1, 1)
    assert append(log, b"new").base_offset == 1


@pytest.mark.parametrize("has_restart", [False, True])
def test_truncation_into_a_gap_of_compaction_ends_the_log_there(tmp_path: Path, has_restart: bool) -> None:
    """A log that ended before the gap could never reach the leader's end, which may be the end of the gap."""
    log = World().open_log(tmp_path)
    for offset in (0, 1, 9):
        data = bytearray(batch(b"v"))
        write_offsets(data, 0, BatchHeader(data), offset, 0)
        finish(log.append_as_follower(memoryview(data), leader_epoch=0))

    log.truncate_to(5)

    assert log.reader.log_end_offset == 5
    log.flusher.flush()
    if has_restart:
        recovery_point = log.flusher.recovery_point
        log.reader.close()
        log = World().open_log(tmp_path, recovery_point=recovery_point)
        assert log.reader.log_end_offset == 5
    assert append(log, b"new").base_offset == 5
    assert [record.offset for record in all_records(log)] == [0, 1, 5]


def test_region_that_is_being_sent_ends_where_the_log_was_truncated(tmp_path: Path) -> None:
    """The driver ends the connection if a region is shorter than its response has announced."""
    log = World().open_log(tmp_path)
    grown(log, 4)
    whole = read(log, 0)
    region = log.reader.read(0, max_bytes=1 << 20, end_offset=4, min_one_batch=True)
    assert isinstance(region, FileRegion)

    log.truncate_to(2)

    assert region.read() == whole[: len(whole) // 2]


def test_region_of_a_removed_segment_keeps_its_bytes(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, CONFIG)
    grown(log)
    region = log.reader.read(10, max_bytes=1 << 20, end_offset=12, min_one_batch=True)
    assert isinstance(region, FileRegion)
    before = region.read()

    log.truncate_to(2)
    world.pass_delays()

    assert region.read() == before


def test_remembered_position_of_a_reader_is_forgotten_by_a_truncation(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    grown(log, 4)
    read(log, 4)

    log.truncate_to(2)
    append(log, batch(b"a", b"b", b"c" * 100))

    assert [record.offset for record in records_of(read(log, 4))][-1] == 4


def test_compaction_that_began_before_a_truncation_changes_nothing(tmp_path: Path) -> None:
    """It may have dropped records that only truncated records superseded."""
    log = World().open_log(tmp_path)
    append(log, b"a")
    log.roll()
    append(log, b"b")
    began_at = log.reader.truncation_count
    old = log.reader.segments.items[:1]

    log.truncate_to(1)

    assert not log.replace_segments(old, old[0], began_at)


# Truncation of the whole log


@pytest.mark.parametrize("offset", [0, 2, 4, 5, 12, 1000])
def test_log_that_starts_again_has_no_records_epochs_and_producers(tmp_path: Path, offset: int) -> None:
    world = World()
    log = world.open_log(tmp_path, CONFIG)
    grown(log)
    append(log, transactional(0, producer_id=8))
    log.retention.delete_records(4)
    world.pass_delays()

    log.truncate_fully_and_start_at(offset)

    reader = log.reader
    assert (reader.log_start_offset, reader.last_stable_offset, reader.high_watermark, reader.log_end_offset) == (offset,) * 4
    assert (reader.size_bytes, len(reader.producers), reader.epochs.entries) == (0, 0, ())
    world.pass_delays()
    world.pass_delays()
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".log", ".snapshot")] == [f"{offset:020d}.log"]
    assert append(log, b"new").base_offset == offset
    close(log)
    assert [record.offset for record in all_records(world.open_log(tmp_path, CONFIG, is_clean=True))] == [offset]


@pytest.mark.parametrize("offset", [0, 4, 9, 1000])
@pytest.mark.parametrize(
    ("contents", "names"),
    [(Fate.KEPT, Fate.KEPT), (Fate.LOST, Fate.LOST), (Fate.LOST, Fate.KEPT), (Fate.REORDERED, Fate.REORDERED)],
)
def test_crash_at_any_call_of_a_full_truncation_leaves_the_beginning_of_the_log_or_none(
    tmp_path: Path, offset: int, contents: Fate, names: Fate
) -> None:
    storage = RememberingStorage(tmp_path)
    world = World(storage=storage)
    log = world.open_log(tmp_path / "topic-0", CONFIG)
    log.reader.folder.ledger.place.written += 1
    grown(log)
    log.retention.delete_records(5)
    world.pass_delays()
    world.pass_delays()
    log.flusher.flush()
    first_offset = log.reader.segments.items[0].base_offset
    assert 0 < first_offset <= 5
    stored = [(0, log.flusher.recovery_point, 5)]

    def store(_: object) -> None:
        stored.append((len(storage.operations), log.flusher.recovery_point, log.reader.log_start_offset))

    log.reader.services.store_offsets = store
    began_at = len(storage.operations)

    log.truncate_fully_and_start_at(offset)

    for crash_at in range(began_at, len(storage.operations) + 1):
        image = storage.lose_power(crash_at, contents=contents, names=names)
        _, recovery_point, log_start_offset = max(each for each in stored if each[0] <= crash_at)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
            image.put(Path(top) / "disk")
            again = World().open_log(
                Path(top) / "disk" / "topic-0",
                CONFIG,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                has_lost_power=contents is not Fate.KEPT,
            )
            start_offset, end_offset = again.reader.log_start_offset, again.reader.log_end_offset
            if start_offset < end_offset:
                assert first_offset <= start_offset <= 5
                assert [record.offset for record in all_records(again)] == list(range(start_offset, end_offset))
            if crash_at == len(storage.operations) and contents is Fate.KEPT:
                assert start_offset == end_offset == offset
            assert append(again, b"new").base_offset == end_offset


@pytest.mark.parametrize("offset", [0, 9, 1000])
def test_full_truncation_that_the_disk_refuses_at_any_call_can_be_repeated(tmp_path: Path, offset: int) -> None:
    for refused in range(1, 100):
        storage = RefusingStorage()
        log = World(storage=storage).open_log(tmp_path / str(refused), CONFIG)
        grown(log)
        log.retention.delete_records(5)
        storage.calls, storage.crash_at = 0, refused
        try:
            log.truncate_fully_and_start_at(offset)
        except KafkaError:
            assert log.reader.log_end_offset <= 12
            if log.reader.folder.ledger.has_failed:
                continue
            log.truncate_fully_and_start_at(offset)
        if storage.calls < refused:
            break
        assert append(log, b"new").base_offset == offset
        close(log)
        again = World().open_log(tmp_path / str(refused), CONFIG, is_clean=True, log_start_offset=offset)
        assert [record.offset for record in all_records(again)] == [offset]
    assert refused > 5


def test_old_batches_that_a_power_loss_brings_back_after_newer_ones_are_cut(tmp_path: Path) -> None:
    """The cut of a truncation may be lost, although a part of the records that were appended after it is on the disk."""
    log = World().open_log(tmp_path)
    append(log, batch(b"a"), leader_epoch=1)
    append(log, batch(b"b"), leader_epoch=1)
    append(log, batch(b"c"), leader_epoch=1)
    file = next(tmp_path.glob("*.log"))
    old = file.read_bytes()
    log.truncate_to(1)
    append(log, batch(b"B"), leader_epoch=2)
    log.reader.close()
    new = file.read_bytes()
    file.write_bytes(new + old[len(new) :])

    again = World().open_log(tmp_path, recovery_point=1, has_lost_power=True)

    assert [record.value for record in all_records(again)] == [b"a", b"B"]


# Regions that connections still send


def region_of(log: Log, offset: int) -> FileRegion:
    region = log.reader.read(offset, max_bytes=1, end_offset=log.reader.log_end_offset, min_one_batch=True)
    assert isinstance(region, FileRegion)
    return region


@pytest.mark.parametrize("is_open", [True, False])
def test_region_that_a_truncation_removes_is_cut_and_no_other_region(tmp_path: Path, is_open: bool) -> None:
    log = World().open_log(tmp_path)
    for value in (b"a", b"b"):
        append(log, batch(value))
    kept, removed = region_of(log, 0), region_of(log, 1)
    if not is_open:  # the pool may close the file of any segment
        log.reader.segments.active.close()

    log.truncate_to(1)
    append(log, batch(b"c"))

    assert (kept.is_cut, removed.is_cut, region_of(log, 1).is_cut) == (False, True, False)
    assert len(removed.read()) == len(removed), "the bytes of other records are there"


def test_region_of_a_log_that_starts_again_is_cut(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a"))
    region = region_of(log, 0)
    log.truncate_fully_and_start_at(0)
    append(log, batch(b"b"))
    assert region.is_cut
