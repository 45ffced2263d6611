"""The interface to the file system: all access to data files and folders goes through this module.

The module owns the descriptors and the regions of files that are being sent to clients. `Storage` is the real file system. Tests
use subclasses that tear writes, fill the disk or crash between any two calls.

Rules of this file:
    Errors are `OSError`; `Log` maps them to KAFKA_STORAGE_ERROR.
    A write is complete or raises. After a failed write the file may hold any part of the data, and the caller cuts the file.
    A descriptor stays open while a `FileHandle` exists: a segment or a `FileRegion` holds it. So the sendfiles of a deleted or
    compacted segment complete, and no code closes descriptors explicitly.
"""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from wirekafka.log.durability import DurabilityLedger

Bytes = bytes | bytearray | memoryview


TEMPORARY_SUFFIX = ".tmp"
"""The suffix of a file that replaces another one once it is complete."""


class Storage:
    """The real file system."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> int:
        """Returns a descriptor for reading and writing; for reading only if the file system is read-only."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return os.open(path, flags, 0o644)
        except OSError:
            if create:
                raise
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def write(self, fd: int, data: Bytes, position: int) -> None:
        """Writes all of `data` at `position`.

        Durability: in the page cache; safe from a crash of this process, not of the machine.
        """
        written = os.pwrite(fd, data, position)
        while written < len(data):
            written += os.pwrite(fd, memoryview(data)[written:], position + written)

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Returns at most `size` bytes from `position`; fewer only at the end of the file."""
        data = os.pread(fd, size, position)
        if len(data) == size or not data:
            return data
        pieces = [data]
        missing = size - len(data)
        while missing and (data := os.pread(fd, missing, position + size - missing)):
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def truncate(self, fd: int, size: int) -> None:
        """Sets the size of the file."""
        os.ftruncate(fd, size)

    def preallocate(self, fd: int, size: int) -> None:
        """Reserves `size` bytes on the disk and sets the size of the file."""
        os.posix_fallocate(fd, 0, size)

    def sync(self, fd: int) -> None:
        """Waits until the file's data is on the disk."""
        os.fdatasync(fd)

    def modified_ns(self, fd: int) -> int:
        """Returns the time of the last write, in nanoseconds since the Unix epoch."""
        return os.fstat(fd).st_mtime_ns

    def set_modified_ns(self, fd: int, modified_ns: int) -> None:
        """Sets the time of the last write."""
        os.utime(fd, ns=(modified_ns, modified_ns))

    def close(self, fd: int) -> None:
        """Closes the descriptor."""
        os.close(fd)

    def rename(self, path: str, new_path: str) -> None:
        """Renames a file atomically, and replaces an existing one."""
        os.rename(path, new_path)

    def remove(self, path: str) -> None:
        """Removes a file; does nothing if the file does not exist."""
        with suppress(FileNotFoundError):
            os.unlink(path)

    def make_folder(self, path: str) -> None:
        """Creates a folder and its parents; does nothing if the folder exists."""
        os.makedirs(path, exist_ok=True)

    def remove_folder(self, path: str) -> None:
        """Removes an empty folder."""
        os.rmdir(path)

    def sync_folder(self, path: str) -> None:
        """Waits until the folder's list of files is on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def files(self, path: str) -> dict[str, os.stat_result]:
        """Returns the files in a folder, by name."""
        with os.scandir(path) as entries:
            return {entry.name: entry.stat() for entry in entries if entry.is_file()}

    def folders(self, path: str) -> list[str]:
        """Returns the names of the folders in a folder, sorted."""
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def read_file(self, path: str) -> bytes:
        """Returns the content of a file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self.read(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)

    def rewrite_file(self, path: str, data: bytes) -> None:
        """Replaces the content of a file in place. A crash may leave a part of it, so readers must check the content.

        Durability: as `write`.
        """
        fd = self.open(path, create=True)
        try:
            self.truncate(fd, 0)
            self.write(fd, data, 0)
        finally:
            self.close(fd)

    def write_file(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Replaces a file atomically: readers see the old content or the new content, never a part.

        Durability: with `sync`, the content and the name are on disk; without, as `write`.
        """
        temporary = path + TEMPORARY_SUFFIX
        fd = self.open(temporary, create=True)
        try:
            self.truncate(fd, 0)
            self.write(fd, data, 0)
            if sync:
                self.sync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        if sync:
            self.sync_folder(os.path.dirname(path))


class FileCut:
    """A later truncation of a file, for the regions of the file that connections still send.

    Attributes:
        kept_bytes: the bytes at the beginning of the file that the truncation has not removed; None if there was none.
    """

    __slots__ = ("kept_bytes",)

    def __init__(self) -> None:
        self.kept_bytes: int | None = None


class FileHandle:
    """An open file, whose descriptor is closed when no object holds the handle any more.

    Attributes:
        cut: tells whether the file was truncated since it was opened; None for a file that is never truncated.
    """

    __slots__ = ("_close", "cut", "fd")

    def __init__(self, fd: int, close: Callable[[int], None] = os.close) -> None:
        self.fd = fd
        self.cut: FileCut | None = None
        self._close = close

    def __del__(self) -> None:
        self._close(self.fd)


class FileRegion:
    """A range of a file's bytes, for sendfile or for reading.

    Attributes:
        file: the open file, which the region keeps open.
        position: the position of the first byte in the file.
        length: the bytes of the region; a region is never empty, until a sender of pieces has sent the last piece.
    """

    __slots__ = ("file", "length", "position")

    def __init__(self, file: FileHandle, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"<FileRegion of {self.length} bytes at {self.position}>"

    @property
    def is_cut(self) -> bool:
        """Whether bytes of the region were truncated since the file was opened, so that other records may be there now."""
        cut = self.file.cut
        return cut is not None and cut.kept_bytes is not None and self.position + self.length > cut.kept_bytes

    def read(self) -> bytes:
        """Returns the bytes of the region; fewer if the file was truncated meanwhile."""
        return Storage.read(_DISK, self.file.fd, self.length, self.position)


_DISK = Storage()


class Folder:
    """The folder of one partition. The object stays valid when the folder is renamed.

    Attributes:
        path: the current path.
        ledger: records which parts of the folder are on the disk.
    """

    __slots__ = ("ledger", "path", "storage")

    def __init__(self, path: str, storage: Storage) -> None:
        self.path = path
        self.storage = storage
        self.ledger = DurabilityLedger()

    def make(self) -> None:
        """Creates the folder; does nothing if it exists."""
        self.storage.make_folder(self.path)
        self.ledger.place.written += 1

    def path_of(self, name: str) -> str:
        """Returns the path of a file in the folder."""
        return f"{self.path}/{name}"

    def open(self, name: str, *, create: bool = False) -> FileHandle:
        """Opens a file in the folder."""
        fd = self.storage.open(f"{self.path}/{name}", create=create)
        if create:
            self.ledger.note_linked()
        return FileHandle(fd, self.storage.close)

    def read_file(self, name: str) -> bytes | None:
        """Returns the content of a file; None if the file does not exist."""
        try:
            return self.storage.read_file(f"{self.path}/{name}")
        except FileNotFoundError:
            return None

    def write_file(self, name: str, data: bytes, *, sync: bool = False) -> None:
        """Replaces a file atomically.

        Durability: as `Storage.write_file`.
        """
        ledger = self.ledger
        ledger.note_linked()
        generations, names = ledger.file(name), ledger.names.written
        generations.written = written = generations.written + 1
        self.storage.write_file(f"{self.path}/{name}", data, sync=sync)
        if sync:
            # `write_file` has synced the content and the name; the ledger only records that.
            ledger.sync(generations, written, _nothing)
            ledger.sync(ledger.names, names, _nothing)

    def rewrite_file(self, name: str, data: bytes) -> None:
        """Replaces the content of a file in place; see `Storage.rewrite_file`."""
        self.ledger.note_linked()
        self.ledger.note_written(name)
        self.storage.rewrite_file(f"{self.path}/{name}", data)

    def rename(self, name: str, new_name: str) -> None:
        """Renames a file; does nothing if the file does not exist."""
        with suppress(FileNotFoundError):
            self.storage.rename(f"{self.path}/{name}", f"{self.path}/{new_name}")
            self.ledger.note_renamed(name, new_name)

    def remove(self, name: str) -> None:
        """Removes a file; does nothing if the file does not exist."""
        self.storage.remove(f"{self.path}/{name}")
        self.ledger.forget(name)

    def move(self, new_path: str) -> None:
        """Renames the folder itself; open files stay open."""
        self.storage.rename(self.path, new_path)
        self.path = new_path
        self.ledger.place.written += 1

    def delete(self) -> None:
        """Removes the folder and its files, as far as the file system permits."""
        with suppress(OSError):
            for name in self.storage.files(self.path):
                self.remove(name)
            self.storage.remove_folder(self.path)

    def sync_file(self, name: str, file: FileHandle) -> None:
        """Waits until all data that was written to a file is on the disk. Runs in any thread.

        Raises:
            SyncError, OSError: see `DurabilityLedger.sync`.
        """
        generations = self.ledger.file(name)
        self.ledger.sync(generations, generations.written, lambda: self.storage.sync(file.fd))

    def sync(self) -> None:
        """Waits until the folder's list of files, and its own name, are on the disk, if they changed. Runs in any thread.

        Raises:
            SyncError, OSError: see `DurabilityLedger.sync`.
        """
        ledger, storage, path = self.ledger, self.storage, self.path
        if not ledger.names.is_synced:
            ledger.sync(ledger.names, ledger.names.written, lambda: storage.sync_folder(path))
        if not ledger.place.is_synced:
            ledger.sync(ledger.place, ledger.place.written, lambda: storage.sync_folder(os.path.dirname(path)))


def _nothing() -> None:
    """Does nothing, because the disk has the data already."""


class HandleHolder(Protocol):
    """An object that keeps a file open and can open it again."""

    handle: FileHandle | None


class HandlePool:
    """Limits the number of open files: closes the file that was opened first; its holder opens the file again when needed.

    Args:
        limit: the most open files; half of the process's limit if not given.
    """

    __slots__ = ("_holders", "limit")

    def __init__(self, limit: int | None = None) -> None:
        if limit is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            limit = 1 << 20 if soft == resource.RLIM_INFINITY else soft // 2
        self.limit = limit
        self._holders: OrderedDict[HandleHolder, None] = OrderedDict()
        """The holders in the order of their opens. Threads of recovery and compaction change it too, each time in one atomic
        call."""

    def __len__(self) -> int:
        return len(self._holders)

    def admit(self, holder: HandleHolder) -> None:
        """Adds a holder that has opened its file."""
        while len(self._holders) >= max(self.limit, 1):
            with suppress(KeyError):
                oldest, _ = self._holders.popitem(last=False)
                oldest.handle = None
        self._holders[holder] = None

    def release(self, holder: HandleHolder) -> None:
        """Closes the holder's file, if it is open."""
        self._holders.pop(holder, None)
        holder.handle = None
