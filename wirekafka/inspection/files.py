"""The files of a data directory: their kinds, the folders of partitions, and reads in chunks.

Rules of this file: no file is opened for writing. The size of each read is bounded, except for a single batch.
"""

from __future__ import annotations

import errno
import os
import re
import stat
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
from wirekafka.log.directory import DELETED_FOLDER_SUFFIX, FUTURE_FOLDER_SUFFIX, STRAY_FOLDER_SUFFIX, partition_of_folder
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.storage import FileHandle, Storage
from wirekafka.names import TopicPartition

Advance = Callable[[int], object]
"""Called with the number of further bytes that were read."""

_STORAGE = Storage()
_ENTRIES_BYTES = 1 << 18
_LATER_SUFFIXES = re.compile(r"\.(deleted|swap|cleaned)$")
_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)")
_KRAFT_SNAPSHOT = re.compile(r"\d{20}-\d{10}\.checkpoint")


class Kind(Enum):
    """The kind of a file; the value is its suffix or its name."""

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
    """A file is damaged.

    Attributes:
        position: the byte in the file; None if the damage concerns the whole file.
        offset: the offset of the first affected record; None if no record is affected.
        is_torn: the only damage is that the file ends too early, or in zeros, as after an unfinished write.
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
    """Returns the kind of a file, by its name; None if Apache Kafka has no file of such a name."""
    name = _LATER_SUFFIXES.sub("", os.path.basename(path))
    match = _SEGMENT_FILE.fullmatch(name)
    if match is not None:
        return Kind(match[2])
    # KRaft's snapshots of metadata hold batches, as a log does.
    return Kind.LOG if _KRAFT_SNAPSHOT.fullmatch(name) else _KINDS_BY_NAME.get(name)


def base_offset_of(path: str) -> int:
    """Returns the base offset in the name of a segment's file; for a snapshot, the offset at which it was taken."""
    return int(os.path.basename(path)[:20])


def files_in(folder: str) -> list[str]:
    """Returns the sorted names of the files of a known kind, without those that are being deleted or replaced."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_file() and kind_of(entry.name) is not None]
    return sorted(name for name in names if not _LATER_SUFFIXES.search(name))


def partition_folders(root: str) -> list[str]:
    """Returns the folders of the partitions in a data directory; the folder itself if it is a partition's."""
    if holds_partition(root):
        return [root]
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and partition_of_folder(entry.name) is not None)
    return [os.path.join(root, name) for name in names]


def partitions_of_other_folders(root: str) -> set[TopicPartition]:
    """Returns the partitions that were deleted, moved away or stray, or that were moving to the data directory, by their folders.

    Names of more than 200 characters may be missing, because the names of deleted and stray folders are cut.
    """
    suffixes = (DELETED_FOLDER_SUFFIX, FUTURE_FOLDER_SUFFIX, STRAY_FOLDER_SUFFIX)
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(suffixes)]
    partitions = (partition_of_folder(name.rpartition(".")[0]) for name in names)
    return {partition for partition in partitions if partition is not None}


def holds_partition(folder: str) -> bool:
    """Whether the folder is that of a partition, and not a data directory."""
    kinds = {kind_of(name) for name in files_in(folder)}
    return bool(kinds & {Kind.LOG, Kind.PARTITION_METADATA, Kind.LEADER_EPOCHS})


def holds_data(root: str) -> bool:
    """Whether a folder is a data directory or a partition's folder. Its files show that; its name does not count."""
    return bool(files_in(root)) or any(files_in(folder) for folder in partition_folders(root))


def size_of(path: str) -> int:
    """Returns the size of a file in bytes; 0 if it was deleted."""
    with suppress(FileNotFoundError):
        return os.stat(path).st_size
    return 0


class DataFile:
    """A file that is read in chunks.

    Attributes:
        size: the size in bytes when the file was opened; later appends are not read.

    Raises:
        OSError: the file cannot be opened, or is a directory, a pipe or a device.
    """

    __slots__ = ("_handle", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        self._handle = FileHandle(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        status = os.fstat(self._handle.fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "this is not a regular file", path)
        self.size = status.st_size

    def current_size(self) -> int:
        """Returns the size of the file now."""
        return os.fstat(self._handle.fd).st_size

    def read(self, size: int, position: int) -> bytes:
        """Returns at most `size` bytes from `position`; fewer only at the end of the file."""
        return _STORAGE.read(self._handle.fd, size, position)

    def chunks(self, position: int, end: int, size: int) -> Iterator[bytes]:
        """Yields the bytes between two positions, in chunks of at most `size`."""
        while position < end:
            chunk = self.read(min(size, end - position), position)
            if not chunk:
                return
            yield chunk
            position += len(chunk)

    def is_zero_from(self, position: int) -> bool:
        """Whether all bytes from `position` on are zero."""
        return all(chunk.count(0) == len(chunk) for chunk in self.chunks(position, self.size, _ENTRIES_BYTES))

    def entries(self, entry: Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yields the entries of an index, each with its position.

        Raises:
            DamageError: the file ends inside an entry.
        """
        position = 0
        for chunk in self.chunks(0, self.size - self.size % entry.size, _ENTRIES_BYTES // entry.size * entry.size):
            for fields in entry.iter_unpack(chunk[: len(chunk) - len(chunk) % entry.size]):
                yield position, fields
                position += entry.size
        if self.size % entry.size:
            reason = f"it ends inside an entry: {self.size} bytes are not a multiple of {entry.size}"
            raise DamageError(self.path, reason, position=position)


def read_whole(path: str) -> bytes:
    """Returns the content of a small file.

    Raises:
        OSError: the file cannot be read.
    """
    file = DataFile(path)
    return file.read(file.size, 0)


def read_beginning(path: str, most_bytes: int) -> bytes:
    """Returns the content of a file, or so many bytes from its beginning.

    Raises:
        OSError: the file cannot be read.
    """
    file = DataFile(path)
    return file.read(min(file.size, most_bytes), 0)
