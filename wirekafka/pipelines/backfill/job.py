"""Writes records of a lake into topics, each record once.

The sink holds the progress of the backfill in the cluster of the target. So a backfill that was killed goes on where it ended,
and one that is complete writes nothing but the records that the lake has gained since.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from wirekafka.pipelines import transactional_sink
from wirekafka.pipelines.backfill.options import KIND, BackfillOptions
from wirekafka.pipelines.backfill.progress import Meter, Report
from wirekafka.pipelines.backfill.values import Encoding, encoding
from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.failures import explained
from wirekafka.pipelines.kafka import Cluster, partition_counts
from wirekafka.pipelines.lake.lake import Lake, open_lake
from wirekafka.pipelines.running import FIRST_DELAY_S, OUTAGE_S, POLL_S, StopRequest
from wirekafka.pipelines.transactional_sink import SinkOptions, WriteResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = TypeVar("Result")

MAX_IDLE_ATTEMPTS = 5
FACTS = (
    "count(*) AS records",
    "min(offset) AS first_offset",
    "max(offset) AS last_offset",
    "unix_millis(min(timestamp)) AS first_ms",
)
STOPPED = "stopped by a signal; the same command goes on from what is committed"


@dataclass(slots=True, frozen=True)
class TopicPlan:
    """What a backfill does with one topic of the lake.

    Attributes:
        topic: the topic of the lake.
        target: the topic that is written.
        records: the number of records in the range.
        partitions: the number of partitions that the target needs.
        first_timestamp_ms: the least timestamp in the range; None without records.
        offset_ranges: the first offset of the range, and one past the last, by partition of the lake.
        frame: the records, with the columns of the sink.
        encoding: how the values become bytes.
    """

    topic: str
    target: str
    records: int
    partitions: int
    first_timestamp_ms: int | None
    offset_ranges: Mapping[int, tuple[int, int]]
    frame: DataFrame
    encoding: Encoding


@dataclass(slots=True, frozen=True)
class TopicResult:
    """What a backfill did with one topic.

    Attributes:
        topic: the topic of the lake.
        target: the topic that was written.
        written: the number of records that the run wrote after the last outage of the brokers.
        written_before: the number of records that it, or an earlier run, wrote before.
        values: how the values became bytes.
    """

    topic: str
    target: str
    written: int
    written_before: int
    values: str


@dataclass(slots=True, frozen=True)
class BackfillResult:
    """What a backfill did.

    Attributes:
        name: the name of the backfill, which a later run can be given.
        topics: the results by topic.
        warnings: what may happen to the records in the target.
    """

    name: str
    topics: list[TopicResult]
    warnings: list[str]


def run_backfill(
    spark: SparkSession,
    options: BackfillOptions,
    stop: StopRequest | None = None,
    report: Report = lambda progress: None,
) -> BackfillResult:
    """Writes records of a lake into topics, with their keys, headers, timestamps, and order in each source partition.

    A stop that is asked for cancels the running job of Spark. What is not committed has no effect, and the next run writes it.

    Args:
        spark: the session.
        options: which records are written to which topics.
        stop: the request to end.
        report: is called from another thread, at the begin for each partition that was written before, and after each commit.

    Durability: on return, all records of the range are in committed transactions.

    Raises:
        PipelineError: the lake or the target lacks something, the brokers were away for too long, or a stop was asked for.
    """
    stop = stop or StopRequest()
    with _jobs_cancelled_by(stop, spark), explained():
        return _run(spark, options, stop, report)


@contextmanager
def _jobs_cancelled_by(stop: StopRequest, spark: SparkSession) -> Iterator[None]:
    """Cancels the jobs of Spark when the stop is asked for; they fail, and their failure is then the stop.

    Raises:
        PipelineError: the stop was asked for, or the block raised it.
    """
    ended = threading.Event()

    def cancel() -> None:
        while not ended.wait(POLL_S):
            if stop.is_set():
                spark.sparkContext.cancelAllJobs()

    watcher = threading.Thread(target=cancel, name="wirekafka-stop", daemon=True)
    watcher.start()
    try:
        yield
    except PipelineError:
        if stop.is_set():
            raise PipelineError(STOPPED) from None
        raise
    finally:
        ended.set()
        watcher.join()


def _run(spark: SparkSession, options: BackfillOptions, stop: StopRequest, report: Report) -> BackfillResult:
    partition_counts(options.cluster)
    lake = open_lake(spark, options.lake)
    plans = _plans(spark, lake, options)
    sink = _sink(options, lake, plans)
    _through_outage(lambda: _refuse_refilled_lake(options, sink), stop)
    _through_outage(lambda: transactional_sink.prepare_topics(sink), stop)
    warnings = _through_outage(lambda: _warnings(options.cluster, plans), stop)
    ranges = {(plan.topic, partition): each for plan in plans for partition, each in plan.offset_ranges.items()}
    results = []
    with transactional_sink.follow_progress(sink, Meter(ranges, report)):
        for plan in plans:
            done = _write_through_outages(plan, sink, stop)
            results.append(TopicResult(plan.topic, plan.target, done.written, done.skipped, plan.encoding.description))
    return BackfillResult(options.backfill_name, results, warnings)


@explained()
def describe(spark: SparkSession, options: BackfillOptions) -> dict[str, Any]:
    """Returns what a backfill would read and write, for a dry run.

    Raises:
        PipelineError: the lake or the target lacks something.
    """
    known = partition_counts(options.cluster)
    lake = open_lake(spark, options.lake)
    plans = _plans(spark, lake, options)
    sink = _sink(options, lake, plans)
    _refuse_refilled_lake(options, sink)
    progress = transactional_sink.read_progress(sink)
    stored = [f"{topic} partition {partition}: up to offset {end}" for (topic, partition), end in sorted(progress.items())]
    return {
        "lake": options.lake,
        "topics": [f"{plan.topic}: {plan.records} records to {plan.target}, {_fate(plan, known, options)}" for plan in plans],
        "values": [f"{plan.topic}: {plan.encoding.description}" for plan in plans],
        "partitions": "kept" if options.partitions == "keep" else "by the hash of the key",
        "cluster": options.cluster.bootstrap,
        "name": options.backfill_name,
        "written before": stored,
        "warnings": _warnings(options.cluster, [plan for plan in plans if plan.target in known]),
    }


def _fate(plan: TopicPlan, known: dict[str, int], options: BackfillOptions) -> str:
    if plan.target in known:
        return f"which has {known[plan.target]} partitions"
    return f"which is created with {options.create_partitions or plan.partitions} partitions"


def _plans(spark: SparkSession, lake: Lake, options: BackfillOptions) -> list[TopicPlan]:
    return [_plan(spark, lake, topic, target, options) for topic, target in options.targets(lake.topics()).items()]


def _plan(spark: SparkSession, lake: Lake, topic: str, target: str, options: BackfillOptions) -> TopicPlan:
    from pyspark.sql import functions

    # Between two batches of a running ingest: a record below the progress is never written, so no offset may come late.
    records = lake.snapshot(topic)
    if options.bounded_partitions(topic):
        options.refuse_unknown_partitions(topic, [row.partition for row in records.select("partition").distinct().collect()])
    for condition in options.conditions(topic):
        records = records.where(condition)
    facts = records.groupBy("partition").agg(*map(functions.expr, FACTS)).collect()
    values = encoding(spark, lake.description, lake.schema(topic))
    return TopicPlan(
        topic,
        target,
        records=sum(row.records for row in facts),
        partitions=max((row.partition for row in facts), default=0) + 1,
        first_timestamp_ms=min((row.first_ms for row in facts), default=None),
        offset_ranges={row.partition: (row.first_offset, row.last_offset + 1) for row in facts},
        frame=_sink_frame(records, target, options, values),
        encoding=values,
    )


def _sink_frame(records: DataFrame, target: str, options: BackfillOptions, values: Encoding) -> DataFrame:
    from pyspark.sql import functions

    keeps = options.partitions == "keep"
    return records.select(
        functions.col("topic").alias("source_topic"),
        functions.col("partition").alias("source_partition"),
        functions.col("offset").alias("source_offset"),
        functions.lit(target).alias("topic"),
        (functions.col("partition") if keeps else functions.lit(None).cast("int")).alias("partition"),
        "key",
        values.column.alias("value"),
        "headers",
        functions.expr("unix_millis(timestamp)").alias("timestamp_ms"),
    )


def _sink(options: BackfillOptions, lake: Lake, plans: list[TopicPlan]) -> SinkOptions:
    targets = {plan.target: options.create_partitions or plan.partitions for plan in plans}
    # The query that fills the lake stays the same as long as the offsets do.
    source_ids = {plan.topic: lake.description.query_id or "" for plan in plans}
    return SinkOptions(options.cluster, KIND, options.backfill_name, targets, source_ids=source_ids)


def _refuse_refilled_lake(options: BackfillOptions, sink: SinkOptions) -> None:
    """Refuses to go on from offsets of another lake: this one may have other records at the same offsets.

    Raises:
        PipelineError: a backfill of this name has written records of another lake.
        SinkInterrupted: no broker answers.
    """
    for (topic, partition), progress in sorted(transactional_sink.read_stored_progress(sink).items()):
        source_id = sink.source_ids.get(topic)
        if progress.source_id and source_id and progress.source_id != source_id:
            raise PipelineError(
                f"the backfill {sink.name} has written the records of {topic} partition {partition} below offset "
                f"{progress.next_offset} from another lake, or from {options.lake} before it was filled anew: give this backfill "
                "another --name, to write all records of the lake"
            )


def _write_through_outages(plan: TopicPlan, sink: SinkOptions, stop: StopRequest) -> WriteResult:
    """Writes a topic, again after each outage of the brokers.

    Raises:
        PipelineError: the brokers were away for `OUTAGE_S`, or answer and `MAX_IDLE_ATTEMPTS` attempts have made no progress.
    """
    position: dict[tuple[str, int], int] | None = None
    idle = 0
    while True:
        try:
            return transactional_sink.write(plan.frame, sink)
        except UnreachableError as error:
            now = _through_outage(lambda: transactional_sink.read_progress(sink), stop)
            idle = idle + 1 if now == position else 0
            position = now
            if idle >= MAX_IDLE_ATTEMPTS:
                raise PipelineError(f"{error}; see the broker's log, and end other runs of the backfill {sink.name}") from None


def _through_outage(call: Callable[[], Result], stop: StopRequest) -> Result:
    """Calls a function that needs the brokers until they answer.

    Raises:
        PipelineError: they were away for `OUTAGE_S`.
    """
    deadline_s = time.monotonic() + OUTAGE_S
    while True:
        try:
            return call()
        except UnreachableError:
            if time.monotonic() > deadline_s:
                raise
            if stop.wait(FIRST_DELAY_S):
                raise PipelineError(STOPPED) from None


def _warnings(cluster: Cluster, plans: list[TopicPlan]) -> list[str]:
    """Returns what the settings of the targets, which exist, do to the records."""
    settings = transactional_sink.topic_settings(cluster, [plan.target for plan in plans])
    return [warning for plan in plans for warning in target_warnings(plan.target, settings[plan.target], plan.first_timestamp_ms)]


def target_warnings(target: str, settings: Mapping[str, str], first_timestamp_ms: int | None) -> list[str]:
    """Returns what a topic with these settings does to records with old timestamps."""
    found = []
    if settings["message.timestamp.type"] == "LogAppendTime":
        found.append(
            f"the topic {target} has message.timestamp.type=LogAppendTime, so the records get the time of their append: "
            "set it to CreateTime to keep their timestamps"
        )
    retention_ms = int(settings["retention.ms"])
    if "delete" not in settings["cleanup.policy"] or retention_ms < 0 or first_timestamp_ms is None:
        return found
    if not found and first_timestamp_ms < time.time() * 1000 - retention_ms:
        first = datetime.fromtimestamp(first_timestamp_ms / 1000, UTC).date()
        found.append(
            f"the topic {target} deletes records that are older than retention.ms={retention_ms}, and the backfill begins with "
            f"{first}: raise retention.ms (-1: without limit) before the broker deletes them"
        )
    return found
