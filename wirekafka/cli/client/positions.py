"""Positions in a partition on the command line: `beginning`, `end`, `42`, `-10`, `+10`, `@2026-05-01T12:00:00`, `@-1h`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import click

from wirekafka.cli.client.times import parse_time_ms

if TYPE_CHECKING:
    from wirekafka.cli.client.connection import Connection

Name = tuple[str, int]

_NUMBER = re.compile(r"([+-]?)(\d+)")
WORDS = {"beginning": "BEGINNING", "earliest": "BEGINNING", "start": "BEGINNING", "end": "END", "latest": "END"}


class Kind(Enum):
    """What a position is counted from."""

    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    AFTER_BEGINNING = "+"
    BEFORE_END = "-"
    TIME = "@"


class Position(NamedTuple):
    """A position in each partition.

    Attributes:
        number: the offset, the count of offsets or the time in milliseconds; 0 for the beginning and the end.
    """

    kind: Kind
    number: int = 0


BEGINNING, END = Position(Kind.BEGINNING), Position(Kind.END)


class Range(NamedTuple):
    """The offsets of a partition that are read: from `first` up to the one before `until`."""

    first: int
    until: int


def parse_position(text: str, now_ms: int) -> Position:
    """Returns the position that a text names.

    Raises:
        click.UsageError: it names none.
    """
    if text in WORDS:
        return Position(Kind[WORDS[text]])
    if text.startswith("@"):
        return Position(Kind.TIME, parse_time_ms(text[1:], now_ms))
    number = _NUMBER.fullmatch(text)
    if number is None:
        raise click.UsageError(
            f"{text} is no position: accepted is beginning, end, an offset, -COUNT before the end, +COUNT after the beginning, "
            "or @TIME, such as @2026-05-01T12:00:00 or @-1h."
        )
    kinds = {"": Kind.OFFSET, "+": Kind.AFTER_BEGINNING, "-": Kind.BEFORE_END}
    return Position(kinds[number[1]], int(number[2]))


def ranges_of(
    connection: Connection, names: Sequence[Name], first: Position, until: Position, *, is_committed_only: bool
) -> dict[Name, Range]:
    """Returns what is read of each partition.

    Args:
        is_committed_only: whether the end is the last stable offset.

    Raises:
        ClientCommandError: a partition has no leader.
    """
    from wirekafka.cli.client.connection import library
    from wirekafka.cli.client.errors import ClientCommandError

    spec = library().admin.OffsetSpec
    starts = connection.offsets(dict.fromkeys(names, spec.earliest()))
    ends = connection.offsets(dict.fromkeys(names, spec.latest()), is_committed_only=is_committed_only)
    at_times = {
        position: connection.offsets(dict.fromkeys(names, spec.for_timestamp(position.number)))
        for position in {first, until}
        if position.kind is Kind.TIME
    }
    ranges = {}
    for name in names:
        start, end = starts[name], ends[name]
        if start is None or end is None:
            raise ClientCommandError(
                f"{name[0]}-{name[1]} has no leader that tells its offsets: `wirekafka topic describe` shows it"
            )
        ranges[name] = Range(*(_offset(each, name, start, end, at_times.get(each, {})) for each in (first, until)))
    return ranges


def _offset(position: Position, name: Name, start: int, end: int, at_time: Mapping[Name, int | None]) -> int:
    found = at_time.get(name)
    offset = {
        Kind.BEGINNING: start,
        Kind.END: end,
        Kind.OFFSET: position.number,
        Kind.AFTER_BEGINNING: start + position.number,
        Kind.BEFORE_END: end - position.number,
        Kind.TIME: end if found is None else found,
    }[position.kind]
    return min(max(offset, start), end)
