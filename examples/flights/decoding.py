"""Decodes records of Kafka in Spark, and tells malformed ones apart."""

from __future__ import annotations

import functools
import operator

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

from examples.flights.encoding import Format, framing
from examples.flights.schemas import required_names, schema_text, spark_columns
from wirekafka.pipelines.kafka import Cluster

CORRUPT = "_corrupt_record"


def decoded(value: Column, record_format: Format, schema_id: int) -> Column:
    """Returns an array with the decoded record, a struct; the array of a malformed record, or of no value, is empty.

    `inline` makes columns of it, and each record is decoded once. Filters on the fields of a struct would move below the decoding
    with a copy of it, and Spark would decode each record twice. Source: `explain()`, PushPredicateThroughNonJoin of Spark.
    """
    names = required_names(schema_id)

    def is_valid(record: Column) -> Column:
        checks = [record[name].isNotNull() for name in names]
        checks += [record[CORRUPT].isNull()] if record_format is Format.JSON else []
        return functools.reduce(operator.and_, checks)

    return f.filter(f.array(_decoded(value, record_format, schema_id)), is_valid)


def decoded_rows(records: DataFrame, topic: str, record_format: Format, schema_id: int, *kept: str) -> DataFrame:
    """Returns the columns of the records of one topic that are not malformed, and the columns of Kafka's that are to be kept.

    Spark moves no filter on the rows below the `inline`, so every record, of any topic, moves a watermark on the records.
    """
    value = f.when(f.col("topic") == topic, f.col("value"))
    return records.select(*kept, f.inline(decoded(value, record_format, schema_id))).drop(CORRUPT)


def malformed_records(records: DataFrame, record_format: Format, schema_id: int) -> DataFrame:
    """Returns the records of Kafka that cannot be decoded, unchanged."""
    return records.filter(f.size(decoded(f.col("value"), record_format, schema_id)) == 0)


def _decoded(value: Column, record_format: Format, schema_id: int) -> Column:
    if record_format is Format.JSON:
        columns = f"{spark_columns(schema_id)}, {CORRUPT} STRING"
        return f.from_json(value.cast("string"), columns, {"columnNameOfCorruptRecord": CORRUPT})
    if record_format is Format.CONFLUENT_AVRO:
        prefix = framing(schema_id)
        is_framed = f.substring(value, 1, len(prefix)) == f.lit(prefix)
        value = f.when(is_framed, f.substring(value, len(prefix) + 1, 1 << 30))
    return from_avro(value, schema_text(schema_id), {"mode": "PERMISSIVE"})


def latest_by_key(spark: SparkSession, cluster: Cluster, topic: str, record_format: Format, schema_id: int) -> DataFrame:
    """Returns what a compacted topic holds now: the last record of each key, without the keys that end in a tombstone.

    Each action on the frame reads the topic again.
    """
    records = spark.read.format("kafka").options(**cluster.spark_options(), subscribe=topic).load()
    last = records.groupBy("topic", "partition", "key").agg(f.max_by("value", "offset").alias("value"))
    return decoded_rows(last, topic, record_format, schema_id)
