"""Plans the reading of data directories: which records are wanted, and the splits that hold them, one for each task.

How it works: for each wanted partition, the end offset is fixed here. A broker may append meanwhile; the splits hold a consistent
prefix of the log. The log start offset, bounds on offsets, the time indexes and the last stable offset narrow the range of
offsets. The range is cut into splits of about `split_bytes`, at the ends of batches that the offset index names; small segments
share a split. A split names offsets. The position in a file is only a hint, because compaction may replace the file before a
task reads it.

Rules of this file: no lock is taken, no file is written, and no record is decompressed.

Source: org.apache.kafka.storage.internals.log.UnifiedLog (read, fetchOffsetByTimestamp).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wirekafka.inspection.files import DamageError, DataFile, holds_partition, partition_folders, read_whole
from wirekafka.log.checkpoint import LOG_START_OFFSETS, MalformedFileError, read_offsets
from wirekafka.log.directory import partition_of_folder
from wirekafka.names import CLUSTER_METADATA_TOPIC, TopicPartition
from wirekafka.pipelines.log_source.segments import (
    MOST_BATCH_BYTES,
    SegmentFile,
    SparseIndex,
    batch_at,
    first_offset_at,
    list_segments,
    places_from,
    position_before,
    read_offset_index,
)
from wirekafka.pipelines.log_source.transactions import AbortedRange, Transactions, read_transactions

DEFAULT_SPLIT_BYTES = 64 << 20
_MOST_ATTEMPTS = 5


@dataclass(slots=True, frozen=True)
class Selection:
    """The records that are wanted.

    Attributes:
        topics: names; None is all topics, except the metadata log of Apache Kafka's controllers.
        topic_pattern: a regular expression that matches the whole name of a topic.
        partitions: numbers; None is all.
        starting_offset, ending_offset: offsets from the first up to the second, excluded, in each partition.
        starting_timestamp, ending_timestamp: timestamps in ms from the first up to the second, excluded.
        is_committed: without control records and records of aborted transactions, up to the last stable offset.
    """

    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    partitions: frozenset[int] | None = None
    starting_offset: int | None = None
    ending_offset: int | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    is_committed: bool = False

    def has_partition(self, name: TopicPartition) -> bool:
        """Whether records of the partition are wanted."""
        if self.topics is None:
            has_topic = name.topic != CLUSTER_METADATA_TOPIC
        else:
            has_topic = name.topic in self.topics
        if self.topic_pattern is not None:
            has_topic = has_topic and re.fullmatch(self.topic_pattern, name.topic) is not None
        return has_topic and (self.partitions is None or name.partition in self.partitions)


class Hint(NamedTuple):
    """The first batch of a split when it was planned: its segment's base offset, its position there, and its last offset."""

    base_offset: int
    position: int
    last_offset: int


@dataclass(slots=True, frozen=True)
class Split:
    """The records that one task reads.

    Attributes:
        folder: the partition's folder.
        first_offset, end_offset: offsets from the first up to the second, excluded.
        hint: None if the segment is read from its beginning.
        size_bytes: about the bytes of the log that the task reads.
        aborted: the aborted transactions that overlap the split, if only committed records are wanted.
    """

    folder: str
    topic: str
    partition: int
    first_offset: int
    end_offset: int
    hint: Hint | None
    size_bytes: int
    aborted: tuple[AbortedRange, ...] = ()


def plan(
    root: str,
    selection: Selection,
    split_bytes: int = DEFAULT_SPLIT_BYTES,
    most_batch_bytes: int = MOST_BATCH_BYTES,
) -> list[Split]:
    """Returns the splits of the wanted records of a data directory, or of a partition's folder.

    Raises:
        OSError: a file cannot be read.
        DamageError: the headers after the last entry of an index are damaged, or claim more than `most_batch_bytes`.
    """
    start_offsets = _log_start_offsets(root)
    splits: list[Split] = []
    for folder in partition_folders(root):
        name = partition_of_folder(os.path.basename(os.path.abspath(folder)))
        if name is not None and selection.has_partition(name):
            splits += _plan_at_rest(folder, name, start_offsets.get(name, 0), selection, _Sizes(split_bytes, most_batch_bytes))
    return splits


def _log_start_offsets(root: str) -> dict[TopicPartition, int]:
    directory = os.path.dirname(os.path.abspath(root)) if holds_partition(root) else root
    try:
        return read_offsets(read_whole(os.path.join(directory, LOG_START_OFFSETS)))
    except (FileNotFoundError, MalformedFileError):
        return {}


def _plan_at_rest(folder: str, name: TopicPartition, start_offset: int, selection: Selection, sizes: _Sizes) -> list[Split]:
    """Plans a partition; again, if a broker has replaced, deleted or written segments meanwhile.

    A deleted partition has no splits.
    """
    for _ in range(_MOST_ATTEMPTS):
        try:
            return _plan_partition(folder, name, start_offset, selection, sizes)
        except (FileNotFoundError, DamageError):
            if not os.path.isdir(folder):
                return []
    return _plan_partition(folder, name, start_offset, selection, sizes)


def _plan_partition(folder: str, name: TopicPartition, start_offset: int, selection: Selection, sizes: _Sizes) -> list[Split]:
    segments = list_segments(folder)
    if not segments:
        return []
    last = _PlannedSegment(folder, segments[-1], None, sizes)
    first_offset = max(start_offset, segments[0].base_offset, selection.starting_offset or 0)
    end_offset = last.end_offset
    transactions = Transactions(end_offset)
    if selection.is_committed:
        transactions = read_transactions(folder, start_offset, end_offset)
        end_offset = min(end_offset, transactions.last_stable_offset)
    if selection.ending_offset is not None:
        end_offset = min(end_offset, selection.ending_offset)
    cuts: list[_Cut] = []
    for number, segment in enumerate(segments):
        next_base_offset = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        first = max(first_offset, segment.base_offset)
        if selection.starting_timestamp is not None:
            first = max(first, first_offset_at(folder, segment.base_offset, selection.starting_timestamp))
        end = min(end_offset, next_base_offset)
        if first < end:
            planned = last if segment is segments[-1] else _PlannedSegment(folder, segment, next_base_offset, sizes)
            cuts += planned.cuts(first, end)
    return [
        Split(
            folder,
            name.topic,
            name.partition,
            cut.first_offset,
            cut.end_offset,
            cut.hint,
            cut.size_bytes,
            transactions.overlapping(cut.first_offset, cut.end_offset) if selection.is_committed else (),
        )
        for cut in _joined(cuts, sizes.split_bytes)
    ]


class _Sizes(NamedTuple):
    """The bytes of a split, and the most bytes of a batch."""

    split_bytes: int
    most_batch_bytes: int


class _Cut(NamedTuple):
    first_offset: int
    end_offset: int
    hint: Hint | None
    size_bytes: int


def _joined(cuts: list[_Cut], split_bytes: int) -> Iterator[_Cut]:
    """Joins small cuts that follow each other, up to `split_bytes`."""
    joined: _Cut | None = None
    for cut in cuts:
        if joined is None:
            joined = cut
        elif joined.size_bytes + cut.size_bytes <= split_bytes and cut.first_offset == joined.end_offset:
            joined = joined._replace(end_offset=cut.end_offset, size_bytes=joined.size_bytes + cut.size_bytes)
        else:
            yield joined
            joined = cut
    if joined is not None:
        yield joined


class _PlannedSegment:
    """A segment during planning.

    Attributes:
        end_offset: one past its last record; the next segment's base offset if there is one.
    """

    def __init__(self, folder: str, segment: SegmentFile, next_base_offset: int | None, sizes: _Sizes) -> None:
        self._sizes = sizes
        self._base_offset = segment.base_offset
        self._file = DataFile(os.path.join(folder, segment.name))
        self._index = read_offset_index(folder, segment.base_offset)
        self._end_position = self._file.size
        self.end_offset = segment.base_offset
        if next_base_offset is None or not len(self._index.positions):
            self._walk()
        if next_base_offset is not None:
            self.end_offset = next_base_offset

    def _walk(self) -> None:
        """Follows the headers after the last entry of the index: the index of the active segment may be in memory only."""
        position = position_before(self._file, self._base_offset, self._index, 1 << 62)
        if not position:
            self._index = SparseIndex(*(np.zeros(0, dtype=np.int64),) * 2)
        places = places_from(self._file, position, self._base_offset, self._sizes.most_batch_bytes)
        self._index = self._index.with_places(self._base_offset, places[1:] if position else places)
        if places:
            self.end_offset = places[-1].last_offset + 1
            self._end_position = places[-1].position + places[-1].size_bytes

    def cuts(self, first_offset: int, end_offset: int) -> Iterator[_Cut]:
        """Yields the pieces of a range of offsets within the segment, each of about `split_bytes`."""
        split_bytes = self._sizes.split_bytes
        position = position_before(self._file, self._base_offset, self._index, first_offset)
        end_position = self._position_after(end_offset)
        hint = self._hint_at(position)
        while end_position - position > split_bytes + split_bytes // 2:
            boundary = self._boundary_after(position + split_bytes, first_offset)
            if boundary is None or boundary[0] >= end_offset:
                break
            offset, next_position = boundary
            yield _Cut(first_offset, offset, hint, next_position - position)
            first_offset, position, hint = offset, next_position, self._hint_at(next_position)
        yield _Cut(first_offset, end_offset, hint, max(end_position - position, 0))

    def _position_after(self, offset: int) -> int:
        slot = int(np.searchsorted(self._index.last_offsets, offset - self._base_offset, side="left"))
        return int(self._index.positions[slot]) if slot < len(self._index.positions) else self._end_position

    def _hint_at(self, position: int) -> Hint | None:
        place = batch_at(self._file, position) if position else None
        return Hint(self._base_offset, position, place.last_offset) if place is not None else None

    def _boundary_after(self, position: int, first_offset: int) -> tuple[int, int] | None:
        """Returns the end of an indexed batch at a position or later: the offset after the batch, and the position after it."""
        slot = int(np.searchsorted(self._index.positions, position, side="left"))
        if slot >= len(self._index.positions):
            return None
        place = batch_at(self._file, int(self._index.positions[slot]))
        expected = self._base_offset + int(self._index.last_offsets[slot])
        if place is None or place.last_offset != expected or expected < first_offset:
            return None
        return expected + 1, place.position + place.size_bytes
