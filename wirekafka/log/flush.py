"""One flush of one log: prepared on the loop, and run in any thread.

Rules of this file:
    A `Flush` holds the generations that it syncs, so it does not depend on other flushes.
    A `Flush` opens at most one file at a time, and holds only the files of segments that were open when it was prepared: a
    broker has more logs than a process may have descriptors.
    A missing file was removed or renamed with its segment, and this flush need not sync it: retention has deleted the records,
    compaction has synced the segment that replaces the file, and `Log.complete_flush` ignores a flush of a log that was
    truncated or moved since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wirekafka.log.durability import Generations
from wirekafka.log.segment import Segment
from wirekafka.log.segment_files import CLEANED_SUFFIX, DELETED_SUFFIX
from wirekafka.log.storage import FileHandle, Folder

_NEEDLESS = (DELETED_SUFFIX, CLEANED_SUFFIX)
"""Files that the next start removes."""


class _Part(NamedTuple):
    """A file that the flush syncs.

    Attributes:
        written: the written generation that the flush syncs; a later write needs a later flush.
        file: None for a file that `Flush.run` opens.
    """

    name: str
    generations: Generations
    written: int
    file: FileHandle | None


class Flush:
    """The unsynced data of a log at the time when the flush was prepared.

    Attributes:
        folder: the folder of the log when the flush was prepared.
        end_offset: all records before this offset are on the disk once `run` has returned.
        truncation_count: the number of the log's truncations when the flush was prepared.
    """

    __slots__ = ("_parts", "end_offset", "folder", "truncation_count")

    def __init__(self, folder: Folder, segments: Iterable[Segment], end_offset: int, truncation_count: int) -> None:
        """Notes the files with unsynced data."""
        self.folder = folder
        self.end_offset = end_offset
        self.truncation_count = truncation_count
        handles = {segment.log_name: segment.handle for segment in segments if not segment.contents.is_synced}
        self._parts = [
            _Part(name, generations, written, handles.get(name))
            for name, generations, written in folder.ledger.unsynced()
            if not name.endswith(_NEEDLESS)
        ]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to sync."""
        ledger = self.folder.ledger
        return not self._parts and ledger.names.is_synced and ledger.place.is_synced

    def run(self) -> None:
        """Syncs the files and the folder. Runs in any thread.

        Raises:
            SyncError: a sync has failed.
            OSError: a file cannot be opened.
        """
        for part in self._parts:
            self._sync(part)
        self.folder.sync()

    def _sync(self, part: _Part) -> None:
        file = part.file
        if file is None:
            try:
                file = self.folder.open(part.name)
            except FileNotFoundError:
                return
        fd = file.fd
        self.folder.ledger.sync(part.generations, part.written, lambda: self.folder.storage.sync(fd))
