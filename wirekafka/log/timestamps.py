"""Finds records by their timestamps: the first record from a timestamp on, and the latest record.

How it works: a search skips segments whose greatest timestamp is too old. In a segment, the time index gives an offset, the
offset index gives the position of that offset, and the search reads batch headers from that position to the first batch whose
greatest timestamp is not too old. The search then needs the records of that batch. Reading them may take long, so the search
returns a `RecordScan`, which any thread can run. A search is an iterator of scans; the first scan that finds a record ends the
search.

The headers are read on the loop. Their number has no bound: if timestamps do not ascend, or if DeleteRecords has removed the
record to which the time index points, a search may read the header of every batch of a segment. So a search yields None, a
pause, after every `PAUSE_AFTER` headers, and the caller lets other requests run.

Rules of this file: a search changes nothing, except that a segment rebuilds a wrong time index. During a pause, and
while a scan runs, the log may delete or truncate segments.

Differs from Apache Kafka: the latest record is never one before the log start offset. For max timestamp, Kafka takes the first
batch with the greatest timestamp of the segments that it still has, and does not compare its offset with the log start offset;
it may return a record that DeleteRecords has removed.

Source: UnifiedLog.fetchOffsetByTimestamp; LogSegment.findOffsetByTimestamp; FileRecords.searchForTimestamp.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from wirekafka.log.positions import BadBatchError, BatchPosition
from wirekafka.log.segment import MOST_RELATIVE_OFFSET, Segment
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import HEADER_SIZE, MAGIC, MAGIC_OFFSET, BatchHeader, TimestampType, do_nothing, to_int64
from wirekafka.wire.compression import Compression, decompress_stream
from wirekafka.wire.walk import deltas_in

LIGHT_RECORDS = 2000
LIGHT_COMPRESSED_BYTES = 16 * 1024
"""The most compressed bytes of a scan on the loop: 2 ms. 16 KiB of gzip may hold 16 MiB, but the scan stops after the last
record."""
PAUSE_AFTER = 1000
"""The number of batch headers that a search reads between two pauses, in 2 to 4 ms."""
_REST_AFTER = 256


class TimestampAndOffset(NamedTuple):
    """A record found by its timestamp; the leader epoch is None if the batch has none."""

    offset: int
    timestamp: int
    leader_epoch: int | None


class RecordScan:
    """The search for a timestamp in the records of one batch.

    Args:
        data: the batch.
        timestamp: the scan finds a record with this timestamp or a later one.
        start_offset: the scan ignores records before it.
        is_latest: the scan finds the latest such record of the batch; otherwise the first.
    """

    __slots__ = ("_data", "_is_latest", "_place", "_start_offset", "_timestamp")

    def __init__(self, data: bytes, place: BatchPosition, timestamp: int, start_offset: int, *, is_latest: bool) -> None:
        self._data = data
        self._place = place
        self._timestamp = timestamp
        self._start_offset = start_offset
        self._is_latest = is_latest

    @property
    def is_light(self) -> bool:
        """Whether the scan takes at most about 2 ms."""
        if self._data[MAGIC_OFFSET] != MAGIC:
            return True
        header = BatchHeader(self._data)
        is_small = header.compression is Compression.NONE or len(self._data) <= LIGHT_COMPRESSED_BYTES
        return is_small and header.record_count <= LIGHT_RECORDS

    def run(self, rest: Callable[[], object] = do_nothing) -> TimestampAndOffset | None:
        """Returns the record, or None if there is none; of several records with the same timestamp, the first.

        Args:
            rest: called every few records.

        Raises:
            KafkaError: the records cannot be read.
        """
        latest: TimestampAndOffset | None = None
        for number, found in enumerate(self._records()):
            if not number % _REST_AFTER:
                rest()
            if found.offset < self._start_offset or found.timestamp < self._timestamp:
                continue
            if not self._is_latest:
                return found
            if latest is None or found.timestamp > latest.timestamp:
                latest = found
        return latest

    def _records(self) -> Iterator[TimestampAndOffset]:
        data, place = self._data, self._place
        epoch = place.leader_epoch if place.leader_epoch >= 0 else None
        if data[MAGIC_OFFSET] != MAGIC:
            yield TimestampAndOffset(place.last_offset, place.max_timestamp, epoch)
            return
        header = BatchHeader(data)
        is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        body = memoryview(data)[HEADER_SIZE : header.size_bytes]
        for timestamp_delta, offset_delta in deltas_in(decompress_stream(header.compression, body)):
            timestamp = header.max_timestamp if is_append_time else to_int64(header.base_timestamp + timestamp_delta)
            yield TimestampAndOffset(header.base_offset + offset_delta, timestamp, epoch)


Search = Iterator[RecordScan | None]
"""Scans of batches; None is a pause, after which the search continues."""


def search_timestamp(segments: Sequence[Segment], timestamp: int, start_offset: int) -> Search:
    """Searches the first record from `start_offset` on whose timestamp is `timestamp` or greater.

    Raises:
        OSError: a segment cannot be read.
    """
    for segment in tuple(segments):
        if segment in segments and segment.max_timestamp >= timestamp:
            yield from _search_in(segments, segment, timestamp, start_offset)


def search_max_timestamp(segments: Sequence[Segment], start_offset: int) -> Search:
    """Searches the first record from `start_offset` on with the greatest timestamp (KIP-734).

    Raises:
        OSError: a segment cannot be read.
    """
    first = _number_of(segments, start_offset)
    latest = max(segments[first:], key=lambda segment: segment.max_timestamp)
    if latest.max_timestamp < 0:
        return
    if latest.offset_of_max_timestamp >= start_offset:
        yield from _search_in(segments, latest, latest.max_timestamp, start_offset)
    # DeleteRecords has removed the latest record. The headers show which batch after the start is the latest, except for a batch
    # that lost only some of its records: the latest record may be one of its remaining records.
    segment = segments[_number_of(segments, start_offset)]
    cut, best = yield from _latest_places(segments, segment, start_offset)
    later = [each for each in segments if each.base_offset > segment.base_offset]
    latest = max(later, key=lambda each: each.max_timestamp, default=segment)
    best_timestamp = NO_TIMESTAMP if best is None else best.max_timestamp
    is_in_later = latest is not segment and latest.max_timestamp > best_timestamp
    if cut is not None and segment in segments:
        least = max(latest.max_timestamp if is_in_later else best_timestamp, 0)
        yield _scan(segment, cut, least, start_offset, is_latest=True)
    if is_in_later:
        yield from _search_in(segments, latest, latest.max_timestamp, start_offset)
    elif best is not None and best_timestamp >= 0 and segment in segments:
        yield _scan(segment, best, 0, start_offset, is_latest=True)


def _number_of(segments: Sequence[Segment], offset: int) -> int:
    """Returns the number of the segment for an offset."""
    return max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)


def _latest_places(
    segments: Sequence[Segment], segment: Segment, start_offset: int
) -> Generator[None, None, tuple[BatchPosition | None, BatchPosition | None]]:
    """Reads the headers of a segment from `start_offset` on.

    Returns:
        The batch that begins before that offset and ends after it; and the later batch with the greatest timestamp.
    """
    cut: BatchPosition | None = None
    best: BatchPosition | None = None
    for place in _places(segments, segment, _position_of(segment, start_offset - segment.base_offset)):
        if place is None:
            yield
        elif place.base_offset < start_offset:
            cut = place if place.last_offset >= start_offset else None
        elif best is None or place.max_timestamp > best.max_timestamp:
            best = place
    return cut, best


def _search_in(segments: Sequence[Segment], segment: Segment, timestamp: int, start_offset: int) -> Search:
    """Searches the first record of a segment whose timestamp is `timestamp` or greater."""
    if segment not in segments:
        return
    entry = segment.time_index.floor(timestamp)
    if entry is not None and not segment.has_timestamp(*entry):
        segment.mend_indexes()
        entry = segment.time_index.floor(timestamp)
    _, relative_offset = entry or (NO_TIMESTAMP, 0)
    for place in _places(segments, segment, _position_of(segment, max(relative_offset, start_offset - segment.base_offset))):
        if place is None:
            yield None
        elif place.max_timestamp >= timestamp and place.last_offset >= start_offset:
            yield _scan(segment, place, timestamp, start_offset)


def _position_of(segment: Segment, relative_offset: int) -> int:
    """Returns a position from which the headers lead to an offset, relative to the base offset of the segment."""
    _, position = segment.offset_index.floor(min(max(relative_offset, 0), MOST_RELATIVE_OFFSET)) or (0, 0)
    return position


def _places(segments: Sequence[Segment], segment: Segment, position: int) -> Iterator[BatchPosition | None]:
    """Yields the batches of a segment from a position on; None is a pause.

    The batches end if the log deletes the segment, or truncates it before the next batch, during a pause or a scan.
    """
    while segment in segments and position < segment.size:
        for place in islice(segment.places(position), PAUSE_AFTER):
            yield place
            position = place.position + place.size_bytes
            if segment not in segments or position > segment.size:
                return
        yield None


def _scan(segment: Segment, place: BatchPosition, timestamp: int, start_offset: int, *, is_latest: bool = False) -> RecordScan:
    data = segment.folder.storage.read(segment.file().fd, place.size_bytes, place.position)
    if len(data) < place.size_bytes:
        raise segment.damaged(BadBatchError(f"the file ends at byte {place.position + len(data)}"))
    return RecordScan(data, place, timestamp, start_offset, is_latest=is_latest)
