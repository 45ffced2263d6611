"""Prints rows: as tables for people, or as JSON lines for programs.

How it works: a column of a table is as wide as its widest cell. Rows are collected page by page, so a log of any length is
printed in bounded memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wirekafka.cli.output import printable
from wirekafka.inspection.dump import Row

PAGE_ROWS = 500
MOST_CELL_CHARACTERS = 60
WIDE = 4096
"""The width of every table. Folded cells on a narrow terminal would be unreadable."""
SHOWN_WHERE_NULL = ("key", "value")


class RowWriter(Protocol):
    """Prints rows."""

    def write(self, path: str, row: Row) -> None:
        """Takes a row of a file. The writer may print it later."""
        ...

    def flush(self) -> None:
        """Prints the rows that are not printed yet."""
        ...


def writer_of(output: str) -> RowWriter:
    """Returns the writer of a format, `table` or `jsonl`."""
    return TableWriter() if output == "table" else JsonLinesWriter()


class JsonLinesWriter:
    """Prints one object for each row: file, type and fields."""

    def write(self, path: str, row: Row) -> None:
        """Prints the row."""
        sys.stdout.write(json.dumps({"file": path, "type": row.type} | row.fields) + "\n")

    def flush(self) -> None:
        """Flushes stdout."""
        sys.stdout.flush()


class TableWriter:
    """Prints a heading for each file, and a table for each page of rows with the same fields."""

    def __init__(self) -> None:
        self._console = Console(width=WIDE, highlight=False, markup=False, emoji=False)
        self._rows: list[Row] = []
        self._path = self._heading = ""
        self._widths: dict[str, int] = {}

    def write(self, path: str, row: Row) -> None:
        """Adds the row to the page. The page is printed first if it is full, or if the row belongs to another page."""
        first = self._rows[0] if self._rows else row
        if len(self._rows) >= PAGE_ROWS or path != self._path or row.type != first.type:
            self.flush()
        if path != self._path:
            self._widths.clear()
        self._path = path
        self._rows.append(Row(row.type, _short_batch(row.fields)) if row.type == "batch" else row)

    def flush(self) -> None:
        """Prints the page, full or not."""
        if not self._rows:
            return
        if self._heading != self._path:
            self._heading = self._path
            self._console.print(Text(printable(self._path), style="bold"), soft_wrap=True)
        self._console.print(self._table())
        self._rows.clear()

    def _table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, padding=0)
        names = dict.fromkeys(name for row in self._rows for name in row.fields)
        shown = [name for name in names if _is_shown(name, (row.fields.get(name) for row in self._rows))]
        columns = [[_cell(name, row.fields) for row in self._rows] for name in shown]
        for name, cells in zip(shown, columns, strict=True):
            is_number = all(isinstance(row.fields.get(name), int | None) for row in self._rows)
            width = self._widths[name] = max(self._widths.get(name, 0), *(cell.cell_len for cell in cells))
            heading = name.replace("_", " ")
            # With a given width, rich does not measure each cell again.
            justify: Literal["left", "right"] = "right" if is_number else "left"
            table.add_column(heading, justify=justify, width=max(width, len(heading)), no_wrap=True)
        for line in zip(*columns, strict=True):
            table.add_row(*line)
        return table


def _short_batch(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a batch in fewer columns."""
    flags = {
        "append-time": fields["timestamp_type"] == "log_append_time",
        "transactional": fields.get("is_transactional"),
        "control": fields.get("is_control"),
    }
    return {
        "position": fields["position"],
        "bytes": fields["size_bytes"],
        "first": fields["base_offset"],
        "last": fields["last_offset"],
        "records": fields["record_count"],
        "magic": fields["magic"],
        "codec": fields["compression"],
        "max_timestamp": fields["max_timestamp"],
        "delete_horizon_ms": fields.get("delete_horizon_ms"),
        "epoch": fields["leader_epoch"],
        "producer": fields.get("producer_id"),
        "producer_epoch": fields.get("producer_epoch"),
        "sequence": fields.get("base_sequence"),
        "flags": " ".join(flag for flag, is_set in flags.items() if is_set) or None,
        "crc": fields["crc"],
        "is_valid": fields["is_valid"],
    }


def _is_shown(name: str, values: Iterable[Any]) -> bool:
    return name in SHOWN_WHERE_NULL or any(value is not None and value is not False and value != [] for value in values)


def _cell(name: str, fields: dict[str, Any]) -> Text:
    value = fields.get(name)
    match value:
        case None:
            is_null = name in SHOWN_WHERE_NULL and name in fields
            return Text("null" if is_null else "", style="dim")
        case bool():
            return Text(
                "yes" if value else "no" if name == "is_valid" else "", style="red" if name == "is_valid" and not value else ""
            )
        case int() if name.endswith(("timestamp", "_ms")):
            return Text(_time(value))
        case list() | dict():
            return Text(_cut(json.dumps(value, ensure_ascii=False)) if value else "")
        case _:
            return Text(_cut(str(value)))


def _time(milliseconds: int) -> str:
    try:
        time = datetime.fromtimestamp(milliseconds // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return f"{time:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03}"


def _cut(text: str) -> str:
    """Cuts a text to the width of a cell, and escapes what a terminal would interpret."""
    shown = printable(text[: MOST_CELL_CHARACTERS + 1])
    return shown if len(shown) <= MOST_CELL_CHARACTERS else shown[: MOST_CELL_CHARACTERS - 1] + "…"
