"""The content of znodes: JSON objects in the form in which Kafka's Jackson writes them.

Rules: texts, integers and arrays have exactly the type that Kafka demands; an integer is not read from a text. Key order is the
caller's.

Source: kafka.utils.Json, kafka.utils.json.DecodeJson of Kafka 3.9.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NoReturn

_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")
MOST_NESTED = 100
"""Content with as many arrays and objects is not nested too deeply to be written, whatever calls the writer."""

MOST_LEVELS = 4
"""Kafka's content has so many levels at most; that of more is looked at more closely."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

MOST_SHOWN = 300
"""The most characters of a reason, which may show the content of a znode."""

MOST_BYTES = 1_000_000
"""The most bytes of content in one request. ZooKeeper closes the connection that sends more than 1 MiB (jute.maxbuffer), and so
ends the work of everybody who uses the session."""

_INT_32 = range(-(1 << 31), 1 << 31)
_INT_64 = range(-(1 << 63), 1 << 63)


_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = 100
"""Shows the beginning of a value in little time."""


class MalformedZnodeError(Exception):
    """A znode has content that Kafka would not write.

    Attributes:
        path: the znode's.
        reason: what is wrong with its content.
    """

    def __init__(self, path: str, reason: str) -> None:
        shown = reason if len(reason) <= MOST_SHOWN else f"{reason[:MOST_SHOWN]}..."
        super().__init__(path, shown)
        self.path = path
        self.reason = shown

    def __str__(self) -> str:
        return f"The content of the znode {self.path} is malformed: {self.reason}"


class JsonObject:
    """A JSON object of a znode, whose values are read by key and type.

    Every method raises `MalformedZnodeError` if the value is missing or has another type.
    """

    def __init__(self, path: str, values: dict[str, Any]) -> None:
        self._path = path
        self._values = values

    @classmethod
    def parse(cls, path: str, data: bytes) -> JsonObject:
        """Reads the whole content of a znode."""
        try:
            values = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_read_finite)
            # Texts that are not Unicode, and deep nesting, could not be written again. JSON has such texts as escapes only.
            if b"\\u" in data or not _is_flat(data):
                json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise MalformedZnodeError(path, f"it is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise MalformedZnodeError(path, "it is not a JSON object")
        return cls(path, values)

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def without(self, known: Iterable[str]) -> dict[str, Any]:
        """Returns all values but those of the known keys."""
        names = {*known}
        return {key: value for key, value in self._values.items() if key not in names}

    def integer(self, key: str) -> int:
        """Returns an integer of 32 bits."""
        return self._integer(key, self._value(key), _INT_32)

    def long_text(self, key: str) -> int:
        """Returns an integer of 64 bits that is written as text."""
        text = self.text(key)
        if not re.fullmatch("[+-]?[0-9]{1,20}", text, re.ASCII) or int(text) not in _INT_64:
            self.refuse(f"{key} is not a number in text: {_shown.repr(text)}")
        return int(text)

    def text(self, key: str) -> str:
        """Returns a text."""
        value = self._value(key)
        if not isinstance(value, str):
            self.refuse(f"{key} is not a text: {_shown.repr(value)}")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """Returns an array of integers of 32 bits."""
        return tuple(self._integer(key, each, _INT_32) for each in self._array(key))

    def texts(self, key: str) -> tuple[str, ...]:
        """Returns an array of texts."""
        values = self._array(key)
        if not all(isinstance(each, str) for each in values):
            self.refuse(f"{key} is not an array of texts: {_shown.repr(values)}")
        return tuple(values)

    def texts_by_name(self, key: str) -> dict[str, str]:
        """Returns an object whose values are texts."""
        values = self.object(key)
        if not all(isinstance(value, str) for value in values._values.values()):
            return {name: values.text(name) for name in values}
        return values._values

    def integers_by_name(self, key: str) -> dict[str, tuple[int, ...]]:
        """Returns an object whose values are arrays of integers of 32 bits."""
        values = self.object(key)
        arrays = values._values.values()
        if _are_integers(arrays):
            return {name: tuple(array) for name, array in values._values.items()}
        return {name: values.integers(name) for name in values}

    def objects(self, key: str) -> tuple[JsonObject, ...]:
        """Returns an array of objects."""
        return tuple(self._object(key, each) for each in self._array(key))

    def object(self, key: str) -> JsonObject:
        """Returns an object."""
        return self._object(key, self._value(key))

    def refuse(self, reason: str) -> NoReturn:
        """Says that the content is malformed."""
        raise MalformedZnodeError(self._path, reason)

    def _value(self, key: str) -> Any:
        if key not in self:
            self.refuse(f"{key} is missing")
        return self._values[key]

    def _integer(self, key: str, value: Any, bounds: range) -> int:
        if type(value) is not int or value not in bounds:
            self.refuse(f"{key} is not an integer: {_shown.repr(value)}")
        return value

    def _array(self, key: str) -> list[Any]:
        value = self._value(key)
        if not isinstance(value, list):
            self.refuse(f"{key} is not an array: {_shown.repr(value)}")
        return value

    def _object(self, key: str, value: Any) -> JsonObject:
        if not isinstance(value, dict):
            self.refuse(f"{key} is not an object: {_shown.repr(value)}")
        return JsonObject(self._path, value)


def write_object(values: Mapping[str, Any], unknown: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a JSON object: the values in their order, and then those that the reader did not know."""
    text = json.dumps({**values, **unknown}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Jackson writes the digits of an escaped control character in upper case.
    return _ESCAPE.sub(lambda match: "\\u" + match[0][2:].upper() if match[0][1] == "u" else match[0], text).encode()


def in_order(keys: Iterable[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values in the order of the keys."""
    return {key: values[key] for key in keys}


def read_integer(path: str, data: bytes) -> int:
    """Reads a znode whose content is one integer of 32 bits, in decimal digits.

    Raises:
        MalformedZnodeError: the content is not such an integer.
    """
    text = data.decode("latin-1")
    if not re.fullmatch("[+-]?[0-9]{1,20}", text, re.ASCII) or int(text) not in _INT_32:
        raise MalformedZnodeError(path, f"it is not an integer: {_shown.repr(text)}")
    return int(text)


def _are_integers(arrays: Collection[Any]) -> bool:
    """Whether all are arrays of integers of 32 bits. To look at 10,000 arrays together takes a fifth of the time (2026-11)."""
    if not {*map(type, arrays)} <= {list}:
        return False
    integers = [*chain.from_iterable(arrays)]
    return {*map(type, integers)} <= {int} and (not integers or (min(integers) in _INT_32 and max(integers) in _INT_32))


def _is_flat(data: bytes) -> bool:
    """Whether JSON is certainly not nested too deeply to be written, whatever calls the writer."""
    if data.count(b"[") + data.count(b"{") <= MOST_NESTED:
        return True
    brackets = _TEXT.sub(b"", data).translate(None, _NO_BRACKETS)
    for _ in range(MOST_LEVELS):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return not brackets


def _read_finite(text: str) -> float:
    """Reads a number that is not an integer; one that is too large for a float could not be written again."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:MOST_SHOWN]} is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
