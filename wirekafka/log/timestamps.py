"""Finding records by their timestamps: the first that is not older than a time, and the latest of all.

Theory of operation: a segment's time index leads to an offset, its offset index from there to a position, and the batches from
there on are looked into. Segments whose greatest timestamp is older are passed over.

Rules of this file: nothing is changed but a time index that turns out to be wrong, which its segment mends.

Source: UnifiedLog.fetchOffsetByTimestamp; LogSegment.findOffsetByTimestamp; FileRecords.searchForTimestamp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wirekafka.log.positions import BatchPosition
from wirekafka.log.segment import MOST_RELATIVE_OFFSET, Segment
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import MAGIC, MAGIC_OFFSET, iterate_records


class TimestampAndOffset(NamedTuple):
    """A record found by its timestamp; the leader epoch is None where the batch has none."""

    offset: int
    timestamp: int
    leader_epoch: int | None


def find_timestamp(segments: Sequence[Segment], timestamp: int, start_offset: int) -> TimestampAndOffset | None:
    """The first record from `start_offset` on whose timestamp is `timestamp` or greater.

    Raises:
        OSError: a segment cannot be read.
    """
    for segment in segments:
        if segment.max_timestamp >= timestamp:
            found = _find_in(segment, timestamp, start_offset)
            if found is not None:
                return found
    return None


def find_max_timestamp(segments: Sequence[Segment], start_offset: int) -> TimestampAndOffset | None:
    """The first record from `start_offset` on with the greatest timestamp (KIP-734).

    Raises:
        OSError: a segment cannot be read.
    """
    latest = max(segments, key=lambda segment: segment.max_timestamp)
    if latest.max_timestamp < 0:
        return None
    found = _find_in(latest, latest.max_timestamp, start_offset)
    if found is not None:
        return found
    # The index leads to a record that is before the start, so the rest is looked through.
    for segment in segments:
        for place in segment.places():
            if place.last_offset >= start_offset and (found is None or place.max_timestamp > found.timestamp):
                found = max(found, _first_latest(segment, place, start_offset), key=_timestamp_of)
    return found


def _find_in(segment: Segment, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
    entry = segment.time_index.floor(timestamp)
    if entry is not None and not segment.has_timestamp(*entry):
        segment.mend_indexes()
        entry = segment.time_index.floor(timestamp)
    _, relative_offset = entry or (NO_TIMESTAMP, 0)
    relative_offset = max(relative_offset, start_offset - segment.base_offset)
    _, position = segment.offset_index.floor(min(relative_offset, MOST_RELATIVE_OFFSET)) or (0, 0)
    for place in segment.places(position):
        if place.max_timestamp < timestamp or place.last_offset < start_offset:
            continue
        for found in _timestamps(segment, place, start_offset):
            if found.timestamp >= timestamp:
                return found
    return None


def _first_latest(segment: Segment, place: BatchPosition, start_offset: int) -> TimestampAndOffset | None:
    """The first record of a batch, from `start_offset` on, with the greatest timestamp of those."""
    return max(_timestamps(segment, place, start_offset), key=lambda found: found.timestamp, default=None)


def _timestamps(segment: Segment, place: BatchPosition, start_offset: int) -> Iterator[TimestampAndOffset]:
    data = segment.folder.storage.read(segment.file().fd, place.size_bytes, place.position)
    epoch = place.leader_epoch if place.leader_epoch >= 0 else None
    if data[MAGIC_OFFSET] != MAGIC:
        yield TimestampAndOffset(place.last_offset, place.max_timestamp, epoch)
        return
    for record in iterate_records(memoryview(data)):
        if record.offset >= start_offset:
            yield TimestampAndOffset(record.offset, record.timestamp, epoch)


def _timestamp_of(found: TimestampAndOffset | None) -> int:
    return NO_TIMESTAMP if found is None else found.timestamp
