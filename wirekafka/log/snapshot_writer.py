"""Writes a `.snapshot` file a few producers at a time, so that a roll does not hold the broker's loop.

How it works: a log with many producers begins a `SlicedSnapshot` when it rolls, and calls `write_slice` from a timer until
the file is complete. The slices go to a temporary file, which gets its name at the end. The roll itself needs no snapshot:
recovery takes the last complete one and replays the batches after it.

Rules of this file:
    A `.snapshot` file has its name only once it is complete.
    No file stays open between two slices.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager.takeSnapshot, which writes all producers at once.
"""

from __future__ import annotations

from contextlib import suppress

from wirekafka.log.producer_snapshot import HEAD_BYTES, SlicedSnapshot
from wirekafka.log.segment_files import SNAPSHOT_SUFFIX, file_name
from wirekafka.log.storage import Folder

SLICE_PRODUCERS = 2000
"""Producers in one slice, which takes 2.5 ms. A log with no more producers writes its snapshot at once."""
PAUSE_MS = 5
"""Time between two slices. Snapshots take at most a third of the loop's time."""
_TEMPORARY_SUFFIX = ".tmp"
"""The next start removes such files."""


class SnapshotWriter:
    """Writes one snapshot to a folder.

    Attributes:
        snapshot: the producers at the offset of the snapshot.
    """

    __slots__ = ("_folder", "_name", "_position", "snapshot")

    def __init__(self, folder: Folder, snapshot: SlicedSnapshot) -> None:
        self.snapshot = snapshot
        self._folder = folder
        self._name = file_name(snapshot.offset, SNAPSHOT_SUFFIX)
        self._position = HEAD_BYTES

    def write_slice(self) -> bool:
        """Writes the next producers; returns whether the file is complete and has its name.

        Raises:
            OSError: the slice is not written; `abandon` removes the temporary file.

        Durability: in the page cache.
        """
        folder, temporary = self._folder, self._name + _TEMPORARY_SUFFIX
        file = folder.open(temporary, create=True)
        if self._position == HEAD_BYTES:
            folder.storage.truncate(file.fd, 0)
        folder.ledger.note_written(temporary)
        entries = self.snapshot.pack(SLICE_PRODUCERS)
        if entries:
            folder.storage.write(file.fd, entries, self._position)
            self._position += len(entries)
            return False
        folder.storage.write(file.fd, self.snapshot.pack_head(), 0)
        folder.rename(temporary, self._name)
        return True

    def abandon(self) -> None:
        """Removes the temporary file; `write_slice` must not be called again."""
        with suppress(OSError):
            self._folder.remove(self._name + _TEMPORARY_SUFFIX)
