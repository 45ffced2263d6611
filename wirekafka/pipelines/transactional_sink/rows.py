"""The rows of a sink: the columns of its frame, and how a task reads them from Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import pyarrow

COLUMNS = {
    "source_topic": "string",
    "source_partition": "int",
    "source_offset": "bigint",
    "topic": "string",
    "partition": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp_ms": "bigint",
}
"""The columns of a frame, and their types in Spark."""

SLICE_ROWS = 1_000
SLICE_BYTES = 8 << 20
"""A writer looks at the size and the age of its transaction after this many rows, or about this many bytes."""

Headers = list[tuple[str, bytes | None]]


@dataclass(slots=True)
class Rows:
    """Consecutive rows of one source partition, one list a column."""

    offsets: list[int]
    topics: list[str]
    partitions: list[int | None]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers | None]
    timestamps: list[int | None]

    def after(self, next_offset: int) -> Rows:
        """Returns the rows from the offset on, each offset once. The rows are sorted by offset."""
        if not self.offsets or (self.offsets[0] >= next_offset and len(set(self.offsets)) == len(self.offsets)):
            return self
        kept, last = [], next_offset - 1
        for index, offset in enumerate(self.offsets):
            if offset > last:
                kept.append(index)
                last = offset
        columns = (self.offsets, self.topics, self.partitions, self.keys, self.values, self.headers, self.timestamps)
        return Rows(*([column[index] for index in kept] for column in columns))  # type: ignore[arg-type]

    def sizes(self) -> list[int]:
        """Returns the bytes of key, value and headers of each row."""
        sizes = [
            (0 if key is None else len(key)) + (0 if value is None else len(value))
            for key, value in zip(self.keys, self.values, strict=True)
        ]
        for index, headers in enumerate(self.headers):
            if headers is not None:
                sizes[index] += sum([len(name) + (0 if value is None else len(value)) for name, value in headers])
        return sizes


def source_slices(batch: pyarrow.RecordBatch) -> Iterator[tuple[tuple[str, int], pyarrow.RecordBatch]]:
    """Yields slices of a batch that is sorted by source, each with its source topic and partition."""
    topics, partitions = batch.column("source_topic"), batch.column("source_partition")
    step = max(1, min(SLICE_ROWS, batch.num_rows * SLICE_BYTES // max(1, batch.nbytes)))
    for first, end in _runs_of_equals(topics, partitions):
        source = (topics[first].as_py(), partitions[first].as_py())
        for start in range(first, end, step):
            yield source, batch.slice(start, min(step, end - start))


def _runs_of_equals(*columns: Any) -> Iterator[tuple[int, int]]:
    """Yields the first row and the end of each run of rows that are equal in all columns."""
    import pyarrow.compute as pc

    count = len(columns[0])
    if count == 0:
        return
    changes = {0, count}
    for column in columns:
        differs = pc.not_equal(column.slice(1), column.slice(0, count - 1))
        changes.update(index + 1 for index in pc.indices_nonzero(differs).to_pylist())
    bounds = sorted(changes)
    yield from zip(bounds, bounds[1:], strict=False)


def rows_of(batch: pyarrow.RecordBatch) -> Rows:
    """Reads the columns of a slice."""
    names = ("source_offset", "topic", "partition", "key", "value")
    offsets, topics, partitions, keys, values = (_values(batch.column(name)) for name in names)
    return Rows(
        offsets, topics, partitions, keys, values, header_lists(batch.column("headers")), _values(batch.column("timestamp_ms"))
    )


def _values(column: Any) -> list[Any]:
    """Returns the values of a column, through numpy: `to_pylist` makes a scalar for each value and is several times slower."""
    import pyarrow

    if pyarrow.types.is_integer(column.type) and column.null_count:
        return cast(list[Any], column.to_pylist())
    return cast(list[Any], column.to_numpy(zero_copy_only=False).tolist())


def header_lists(column: Any) -> list[Headers | None]:
    """Returns the headers of each row as pairs, in their order; None for a row without headers."""
    if column.null_count == len(column):
        return [None] * len(column)
    bounds = _values(column.offsets)
    first = bounds[0]
    structs = column.values.slice(first, bounds[-1] - first)
    pairs = list(zip(_values(structs.field("key")), _values(structs.field("value")), strict=True))
    return [pairs[start - first : end - first] or None for start, end in zip(bounds, bounds[1:], strict=False)]
