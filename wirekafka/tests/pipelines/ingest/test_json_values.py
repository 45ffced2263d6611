"""Why records of a shape do not fit a schema."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType

from wirekafka.pipelines.ingest.json_values import shape_misfit

SCHEMA = StructType([StructField("a", LongType()), StructField("b", StringType()), StructField("c", DecimalType(20, 0))])


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (None, None),
        ("OBJECT<a: BIGINT>", None),
        ("OBJECT<a: VOID, b: OBJECT<x: BIGINT>, d: VOID, e: ARRAY<VOID>>", None),
        ("OBJECT<a: STRING>", "a: string does not fit bigint"),
        ("OBJECT<A: BIGINT>", "A: the field a has the same name but for case"),
        ("OBJECT<a: DECIMAL(3,1)>", "OBJECT<a: DECIMAL(3,1)> needs wider types than struct<a:bigint,b:string,c:decimal(20,0)>"),
        ("OBJECT<`x y`: BIGINT>", "x y: the name of a column of this sink cannot have ' '"),
    ],
)
def test_shape_misfit_of_a_record_says_which_field_does_not_fit(shape: str | None, reason: str | None) -> None:
    assert shape_misfit(shape, SCHEMA, " ") == reason
