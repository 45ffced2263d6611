"""The mirror: Spark reads the source's topics in batches, and the transactional sink writes them to the target.

Exactly once rests on the sink. It stores, in the transaction of the records, how far a source partition is written, so a batch
that Spark repeats writes only what is missing. Spark's checkpoint says which offsets a batch has. It may be lost: the next one
begins at the progress of the target.

Before each batch is written, its topics get their mirrors. Spark has fixed the offsets of the batch by then, so no topic of the
batch is missing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from wirekafka.names import TopicPartition
from wirekafka.pipelines.audit.checkpoints import read_checkpoint
from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.kafka import Cluster, TopicSelection, cluster_id
from wirekafka.pipelines.lake.files import open_files
from wirekafka.pipelines.mirror.checkpoint import Checkpoint, Description
from wirekafka.pipelines.mirror.forgetting import forget_topics
from wirekafka.pipelines.mirror.groups import has_records
from wirekafka.pipelines.mirror.names import mirrored_selection
from wirekafka.pipelines.mirror.options import KIND, MirrorOptions
from wirekafka.pipelines.mirror.places import OffsetMap
from wirekafka.pipelines.mirror.registry import MirroredTopic, Registry, check_entry, circular, name_is_taken, origins_at
from wirekafka.pipelines.mirror.rollback import check_checkpoint, check_target_ends
from wirekafka.pipelines.mirror.starting import spark_offsets, starting_offsets
from wirekafka.pipelines.mirror.topic_plan import Topic, TopicChange, copied_configs, plan_topic
from wirekafka.pipelines.mirror.topics import apply_change, made_topic, offset_ranges, read_topics
from wirekafka.pipelines.running import stoppable
from wirekafka.pipelines.transactional_sink.failures import SinkInterrupted
from wirekafka.pipelines.transactional_sink.options import SinkOptions
from wirekafka.pipelines.transactional_sink.progress import read_progress
from wirekafka.pipelines.transactional_sink.writing import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

TOPICS_EVERY_S = 30.0
"""Topics are compared with their mirrors this often while no topic or partition is new."""

UNUSABLE_CHECKPOINT = re.compile(
    r"KAFKA_DATA_LOSS|Some data may have been lost|you must specify all TopicPartitions|TOPIC_PARTITIONS"
)
"""What Spark says when it cannot go on from its checkpoint, or when a topic appeared while it started."""


@dataclass(slots=True)
class TopicPlan:
    """What is done with one topic before its records are mirrored.

    Attributes:
        topic: its name at the source.
        source: the topic.
        entry: what the mirror remembers of it; None if it is new.
        change: what is done at the target.
    """

    topic: str
    source: Topic
    entry: MirroredTopic | None
    change: TopicChange


class Mirror:
    """A mirror as the driver knows it.

    Attributes:
        options: what it was told.
        sink: the identity of its sink; the topics that the sink may write are given for each batch.
        registry: what it remembers of its topics.
        source_cluster: the id of the source, after `connect`.
        target_cluster: the id of the target.
    """

    def __init__(self, options: MirrorOptions) -> None:
        """Connects to no broker.

        Raises:
            PipelineError: the options are malformed.
        """
        options.check()
        self.options = options
        self.sink = SinkOptions(options.target, KIND, options.name, targets={}, maps_offsets=True)
        self.registry = Registry(options.target, options.name)
        self._checkpoint: Checkpoint | None = None
        self._restarting = options.restarted_topics
        self._known: Mapping[str, Topic] = {}
        self._known_at_s = 0.0
        self.source_cluster = self.target_cluster = ""
        self._origins: dict[str, list[str]] = {}

    def connect(self) -> TopicSelection:
        """Asks both clusters who they are; returns the topics that are read.

        Raises:
            PipelineError: a cluster does not answer, both are the same, or a topic comes from the target.
        """
        options = self.options
        self.source_cluster, self.target_cluster = _cluster_name(options.source), _cluster_name(options.target)
        if self.source_cluster == self.target_cluster:
            raise PipelineError(
                f"{options.source.bootstrap} and {options.target.bootstrap} are the same cluster ({self.source_cluster}): "
                "a mirror needs two"
            )
        self._origins = origins_at(options.source)
        circles = circular(self._origins, self.target_cluster)
        named = sorted(circles.intersection(options.topics.names))
        if named:
            raise PipelineError(f"{', '.join(named)} was mirrored from the target to the source, and would go round in a circle")
        return mirrored_selection(options.topics, circles)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Starts the query from its checkpoint, or from the progress that the target has.

        Raises:
            PipelineError: it cannot start; the text says what to do.
        """
        options, self._known = self.options, {}
        selection = self.connect()
        checkpoint = self._open_checkpoint(spark)
        topics = self._restarted(selection, checkpoint)
        self._check_target(spark, checkpoint, topics)
        reader = (
            spark.readStream.format("kafka")
            .options(**options.source.spark_options(), **selection.spark_options())
            .option("kafka.isolation.level", options.isolation)
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
            .option("maxOffsetsPerTrigger", str(options.batch_records))
            .option("startingOffsets", "earliest" if checkpoint.has_started() else self._starting_offsets(topics))
        )
        writer = (
            self._mirrored(reader.load())
            .writeStream.queryName(f"mirror {options.name}")
            .option("checkpointLocation", checkpoint.spark_path)
            .foreachBatch(stoppable(lambda batch, _: self._write_batch(batch, selection)))
        )
        return (writer.trigger(availableNow=True) if options.once else writer).start()

    def _open_checkpoint(self, spark: SparkSession) -> Checkpoint:
        options = self.options
        topics = [f"~{options.topics.pattern}"] if options.topics.pattern is not None else sorted(options.topics.names)
        wanted = Description(
            self.source_cluster, self.target_cluster, options.name, topics, options.names.template, options.isolation
        )
        self._checkpoint = checkpoint = Checkpoint(open_files(spark, options.checkpoint), options.checkpoint)
        checkpoint.open(wanted)
        return checkpoint

    def _restarted(self, selection: TopicSelection, checkpoint: Checkpoint) -> dict[str, Topic]:
        """Forgets the topics that are mirrored from their beginning again; returns the topics that are read.

        Only the first start of this process forgets them; later ones follow an outage.
        """
        options = self.options
        names = selection.matching(options.source)
        self._refuse_unread(names)
        if self._restarting:
            # First the checkpoint: one that is past the beginning of a forgotten topic would leave its first records out.
            checkpoint.begin_generation()
            forget_topics(options.target, self.sink, self.registry.topic, self._restarting)
            self._restarting = ()
        return read_topics(options.source, names, with_configs=False)

    def _refuse_unread(self, names: Iterable[str]) -> None:
        """Refuses to restart topics that are not read."""
        unknown = sorted(set(self._restarting).difference(names))
        if unknown:
            raise PipelineError(f"--restart-topic {unknown[0]}: the mirror does not read this topic")

    def _check_target(self, spark: SparkSession, checkpoint: Checkpoint, topics: Mapping[str, Topic]) -> None:
        """Refuses a target that has lost records which were mirrored.

        Only topics that are read now are looked at.
        """
        options = self.options
        offsets = OffsetMap(options.target, self.sink, self.registry)
        offsets.refresh()
        mirrors = {offsets.topics[name] for name in topics if name in offsets.topics}
        written = {partition: end for partition, end in offsets.target_ends().items() if partition.topic in mirrors}
        check_target_ends(written, offset_ranges(options.target, written, committed=False))
        if not checkpoint.has_started():
            return
        ends = read_checkpoint(open_files(spark, checkpoint.spark_path), checkpoint.spark_path).end_offsets
        check_checkpoint(
            options.checkpoint,
            {TopicPartition(*place): end for place, end in ends.items() if place.topic in topics},
            self._progress,
            partial(has_records, options.source, isolation=options.isolation),
        )

    def _progress(self) -> dict[TopicPartition, int]:
        """Returns the next source offset of each partition, as the target has it."""
        return {TopicPartition(*source): offset for source, offset in read_progress(self.sink).items()}

    def _starting_offsets(self, topics: Mapping[str, Topic]) -> str:
        partitions = [TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partition_count)]
        ranges = offset_ranges(self.options.source, partitions, committed=False)
        return spark_offsets(starting_offsets(ranges, self._progress(), allows_data_loss=self.options.allows_data_loss))

    def _mirrored(self, records: DataFrame) -> DataFrame:
        """Returns the frame that the sink takes."""
        from pyspark.sql import functions as sql

        before, after = self.options.names.affixes()
        return records.select(
            sql.col("topic").alias("source_topic"),
            sql.col("partition").alias("source_partition"),
            sql.col("offset").alias("source_offset"),
            sql.concat(sql.lit(before), sql.col("topic"), sql.lit(after)).alias("topic"),
            "partition",
            "key",
            "value",
            "headers",
            sql.unix_millis("timestamp").alias("timestamp_ms"),
        )

    def _write_batch(self, batch: DataFrame, selection: TopicSelection) -> None:
        topics = self.mirror_topics(selection)
        targets: dict[str, int | None] = {self.options.names.target_of(name): None for name in topics}
        ids = {name: topic.topic_id for name, topic in topics.items()}
        try:
            write(batch, replace(self.sink, targets=targets, source_ids=ids))
        except SinkInterrupted as error:
            raise UnreachableError(str(error)) from None

    def mirror_topics(self, selection: TopicSelection) -> Mapping[str, Topic]:
        """Gives each selected topic its mirror, and copies changed settings; returns the topics.

        Raises:
            PipelineError: a topic cannot be mirrored, or a cluster does not answer.
        """
        counts = selection.matching(self.options.source)
        now = read_topics(self.options.source, counts, with_configs=False)
        if _identities(now) == _identities(self._known) and time.monotonic() - self._known_at_s < TOPICS_EVERY_S:
            return self._known
        topics = read_topics(self.options.source, counts)
        for plan in self.plan(topics):
            self._apply(plan)
        self._known, self._known_at_s = topics, time.monotonic()
        return topics

    def recover(self, failure: str) -> UnreachableError | None:
        """Begins a new checkpoint of Spark if the present one is of no use any more.

        That is so after a topic was deleted, and if the first records of a new partition were deleted before it was seen.

        Args:
            failure: the text of the error with which the query ended.

        Returns:
            Why the query ended, if it can start again; None if another failure ended it.

        Raises:
            PipelineError: the source has deleted records that were not mirrored.
        """
        if UNUSABLE_CHECKPOINT.search(failure) is None or self._checkpoint is None:
            return None
        selection = self.connect()
        self._starting_offsets(read_topics(self.options.source, selection.matching(self.options.source), with_configs=False))
        self._checkpoint.begin_generation()
        return UnreachableError(
            "the source has deleted a topic, or created one: the mirror goes on from the progress of the target"
        )

    def plan(self, topics: Mapping[str, Topic]) -> list[TopicPlan]:
        """Returns what is done with each topic; changes nothing.

        Raises:
            PipelineError: a topic cannot be mirrored, or the target does not answer.
        """
        self._refuse_unread(topics)
        entries = {name: entry for name, entry in self.registry.read().items() if name not in self._restarting}
        names = {name: self.options.names.target_of(name) for name in topics}
        targets = read_topics(self.options.target, names.values())
        for name, topic in topics.items():
            if name in entries:
                check_entry(entries[name], self.source_cluster, names[name], topic, targets.get(names[name]))
        others = next((entry for entry in entries.values() if entry.source_cluster != self.source_cluster), None)
        if others is not None:
            raise name_is_taken(others, self.source_cluster)
        self._refuse_used_mirrors({name: names[name] for name in topics if name not in entries}, targets)
        return [
            TopicPlan(
                name,
                topic,
                entries.get(name),
                plan_topic(topic, names[name], targets.get(names[name]), entries[name].configs if name in entries else None),
            )
            for name, topic in sorted(topics.items())
        ]

    def _refuse_used_mirrors(self, new: Mapping[str, str], targets: Mapping[str, Topic]) -> None:
        """Refuses topics of the target that have records which this mirror did not write."""
        if self.options.allows_existing:
            return
        existing = {target: targets[target].partition_count for target in new.values() if target in targets}
        partitions = [TopicPartition(target, number) for target, count in existing.items() for number in range(count)]
        for partition, offsets in offset_ranges(self.options.target, partitions, committed=False).items():
            if offsets:
                raise PipelineError(
                    f"the topic {partition.topic} has records at the target that the mirror {self.options.name!r} did not write: "
                    "use the --name of the mirror that wrote them, choose other names with --rename, delete the topic, or mirror "
                    "into it with --into-existing"
                )

    def _apply(self, plan: TopicPlan) -> None:
        """Makes or changes a mirror, and remembers it before the first record is written to it."""
        if plan.change.is_needed():
            apply_change(self.options.target, plan.change)
        configs = copied_configs(plan.source)
        if plan.entry is not None and plan.entry.configs == configs:
            return
        made = made_topic(self.options.target, plan.change.target)
        origins = [self.source_cluster, *self._origins.get(plan.topic, [])]
        entry = MirroredTopic(
            plan.topic,
            plan.change.target,
            self.source_cluster,
            plan.source.topic_id,
            made.topic_id,
            origins,
            configs,
        )
        self.registry.write([entry])


def _cluster_name(cluster: Cluster) -> str:
    """Returns the id of a cluster, or its address if its brokers tell no id."""
    return cluster_id(cluster) or cluster.bootstrap


def _identities(topics: Mapping[str, Topic]) -> dict[str, tuple[str, int]]:
    return {name: (topic.topic_id, topic.partition_count) for name, topic in topics.items()}
