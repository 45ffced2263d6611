"""A disk that records every call, so that every state in which a crash could leave the disk can be built afterwards.

How it works: the calls go to the real file system. Each call that changes something is recorded as an operation on a file (write,
truncate, sync) or on a folder (link, unlink, move, sync). A crash after some of the operations leaves an image: everything that
was synced, and the part of the rest that the image's `Fate` keeps. Names and contents have separate fates, because a file system
may keep a rename and lose the bytes that were written before it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from wirekafka.log.storage import Bytes, Storage


class Fate(Enum):
    """The effect of a crash on the calls that were not synced."""

    KEPT = auto()
    LOST = auto()
    TORN = auto()  # The calls before some call are kept, and a part of that call.
    REORDERED = auto()  # Any of the calls are kept, in any order.


@dataclass(eq=False)
class File:
    """A file; its name may change."""


@dataclass(eq=False)
class Directory:
    """A folder, whose name may change, and its current content."""

    entries: dict[str, File | Directory] = field(default_factory=dict)


@dataclass(frozen=True)
class Write:
    """Bytes at a position of a file, or the file's new size if there are no bytes."""

    file: File
    position: int
    data: bytes | None


@dataclass(frozen=True)
class Sync:
    """A sync of a file, or of the list of names of a folder.

    Attributes:
        began_at: the number of operations when the sync began; later ones are not synced. None if no operation came meanwhile.
    """

    target: File | Directory
    began_at: int | None = None


@dataclass(frozen=True)
class Link:
    """A name in a folder now leads to the target, or to nothing without a target. `former` no longer leads to anything."""

    folder: Directory
    name: str
    target: File | Directory | None
    former: tuple[Directory, str] | None = None

    def names(self) -> list[tuple[Directory, str]]:
        """Returns the names that the change affects."""
        return [(self.folder, self.name), *([self.former] if self.former else [])]


Operation = Write | Sync | Link


class RememberingStorage(Storage):
    """The real file system below one folder, and a record of all changes.

    Attributes:
        operations: the changes in order. When a test gets an acknowledgement, it stores their number at that time.
    """

    __slots__ = ("_files", "_root", "_top", "operations")

    def __init__(self, root: Path) -> None:
        self.operations: list[Operation] = []
        self._root = str(root)
        self._top = Directory()
        self._files: dict[int, File] = {}

    def _folder_of(self, path: str) -> tuple[Directory, str]:
        """Returns the folder of a path, and its name in that folder."""
        folder = self._top
        *above, name = os.path.relpath(path, self._root).split(os.sep)
        for part in above:
            found = folder.entries[part]
            assert isinstance(found, Directory)
            folder = found
        return folder, name

    def _link(self, path: str, target: File | Directory | None, former: str | None = None) -> None:
        folder, name = self._folder_of(path)
        place = self._folder_of(former) if former is not None else None
        if place is not None:
            target = place[0].entries.pop(place[1])
        if target is None:
            del folder.entries[name]
        else:
            folder.entries[name] = target
        self.operations.append(Link(folder, name, target, place))

    def open(self, path: str, *, create: bool = False) -> int:
        """As `Storage.open`; the call is recorded."""
        folder, name = self._folder_of(path)
        fd = super().open(path, create=create)
        if name not in folder.entries:
            self._link(path, File())
        found = folder.entries[name]
        assert isinstance(found, File)
        self._files[fd] = found
        return fd

    def close(self, fd: int) -> None:
        """As `Storage.close`; the call is recorded."""
        del self._files[fd]
        super().close(fd)

    def write(self, fd: int, data: Bytes, position: int) -> None:
        """As `Storage.write`; the call is recorded."""
        super().write(fd, data, position)
        self.operations.append(Write(self._files[fd], position, bytes(data)))

    def truncate(self, fd: int, size: int) -> None:
        """As `Storage.truncate`; the call is recorded."""
        super().truncate(fd, size)
        self.operations.append(Write(self._files[fd], size, None))

    def preallocate(self, fd: int, size: int) -> None:
        """As `Storage.preallocate`; the call is recorded."""
        super().preallocate(fd, size)
        self.operations.append(Write(self._files[fd], size, None))

    def sync(self, fd: int) -> None:
        """As `Storage.sync`; the call is recorded."""
        began_at = len(self.operations)
        target = self._files[fd]
        self._wait()
        self.operations.append(Sync(target, began_at))

    def _wait(self) -> None:
        """Called while a sync waits for the disk; a test may override it to do other work meanwhile."""

    def rename(self, path: str, new_path: str) -> None:
        """As `Storage.rename`; the call is recorded."""
        super().rename(path, new_path)
        self._link(new_path, None, path)

    def remove(self, path: str) -> None:
        """As `Storage.remove`; the call is recorded."""
        folder, name = self._folder_of(path)
        super().remove(path)
        if name in folder.entries:
            self._link(path, None)

    def make_folder(self, path: str) -> None:
        """As `Storage.make_folder`; the call is recorded."""
        super().make_folder(path)
        if path != self._root:
            folder, name = self._folder_of(path)
            if name not in folder.entries:
                self._link(path, Directory())

    def remove_folder(self, path: str) -> None:
        """As `Storage.remove_folder`; the call is recorded."""
        super().remove_folder(path)
        self._link(path, None)

    def sync_folder(self, path: str) -> None:
        """As `Storage.sync_folder`; the call is recorded."""
        folder = self._top
        if path != self._root:
            above, name = self._folder_of(path)
            found = above.entries[name]
            assert isinstance(found, Directory)
            folder = found
        began_at = len(self.operations)
        self._wait()
        self.operations.append(Sync(folder, began_at))

    def crash(self, calls: int, *, torn_bytes: int = 0) -> Image:
        """Returns the image after a crash of the process after so many operations, perhaps in the middle of a write."""
        image = self.lose_power(calls, contents=Fate.KEPT, names=Fate.KEPT)
        following = self.operations[calls] if calls < len(self.operations) else None
        if torn_bytes and isinstance(following, Write) and following.data is not None:
            image.write(Write(following.file, following.position, following.data[:torn_bytes]))
        return image

    def lose_power(self, calls: int, *, contents: Fate, names: Fate) -> Image:
        """Returns the image after a loss of power after so many operations."""
        chance = random.Random(f"{calls} {contents} {names}")
        done = self.operations[:calls]
        synced: dict[File | Directory, int] = {}
        for number, op in enumerate(done):
            if isinstance(op, Sync):
                synced[op.target] = max(synced.get(op.target, -1), number if op.began_at is None else op.began_at)
        image = Image(self._top)
        for write in _survivors(done, synced, contents, chance):
            image.write(write)
        for link in _surviving_links(done, synced, names, chance):
            image.link(link)
        return image


def _survivors(done: Sequence[Operation], synced: dict[File | Directory, int], fate: Fate, chance: random.Random) -> list[Write]:
    by_file: dict[File, tuple[list[Write], list[Write]]] = {}
    for number, operation in enumerate(done):
        if isinstance(operation, Write):
            safe, unsafe = by_file.setdefault(operation.file, ([], []))
            (safe if number < synced.get(operation.file, -1) else unsafe).append(operation)
    survivors = []
    for safe, unsafe in by_file.values():
        survivors += safe
        if fate is Fate.KEPT:
            survivors += unsafe
        elif fate is Fate.TORN and unsafe:
            *kept, last = unsafe[: chance.randint(1, len(unsafe))]
            survivors += [*kept, _torn(last, chance)]
        elif fate is Fate.REORDERED:
            survivors += [_torn(write, chance) if chance.random() < 0.2 else write for write in unsafe if chance.random() < 0.6]
    return survivors


def _torn(write: Write, chance: random.Random) -> Write:
    if write.data is None:
        return write
    return Write(write.file, write.position, write.data[: chance.randint(0, len(write.data))])


def _surviving_links(
    done: Sequence[Operation], synced: dict[File | Directory, int], fate: Fate, chance: random.Random
) -> list[Link]:
    """Names change in order: if the last change of a name is lost, all changes of that name are lost."""
    links = [(number, operation) for number, operation in enumerate(done) if isinstance(operation, Link)]
    last_kept = chance.randint(0, len(done)) if fate is Fate.TORN else 0
    survivors = []
    lost: set[tuple[Directory, str]] = set()
    for number, link in links:
        is_safe = all(number < synced.get(folder, -1) for folder, _ in link.names())
        is_kept = (
            is_safe
            or fate is Fate.KEPT
            or (fate is Fate.TORN and number < last_kept)
            or (fate is Fate.REORDERED and chance.random() < 0.6)
        )
        if is_kept and not lost.intersection(link.names()):
            survivors.append(link)
        else:
            lost.update(link.names())
    return survivors


class Image:
    """A file system in memory, as a crash left it."""

    def __init__(self, top: Directory) -> None:
        self._top = top
        self._entries: dict[Directory, dict[str, File | Directory]] = {top: {}}
        self._contents: dict[File, bytearray] = {}

    def write(self, write: Write) -> None:
        """Applies a write that survived the crash."""
        content = self._contents.setdefault(write.file, bytearray())
        if write.data is None:
            del content[write.position :]
            content.extend(bytes(write.position - len(content)))
        elif write.data:
            content.extend(bytes(max(write.position - len(content), 0)))
            content[write.position : write.position + len(write.data)] = write.data

    def link(self, link: Link) -> None:
        """Applies a change of names that survived the crash."""
        if link.former is not None:
            self._entries.setdefault(link.former[0], {}).pop(link.former[1], None)
        entries = self._entries.setdefault(link.folder, {})
        if link.target is None:
            entries.pop(link.name, None)
        else:
            entries[link.name] = link.target

    def digest(self, folder: Directory | None = None) -> int:
        """Returns a number that is equal for equal images."""
        entries = self._entries.get(folder or self._top, {}).items()
        return hash(
            tuple(
                (name, bytes(self._contents.get(target, b"")) if isinstance(target, File) else self.digest(target))
                for name, target in sorted(entries, key=lambda entry: entry[0])
            )
        )

    def put(self, path: Path, folder: Directory | None = None) -> None:
        """Writes the image as real files into an empty folder."""
        path.mkdir()
        for name, target in self._entries.get(folder or self._top, {}).items():
            if isinstance(target, File):
                (path / name).write_bytes(self._contents.get(target, b""))
            else:
                self.put(path / name, target)
