"""Finds the sound batches of a segment's file: framed, in order, and with the right checksum.

Rules of this file: it only reads, and may run in any thread.

Source: org.apache.kafka.storage.internals.log.LogSegment.recover.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from struct import Struct

from wirekafka.log.positions import BatchPosition, read_place
from wirekafka.log.segment import MOST_RELATIVE_OFFSET, Segment
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import HEADER_SIZE, BatchHeader, check_crc

_CHUNK = 4 << 20
_LEGACY_CRC = Struct(">I")
_MOST_CANDIDATES = 10_000
"""The number of possible batch positions that a search checks in other bytes."""


def sound_batches(segment: Segment, file_size: int) -> Iterator[tuple[BatchPosition, memoryview]]:
    """Yields the batches of a file up to the first that is torn, damaged or out of order."""
    file = segment.file()  # held here, because the pool may close the segment's handle meanwhile
    fd = file.fd
    read = segment.folder.storage.read
    chunk, padding = memoryview(b""), bytes(HEADER_SIZE)
    chunk_position = chunk_end = position = 0
    least_offset = segment.base_offset
    while position < file_size:
        if chunk_end < min(position + HEADER_SIZE, file_size):
            content = read(fd, min(_CHUNK, file_size - position), position)
            # The padding lets a header be decoded from the last message of a file, which may be shorter. No batch ends in it.
            chunk, chunk_position, chunk_end = memoryview(content + padding), position, position + len(content)
        at = position - chunk_position
        place = read_place(chunk, at, position)
        if place is None or position + place.size_bytes > file_size:
            return
        if place.base_offset < least_offset or place.last_offset - segment.base_offset > MOST_RELATIVE_OFFSET:
            return
        if position + place.size_bytes > chunk_end:
            content = read(fd, max(place.size_bytes, min(_CHUNK, file_size - position)), position)
            chunk, chunk_position, chunk_end = memoryview(content + padding), position, position + len(content)
            at = 0
        data = chunk[at : at + place.size_bytes]
        if not _is_sound(data):
            return
        yield place, data
        least_offset = place.last_offset + 1
        position += place.size_bytes


def _is_sound(data: memoryview) -> bool:
    if data[16] == 2:
        return len(data) >= HEADER_SIZE and check_crc(data, 0, BatchHeader(data))
    return bool(_LEGACY_CRC.unpack_from(data, 12)[0] == zlib.crc32(data[16:]))


def count_records(segment: Segment, position: int, end: int) -> int:
    """Returns the number of records that the headers between two positions of a file announce, up to the first invalid header."""
    count = 0
    storage, file = segment.folder.storage, segment.file()
    while end - position >= HEADER_SIZE:
        data = storage.read(file.fd, HEADER_SIZE, position)
        place = read_place(data, 0, position) if len(data) == HEADER_SIZE else None
        if place is None:
            break
        count += max(BatchHeader(data).record_count, 0) if data[16] == 2 else 1
        position += place.size_bytes
    return count


def torn_batch(segment: Segment, position: int, base_offset: int, end: int) -> BatchPosition | None:
    """Returns the batch of which the file has only the first part, as after a killed process; None if there is none.

    The header of such a batch is complete, its base offset is the next offset, and its end is after the end of the file.

    Args:
        base_offset: the next offset.
    """
    file = segment.file()
    data = segment.folder.storage.read(file.fd, HEADER_SIZE, position)
    place = read_place(data, 0, position) if len(data) == HEADER_SIZE else None
    if place is None or place.base_offset != base_offset or place.position + place.size_bytes <= end:
        return None
    return place


def has_sound_batch(segment: Segment, position: int, end: int, base_offset: int | None = None) -> bool:
    """Whether a sound batch of format 2 begins anywhere between two positions of a segment's file.

    Args:
        base_offset: the required base offset; None for any base offset that the segment can hold.
    """
    heads = {(segment.base_offset + shift >> 32).to_bytes(4, "big") for shift in (0, MOST_RELATIVE_OFFSET)}
    pattern = re.compile(b"(?=(?:%s).{12}\x02)" % b"|".join(map(re.escape, heads)), re.DOTALL)
    storage, file = segment.folder.storage, segment.file()
    fd = file.fd
    candidates = 0
    for chunk_position in range(position, end, _CHUNK):
        data = storage.read(fd, min(_CHUNK + HEADER_SIZE, end - chunk_position), chunk_position)
        # Preallocated space is zeros; a header does not begin with as many zeros as it has bytes.
        for match in pattern.finditer(data, 0, len(data.rstrip(b"\0")) + HEADER_SIZE):
            at = match.start()
            if at >= _CHUNK or len(data) - at < HEADER_SIZE:
                break
            place = read_place(data, at, chunk_position + at)
            if place is None or place.position + place.size_bytes > end:
                continue
            if not 0 <= place.base_offset - segment.base_offset <= MOST_RELATIVE_OFFSET:
                continue
            if base_offset is not None and place.base_offset != base_offset:
                continue
            candidates += 1
            if candidates > _MOST_CANDIDATES:
                return False
            if _is_sound(memoryview(storage.read(fd, place.size_bytes, place.position))):
                return True
    return False


def has_sound_tail(segment: Segment) -> bool:
    """Whether complete batches reach the end of the file, and the last entry of the time index matches the log.

    The indexes of the segment must be in memory.

    Raises:
        OSError: the batches do not reach the end of the file.
    """
    _, position = segment.offset_index.last() or (0, 0)
    timestamp, relative_offset = segment.time_index.last() or (NO_TIMESTAMP, -1)
    is_met = False
    for place in segment.places(position):
        if place.base_offset <= segment.base_offset + relative_offset <= place.last_offset:
            is_met = place.max_timestamp == timestamp
    return is_met or segment.has_sound_time_index()
