"""A start after a power loss of a replica that can fetch lost records again; and a truncation without room for its offsets."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from wirekafka.errors import KafkaError
from wirekafka.log.context import HasPartition, LogContext
from wirekafka.log.log import Log
from wirekafka.log.recovery import Loader
from wirekafka.log.storage import Folder
from wirekafka.tests.log.logs import NAME, World, append, batch, config_with

CONFIG = config_with(segment_bytes=200)


def left_in_segments(path: Path, count: int = 6) -> Log:
    """Makes a log with one record in each segment, and leaves it as a crash does."""
    log = World().open_log(path, CONFIG)
    for number in range(count):
        append(log, batch(b"%d" % number + bytes(100)))
    log.reader.close()
    return log


def log_file(path: Path, base_offset: int) -> Path:
    return path / f"{base_offset:020}.log"


def test_replica_whose_segment_in_the_middle_is_lost_ends_before_the_gap(tmp_path: Path) -> None:
    left_in_segments(tmp_path)
    log_file(tmp_path, 3).unlink()
    log = World().open_log(tmp_path, CONFIG, high_watermark=2, recovery_point=2, has_lost_power=True)
    assert (log.reader.log_end_offset, log.reader.high_watermark) == (3, 2)
    assert not log_file(tmp_path, 4).exists()


def test_replica_whose_first_segments_are_lost_begins_anew_where_they_began(tmp_path: Path) -> None:
    left_in_segments(tmp_path)
    for base_offset in (2, 3):
        log_file(tmp_path, base_offset).unlink()
    for base_offset in (0, 1):
        log_file(tmp_path, base_offset).unlink()  # retention has deleted these
    log = World().open_log(tmp_path, CONFIG, high_watermark=4, recovery_point=2, log_start_offset=1, has_lost_power=True)
    reader = log.reader
    assert (reader.log_start_offset, reader.high_watermark, reader.log_end_offset) == (2, 2, 2)


def test_sole_replica_keeps_what_follows_a_gap(tmp_path: Path) -> None:
    left_in_segments(tmp_path)
    log_file(tmp_path, 3).unlink()
    assert World().open_log(tmp_path, CONFIG, recovery_point=2, has_lost_power=True).reader.log_end_offset == 6


def test_gap_before_the_recovery_point_is_that_of_compaction(tmp_path: Path) -> None:
    left_in_segments(tmp_path)
    log_file(tmp_path, 3).unlink()
    log = World().open_log(tmp_path, CONFIG, high_watermark=2, recovery_point=5, has_lost_power=True)
    assert log.reader.log_end_offset == 6


def test_gap_without_a_power_loss_is_that_of_compaction(tmp_path: Path) -> None:
    left_in_segments(tmp_path)
    log_file(tmp_path, 3).unlink()
    assert World().open_log(tmp_path, CONFIG, high_watermark=2, recovery_point=2).reader.log_end_offset == 6


def test_truncation_that_could_not_store_the_recovery_point_stores_it_at_the_next_attempt(tmp_path: Path) -> None:
    """Otherwise the log would end before the recovery point that is on the disk, and the next start would refuse it."""
    stored: list[int] = []
    is_full = True

    def store(log: HasPartition) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "full")
        stored.append(opened.flusher.recovery_point)

    world = World()
    world.storage.make_folder(str(tmp_path))
    folder = Folder(str(tmp_path), world.storage)
    services: LogContext = world.services()
    services.store_offsets = store
    loaded = Loader(folder, world.pool, str(NAME), CONFIG.index_interval_bytes, world.now_ms).load()
    opened = Log(NAME, folder, CONFIG, services, loaded)
    for number in range(4):
        opened.append(batch(b"%d" % number), leader_epoch=0, now_ms=world.now_ms)
    opened.flusher.flush()

    with pytest.raises(KafkaError):
        opened.truncate_to(2)
    assert (opened.flusher.recovery_point, opened.reader.log_end_offset) == (4, 4)
    is_full = False
    opened.truncate_to(2)
    assert stored == [2]
    assert opened.reader.log_end_offset == 2
