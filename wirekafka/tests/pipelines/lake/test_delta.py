from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StructType,
    TimestampNTZType,
)

from wirekafka.pipelines.lake.delta import changed_types, has_timestamp_ntz

INT, BIGINT, DOUBLE = IntegerType(), LongType(), DoubleType()


def struct(**fields: DataType) -> StructType:
    made = StructType()
    for name, kind in fields.items():
        made = made.add(name, kind)
    return made


def test_equal_schemas_have_no_changed_types() -> None:
    schema = struct(a=INT, b=struct(c=ArrayType(INT)))
    assert list(changed_types(schema, schema)) == []


def test_changed_types_are_found_at_every_depth() -> None:
    def schema(first: DataType, key: DataType, last: DataType, decimal: DecimalType) -> StructType:
        nested = struct(c=ArrayType(last), d=MapType(key, struct(e=last)))
        return struct(a=first, b=nested, f=ArrayType(struct(g=decimal)))

    before = schema(INT, INT, FloatType(), DecimalType(10, 2))
    after = schema(BIGINT, BIGINT, DOUBLE, DecimalType(12, 2))
    assert list(changed_types(before, after)) == [
        ("`a`", "bigint"),
        ("`b`.`c`.element", "double"),
        ("`b`.`d`.key", "bigint"),
        ("`b`.`d`.value.`e`", "double"),
        ("`f`.element.`g`", "decimal(12,2)"),
    ]


def test_new_and_missing_columns_are_no_changed_types() -> None:
    assert list(changed_types(struct(a=INT, b=struct(c=INT)), struct(b=struct(c=INT, d=INT), e=INT))) == []


def test_names_of_columns_are_quoted() -> None:
    before, after = StructType().add("a b", INT).add("c`d", INT), StructType().add("a b", BIGINT).add("c`d", BIGINT)
    assert list(changed_types(before, after)) == [("`a b`", "bigint"), ("`c``d`", "bigint")]


def test_a_timestamp_without_a_time_zone_is_found_at_any_depth_by_its_type() -> None:
    found = TimestampNTZType()
    assert all(has_timestamp_ntz(struct(a=kind)) for kind in (found, ArrayType(found), MapType(INT, struct(b=found))))
    assert not has_timestamp_ntz(struct(timestamp_ntz=struct(a=ArrayType(INT), b=MapType(INT, BIGINT))))
