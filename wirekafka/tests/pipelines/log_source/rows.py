"""Reads data directories as the data source does, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wirekafka.pipelines.log_source.plan import Selection, Split, plan
from wirekafka.pipelines.log_source.reading import Reading, read_split

Row = dict[str, Any]


def rows_in(splits: list[Split], selection: Selection | None = None, *, has_crc_checks: bool = True) -> list[Row]:
    """Returns the rows of splits."""
    selection = selection or Selection()
    reading = Reading(selection.starting_timestamp, selection.ending_timestamp, selection.is_committed, has_crc_checks)
    return [row for split in splits for columns in read_split(split, reading) for row in columns.to_pylist()]


def rows_of(root: Path, split_bytes: int = 1 << 26, **wanted: Any) -> list[Row]:
    """Returns the rows of a directory."""
    selection = Selection(**wanted)
    return rows_in(plan(str(root), selection, split_bytes), selection)


def offsets_of(rows: list[Row]) -> list[int]:
    """Returns the offsets of rows."""
    return [row["offset"] for row in rows]
