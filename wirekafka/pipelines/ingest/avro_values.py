"""Avro values: bare records of one schema, and records in Confluent's framing. All of it are expressions of Spark's JVM.

The framing is a byte 0, the id of the schema in 4 bytes (big-endian), and the record.

Source: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.ingest.batch_plans import TopicPlan
from wirekafka.pipelines.ingest.schema_changes import merge
from wirekafka.pipelines.ingest.schema_files import END, avro_struct, enveloped
from wirekafka.pipelines.ingest.schema_registry import SchemaRegistry, UnknownSchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

READING = {"mode": "PERMISSIVE"}
"""A record that does not parse is null instead of an error."""

IS_FRAMED = "length(value) >= 5 AND substring(value, 1, 1) = X'00'"
SCHEMA_ID = "CAST(conv(hex(substring(value, 2, 4)), 16, 10) AS BIGINT)"

MAX_SCHEMAS_PER_BATCH = 1000
"""More ids than that in one topic are not ids. Each would be a request to the registry."""

Stored = Callable[[str], StructType]


def plan_bare(
    spark: SparkSession, topics: list[str], stored: Stored, schema_of: Callable[[str], str], forbidden: str
) -> dict[str, TopicPlan]:
    """Returns the plan of each topic of a batch of bare records.

    Args:
        spark: the session.
        topics: the topics of the batch.
        stored: returns the schema of a topic in the lake; it has no field if the lake has no record of the topic.
        schema_of: returns the Avro schema of a topic.
        forbidden: characters that the name of a field cannot have.

    Raises:
        PipelineError: the lake has records of another schema.
    """
    plans = {}
    for topic in topics:
        text = schema_of(topic)
        given, before = merge(StructType(), avro_struct(spark, text), forbidden), stored(topic)
        if given.misfits:
            raise PipelineError(f"the lake cannot hold the Avro schema of the topic {topic}: {given.misfits[0]}")
        if before.fields and before != given.schema:
            raise PipelineError(
                f"the Avro schema of the topic {topic} has changed, and records without framing do not say which schema they"
                " have: use the schema that the lake began with, or another directory"
            )
        plans[topic] = TopicPlan(given.schema, writers={0: text})
    return plans


def decode_bare(records: DataFrame, plan: TopicPlan) -> DataFrame:
    """Returns the records of one topic with the columns `decoded`, a struct, and `reason`, why a record does not fit."""
    decoded = _decoded(records.sparkSession, functions.col("value"), plan.writers[0], plan.schema)
    with_value = records.withColumn("decoded", decoded)
    is_corrupt = functions.expr("value IS NOT NULL AND decoded IS NULL")
    return with_value.withColumn("reason", functions.when(is_corrupt, "not Avro of the schema"))


def plan_framed(records: DataFrame, stored: Stored, registry: SchemaRegistry, forbidden: str) -> dict[str, TopicPlan]:
    """Returns the plan of each topic of a batch of framed records: its schema with what the schemas of the records add.

    A schema that does not merge as a whole is refused with all of its records.

    Raises:
        PipelineError: the registry cannot be asked, or a topic has too many ids.
    """
    spark = records.sparkSession
    return {
        topic: _plan_topic(spark, stored(topic), schema_ids, registry, forbidden)
        for topic, schema_ids in sorted(_schema_ids(records).items())
    }


def _schema_ids(records: DataFrame) -> dict[str, list[int]]:
    """Returns the ids of the schemas of each topic of a batch, in ascending order.

    Raises:
        PipelineError: a topic has so many ids that its records cannot have this framing.
    """
    schema_id = functions.expr(f"CASE WHEN {IS_FRAMED} THEN {SCHEMA_ID} END")
    found = functions.array_sort(functions.slice(functions.collect_set(schema_id), 1, MAX_SCHEMAS_PER_BATCH + 1))
    ids = {row.topic: row.ids for row in records.groupBy("topic").agg(found.alias("ids")).collect()}
    for topic, each in ids.items():
        if len(each) > MAX_SCHEMAS_PER_BATCH:
            raise PipelineError(
                f"the values of the topic {topic} begin with over {MAX_SCHEMAS_PER_BATCH} schema ids, so they do not have"
                " the framing of a schema registry: use the format avro with a schema file, or raw"
            )
    return ids


def _plan_topic(spark: SparkSession, schema: StructType, ids: list[int], registry: SchemaRegistry, forbidden: str) -> TopicPlan:
    writers, refused = {}, {}
    for schema_id in ids:
        try:
            text = registry.schema(schema_id)
            merged = merge(schema, avro_struct(spark, text), forbidden)
        except (UnknownSchemaError, ValueError) as error:
            refused[schema_id] = f"schema {schema_id}: {error}"
            continue
        if merged.misfits:
            refused[schema_id] = f"schema {schema_id}: {merged.misfits[0]}"
            continue
        schema, writers[schema_id] = merged.schema, text
    return TopicPlan(schema, writers=writers, refused=refused)


def decode_framed(records: DataFrame, plan: TopicPlan) -> DataFrame:
    """Returns the records of one topic with the columns `decoded`, a struct, and `reason`, why a record does not fit.

    Without a schema there is no column `decoded`.
    """
    spark = records.sparkSession
    with_id = records.withColumn("schema_id", functions.expr(f"CASE WHEN {IS_FRAMED} THEN {SCHEMA_ID} END"))
    schema_id, payload = functions.col("schema_id"), functions.expr("substring(value, 6)")
    decoded = functions.lit(None).cast(plan.schema)
    reason = functions.when(functions.col("value").isNull(), None).when(
        schema_id.isNull(), "no framing of a schema registry: a byte 0 and the schema's id in 4 bytes"
    )
    for number, text in plan.writers.items():
        record = _decoded(spark, payload, text, plan.schema)
        decoded = functions.when(schema_id == number, record).otherwise(decoded)
    for number, text in plan.refused.items():
        reason = reason.when(schema_id == number, text)
    with_value = with_id.withColumn("decoded", decoded)
    corrupt = functions.concat(functions.lit("not Avro of schema "), schema_id)
    with_reason = with_value.withColumn("reason", reason.when(functions.col("decoded").isNull(), corrupt)).drop("schema_id")
    return with_reason if plan.schema.fields else with_reason.drop("decoded")


def _decoded(spark: SparkSession, data: Column, schema: str, wanted: StructType) -> Column:
    """Returns the record of an Avro schema as a wider struct; null if the bytes are no such record, or if bytes are left over.

    Spark would decode the record again for each field that the conversion names, if it were no element of an array.
    """
    envelope = from_avro(functions.concat(data, functions.lit(END)), enveloped(schema), READING)
    whole = functions.filter(functions.array(envelope), lambda each: each.getField("end") == functions.lit(END))
    given = avro_struct(spark, schema)  # it may have fields without a type, which the table lacks
    records = functions.transform(whole, lambda each: conformed(each.getField("v"), given, wanted))
    return functions.try_element_at(records, functions.lit(1))


def conformed(column: Column, given: DataType, wanted: DataType) -> Column:
    """Returns the value of a type as a wider one, its fields by their names; new fields are null."""
    if given == wanted:
        return column
    match given, wanted:
        case StructType(), StructType():
            return functions.when(column.isNotNull(), functions.struct(*_conformed_fields(column, given, wanted)))
        case ArrayType(), ArrayType():
            return functions.transform(column, lambda each: conformed(each, given.elementType, wanted.elementType))
        case MapType(), MapType():
            return functions.transform_values(column, lambda _, each: conformed(each, given.valueType, wanted.valueType))
    return column.cast(wanted)


def _conformed_fields(column: Column, given: StructType, wanted: StructType) -> list[Column]:
    types = {field.name: field.dataType for field in given.fields}
    return [
        (
            conformed(column.getField(field.name), types[field.name], field.dataType)
            if field.name in types
            else functions.lit(None).cast(field.dataType)
        ).alias(field.name)
        for field in wanted.fields
    ]
