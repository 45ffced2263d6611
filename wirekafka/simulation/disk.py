"""A disk in memory, which loses, tears and reorders what was not synced when the power fails.

How it works: each file is in memory of its own (memfd), so that descriptors and regions of it are real ones. The disk keeps what
was synced of each file and of the list of names, and the changes since. A loss of power leaves what was synced, and the part of
the changes that their `Fate` keeps. Contents and names have separate fates, because a file system may keep a rename and lose the
bytes that were written before it.

Rules of this file: folders are created and never renamed; nothing in a simulation does that.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from wirekafka.log.storage import Bytes, Storage
from wirekafka.simulation.dice import Dice


class Fate(Enum):
    """What a loss of power does to the changes that were not synced."""

    KEPT = auto()
    LOST = auto()
    TORN = auto()
    """The changes before some change are kept, and a part of that one."""
    REORDERED = auto()
    """Any of the changes are kept. If a change of a file's size is lost, the later changes of the file are lost too: file systems
    with a journal, such as ext4 and XFS, show no bytes that were written after a truncation beside those that it has cut off."""


Change: TypeAlias = tuple[int, "bytes | None"]
"""A position and the bytes written there; or the new size of the file, and None."""


class File:
    """A file in memory.

    Attributes:
        fd: the descriptor of its memory, which lives as long as the file.
        synced: what a loss of power always leaves.
        changes: what has changed since.
    """

    __slots__ = ("changes", "fd", "modified_ns", "synced")

    def __init__(self, content: bytes = b"") -> None:
        self.fd = os.memfd_create("simulation")
        self.synced = bytearray(content)
        self.changes: list[Change] = []
        self.modified_ns = 0
        if content:
            os.pwrite(self.fd, content, 0)

    def __del__(self) -> None:
        os.close(self.fd)

    def sync(self) -> None:
        """Puts all changes onto the disk."""
        for change in self.changes:
            _apply(self.synced, change)
        self.changes.clear()

    def survivor(self, fate: Fate, dice: Dice) -> File:
        """Returns the file as a loss of power leaves it."""
        content = bytearray(self.synced)
        for change in _surviving(self.changes, fate, dice):
            _apply(content, change)
        return File(bytes(content))


def _surviving(changes: list[Change], fate: Fate, dice: Dice) -> list[Change]:
    if not changes or fate is Fate.LOST:
        return []
    if fate is Fate.KEPT:
        return changes
    if fate is Fate.TORN:
        *kept, last = changes[: dice.between(1, len(changes))]
        return [*kept, _torn(last, dice)]
    return [*_any_of(changes, dice)]


def _any_of(changes: list[Change], dice: Dice) -> Iterator[Change]:
    for change in changes:
        if dice.chance(0.6):
            yield _torn(change, dice) if dice.chance(0.2) else change
        elif change[1] is None:
            return


def _torn(change: Change, dice: Dice) -> Change:
    position, data = change
    return change if data is None else (position, data[: dice.between(0, len(data))])


def _apply(content: bytearray, change: Change) -> None:
    position, data = change
    if data is None:
        del content[position:]
        content.extend(bytes(position - len(content)))
    elif data:
        content.extend(bytes(max(position - len(content), 0)))
        content[position : position + len(data)] = data


@dataclass(slots=True)
class Link:
    """A change of names: `path` leads to `file` now, or to nothing; `former_path` leads to nothing any more."""

    path: str
    file: File | None
    former_path: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The names that change."""
        return (self.path,) if self.former_path is None else (self.path, self.former_path)

    def apply(self, names: dict[str, File]) -> None:
        """Changes the names."""
        if self.former_path is not None:
            names.pop(self.former_path, None)
        if self.file is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.file


class Disk(Storage):
    """The disk of one broker. It outlives the broker.

    Args:
        now_ns: the time for the files.

    Attributes:
        is_full: writes that make a file grow fail.
        on_sync: is called for each sync, which takes time.
    """

    __slots__ = ("_files", "_folders", "_links", "_names", "_now_ns", "_synced_names", "is_full", "on_sync")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._folders: dict[str, None] = {}
        self._names: dict[str, File] = {}
        self._synced_names: dict[str, File] = {}
        self._links: list[Link] = []
        self._files: dict[int, File] = {}
        self.is_full = False
        self.on_sync: Callable[[], object] = lambda: None

    # Files

    def open(self, path: str, *, create: bool = False) -> int:
        """Returns a descriptor, as `Storage.open` does.

        Raises:
            FileNotFoundError: the file does not exist, and `create` is False.
        """
        file = self._names.get(path)
        if file is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._check_room()
            file = File()
            self._link(Link(path, file))
        fd = os.dup(file.fd)
        self._files[fd] = file
        return fd

    def close(self, fd: int) -> None:
        """Closes the descriptor."""
        self._files.pop(fd, None)
        os.close(fd)

    def write(self, fd: int, data: Bytes, position: int) -> None:
        """Writes all of `data`, unless the disk is full."""
        file = self._files[fd]
        if self.is_full and position + len(data) > os.fstat(fd).st_size:
            self._check_room()
        super().write(fd, data, position)
        file.changes.append((position, bytes(data)))
        file.modified_ns = self._now_ns()

    def truncate(self, fd: int, size: int) -> None:
        """Sets the size of the file."""
        super().truncate(fd, size)
        self._files[fd].changes.append((size, None))

    def preallocate(self, fd: int, size: int) -> None:
        """Sets the size of the file."""
        self._check_room()
        self.truncate(fd, size)

    def sync(self, fd: int) -> None:
        """Puts the changes of the file onto the disk."""
        self._files[fd].sync()
        self.on_sync()

    def modified_ns(self, fd: int) -> int:
        """Returns the virtual time of the last write."""
        return self._files[fd].modified_ns

    def set_modified_ns(self, fd: int, modified_ns: int) -> None:
        """Sets the time of the last write."""
        self._files[fd].modified_ns = modified_ns

    def read_file(self, path: str) -> bytes:
        """Returns the content of a file."""
        fd = self.open(path)
        try:
            return self.read(fd, os.fstat(fd).st_size, 0)
        finally:
            self.close(fd)

    # Names

    def rename(self, path: str, new_path: str) -> None:
        """Renames a file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        assert path not in self._folders, "folders are never renamed"
        file = self._names.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._link(Link(new_path, file, path))

    def remove(self, path: str) -> None:
        """Removes a file; does nothing if the file does not exist."""
        if path in self._names:
            self._link(Link(path, None))

    def make_folder(self, path: str) -> None:
        """Creates a folder."""
        self._folders[path] = None

    def remove_folder(self, path: str) -> None:
        """Removes an empty folder.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        if path not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        del self._folders[path]

    def sync_folder(self, path: str) -> None:
        """Puts the names in a folder onto the disk."""
        kept = []
        for link in self._links:
            if os.path.dirname(link.path) == path:
                link.apply(self._synced_names)
            else:
                kept.append(link)
        self._links = kept
        self.on_sync()

    def files(self, path: str) -> dict[str, os.stat_result]:
        """Returns the files in a folder, by name."""
        return {
            os.path.basename(each): _stat(os.fstat(file.fd).st_size)
            for each, file in self._names.items()
            if os.path.dirname(each) == path
        }

    def folders(self, path: str) -> list[str]:
        """Returns the names of the folders in a folder, sorted."""
        return sorted(os.path.basename(each) for each in self._folders if os.path.dirname(each) == path)

    def _link(self, link: Link) -> None:
        link.apply(self._names)
        self._links.append(link)

    def _check_room(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def free(self) -> None:
        """Frees the memory of all files that are not open."""
        self._links = []
        self._names = {}
        self._synced_names = {}

    # Loss of power

    def lose_power(self, dice: Dice) -> str:
        """Loses what was not synced, as the dice decide for contents and names; returns the fates."""
        contents, names = dice.choose(tuple(Fate)), dice.choose(tuple(Fate))
        survivors = dict(self._synced_names)
        for link in self._surviving_links(names, dice):
            link.apply(survivors)
        left: dict[File, File] = {}
        for file in survivors.values():
            if file not in left:
                left[file] = file.survivor(contents, dice)
        self._names = {path: left[file] for path, file in survivors.items()}
        self._synced_names = dict(self._names)
        self._links = []
        return f"contents {contents.name}, names {names.name}"

    def _surviving_links(self, fate: Fate, dice: Dice) -> list[Link]:
        """Names change in order: if a change of a name is lost, all later changes of that name are lost."""
        if fate is Fate.TORN:
            return self._links[: dice.between(0, len(self._links))]
        survivors = []
        lost: set[str] = set()
        for link in self._links:
            is_kept = fate is Fate.KEPT or (fate is Fate.REORDERED and dice.chance(0.6))
            if is_kept and lost.isdisjoint(link.paths):
                survivors.append(link)
            else:
                lost.update(link.paths)
        return survivors


def _stat(size_bytes: int) -> os.stat_result:
    return os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, size_bytes, 0, 0, 0))
