"""What an ingest reads, how it decodes the values, and where it writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster, TopicSelection

RecordFormat = Literal["raw", "json", "avro", "avro-confluent"]
Sink = Literal["parquet", "delta"]

DEAD_LETTER_SUFFIX = ".dead-letters"
MAX_OFFSETS_PER_BATCH = 10_000_000

INTERVAL = r"(?i)\s*(?:interval\s+)?(?:\d+(?:\.\d+)?\s+(?:microsecond|millisecond|second|minute|hour|day|week)s?\s*)+"
"""The intervals of Spark's triggers. Source: org.apache.spark.sql.catalyst.util.SparkIntervalUtils of Spark 4.0."""


@dataclass(slots=True, frozen=True)
class IngestOptions:
    """The options of an ingest.

    Attributes:
        cluster: the cluster of the topics, and of the dead-letter topic.
        lake: the path or URI of the lake's directory, which is made if it does not exist.
        topics: the topics that are read.
        record_format: what the values are: `raw` bytes, `json`, `avro` (one schema, no framing), or `avro-confluent` (each value
            begins with the id of its schema).
        sink: the format of the lake's tables.
        schema_files: the file of the values' schema for each topic; the file at "" is for all other topics. For `json`, the first
            schema, which new fields extend; without a file, it is inferred. For `avro`, the schema of every record.
        schema_registry: for `avro-confluent`, the URL of a schema registry, or a directory with a file ID.avsc for each schema.
        sample_records: the number of records of a topic from which a JSON schema is inferred.
        keep_value_bytes: keeps the bytes of each value beside the decoded value, in the column `value_bytes`.
        dead_letters: the topic of the records that do not fit; None for the name of the lake's directory with `.dead-letters`.
        once: reads what is there when the query starts, and ends.
        interval: how often a batch begins, as Spark writes intervals.
        max_offsets_per_batch: at most about this many offsets are in a batch.
        min_partitions: splits the partitions of Kafka into at least this many tasks.
        starting_offsets: where a new lake begins: `earliest`, `latest`, or JSON as the connector takes it.
        compact_every: merges the lake's small files after each so many batches; 0 for never.
        file_bytes: about the size of the merged files.
        isolation: `read_committed` or `read_uncommitted`.
        allow_data_loss: goes on if the topic no longer has the records of a batch.
    """

    cluster: Cluster
    lake: str
    topics: TopicSelection
    record_format: RecordFormat = "raw"
    sink: Sink = "parquet"
    schema_files: Mapping[str, Path] = field(default_factory=dict)
    schema_registry: str | None = None
    sample_records: int = 10_000
    keep_value_bytes: bool = False
    dead_letters: str | None = None
    once: bool = False
    interval: str = "10 seconds"
    max_offsets_per_batch: int = MAX_OFFSETS_PER_BATCH
    min_partitions: int | None = None
    starting_offsets: str = "earliest"
    compact_every: int = 50
    file_bytes: int = 128 << 20
    isolation: str = "read_committed"
    allow_data_loss: bool = False

    def __post_init__(self) -> None:
        if self.record_format == "avro-confluent" and self.schema_registry is None:
            raise PipelineError("the format avro-confluent needs a schema registry: its URL, or a directory of schemas")
        if self.record_format == "avro" and not self.schema_files:
            raise PipelineError("the format avro needs a schema file; records that begin with a schema's id are avro-confluent")
        if self.record_format != "avro-confluent" and self.schema_registry is not None:
            raise PipelineError(f"the format {self.record_format} uses no schema registry; the format avro-confluent does")
        if self.record_format in ("raw", "avro-confluent") and self.schema_files:
            raise PipelineError(f"the format {self.record_format} uses no schema file")
        if self.record_format == "raw" and (self.dead_letters is not None or self.keep_value_bytes):
            raise PipelineError("the format raw keeps every value as it is: it needs no dead-letter topic and no value bytes")
        if not re.fullmatch(INTERVAL, self.interval):
            raise PipelineError(f"the interval {self.interval!r} is unknown: write it as '10 seconds', '1 minute' or '2 hours'")
        if self.starting_offsets not in ("earliest", "latest") and not self.starting_offsets.lstrip().startswith("{"):
            raise PipelineError(
                f'no offsets: {self.starting_offsets!r}; write earliest, latest, or {{"TOPIC":{{"PARTITION":OFFSET}}}}'
            )
        if self.dead_letter_topic in self.topics.names:
            raise PipelineError(f"the dead-letter topic {self.dead_letter_topic} cannot be read too: name another")

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic of the records that do not fit; None for raw records, which all fit."""
        if self.record_format == "raw":
            return None
        if self.dead_letters is not None:
            return self.dead_letters
        directory = self.lake.rstrip("/").rsplit("/", 1)[-1]
        return re.sub(r"[^A-Za-z0-9._-]", "-", directory) + DEAD_LETTER_SUFFIX

    @property
    def selection(self) -> TopicSelection:
        """The topics that are read. A pattern passes over the dead-letter topic and the pipelines' own topics."""
        if self.topics.pattern is None:
            return self.topics
        own = [r"wirekafka\..*"]
        if self.dead_letter_topic is not None:
            own.append(re.escape(self.dead_letter_topic))
        return TopicSelection(pattern=f"(?!(?:{'|'.join(own)})$)(?:{self.topics.pattern})")

    def schema_file(self, topic: str) -> Path | None:
        """Returns the schema file of a topic."""
        return self.schema_files.get(topic, self.schema_files.get(""))
