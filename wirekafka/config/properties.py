r"""The text of a `.properties` file, as Java reads it.

Rules of the format:
    The bytes are ISO 8859-1; other characters are written as `\uXXXX`. A line ends at `\n`, `\r` or `\r\n`. A backslash at
    the end of a line joins the next line, without the leading blanks of that line. `#` and `!` begin a comment. The first
    `=`, `:` or blank that is not escaped ends the key. Of two lines with the same key, the later one counts.

Source: java.util.Properties.load, which is how Apache Kafka reads server.properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from wirekafka.config.definition import ConfigError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Entry(NamedTuple):
    """One setting of a file; `line` is the number of the line on which it begins, from 1."""

    name: str
    value: str
    line: int


def parse_properties(data: bytes) -> dict[str, str]:
    r"""Keys and values of the file, in the order in which keys first appear.

    Raises:
        ConfigError: a `\u` is not followed by four hexadecimal digits.
    """
    return {entry.name: entry.value for entry in parse_entries(data)}


def parse_entries(data: bytes) -> list[Entry]:
    """Returns the settings in the order of the file, including those that a later line replaces.

    Raises:
        ConfigError: as `parse_properties`.
    """
    return [
        Entry(_unescape(key, line), _unescape(value, line), number)
        for number, line in _logical_lines(data.decode("latin-1"))
        for key, value in (_split(line),)
    ]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines, continued ones joined, each with the number of its first line."""
    joined = ""
    is_continued = False
    first = 0
    for number, natural in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = natural.lstrip(_BLANKS)
        if not is_continued and (not line or line[0] in "#!"):
            continue
        first = first if is_continued else number
        joined += line
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if is_continued:
            joined = joined[:-1]
            continue
        if joined:
            yield first, joined
        joined = ""
    if joined:
        yield first, joined


def _split(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANKS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return line[:end], rest


def _unescape(text: str, line: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        digits, character = match.group(1), match.group(2)
        if digits is not None:
            return chr(int(digits, 16))
        if character == "u":
            raise ConfigError(_split(line)[0], None, "four hexadecimal digits after \\u", "malformed \\uXXXX encoding")
        return _ESCAPES.get(character, character)

    unescaped = re.sub(r"\\u([0-9a-fA-F]{4})|\\(.)", replace, text, flags=re.DOTALL)
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
