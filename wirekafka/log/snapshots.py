"""The `.snapshot` files of one log: the producers at the offset in the name of the file.

How it works: a roll writes a snapshot at the base offset of the new segment, and a clean shutdown one at the log end
offset. Few producers are written at once, and many in slices from a timer. Recovery and truncation take the last good snapshot,
and replay the batches after it; a roll without a snapshot only makes that replay longer.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager; UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from wirekafka.log.context import LogContext
from wirekafka.log.producer_snapshot import CorruptSnapshotError
from wirekafka.log.readable_log import ReadableLog
from wirekafka.log.recovery import replay
from wirekafka.log.segment_files import SNAPSHOT_SUFFIX, file_name
from wirekafka.log.snapshot_writer import PAUSE_MS, SLICE_PRODUCERS, SnapshotWriter


class ProducerSnapshots:
    """Writes and reads the snapshots of one log's producers."""

    __slots__ = ("_log", "_services", "_writer")

    def __init__(self, reader: ReadableLog, services: LogContext) -> None:
        self._log = reader
        self._services = services
        self._writer: SnapshotWriter | None = None

    def begin(self) -> None:
        """Writes few producers at once, and many in slices; a roll during these has no snapshot.

        Raises:
            OSError: there is no snapshot.
        """
        producers = self._log.producers
        if len(producers) <= SLICE_PRODUCERS:
            self.abandon()
            self._write_all()
        elif self._writer is None and producers.snapshot_offset != producers.end_offset:
            self._writer = SnapshotWriter(self._log.folder, producers.begin_snapshot())
            self._services.call_later(PAUSE_MS, partial(self._write_slice, self._writer))

    def write_for_restart(self) -> None:
        """Writes all producers at once, for the next start. Runs in any thread.

        Raises:
            OSError: there is no snapshot.
        """
        self.abandon()
        if len(self._log.producers) or self._log.producers.snapshot_offset is not None:
            self._write_all()

    def _write_all(self) -> None:
        """Writes all producers to a `.snapshot` file. Recovery ignores a file with a wrong CRC and takes an older one."""
        producers = self._log.producers
        if producers.snapshot_offset != producers.end_offset:
            name = file_name(producers.end_offset, SNAPSHOT_SUFFIX)
            self._log.folder.rewrite_file(name, producers.write_snapshot())
            producers.snapshot_offset = producers.end_offset

    def _write_slice(self, writer: SnapshotWriter) -> None:
        if writer is not self._writer or self._log.is_closed:
            return
        try:
            is_complete = writer.write_slice()
        except OSError as error:
            self.abandon()
            self._log.note_disk_error("write a snapshot of producers", error)
            return
        except Exception:
            self.abandon()
            raise
        if is_complete:
            self._writer = None
            self._log.producers.end_snapshot()
            self._log.producers.snapshot_offset = writer.snapshot.offset
        else:
            self._services.call_later(PAUSE_MS, partial(self._write_slice, writer))

    def abandon(self) -> None:
        """Removes the snapshot that is being written in slices, if there is one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._log.producers.end_snapshot()
            writer.abandon()

    def remove_after(self, offset: int) -> None:
        """Removes the snapshots after `offset`, of records that the log will no longer hold.

        Raises:
            OSError: some of these snapshots are still there.
        """
        folder = self._log.folder
        for name in folder.storage.files(folder.path):
            if name.endswith(SNAPSHOT_SUFFIX) and int(name[:20]) > offset:
                folder.remove(name)

    def restore(self) -> None:
        """Restores the producers at the log end offset, from the last good snapshot or from the first batch.

        Raises:
            OSError: a file cannot be read.
        """
        producers, segments = self._log.producers, self._log.segments.items
        producers.clear(segments[0].base_offset)
        for segment in reversed(segments):
            data = self._log.folder.read_file(file_name(segment.base_offset, SNAPSHOT_SUFFIX))
            with suppress(CorruptSnapshotError):
                if data is not None:
                    producers.read_snapshot(data, segment.base_offset)
                    break
        replay(producers, segments, self._log.log_end_offset, high_watermark=self._log.high_watermark)
