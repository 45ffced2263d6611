"""What Spark says of the types in JSON text, and the types of columns that hold it. Pure.

Spark's `schema_of_variant` describes a JSON value with the names of its types: OBJECT<`a b`: BIGINT, c: ARRAY<DECIMAL(3,1)>>. An
integer is a BIGINT or, beyond 64 bits, a DECIMAL; a number with a point is a DECIMAL, with an exponent or more than 38 digits a
DOUBLE. VOID is null, and VARIANT stands for values of several types.

Source: https://spark.apache.org/docs/latest/api/sql/index.html#schema_of_variant
"""

from __future__ import annotations

import re

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from wirekafka.pipelines.ingest.schema_changes import INTEGERS, LONG_DIGITS

SIMPLE_TYPES: dict[str, DataType] = {
    "BIGINT": LongType(),
    "DOUBLE": DoubleType(),
    "FLOAT": FloatType(),
    "STRING": StringType(),
    "BOOLEAN": BooleanType(),
    "VOID": NullType(),
    "VARIANT": VariantType(),
}

NUMBERS = (LongType, DecimalType, DoubleType)
FROM_TEXT = (BinaryType, DateType, TimestampType, TimestampNTZType)
"""Types whose values are strings in JSON: base64, and dates and times in ISO 8601."""

TOKENS = re.compile(r"`(?P<quoted>(?:[^`]|``)*)`|(?P<decimal>DECIMAL\(\d+,\d+\))|(?P<word>\w+)|(?P<mark>[<>:,])|\s+")


def parse_shape(text: str) -> DataType:
    """Returns the type that a description of `schema_of_variant` names. OBJECT is a struct.

    Raises:
        ValueError: the text is no such description.
    """
    parser = _Parser(text)
    found = parser.read_type()
    parser.expect_end()
    return found


def stored_type(shape: DataType, stored: DataType | None) -> DataType:
    """Returns the type that a column needs to hold JSON values of a shape.

    It is the type of the column if that can hold them, as far as their types say. A number out of the range of a column of
    integers or decimals is found when it is read.

    Args:
        shape: what `parse_shape` returned.
        stored: the type of the column; None if there is no column yet.
    """
    match shape, stored:
        case NullType(), _:
            return shape
        case _, StringType() | VariantType():
            return stored
        case StructType(), MapType() if all(_fits(each.dataType, stored.valueType) for each in shape.fields):
            return stored
        case StructType(), _:
            return _stored_struct(shape, stored if isinstance(stored, StructType) else StructType())
        case ArrayType(), _:
            element = stored.elementType if isinstance(stored, ArrayType) else None
            return ArrayType(stored_type(shape.elementType, element))
    if isinstance(shape, VariantType):
        return StringType()
    if stored is None:
        return _new_column(shape)
    if isinstance(shape, StringType) and isinstance(stored, FROM_TEXT):
        return stored
    if isinstance(shape, NUMBERS) and isinstance(stored, FloatType | DoubleType):
        return stored
    if isinstance(shape, LongType) and (stored in INTEGERS or isinstance(stored, DecimalType)):
        return stored
    return shape


def _fits(shape: DataType, stored: DataType) -> bool:
    return stored_type(shape, stored) in (stored, NullType())


def _stored_struct(shape: StructType, stored: StructType) -> StructType:
    types = {field.name: field.dataType for field in stored.fields}
    return StructType([StructField(field.name, stored_type(field.dataType, types.get(field.name))) for field in shape.fields])


def _new_column(shape: DataType) -> DataType:
    """Returns the type of a new column: a double for numbers with a point, a decimal for integers beyond 64 bits."""
    if not isinstance(shape, DecimalType):
        return shape
    if shape.scale == 0 and shape.precision >= LONG_DIGITS - 1:
        return DecimalType(max(shape.precision, LONG_DIGITS), 0)
    return DoubleType()


class _Parser:
    """Reads a description from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def read_type(self) -> DataType:
        token = self._next()
        if token["decimal"]:
            precision, scale = re.findall(r"\d+", token["decimal"])
            return DecimalType(int(precision), int(scale))
        match token["word"]:
            case "OBJECT":
                return StructType(self._fields())
            case "ARRAY":
                self._expect("<")
                element = self.read_type()
                self._expect(">")
                return ArrayType(element)
            case word if word in SIMPLE_TYPES:
                return SIMPLE_TYPES[word]
        raise self._error()

    def expect_end(self) -> None:
        if self._position != len(self._text):
            raise self._error()

    def _fields(self) -> list[StructField]:
        fields: list[StructField] = []
        self._expect("<")
        if self._text[self._position] == ">":
            self._expect(">")
            return fields
        while True:
            token = self._next()
            name = token["word"] if token["quoted"] is None else token["quoted"].replace("``", "`")
            self._expect(":")
            fields.append(StructField(name, self.read_type()))
            if self._next()["mark"] == ">":
                return fields

    def _expect(self, mark: str) -> None:
        if self._next()["mark"] != mark:
            raise self._error()

    def _next(self) -> re.Match[str]:
        """Returns the next token that is no white space."""
        while True:
            token = TOKENS.match(self._text, self._position)
            if token is None:
                raise self._error()
            self._position = token.end()
            if not token[0].isspace():
                return token

    def _error(self) -> ValueError:
        return ValueError(f"not a description of a JSON value, at {self._position}: {self._text[:200]}")
