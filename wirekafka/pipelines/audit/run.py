"""Runs an audit.

How it works: the offsets that each place has reached are read first, from the place that is behind to the one that is ahead: the
lakes' checkpoints and the end of the claims, then the ends of the partitions. So a record that a lake or a claim knows is among
those that the brokers are asked for. Then Spark counts each place once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from wirekafka.pipelines.audit.checkpoints import Checkpoint, query_lags, read_checkpoint
from wirekafka.pipelines.audit.claims import MINUTE_MS
from wirekafka.pipelines.audit.compare import Counts, LakeCounts, Rules, compare
from wirekafka.pipelines.audit.counts import (
    Claims,
    Times,
    count_brokers,
    count_claims,
    count_lake,
    read_brokers,
    read_data_dirs,
)
from wirekafka.pipelines.audit.groups import group_lags
from wirekafka.pipelines.audit.lakes import AuditedLake, lake_records, open_audited, table_files
from wirekafka.pipelines.audit.offsets import (
    Offsets,
    offsets_of_cluster,
    offsets_of_data_dirs,
    places_in,
    topic_configs,
)
from wirekafka.pipelines.audit.options import AuditOptions, format_minute, selected
from wirekafka.pipelines.audit.report import AuditReport, LakeSize, topic_sizes
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import cluster_id, partition_counts
from wirekafka.pipelines.lake.description import refuse_other_cluster
from wirekafka.pipelines.lake.files import open_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wirekafka.pipelines.kafka import Cluster


def describe(options: AuditOptions) -> dict[str, object]:
    """Returns what an audit reads, by name.

    Raises:
        PipelineError: the options cannot be used, no broker answers, or a topic does not exist.
    """
    options.check()
    partitions = _partitions(options)
    where = ", ".join(str(path) for path in options.data_dirs) or (options.cluster.bootstrap if options.cluster else "")
    times = [format_minute(options.since_ms) or "the first record", format_minute(options.until_ms) or "the last record"]
    return {
        "brokers": options.cluster.bootstrap if options.cluster is not None else "none",
        "records from": where,
        "topics": [f"{topic}: {count} partition{'s' if count != 1 else ''}" for topic, count in partitions.items()],
        "claims": options.claims_topic or "none",
        "lakes": list(options.lakes),
        "checkpoints": list(options.checkpoints),
        "times": " to ".join(times),
    }


def run_audit(spark: SparkSession, options: AuditOptions) -> AuditReport:
    """Counts and compares the records of the producers' claims, of the brokers and of lakes.

    Args:
        spark: a session with the Kafka connector, unless only data directories are read; with Delta's for Delta lakes.
        options: what is read.

    Raises:
        PipelineError: the options cannot be used, or a place cannot be read.
    """
    read = describe(options)
    now_ms = int(time.time() * 1000)
    topics = list(_partitions(options))
    lakes, checkpoints = open_places(spark, options, topics)
    claims = _claim_records(spark, options)
    offsets = _offsets(options)
    counts, malformed = _count(spark, options, offsets, lakes, claims)
    grace_ms = int(options.grace_s * 1000)
    rules = Rules(_compacted_topics(options.cluster, topics), now_ms - grace_ms - MINUTE_MS)
    groups = group_lags(options.cluster, offsets) if options.cluster is not None else []
    return AuditReport(
        audited_at_ms=now_ms,
        read=read,
        counts=counts,
        findings=compare(counts, rules),
        topics=topic_sizes(counts),
        lakes=_lake_sizes(spark, lakes, counts),
        groups=groups,
        queries=[lag for checkpoint in checkpoints for lag in query_lags(checkpoint, offsets)],
        notes=_notes(options, malformed, checkpoints, topics),
    )


def open_places(spark: SparkSession, options: AuditOptions, topics: Sequence[str]) -> tuple[list[AuditedLake], list[Checkpoint]]:
    """Opens the lakes, and reads the checkpoints, those of the lakes too.

    Raises:
        PipelineError: a path is no lake or no checkpoint, or a lake was filled from another cluster.
    """
    lakes = [open_audited(spark, path, topics) for path in options.lakes]
    if options.cluster is not None and lakes:
        found = cluster_id(options.cluster)
        for lake in lakes:
            refuse_other_cluster(lake.path, lake.lake.description, found, options.cluster.bootstrap)
    checkpoints = [lake.checkpoint for lake in lakes if lake.checkpoint is not None]
    checkpoints += [read_checkpoint(open_files(spark, path), path) for path in options.checkpoints]
    return lakes, checkpoints


def _partitions(options: AuditOptions) -> dict[str, int]:
    """Returns the number of partitions of each audited topic."""
    if options.cluster is not None:
        known, where = partition_counts(options.cluster), options.cluster.bootstrap
    else:
        where = ", ".join(str(path) for path in options.data_dirs)
        known = {}
        for place in places_in(options.data_dirs):
            known[place.topic] = known.get(place.topic, 0) + 1
    if options.claims_topic is not None and options.claims_topic not in known:
        raise PipelineError(f"unknown topic {options.claims_topic} in {where}: --claims names a topic that producers write to")
    return {topic: known[topic] for topic in selected(options.topics, known, where) if topic != options.claims_topic}


def _offsets(options: AuditOptions) -> Offsets:
    partitions = _partitions(options)
    if options.cluster is None:
        return offsets_of_data_dirs(options.data_dirs, partitions, options.since_ms)
    offsets = offsets_of_cluster(options.cluster, partitions, options.since_ms)
    if options.data_dirs:
        present = set(places_in(options.data_dirs))
        missing = sorted(place for place in offsets if place not in present)
        if missing:
            names = ", ".join(f"{place.topic}-{place.partition}" for place in missing[:5])
            raise PipelineError(
                f"the data directories lack {len(missing)} audited partitions ({names}): name all data directories of the"
                " cluster, or leave out --data-dir"
            )
    return offsets


def _claim_records(spark: SparkSession, options: AuditOptions) -> DataFrame | None:
    if options.claims_topic is None or options.cluster is None:
        return None
    partitions = {options.claims_topic: partition_counts(options.cluster)[options.claims_topic]}
    return read_brokers(spark, options.cluster, offsets_of_cluster(options.cluster, partitions, None))


def _count(
    spark: SparkSession, options: AuditOptions, offsets: Offsets, lakes: Sequence[AuditedLake], claim_records: DataFrame | None
) -> tuple[Counts, int]:
    """Returns the counts, and the number of malformed claims."""
    times = Times(options.since_ms, options.until_ms)
    topics = sorted({place.topic for place in offsets})
    claims = Claims({}, 0) if claim_records is None else count_claims(claim_records, topics, times)
    if options.data_dirs:
        records = read_data_dirs(spark, options.data_dirs, topics)
    elif options.cluster is not None:
        records = read_brokers(spark, options.cluster, offsets)
    reached = [lake.reached(offsets) for lake in lakes]
    brokers = count_brokers(records, offsets, reached, times)
    starts = {place: each.log_start_offset for place, each in offsets.items()}
    counted = []
    for lake, ranges in zip(lakes, reached, strict=True):
        minutes = (
            count_lake(lake_records(lake, _dead_letters(spark, options, lake)), ranges, starts, times) if lake.topics else {}
        )
        counted.append(LakeCounts(lake.path, lake.topics, minutes))
    return Counts(offsets, brokers, counted, None if claim_records is None else claims.minutes), claims.malformed


def _dead_letters(spark: SparkSession, options: AuditOptions, lake: AuditedLake) -> DataFrame | None:
    """Returns where the dead letters of a lake come from; None if there are none, or if their topic cannot be read."""
    from wirekafka.pipelines.ingest.dead_letters import origins

    topic, query_id = lake.lake.description.dead_letter_topic, lake.lake.description.query_id
    if topic is None:
        return None
    if options.cluster is None:
        is_present = topic in {place.topic for place in places_in(options.data_dirs)}
        return origins(read_data_dirs(spark, options.data_dirs, [topic]), query_id) if is_present else None
    counts = partition_counts(options.cluster)
    if topic not in counts:
        return None
    offsets = offsets_of_cluster(options.cluster, {topic: counts[topic]}, None)
    return origins(read_brokers(spark, options.cluster, offsets, has_headers=True), query_id)


def _compacted_topics(cluster: Cluster | None, topics: Iterable[str]) -> frozenset[str]:
    configs = topic_configs(cluster, topics) if cluster is not None else {}
    return frozenset(topic for topic, config in configs.items() if "compact" in config["cleanup.policy"])


def _lake_sizes(spark: SparkSession, lakes: Sequence[AuditedLake], counts: Counts) -> list[LakeSize]:
    sizes = []
    for lake, counted in zip(lakes, counts.lakes, strict=True):
        records = dict.fromkeys(sorted(lake.topics), 0)
        for minute, each in counted.minutes.items():
            records[minute.topic] += each.records
        sizes += [LakeSize(lake.path, topic, count, *table_files(spark, lake.lake, topic)) for topic, count in records.items()]
    return sizes


def _notes(options: AuditOptions, malformed: int, checkpoints: Sequence[Checkpoint], topics: Sequence[str]) -> list[str]:
    notes = []
    if malformed:
        notes.append(f"{malformed} records of the topic {options.claims_topic} are no claims; they were left out.")
    if options.cluster is None:
        notes.append("Without --bootstrap, no consumer groups are audited, and compacted topics are not known as such.")
    for checkpoint in checkpoints:
        others = sorted({place.topic for place in checkpoint.end_offsets} - set(topics))
        if others:
            notes.append(f"The query of {checkpoint.path} also reads topics that are not audited: {', '.join(others)}.")
    return notes
