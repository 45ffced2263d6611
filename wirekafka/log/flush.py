"""One flush of one log: what is to reach the disk, taken down on the loop, brought there in any thread.

Rules of this file: a `Flush` holds the open files, so nothing it does depends on what the log does meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

from wirekafka.log.segment import Segment
from wirekafka.log.storage import FileHandle, Folder


class _Part(NamedTuple):
    segment: Segment
    file: FileHandle
    index_names: tuple[str, ...]


class Flush:
    """What a log has written since its last flush.

    Attributes:
        folder: where the log was when it was taken down.
        end_offset: everything before it is on the disk once `run` has returned.
    """

    __slots__ = ("_other_files", "_parts", "_unsynced_files", "end_offset", "folder")

    def __init__(self, folder: Folder, end_offset: int, unsynced_files: set[str]) -> None:
        """Takes over the names of the other files that were written; they come back if it does not run to its end."""
        self.end_offset = end_offset
        self.folder = folder
        self._other_files = sorted(unsynced_files)
        self._unsynced_files = unsynced_files
        self._parts: list[_Part] = []
        unsynced_files.clear()

    @property
    def is_empty(self) -> bool:
        """There is nothing to bring to the disk."""
        return not self._parts and not self._other_files and not self.folder.is_dirty

    def add(self, segment: Segment, *, with_indexes: bool) -> None:
        """Takes in a segment, as it is now."""
        names = segment.index_names if with_indexes else ()
        self._parts.append(_Part(segment, segment.file(), names))
        # Before the sync, so that an append while it runs is not taken for synced.
        segment.is_synced = True

    def run(self) -> None:
        """Waits for the disk. Runs in any thread.

        Raises:
            OSError: the disk has not confirmed.
        """
        storage = self.folder.storage
        try:
            for part in self._parts:
                storage.sync(part.file.fd)
                for name in part.index_names:
                    self._sync(name)
            for name in self._other_files:
                self._sync(name)
            self.folder.sync()
        except OSError:
            self.abandon()
            raise

    def abandon(self) -> None:
        """It will not run: what it was to bring to the disk still has to get there."""
        for part in self._parts:
            part.segment.is_synced = False
        self._unsynced_files.update(self._other_files)

    def _sync(self, name: str) -> None:
        try:
            file = self.folder.open(name)
        except FileNotFoundError:
            return  # Retention or compaction has taken the segment meanwhile.
        self.folder.storage.sync(file.fd)
