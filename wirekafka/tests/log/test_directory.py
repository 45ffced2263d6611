"""Data directories: checkpoints that several threads write."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from wirekafka.log.checkpoint import CLEAN_SHUTDOWN, RECOVERY_POINTS
from wirekafka.log.directory import LOCK_FILE, DataDirectory, read_boot_id
from wirekafka.log.storage import Storage
from wirekafka.names import TopicPartition

NAME = TopicPartition("topic", 0)


class SlowStorage(Storage):
    """Holds back the first file that is written until the test lets it continue; counts the concurrent writes."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.at_once = self.most_at_once = 0

    def write_file(self, path: str, data: bytes, *, sync: bool = False) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if not self.has_begun.is_set():
            self.has_begun.set()
            self.may_go_on.wait(10)
        super().write_file(path, data, sync=sync)
        self.at_once -= 1


def test_checkpoint_of_earlier_offsets_does_not_replace_one_of_later_offsets(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path), Storage())
    earlier = directory.checkpoint(RECOVERY_POINTS, {NAME: 1})
    later = directory.checkpoint(RECOVERY_POINTS, {})
    later()
    earlier()
    assert directory.read_checkpoint(RECOVERY_POINTS) == {}


class JournalStorage(Storage):
    """Records the removed files and the synced directories."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[tuple[str, str]] = []

    def remove(self, path: str) -> None:
        super().remove(path)
        self.journal.append(("remove", path))

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.journal.append(("sync", path))


def test_checkpoint_replaces_the_former_one_and_syncs_its_name(tmp_path: Path) -> None:
    storage = JournalStorage()
    DataDirectory(str(tmp_path), storage).write_checkpoint(RECOVERY_POINTS, {NAME: 1})
    assert ("sync", str(tmp_path)) in storage.journal


def test_clean_mark_is_removed_for_good_before_the_directory_is_used(tmp_path: Path) -> None:
    """If the mark came back after a power failure, the broker would trust logs that were not closed."""
    first = DataDirectory(str(tmp_path), Storage())
    first.mark_clean(is_on_disk=True)
    storage = JournalStorage()
    again = DataDirectory(str(tmp_path), storage)
    again.load(node_id=1, cluster_id=None)
    assert again.is_clean
    removal = storage.journal.index(("remove", f"{tmp_path}/.kafka_cleanshutdown"))
    assert ("sync", str(tmp_path)) in storage.journal[removal:]


def test_clean_mark_of_a_newer_format_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / CLEAN_SHUTDOWN).write_bytes(b'{"version":1,"brokerEpoch":-1}')
    directory = DataDirectory(str(tmp_path), Storage())

    directory.load(node_id=1, cluster_id=None)

    assert not directory.is_clean
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


@pytest.mark.parametrize(("version", "has_lost_power"), [("0", False), ("1", True)])
def test_lock_file_vouches_for_the_power_only_in_a_known_format(tmp_path: Path, version: str, has_lost_power: bool) -> None:
    (tmp_path / LOCK_FILE).write_text(f"a broker\nversion: {version}\nboot_id: {read_boot_id()}\n")
    directory = DataDirectory(str(tmp_path), Storage())

    directory.lock("a test")

    assert directory.has_lost_power is has_lost_power
    directory.unlock()


def test_checkpoints_that_two_threads_write_are_written_one_after_the_other(tmp_path: Path) -> None:
    storage = SlowStorage()
    directory = DataDirectory(str(tmp_path), storage)
    first = threading.Thread(target=directory.checkpoint(RECOVERY_POINTS, {NAME: 1}))
    second = threading.Thread(target=directory.checkpoint(RECOVERY_POINTS, {NAME: 2}))
    first.start()
    assert storage.has_begun.wait(10)
    second.start()
    second.join(0.05)
    assert second.is_alive()
    storage.may_go_on.set()
    first.join()
    second.join()
    assert storage.most_at_once == 1
    assert directory.read_checkpoint(RECOVERY_POINTS) == {NAME: 2}
