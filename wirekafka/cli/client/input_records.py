"""The records that `wirekafka produce` reads: lines, JSON lines, or whole files.

Rules of this file: a record is yielded as soon as its line is read. A malformed line ends the input; its error names the line.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wirekafka.cli.client.errors import ClientCommandError
from wirekafka.inspection.text import BytesStyle

Headers = list[tuple[str, bytes | None]]

KNOWN = {"topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"}
"""The fields of a JSON line: those that `wirekafka consume --json` writes. Topic, offset and timestamp_type are not used."""


@dataclass(slots=True)
class NewRecord:
    """A record to send. The partition is None if the key chooses it; the timestamp is in milliseconds, None for now."""

    key: bytes | None = None
    value: bytes | None = None
    partition: int | None = None
    timestamp: int | None = None
    headers: Headers = field(default_factory=list)


@dataclass(slots=True)
class LineFormat:
    """How lines are read.

    Attributes:
        separator: divides a line into key and value.
        null: a key or a value that is null.
        style: how keys and values are written.
    """

    separator: bytes | None = None
    null: bytes | None = None
    style: BytesStyle = BytesStyle.TEXT

    def record(self, line: bytes) -> NewRecord:
        """Returns the record of a line without its line feed.

        Raises:
            ValueError: it is malformed.
        """
        if self.separator is None:
            return NewRecord(value=self._bytes(line))
        key, found, value = line.partition(self.separator)
        if not found:
            raise ValueError(f"no {self.separator.decode(errors='replace')!r} divides it into key and value")
        return NewRecord(self._bytes(key), self._bytes(value))

    def _bytes(self, text: bytes) -> bytes | None:
        if text == self.null:
            return None
        return text if self.style is BytesStyle.TEXT else decoded(text.decode("ascii"), self.style)

    def json_record(self, line: bytes) -> NewRecord:
        """Returns the record of a JSON object.

        Raises:
            ValueError: it is malformed.
        """
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError(f"no JSON object: {line[:60].decode(errors='replace')}")
        unknown = sorted(fields.keys() - KNOWN)
        if unknown:
            raise ValueError(f"unknown field {unknown[0]}; accepted are {', '.join(sorted(KNOWN))}")
        return NewRecord(
            self._of_json(fields.get("key")),
            self._of_json(fields.get("value")),
            _number(fields, "partition"),
            _number(fields, "timestamp"),
            [(str(name), self._of_json(value)) for name, value in _pairs(fields.get("headers") or [])],
        )

    def _of_json(self, value: object) -> bytes | None:
        match value:
            case None:
                return None
            case str():
                return decoded(value, self.style)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decoded(text: str, style: BytesStyle) -> bytes:
    """Returns the bytes that a text stands for.

    Raises:
        ValueError: it is malformed.
    """
    match style:
        case BytesStyle.TEXT:
            return text.encode()
        case BytesStyle.HEX:
            return bytes.fromhex(text)
        case BytesStyle.BASE64:
            return base64.b64decode(text, validate=True)


def _number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError(f"{name} {value!r}: accepted is a number")


def _pairs(headers: object) -> Iterable[tuple[Any, Any]]:
    match headers:
        case dict():
            return headers.items()
        case list() if all(isinstance(each, list) and len(each) == 2 for each in headers):
            return [(name, value) for name, value in headers]
    raise ValueError("headers: accepted is an object, or a list of [name, value]")


def read_lines(name: str, lines: Iterable[bytes], form: LineFormat, *, is_json: bool) -> Iterator[NewRecord]:
    """Yields the records of lines; JSON lines may be empty.

    Args:
        name: that of the file.

    Raises:
        ClientCommandError: a line is malformed.
    """
    for number, line in enumerate(lines, 1):
        line = line.removesuffix(b"\n")
        if is_json and not line.strip():
            continue
        try:
            yield form.json_record(line) if is_json else form.record(line)
        except (ValueError, RecursionError) as error:
            raise ClientCommandError(f"{name}, line {number}: {error}") from None
