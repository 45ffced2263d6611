"""JSON values: which fields a batch has, and the struct of each record. All of it are expressions of Spark's JVM.

Each value is parsed twice, because Spark's two parsers have different gaps:

- `try_parse_json` returns null for text that is no JSON and for an object with a key twice. Its result tells the types of the
  fields. It ignores text after the end of a value.
- `from_json` gives the struct, and says if a field did not fit its type. It ignores unknown fields, and takes the last of two
  keys.

The first reads `[VALUE]`, the second reads `{"v":VALUE}`. Text after the value breaks one of the two: after the end of the value,
the first wants `,` or `]`, the second wants `,` or `}`, and after a `,` only the second wants a key.

Source: https://spark.apache.org/docs/latest/api/sql/index.html#try_parse_json
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.types import DataType, StringType, StructField, StructType

from wirekafka.pipelines.ingest.batch_plans import TopicPlan
from wirekafka.pipelines.ingest.json_shapes import parse_shape, stored_type
from wirekafka.pipelines.ingest.schema_changes import merge, narrow_paths, widened

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TEXT = "CAST(value AS STRING)"
IS_OBJECT = f"startswith(ltrim(' \t\r\n', {TEXT}), '{{')"
IS_UTF8 = f"is_valid_utf8({TEXT})"
HAS_LONE_SURROGATE = (
    rf"(contains({TEXT}, r'\u') AND {TEXT} RLIKE r'(?<!\\)(?:\\\\)*+(?:"
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F])')"
)
"""Whether the text has an escaped half of a character (`\\ud800`) without its other half. Spark would read it as `?`."""

MAX_DEPTH = 50
"""Objects and arrays in a value, one in the other. At some hundred levels, recursion ends Spark's JVM or the driver's Python."""

BRACKETS = rf"""regexp_replace(regexp_replace(regexp_replace({TEXT}, r'\\.', ''), r'"[^"]*+"', ''), r'[^{{}}\[\]]++', '')"""
IS_DEEP = (
    f"(length({TEXT}) - length(replace(replace({TEXT}, '{{', ''), '[', '')) > {MAX_DEPTH} AND"
    rf" aggregate(sequence(1, {MAX_DEPTH}), {BRACKETS}, (rest, _) -> regexp_replace(rest, r'\{{\}}|\[\]', '')) != '')"
)
"""Whether JSON has more levels: brackets are left after each level was removed, the innermost first."""

PARSED = f"variant_get(try_parse_json(concat('[', {TEXT}, ']')), '$[0]', 'variant')"

CORRUPT = "corrupt"
READING = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "dateFormat": "yyyy-MM-dd",
}
"""Strict JSON, and dates without a time: Spark's default reads the date of `2020-01-01T10:00` and drops the time."""

MAX_REASON_CHARS = 400

MAX_FIELDS = 2000
"""Values with names that are never the same would let the schema grow for ever, and each batch take longer."""

Stored = Callable[[str], StructType]


def observed_shapes(records: DataFrame) -> dict[str, str]:
    """Returns for each topic of the frame the description of its JSON objects together; VOID if it has none."""
    is_usable = f"{IS_UTF8} AND {IS_OBJECT} AND NOT {HAS_LONE_SURROGATE} AND NOT {IS_DEEP}"
    shape = functions.expr(f"schema_of_variant_agg(CASE WHEN {is_usable} THEN {PARSED} END)")
    rows = records.groupBy("topic").agg(shape.alias("shape")).collect()
    return {row.topic: row.shape or "VOID" for row in sorted(rows)}


def plan_json(records: DataFrame, stored: Stored, forbidden: str) -> dict[str, TopicPlan]:
    """Returns the plan of each topic of a batch: its schema with what its records add.

    Args:
        records: the batch.
        stored: returns the schema of a topic so far, which may have no fields.
        forbidden: characters that the name of a new field cannot have.
    """
    plans = {}
    for topic, shape in observed_shapes(records).items():
        schema = stored(topic)
        merged = merge(schema, _as_struct(stored_type(parse_shape(shape), schema)), forbidden, MAX_FIELDS)
        wide = _widened_for_values(records.where(functions.col("topic") == topic), merged.schema)
        plans[topic] = TopicPlan(wide, all_fit=not merged.misfits)
    return plans


def _widened_for_values(records: DataFrame, schema: StructType) -> StructType:
    """Returns the schema with wider types where records of one topic have numbers and times that do not fit otherwise."""
    paths = narrow_paths(schema)
    if not paths:
        return schema
    strays = records.where(_is_corrupt(schema) & ~_is_corrupt(widened(schema, paths)))
    needs = [functions.bool_or(_is_corrupt(widened(schema, set(paths) - {path}))) for path in paths]
    needed = strays.agg(*(each.alias(str(number)) for number, each in enumerate(needs))).first()
    return widened(schema, [path for path, need in zip(paths, needed, strict=True) if need])


def infer_json_schema(sample: DataFrame, forbidden: str) -> StructType:
    """Returns the schema of the records of one topic; it has no field if no record has one."""
    for shape in observed_shapes(sample).values():
        return merge(StructType(), _as_struct(stored_type(parse_shape(shape), StructType())), forbidden, MAX_FIELDS).schema
    return StructType()


def decode_json(records: DataFrame, plan: TopicPlan, forbidden: str) -> DataFrame:
    """Returns the records of one topic with the columns `decoded`, a struct, and `reason`, why a record does not fit.

    Without a schema there is no column `decoded`.
    """
    if not plan.schema.fields:
        nothing = functions.when(functions.col("value").isNotNull(), "no record of the topic has had a field yet")
        return records.withColumn("reason", nothing)
    parsed = records.withColumn("envelope", _envelope(plan.schema)).withColumn("parsed", functions.expr(PARSED))
    with_reason = parsed.withColumn("reason", _reason(plan, forbidden)).withColumn("decoded", functions.col("envelope.v"))
    return with_reason.drop("envelope", "parsed")


def _envelope(schema: StructType) -> Column:
    """Returns the expression of a struct with the record as `v`, and with the text as `corrupt` if the record does not fit."""
    read = StructType([StructField("v", schema), StructField(CORRUPT, StringType())])
    return functions.from_json(functions.expr(f"concat('{{\"v\":', {TEXT}, '}}')"), read, READING)


def _is_corrupt(schema: StructType) -> Column:
    return _envelope(schema).getField(CORRUPT).isNotNull()


def _reason(plan: TopicPlan, forbidden: str) -> Column:
    """Returns the expression of why a record does not fit; null if it does."""
    reason = (
        functions.when(functions.col("value").isNull(), None)
        .when(~functions.expr(IS_UTF8), "not UTF-8")
        .when(~functions.expr(IS_OBJECT), "not a JSON object")
        .when(functions.expr(HAS_LONE_SURROGATE), "a lone surrogate, which is half of a character")
        .when(functions.col("parsed").isNull(), "not valid JSON, or an object has a key twice")
        .when(functions.expr(IS_DEEP), f"objects and arrays in more than {MAX_DEPTH} levels")
    )
    if not plan.all_fit:
        misfit = functions.udf(lambda shape: shape_misfit(shape, plan.schema, forbidden), StringType())
        found = misfit(functions.expr(f"CASE WHEN NOT {IS_DEEP} THEN schema_of_variant(parsed) END"))
        reason = reason.when(found.isNotNull(), found)
    out_of_range = f"text after the value, or a value out of the range of its type in: {plan.schema.simpleString()}"
    is_corrupt = functions.col(f"envelope.{CORRUPT}").isNotNull() | functions.col("envelope.v").isNull()
    return reason.when(is_corrupt, out_of_range[:MAX_REASON_CHARS])


def shape_misfit(shape: str | None, schema: StructType, forbidden: str) -> str | None:
    """Returns why records of a shape do not fit a schema that will not change; None if they do."""
    if shape is None:
        return None
    merged = merge(schema, _as_struct(stored_type(parse_shape(shape), schema)), forbidden, MAX_FIELDS)
    if merged.misfits:
        return str(merged.misfits[0])
    return None if merged.schema == schema else f"{shape} needs wider types than {schema.simpleString()}"[:MAX_REASON_CHARS]


def _as_struct(given: DataType) -> StructType:
    return given if isinstance(given, StructType) else StructType()
