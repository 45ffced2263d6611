"""The flushes of one log: each is prepared and completed on the loop, and runs in any thread.

Rules of this file:
    Invariant: recovery_point <= log_end_offset; the records before the recovery point survive a crash of the machine.
    A `Flush` holds the generations that it syncs, so it does not depend on other flushes.
    A `Flush` opens at most one file at a time, and holds only the files of segments that were open when it was prepared: a
    broker has more logs than a process may have descriptors.
    A missing file was removed or renamed with its segment, and this flush need not sync it: retention has deleted the records,
    compaction has synced the segment that replaces the file, and `Flusher.complete` ignores a flush of a log that was
    truncated or moved since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wirekafka.config import LogConfig
from wirekafka.log.context import LogContext
from wirekafka.log.durability import Generations
from wirekafka.log.readable_log import ReadableLog
from wirekafka.log.segment import Segment
from wirekafka.log.segment_files import CLEANED_SUFFIX, DELETED_SUFFIX
from wirekafka.log.storage import FileHandle, Folder

_NEEDLESS = (DELETED_SUFFIX, CLEANED_SUFFIX)
"""Files that the next start removes."""
_NEVER = 1 << 62
"""Greater values of `flush.ms` and `flush.messages` mean never; Kafka's default is the largest long."""


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


def is_flushed_after_appends(config: LogConfig) -> bool:
    """Whether `Flusher.on_append` has anything to do with these settings of a topic."""
    return config.flush_messages < _NEVER or config.flush_ms < _NEVER


class Flusher:
    """Syncs one log to the disk.

    Attributes:
        recovery_point: all records before this offset are on the disk.
    """

    __slots__ = ("_is_requested", "_log", "_services", "recovery_point")

    def __init__(self, reader: ReadableLog, services: LogContext, recovery_point: int) -> None:
        self.recovery_point = recovery_point
        self._log = reader
        self._services = services
        self._is_requested = False

    def flush(self) -> None:
        """Waits until all appended records are on the disk.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.

        Durability: everything before `log_end_offset`, safe from a crash of the machine.
        """
        with self._log.on_disk("flush"):
            flush = self.prepare()
            flush.run()
        self.complete(flush)

    def prepare(self) -> Flush:
        """Returns a flush of all records that are appended now; it may run in a thread during further appends."""
        log = self._log
        return Flush(log.folder, log.segments, log.log_end_offset, log.truncation_count)

    def complete(self, flush: Flush) -> None:
        """Advances the recovery point after a flush has run.

        The flush is ignored if the log was moved or truncated after `prepare`, or if a sync of its folder has failed.
        """
        log = self._log
        is_current = flush.folder is log.folder and flush.truncation_count == log.truncation_count
        if is_current and not log.folder.ledger.has_failed:
            self.recovery_point = max(self.recovery_point, min(flush.end_offset, log.log_end_offset))

    def on_append(self) -> None:
        """Flushes the log, or schedules a flush, as `flush.messages` and `flush.ms` require; see `is_flushed_after_appends`.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the records are in the log, and a crash may lose them.
        """
        log = self._log
        config = log.config
        if log.log_end_offset - self.recovery_point >= config.flush_messages:
            self.flush()
        elif config.flush_ms < _NEVER and not self._is_requested:
            self._is_requested = True
            self._services.call_later(config.flush_ms, self._request)

    def _request(self) -> None:
        """Requests a flush; called `flush.ms` after the first append since the last request."""
        self._is_requested = False
        if not self._log.is_closed and self.recovery_point < self._log.log_end_offset:
            self._services.request_flush(self._log)

    def retreat(self, offset: int, *, is_stored: bool) -> None:
        """Notes a truncation, and moves the recovery point back to `offset`, before the records from there on are removed.

        Args:
            is_stored: other offsets of the log must be stored too.

        Raises:
            OSError: the offsets are not stored.

        Durability: the recovery point, and the other offsets if `is_stored`, are on disk.
        """
        self._log.truncation_count += 1
        if self.recovery_point <= offset and not is_stored:
            return
        former = self.recovery_point
        self.recovery_point = min(former, offset)
        try:
            self._services.store_offsets(self._log)
        except OSError:
            # The next truncation must store it again: recovery refuses a log that ends before the stored recovery point.
            self.recovery_point = former
            raise
