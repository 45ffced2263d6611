"""The merge of schemas, without Spark's JVM."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
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
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from wirekafka.pipelines.ingest.schema_changes import (
    DELTA_FORBIDDEN,
    all_nullable,
    field_paths,
    merge,
    narrow_paths,
    widened,
    wider,
)

ATOMS = (
    ByteType(),
    ShortType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(10, 2),
    DecimalType(20, 0),
    DecimalType(38, 10),
    StringType(),
    BooleanType(),
    DateType(),
    TimestampType(),
    TimestampNTZType(),
)


def struct(**types: DataType) -> StructType:
    return StructType([StructField(name, each) for name, each in types.items()])


def structs(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    fields = st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3)
    return fields.map(lambda types: struct(**types))


TYPES: st.SearchStrategy[DataType] = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: structs(inner) | inner.map(ArrayType) | inner.map(lambda each: MapType(StringType(), each)),
    max_leaves=6,
)
SCHEMAS = structs(TYPES)


def without_order(schema: DataType) -> DataType:
    match schema:
        case StructType():
            ordered = sorted(schema.fields, key=lambda field: field.name)
            return StructType([StructField(field.name, without_order(field.dataType)) for field in ordered])
        case ArrayType():
            return ArrayType(without_order(schema.elementType))
        case MapType():
            return MapType(schema.keyType, without_order(schema.valueType))
        case _:
            return schema


@given(SCHEMAS, SCHEMAS)
def test_merge_of_two_schemas_loses_no_field(stored: StructType, incoming: StructType) -> None:
    merged = merge(stored, incoming)
    paths = set(field_paths(merged.schema))
    assert set(field_paths(stored)) <= paths
    if not merged.misfits:
        assert set(field_paths(incoming)) <= paths


@given(SCHEMAS, SCHEMAS)
def test_merge_of_the_same_schema_again_changes_nothing(stored: StructType, incoming: StructType) -> None:
    merged = merge(stored, incoming)
    assert merge(merged.schema, incoming) == merged
    assert merge(merged.schema, stored).schema == merged.schema


@given(SCHEMAS, SCHEMAS)
def test_merge_in_either_order_gives_the_same_types(first: StructType, second: StructType) -> None:
    one, other = merge(first, second), merge(second, first)
    assert bool(one.misfits) == bool(other.misfits)
    if not one.misfits:
        assert without_order(one.schema) == without_order(other.schema)


@given(SCHEMAS, SCHEMAS)
def test_merge_keeps_the_places_of_the_stored_fields(stored: StructType, incoming: StructType) -> None:
    assert merge(stored, incoming).schema.fieldNames()[: len(stored.fields)] == stored.fieldNames()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (ByteType(), ShortType(), ShortType()),
        (ShortType(), IntegerType(), IntegerType()),
        (IntegerType(), LongType(), LongType()),
        (IntegerType(), DoubleType(), DoubleType()),
        (IntegerType(), FloatType(), DoubleType()),
        (FloatType(), DoubleType(), DoubleType()),
        (LongType(), DoubleType(), None),
        (LongType(), FloatType(), None),
        (IntegerType(), DecimalType(4, 2), DecimalType(12, 2)),
        (LongType(), DecimalType(4, 2), DecimalType(22, 2)),
        (LongType(), DecimalType(38, 30), None),
        (DecimalType(10, 2), DecimalType(10, 4), DecimalType(12, 4)),
        (DecimalType(38, 0), DecimalType(10, 2), None),
        (DecimalType(10, 2), DoubleType(), None),
        (DateType(), TimestampNTZType(), TimestampNTZType()),
        (DateType(), TimestampType(), None),
        (StringType(), LongType(), None),
        (BooleanType(), ByteType(), None),
    ],
)
def test_wider_of_two_types_is_what_holds_both(first: DataType, second: DataType, expected: DataType | None) -> None:
    assert wider(first, second) == expected
    assert wider(second, first) == expected


def test_merge_of_a_type_that_does_not_fit_keeps_the_stored_one_and_says_where() -> None:
    stored = struct(a=struct(b=ArrayType(struct(c=LongType()))))
    incoming = struct(a=struct(b=ArrayType(struct(c=StringType(), d=StringType()))))
    merged = merge(stored, incoming)
    assert merged.schema == struct(a=struct(b=ArrayType(struct(c=LongType(), d=StringType()))))
    assert [str(each) for each in merged.misfits] == ["a.b[].c: string does not fit bigint"]


def test_merge_of_a_name_in_other_case_is_a_misfit() -> None:
    merged = merge(struct(name=LongType()), struct(Name=LongType()))
    assert merged.schema == struct(name=LongType())
    assert [str(each) for each in merged.misfits] == ["Name: the field name has the same name but for case"]


def test_merge_beyond_the_most_fields_refuses_new_ones_and_takes_known_ones() -> None:
    stored = struct(a=LongType(), b=struct(c=IntegerType()))
    merged = merge(stored, struct(b=struct(c=LongType(), d=LongType()), e=struct(f=LongType()), a=LongType()), most_fields=4)
    assert merged.schema == struct(a=LongType(), b=struct(c=LongType(), d=LongType()))
    assert [str(each) for each in merged.misfits] == [
        "e.f: the schema has as many fields as a schema may have, and no more are added"
    ]


@pytest.mark.parametrize(
    ("first", "second"), [("s", "\u017f"), ("K", "\u212a"), ("i", "\u0130"), ("I", "\u0131"), ("\u0130", "i\u0307")]
)
def test_merge_of_names_that_spark_cannot_tell_apart_takes_the_first(first: str, second: str) -> None:
    merged = merge(struct(**{first: LongType()}), struct(**{second: LongType()}))
    assert merged.schema == struct(**{first: LongType()})
    assert [each.path for each in merged.misfits] == [second]


def test_merge_of_new_names_that_differ_in_case_takes_the_first() -> None:
    merged = merge(StructType(), struct(x=struct(A=LongType(), a=LongType())))
    assert merged.schema == struct(x=struct(A=LongType()))
    assert [each.path for each in merged.misfits] == ["x.a"]


@pytest.mark.parametrize("name", ["", "first name", "a;b", "a=b"])
def test_merge_of_a_name_that_the_sink_cannot_store_is_a_misfit(name: str) -> None:
    merged = merge(struct(a=LongType()), struct(**{name: LongType()}), DELTA_FORBIDDEN)
    assert merged.schema == struct(a=LongType())
    assert [each.path for each in merged.misfits] == [name]


def test_merge_of_a_field_without_a_type_waits_for_the_type() -> None:
    incoming = struct(a=NullType(), b=ArrayType(NullType()), c=StructType(), d=struct(e=NullType()), f=LongType())
    assert merge(StructType(), incoming).schema == struct(f=LongType())
    assert merge(struct(a=LongType()), incoming).schema == struct(a=LongType(), f=LongType())


def test_widened_of_narrow_types_changes_those_that_are_named() -> None:
    schema = struct(a=ByteType(), b=ArrayType(struct(c=DateType(), d=DecimalType(10, 2))), e=StringType(), f=LongType())
    paths = narrow_paths(schema)
    assert paths == ["a", "b[].c", "b[].d"]
    assert widened(schema, ["b[].c"]) == struct(
        a=ByteType(), b=ArrayType(struct(c=TimestampNTZType(), d=DecimalType(10, 2))), e=StringType(), f=LongType()
    )


@given(SCHEMAS)
def test_widened_of_any_schema_is_a_merge_without_misfits(schema: StructType) -> None:
    wide = widened(schema, narrow_paths(schema))
    assert narrow_paths(wide) == []
    merged = merge(schema, wide)
    assert merged.schema == wide
    assert not merged.misfits


def test_all_nullable_of_a_strict_schema_allows_null_everywhere() -> None:
    strict = StructType([StructField("a", ArrayType(MapType(StringType(), LongType(), False), False), False)])
    assert all_nullable(strict) == struct(a=ArrayType(MapType(StringType(), LongType())))
