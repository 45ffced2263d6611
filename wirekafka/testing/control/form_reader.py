"""Reads a form from JSON or from the parameters of a URL, and describes forms as JSON schemas.

Rules of this file: a form is a dataclass with fields of plain types. Its docstring describes its fields.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}
_ATTRIBUTE = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {8}.*)*)", re.MULTILINE)


def read_json(form: type[T], value: object) -> T:
    """Returns the form that a JSON value holds.

    Raises:
        ValueError: the text says which field is wrong.
    """
    if not isinstance(value, dict):
        raise ValueError(f"the body is a JSON object with these fields: {', '.join(_hints(form))}")
    return _read(form, value, _checked)


def read_parameters(form: type[T], values: Mapping[str, str]) -> T:
    """Returns the form that the parameters of a URL hold.

    Raises:
        ValueError: the text says which parameter is wrong.
    """
    return _read(form, values, _parsed)


def _read(form: type[T], values: Mapping[str, Any], convert: Any) -> T:
    hints = _hints(form)
    unknown = [name for name in values if name not in hints]
    if unknown:
        raise ValueError(f"there is no {unknown[0][:100]!r} here; there are {', '.join(hints) or 'no parameters'}")
    missing = [name for name in required_of(form) if name not in values]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    return form(**{name: convert(name, value, hints[name]) for name, value in values.items()})


def _checked(name: str, value: object, hint: Any) -> object:
    kinds = [get_origin(each) or each for each in _alternatives(hint)]
    if float in kinds and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _finite(name, value)
    if Literal in kinds or type(value) in kinds or (value is None and NoneType in kinds):
        if isinstance(value, dict):
            return {key: _checked(f"{name}.{key}", each, get_args(hint)[1]) for key, each in value.items()}
        if not isinstance(value, (list, tuple)):
            return value
    raise ValueError(f"{name} is {_described(hint)}")


def _parsed(name: str, text: str, hint: Any) -> object:
    [kind] = [each for each in _alternatives(hint) if each is not NoneType]
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(f"{name} is {_described(hint)}, not {text[:100]!r}") from None
    return _finite(name, value) if kind is float else value


def _finite(name: str, value: float) -> float:
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(f"{name} is a finite number")
    return found


def _described(hint: Any) -> str:
    schema = schema_of(hint)
    kinds = schema.get("type", "string")
    values = f", one of {', '.join(map(repr, schema['enum']))}" if "enum" in schema else ""
    return f"{kinds if isinstance(kinds, str) else ' or '.join(kinds)}{values}"


# Schemas


def schema_of(hint: Any) -> dict[str, Any]:
    """Returns the JSON schema of a type; that of a form is a reference to its component."""
    if is_dataclass(hint):
        assert isinstance(hint, type), "a hint is a type"
        return {"$ref": f"#/components/schemas/{hint.__name__}"}
    alternatives = _alternatives(hint)
    plain = [each for each in alternatives if each is not NoneType]
    if len(plain) > 1:
        return {"anyOf": [schema_of(each) for each in alternatives]}
    schema: dict[str, Any] = _schema_of_one(plain[0]) if plain else {"type": "null"}
    if plain and NoneType in alternatives:
        schema["type"] = [schema["type"], "null"]
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
    return schema


def _schema_of_one(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    return {"type": _NAMES[hint]}


def component_of(form: type[Any]) -> dict[str, Any]:
    """Returns the JSON schema of a form."""
    described = descriptions_of(form)
    properties = {}
    for each in fields(form):
        schema: dict[str, Any] = schema_of(_hints(form)[each.name])
        if each.default is not MISSING:
            schema["default"] = each.default
        properties[each.name] = schema | ({} if "$ref" in schema else {"description": described[each.name]})
    return {
        "type": "object",
        "description": inspect.cleandoc(form.__doc__ or "").partition("\n")[0],
        "properties": properties,
        "required": required_of(form),
        "additionalProperties": False,
    }


def parameters_of(form: type[Any]) -> list[dict[str, Any]]:
    """Returns the OpenAPI parameters of a form in the query of a URL."""
    described, required = descriptions_of(form), required_of(form)
    found = []
    for each in fields(form):
        schema: dict[str, Any]
        [schema] = [_schema_of_one(kind) for kind in _alternatives(_hints(form)[each.name]) if kind is not NoneType]
        if each.default not in (MISSING, None):
            schema["default"] = each.default
        is_required = each.name in required
        found.append(
            {"name": each.name, "in": "query", "required": is_required, "description": described[each.name], "schema": schema}
        )
    return found


def forms_in(hint: Any) -> set[type[Any]]:
    """Returns the forms that a type holds, itself included."""
    if is_dataclass(hint):
        assert isinstance(hint, type), "a hint is a type"
        return {hint}.union(*(forms_in(each) for each in _hints(hint).values()))
    return set().union(*map(forms_in, get_args(hint)))


def required_of(form: type[Any]) -> list[str]:
    """Returns the fields without a default."""
    return [each.name for each in fields(form) if each.default is MISSING and each.default_factory is MISSING]


def descriptions_of(form: type[Any]) -> dict[str, str]:
    """Returns what the docstring of a form says of each field."""
    text = inspect.cleandoc(form.__doc__ or "")
    return {name: " ".join(described.split()) for names, described in _ATTRIBUTE.findall(text) for name in names.split(", ")}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _hints(form: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(form)
    return {each.name: hints[each.name] for each in fields(form)}
