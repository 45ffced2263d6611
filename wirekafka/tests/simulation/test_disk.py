"""The disk in memory: what a loss of power leaves."""

from __future__ import annotations

import errno

import pytest

from wirekafka.simulation.dice import Dice
from wirekafka.simulation.disk import Disk, Fate, File, Link

PATH = "/data/file"


class LoadedDice(Dice):
    """Dice that choose what a test says."""

    def __init__(self, *choices: object) -> None:
        super().__init__("test")
        self._choices = list(choices)

    def choose(self, choices: object) -> object:  # type: ignore[override]
        return self._choices.pop(0)


def new_disk() -> Disk:
    disk = Disk(lambda: 7)
    disk.make_folder("/data")
    return disk


def write(disk: Disk, data: bytes, position: int = 0, *, sync: bool = False, path: str = PATH) -> None:
    fd = disk.open(path, create=True)
    disk.write(fd, data, position)
    if sync:
        disk.sync(fd)
    disk.close(fd)


def test_synced_bytes_and_names_survive_every_loss_of_power() -> None:
    for contents in Fate:
        for names in Fate:
            disk = new_disk()
            write(disk, b"synced", sync=True)
            disk.sync_folder("/data")
            write(disk, b"x" * 6)
            disk.lose_power(LoadedDice(Fate.LOST, names))
            assert disk.read_file(PATH) == b"synced"
            disk.lose_power(LoadedDice(contents, names))
            assert disk.read_file(PATH) == b"synced"


def test_bytes_that_were_not_synced_are_kept_or_lost_by_their_fate() -> None:
    for fate, expected in ((Fate.KEPT, b"abc"), (Fate.LOST, b"a")):
        disk = new_disk()
        write(disk, b"a", sync=True)
        disk.sync_folder("/data")
        write(disk, b"bc", 1)
        disk.lose_power(LoadedDice(fate, Fate.KEPT))
        assert disk.read_file(PATH) == expected


def test_torn_write_leaves_a_prefix_and_a_reordered_one_may_leave_a_hole() -> None:
    torn, reordered = set(), set()
    for number in range(200):
        file = File()
        file.changes = [(0, b"aa"), (2, b"bb")]
        torn.add(bytes(_content(file.survivor(Fate.TORN, Dice(f"{number}")))))
        reordered.add(bytes(_content(file.survivor(Fate.REORDERED, Dice(f"{number}")))))
    assert torn == {b"", b"a", b"aa", b"aab", b"aabb"}
    assert {b"\0\0bb", b"aa", b""} <= reordered


def test_bytes_after_a_truncation_are_never_kept_without_it() -> None:
    left = set()
    for number in range(200):
        file = File(b"old, old")
        file.changes = [(3, None), (3, b"new")]
        left.add(bytes(_content(file.survivor(Fate.REORDERED, Dice(f"{number}")))))
    assert left == {b"old, old", b"old", b"oldn", b"oldne", b"oldnew"}


def _content(file: File) -> bytearray:
    return file.synced


def test_name_that_was_not_synced_is_lost_with_its_content() -> None:
    disk = new_disk()
    write(disk, b"synced", sync=True)
    disk.lose_power(LoadedDice(Fate.KEPT, Fate.LOST))
    assert disk.files("/data") == {}


def test_rename_that_is_lost_leaves_the_former_name() -> None:
    disk = new_disk()
    write(disk, b"a", sync=True)
    disk.sync_folder("/data")
    disk.rename(PATH, "/data/other")
    assert list(disk.files("/data")) == ["other"]
    disk.lose_power(LoadedDice(Fate.KEPT, Fate.LOST))
    assert list(disk.files("/data")) == ["file"]


def test_changes_of_a_name_after_a_lost_one_are_lost_too() -> None:
    names = {"file": File(b"0")}
    for number in range(100):
        disk = new_disk()
        disk.make_folder("/")
        first, second = File(b"1"), File(b"2")
        disk._links = [Link("file", first), Link("file", second)]
        survivors = disk._surviving_links(Fate.REORDERED, Dice(f"{number}"))
        for link in survivors:
            link.apply(names)
        assert survivors in ([], [Link("file", first)], [Link("file", first), Link("file", second)])


def test_full_disk_refuses_growth_only() -> None:
    disk = new_disk()
    write(disk, b"abc")
    disk.is_full = True
    write(disk, b"x", 1)
    with pytest.raises(OSError) as caught:
        write(disk, b"more", 3)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError):
        disk.open("/data/new", create=True)
    assert disk.read_file(PATH) == b"axc"


def test_folder_that_does_not_exist_cannot_be_removed() -> None:
    with pytest.raises(FileNotFoundError):
        new_disk().remove_folder("/data/unknown")
