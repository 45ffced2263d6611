"""The recovery point never passes what was synced, whatever happens while a sync runs."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from wirekafka.errors import KafkaError
from wirekafka.log.directory import is_lost
from wirekafka.log.durability import DurabilityLedger, SyncError
from wirekafka.log.log import Log
from wirekafka.log.storage import Folder
from wirekafka.testing.faulty_storage import FaultyStorage
from wirekafka.testing.remembering_storage import Fate, RememberingStorage
from wirekafka.tests.log.logs import World, all_records, append, batch, config_with, end_transaction, transactional

CONFIG = config_with(segment_bytes=300, index_interval_bytes=100)


class BusyStorage(RememberingStorage):
    """A disk that remembers every call; while a thread syncs, the loop runs the next function in `meanwhile`."""

    __slots__ = ("is_thread", "meanwhile")

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meanwhile: list[Callable[[], object]] = []
        self.is_thread = False

    def run_in_thread(self, work: Callable[[], object]) -> None:
        was_thread, self.is_thread = self.is_thread, True
        try:
            work()
        finally:
            self.is_thread = was_thread

    def _wait(self) -> None:
        if self.meanwhile and self.is_thread:
            self.is_thread = False
            self.meanwhile.pop(0)()
            self.is_thread = True


class Life:
    """A log on a busy disk, and the values of its records."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = BusyStorage(root)
        self.world = World(storage=self.storage)
        self.path = root / "topic-0"
        self.log: Log = self.world.open_log(self.path, CONFIG)
        self.log.reader.folder.ledger.place.written += 1
        self.values: list[bytes] = []
        self.number = itertools.count()

    def append(self) -> None:
        value = b"%d" % next(self.number)
        append(self.log, batch(value + bytes(60)))
        self.values.append(value)

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self.log.flusher.flush()
        self.check()

    def flush_in_thread(self) -> None:
        """Runs a flush, during which the test does other things, for example another flush."""
        flush = self.log.flusher.prepare()
        self.append()
        self.storage.run_in_thread(flush.run)
        self.log.flusher.complete(flush)
        self.check()

    def truncate(self) -> None:
        if self.log.reader.log_end_offset > 1:
            self.log.truncate_to(self.log.reader.log_end_offset - 1)
            del self.values[self.log.reader.log_end_offset :]

    def check(self) -> None:
        """Simulates a power failure: only synced bytes remain; raises unless all records before the recovery point do."""
        recovery_point = self.log.flusher.recovery_point
        image = self.storage.lose_power(len(self.storage.operations), contents=Fate.LOST, names=Fate.LOST)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
            image.put(Path(top) / "disk")
            log = World().open_log(Path(top) / "disk" / "topic-0", CONFIG, recovery_point=recovery_point, has_lost_power=True)
            assert log.reader.log_end_offset >= recovery_point
            found = [(record.value or b"").rstrip(b"\0") for record in all_records(log)]
            assert found[:recovery_point] == self.values[:recovery_point]


ACTIONS = ["append", "roll", "flush", "flush_in_thread", "truncate"]


@given(
    actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=12),
    meanwhile=st.lists(st.sampled_from(ACTIONS), max_size=12),
)
def test_recovery_point_never_passes_what_was_synced(actions: list[str], meanwhile: list[str]) -> None:
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        life = Life(root)
        life.storage.meanwhile = [getattr(life, name) for name in meanwhile]
        for action in actions:
            getattr(life, action)()
            life.check()
    finally:
        shutil.rmtree(root)


def test_flush_during_another_flush_does_not_rely_on_it(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.append()
    background = life.log.flusher.prepare()

    life.flush()  # Before the other flush has synced anything.
    assert life.log.flusher.recovery_point == 1

    background.run()
    life.log.flusher.complete(background)
    life.check()


def test_segment_made_while_the_folder_is_synced_is_synced_by_the_next_flush(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.append()

    def roll_and_append() -> None:
        life.log.roll()
        life.append()

    # The first sync is that of the segment, the second one that of the directory.
    life.storage.meanwhile = [lambda: None, roll_and_append]
    life.flush_in_thread()
    life.flush()

    assert life.log.flusher.recovery_point == 3
    life.check()


def test_flush_prepared_before_a_truncation_says_nothing_of_what_was_appended_after_it(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.append()
    life.append()
    flush = life.log.flusher.prepare()
    life.truncate()
    life.append()

    flush.run()
    life.log.flusher.complete(flush)

    assert life.log.flusher.recovery_point <= 1
    life.check()


def test_roll_of_a_log_that_is_on_the_disk_brings_the_sealed_indexes_there(tmp_path: Path) -> None:
    """Because of the recovery point, the next start does not read the sealed segment again."""
    life = Life(tmp_path)
    append(life.log, transactional(0))
    end_transaction(life.log, is_commit=False)
    life.log.flusher.flush()
    assert life.log.flusher.recovery_point == 2

    life.log.roll()

    image = life.storage.lose_power(len(life.storage.operations), contents=Fate.LOST, names=Fate.KEPT)
    image.put(tmp_path / "disk")
    with capture_logs() as lines:
        log = World().open_log(tmp_path / "disk" / "topic-0", CONFIG, recovery_point=2, has_lost_power=True)
    assert [entry.producer_id for entry in log.reader.aborted_transactions(0, 2)] == [7]
    assert not [line for line in lines if line["event"].startswith("Rebuilding")]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EIO])
def test_failed_sync_means_that_the_directory_is_lost(tmp_path: Path, number: int) -> None:
    class Refusing(FaultyStorage):
        def sync(self, fd: int) -> None:
            raise OSError(number, os.strerror(number))

    world = World(storage=Refusing())
    errors: list[OSError] = []
    log = world.open_log(tmp_path)
    log.reader.services.note_disk_error = lambda failed, error: errors.append(error)
    append(log, b"a")

    with pytest.raises(KafkaError):
        log.flusher.flush()

    assert [is_lost(str(tmp_path), error) for error in errors] == [True]
    assert log.flusher.recovery_point == 0


def test_sync_that_succeeds_while_another_fails_does_not_count(tmp_path: Path) -> None:
    ledger = DurabilityLedger()
    ledger.note_written("file")
    generations = ledger.file("file")

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    def succeed_after_a_failure() -> None:
        with pytest.raises(SyncError):
            ledger.sync(generations, generations.written, fail)

    with pytest.raises(SyncError):
        ledger.sync(generations, generations.written, succeed_after_a_failure)
    assert not generations.is_synced


def test_folder_that_cannot_be_opened_to_be_synced_may_be_synced_later(tmp_path: Path) -> None:
    ledger = DurabilityLedger()
    ledger.note_linked()

    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OSError, match="Too many open files"):
        ledger.sync(ledger.names, ledger.names.written, fail)
    ledger.sync(ledger.names, ledger.names.written, lambda: None)

    assert ledger.names.is_synced


def test_log_left_in_the_page_cache_is_brought_to_the_disk_with_its_names(tmp_path: Path) -> None:
    """A broker is stopped before the disk has synced; the machine keeps running, and a new broker opens the log."""
    life = Life(tmp_path)
    life.append()
    life.log.end_appends()
    life.log.write_for_restart()
    life.log.reader.close()

    life.log = life.world.open_log(life.path, CONFIG, is_clean=True, is_on_disk=False)
    life.log.flusher.flush()

    assert life.log.flusher.recovery_point == 1
    life.check()


def test_file_that_was_renamed_is_still_to_be_synced(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), World().storage)
    folder.rewrite_file("a.swap", b"x")

    folder.rename("a.swap", "a")

    assert [name for name, _, _ in folder.ledger.unsynced()] == ["a"]
