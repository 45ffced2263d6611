"""Checks a lake: counts its rows, finds the offsets that it lacks, and looks up what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.audit.checkpoints import Checkpoint, read_checkpoint
from wirekafka.pipelines.audit.counts import union
from wirekafka.pipelines.audit.offsets import Place
from wirekafka.pipelines.check.options import CheckOptions
from wirekafka.pipelines.check.report import NAMED_OFFSETS, CheckReport, Evidence, Named, PartitionReport, explain
from wirekafka.pipelines.check.sources import ABORTED, COMMITTED, CONTROL, NO_OFFSETS, OFFSETS, Brokers, Segments, Source, Spans
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import cluster_id
from wirekafka.pipelines.lake.description import refuse_other_cluster
from wirekafka.pipelines.lake.files import open_files
from wirekafka.pipelines.lake.lake import Lake, open_lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION = ("topic", "partition")
FILE_WAS_DELETED = "FILE_NOT_EXIST"
"""Spark's error class for a file that was deleted after it was listed."""
TRIES = 4
"""How often a check begins again when the lake changes under it."""


def describe(spark: SparkSession, options: CheckOptions) -> dict[str, object]:
    """Returns what a check would read.

    Raises:
        PipelineError: the path is no lake, or the brokers or the data directories are not those that its records came from.
    """
    lake = open_lake(spark, options.lake)
    topics = _topics(lake, _checkpoint(spark, lake))
    _source(spark, options, lake, topics)
    return {
        "lake": options.lake,
        "topics": topics,
        "brokers": "none" if options.cluster is None else options.cluster.bootstrap,
        "data directories": [str(path) for path in options.data_dirs],
        "writes": "nothing, but it finishes what a killed ingest has decided",
    }


def run_check(spark: SparkSession, options: CheckOptions) -> CheckReport:
    """Compares a lake with the brokers that its records came from, or with their segment files.

    The ingest may run meanwhile: the check covers the batches that were finished when it began. The rows of a later batch are
    counted only, because its dead letters may not be written yet.

    Raises:
        PipelineError: the path is no lake, it was compacted meanwhile again and again, or the brokers or the data directories are
            not those that its records came from.
    """
    for _ in range(TRIES):
        report = _attempt(spark, options)
        if report is not None:
            return report
    raise PipelineError(f"the lake {options.lake} changed during the check: try again, or stop the ingest")


def _attempt(spark: SparkSession, options: CheckOptions) -> CheckReport | None:
    """Returns the report; None if the lake was compacted, or its first batch began, before it was read."""
    from py4j.protocol import Py4JJavaError

    lake = open_lake(spark, options.lake)
    checkpoint = _checkpoint(spark, lake)
    topics = _topics(lake, checkpoint)
    source = _source(spark, options, lake, topics)
    frames = [lake.snapshot(topic).select(*OFFSETS) for topic in topics]
    # The rows were listed after the checkpoint was read, so all rows of its batches are there, and maybe some of a later one.
    begun = _checkpoint(spark, lake)
    if checkpoint.query_id != begun.query_id:
        return None
    rows = (union(frames) if frames else spark.createDataFrame([], NO_OFFSETS)).persist()
    letters = None if source is None else source.dead_letters().persist()
    try:
        reports = _reports(_Offsets(rows, letters, _ends(checkpoint, begun)), checkpoint, source)
    except Py4JJavaError as error:
        if FILE_WAS_DELETED in str(error):
            return None
        raise
    finally:
        rows.unpersist()
        if letters is not None:
            letters.unpersist()
    return CheckReport(options.lake, reports, options.accept_deleted)


def _topics(lake: Lake, checkpoint: Checkpoint) -> list[str]:
    return sorted({*lake.topics(), *(place.topic for place in checkpoint.end_offsets)})


def _ends(checkpoint: Checkpoint, begun: Checkpoint) -> dict[Place, int]:
    """Returns where the check ends in each partition that the query has read; 0 if only a later batch has read it."""
    return {**dict.fromkeys(begun.planned_offsets, 0), **checkpoint.end_offsets}


def _reports(found: _Offsets, checkpoint: Checkpoint, source: Source | None) -> list[PartitionReport]:
    reports = found.partitions(checkpoint)
    evidence = {place: Evidence(each.end_offset - each.begin_offset - found.distinct[place]) for place, each in reports.items()}
    incomplete = {
        place: (reports[place].begin_offset, reports[place].end_offset) for place in reports if evidence[place].missing_count
    }
    if source is not None and incomplete:
        _look_up(source, found, incomplete, evidence)
    for place, each in reports.items():
        explain(each, evidence[place])
    return [reports[place] for place in sorted(reports)]


def _checkpoint(spark: SparkSession, lake: Lake) -> Checkpoint:
    """Returns the progress of the query that fills the lake; without any, if the checkpoint was deleted."""
    files = open_files(spark, lake.checkpoint)
    if files.read("metadata") is None:
        return Checkpoint(lake.checkpoint, "")
    return read_checkpoint(files, lake.checkpoint)


def _source(spark: SparkSession, options: CheckOptions, lake: Lake, topics: list[str]) -> Source | None:
    if options.cluster is not None:
        refuse_other_cluster(lake.path, lake.description, cluster_id(options.cluster), options.cluster.bootstrap)
    if options.data_dirs:
        return Segments(spark, options.data_dirs, topics, lake.description)
    return Brokers(spark, options.cluster, topics, lake.description) if options.cluster is not None else None


class _Offsets:
    """The offsets in a lake.

    Attributes:
        rows: topic, partition and offset of each row.
        dead_letters: the same of each dead letter; None if they are not known.
        distinct: the number of offsets of each partition that have a row, as far as the check goes.
    """

    def __init__(self, rows: DataFrame, dead_letters: DataFrame | None, ends: Mapping[Place, int]) -> None:
        self.rows = rows
        self.dead_letters = dead_letters
        counted = rows.groupBy(*OFFSETS).count()
        self._doubled = counted.where("count > 1").select(*OFFSETS)
        if dead_letters is not None:
            letters = dead_letters.groupBy(*OFFSETS).count()
            both = letters.join(rows, list(OFFSETS), "left_semi")
            self._doubled = self._doubled.unionAll(letters.where("count > 1").unionAll(both).select(*OFFSETS)).distinct()
        self._totals = _totals(counted, ends)
        self.distinct: dict[Place, int] = {}

    def partitions(self, checkpoint: Checkpoint) -> dict[Place, PartitionReport]:
        """Returns a report for each partition, with its range, its number of rows, and what is doubled."""
        doubled = named(self._doubled)
        reports = {}
        for place in {*self._totals, *checkpoint.end_offsets}:
            row = self._totals.get(place)
            ranges = [(row.first, row.last + 1)] if row is not None and row.distinct else []
            if place in checkpoint.end_offsets:
                ranges.append((checkpoint.first_offsets.get(place, 0), checkpoint.end_offsets[place]))
            begin, end = (min(first for first, _ in ranges), max(last for _, last in ranges)) if ranges else (0, 0)
            self.distinct[place] = row.distinct if row is not None else 0
            count, later = (row.rows, row.later) if row is not None else (0, 0)
            named_doubled = doubled.get(place, Named())
            reports[place] = PartitionReport(*place, begin, end, count, later_count=later, doubled=named_doubled)
        return reports


def _totals(counted: DataFrame, ends: Mapping[Place, int]) -> dict[Place, Any]:
    """Returns the number of rows and offsets of each partition before its end, the first, the last, and the rows after the end.

    Args:
        counted: the offsets that have rows, with the number of their rows.
        ends: where the check ends; without one, it covers the whole partition.
    """
    from pyspark.sql import functions

    ended = counted.join(_ends_frame(counted.sparkSession, ends), list(PARTITION), "left")
    covered = ended.selectExpr("*", "coalesce(offset < end, true) AS is_covered")
    totals = covered.groupBy(*PARTITION).agg(
        functions.expr("coalesce(sum(count) FILTER (WHERE is_covered), 0) AS rows"),
        functions.expr("coalesce(sum(count) FILTER (WHERE NOT is_covered), 0) AS later"),
        functions.expr("count_if(is_covered) AS distinct"),
        functions.expr("min(offset) FILTER (WHERE is_covered) AS first"),
        functions.expr("max(offset) FILTER (WHERE is_covered) AS last"),
    )
    return {Place(row.topic, row.partition): row for row in totals.collect()}


def _look_up(source: Source, found: _Offsets, spans: Spans, evidence: Mapping[Place, Evidence]) -> None:
    """Adds to the evidence of partitions what the source has of the offsets that the lake lacks."""
    assert found.dead_letters is not None
    spark = found.rows.sparkSession
    starts = source.log_start_offsets()
    missing = sorted(spans.keys() - starts.keys())
    if missing:
        raise PipelineError("the partition {} {} of the lake is missing in what it is compared with".format(*missing[0]))
    bounds = _bounds(spark, spans)
    letters = _in(found.dead_letters, bounds).distinct().join(found.rows, list(OFFSETS), "left_anti").persist()
    deleted = _bounds(spark, {place: (begin, max(begin, starts[place])) for place, (begin, _) in spans.items()})
    known = _counts(_in(found.rows.unionAll(letters).distinct(), deleted))
    absent = source.kinds(_in(source.records(spans), bounds).join(found.rows, list(OFFSETS), "left_anti")).persist()
    committed = absent.where(f"kind = '{COMMITTED}'").select(*OFFSETS)
    lost, dead_letters = named(committed.join(letters, list(OFFSETS), "left_anti")), _counts(letters)
    for place, (begin, end) in spans.items():
        each = evidence[place]
        each.log_start_offset = starts[place]
        each.deleted_count = max(0, min(starts[place], end) - begin - known.get(place, 0))
        each.lost, each.dead_letter_count = lost.get(place, Named()), dead_letters.get(place, 0)
    if source.tells_others:
        control, aborted = (_counts(absent.where(f"kind = '{kind}'")) for kind in (CONTROL, ABORTED))
        for place in spans:
            evidence[place].control_count, evidence[place].aborted_count = control.get(place, 0), aborted.get(place, 0)
    absent.unpersist()
    letters.unpersist()


def named(offsets: DataFrame) -> dict[Place, Named]:
    """Returns how many offsets a frame has of each partition, and the first of them."""
    from pyspark.sql import Window, functions

    offsets = offsets.persist()
    try:
        counts = _counts(offsets)
        order = Window.partitionBy(*PARTITION).orderBy("offset")
        ranked = offsets.withColumn("rank", functions.row_number().over(order)) if counts else None
        rows = ranked.where(functions.col("rank") <= NAMED_OFFSETS).collect() if ranked is not None else []
    finally:
        offsets.unpersist()
    return {
        place: Named(count, sorted(row.offset for row in rows if (row.topic, row.partition) == place))
        for place, count in counts.items()
    }


def _counts(offsets: DataFrame) -> dict[Place, int]:
    """Returns the number of rows of each partition."""
    return {Place(row.topic, row.partition): row["count"] for row in offsets.groupBy(*PARTITION).count().collect()}


def _in(offsets: DataFrame, bounds: DataFrame) -> DataFrame:
    """Returns the offsets within the bounds of their partitions."""
    return offsets.join(bounds, list(PARTITION)).where("offset >= begin AND offset < end").drop("begin", "end")


def _ends_frame(spark: SparkSession, ends: Mapping[Place, int]) -> DataFrame:
    from pyspark.sql import functions

    rows = [(*place, end) for place, end in ends.items()]
    return functions.broadcast(spark.createDataFrame(rows, "topic string, partition int, end bigint"))


def _bounds(spark: SparkSession, spans: Mapping[Place, tuple[int, int]]) -> DataFrame:
    from pyspark.sql import functions

    rows: Iterable[tuple[str, int, int, int]] = [(*place, *span) for place, span in spans.items()]
    return functions.broadcast(spark.createDataFrame(rows, "topic string, partition int, begin bigint, end bigint"))
