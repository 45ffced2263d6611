"""Finding records by their timestamps: the first that is not older than a time, and the latest of all.

Theory of operation: a segment's time index leads to an offset, its offset index from there to a position, and the headers from
there on to the first batch whose greatest timestamp is not older. Segments whose greatest timestamp is older are passed over.
This happens on the loop and costs little. To look into the records of that batch may cost much, so it is a `RecordScan`, which
any thread can run. A search is an iterator of such scans; the first one that finds a record ends it.

Rules of this file: nothing is changed but a time index that turns out to be wrong, which its segment mends.

Source: UnifiedLog.fetchOffsetByTimestamp; LogSegment.findOffsetByTimestamp; FileRecords.searchForTimestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from wirekafka.log.positions import BadBatchError, BatchPosition
from wirekafka.log.segment import MOST_RELATIVE_OFFSET, Segment
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import HEADER_SIZE, MAGIC, MAGIC_OFFSET, BatchHeader, TimestampType, do_nothing, to_int64
from wirekafka.wire.compression import Compression, decompress_stream
from wirekafka.wire.walk import deltas_in

LIGHT_RECORDS = 2000
LIGHT_COMPRESSED_BYTES = 16 * 1024
"""What a scan on the loop reads at most, in 2 ms: of gzip, 16 KiB may be 16 MiB, but the scan reads no more than the records."""
_REST_AFTER = 256


class TimestampAndOffset(NamedTuple):
    """A record found by its timestamp; the leader epoch is None where the batch has none."""

    offset: int
    timestamp: int
    leader_epoch: int | None


class RecordScan:
    """The look for a timestamp in the records of one batch.

    Args:
        data: the batch.
        timestamp: a record that is not older is looked for; None for the latest record.
        start_offset: records before it do not count.
    """

    __slots__ = ("_data", "_place", "_start_offset", "_timestamp")

    def __init__(self, data: bytes, place: BatchPosition, timestamp: int | None, start_offset: int) -> None:
        self._data = data
        self._place = place
        self._timestamp = timestamp
        self._start_offset = start_offset

    @property
    def is_light(self) -> bool:
        """The scan takes no more than about 2 ms."""
        if self._data[MAGIC_OFFSET] != MAGIC:
            return True
        header = BatchHeader(self._data)
        is_small = header.compression is Compression.NONE or len(self._data) <= LIGHT_COMPRESSED_BYTES
        return is_small and header.record_count <= LIGHT_RECORDS

    def run(self, rest: Callable[[], object] = do_nothing) -> TimestampAndOffset | None:
        """The record, None if there is none; of several, the first.

        Args:
            rest: called every few records.

        Raises:
            KafkaError: the records cannot be read.
        """
        latest: TimestampAndOffset | None = None
        for number, found in enumerate(self._records()):
            if not number % _REST_AFTER:
                rest()
            if found.offset < self._start_offset:
                continue
            if self._timestamp is None:
                latest = found if latest is None or found.timestamp > latest.timestamp else latest
            elif found.timestamp >= self._timestamp:
                return found
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


Search = Iterator[RecordScan]


def search_timestamp(segments: Sequence[Segment], timestamp: int, start_offset: int) -> Search:
    """Looks for the first record from `start_offset` on whose timestamp is `timestamp` or greater.

    Raises:
        OSError: a segment cannot be read.
    """
    for segment in tuple(segments):
        # A search may pause between two scans, and segments may be deleted meanwhile.
        if segment in segments and segment.max_timestamp >= timestamp:
            yield from _search_in(segment, timestamp, start_offset)


def search_max_timestamp(segments: Sequence[Segment], start_offset: int) -> Search:
    """Looks for the first record from `start_offset` on with the greatest timestamp (KIP-734).

    Raises:
        OSError: a segment cannot be read.
    """
    latest = max(segments, key=lambda segment: segment.max_timestamp)
    if latest.max_timestamp < 0:
        return
    yield from _search_in(latest, latest.max_timestamp, start_offset)
    # The index leads to a record that is before the start, so the rest is looked through.
    if latest not in segments:
        return
    best: tuple[Segment, BatchPosition] | None = None
    for segment in segments:
        if best is not None and segment.max_timestamp <= best[1].max_timestamp:
            continue
        for place in segment.places():
            is_later = best is None or place.max_timestamp > best[1].max_timestamp
            if place.last_offset >= start_offset and is_later:
                best = segment, place
    if best is not None:
        yield _scan(*best, None, start_offset)


def _search_in(segment: Segment, timestamp: int, start_offset: int) -> Search:
    entry = segment.time_index.floor(timestamp)
    if entry is not None and not segment.has_timestamp(*entry):
        segment.mend_indexes()
        entry = segment.time_index.floor(timestamp)
    _, relative_offset = entry or (NO_TIMESTAMP, 0)
    relative_offset = max(relative_offset, start_offset - segment.base_offset)
    _, position = segment.offset_index.floor(min(relative_offset, MOST_RELATIVE_OFFSET)) or (0, 0)
    for place in segment.places(position):
        if place.max_timestamp >= timestamp and place.last_offset >= start_offset:
            yield _scan(segment, place, timestamp, start_offset)


def _scan(segment: Segment, place: BatchPosition, timestamp: int | None, start_offset: int) -> RecordScan:
    data = segment.folder.storage.read(segment.file().fd, place.size_bytes, place.position)
    if len(data) < place.size_bytes:
        raise segment.damaged(BadBatchError(f"the file ends at byte {place.position + len(data)}"))
    return RecordScan(data, place, timestamp, start_offset)
