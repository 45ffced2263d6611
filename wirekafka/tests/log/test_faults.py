"""Faults of a disk: no acknowledged record is lost, and the log continues."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.log import Log
from wirekafka.log.storage import Bytes
from wirekafka.testing.faulty_storage import Crash, FaultyStorage
from wirekafka.tests.log.logs import (
    NOW_MS,
    World,
    all_records,
    append,
    batch,
    check_indexes,
    close,
    config_with,
    fill,
    idempotent,
    read,
    records_of,
)

CONFIG = config_with(segment_bytes=700, index_interval_bytes=200, flush_messages=4)


class Story:
    """A history of a log, and the records that it has acknowledged."""

    def __init__(self, storage: FaultyStorage, path: Path) -> None:
        self.world = World(storage=storage)
        self.path = path
        self.start_offset = 0
        self.end_offset = 0
        self.flushed_offset = 0
        self.sequence = 0
        self.log: Log | None = None

    def live(self) -> None:
        self.log = log = self.world.open_log(self.path, CONFIG)
        self._append(log, 11)
        log.retention.delete_records(5)
        self.start_offset = log.reader.log_start_offset
        self._append(log, 4)
        log.roll()
        self._append(log, 2, leader_epoch=1)
        log.truncate_to(15)
        self.end_offset = log.reader.log_end_offset
        self.sequence = 15
        self._append(log, 3, leader_epoch=2)
        self.world.pass_delays()
        close(log)

    def _append(self, log: Log, count: int, leader_epoch: int = 0) -> None:
        for _ in range(count):
            append(log, idempotent(self.sequence), leader_epoch=leader_epoch)
            self.sequence += 1
            self.end_offset = log.reader.log_end_offset
            self.flushed_offset = log.flusher.recovery_point


def crashes(tmp_path: Path, *, torn_bytes: int, step: int = 1) -> Iterator[tuple[Story, FaultyStorage]]:
    """The same history, ended by a crash at each of its calls in turn."""
    for crash_at in range(1, 1000, step):
        path = tmp_path / str(crash_at)
        storage = FaultyStorage(crash_at=crash_at, torn_bytes=torn_bytes)
        story = Story(storage, path)
        try:
            story.live()
        except Crash:
            yield story, storage
            shutil.rmtree(path, ignore_errors=True)
        else:
            assert crash_at > 50
            return


@pytest.mark.parametrize("torn_bytes", [0, 40, 75])
def test_crash_at_any_call_loses_nothing_acknowledged(tmp_path: Path, torn_bytes: int) -> None:
    for story, _ in crashes(tmp_path, torn_bytes=torn_bytes):
        log = World().open_log(story.path, CONFIG, log_start_offset=story.start_offset)
        check_indexes(log)
        # A truncation that had begun may be complete, and the last append may be stored without its answer.
        assert min(story.end_offset, 15) <= log.reader.log_end_offset <= story.end_offset + 1
        offsets = [record.offset for record in all_records(log)]
        assert offsets == list(range(log.reader.log_start_offset, log.reader.log_end_offset))
        assert [record.value for record in all_records(log)] == [b"%d" % offset for offset in offsets]
        last = log.reader.log_end_offset - 1
        if last >= log.reader.log_start_offset:
            assert append(log, idempotent(last)).is_duplicate
        assert append(log, idempotent(last + 1)).base_offset == last + 1
        close(log)
        again = World().open_log(story.path, CONFIG, is_clean=True, log_start_offset=story.start_offset)
        assert again.reader.log_end_offset == last + 2
        check_indexes(again)


def test_lost_power_at_any_call_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    for story, storage in crashes(tmp_path, torn_bytes=20):
        if not story.path.exists():
            continue
        storage.lose_power(str(story.path))
        point = min(story.flushed_offset, 15)
        log = World().open_log(story.path, CONFIG, recovery_point=point, log_start_offset=min(story.start_offset, point))
        assert log.reader.log_end_offset >= point
        assert [record.value for record in all_records(log)] == [
            b"%d" % offset for offset in range(log.reader.log_start_offset, log.reader.log_end_offset)
        ]
        check_indexes(log)
        append(log, b"goes on")


def test_full_disk_refuses_the_append_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    storage = FaultyStorage()
    log = World(storage=storage).open_log(tmp_path)
    fill(log, 3)
    size = log.reader.size_bytes
    storage.room_bytes = 50

    with pytest.raises(KafkaError) as caught:
        append(log, b"refused")

    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.reader.log_end_offset == 3
    assert (tmp_path / "00000000000000000000.log").stat().st_size == size
    assert [record.offset for record in all_records(log)] == [0, 1, 2]


def test_full_disk_with_room_again_takes_appends_where_it_stopped(tmp_path: Path) -> None:
    storage = FaultyStorage()
    log = World(storage=storage).open_log(tmp_path)
    append(log, idempotent(0))
    storage.room_bytes = 50
    with pytest.raises(KafkaError):
        append(log, idempotent(1))
    storage.room_bytes = None

    assert append(log, idempotent(1)).base_offset == 1
    assert not log.reader.has_failed
    assert len(all_records(World().open_log(tmp_path))) == 2


def test_full_disk_at_a_roll_leaves_the_active_segment_as_it_was(tmp_path: Path) -> None:
    storage = FaultyStorage()
    log = World(storage=storage).open_log(tmp_path, CONFIG)
    fill(log, 3)
    storage.room_bytes = 10
    while True:
        try:
            append(log, bytes(100))
        except KafkaError:
            break
    assert len(log.reader.segments) == 1
    storage.room_bytes = None

    fill(log, 10)

    assert [record.offset for record in all_records(log)] == list(range(13))
    check_indexes(log)


def test_torn_write_that_cannot_be_cut_back_is_cut_before_the_next_append(tmp_path: Path) -> None:
    storage = FaultyStorage()
    log = World(storage=storage).open_log(tmp_path)
    append(log, b"a")

    def torn(fd: int, data: Bytes, position: int) -> None:
        super(FaultyStorage, storage).write(fd, bytes(data)[:30], position)
        storage.is_failing = True
        raise OSError(5, "Input/output error")

    original = FaultyStorage.write
    FaultyStorage.write = lambda self, fd, data, position: torn(fd, data, position)  # type: ignore[method-assign]
    try:
        with pytest.raises(KafkaError):
            append(log, b"b")
    finally:
        FaultyStorage.write = original  # type: ignore[method-assign]
    assert (tmp_path / "00000000000000000000.log").stat().st_size == log.reader.size_bytes + 30
    with pytest.raises(KafkaError):
        append(log, b"c")
    storage.is_failing = False

    append(log, b"d")

    assert [record.value for record in all_records(log)] == [b"a", b"d"]
    assert (tmp_path / "00000000000000000000.log").stat().st_size == log.reader.size_bytes


def test_failing_disk_can_still_be_read(tmp_path: Path) -> None:
    storage = FaultyStorage()
    log = World(storage=storage).open_log(tmp_path)
    fill(log, 3)
    storage.is_failing = True

    with pytest.raises(KafkaError) as caught:
        append(log, b"refused")

    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(records_of(read(log, 0))) == 3


def test_failed_flush_does_not_move_the_recovery_point(tmp_path: Path) -> None:
    storage = FaultyStorage()
    log = World(storage=storage).open_log(tmp_path)
    append(log, b"a")
    storage.is_failing = True

    with pytest.raises(KafkaError):
        log.flusher.flush()
    assert log.flusher.recovery_point == 0


def test_flush_after_a_failed_flush_is_refused_for_the_kernel_may_have_dropped_what_was_written(tmp_path: Path) -> None:
    storage = FaultyStorage()
    log = World(storage=storage).open_log(tmp_path)
    append(log, b"a")
    storage.is_failing = True
    with pytest.raises(KafkaError):
        log.flusher.flush()
    storage.is_failing = False

    with pytest.raises(KafkaError):
        log.flusher.flush()

    assert log.flusher.recovery_point == 0


def test_refused_append_leaves_producer_and_epoch_as_they_were(tmp_path: Path) -> None:
    storage = FaultyStorage()
    log = World(storage=storage).open_log(tmp_path)
    append(log, idempotent(0))
    storage.is_failing = True
    with pytest.raises(KafkaError):
        append(log, idempotent(1), leader_epoch=5)
    storage.is_failing = False

    assert append(log, batch(b"x", timestamp=NOW_MS)).base_offset == 1
    assert append(log, idempotent(1), leader_epoch=5).base_offset == 2
    assert log.reader.end_offset_for_epoch(5) == (5, 3)
