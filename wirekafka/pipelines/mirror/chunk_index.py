"""Where the mapped offsets of a source partition are: 32 bytes for each transaction, instead of its runs.

A mapping record, the chunk, has the runs of one transaction. A topic with gaps, such as the markers of transactions, has as many
runs as gaps, so the driver keeps only where the chunks are, and reads the one that it needs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import NamedTuple

from wirekafka.pipelines.transactional_sink.progress import Run

LONG = "q"
"""The type code of a signed integer of 8 bytes."""


class Chunk(NamedTuple):
    """A mapping record.

    Attributes:
        first: the first source offset of the transaction, which is in the key of the record.
        source_end: one past its last source offset.
        target_end: one past its last target offset.
        log_offset: the offset of the mapping record in its topic.
    """

    first: int
    source_end: int
    target_end: int
    log_offset: int


class ChunkIndex:
    """The chunks of one source partition. Invariant: they rise in both offsets."""

    def __init__(self) -> None:
        self._columns = tuple(array(LONG) for _ in Chunk._fields)

    def __len__(self) -> int:
        return len(self._columns[0])

    def put(self, chunk: Chunk) -> None:
        """Adds a chunk, or replaces the one with the same first source offset."""
        position = bisect_left(self._columns[0], chunk.first)
        self.remove(chunk.first)
        for column, number in zip(self._columns, chunk, strict=True):
            column.insert(position, number)

    def remove(self, first: int) -> None:
        """Removes the chunk with this first source offset, if there is one."""
        position = bisect_left(self._columns[0], first)
        if position < len(self) and self._columns[0][position] == first:
            for column in self._columns:
                column.pop(position)

    def containing(self, source_offset: int) -> Chunk | None:
        """Returns the first chunk that ends after a source offset, or else the last chunk; None if there is none."""
        if not len(self):
            return None
        position = min(bisect_right(self._columns[1], source_offset), len(self) - 1)
        return Chunk(*(column[position] for column in self._columns))

    def target_end(self) -> int:
        """Returns one past the last target offset; 0 without chunks."""
        return self._columns[2][-1] if len(self) else 0

    def dead(self, log_start_offset: int) -> list[int]:
        """Returns the first source offsets of the chunks that say nothing of any record that the target still has.

        The last chunk is never one of them: it says where the end is.
        """
        count = bisect_right(self._columns[2], log_start_offset)
        return list(self._columns[0][: min(count, len(self) - 1)]) if len(self) else []


class RunCache:
    """The runs of the chunks that were used last, up to a number of runs."""

    def __init__(self, most_runs: int) -> None:
        self._most_runs = most_runs
        self._count = 0
        self._chunks: OrderedDict[bytes, list[Run]] = OrderedDict()

    def put(self, key: bytes, runs: list[Run]) -> None:
        """Keeps the runs of a chunk, and forgets those that were not used for the longest time."""
        self.remove(key)
        self._chunks[key] = runs
        self._count += len(runs)
        while self._count > self._most_runs:
            self.remove(next(iter(self._chunks)))

    def get(self, key: bytes) -> list[Run] | None:
        """Returns the runs of a chunk; None if they are not kept."""
        if key in self._chunks:
            self._chunks.move_to_end(key)
        return self._chunks.get(key)

    def remove(self, key: bytes) -> None:
        """Forgets the runs of a chunk."""
        self._count -= len(self._chunks.pop(key, ()))
