"""What lies in a data directory: files by kind, the folders of partitions, and a file that is read in pieces.

Rules of this file: nothing is ever opened for writing. Whatever is read is bounded, but for one batch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from struct import Struct

from wirekafka.log.checkpoint import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
)
from wirekafka.log.directory import partition_of_folder
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.storage import FileHandle, Storage

Advance = Callable[[int], object]
"""Told how many bytes more were looked at."""

_STORAGE = Storage()
_ENTRIES_BYTES = 1 << 18
_LATER_SUFFIXES = re.compile(r"\.(deleted|swap|cleaned)$")
_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)")
_KRAFT_SNAPSHOT = re.compile(r"\d{20}-\d{10}\.checkpoint")


class Kind(Enum):
    """What a file holds; the value is its suffix, where it has one."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    PRODUCERS = "snapshot"
    LEADER_EPOCHS = EPOCHS_FILE
    PARTITION_METADATA = PARTITION_METADATA
    OFFSETS = "checkpoint"
    META_PROPERTIES = META_PROPERTIES
    CLEAN_SHUTDOWN = CLEAN_SHUTDOWN


OFFSET_CHECKPOINTS = (LOG_START_OFFSETS, RECOVERY_POINTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
_KINDS_BY_NAME = {
    **dict.fromkeys(OFFSET_CHECKPOINTS, Kind.OFFSETS),
    EPOCHS_FILE: Kind.LEADER_EPOCHS,
    PARTITION_METADATA: Kind.PARTITION_METADATA,
    META_PROPERTIES: Kind.META_PROPERTIES,
    CLEAN_SHUTDOWN: Kind.CLEAN_SHUTDOWN,
}


class DamageError(Exception):
    """A file is not what it should be, and where.

    Attributes:
        position: in the file; None where the whole file is meant.
        offset: of the first record that is in doubt; None where no record is.
        is_torn: the file merely ends too early, or in zeros: what a write leaves that is not finished.
    """

    def __init__(
        self, path: str, reason: str, *, position: int | None = None, offset: int | None = None, is_torn: bool = False
    ) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.position = position
        self.offset = offset
        self.is_torn = is_torn

    def __str__(self) -> str:
        places = [f"at byte {self.position}" if self.position is not None else ""]
        places.append(f"offset {self.offset}" if self.offset is not None else "")
        where = ", ".join(filter(None, (self.path, *places)))
        return f"{where}: {self.reason}"


def kind_of(path: str) -> Kind | None:
    """What the file holds, by its name; None for what is no file of Apache Kafka's."""
    name = _LATER_SUFFIXES.sub("", os.path.basename(path))
    match = _SEGMENT_FILE.fullmatch(name)
    if match is not None:
        return Kind(match[2])
    # KRaft's snapshots of metadata are batches, as a log's.
    return Kind.LOG if _KRAFT_SNAPSHOT.fullmatch(name) else _KINDS_BY_NAME.get(name)


def base_offset_of(path: str) -> int:
    """What the offsets in a segment's file are relative to; for a snapshot, where it was taken."""
    return int(os.path.basename(path)[:20])


def files_in(folder: str) -> list[str]:
    """The names of the files in a folder that are of a kind, in order; not those that are on their way out or in."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_file() and kind_of(entry.name) is not None]
    return sorted(name for name in names if not _LATER_SUFFIXES.search(name))


def partition_folders(root: str) -> list[str]:
    """The folders of partitions: those in a data directory, or this one itself."""
    if holds_partition(root):
        return [root]
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and partition_of_folder(entry.name) is not None)
    return [os.path.join(root, name) for name in names]


def holds_partition(folder: str) -> bool:
    """Whether the folder is a partition's and not a data directory."""
    kinds = {kind_of(name) for name in files_in(folder)}
    return bool(kinds & {Kind.LOG, Kind.PARTITION_METADATA, Kind.LEADER_EPOCHS})


def holds_data(root: str) -> bool:
    """Whether a folder is a data directory or a partition's folder: its name alone says nothing, a file of a broker does."""
    return bool(files_in(root)) or any(files_in(folder) for folder in partition_folders(root))


def size_of(path: str) -> int:
    """The size of a file; 0 if it is gone."""
    with suppress(FileNotFoundError):
        return os.stat(path).st_size
    return 0


class DataFile:
    """A file that is read in pieces.

    Attributes:
        size: how far it is read; what is appended later is not looked at.
    """

    __slots__ = ("_handle", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self._handle = FileHandle(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        self.size = self.current_size()

    def current_size(self) -> int:
        """Its size by now."""
        return os.fstat(self._handle.fd).st_size

    def read(self, size: int, position: int) -> bytes:
        """At most `size` bytes from `position`; fewer only at its end."""
        return _STORAGE.read(self._handle.fd, size, position)

    def chunks(self, position: int, end: int, size: int) -> Iterator[bytes]:
        """The bytes between two positions, in pieces of at most `size`."""
        while position < end:
            chunk = self.read(min(size, end - position), position)
            if not chunk:
                return
            yield chunk
            position += len(chunk)

    def is_zero_from(self, position: int) -> bool:
        """Whether there is nothing but zeros from `position` on."""
        return all(chunk.count(0) == len(chunk) for chunk in self.chunks(position, self.size, _ENTRIES_BYTES))

    def entries(self, entry: Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
        """What an index holds, each entry with its position.

        Raises:
            DamageError: the file ends in the midst of an entry.
        """
        position = 0
        for chunk in self.chunks(0, self.size - self.size % entry.size, _ENTRIES_BYTES // entry.size * entry.size):
            for fields in entry.iter_unpack(chunk[: len(chunk) - len(chunk) % entry.size]):
                yield position, fields
                position += entry.size
        if self.size % entry.size:
            reason = f"it ends in the midst of an entry: {self.size} bytes are no multiple of {entry.size}"
            raise DamageError(self.path, reason, position=position)


def read_whole(path: str) -> bytes:
    """All of one of the small files.

    Raises:
        OSError: it cannot be read.
    """
    return _STORAGE.read_file(path)
