"""The values of a backfill's records: the bytes that were ingested, if the lake keeps them, or values that are encoded again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

    from wirekafka.pipelines.lake.description import LakeDescription

AVRO_RECORD_NAME = "topLevelRecord"
"""Spark's own name for the record of a frame's rows."""


@dataclass(slots=True, frozen=True)
class Encoding:
    """How the values of a topic become bytes.

    Attributes:
        column: the expression of Spark.
        is_exact: whether the bytes are those that were ingested.
        description: the same for the user.
    """

    column: Column
    is_exact: bool
    description: str


def encoding(spark: SparkSession, lake: LakeDescription, schema: StructType | None) -> Encoding:
    """Returns how the values of a topic are encoded; `schema` is their type, None for bytes."""
    from pyspark.sql import functions

    if lake.has_value_bytes:
        return Encoding(functions.col("value_bytes"), True, "the bytes that were ingested")
    if lake.record_format == "raw" or schema is None:
        return Encoding(functions.col("value"), True, "the bytes that were ingested")
    if lake.record_format == "json":
        column = functions.to_json("value").cast("binary")
        return Encoding(
            column, False, "encoded again as JSON: fields that are null are left out, and spaces and order may differ"
        )
    from pyspark.sql.avro.functions import to_avro

    column = to_avro(functions.col("value"), avro_schema(spark, schema))
    return Encoding(column, False, "encoded again as Avro without framing, with the schema of the lake")


def avro_schema(spark: SparkSession, schema: StructType) -> str:
    """Returns the Avro schema of a value as JSON. It is a record and no union with null, which would add a byte to each value."""
    jvm = spark._jvm
    assert jvm is not None
    converters = jvm.org.apache.spark.sql.avro.SchemaConverters
    struct = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    return str(converters.toAvroType(struct, False, AVRO_RECORD_NAME, "").toString())
