"""The leader epochs of a partition: at which offset each began.

Rules of this file: pure, but for the text of the checkpoint, which is Apache Kafka's.
Invariant: epochs and start offsets grow strictly.

Source: KIP-101; org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from wirekafka.log.checkpoint import MalformedFileError, read_lines, write_lines

FILE_NAME = "leader-epoch-checkpoint"


class EpochStart(NamedTuple):
    """An epoch and the offset of its first record."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """An epoch and one past the offset of its last record."""

    epoch: int
    end_offset: int


class LeaderEpochs:
    """The epochs of one partition, the oldest first."""

    __slots__ = ("entries",)

    def __init__(self, entries: tuple[EpochStart, ...] = ()) -> None:
        self.entries = entries

    @property
    def latest(self) -> int | None:
        """The last epoch, None if no batch had one."""
        return self.entries[-1].epoch if self.entries else None

    @property
    def earliest(self) -> EpochStart | None:
        """The first epoch that is remembered."""
        return self.entries[0] if self.entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Batches of `epoch` begin at `start_offset`; returns whether that is news.

        Entries that contradict it, of a greater epoch or a greater offset, are dropped.
        """
        if self.entries:
            last = self.entries[-1]
            if last.epoch == epoch and start_offset >= last.start_offset:
                return False
        kept = tuple(entry for entry in self.entries if entry.epoch < epoch and entry.start_offset < start_offset)
        self.entries = (*kept, EpochStart(epoch, start_offset))
        return True

    def at(self, offset: int) -> int | None:
        """The epoch of the record at `offset`, None if that is before all epochs."""
        slot = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[slot].epoch if slot >= 0 else None

    def end_offset_of(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Where `epoch` ended: the greatest epoch up to it that has records, and where the next one began.

        None where the epoch is not known: it is newer than all, or there are none.

        Source: LeaderEpochFileCache.endOffsetFor.
        """
        if epoch < 0 or not self.entries or epoch > self.entries[-1].epoch:
            return None
        if epoch == self.entries[-1].epoch:
            return EpochEnd(epoch, log_end_offset)
        slot = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        next_start = self.entries[slot].start_offset
        return EpochEnd(self.entries[slot - 1].epoch if slot else epoch, next_start)

    def truncate_end(self, end_offset: int) -> bool:
        """The log ends at `end_offset` now: drops the epochs that begin there or later; returns whether there were any."""
        kept = tuple(entry for entry in self.entries if entry.start_offset < end_offset)
        has_changed = len(kept) != len(self.entries)
        self.entries = kept
        return has_changed

    def truncate_start(self, start_offset: int) -> bool:
        """The log starts at `start_offset` now: the epoch it is in begins there; returns whether anything changed."""
        slot = bisect_right(self.entries, start_offset, key=lambda entry: entry.start_offset)
        if not slot or (slot == 1 and self.entries[0].start_offset == start_offset):
            return False
        self.entries = (EpochStart(self.entries[slot - 1].epoch, start_offset), *self.entries[slot:])
        return True

    def write(self) -> bytes:
        """The content of `leader-epoch-checkpoint`."""
        return write_lines(f"{epoch} {start_offset}" for epoch, start_offset in self.entries)

    @classmethod
    def read(cls, data: bytes) -> LeaderEpochs:
        """The epochs of a `leader-epoch-checkpoint`.

        Raises:
            MalformedFileError: it is none.
        """
        epochs = cls()
        for line in read_lines(data):
            words = line.split()
            if len(words) != 2 or not all(word.isdecimal() for word in words):
                raise MalformedFileError(f"{line!r} is not an epoch and an offset")
            epochs.assign(int(words[0]), int(words[1]))
        return epochs
