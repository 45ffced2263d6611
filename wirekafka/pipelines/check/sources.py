"""Where a check looks up what the offsets are that have no row in the lake: brokers, or their segment files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from wirekafka.pipelines import register
from wirekafka.pipelines.audit.counts import read_brokers, read_data_dirs, union
from wirekafka.pipelines.audit.offsets import (
    PartitionOffsets,
    Place,
    offsets_of_cluster,
    offsets_of_data_dirs,
    outcomes_of_data_dirs,
    places_in,
)
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.ingest.dead_letters import origins
from wirekafka.pipelines.kafka import Cluster, TopicSelection, partition_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wirekafka.pipelines.lake.description import LakeDescription

OFFSETS = ("topic", "partition", "offset")
NO_OFFSETS = "topic string, partition int, offset bigint"
Spans = Mapping[Place, tuple[int, int]]
"""The offsets of each partition that are looked up: from the first up to the second, excluded."""


COMMITTED, CONTROL, ABORTED = "committed", "control", "aborted"
"""The kinds of records; a read_committed consumer gets those of the first."""


class Source(Protocol):
    """What is asked for the records that the lake does not have.

    Attributes:
        tells_others: whether it has control records and aborted ones too.
    """

    tells_others: bool

    def log_start_offsets(self) -> Mapping[Place, int]:
        """Returns the log start offset of each partition of the topics."""

    def records(self, spans: Spans) -> DataFrame:
        """Returns topic, partition and offset of the records, at least those in the spans, and the columns that `kinds` needs."""

    def kinds(self, records: DataFrame) -> DataFrame:
        """Returns topic, partition, offset and kind of some records; the kind is COMMITTED, CONTROL or ABORTED."""

    def dead_letters(self) -> DataFrame:
        """Returns topic, partition and offset of the records that are dead letters, as often as they are."""


class Brokers:
    """Asks the brokers, through Spark's connector.

    Raises:
        PipelineError: no broker answers, it is another cluster than that of the lake, or a topic does not exist any more.
    """

    tells_others = False

    def __init__(self, spark: SparkSession, cluster: Cluster, topics: Collection[str], lake: LakeDescription) -> None:
        self._spark = spark
        self._cluster = cluster
        self._lake = lake
        self._offsets = offsets_of_cluster(cluster, TopicSelection(tuple(topics)).matching(cluster), None)

    def log_start_offsets(self) -> Mapping[Place, int]:
        """Returns the log start offset of each partition of the topics."""
        return {place: each.log_start_offset for place, each in self._offsets.items()}

    def records(self, spans: Spans) -> DataFrame:
        """Returns the records of the spans that a read_committed consumer gets."""
        ranges = {place: _within(self._offsets[place], span) for place, span in spans.items() if place in self._offsets}
        return read_brokers(self._spark, self._cluster, ranges).select(*OFFSETS)

    def kinds(self, records: DataFrame) -> DataFrame:
        """Returns the records, which are all committed."""
        from pyspark.sql import functions

        return records.withColumn("kind", functions.lit(COMMITTED))

    def dead_letters(self) -> DataFrame:
        """Returns the records that are dead letters."""
        topic, counts = self._lake.dead_letter_topic, partition_counts(self._cluster)
        if topic not in counts:
            return self._spark.createDataFrame([], NO_OFFSETS)
        offsets = offsets_of_cluster(self._cluster, {topic: counts[topic]}, None)
        letters = read_brokers(self._spark, self._cluster, offsets, has_headers=True)
        return origins(letters, self._lake.query_id).select(*OFFSETS)


class Segments:
    """Reads the segment files of brokers, through the data source `wirekafka-log`, each file once.

    Raises:
        PipelineError: a directory is no data directory, or none of them has a topic of the lake.
    """

    tells_others = True

    def __init__(self, spark: SparkSession, data_dirs: Sequence[Path], topics: Collection[str], lake: LakeDescription) -> None:
        self._spark = spark
        self._data_dirs = data_dirs
        self._topics = topics
        self._lake = lake
        present = {place.topic for place in places_in(data_dirs)}
        missing = sorted(set(topics) - present)
        if missing:
            places = ", ".join(map(str, data_dirs))
            raise PipelineError(f"the topic {missing[0]} of the lake is not in {places}: name each of the broker's log.dirs")
        self._has_dead_letters = lake.dead_letter_topic in present

    def log_start_offsets(self) -> Mapping[Place, int]:
        """Returns the log start offset of each partition of the topics."""
        found = offsets_of_data_dirs(self._data_dirs, self._topics, None)
        return {place: each.log_start_offset for place, each in found.items()}

    def records(self, spans: Spans) -> DataFrame:
        """Returns all records of the topics."""
        register(self._spark)
        reader = self._spark.read.format("wirekafka-log").option("topic", ",".join(self._topics))
        everything = union([reader.load(str(directory.resolve())) for directory in self._data_dirs])
        return everything.select(*OFFSETS, "producer_id", "is_transactional", "is_control")

    def kinds(self, records: DataFrame) -> DataFrame:
        """Returns the kinds of some records, by the outcomes of the transactions."""
        from pyspark.sql import functions

        outcomes = outcomes_of_data_dirs(self._data_dirs, self._topics)

        def kind_of(topic: str, partition: int, offset: int, producer_id: int, is_transactional: bool, is_control: bool) -> str:
            if is_control:
                return CONTROL
            is_aborted = is_transactional and outcomes[Place(topic, partition)].has_record(producer_id, offset)
            return ABORTED if is_aborted else COMMITTED

        kind = functions.udf(kind_of, "string")
        return records.select(*OFFSETS, kind(*records.columns).alias("kind"))

    def dead_letters(self) -> DataFrame:
        """Returns the records that are dead letters."""
        if not self._has_dead_letters:
            return self._spark.createDataFrame([], NO_OFFSETS)
        assert self._lake.dead_letter_topic is not None
        letters = read_data_dirs(self._spark, self._data_dirs, [self._lake.dead_letter_topic])
        return origins(letters, self._lake.query_id).select(*OFFSETS)


def _within(offsets: PartitionOffsets, span: tuple[int, int]) -> PartitionOffsets:
    """Returns the offsets of a partition with the bounds of a span; empty if the broker has none of it."""
    end = max(min(span[1], offsets.last_stable_offset), offsets.log_start_offset)
    first = min(max(span[0], offsets.log_start_offset), end)
    return PartitionOffsets(offsets.log_start_offset, first, end, offsets.log_end_offset)
