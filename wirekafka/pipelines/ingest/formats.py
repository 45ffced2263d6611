"""The formats of values: how each plans a batch and decodes its records.

A format checks its schema files, and that they merge with the schemas of the lake, when the ingest starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pyspark.sql.types import StructType

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.ingest.avro_values import decode_bare, decode_framed, plan_bare, plan_framed
from wirekafka.pipelines.ingest.batch_plans import BatchPlan, TopicPlan
from wirekafka.pipelines.ingest.json_values import decode_json, infer_json_schema, plan_json
from wirekafka.pipelines.ingest.options import IngestOptions
from wirekafka.pipelines.ingest.schema_changes import DELTA_FORBIDDEN, merge
from wirekafka.pipelines.ingest.schema_files import read_avro_schema, read_spark_schema
from wirekafka.pipelines.ingest.schema_registry import open_registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wirekafka.pipelines.lake.lake import Lake


class ValueFormat(Protocol):
    """Plans and decodes batches of values of one format."""

    def plan(self, records: DataFrame) -> BatchPlan:
        """Returns how the values of each topic of a batch are decoded.

        Raises:
            PipelineError: the values cannot be decoded until the user has changed something.
        """

    def decode(self, records: DataFrame, plan: TopicPlan) -> DataFrame:
        """Returns the records of one topic with the columns `decoded`, a struct, and `reason`, null for a record that fits.

        While the topic has no schema, there is no column `decoded`, and only null values fit.
        """


def open_format(spark: SparkSession, options: IngestOptions, lake: Lake) -> ValueFormat | None:
    """Returns the format of an ingest; None for raw values.

    Raises:
        PipelineError: a schema file is wrong or does not merge with the schema of the lake, or the registry's place is wrong.
    """
    match options.record_format:
        case "raw":
            return None
        case "json":
            return JsonFormat(spark, options, lake)
        case "avro":
            return BareAvroFormat(spark, options, lake)
        case "avro-confluent":
            return FramedAvroFormat(options, lake)


class JsonFormat:
    """JSON objects. The schema of a topic begins with its file, or with what a sample of the topic has."""

    def __init__(self, spark: SparkSession, options: IngestOptions, lake: Lake) -> None:
        self._spark = spark
        self._options = options
        self._lake = lake
        self._forbidden = _forbidden(options)
        self._given = {topic: read_spark_schema(path) for topic, path in options.schema_files.items()}
        for topic in lake.description.schemas:
            self._stored(topic)

    def plan(self, records: DataFrame) -> BatchPlan:
        """Returns how the values of each topic of a batch are decoded."""
        return plan_json(records, self._stored, self._forbidden)

    def decode(self, records: DataFrame, plan: TopicPlan) -> DataFrame:
        """Returns the records of one topic with the columns `decoded` and `reason`."""
        return decode_json(records, plan, self._forbidden)

    def _stored(self, topic: str) -> StructType:
        """Returns the schema of a topic without the records of the batch."""
        known = self._lake.schema(topic)
        given = self._given.get(topic, self._given.get(""))
        if given is None:
            return self._inferred(topic) if known is None else known
        merged = merge(known or StructType(), given, self._forbidden)
        if merged.misfits:
            path = self._options.schema_file(topic)
            raise PipelineError(
                f"the schema file {path} does not fit the lake's schema of the topic {topic}: {merged.misfits[0]}:"
                " change the file, or use another directory"
            )
        return merged.schema

    def _inferred(self, topic: str) -> StructType:
        reader = self._spark.read.format("kafka").options(**self._options.cluster.spark_options())
        reader = reader.option("kafka.isolation.level", self._options.isolation).option("failOnDataLoss", "false")
        sample = reader.option("subscribe", topic).load().limit(self._options.sample_records)
        return infer_json_schema(sample, self._forbidden)


class BareAvroFormat:
    """Avro records of the schema in the topic's file."""

    def __init__(self, spark: SparkSession, options: IngestOptions, lake: Lake) -> None:
        self._spark = spark
        self._options = options
        self._lake = lake
        self._given = {topic: read_avro_schema(spark, path) for topic, path in options.schema_files.items()}

    def plan(self, records: DataFrame) -> BatchPlan:
        """Returns how the values of each topic of a batch are decoded."""
        topics = sorted(row.topic for row in records.select("topic").distinct().collect())
        return plan_bare(self._spark, topics, lambda topic: _known(self._lake, topic), self._schema, _forbidden(self._options))

    def decode(self, records: DataFrame, plan: TopicPlan) -> DataFrame:
        """Returns the records of one topic with the columns `decoded` and `reason`."""
        return decode_bare(records, plan)

    def _schema(self, topic: str) -> str:
        found = self._given.get(topic, self._given.get(""))
        if found is None:
            raise PipelineError(f"no schema file is for the topic {topic}: give one for it, or one for all topics")
        return found


class FramedAvroFormat:
    """Avro records that begin with the id of their schema."""

    def __init__(self, options: IngestOptions, lake: Lake) -> None:
        assert options.schema_registry is not None
        self._registry = open_registry(options.schema_registry)
        self._lake = lake
        self._forbidden = _forbidden(options)

    def plan(self, records: DataFrame) -> BatchPlan:
        """Returns how the values of each topic of a batch are decoded."""
        return plan_framed(records, lambda topic: _known(self._lake, topic), self._registry, self._forbidden)

    def decode(self, records: DataFrame, plan: TopicPlan) -> DataFrame:
        """Returns the records of one topic with the columns `decoded` and `reason`."""
        return decode_framed(records, plan)


def _known(lake: Lake, topic: str) -> StructType:
    return lake.schema(topic) or StructType()


def _forbidden(options: IngestOptions) -> str:
    return DELTA_FORBIDDEN if options.sink == "delta" else ""
