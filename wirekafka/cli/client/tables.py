"""Prints tables for people and JSON for scripts.

Rules of this file: a table is as wide as its cells, whatever the terminal. A cell never contains characters that a terminal would
interpret. A missing value is `-` in a table and null in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wirekafka.cli.output import printable

WIDE = 4096


def print_json(value: Any) -> None:
    """Prints one JSON value."""
    click.echo(json.dumps(value, indent=2))


def print_heading(text: str) -> None:
    """Prints a line above a table."""
    _console().print(Text(printable(text), style="bold"), soft_wrap=True)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], *, health: str = "") -> None:
    """Prints a table; numbers stand at the right.

    Args:
        health: the heading of the column that is red where it is not "ok".
    """
    lines = [tuple(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, padding=0)
    for index, heading in enumerate(headings):
        has_numbers = bool(lines) and all(isinstance(line[index], int | None) for line in lines)
        table.add_column(heading, justify="right" if has_numbers else "left", no_wrap=True)
    for line in lines:
        table.add_row(*(_cell(value, is_health=heading == health) for heading, value in zip(headings, line, strict=True)))
    _console().print(table)


def _console() -> Console:
    return Console(width=WIDE, highlight=False, markup=False, emoji=False)


def _cell(value: Any, *, is_health: bool) -> Text:
    match value:
        case None:
            return Text("-", style="dim")
        case list() | tuple():
            return Text(",".join(map(str, value)))
        case _:
            return Text(printable(str(value)), style="red" if is_health and value != "ok" else "")
