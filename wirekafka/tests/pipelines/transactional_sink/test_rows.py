from __future__ import annotations

from typing import Any

import pytest

from wirekafka.pipelines.transactional_sink.rows import SLICE_BYTES, SLICE_ROWS, Rows, header_lists, rows_of, source_slices

pyarrow = pytest.importorskip("pyarrow")

HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))


def arrow_batch(sources: list[tuple[str, int, int]], **columns: list[Any]) -> Any:
    """Makes a batch of rows with these source topics, partitions and offsets."""
    count = len(sources)
    fields = {
        "source_topic": ([topic for topic, _, _ in sources], pyarrow.string()),
        "source_partition": ([partition for _, partition, _ in sources], pyarrow.int32()),
        "source_offset": ([offset for _, _, offset in sources], pyarrow.int64()),
        "topic": (columns.get("topic", ["t"] * count), pyarrow.string()),
        "partition": (columns.get("partition", [0] * count), pyarrow.int32()),
        "key": (columns.get("key", [b"k"] * count), pyarrow.binary()),
        "value": (columns.get("value", [b"v"] * count), pyarrow.binary()),
        "headers": (columns.get("headers", [None] * count), HEADERS),
        "timestamp_ms": (columns.get("timestamp_ms", [7] * count), pyarrow.int64()),
    }
    return pyarrow.record_batch({name: pyarrow.array(values, kind) for name, (values, kind) in fields.items()})


def numbered_rows(*offsets: int) -> Rows:
    return rows_of(arrow_batch([("s", 0, offset) for offset in offsets], value=[b"%d" % offset for offset in offsets]))


def test_slices_of_a_batch_with_several_sources_have_one_source_each() -> None:
    sources = [("a", 0, 5), ("a", 0, 6), ("a", 1, 5), ("b", 1, 0)]
    found = [(source, rows_of(rows).offsets) for source, rows in source_slices(arrow_batch(sources))]
    assert found == [(("a", 0), [5, 6]), (("a", 1), [5]), (("b", 1), [0])]


def test_slices_of_an_empty_batch_are_none() -> None:
    assert list(source_slices(arrow_batch([]))) == []


def test_slices_of_a_long_source_partition_are_bounded() -> None:
    sources = [("a", 0, offset) for offset in range(2 * SLICE_ROWS + 1)]
    assert [rows.num_rows for _, rows in source_slices(arrow_batch(sources))] == [SLICE_ROWS, SLICE_ROWS, 1]


def test_slices_of_large_records_are_bounded_in_bytes() -> None:
    sources = [("a", 0, offset) for offset in range(20)]
    batch = arrow_batch(sources, value=[bytes(SLICE_BYTES // 4)] * 20)
    assert {rows.num_rows for _, rows in source_slices(batch)} <= {2, 3, 4}


def test_rows_with_nulls_keep_them_apart_from_empty_values() -> None:
    batch = arrow_batch(
        [("s", 0, n) for n in range(3)],
        key=[None, b"", b"k"],
        value=[b"", None, b"v"],
        partition=[None, 1, 0],
        timestamp_ms=[None, 0, 9],
    )
    rows = rows_of(batch)
    assert rows.keys == [None, b"", b"k"]
    assert rows.values == [b"", None, b"v"]
    assert rows.partitions == [None, 1, 0]
    assert rows.timestamps == [None, 0, 9]


def test_headers_of_a_sliced_column_keep_order_repeated_keys_and_nulls() -> None:
    first = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b""}]
    column = pyarrow.array([[{"key": "x", "value": b"x"}], None, first, [], [{"key": "z", "value": b"z"}]], HEADERS)
    assert header_lists(column.slice(1, 4)) == [None, [("a", b"1"), ("b", None), ("a", b"")], None, [("z", b"z")]]


def test_rows_after_an_offset_begin_there_and_have_each_offset_once() -> None:
    rows = numbered_rows(3, 4, 4, 7, 9, 9)
    assert rows.after(0).offsets == [3, 4, 7, 9]
    assert rows.after(5).offsets == [7, 9]
    assert rows.after(5).values == [b"7", b"9"]
    assert rows.after(10).offsets == []


def test_sizes_of_rows_count_key_value_and_headers() -> None:
    headers = [None, [{"key": "ab", "value": b"cde"}, {"key": "f", "value": None}]]
    batch = arrow_batch([("s", 0, 0), ("s", 0, 1)], key=[None, b"kk"], value=[b"vvv", None], headers=headers)
    assert rows_of(batch).sizes() == [3, 2 + 6]
