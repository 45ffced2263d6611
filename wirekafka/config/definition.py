"""The definition of a setting: its name, type, default, accepted values and documentation.

Rules of this file: a table holds `Setting`s. The same entry parses a line of server.properties, answers DescribeConfigs and
becomes a line of docs/configuration.md. A value is checked when it is parsed, and never again. Absence is None.

Source: org.apache.kafka.common.config.ConfigDef (types, trimming, the text form of a value).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from math import isinf

Value = bool | int | float | str | list[str] | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308


class ConfigError(Exception):
    """A setting is unknown, malformed or not supported.

    Attributes:
        name: the setting's name as it was given.
        value: the text that was given, `[hidden]` for a secret, None if the error is about the name or no value was given.
        accepted: a phrase for the accepted values; empty if no value is accepted.
        reason: what is wrong, if there is more to say than that the value is not accepted.
    """

    def __init__(self, name: str, value: str | None, accepted: str, reason: str | None = None) -> None:
        super().__init__(name, value, accepted, reason)
        self.name = name
        self.value = value
        self.accepted = accepted
        self.reason = reason

    def __str__(self) -> str:
        what = f"Invalid value {self.value} for configuration {self.name}" if self.value is not None else self.name
        return ": ".join(filter(None, (what, self.reason))) + (f"; accepted: {self.accepted}" if self.accepted else "")


class Type(IntEnum):
    """The type of a setting, by the numbers of DescribeConfigs.

    Source: DescribeConfigsResponse.ConfigType.
    """

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_INTEGERS = {Type.SHORT: 2**15 - 1, Type.INT: INT_MAX, Type.LONG: LONG_MAX}
_PHRASES = {
    Type.BOOLEAN: "true or false",
    Type.STRING: "a text",
    Type.INT: "an integer",
    Type.SHORT: "an integer",
    Type.LONG: "an integer",
    Type.DOUBLE: "a number",
    Type.LIST: "a list separated by commas",
    Type.CLASS: "the name of a class",
    Type.PASSWORD: "a text",
}


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on a value beyond its type; `accepted` describes it in errors and docs."""

    accepted: str
    holds: Callable[[Value], bool]


def at_least(least: int) -> Check:
    """Accepts a number that is not less than `least`."""
    return Check(f"at least {least}", lambda value: isinstance(value, (int, float)) and value >= least)


def between(least: int, most: int) -> Check:
    """Accepts a number from `least` to `most`."""
    return Check(f"from {least} to {most}", lambda value: isinstance(value, (int, float)) and least <= value <= most)


def between_or(least: int, most: int, other: int) -> Check:
    """Accepts a number from `least` to `most`, or `other`."""
    bounds = between(least, most)
    return Check(f"{bounds.accepted}, or {other}", lambda value: value == other or bounds.holds(value))


def one_of(*choices: str) -> Check:
    """Accepts one of the texts; case matters."""
    return Check("one of " + ", ".join(choices), lambda value: value in choices)


def items_of(*choices: str) -> Check:
    """Accepts a list of some of the texts; it may be empty."""
    return Check("of " + ", ".join(choices), lambda value: isinstance(value, list) and set(value) <= set(choices))


def items_like(pattern: str, accepted: str) -> Check:
    """Accepts a list whose items all match the pattern; it may be empty."""
    return Check(accepted, lambda value: isinstance(value, list) and all(re.fullmatch(pattern, item) for item in value))


def text_like(pattern: str, accepted: str) -> Check:
    """Accepts a text that matches the pattern."""
    return Check(accepted, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def nonempty_list() -> Check:
    """Accepts a list with at least one item, without empty items and duplicates (KIP-1161)."""
    accepted = "with at least one item, no empty item and no duplicate"
    return Check(accepted, lambda value: isinstance(value, list) and 0 < len(value) == len(set(value)) and "" not in value)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the broker or of a topic.

    Attributes:
        name: Kafka's name.
        default: the parsed default; None where there is none.
        documentation: what the setting does, in one or two sentences.
        check: what values must satisfy; a default of None is exempt.
        is_dynamic: IncrementalAlterConfigs may change the setting while the broker runs.
        fallbacks: settings that are used, in this order, if this one is not set.
        is_internal: Apache Kafka does not document the setting.
    """

    name: str
    type: Type
    default: Value
    documentation: str
    check: Check | None = None
    is_dynamic: bool = False
    fallbacks: tuple[str, ...] = ()
    is_internal: bool = False

    @property
    def is_sensitive(self) -> bool:
        """Whether the value is never shown."""
        return self.type is Type.PASSWORD

    @property
    def accepted(self) -> str:
        """The phrase that says which values are accepted."""
        phrase = _PHRASES[self.type]
        if self.check is None:
            return phrase
        if self.type in (Type.STRING, Type.CLASS):
            return self.check.accepted
        return f"{phrase}, {self.check.accepted}"

    def parse(self, text: str) -> Value:
        """Returns the value of a text.

        Raises:
            ConfigError: the text has another type, or the check does not hold.
        """
        try:
            value = parse_text(self.type, text)
        except ValueError:
            raise self.refusal(text) from None
        if self.check is not None and not self.check.holds(value):
            raise self.refusal(text)
        return value

    def refusal(self, text: str, reason: str | None = None) -> ConfigError:
        """Returns the error for a text that is not accepted."""
        return ConfigError(self.name, "[hidden]" if self.is_sensitive else text, self.accepted, reason)

    def show(self, value: Value) -> str | None:
        """Returns the text form of a value, None for no value."""
        return None if value is None else format_value(self.type, value)


def parse_text(type_: Type, text: str) -> Value:
    """Returns the value of a text, checked for its type only, in a time that grows with the length of the text.

    Raises:
        ValueError: the text does not have this type.
    """
    text = text.strip()
    if type_ is Type.BOOLEAN:
        return _parse_boolean(text)
    if type_ in _INTEGERS:
        return _parse_integer(text, _INTEGERS[type_])
    if type_ is Type.DOUBLE:
        return _parse_number(text)
    if type_ is Type.LIST:
        return [item.strip() for item in text.rstrip(", \t").split(",")] if text else []
    return text


def _parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _parse_integer(text: str, most: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII) or len(text) > 20:
        raise ValueError(text)
    value = int(text)
    if not -most - 1 <= value <= most:
        raise ValueError(text)
    return value


def _parse_number(text: str) -> float:
    """Returns a finite number. Java also reads NaN and Infinity, which make no sense as a setting."""
    if not re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?", text, re.ASCII):
        raise ValueError(text)
    value = float(text.rstrip("fFdD"))
    if isinf(value):
        raise ValueError(text)
    return value


def format_value(type_: Type, value: bool | int | float | str | list[str]) -> str:
    """Returns the text form of a value, as Kafka prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    if type_ is Type.DOUBLE:
        return repr(float(value)).replace("e+", "E").replace("e", "E")
    return str(value)


def table_of(*settings: Setting) -> dict[str, Setting]:
    """Returns the settings by name, in alphabetical order."""
    table = {setting.name: setting for setting in sorted(settings, key=lambda setting: setting.name)}
    assert len(table) == len(settings), "a setting is listed twice"
    return table
