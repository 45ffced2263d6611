"""Reads the files of a data directory of Apache Kafka: segments and checkpoints.

Rules of this file: it reads record batches (format 2), uncompressed or with gzip. It stops at the first batch that is not sound,
and says why: after a power loss a log may end with such bytes until its broker starts again.

Source: the design of Apache Kafka's log, "Record Batch"; CheckpointFile, LeaderEpochCheckpointFile.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"

_HEADER = struct.Struct(">qiibIhiqqqhii")
_MARKER_KEY = struct.Struct(">hh")
_LENGTH_BYTES = 12
_CRC_BEGINS = 21
_COMPRESSION_BITS, _GZIP = 0b111, 1
_TRANSACTIONAL_BIT, _CONTROL_BIT = 0x10, 0x20
_ABORT, _COMMIT = 0, 1


class UnsoundError(Exception):
    """The bytes are not a sound batch."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a batch."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch.

    Attributes:
        last_offset: from the header; compaction may have removed the record.
        producer_id, producer_epoch, base_sequence: -1 if there are none, as in the file.
        is_commit: of a marker that ends a transaction; None for all other batches.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool
    is_commit: bool | None
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Replica:
    """The files of one replica.

    Attributes:
        high_watermark: from the checkpoint; 0 if it has none.
        epochs: each leader epoch and its start offset, from leader-epoch-checkpoint.
        unsound: why the log could not be read further; None if it was read to its end.
    """

    broker_id: int
    topic: str
    partition: int
    batches: tuple[Batch, ...]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    epochs: tuple[tuple[int, int], ...]
    unsound: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """The topic and the partition."""
        return self.topic, self.partition

    def committed_end(self, *, is_settled: bool) -> int:
        """Returns one past the last record that is known to be committed.

        Args:
            is_settled: whether all brokers were in sync before they stopped.
        """
        return self.log_end_offset if is_settled else min(self.high_watermark, self.log_end_offset)


def read_data_directory(directory: Path, broker_id: int) -> list[Replica]:
    """Returns the replicas of a data directory. Folders of deleted, stray and moving replicas are left out.

    Raises:
        ValueError: a checkpoint is malformed.
    """
    high_watermarks = _read_offsets(directory / HIGH_WATERMARKS)
    log_starts = _read_offsets(directory / LOG_STARTS)
    replicas = []
    for folder in sorted(directory.iterdir()):
        topic, _, index = folder.name.rpartition("-")
        if folder.is_dir() and topic and index.isdecimal():
            files = {
                path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".log" or path.name == LEADER_EPOCHS
            }
            key = topic, int(index)
            replicas.append(
                read_replica(
                    files, broker_id, key, high_watermark=high_watermarks.get(key, 0), log_start_offset=log_starts.get(key, 0)
                )
            )
    return replicas


def read_replica(
    files: Mapping[str, bytes], broker_id: int, key: tuple[str, int], *, high_watermark: int, log_start_offset: int
) -> Replica:
    """Returns a replica.

    Args:
        files: the content of the files in the folder of the replica, by their names.
        log_start_offset: from the checkpoint; 0 if it has none.

    Raises:
        ValueError: leader-epoch-checkpoint is malformed.
    """
    batches: list[Batch] = []
    unsound = None
    names = sorted(name for name in files if name.endswith(".log"))
    first_offset = int(names[0].removesuffix(".log")) if names else 0
    end_offset = max(first_offset, log_start_offset)
    for name in names:
        end_offset = max(end_offset, int(name.removesuffix(".log")))
        try:
            for batch in read_batches(files[name]):
                if batch.base_offset < (batches[-1].last_offset + 1 if batches else first_offset):
                    raise UnsoundError(f"the batch at offset {batch.base_offset} is not after the one before it")
                batches.append(batch)
                end_offset = max(end_offset, batch.last_offset + 1)
        except UnsoundError as error:
            unsound = f"{name}: {error}"
            break
    epochs = tuple(_read_pairs(files.get(LEADER_EPOCHS, b"")))
    start_offset = max(first_offset, log_start_offset)
    return Replica(broker_id, *key, tuple(batches), start_offset, end_offset, high_watermark, epochs, unsound)


def read_batches(data: bytes) -> Iterator[Batch]:
    """Yields the batches of a segment.

    Raises:
        UnsoundError: the bytes after the last yielded batch are no batch.
    """
    position = 0
    while position < len(data):
        end = position + _size_bytes(data, position)
        yield _read_batch(data[position:end])
        position = end


def _size_bytes(data: bytes, position: int) -> int:
    left_bytes = len(data) - position
    if left_bytes < _HEADER.size:
        raise UnsoundError(f"{left_bytes} bytes at position {position} are less than a header")
    size_bytes = _LENGTH_BYTES + int(_HEADER.unpack_from(data, position)[1])
    if not _HEADER.size <= size_bytes <= left_bytes:
        raise UnsoundError(f"the batch at position {position} has {size_bytes} bytes, and the file has {left_bytes} more")
    return size_bytes


def _read_batch(data: bytes) -> Batch:
    base_offset, _, epoch, magic, checksum, attributes, delta, _, _, producer_id, producer_epoch, sequence, count = (
        _HEADER.unpack_from(data)
    )
    if magic != 2:
        raise UnsoundError(f"the batch at offset {base_offset} has message format {magic}")
    if crc32c(data[_CRC_BEGINS:]) != checksum:
        raise UnsoundError(f"the batch at offset {base_offset} has a wrong checksum")
    records = tuple(_read_records(_decompress(data[_HEADER.size :], attributes & _COMPRESSION_BITS), base_offset, count))
    is_control = bool(attributes & _CONTROL_BIT)
    return Batch(
        base_offset,
        base_offset + delta,
        epoch,
        producer_id,
        producer_epoch,
        sequence,
        bool(attributes & _TRANSACTIONAL_BIT),
        is_control,
        _is_commit(records) if is_control else None,
        records,
    )


def _decompress(payload: bytes, codec: int) -> bytes:
    if not codec:
        return payload
    if codec != _GZIP:
        raise UnsoundError(f"compression {codec} is not read here")
    try:
        return zlib.decompress(payload, wbits=31)
    except zlib.error as error:
        raise UnsoundError(f"gzip: {error}") from error


def _read_records(payload: bytes, base_offset: int, count: int) -> Iterator[Record]:
    position = 0
    for _ in range(count):
        length, begin = _read_varint(payload, position)
        position = begin + length
        if length < 0 or position > len(payload):
            raise UnsoundError("a record is longer than its batch")
        _, at = _read_varint(payload, begin + 1)
        delta, at = _read_varint(payload, at)
        key, at = _read_bytes(payload, at)
        value, at = _read_bytes(payload, at)
        yield Record(base_offset + delta, key, value)
    if position != len(payload):
        raise UnsoundError("a batch has bytes after its last record")


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data):
            raise UnsoundError("a number is longer than its batch")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(data, position)
    if length < 0:
        return None, position
    return data[position : position + length], position + length


def _is_commit(records: tuple[Record, ...]) -> bool | None:
    """Returns what a control batch does to the transaction of its producer; None if it does nothing, or was compacted."""
    if not records or records[0].key is None or len(records[0].key) < _MARKER_KEY.size:
        return None
    kind = _MARKER_KEY.unpack_from(records[0].key)[1]
    return {_ABORT: False, _COMMIT: True}.get(kind)


def _read_offsets(path: Path) -> dict[tuple[str, int], int]:
    offsets = {}
    for line in _read_lines(path.read_bytes() if path.exists() else b""):
        topic, partition, offset = line.split()
        offsets[topic, int(partition)] = int(offset)
    return offsets


def _read_pairs(data: bytes) -> Iterator[tuple[int, int]]:
    for line in _read_lines(data):
        epoch, start_offset = line.split()
        yield int(epoch), int(start_offset)


def _read_lines(data: bytes) -> list[str]:
    """Returns the lines of a checkpoint after its version and their count. An empty file has none."""
    if not data:
        return []
    version, count, *lines = data.decode().splitlines()
    if version != "0" or int(count) != len(lines):
        raise ValueError(f"a checkpoint of version {version} with {count} lines has {len(lines)}")
    return lines
