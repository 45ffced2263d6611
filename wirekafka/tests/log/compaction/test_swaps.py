"""The swap of compacted segments when renames fail: the next start completes it, and live records are never removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from wirekafka.errors import KafkaError
from wirekafka.log.log import Log
from wirekafka.testing.faulty_storage import FaultyStorage
from wirekafka.tests.log.compaction.test_compaction import compact, content, put
from wirekafka.tests.log.logs import World, config_with

COMPACT = config_with(cleanup_policy=frozenset({"compact"}), file_delete_delay_ms=0)


class FullFolderStorage(FaultyStorage):
    """A disk that refuses new names from the n-th rename on.

    Attributes:
        renames_left: None for no limit.
    """

    __slots__ = ("renames_left",)

    def __init__(self) -> None:
        super().__init__()
        self.renames_left: int | None = None

    def rename(self, path: str, new_path: str) -> None:
        if self.renames_left is not None:
            if not self.renames_left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            self.renames_left -= 1
        super().rename(path, new_path)


def filled(world: World, path: Path) -> Log:
    """Makes a log with a sealed segment of superseded records, a sealed segment of live ones, and an active segment."""
    log = world.open_log(path, COMPACT)
    for value in ("1", "2"):
        put(log, ("a", value), ("b", value))
        log.roll()
    put(log, ("c", "active"))
    return log


EXPECTED = [(2, "a", "2"), (3, "b", "2"), (4, "c", "active")]


@pytest.mark.parametrize("renames", range(4, 13))
def test_swap_with_a_failed_rename_loses_no_record(tmp_path: Path, renames: int) -> None:
    """The first four renames give the compacted segment's files the suffix `.swap`."""
    storage = FullFolderStorage()
    world = World(storage=storage)
    log = filled(world, tmp_path)
    storage.renames_left = renames
    compact(log)
    world.pass_delays()
    assert content(log) == EXPECTED

    again = World().open_log(tmp_path, COMPACT)

    assert content(again) == EXPECTED


@pytest.mark.parametrize("renames", range(4, 13))
def test_swap_with_a_failed_rename_is_finished_by_the_next_one(tmp_path: Path, renames: int) -> None:
    storage = FullFolderStorage()
    world = World(storage=storage)
    log = filled(world, tmp_path)
    storage.renames_left = renames
    compact(log)
    storage.renames_left = None

    put(log, ("a", "3"))
    log.roll()
    compact(log)
    world.pass_delays()

    assert content(log) == [(3, "b", "2"), (4, "c", "active"), (5, "a", "3")]
    assert not [name for name in os.listdir(tmp_path) if name.endswith((".swap", ".deleted", ".cleaned"))]
    assert content(World().open_log(tmp_path, COMPACT)) == content(log)


def test_segments_of_an_unfinished_swap_are_not_deleted_by_retention(tmp_path: Path) -> None:
    """Otherwise the files of the replaced segment would be used again after the next start."""
    storage = FullFolderStorage()
    log = filled(World(storage=storage), tmp_path)
    storage.renames_left = 4
    compact(log)

    with pytest.raises(KafkaError):
        log.retention.delete_records(4)

    storage.renames_left = None
    log.retention.delete_old_segments(0)
    assert content(World().open_log(tmp_path, COMPACT, log_start_offset=4)) == EXPECTED[2:]
