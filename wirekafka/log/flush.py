"""One flush of one log: what is to reach the disk, taken down on the loop, brought there in any thread.

Rules of this file:
    A `Flush` holds the generations that it syncs, so nothing it does depends on other flushes.
    A `Flush` opens at most one file at a time. It holds the files of segments that were open when it was prepared, and no more:
    a broker has more logs than a process may have descriptors.
    A file that is not found under its name was removed or renamed with its segment, and needs no sync by this flush: retention
    has removed the records, compaction has synced the segment that replaces the file, and `Log.complete_flush` ignores a flush
    of a log that was truncated or moved since.
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
    """A file that is to reach the disk.

    Attributes:
        written: the written generation that counts; a later write is left to a later flush.
        file: None for a file that `Flush.run` opens.
    """

    name: str
    generations: Generations
    written: int
    file: FileHandle | None


class Flush:
    """What a log had written and not synced when the flush was prepared.

    Attributes:
        folder: where the log was when the flush was prepared.
        end_offset: everything before it is on the disk once `run` has returned.
        truncation_count: how often the log had been truncated.
    """

    __slots__ = ("_parts", "end_offset", "folder", "truncation_count")

    def __init__(self, folder: Folder, segments: Iterable[Segment], end_offset: int, truncation_count: int) -> None:
        """Notes what is not on the disk now."""
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
        """There is nothing to bring to the disk."""
        ledger = self.folder.ledger
        return not self._parts and ledger.names.is_synced and ledger.place.is_synced

    def run(self) -> None:
        """Waits for the disk. Runs in any thread.

        Raises:
            SyncError: the disk has not confirmed.
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
