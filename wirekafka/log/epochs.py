"""The leader epochs of a partition and the start offset of each.

Rules of this file: pure, except that it reads and writes the text of Apache Kafka's checkpoint.
Invariant: epochs and start offsets are strictly ascending.

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
    """The leader epochs of one partition, the oldest first."""

    __slots__ = ("entries",)

    def __init__(self, entries: tuple[EpochStart, ...] = ()) -> None:
        self.entries = entries

    @property
    def latest(self) -> int | None:
        """The latest epoch; None if no batch had one."""
        return self.entries[-1].epoch if self.entries else None

    @property
    def earliest(self) -> EpochStart | None:
        """The oldest known epoch."""
        return self.entries[0] if self.entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Notes that the batches of `epoch` begin at `start_offset`; returns whether an entry was added.

        Drops contradictory entries: those with the same or a greater epoch, or the same or a greater start offset.
        """
        if self.entries:
            last = self.entries[-1]
            if last.epoch == epoch and start_offset >= last.start_offset:
                return False
        kept = tuple(entry for entry in self.entries if entry.epoch < epoch and entry.start_offset < start_offset)
        self.entries = (*kept, EpochStart(epoch, start_offset))
        return True

    def at(self, offset: int) -> int | None:
        """Returns the epoch of the record at `offset`; None if the offset is before all epochs."""
        slot = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[slot].epoch if slot >= 0 else None

    def end_offset_of(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Returns the greatest epoch with records that is not greater than `epoch`, and the start offset of the next epoch.

        Returns None if the epoch is unknown: it is newer than all known epochs, or no epoch is known.

        Source: LeaderEpochFileCache.endOffsetFor.
        """
        if epoch < 0 or not self.entries or epoch > self.entries[-1].epoch:
            return None
        if epoch == self.entries[-1].epoch:
            return EpochEnd(epoch, log_end_offset)
        slot = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        next_start = self.entries[slot].start_offset
        return EpochEnd(self.entries[slot - 1].epoch if slot else epoch, next_start)

    def clear(self) -> bool:
        """Drops all epochs; returns whether there were any."""
        has_changed = bool(self.entries)
        self.entries = ()
        return has_changed

    def truncate_end(self, end_offset: int) -> bool:
        """Drops the epochs that begin at `end_offset` or later, after a truncation; returns whether any was dropped."""
        kept = tuple(entry for entry in self.entries if entry.start_offset < end_offset)
        has_changed = len(kept) != len(self.entries)
        self.entries = kept
        return has_changed

    def truncate_start(self, start_offset: int) -> bool:
        """Begins the epoch that contains `start_offset` there, and drops older epochs; returns whether anything changed."""
        slot = bisect_right(self.entries, start_offset, key=lambda entry: entry.start_offset)
        if not slot or (slot == 1 and self.entries[0].start_offset == start_offset):
            return False
        self.entries = (EpochStart(self.entries[slot - 1].epoch, start_offset), *self.entries[slot:])
        return True

    def write(self) -> bytes:
        """Returns the content of `leader-epoch-checkpoint`."""
        return write_lines(f"{epoch} {start_offset}" for epoch, start_offset in self.entries)

    @classmethod
    def read(cls, data: bytes) -> LeaderEpochs:
        """Returns the epochs of a `leader-epoch-checkpoint`.

        Raises:
            MalformedFileError: the content is not a checkpoint of leader epochs.
        """
        epochs = cls()
        for line in read_lines(data):
            words = line.split()
            if len(words) != 2 or not all(word.isdecimal() for word in words):
                raise MalformedFileError(f"{line!r} is not an epoch and an offset")
            epochs.assign(int(words[0]), int(words[1]))
        return epochs
