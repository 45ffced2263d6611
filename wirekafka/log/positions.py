"""The positions of the batches in a file, found from header to header.

Rules of this file: a file is read in chunks, no more than needed, and only the headers of batches are decoded. Errors are
`OSError`: a file that was complete once and is damaged now has lost data on the disk.

Source: org.apache.kafka.common.record.FileLogInputStream.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from wirekafka.log.storage import Bytes, FileHandle, FileRegion, Storage
from wirekafka.names import NO_TIMESTAMP
from wirekafka.wire.batch import HEADER_SIZE, LOG_OVERHEAD
from wirekafka.wire.legacy import LEAST_MESSAGE_BYTES

_HEAD = Struct(">qiibIhiqq")
"""A v2 batch up to its max timestamp: base offset, length, leader epoch, magic, crc, attributes, last offset delta, base and
max timestamp."""
_LEGACY_TIMESTAMP = Struct(">q")
LEAST_V2_LENGTH = HEADER_SIZE - LOG_OVERHEAD
"""The length of a batch without records."""
_HEADS_CHUNK = 8192
"""Bytes of one read during a search for a header: the default `index.interval.bytes` and one small batch."""
_BATCHES_CHUNK = 1 << 20


class BadBatchError(OSError):
    """A file that was complete has no batch where one should begin: the disk or another program has changed the file."""


class BatchPosition(NamedTuple):
    """The position of a batch, and fields of its header."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int


def read_place(data: Bytes, at: int, position: int) -> BatchPosition | None:
    """Decodes the header at `data[at:]` of the batch at `position` of a file; returns None if the bytes are not a header."""
    base_offset, length, leader_epoch, magic, _, _, delta, _, max_timestamp = _HEAD.unpack_from(data, at)
    if magic == 2:
        if length < LEAST_V2_LENGTH or delta < 0:
            return None
        return BatchPosition(position, length + LOG_OVERHEAD, base_offset, base_offset + delta, max_timestamp, leader_epoch)
    # A message set of magic 0 or 1, found in folders of older brokers, is one message or one wrapper. Its offset is that of its
    # last record; the offset of its first record is known only after decompression.
    if magic not in (0, 1) or length < LEAST_MESSAGE_BYTES:
        return None
    timestamp = _LEGACY_TIMESTAMP.unpack_from(data, at + 18)[0] if magic == 1 else NO_TIMESTAMP
    return BatchPosition(position, length + LOG_OVERHEAD, base_offset, base_offset, timestamp, -1)


def read_extent(data: Bytes) -> tuple[int, int] | None:
    """Returns the size in bytes and the last offset of the batch whose header begins the data; None if it is not a header.

    Each read that its size limit cuts off calls this function; it takes half the time of `read_place` (2026-11).
    """
    if len(data) < _HEAD.size:
        return None
    base_offset, length, _, magic, _, _, delta, _, _ = _HEAD.unpack_from(data)
    if magic == 2 and length >= LEAST_V2_LENGTH and delta >= 0:
        return length + LOG_OVERHEAD, base_offset + delta
    place = read_place(data, 0, 0)
    return None if place is None else (place.size_bytes, place.last_offset)


def places_in(storage: Storage, file: FileHandle, position: int, end: int) -> Iterator[BatchPosition]:
    """Yields the positions of the batches of a file from the batch at `position` on; reads only headers."""
    chunk = b""
    chunk_position = position
    while position < end:
        at = position - chunk_position
        if len(chunk) - at < _HEAD.size:
            chunk = storage.read(file.fd, min(_HEADS_CHUNK, end - position), position)
            chunk_position, at = position, 0
            if len(chunk) < _HEAD.size:
                chunk += bytes(_HEAD.size)
        place = read_place(chunk, at, position)
        if place is None or position + place.size_bytes > end:
            raise BadBatchError(f"the file has no batch at byte {position}")
        yield place
        position += place.size_bytes


def heads_in(region: FileRegion | bytes) -> Iterator[tuple[BatchPosition, bytes]]:
    """Yields the position within a region, and the header's bytes, of each whole batch of the region; reads only headers.

    Ends before a batch that the region has only a part of, and where the bytes are not a header.
    """
    position = 0
    while len(region) - position >= HEADER_SIZE:
        if isinstance(region, FileRegion):
            head = FileRegion(region.file, region.position + position, HEADER_SIZE).read()
        else:
            head = region[position : position + HEADER_SIZE]
        place = read_place(head, 0, position) if len(head) == HEADER_SIZE else None
        if place is None or position + place.size_bytes > len(region):
            return
        yield place, head
        position += place.size_bytes


def batches_in(storage: Storage, file: FileHandle, position: int, end: int) -> Iterator[memoryview]:
    """Yields the complete batches of a file from the batch at `position` on."""
    chunk = memoryview(b"")
    at = 0
    while position < end:
        if len(chunk) - at < _HEAD.size:
            chunk, at = _read_chunk(storage, file, position, min(_BATCHES_CHUNK, end - position)), 0
        place = read_place(chunk, at, position)
        if place is None or position + place.size_bytes > end:
            raise BadBatchError(f"the file has no batch at byte {position}")
        size_bytes = place.size_bytes
        if at + size_bytes > len(chunk):
            chunk, at = _read_chunk(storage, file, position, max(size_bytes, min(_BATCHES_CHUNK, end - position))), 0
        yield chunk[at : at + size_bytes]
        at += size_bytes
        position += size_bytes


def _read_chunk(storage: Storage, file: FileHandle, position: int, size: int) -> memoryview:
    data = storage.read(file.fd, size, position)
    if len(data) < max(size, _HEAD.size):
        raise BadBatchError(f"the file ends at byte {position + len(data)}")
    return memoryview(data)
