"""Decodes the records of many batches into Arrow columns, without a Python object for each record.

The columns, in this order (`SCHEMA`): `topic`, `partition`, `offset`, `timestamp`, `timestamp_type`, `key`, `value`, `headers`,
`producer_id`, `producer_epoch`, `sequence`, `is_transactional`, `is_control`, `compression`, `leader_epoch`. Where the batch has
no value, the column is null: `timestamp` of message format 0, `headers` of a record without headers, the three of the producer,
and `leader_epoch`. `timestamp_type` is `CreateTime`, `LogAppendTime`, or null for message format 0. `compression` is the name of
the codec, or `none`. A timestamp that does not fit into 64 bits as microseconds becomes the nearest that fits.

How it works: a `ColumnBuilder` collects the uncompressed records of batches in pieces, one after the other, and the fields of
each batch's header. All fields are decoded for all records at once, by `record_bytes`; of the headers, the first ones of all
records, then the second ones, and so on.

Rules of this file: pure. Records that do not match the header of their batch raise `DamageError`, which names the file, the
position of the batch and its offset.

Source: org.apache.kafka.common.record.{DefaultRecord, DefaultRecordBatch}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wirekafka.inspection.files import DamageError
from wirekafka.names import NO_TIMESTAMP
from wirekafka.pipelines.log_source.record_bytes import (
    Content,
    CorruptRecordsError,
    Int64s,
    binary_column,
    read_varints,
    record_pieces,
)
from wirekafka.wire.batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    MOST_SEQUENCE,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Record,
    encode_record,
)
from wirekafka.wire.compression import Compression

Bools = npt.NDArray[np.bool_]

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_type", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int16()),
        ("sequence", pa.int32()),
        ("is_transactional", pa.bool_()),
        ("is_control", pa.bool_()),
        ("compression", pa.string()),
        ("leader_epoch", pa.int32()),
    ]
)

_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime", None)
_NO_TIMESTAMP_TYPE = 1 << 16
"""A flag beside the 16 bits of the attributes."""
_COMPRESSIONS = tuple(codec.name.lower() for codec in Compression)
_LEAST_HEADER_BYTES = 2
"""The two lengths of a header."""
MOST_HEADERS = 1 << 14
"""The headers of a record, which are read in as many turns; a megabyte of empty headers would take a minute otherwise."""
_MOST_TIMESTAMP_MS = ((1 << 63) - 1) // 1000


class BatchFields(NamedTuple):
    """What the records of a batch share, with the wire's -1 for none; or arrays of that of many batches.

    Attributes:
        base_timestamp: the timestamp that the records' deltas are added to. It is the delete horizon if that flag is set, and the
            deltas are relative to it then.
        max_timestamp: with LogAppendTime, the timestamp of every record.
        attributes: those of format 2; `_NO_TIMESTAMP_TYPE` is added for message format 0.
        position: that of the batch in its file, for errors.
        record_count: the records that are here; fewer than those of the batch, if it is read in pieces.
        first_byte: the position of the first of these records, with its length, in the uncompressed bytes.

    Source: DefaultRecordBatch.baseTimestamp, MemoryRecordsBuilder.
    """

    base_offset: Any
    last_offset_delta: Any
    base_timestamp: Any
    max_timestamp: Any
    attributes: Any
    producer_id: Any
    producer_epoch: Any
    base_sequence: Any
    leader_epoch: Any
    position: Any
    record_count: Any
    first_byte: Any

    @classmethod
    def of_header(cls, header: BatchHeader, position: int, record_count: int, first_byte: int) -> BatchFields:
        """Returns the fields of a batch of format 2."""
        return cls(
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.attributes,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.partition_leader_epoch,
            position,
            record_count,
            first_byte,
        )


class BatchPlace(NamedTuple):
    """The place of a batch, for error messages."""

    path: str
    position: int
    offset: int


@dataclass(slots=True)
class Bounds:
    """The records that are wanted.

    Attributes:
        first_offset, end_offset: offsets from the first up to the second, excluded.
        first_timestamp, end_timestamp: timestamps in ms from the first up to the second, excluded; None is no bound. A record
            without a timestamp has none within bounds.
    """

    first_offset: int
    end_offset: int
    first_timestamp: int | None = None
    end_timestamp: int | None = None

    def select(self, offsets: Int64s, timestamps: Int64s) -> Bools | None:
        """Returns which records are wanted; None if all are."""
        wanted = (offsets >= self.first_offset) & (offsets < self.end_offset)
        if self.first_timestamp is not None:
            wanted &= timestamps >= self.first_timestamp
        if self.end_timestamp is not None:
            wanted &= timestamps < self.end_timestamp
        if self.first_timestamp is not None or self.end_timestamp is not None:
            wanted &= timestamps != NO_TIMESTAMP
        return None if wanted.all() else wanted


class Piece(NamedTuple):
    """Records of one batch, all or some of them, or the records of many batches in one chunk of a file.

    Attributes:
        path: the file, for errors.
        starts: the position after the length of each record.
        fields: those of the batch; arrays if there are many.
    """

    path: str
    content: Content
    starts: Int64s
    fields: BatchFields


class Limits(NamedTuple):
    """A piece and an Arrow batch end at one of these limits; one record may have more bytes."""

    most_records: int = 1 << 16
    most_bytes: int = 16 << 20


def pieces_of(header: BatchHeader, content: Content, place: BatchPlace, limits: Limits) -> Iterator[Piece]:
    """Yields the records of a batch of format 2.

    Raises:
        DamageError: the records do not match the header.
    """
    try:
        for piece, starts in record_pieces(content, header.record_count, *limits):
            fields = BatchFields.of_header(header, place.position, len(starts), piece.start)
            yield Piece(place.path, piece, starts, fields)
    except CorruptRecordsError as error:
        raise _damage(place, str(error)) from None


def pieces_of_old(
    records: Sequence[Record], magic: int, compression: int, *, is_append_time: bool, place: BatchPlace, limits: Limits
) -> Iterator[Piece]:
    """Yields the records of a message of format 0 or 1; they are encoded as format 2, so that one code decodes all formats."""
    if not records:
        return
    base_offset, base_timestamp = records[0].offset, records[0].timestamp
    last_offset_delta = records[-1].offset - base_offset
    attributes = compression | (TIMESTAMP_TYPE_MASK if is_append_time else 0) | (0 if magic else _NO_TIMESTAMP_TYPE)
    shared = (base_offset, last_offset_delta, base_timestamp, base_timestamp, attributes, -1, -1, -1, -1, place.position)
    for first in range(0, len(records), limits.most_records):
        some = records[first : first + limits.most_records]
        body = b"".join(encode_record(record, record.timestamp - base_timestamp, record.offset - base_offset) for record in some)
        for piece, starts in record_pieces(Content(body, 0, len(body)), len(some), *limits):
            yield Piece(place.path, piece, starts, BatchFields(*shared, len(starts), piece.start))


class _Records(NamedTuple):
    """The numbers of all records."""

    batch_number: Int64s
    offset: Int64s
    timestamp: Int64s
    offset_delta: Int64s
    key_at: Int64s
    key_size: Int64s
    value_at: Int64s
    value_size: Int64s
    header_at: Int64s
    header_count: Int64s


class ColumnBuilder:
    """Collects the records of batches of one partition, and makes Arrow columns of them.

    Attributes:
        size_bytes: the uncompressed bytes collected so far.
        record_count: the records collected so far.
        chunk: the bytes that hold all of these records, so that none needs a copy; None if there are no such bytes.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._pieces: list[Piece] = []
        self.size_bytes = 0
        self.record_count = 0
        self.chunk: bytes | bytearray | None = None

    def add(self, piece: Piece) -> None:
        """Adds records after those that were added before."""
        is_in_chunk = not self._pieces or self.chunk is piece.content.data
        self.chunk = piece.content.data if is_in_chunk else None
        self._pieces.append(piece)
        self.size_bytes += piece.content.end - piece.content.start
        self.record_count += len(piece.starts)

    def take(self, bounds: Bounds) -> pa.RecordBatch:
        """Returns the wanted records, and begins anew.

        Raises:
            DamageError: the records of a batch do not match its header.
        """
        pieces, self._pieces = self._pieces, []
        self.size_bytes = self.record_count = 0
        self.chunk = None
        if not pieces:
            return pa.RecordBatch.from_pylist([], SCHEMA)
        try:
            return self._columns(pieces, bounds)
        except CorruptRecordsError:
            # The positions of the records of all batches were followed at once. Parts of them tell which one is corrupt.
            raise self._find_damage(pieces, bounds) from None

    def _find_damage(self, pieces: list[Piece], bounds: Bounds) -> DamageError:
        while len(pieces) > 1 or np.size(pieces[0].fields.position) > 1:
            first, second = _halves(pieces)
            pieces = first if self._reason_of(first, bounds) is not None else second
        reason = self._reason_of(pieces, bounds) or "the records do not match the header"
        position, offset = (int(np.ravel(value)[0]) for value in (pieces[0].fields.position, pieces[0].fields.base_offset))
        return _damage(BatchPlace(pieces[0].path, position, offset), reason)

    def _reason_of(self, pieces: list[Piece], bounds: Bounds) -> str | None:
        """Returns why the records are corrupt; None if they are not."""
        try:
            self._columns(pieces, bounds)
        except CorruptRecordsError as error:
            return str(error)
        return None

    def _columns(self, pieces: list[Piece], bounds: Bounds) -> pa.RecordBatch:
        shared = _joined([piece.fields for piece in pieces])
        starts = np.concatenate([piece.starts for piece in pieces])
        counts, first_bytes = shared.record_count, shared.first_byte
        data = pieces[0].content.data
        if any(piece.content.data is not data for piece in pieces):
            data = b"".join([memoryview(piece.content.data)[piece.content.start : piece.content.end] for piece in pieces])
            sizes = [piece.content.end - piece.content.start for piece in pieces]
            moved = np.cumsum([0, *sizes[:-1]]) - np.array([piece.content.start for piece in pieces])
            starts += np.repeat(moved, [len(piece.starts) for piece in pieces])
            first_bytes = first_bytes + np.repeat(moved, [np.size(piece.fields.first_byte) for piece in pieces])
        batch_numbers = np.repeat(np.arange(len(counts)), counts)
        records = _decode(data, starts, batch_numbers, shared)
        headers, ends = _decode_headers(data, starts, records)
        firsts = np.cumsum(counts) - counts
        _check_ends(data, starts, ends, firsts, first_bytes)
        wanted = bounds.select(records.offset, records.timestamp)
        if wanted is not None:
            records = _Records(*(numbers[wanted] for numbers in records))
            headers = headers.filter(pa.array(wanted))
        return pa.RecordBatch.from_arrays(self._arrays(pa.py_buffer(data), records, headers, shared), schema=SCHEMA)

    def _arrays(self, buffer: pa.Buffer, records: _Records, headers: pa.Array, shared: BatchFields) -> list[pa.Array]:
        count, number = len(records.offset), records.batch_number
        sequences = np.where(
            shared.base_sequence[number] < 0, -1, (shared.base_sequence[number] + records.offset_delta) & MOST_SEQUENCE
        )
        microseconds = np.clip(records.timestamp, -_MOST_TIMESTAMP_MS, _MOST_TIMESTAMP_MS) * 1000
        return [
            pa.repeat(pa.scalar(self._topic), count),
            pa.repeat(pa.scalar(self._partition, pa.int32()), count),
            pa.array(records.offset),
            pa.array(microseconds, pa.timestamp("us", "UTC"), mask=records.timestamp == NO_TIMESTAMP),
            _names(_TIMESTAMP_TYPES, _timestamp_types(shared.attributes), number),
            binary_column(buffer, records.key_at, records.key_size),
            binary_column(buffer, records.value_at, records.value_size),
            headers,
            _numbers(shared.producer_id, number, pa.int64()),
            _numbers(shared.producer_epoch, number, pa.int16()),
            pa.array(sequences.astype(np.int32), mask=sequences < 0),
            pa.array((shared.attributes & TRANSACTIONAL_MASK != 0)[number]),
            pa.array((shared.attributes & CONTROL_MASK != 0)[number]),
            _names(_COMPRESSIONS, shared.attributes & COMPRESSION_MASK, number),
            _numbers(shared.leader_epoch, number, pa.int32()),
        ]


def _joined(fields: list[BatchFields]) -> BatchFields:
    """Returns the fields of all batches."""
    if all(isinstance(each.position, int) for each in fields):
        return BatchFields(*np.array(fields, dtype=np.int64).T)
    return BatchFields(*(np.concatenate([np.ravel(value) for value in values]) for values in zip(*fields, strict=True)))


def _halves(pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Returns the first half of some pieces, or of the batches of one piece, and the second half."""
    if len(pieces) > 1:
        return pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :]
    (piece,) = pieces
    batches = len(piece.fields.position) // 2
    records = int(piece.fields.record_count[:batches].sum())
    first, second = (BatchFields(*(value[part] for value in piece.fields)) for part in (slice(batches), slice(batches, None)))
    return (
        [piece._replace(starts=piece.starts[:records], fields=first)],
        [piece._replace(starts=piece.starts[records:], fields=second)],
    )


def _decode(data: bytes | bytearray, starts: Int64s, batch_number: Int64s, shared: BatchFields) -> _Records:
    octets = np.frombuffer(data, dtype=np.uint8)
    timestamp_delta, at = read_varints(octets, starts + 1)
    offset_delta, at = read_varints(octets, at)
    key_size, key_at = read_varints(octets, at)
    value_size, value_at = read_varints(octets, key_at + np.maximum(key_size, 0))
    header_count, header_at = read_varints(octets, value_at + np.maximum(value_size, 0))
    if (offset_delta < 0).any() or (offset_delta > shared.last_offset_delta[batch_number]).any():
        raise CorruptRecordsError("a record has an offset outside of its batch")
    timestamp = shared.base_timestamp[batch_number] + timestamp_delta
    is_append_time = shared.attributes & TIMESTAMP_TYPE_MASK != 0
    if is_append_time.any():
        timestamp = np.where(is_append_time[batch_number], shared.max_timestamp[batch_number], timestamp)
    offset = shared.base_offset[batch_number] + offset_delta
    return _Records(
        batch_number, offset, timestamp, offset_delta, key_at, key_size, value_at, value_size, header_at, header_count
    )


def _decode_headers(data: bytes | bytearray, starts: Int64s, records: _Records) -> tuple[pa.Array, Int64s]:
    """Returns the headers of all records, null for a record without headers, and the end of each record."""
    counts = records.header_count
    numbers = np.flatnonzero(counts)
    if not len(numbers):
        return pa.nulls(len(counts), HEADERS_TYPE), records.header_at
    limits = np.append(starts[1:], len(data))
    if (counts < 0).any() or (counts > (limits - records.header_at) // _LEAST_HEADER_BYTES).any():
        raise CorruptRecordsError("a record has more headers than bytes for them, or a negative number")
    if counts.max() > MOST_HEADERS:
        raise CorruptRecordsError(f"a record has {counts.max()} headers; at most {MOST_HEADERS} are read")
    octets = np.frombuffer(data, dtype=np.uint8)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    name_at, name_size, value_at, value_size = (np.empty(bounds[-1], dtype=np.int64) for _ in range(4))
    ends = records.header_at.copy()
    turn = 0
    while len(numbers):
        slots = bounds[numbers] + turn
        name_size[slots], name_at[slots] = read_varints(octets, ends[numbers])
        _check_fit(name_at[slots], name_size[slots], limits[numbers])
        value_size[slots], value_at[slots] = read_varints(octets, name_at[slots] + name_size[slots])
        sizes = np.maximum(value_size[slots], 0)
        _check_fit(value_at[slots], sizes, limits[numbers])
        ends[numbers] = value_at[slots] + sizes
        turn += 1
        numbers = numbers[counts[numbers] > turn]
    buffer = pa.py_buffer(data)
    pairs = pa.StructArray.from_arrays(
        [_text(binary_column(buffer, name_at, name_size)), binary_column(buffer, value_at, value_size)],
        fields=list(HEADERS_TYPE.value_type),
    )
    offsets = pa.array(bounds.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pairs, type=HEADERS_TYPE, mask=pa.array(counts == 0)), ends


def _check_fit(at: Int64s, sizes: Int64s, limits: Int64s) -> None:
    if (sizes < 0).any() or (sizes > limits - at).any():
        raise CorruptRecordsError("a header ends after its record, or has no name")


def _text(names: pa.Array) -> pa.Array:
    """Returns names as text; a name that is not UTF-8 gets U+FFFD for what cannot be decoded."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def _check_ends(data: bytes | bytearray, starts: Int64s, ends: Int64s, firsts: Int64s, first_bytes: Int64s) -> None:
    """Raises unless each record ends where its length says.

    Args:
        ends: the ends of the last fields of the records.
        firsts: the number of the first record of each batch.
        first_bytes: the position of that record's length.
    """
    length_at = np.concatenate([[0], ends[:-1]])
    length_at[firsts] = first_bytes
    octets = np.frombuffer(data, dtype=np.uint8)
    sizes, found_starts = read_varints(octets, length_at)
    if (found_starts != starts).any() or (starts + sizes != ends).any():
        raise CorruptRecordsError("the fields of a record do not end where its length says")


def _timestamp_types(attributes: Int64s) -> Int64s:
    """Returns the number of each batch's timestamp type in `_TIMESTAMP_TYPES`."""
    return np.where(attributes & _NO_TIMESTAMP_TYPE, 2, (attributes & TIMESTAMP_TYPE_MASK != 0).astype(np.int64))


def _numbers(values: Int64s, batch_number: Int64s, type_: pa.DataType) -> pa.Array:
    """Returns a field of batches by record; a negative number is null."""
    if (values == values[0]).all():
        return (
            pa.nulls(len(batch_number), type_)
            if values[0] < 0
            else pa.repeat(pa.scalar(int(values[0]), type_), len(batch_number))
        )
    numbers = values[batch_number]
    return pa.array(numbers.astype(type_.to_pandas_dtype()), mask=numbers < 0)


def _names(names: Sequence[str | None], values: Int64s, batch_number: Int64s) -> pa.Array:
    if (values == values[0]).all():
        return pa.repeat(pa.scalar(names[values[0]], pa.string()), len(batch_number))
    return pa.array(names, pa.string()).take(pa.array(values[batch_number]))


def _damage(place: BatchPlace, reason: str) -> DamageError:
    return DamageError(place.path, reason, position=place.position, offset=place.offset)
