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
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.types import ArrayType, DataType, FloatType, MapType, StringType, StructField, StructType

from wirekafka.pipelines.ingest.batch_plans import TopicPlan
from wirekafka.pipelines.ingest.json_shapes import parse_shape, stored_type
from wirekafka.pipelines.ingest.schema_changes import MAX_DEPTH, merge, narrow_paths, widened

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TEXT = "CAST(value AS STRING)"
IS_OBJECT = f"startswith(ltrim(' \t\r\n', {TEXT}), '{{')"
IS_UTF8 = f"is_valid_utf8({TEXT})"
ESCAPES = r"\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
HAS_LONE_SURROGATE = rf"(contains({TEXT}, r'\u') AND regexp_replace({TEXT}, r'{ESCAPES}', ' ') RLIKE r'\\u[dD][89a-fA-F]')"
"""Whether the text has an escaped half of a character (`\\ud800`) without its other half. Spark would read it as `?`."""


def _without_strings(text: str) -> str:
    """Returns the SQL of JSON text without its strings and names."""
    return rf"""regexp_replace(regexp_replace({text}, r'\\.', ''), r'"[^"]*+"', '')"""


BRACKETS = rf"regexp_replace({_without_strings(TEXT)}, r'[^{{}}\[\]]++', '')"
IS_DEEP = (
    f"(length({TEXT}) - length(replace(replace({TEXT}, '{{', ''), '[', '')) > {MAX_DEPTH} AND"
    rf" aggregate(sequence(1, {MAX_DEPTH}), {BRACKETS}, (rest, _) -> regexp_replace(rest, r'\{{\}}|\[\]', '')) != '')"
)
"""Whether JSON has more levels: brackets are left after each level was removed, the innermost first."""

PARSED = f"variant_get(try_parse_json(concat('[', CASE WHEN NOT {IS_DEEP} THEN {TEXT} END, ']')), '$[0]', 'variant')"
"""The text as a variant; null also for deep text. Spark builds variants by recursion, and some hundred levels can overflow the
stack of a task, which ends the JVM."""

HAS_INFINITY = (
    rf"({TEXT} RLIKE r'[eE]\+?\d{{3}}|\d{{200}}' AND contains({_without_strings(f'CAST({PARSED} AS STRING)')}, 'Infinity'))"
)
"""Whether a number is beyond the range of a double (`1e400`). Spark would read it as infinity."""

IS_BEYOND_LIMITS = rf"({TEXT} RLIKE r'[\d.]{{1000}}' OR length({TEXT}) > 16000000)"
"""Whether Spark may have refused the text for its size. Source: com.fasterxml.jackson.core.StreamReadConstraints"""

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
LIMITS = "Spark reads at most 1000 digits of a number, 50000 characters of a name, and 16 MiB"

MAX_FIELDS = 2000
"""Values with names that are never the same would let the schema grow for ever, and each batch take longer."""

Stored = Callable[[str], StructType]


def observed_shapes(records: DataFrame) -> dict[str, str]:
    """Returns for each topic of the frame the description of its JSON objects together; VOID if it has none."""
    is_usable = f"{IS_UTF8} AND {IS_OBJECT} AND NOT {HAS_LONE_SURROGATE} AND NOT {HAS_INFINITY}"
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
    parsed = records.withColumn("parsed", functions.expr(PARSED))
    if not plan.schema.fields:
        nothing = functions.when(functions.col("value").isNotNull(), "no record of the topic has had a field yet")
        return parsed.withColumn("reason", functions.coalesce(_text_fault(), nothing)).drop("parsed")
    both = parsed.withColumn("envelope", _envelope(plan.schema)).withColumn("decoded", functions.col("envelope.v"))
    reason = functions.coalesce(_text_fault(), _type_fault(plan, forbidden))
    return both.withColumn("reason", functions.when(functions.col("value").isNotNull(), reason)).drop("envelope", "parsed")


def _envelope(schema: StructType) -> Column:
    """Returns the expression of a struct with the record as `v`, and with the text as `corrupt` if the record does not fit."""
    read = StructType([StructField("v", schema), StructField(CORRUPT, StringType())])
    return functions.from_json(functions.expr(f"concat('{{\"v\":', {TEXT}, '}}')"), read, READING)


def _is_corrupt(schema: StructType) -> Column:
    return _envelope(schema).getField(CORRUPT).isNotNull()


def _text_fault() -> Column:
    """Returns the expression of why a value is no JSON object that Spark reads without a loss; null if it is one."""
    parsed = functions.col("parsed")
    return (
        functions.when(functions.col("value").isNull(), None)
        .when(~functions.expr(IS_UTF8), "not UTF-8")
        .when(~functions.expr(IS_OBJECT), "not a JSON object")
        .when(functions.expr(HAS_LONE_SURROGATE), "a lone surrogate, which is half of a character")
        .when(functions.expr(IS_DEEP), f"objects and arrays in more than {MAX_DEPTH} levels")
        .when(parsed.isNull() & functions.expr(IS_BEYOND_LIMITS), f"not valid JSON, or too large: {LIMITS}")
        .when(parsed.isNull(), "not valid JSON, or an object has a key twice")
        .when(functions.expr(HAS_INFINITY), "a number out of the range of double")
    )


def _type_fault(plan: TopicPlan, forbidden: str) -> Column:
    """Returns the expression of why an object does not fit the schema; null if it does."""
    is_corrupt = functions.col(f"envelope.{CORRUPT}").isNotNull() | functions.col("decoded").isNull()
    if "float" in plan.schema.simpleString():
        is_corrupt |= _has_infinity(functions.col("decoded"), plan.schema)
    out_of_range = f"text after the value, or a value out of the range of its type in: {plan.schema.simpleString()}"
    fault = functions.when(is_corrupt, out_of_range[:MAX_REASON_CHARS])
    if plan.all_fit:
        return fault
    misfit = functions.udf(lambda shape: shape_misfit(shape, plan.schema, forbidden), StringType())
    found = misfit(functions.expr("schema_of_variant(parsed)"))
    return functions.coalesce(found, fault)


def _has_infinity(column: Column, kind: DataType) -> Column:
    """Returns the expression of whether a float in a value is infinite; for doubles there is `HAS_INFINITY`."""
    match kind:
        case FloatType():
            found = functions.abs(column) == float("inf")
        case StructType():
            parts = [_has_infinity(column.getField(field.name), field.dataType) for field in kind.fields]
            found = reduce(lambda first, second: first | second, parts, functions.expr("false"))
        case ArrayType():
            found = functions.exists(column, lambda each: _has_infinity(each, kind.elementType))
        case MapType():
            found = functions.exists(functions.map_values(column), lambda each: _has_infinity(each, kind.valueType))
        case _:
            return functions.expr("false")
    return functions.coalesce(found, functions.expr("false"))


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
