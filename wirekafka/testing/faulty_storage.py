"""A file system with injected faults: a crash between two calls, a torn write, a full disk, a loss of power."""

from __future__ import annotations

import errno
import os

from wirekafka.log.storage import Bytes, Storage


class Crash(BaseException):
    """The process has crashed; only the test may catch this exception."""


class FaultyStorage(Storage):
    """The real file system with faults.

    Attributes:
        calls: the number of calls so far that change something.
        crash_at: the number of the call in which the process crashes; None for never.
        torn_bytes: the bytes of a write that reach the disk before the crash.
        room_bytes: the free space of the disk; None for no limit.
        is_failing: every change fails with EIO.
        unsynced: for each file (by inode) its size at its last sync.
    """

    __slots__ = ("calls", "crash_at", "is_failing", "room_bytes", "torn_bytes", "unsynced")

    def __init__(self, *, crash_at: int | None = None, torn_bytes: int = 0) -> None:
        self.calls = 0
        self.crash_at = crash_at
        self.torn_bytes = torn_bytes
        self.room_bytes: int | None = None
        self.is_failing = False
        self.unsynced: dict[int, int] = {}

    @property
    def is_dead(self) -> bool:
        """Whether the crash has happened: every further call raises `Crash`."""
        return self.crash_at is not None and self.calls >= self.crash_at

    def _change(self) -> None:
        if self.is_dead:
            raise Crash
        self.calls += 1
        if self.is_dead:
            raise Crash
        if self.is_failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: str, *, create: bool = False) -> int:
        """As `Storage.open`, unless a fault is due."""
        if create:
            self._change()
        return super().open(path, create=create)

    def write(self, fd: int, data: Bytes, position: int) -> None:
        """As `Storage.write`, unless a fault is due."""
        try:
            self._change()
        except Crash:
            if self.calls == self.crash_at:
                self.calls += 1
                self.crash_at = self.calls
                super().write(fd, bytes(data)[: self.torn_bytes], position)
            raise
        info = os.fstat(fd)
        self.unsynced.setdefault(info.st_ino, min(info.st_size, position))
        if self.room_bytes is not None:
            fits = min(self.room_bytes, len(data))
            super().write(fd, bytes(data)[:fits], position)
            self.room_bytes -= fits
            if fits < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        super().write(fd, data, position)

    def truncate(self, fd: int, size: int) -> None:
        """As `Storage.truncate`, unless a fault is due."""
        self._change()
        super().truncate(fd, size)
        inode = os.fstat(fd).st_ino
        if inode in self.unsynced:
            self.unsynced[inode] = min(self.unsynced[inode], size)

    def sync(self, fd: int) -> None:
        """As `Storage.sync`, unless a fault is due."""
        self._change()
        self.unsynced.pop(os.fstat(fd).st_ino, None)

    def rename(self, path: str, new_path: str) -> None:
        """As `Storage.rename`, unless a fault is due."""
        self._change()
        super().rename(path, new_path)

    def remove(self, path: str) -> None:
        """As `Storage.remove`, unless a fault is due."""
        self._change()
        super().remove(path)

    def sync_folder(self, path: str) -> None:
        """As `Storage.sync_folder`, unless a fault is due."""
        self._change()

    def lose_power(self, path: str) -> None:
        """Truncates every file in the folder to its size at its last sync; the files and their names remain."""
        for name, info in Storage().files(path).items():
            if info.st_ino in self.unsynced:
                os.truncate(f"{path}/{name}", min(self.unsynced[info.st_ino], info.st_size))


class LostDirectoryStorage(Storage):
    """The real file system, in which one directory can fail.

    Attributes:
        lost: the directory in which every call fails; None for none.
        error_number: the errno of these failures.
        log_bytes_read: the number of bytes that were read from `.log` files.
    """

    __slots__ = ("error_number", "log_bytes_read", "lost")

    def __init__(self) -> None:
        self.lost: str | None = None
        self.error_number = errno.EIO
        self.log_bytes_read = 0

    def _check(self, path: str) -> None:
        if self.lost is not None and f"{path}/".startswith(f"{self.lost}/"):
            raise OSError(self.error_number, os.strerror(self.error_number))

    def open(self, path: str, *, create: bool = False) -> int:
        """As `Storage.open`, outside the lost directory."""
        self._check(path)
        return super().open(path, create=create)

    def write(self, fd: int, data: Bytes, position: int) -> None:
        """As `Storage.write`, outside the lost directory."""
        self._check(_path_of(fd))
        super().write(fd, data, position)

    def read(self, fd: int, size: int, position: int) -> bytes:
        """As `Storage.read`, outside the lost directory."""
        path = _path_of(fd)
        self._check(path)
        data = super().read(fd, size, position)
        self.log_bytes_read += len(data) if path.endswith(".log") else 0
        return data

    def sync(self, fd: int) -> None:
        """As `Storage.sync`, outside the lost directory."""
        self._check(_path_of(fd))
        super().sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """As `Storage.truncate`, outside the lost directory."""
        self._check(_path_of(fd))
        super().truncate(fd, size)

    def rename(self, path: str, new_path: str) -> None:
        """As `Storage.rename`, outside the lost directory."""
        self._check(path)
        self._check(new_path)
        super().rename(path, new_path)

    def make_folder(self, path: str) -> None:
        """As `Storage.make_folder`, outside the lost directory."""
        self._check(path)
        super().make_folder(path)

    def sync_folder(self, path: str) -> None:
        """As `Storage.sync_folder`, outside the lost directory."""
        self._check(path)
        super().sync_folder(path)

    def folders(self, path: str) -> list[str]:
        """As `Storage.folders`, outside the lost directory."""
        self._check(path)
        return super().folders(path)


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")
