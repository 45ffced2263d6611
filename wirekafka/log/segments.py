"""The segments of a log: finds records in them, and adds, removes and replaces segments.

How it works: bisection finds the segment of an offset, and the segment finds the position. If a reader will continue after
a read, or waits at the end of the log, the log remembers the position, so that the next read needs no search.

Rules of this file:
    Invariant: a log has at least one segment; the last segment is active.
    Invariant: segments are in order, and the offsets of a segment end where those of the next segment begin.
    Errors are `OSError`. Remembered positions are dropped whenever the list of segments changes.

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
"""The number of remembered positions; one more position drops the oldest."""


class _Swap(NamedTuple):
    old: list[Segment]
    new: Segment


class Segments:
    """The segments of one log.

    Attributes:
        items: the segments, by base offset.
        folder: the folder of their files.
    """

    __slots__ = ("_hints", "_swap", "folder", "items")

    def __init__(self, folder: Folder, items: list[Segment]) -> None:
        self.folder = folder
        self.items = items
        self._hints: dict[int, tuple[Segment, int]] = {}
        """For an offset: the position of the first batch whose last offset is this offset or greater, or of a future batch."""
        self._swap: _Swap | None = None
        """The last swap, while its files do not have their final names."""

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    @property
    def active(self) -> Segment:
        """The segment for appends."""
        return self.items[-1]

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches."""
        return sum(segment.size for segment in self.items)

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, log_end_offset: int, min_one_batch: bool
    ) -> FileRegion | bytes:
        """Returns the batches from the one that holds `offset`; see `ReadableLog.read`.

        With a remembered position, the read decodes the header of the first batch only if more than `max_bytes` follow;
        otherwise only the consumer detects damage.
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
                    # The file was changed; a search from the index finds out how.
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
                # The Java client fails on a response without a complete batch.
                return b""
            length = first_bytes if first_bytes > max_bytes else max_bytes
            if 2 * first_bytes > length and position + first_bytes < segment.size:
                # The next batch probably does not fit either. If it does, the remembered position is unused.
                self._remember(last_offset + 1, segment, position + first_bytes)
        if position + length == segment.size and segment is self.items[-1]:
            self.remember_end(log_end_offset)
        return segment.region(position, length)

    def remember_end(self, log_end_offset: int) -> None:
        """Remembers the end of the file as the position of the log end offset, where a reader will continue."""
        active = self.items[-1]
        self._remember(log_end_offset, active, active.size)

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        hints = self._hints
        if len(hints) >= _MOST_HINTS and offset not in hints:
            del hints[next(iter(hints))]
        hints[offset] = (segment, position)

    def _locate(self, offset: int) -> tuple[Segment, int] | None:
        """Returns the segment and the position of the batch that `find` returns."""
        found = self.find(offset)
        return (found[0], found[1].position) if found is not None else None

    def find(self, offset: int) -> tuple[Segment, BatchPosition] | None:
        """Returns the first batch whose last offset is `offset` or greater; compaction may have removed `offset` itself."""
        for segment in self.items[self._number_of(offset) :]:
            place = segment.find(offset)
            if place is not None:
                return segment, place
        return None

    def _number_of(self, offset: int) -> int:
        """Returns the number of the last segment whose base offset is not greater than `offset`; 0 if there is none."""
        if offset >= self.items[-1].base_offset:
            return len(self.items) - 1
        return max(bisect_right(self.items, offset, key=lambda segment: segment.base_offset) - 1, 0)

    def _position_before(self, segment: Segment, end_offset: int) -> int:
        """Returns the position where the segment's batches before `end_offset` end."""
        if self.items[self._number_of(end_offset)] is not segment:
            return segment.size
        hint = self._hints.get(end_offset)
        if hint is not None and hint[0] is segment:
            return hint[1]
        place = segment.find(end_offset)
        if place is None:
            return segment.size
        # Reads within the log end only at the last stable offset, which stays the same for a while.
        self._remember(end_offset, segment, place.position)
        return place.position

    def bytes_between(self, offset: int, end_offset: int, log_end_offset: int) -> int:
        """Returns the bytes of the batches from `offset` on that are before `end_offset`."""
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
        """Returns the aborted transactions that may overlap [from_offset, to_offset), in the order of their ends.

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
        """Whether the segment of an offset, or a later segment, has the marker of an aborted transaction."""
        return any(segment.transaction_index.count for segment in self.items[self._number_of(from_offset) :])

    def offset_behind(self, offset: int, size_bytes: int, end_offset: int) -> int:
        """Returns an offset soon after all batches of a read from `offset` that returned `size_bytes`; at most `end_offset`.

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
        """Yields the complete batches from the one that holds `offset` up to the end."""
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
        """Appends a segment, which becomes the active one."""
        self.items.append(segment)
        self._hints.clear()

    def take_first(self, count: int) -> list[Segment]:
        """Removes and returns the first `count` segments; at least one segment stays.

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
        """Drops the batch that holds `offset` and all later batches; returns the removed segments.

        Segments are removed from the last one on, and then the new last segment is cut, so that a crash or an error at any step
        leaves the beginning of the log.

        Raises:
            OSError: some segments may be removed.

        Durability: removed segments stay removed after a power loss; the cut of the active segment is in the page cache.

        Source: LocalLog.truncateTo.
        """
        self.finish_swap()
        self._hints.clear()
        kept = max(bisect_right(self.items, offset - 1, key=lambda segment: segment.base_offset), 1)
        taken: list[Segment] = []
        while len(self.items) > kept:
            self._retire(self.active)
            taken.append(self.items.pop())
        if taken:
            self.folder.sync()
        self.active.truncate(offset)
        return taken

    def _retire(self, segment: Segment) -> None:
        segment.close()
        segment.rename_files(DELETED_SUFFIX)

    def restart(self, created: Segment) -> list[Segment]:
        """Makes an empty segment, whose file exists, the only one; returns the removed segments.

        The log must be empty, so that a crash leaves an empty log.

        Raises:
            OSError: nothing has changed in memory.

        Durability: the removed segments stay removed after a power loss.
        """
        assert not self.size_bytes, "a crash must not leave records on both sides of the new offset"
        for segment in self.items:
            self._retire(segment)
        self.folder.sync()
        removed, self.items = self.items, [created]
        self._hints.clear()
        return removed

    def replace(self, old: list[Segment], new: Segment) -> bool:
        """Replaces segments with the compacted segment that was made from them, whose file names end in `.swap`.

        From now on reads use the new segment under its current file names; `finish_swap` gives the files their final names. The
        swap is never undone: after a crash, the next start finishes it.

        Returns:
            False if the log no longer has one of the old segments; nothing has changed then.

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
        """Renames the files of replaced segments, and gives the files of the new segment their final names.

        Invariant: a file gets a name only after no file of another segment has that name.

        Raises:
            OSError: some files have their new names; call again. Until then no segment may be removed.
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
        """Returns a function that removes the files of replaced segments."""

        def remove() -> None:
            with suppress(OSError):
                for segment in segments:
                    segment.delete_files()

        return remove

    def mark_deleted(self, segments: list[Segment]) -> Callable[[], None]:
        """Renames the files of removed segments; returns a function that deletes the files.

        A region that a connection is sending keeps its data.
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
