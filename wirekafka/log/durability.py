"""Records which part of a partition's folder is on the disk: for each file and list of names, the written and the synced state.

How it works: every change of a file, of the folder's list of names, or of the folder's own name increments a number, the
written generation. A sync notes the written generation, waits for the disk, and then sets the synced generation to that number.
So a change during a sync does not count as synced, and two concurrent syncs do not rely on each other.

Rules of this file:
    Invariant: synced <= written, and neither ever decreases.
    One thread at a time increments the written generation of a file. The loop and the log cleaner's thread both change the
    folder's list of names, so its generation is incremented under the lock.
    After a failed sync the kernel may have dropped unwritten data, and reports the error only once. So no later sync counts
    (`SyncError`), and the data directory goes offline.

Source: KIP-112; kafka.log.LogManager and UnifiedLog, which take the log directory offline after any failed fsync.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from threading import Lock

_NOT_TRIED = {errno.ENOENT, errno.EMFILE, errno.ENFILE}
"""Errors of opening a folder for a sync: nothing was synced, and a later sync may succeed."""


class SyncError(OSError):
    """A sync failed: it is unknown which part of the written data is on the disk."""


class Generations:
    """The written and synced generations of one file or list of names.

    Attributes:
        written: incremented by each write.
        synced: all changes up to this written generation are on the disk.
    """

    __slots__ = ("synced", "written")

    def __init__(self) -> None:
        self.written = 0
        self.synced = 0

    @property
    def is_synced(self) -> bool:
        """Whether all written data is on the disk."""
        return self.synced == self.written


class DurabilityLedger:
    """The generations of all files in one folder, and of the folder.

    Attributes:
        names: the generations of the folder's list of files.
        place: the generations of the folder's own name in its parent folder.
        has_failed: a sync has failed, so nothing is known to be on the disk any more.
    """

    __slots__ = ("_files", "_lock", "has_failed", "names", "place")

    def __init__(self) -> None:
        self.names = Generations()
        self.place = Generations()
        self.has_failed = False
        self._files: dict[str, Generations] = {}
        self._lock = Lock()

    def file(self, name: str) -> Generations:
        """Returns the generations of the file that has or will have this name."""
        with self._lock:
            return self._files.setdefault(name, Generations())

    def note_written(self, name: str) -> None:
        """Notes a write to a file."""
        self.file(name).written += 1

    def note_linked(self) -> None:
        """Notes a change of the folder's list of names."""
        with self._lock:
            self.names.written += 1

    def note_renamed(self, name: str, new_name: str) -> None:
        """Records that a file was renamed, and drops the generations of the file that it replaced."""
        with self._lock:
            self.names.written += 1
            moved = self._files.pop(name, None)
            if moved is not None:
                self._files[new_name] = moved
            else:
                self._files.pop(new_name, None)

    def forget(self, name: str) -> None:
        """Drops the generations of a removed file."""
        with self._lock:
            self._files.pop(name, None)

    def unsynced(self) -> list[tuple[str, Generations, int]]:
        """Returns the names, generations and current written generations of the files with unsynced data."""
        with self._lock:
            return [(name, found, found.written) for name, found in self._files.items() if not found.is_synced]

    def sync(self, generations: Generations, written: int, work: Callable[[], object]) -> None:
        """Runs `work`, which waits for the disk, and then notes the written generation as synced. Runs in any thread.

        Args:
            written: the written generation of `generations` before this call.

        Raises:
            SyncError: this sync or an earlier one has failed.
            OSError: the sync could not be tried.
        """
        self.check()
        try:
            work()
        except OSError as error:
            if error.errno in _NOT_TRIED:
                raise
            self.has_failed = True
            raise SyncError(error.errno, f"a sync failed: {error.strerror or error}") from error
        with self._lock:
            self.check()
            generations.synced = max(generations.synced, written)

    def check(self) -> None:
        """Raises unless every sync so far has succeeded.

        Raises:
            SyncError: a sync has failed.
        """
        if self.has_failed:
            raise SyncError(errno.EIO, "a sync failed before")
