"""What Spark says of JSON values, and the columns for them."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from wirekafka.pipelines.ingest.json_shapes import parse_shape, stored_type


def struct(**types: DataType) -> StructType:
    return StructType([StructField(name, each) for name, each in types.items()])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BIGINT", LongType()),
        ("OBJECT<>", StructType()),
        ("ARRAY<OBJECT<a: DECIMAL(3,1)>>", ArrayType(struct(a=DecimalType(3, 1)))),
        ("OBJECT<`a b`: VOID, c: OBJECT<>, d: VARIANT>", struct(**{"a b": NullType(), "c": StructType(), "d": VariantType()})),
        ("OBJECT<`OBJECT<x: BIGINT>`: BIGINT>", struct(**{"OBJECT<x: BIGINT>": LongType()})),
        ("OBJECT<``: BIGINT, ```q`: STRING>", struct(**{"": LongType(), "`q": StringType()})),
        ("BIGINT>", None),
        ("NOTHING", None),
        ("", None),
    ],
)
def test_parse_shape_of_a_description_gives_its_type(text: str, expected: DataType | None) -> None:
    if expected is not None:
        assert parse_shape(text) == expected
        return
    with pytest.raises(ValueError, match="not a description"):
        parse_shape(text)


@pytest.mark.parametrize(
    ("shape", "stored", "expected"),
    [
        (LongType(), None, LongType()),
        (DecimalType(3, 1), None, DoubleType()),
        (DecimalType(1, 0), None, DoubleType()),
        (DecimalType(19, 0), None, DecimalType(20, 0)),
        (DoubleType(), None, DoubleType()),
        (VariantType(), None, StringType()),
        (VariantType(), LongType(), StringType()),
        (LongType(), IntegerType(), IntegerType()),
        (LongType(), DecimalType(10, 2), DecimalType(10, 2)),
        (LongType(), DoubleType(), DoubleType()),
        (DecimalType(3, 1), DoubleType(), DoubleType()),
        (DecimalType(3, 1), LongType(), DecimalType(3, 1)),
        (DoubleType(), LongType(), DoubleType()),
        (StructType(), StringType(), StringType()),
        (StringType(), DateType(), DateType()),
        (StringType(), BinaryType(), BinaryType()),
        (LongType(), DateType(), LongType()),
        (NullType(), LongType(), NullType()),
        (struct(a=LongType()), MapType(StringType(), DoubleType()), MapType(StringType(), DoubleType())),
        (struct(a=StringType()), MapType(StringType(), DoubleType()), struct(a=StringType())),
        (ArrayType(LongType()), ArrayType(DoubleType()), ArrayType(DoubleType())),
        (struct(a=LongType(), b=LongType()), struct(a=DoubleType()), struct(a=DoubleType(), b=LongType())),
    ],
)
def test_stored_type_of_a_shape_is_the_column_that_holds_it(shape: DataType, stored: DataType | None, expected: DataType) -> None:
    assert stored_type(shape, stored) == expected
