"""The Arrow columns of records."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.inspection.files import DamageError
from wirekafka.pipelines.log_source.columns import SCHEMA, BatchPlace, Bounds, ColumnBuilder, Limits, pieces_of
from wirekafka.pipelines.log_source.record_bytes import Content
from wirekafka.wire.batch import HEADER_SIZE, BatchHeader, Record, TimestampType, build_batch, iterate_records

PLACE = BatchPlace("log", 17, 5)
ALL = Bounds(0, 1 << 62)


def content_of(data: bytearray, before: bytes = b"") -> Content:
    """Returns the records of an uncompressed batch, in a chunk that begins with other bytes."""
    chunk = before + bytes(data)
    return Content(chunk, len(before) + HEADER_SIZE, len(chunk))


def add(builder: ColumnBuilder, data: bytearray, content: Content, place: BatchPlace = PLACE) -> None:
    """Adds a batch in as many pieces as it takes."""
    for piece in pieces_of(BatchHeader(data), content, place, Limits()):
        builder.add(piece)


def take(*batches: bytearray, bounds: Bounds = ALL) -> list[dict[str, Any]]:
    """Returns the rows of uncompressed batches."""
    builder = ColumnBuilder("topic", 3)
    for data in batches:
        add(builder, data, content_of(data))
    columns = builder.take(bounds)
    columns.validate(full=True)
    assert columns.schema == SCHEMA
    return [dict(row) for row in columns.to_pylist()]


def time_of(timestamp_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)


def test_columns_of_a_plain_batch_hold_every_field() -> None:
    data = build_batch([Record(b"key", b"value", timestamp=1_500)], base_offset=40, leader_epoch=2)

    assert take(data) == [
        {
            "topic": "topic",
            "partition": 3,
            "offset": 40,
            "timestamp": time_of(1_500),
            "timestamp_type": "CreateTime",
            "key": b"key",
            "value": b"value",
            "headers": None,
            "producer_id": None,
            "producer_epoch": None,
            "sequence": None,
            "is_transactional": False,
            "is_control": False,
            "compression": "none",
            "leader_epoch": 2,
        }
    ]


def test_columns_of_null_and_empty_fields_differ() -> None:
    records = [Record(None, b""), Record(b"", None)]

    rows = take(build_batch(records))

    assert [(row["key"], row["value"], row["timestamp"]) for row in rows] == [(None, b"", None), (b"", None, None)]


def test_columns_of_append_time_have_the_time_of_the_batch() -> None:
    records = [Record(timestamp=1), Record(timestamp=9)]

    rows = take(build_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME))

    assert [(row["timestamp"], row["timestamp_type"]) for row in rows] == [(time_of(9), "LogAppendTime")] * 2


def test_columns_of_a_batch_with_a_delete_horizon_have_the_records_own_timestamps() -> None:
    records = [Record(timestamp=1_000), Record(timestamp=3_000)]

    rows = take(build_batch(records, delete_horizon_ms=2_000))

    assert [row["timestamp"] for row in rows] == [time_of(1_000), time_of(3_000)]


def test_columns_of_a_producers_batch_have_sequences_that_wrap() -> None:
    data = build_batch(
        [Record()] * 3, producer_id=7, producer_epoch=1, base_sequence=2**31 - 2, is_transactional=True, base_offset=5
    )

    rows = take(build_batch([Record()]), data)

    assert [row["sequence"] for row in rows] == [None, 2**31 - 2, 2**31 - 1, 0]
    assert [row["producer_id"] for row in rows] == [None, 7, 7, 7]
    assert [row["producer_epoch"] for row in rows] == [None, 1, 1, 1]
    assert [row["is_transactional"] for row in rows] == [False, True, True, True]


def test_columns_of_headers_are_null_for_records_without_headers() -> None:
    records = [Record(b"a"), Record(b"b", headers=((b"name", b"1"), (b"name", None), (b"\xff", b""))), Record(b"c")]

    rows = take(build_batch(records))

    pairs = [{"key": "name", "value": b"1"}, {"key": "name", "value": None}, {"key": "\ufffd", "value": b""}]
    assert [row["headers"] for row in rows] == [None, pairs, None]
    assert [row["key"] for row in rows] == [b"a", b"b", b"c"]


def test_columns_of_many_headers_keep_their_order_in_each_record() -> None:
    counts = [3, 0, 1, 40, 0, 2]
    records = [Record(headers=tuple((b"%d" % n, b"%d.%d" % (count, n)) for n in range(count))) for count in counts]

    rows = take(build_batch(records))

    assert [[pair["value"] for pair in row["headers"] or ()] for row in rows] == [
        [b"%d.%d" % (count, n) for n in range(count)] for count in counts
    ]


def test_columns_of_a_timestamp_out_of_range_have_the_nearest_that_fits() -> None:
    builder = ColumnBuilder("topic", 0)
    data = build_batch([Record(timestamp=(1 << 63) - 1)])
    add(builder, data, content_of(data))

    (value,) = builder.take(ALL).column("timestamp").cast(pa.int64()).to_pylist()

    assert value == ((1 << 63) - 1) // 1000 * 1000


def test_columns_within_bounds_are_only_the_wanted_records() -> None:
    records = [Record(b"%d" % number, headers=((b"h", b"%d" % number),), timestamp=number) for number in range(-1, 9)]
    bounds = Bounds(102, 108, first_timestamp=3, end_timestamp=6)

    rows = take(build_batch(records[:5], base_offset=100), build_batch(records[5:], base_offset=105), bounds=bounds)

    assert [(row["offset"], row["key"], row["headers"][0]["value"]) for row in rows] == [
        (104, b"3", b"3"),
        (105, b"4", b"4"),
        (106, b"5", b"5"),
    ]


def test_columns_of_batches_in_one_chunk_equal_those_of_separate_bytes() -> None:
    first = build_batch([Record(b"%d" % number, bytes(number)) for number in range(30)], producer_id=3, base_sequence=1)
    second = build_batch([Record(None, b"x", headers=((b"n", b"v"),))] * 12, base_offset=30)
    chunk = b"before" + bytes(first) + bytes(second)
    builder = ColumnBuilder("topic", 3)
    add(builder, first, Content(chunk, 6 + HEADER_SIZE, 6 + len(first)))
    add(builder, second, Content(chunk, 6 + len(first) + HEADER_SIZE, len(chunk)))

    assert builder.chunk is chunk
    assert builder.take(ALL).to_pylist() == take(first, second)


def test_columns_of_no_batch_are_empty() -> None:
    assert take() == []


@pytest.mark.parametrize("at", [0, 3, 4, 8, 10, 11, 13])
def test_columns_of_corrupt_records_name_the_batch(at: int) -> None:
    sound = build_batch([Record(b"k", b"v")], base_offset=1)
    data = build_batch([Record(b"key", b"v", headers=((b"n", b"1"),))], base_offset=5)
    data[HEADER_SIZE + at] ^= 0x41

    builder = ColumnBuilder("topic", 0)
    add(builder, sound, content_of(sound), BatchPlace("log", 0, 1))
    with pytest.raises(DamageError, match="^log, at byte 17, offset 5: "):
        add(builder, data, content_of(data))
        builder.take(ALL)


@given(st.integers(0, 80), st.integers(0, 255))
def test_columns_of_a_record_with_any_wrong_byte_are_refused_or_of_the_same_length(at: int, byte: int) -> None:
    headers = ((b"name", b"value"), (b"other", None))
    data = build_batch([Record(b"key", b"v" * 20, headers=headers, timestamp=1), Record(b"k", None, headers=headers[:1])])
    data[min(HEADER_SIZE + at, len(data) - 1)] = byte

    with suppress(DamageError):
        assert len(take(data)) == 2


some_bytes = st.none() | st.binary(max_size=200)
some_records = st.builds(
    Record,
    some_bytes,
    some_bytes,
    st.just(()) | st.lists(st.tuples(st.binary(max_size=9), some_bytes), max_size=3).map(tuple),
    st.integers(-1, 1 << 45),
)


@given(st.lists(st.lists(some_records, min_size=1, max_size=20), min_size=1, max_size=4))
def test_columns_of_any_records_equal_the_records_decoded_one_by_one(batches: list[list[Record]]) -> None:
    built = [build_batch(records, base_offset=100 * number) for number, records in enumerate(batches)]

    rows = take(*built)

    expected = [record for data in built for record in iterate_records(data)]
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [(r.offset, r.key, r.value) for r in expected]
    assert [row["timestamp"] for row in rows] == [None if r.timestamp < 0 else time_of(r.timestamp) for r in expected]
    headers = [[(pair["key"], pair["value"]) for pair in row["headers"] or ()] for row in rows]
    assert headers == [[(name.decode(errors="replace"), value) for name, value in r.headers] for r in expected]
