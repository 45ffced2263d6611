"""The run of segments that makes up a log: finding records in it, and taking segments out of it.

Theory of operation: an offset leads to a segment by bisection, and the segment leads to a position. Where a reader will go on
behind what it got, or waits at the end of the log, the position is remembered, so that the next read is no search.

Rules of this file:
    Invariant: there is always a segment; the last one is active.
    Invariant: segments are in order, and a segment's offsets end where the next one's begin.
    Errors are `OSError`. Positions that are remembered are forgotten whenever the run changes.

Source: org.apache.kafka.storage.internals.log.{LogSegments, LocalLog}.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from wirekafka.log.positions import BatchPosition
from wirekafka.log.segment import Segment
from wirekafka.log.segment_files import DELETED_SUFFIX, SNAPSHOT_SUFFIX, file_name
from wirekafka.log.storage import FileRegion, Folder
from wirekafka.log.transaction_index import AbortedTransaction

_MOST_HINTS = 64
"""Positions remembered for readers; one more and the oldest is forgotten."""


class _Swap(NamedTuple):
    old: list[Segment]
    new: Segment


class Segments:
    """The segments of one log.

    Attributes:
        items: the segments, by base offset.
        folder: where their files are.
    """

    __slots__ = ("_hints", "_swap", "folder", "items")

    def __init__(self, folder: Folder, items: list[Segment]) -> None:
        self.folder = folder
        self.items = items
        self._hints: dict[int, tuple[Segment, int]] = {}
        """Where the first batch begins whose last offset is this one or greater, or where it will."""
        self._swap: _Swap | None = None
        """The last swap, if the files do not have their final names yet."""

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.items[-1]

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches."""
        return sum(segment.size for segment in self.items)

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, log_end_offset: int, min_one_batch: bool
    ) -> FileRegion | bytes:
        """Batches from the one that holds `offset`; see `Log.read`.

        Where a position is remembered, the batch there is looked at only if the bytes behind it are more than `max_bytes`, and
        then its header alone; without that, damage shows to who reads the records.
        """
        extent = None
        hint = self._hints.get(offset)
        if hint is not None:
            segment, position = hint
        else:
            found = self.find(offset)
            if found is None:
                return b""
            segment, place = found
            position, extent = place.position, (place.size_bytes, place.last_offset)
        end_position = segment.size if end_offset >= log_end_offset else self._position_before(segment, end_offset)
        length = end_position - position
        if length <= 0:
            return b""
        if length > max_bytes:
            if extent is None:
                extent = segment.extent_at(position)
                if extent is None or extent[1] < offset:
                    # Something has changed the file; to find out what, the batch is looked for from the index on.
                    self._hints.clear()
                    return self.read(
                        offset,
                        max_bytes=max_bytes,
                        end_offset=end_offset,
                        log_end_offset=log_end_offset,
                        min_one_batch=min_one_batch,
                    )
            first_bytes, last_offset = extent
            if first_bytes > length:
                first_bytes = length
            if first_bytes > max_bytes and not min_one_batch:
                # The Java client fails on an answer that holds no whole batch.
                return b""
            length = max(max_bytes, first_bytes)
            if 2 * first_bytes > length and position + first_bytes < segment.size:
                # The next batch does not fit too, unless it is smaller; then this is of no use, and no harm.
                self._remember(last_offset + 1, segment, position + first_bytes)
        if position + length == segment.size and segment is self.items[-1]:
            self.remember_end(log_end_offset)
        return segment.region(position, length)

    def remember_end(self, log_end_offset: int) -> None:
        """A reader will go on at the log's end, which is where the file ends now."""
        active = self.items[-1]
        self._remember(log_end_offset, active, active.size)

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        hints = self._hints
        if len(hints) >= _MOST_HINTS and offset not in hints:
            del hints[next(iter(hints))]
        hints[offset] = (segment, position)

    def _locate(self, offset: int) -> tuple[Segment, int] | None:
        """The segment and the position of the batch that `find` finds."""
        found = self.find(offset)
        return (found[0], found[1].position) if found is not None else None

    def find(self, offset: int) -> tuple[Segment, BatchPosition] | None:
        """The first batch whose last offset is `offset` or greater; compaction may have taken the one that held it."""
        for segment in self.items[self._number_of(offset) :]:
            place = segment.find(offset)
            if place is not None:
                return segment, place
        return None

    def _number_of(self, offset: int) -> int:
        """The last segment whose base offset is not greater than `offset`, the first one if there is none."""
        if offset >= self.items[-1].base_offset:
            return len(self.items) - 1
        return max(bisect_right(self.items, offset, key=lambda segment: segment.base_offset) - 1, 0)

    def _position_before(self, segment: Segment, end_offset: int) -> int:
        """Where the segment's batches before `end_offset` end."""
        if self.items[self._number_of(end_offset)] is not segment:
            return segment.size
        hint = self._hints.get(end_offset)
        if hint is not None and hint[0] is segment:
            return hint[1]
        place = segment.find(end_offset)
        if place is None:
            return segment.size
        # Of all offsets within the log it is the last stable one that reads end at, and for a while it stays the same.
        self._remember(end_offset, segment, place.position)
        return place.position

    def bytes_between(self, offset: int, end_offset: int, log_end_offset: int) -> int:
        """The bytes of the batches from `offset` on that are before `end_offset`."""
        located = self._hints.get(offset) or self._locate(offset)
        if located is None or end_offset <= offset:
            return 0
        first, position = located
        size_bytes = -position
        for segment in self.items[self.items.index(first) :]:
            if segment.base_offset >= end_offset:
                break
            size_bytes += segment.size if end_offset >= log_end_offset else self._position_before(segment, end_offset)
        return max(size_bytes, 0)

    def aborted_transactions(self, from_offset: int, to_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions of which something may be in [from_offset, to_offset), by their ends.

        Source: LocalLog.collectAbortedTransactions.
        """
        found: list[AbortedTransaction] = []
        for segment in self.items[self._number_of(from_offset) :]:
            if segment.transaction_index.count:
                entries, is_complete = segment.transaction_index.overlapping(from_offset, to_offset)
                found += entries
                if is_complete:
                    break
        return found

    def has_aborted_transactions(self, from_offset: int) -> bool:
        """Whether any transaction was aborted whose marker is in the segment of that offset, or behind it."""
        return any(segment.transaction_index.count for segment in self.items[self._number_of(from_offset) :])

    def offset_behind(self, offset: int, size_bytes: int, end_offset: int) -> int:
        """An offset behind all batches of a read from `offset` that gave so many bytes, not far behind; at most `end_offset`.

        Source: LocalLog.addAbortedTransactions.
        """
        located = self._hints.get(offset) or self._locate(offset)
        if located is None:
            return end_offset
        segment, position = located
        relative_offset = segment.offset_index.last_offset_from(position + size_bytes)
        if relative_offset is not None:
            return min(segment.base_offset + relative_offset, end_offset)
        number = self.items.index(segment) + 1
        return min(self.items[number].base_offset, end_offset) if number < len(self.items) else end_offset

    def batches(self, offset: int) -> Iterator[memoryview]:
        """The batches from the one that holds `offset`, whole, up to the end."""
        found = self.find(offset)
        if found is None:
            return
        first, place = found
        position = place.position
        for segment in self.items[self.items.index(first) :]:
            yield from segment.batches(position)
            position = 0

    # Changing

    def add(self, segment: Segment) -> None:
        """`segment` is the active one from now on."""
        self.items.append(segment)
        self._hints.clear()

    def take_first(self, count: int) -> list[Segment]:
        """Takes the first `count` segments out; at least one stays.

        Raises:
            OSError: nothing has changed.
        """
        assert count < len(self.items), "a log without segments"
        self.finish_swap()
        taken = self.items[:count]
        del self.items[:count]
        self._hints.clear()
        return taken

    def truncate(self, offset: int) -> list[Segment]:
        """Drops the batch that holds `offset` and all behind it; returns the segments that are out.

        Segments go from the last one on, and only then the end of the one that is the last now, so that whatever a crash or an
        error leaves is the beginning of the log.

        Raises:
            OSError: some of the segments may be out.

        Durability: the segments that are out do not come back; the active segment is cut in the page cache.
        """
        self.finish_swap()
        self._hints.clear()
        kept = max(bisect_right(self.items, offset - 1, key=lambda segment: segment.base_offset), 1)
        taken: list[Segment] = []
        while len(self.items) > kept:
            self.active.close()
            self.active.rename_files(DELETED_SUFFIX)
            taken.append(self.items.pop())
        if taken:
            self.folder.sync()
        self.active.truncate(offset)
        return taken

    def replace(self, old: list[Segment], new: Segment) -> bool:
        """Puts a compacted segment, whose files end in `.swap`, in the place of those it was made from.

        From now on the new segment is read, by the names that its files have; `finish_swap` gives them their final names. The
        swap is never undone: after a crash, the next start finishes it.

        Returns:
            False if one of the old segments is no longer here; nothing has changed then.

        Raises:
            OSError: an earlier swap cannot be finished; nothing has changed.

        Source: LocalLog.replaceSegments.
        """
        self.finish_swap()
        if not all(segment in self.items for segment in old):
            return False
        number = self.items.index(old[0])
        assert self.items[number : number + len(old)] == old, "compacted segments are neighbours"
        self.items[number : number + len(old)] = [new]
        self._hints.clear()
        self._swap = _Swap(old, new)
        for segment in old:
            segment.close()
        return True

    def finish_swap(self) -> None:
        """Gives the files of replaced segments other names, and those of the segment that replaces them their final names.

        Invariant: a file gets a name only once no file of another segment has it.

        Raises:
            OSError: some files have their new names; call it again. Until then no segment may be taken out.
        """
        if self._swap is None:
            return
        old, new = self._swap
        for segment in old:
            segment.rename_files(DELETED_SUFFIX)
        new.rename_files("")
        self._swap = None
        for segment in old:
            if segment.base_offset != new.base_offset:
                with suppress(OSError):
                    self.folder.remove(file_name(segment.base_offset, SNAPSHOT_SUFFIX))

    def remover_of(self, segments: list[Segment]) -> Callable[[], None]:
        """What removes the files of segments that were replaced."""

        def remove() -> None:
            with suppress(OSError):
                for segment in segments:
                    segment.delete_files()

        return remove

    def mark_deleted(self, segments: list[Segment]) -> Callable[[], None]:
        """Renames the files of segments that are out; returns what removes them.

        Regions that are being sent keep the data for as long as they need it.
        """
        folder = self.folder
        snapshots = [file_name(segment.base_offset, SNAPSHOT_SUFFIX) for segment in segments]
        with suppress(OSError):
            for segment, snapshot in zip(segments, snapshots, strict=True):
                segment.close()
                segment.rename_files(DELETED_SUFFIX)
                folder.rename(snapshot, snapshot + DELETED_SUFFIX)

        def remove() -> None:
            with suppress(OSError):
                for segment, snapshot in zip(segments, snapshots, strict=True):
                    segment.delete_files()
                    folder.remove(snapshot + DELETED_SUFFIX)

        return remove
