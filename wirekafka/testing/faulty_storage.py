"""A file system that fails when it is told to: crashes between two calls, torn writes, a full disk, lost power."""

from __future__ import annotations

import errno
import os

from wirekafka.log.storage import Bytes, Storage


class Crash(BaseException):
    """The process is gone; nothing may catch this but the test."""


class FaultyStorage(Storage):
    """The real file system, but for what it is told.

    Attributes:
        calls: calls so far that change something.
        crash_at: the number of the call that does not come back; None for never.
        torn_bytes: how much of a write the crash lets through.
        room_bytes: what the disk still takes; None for no limit.
        is_failing: every change fails with EIO.
        unsynced: for each file (by inode) how long it was when it was last synced.
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
        """The crash has happened: every further call raises `Crash`."""
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
        """Cuts every file in the folder back to what was synced of it; files themselves and their names stay."""
        for name, info in Storage().files(path).items():
            if info.st_ino in self.unsynced:
                os.truncate(f"{path}/{name}", min(self.unsynced[info.st_ino], info.st_size))


class LostDirectoryStorage(Storage):
    """The real file system, until a directory of it is lost.

    Attributes:
        lost: the directory in which nothing works any more; None for none.
        error_number: what its calls end with.
        log_bytes_read: how much was read of `.log` files.
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
