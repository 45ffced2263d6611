r"""Records as text: JSON lines, or lines of a format such as `%k=%v\n`.

In a format, `%t` is the topic, `%p` the partition, `%o` the offset, `%k` the key, `%v` the value (`%s` as in kcat), `%h` the
headers, `%T` the timestamp in milliseconds, `%d` the timestamp as a date, `%K` and `%S` the sizes of key and value in bytes, `%%`
a percent sign.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from wirekafka.inspection.text import BytesStyle, show_bytes

if TYPE_CHECKING:
    from confluent_kafka import Message

TIMESTAMP_TYPES = {1: "create_time", 2: "log_append_time"}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_TOKEN = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\([ntr0\\])", re.DOTALL)

Part = Callable[["Message"], bytes]


class RecordText:
    """Writes records as bytes of text.

    Args:
        key_style: how keys are shown.
        value_style: how values, and values of headers, are shown.
        null: stands for a key or a value that is null, in a format.
        is_terminal: whether characters that a terminal would interpret are escaped.
    """

    def __init__(self, key_style: BytesStyle, value_style: BytesStyle, *, null: str = "null", is_terminal: bool = False) -> None:
        self._key_style = key_style
        self._value_style = value_style
        self._null = null.encode()
        self._is_terminal = is_terminal

    def json_line(self, record: Message) -> bytes:
        """Returns a record as one JSON object and a line feed."""
        kind, timestamp = record.timestamp()
        fields = {
            "topic": record.topic(),
            "partition": record.partition(),
            "offset": record.offset(),
            "timestamp": timestamp if kind in TIMESTAMP_TYPES else None,
            "timestamp_type": TIMESTAMP_TYPES.get(kind),
            "key": show_bytes(record.key(), self._key_style),
            "value": show_bytes(record.value(), self._value_style),
            "headers": [[name, show_bytes(value, self._value_style)] for name, value in record.headers() or ()],
        }
        return json.dumps(fields).encode() + b"\n"

    def formatter(self, template: str) -> Part:
        """Returns a function that writes a record in a format.

        Raises:
            click.UsageError: the format has an unknown part.
        """
        parts: list[bytes | Part] = []
        place = 0
        for token in _TOKEN.finditer(template):
            parts.append(template[place : token.start()].encode())
            parts.append(self._part(token))
            place = token.end()
        parts.append(template[place:].encode())
        return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    def _part(self, token: re.Match[str]) -> bytes | Part:
        if token[2]:
            return bytes.fromhex(token[2])
        if token[3]:
            return ESCAPES[token[3]].encode()
        known: dict[str, bytes | Part] = {
            "%": b"%",
            "t": lambda record: str(record.topic()).encode(),
            "p": lambda record: b"%d" % record.partition(),
            "o": lambda record: b"%d" % record.offset(),
            "k": lambda record: self._shown(record.key(), self._key_style),
            "v": lambda record: self._shown(record.value(), self._value_style),
            "s": lambda record: self._shown(record.value(), self._value_style),
            "h": self._headers,
            "T": lambda record: b"%d" % record.timestamp()[1],
            "d": lambda record: _date(record).encode(),
            "K": lambda record: b"%d" % len(record.key() or b""),
            "S": lambda record: b"%d" % len(record.value() or b""),
        }
        if token[1] not in known:
            raise click.UsageError(f"--format: %{token[1]} is unknown: accepted are {', '.join(f'%{each}' for each in known)}.")
        return known[token[1]]

    def _headers(self, record: Message) -> bytes:
        return b",".join(name.encode() + b"=" + self._shown(value, self._value_style) for name, value in record.headers() or ())

    def _shown(self, data: bytes | None, style: BytesStyle) -> bytes:
        if data is None:
            return self._null
        if style is not BytesStyle.TEXT:
            return str(show_bytes(data, style)).encode()
        return _harmless(data) if self._is_terminal else data


def _harmless(data: bytes) -> bytes:
    """Escapes what a terminal would interpret, but for line feeds and tabs."""
    text = data.decode(errors="backslashreplace")
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text).encode(errors="replace")


def _date(record: Any) -> str:
    kind, timestamp = record.timestamp()
    if kind not in TIMESTAMP_TYPES:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(timestamp)
