"""The streaming query of an ingest, and the plan that a dry run prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.ingest.options import IngestOptions
from wirekafka.pipelines.kafka import cluster_id
from wirekafka.pipelines.running import stoppable
from wirekafka.pipelines.session import Connector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from wirekafka.pipelines.lake.description import LakeDescription


def connectors(options: IngestOptions) -> frozenset[Connector]:
    """Returns the connectors that the session of an ingest needs."""
    needed = {Connector.KAFKA}
    if options.record_format.startswith("avro"):
        needed.add(Connector.AVRO)
    if options.sink == "delta":
        needed.add(Connector.DELTA)
    return frozenset(needed)


def describe(options: IngestOptions) -> Mapping[str, object]:
    """Returns what the ingest would read and write.

    Raises:
        UnreachableError: no broker answers.
        PipelineError: a topic that is named does not exist, or no topic matches the pattern.
    """
    plan: dict[str, object] = {
        "reads": _topic_lines(options),
        "from": f"{options.cluster.bootstrap}, {options.starting_offsets} offsets in a new lake, {options.isolation}",
        "format": options.record_format,
        "writes": f"{options.lake} ({options.sink})",
        "batches": "what is there now, once" if options.once else f"every {options.interval}",
        "small files": f"merged after every {options.compact_every} batches" if options.compact_every else "not merged",
    }
    if options.dead_letter_topic is not None:
        plan["dead letters"] = options.dead_letter_topic
    return plan


def start_ingest(spark: SparkSession, options: IngestOptions) -> StreamingQuery:
    """Starts the query that fills a lake from topics, each record once.

    The checkpoint is in the lake. Kill the query at any time: another one with the same options goes on where it ended.

    Raises:
        UnreachableError: no broker answers.
        PipelineError: a topic is unknown, a schema file is wrong, the lake was made for something else, or lacks its checkpoint.
    """
    from wirekafka.pipelines.ingest.batches import BatchWriter
    from wirekafka.pipelines.lake.lake import create_lake

    _topic_lines(options)
    lake = create_lake(spark, options.lake, lake_description(options))
    lake.refuse_missing_checkpoint()
    writer = BatchWriter(spark, options, lake)
    source = spark.readStream.format("kafka").options(**_source_options(options)).load()
    stream = source.writeStream.foreachBatch(stoppable(writer.write)).option("checkpointLocation", lake.checkpoint)
    trigger = {"availableNow": True} if options.once else {"processingTime": options.interval}
    return stream.queryName(f"ingest {options.lake}").trigger(**trigger).start()


def lake_description(options: IngestOptions) -> LakeDescription:
    """Returns the description of the lake that the ingest fills."""
    from wirekafka.pipelines.lake.description import LakeDescription

    return LakeDescription(
        sink=options.sink,
        record_format=options.record_format,
        topics=tuple(sorted(options.topics.names)),
        pattern=options.topics.pattern,
        cluster_id=cluster_id(options.cluster),
        has_value_bytes=options.keep_value_bytes,
        dead_letter_topic=options.dead_letter_topic,
    )


def _source_options(options: IngestOptions) -> dict[str, str]:
    """Returns the options of Spark's kafka source."""
    settings = {
        **options.cluster.spark_options(),
        **options.selection.spark_options(),
        "kafka.isolation.level": options.isolation,
        "includeHeaders": "true",
        "startingOffsets": options.starting_offsets,
        "maxOffsetsPerTrigger": str(options.max_offsets_per_batch),
        "failOnDataLoss": str(not options.allow_data_loss).lower(),
    }
    if options.min_partitions is not None:
        settings["minPartitions"] = str(options.min_partitions)
    return settings


def _topic_lines(options: IngestOptions) -> list[str]:
    found = options.selection.matching(options.cluster)
    if not found:
        raise PipelineError(f"no topic at {options.cluster.bootstrap} matches {options.topics.pattern!r}")
    return [f"{topic} ({count} partition{'s' if count != 1 else ''})" for topic, count in sorted(found.items())]
