"""What of a partition's folder is on the disk: for each file and each list of names, what was written and what was synced.

Theory of operation: every change of a file, of the folder's list of names, or of the folder's own name raises a number, the
written generation. A sync notes the written generation, waits for the disk, and then makes the synced generation that number.
So a change that comes while a sync runs is not taken for synced, and of two syncs that run at once neither relies on the other.

Rules of this file:
    Invariant: synced <= written, and neither ever falls.
    The written generation of one file is raised by one thread at a time; the folder's list of names is changed by the loop and by
    the thread of the log cleaner, so it is raised under the lock.
    After a sync that failed the kernel may have dropped what was not written, and says so only once: no later sync counts
    (`SyncError`), and the data directory goes offline.

Source: KIP-112; kafka.log.LogManager and UnifiedLog, which take the log directory offline after any failed fsync.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from threading import Lock

_NOT_TRIED = {errno.ENOENT, errno.EMFILE, errno.ENFILE}
"""Errors of opening a folder in order to sync it: nothing was synced, and a later sync may succeed."""


class SyncError(OSError):
    """The disk has not confirmed what was written; how much of it is on the disk, nobody can say."""


class Generations:
    """How often something was written, and up to which of these times it is on the disk.

    Attributes:
        written: raised by each write.
        synced: everything up to this written generation is on the disk.
    """

    __slots__ = ("synced", "written")

    def __init__(self) -> None:
        self.written = 0
        self.synced = 0

    @property
    def is_synced(self) -> bool:
        """Whether all that was written is on the disk."""
        return self.synced == self.written


class DurabilityLedger:
    """The generations of everything in one folder.

    Attributes:
        names: of the folder's list of files.
        place: of the folder's own name in the folder above it.
        has_failed: a sync has failed; nothing is known to be on the disk any more.
    """

    __slots__ = ("_files", "_lock", "has_failed", "names", "place")

    def __init__(self) -> None:
        self.names = Generations()
        self.place = Generations()
        self.has_failed = False
        self._files: dict[str, Generations] = {}
        self._lock = Lock()

    def file(self, name: str) -> Generations:
        """The generations of the file that has this name, or will have it."""
        with self._lock:
            return self._files.setdefault(name, Generations())

    def note_written(self, name: str) -> None:
        """A file was written."""
        self.file(name).written += 1

    def note_linked(self) -> None:
        """The folder's list of names has changed."""
        with self._lock:
            self.names.written += 1

    def note_renamed(self, name: str, new_name: str) -> None:
        """A file has a new name; what was known of the file that had it before is forgotten."""
        with self._lock:
            self.names.written += 1
            moved = self._files.pop(name, None)
            if moved is not None:
                self._files[new_name] = moved
            else:
                self._files.pop(new_name, None)

    def forget(self, name: str) -> None:
        """A file was removed."""
        with self._lock:
            self._files.pop(name, None)

    def unsynced(self) -> list[tuple[str, Generations, int]]:
        """The files that are not on the disk as they are: their names, their generations, and what was written by now."""
        with self._lock:
            return [(name, found, found.written) for name, found in self._files.items() if not found.is_synced]

    def sync(self, generations: Generations, written: int, work: Callable[[], object]) -> None:
        """Has `work` wait for the disk; then everything up to the written generation is on it. Runs in any thread.

        Args:
            written: the written generation of `generations` at a time before this call.

        Raises:
            SyncError: this sync has failed, or one before it.
            OSError: it could not be tried.
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
            SyncError: one has failed.
        """
        if self.has_failed:
            raise SyncError(errno.EIO, "a sync failed before")
