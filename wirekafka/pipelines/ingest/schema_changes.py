"""How the schema of a topic's values grows: new fields come, and types widen without loss. Pure; types are those of PySpark.

Rules:

- A field never goes and keeps its place; a new field comes after the others of its struct, and is null in older records.
- A type widens only to a type that holds every value of both: byte < short < int < long, int to double, float to double, integers
  and decimals to a larger decimal, date to timestamp_ntz. Long to double would round, so these two do not merge.
- Every field can be null.
- A field that has only been null, an empty object or an empty array has no type yet, so it is no field yet.
- A new field cannot have the name of another but for case, or a name that the sink cannot store.
- What does not merge leaves the schema as it is and is a `Misfit`.

Source: https://docs.delta.io/latest/delta-type-widening.html, whose changes of types these are
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
)

MAX_DEPTH = 50
"""Structs, arrays and maps of a value, one in the other. At some hundred, recursion ends Spark's JVM or the driver's Python."""

MAX_DIGITS = 38
"""The digits of Spark's largest decimal."""

INTEGERS = (ByteType(), ShortType(), IntegerType(), LongType())
LONG_DIGITS = 20
INT_DIGITS = 10
"""The digits before the point of a decimal that Delta takes in the place of an integer of up to 4 bytes, and of 8 bytes."""

DELTA_FORBIDDEN = " ,;{}()\n\t="
"""Characters that a name of a Delta table without column mapping cannot have."""


@dataclass(slots=True, frozen=True)
class Misfit:
    """A field whose values do not fit the schema, and why. In the path, `.` is before a field and `[]` after an array."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(slots=True, frozen=True)
class Merge:
    """The merged schema, and what of the incoming one is not in it."""

    schema: StructType
    misfits: tuple[Misfit, ...]


def merge(stored: StructType, incoming: StructType, forbidden: str = "", most_fields: int | None = None) -> Merge:
    """Returns the smallest schema that holds the records of both, as far as they merge.

    Args:
        stored: the schema so far.
        incoming: the schema of new records.
        forbidden: characters that the name of a new field cannot have.
        most_fields: no field is new in a schema of so many fields, at all depths; None for no limit.
    """
    room = None if most_fields is None else max(most_fields - sum(1 for _ in field_paths(stored)), 0)
    merger = _Merger(forbidden, room)
    fields = merger.fields("", stored, incoming)
    return Merge(fields, tuple(merger.misfits))


def wider(first: DataType, second: DataType) -> DataType | None:
    """Returns the smallest type that holds every value of two types that are no struct, array or map; None if there is none."""
    if first == second:
        return first
    if first in INTEGERS and second in INTEGERS:
        return max(first, second, key=INTEGERS.index)
    decimal = _wider_decimal(first, second)
    if decimal is not None:
        return decimal
    both = {first, second}
    if both == {DateType(), TimestampNTZType()}:
        return TimestampNTZType()
    if both <= {ByteType(), ShortType(), IntegerType(), FloatType(), DoubleType()}:
        return DoubleType()
    return None


def all_nullable(given: DataType) -> DataType:
    """Returns the type with every field, element and value nullable, and without comments."""
    return _replace_types("", given, lambda _, each: each)


def narrow_paths(given: DataType) -> list[str]:
    """Returns the paths of the types whose range a value can exceed although its kind fits: small integers, decimals, dates."""
    narrow: list[str] = []

    def note(path: str, each: DataType) -> DataType:
        if _for_any_value(each) != each:
            narrow.append(path)
        return each

    _replace_types("", given, note)
    return narrow


def widened(given: StructType, paths: Collection[str]) -> StructType:
    """Returns the schema with the types at some of its `narrow_paths` as wide as values of their kind can need."""
    found = _replace_types("", given, lambda path, each: _for_any_value(each) if path in paths else each)
    assert isinstance(found, StructType)
    return found


def depth(given: DataType) -> int:
    """Returns how many structs, arrays and maps of a type are one in the other."""
    match given:
        case StructType():
            return 1 + max((depth(field.dataType) for field in given.fields), default=0)
        case ArrayType():
            return 1 + depth(given.elementType)
        case MapType():
            return 1 + depth(given.valueType)
        case _:
            return 0


def field_paths(given: DataType, path: str = "") -> Iterator[str]:
    """Yields the path of each field of a type, in the order of the schema, structs before their fields."""
    match given:
        case StructType():
            for field in given.fields:
                inner = _inside(path, field.name)
                yield inner
                yield from field_paths(field.dataType, inner)
        case ArrayType():
            yield from field_paths(given.elementType, f"{path}[]")
        case MapType():
            yield from field_paths(given.valueType, f"{path}{{}}")


class _Merger:
    """Collects the misfits of one merge."""

    def __init__(self, forbidden: str, room: int | None) -> None:
        self._forbidden = forbidden
        self._room = room
        self.misfits: list[Misfit] = []

    def fields(self, path: str, stored: StructType, incoming: StructType) -> StructType:
        """Merges two structs."""
        merged = {field.name: field.dataType for field in stored.fields}
        names = {folded: name for name in merged for folded in _folded(name)}
        for field in incoming.fields:
            inner = _inside(path, field.name)
            if field.name in merged:
                merged[field.name] = self._types(inner, merged[field.name], field.dataType)
                continue
            new = self._new(inner, field.dataType)
            if new is not None and self._can_be_named(inner, field.name, names) and self._has_room(inner):
                merged[field.name] = new
                names.update(dict.fromkeys(_folded(field.name), field.name))
        return StructType([StructField(name, each) for name, each in merged.items()])

    def _can_be_named(self, path: str, name: str, names: dict[str, str]) -> bool:
        other = next((names[folded] for folded in _folded(name) if folded in names), None)
        if other is not None:
            self._refuse(path, f"the field {other} has the same name but for case")
            return False
        if not name:
            self._refuse(path, "a column needs a name")
            return False
        found = [repr(each) for each in self._forbidden if each in name]
        if found:
            self._refuse(path, f"the name of a column of this sink cannot have {', '.join(found)}")
        return not found

    def _has_room(self, path: str) -> bool:
        if self._room is None:
            return True
        if not self._room:
            self._refuse(path, "the schema has as many fields as a schema may have, and no more are added")
            return False
        self._room -= 1
        return True

    def _types(self, path: str, stored: DataType, incoming: DataType) -> DataType:
        match stored, incoming:
            case _, NullType():
                return stored
            case StructType(), StructType():
                return self.fields(path, stored, incoming)
            case ArrayType(), ArrayType():
                return ArrayType(self._types(f"{path}[]", stored.elementType, incoming.elementType))
            case MapType(), MapType() if stored.keyType == incoming.keyType:
                return MapType(stored.keyType, self._types(f"{path}{{}}", stored.valueType, incoming.valueType))
        merged = wider(stored, incoming)
        if merged is None:
            self._refuse(path, f"{incoming.simpleString()} does not fit {stored.simpleString()}")
            return stored
        return merged

    def _new(self, path: str, given: DataType) -> DataType | None:
        """Returns the type of a new field, without what has no type yet; None if nothing remains."""
        match given:
            case NullType():
                return None
            case StructType():
                fields = self.fields(path, StructType(), given)
                return fields if fields.fields else None
            case ArrayType():
                element = self._new(f"{path}[]", given.elementType)
                return None if element is None else ArrayType(element)
            case MapType():
                value = self._new(f"{path}{{}}", given.valueType)
                return None if value is None else MapType(given.keyType, value)
            case _:
                return given

    def _refuse(self, path: str, reason: str) -> None:
        self.misfits.append(Misfit(path, reason))


def _for_any_value(given: DataType) -> DataType:
    """Returns the type that a type can widen to when a value is out of its range; the type itself if there is none."""
    if given in INTEGERS:
        return LongType()
    if given == DateType():
        return TimestampNTZType()
    if isinstance(given, DecimalType):
        before = max(given.precision - given.scale, min(LONG_DIGITS, MAX_DIGITS - given.scale))
        return DecimalType(before + given.scale, given.scale)
    return given


def _replace_types(path: str, given: DataType, replace: Callable[[str, DataType], DataType]) -> DataType:
    """Returns a type with each type in it that is no struct, array or map replaced; `replace` gets its path."""
    match given:
        case StructType():
            fields = ((each.name, _replace_types(_inside(path, each.name), each.dataType, replace)) for each in given.fields)
            return StructType([StructField(name, each) for name, each in fields])
        case ArrayType():
            return ArrayType(_replace_types(f"{path}[]", given.elementType, replace))
        case MapType():
            return MapType(given.keyType, _replace_types(f"{path}{{}}", given.valueType, replace))
        case _:
            return replace(path, given)


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _folded(name: str) -> set[str]:
    """Returns what two names share that Spark cannot tell apart, such as `s` and `\u017f`.

    Source: java.lang.String.equalsIgnoreCase and toLowerCase, by which Spark compares names
    """
    upper = (each.upper() if len(each.upper()) == 1 else each for each in name)
    return {name.lower(), "".join(each.lower()[0] for each in upper)}


def _wider_decimal(first: DataType, second: DataType) -> DataType | None:
    """Returns the decimal that holds two numbers, a decimal and a decimal or an integer; None if there is none."""
    if not isinstance(first, DecimalType) and not isinstance(second, DecimalType):
        return None
    digits = [_digits(each) for each in (first, second)]
    before = max(each[0] for each in digits)
    after = max(each[1] for each in digits)
    if before < 0 or min(each[0] for each in digits) < 0 or before + after > MAX_DIGITS:
        return None
    return DecimalType(before + after, after)


def _digits(given: DataType) -> tuple[int, int]:
    """Returns the digits before and after the point that a type needs; -1 before it for other types."""
    if isinstance(given, DecimalType):
        return given.precision - given.scale, given.scale
    if given == LongType():
        return LONG_DIGITS, 0
    return (INT_DIGITS, 0) if given in INTEGERS else (-1, 0)
