"""Counts records in Spark, by topic, partition and minute: those of the brokers, of a lake, and of the producers' claims.

Rules of this file: records stay in Spark; the counts of minutes come to the driver. A minute is that of the record's timestamp in
UTC, whatever the time zone of the session. A record without a timestamp, from a message format before Kafka 0.10, has no minute.

Source: https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wirekafka.pipelines.audit.claims import MINUTE_MS
from wirekafka.pipelines.audit.offsets import Offsets, Place
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.lake.layout import HEADERS_TYPE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MOST_MINUTES = 2_000_000
"""So many counts of minutes fit into the driver's memory."""

NO_TIMESTAMP_MS = -1


class Minute(NamedTuple):
    """A minute of a partition; of a topic if the partition is None."""

    topic: str
    partition: int | None
    minute_ms: int | None


def order(minute: Minute) -> tuple[str, int, int]:
    """Returns a key that sorts by topic, partition and minute; None comes first."""
    return (minute.topic, -1 if minute.partition is None else minute.partition, minute.minute_ms or 0)


class Range(NamedTuple):
    """Offsets from the first up to the end, excluded."""

    first_offset: int
    end_offset: int


@dataclass(slots=True)
class BrokerCount:
    """The committed records of the brokers in one minute of a partition.

    Attributes:
        first_offset: the least offset of these records.
        within: for each lake, the number of the records whose offsets it has reached.
        beyond: for each lake, the number of the records whose offsets it has not reached.
    """

    records: int
    key_bytes: int
    value_bytes: int
    first_offset: int
    within: tuple[int, ...] = ()
    beyond: tuple[int, ...] = ()


@dataclass(slots=True)
class LakeCount:
    """The records of a lake in one minute of a partition.

    Attributes:
        records: all rows.
        duplicates: the rows whose offset another row has.
        within: the different offsets among those that the lake has reached and the brokers still have.
        deleted: the different offsets before the first one that the brokers still have.
    """

    records: int = 0
    duplicates: int = 0
    within: int = 0
    deleted: int = 0


@dataclass(slots=True)
class ClaimCount:
    """What producers claim of one minute."""

    records: int
    size_bytes: int


@dataclass(slots=True)
class Claims:
    """What producers claim.

    Attributes:
        minutes: the sums of the claims; in a topic with a claim without a partition, all claims are of the topic.
        malformed: the number of records that are no claims.
    """

    minutes: dict[Minute, ClaimCount]
    malformed: int


class Times(NamedTuple):
    """The timestamps of the records that are counted: from the first up to the second, excluded; None is no bound."""

    since_ms: int | None = None
    until_ms: int | None = None


def read_brokers(spark: SparkSession, cluster: Cluster, offsets: Offsets, *, has_headers: bool = False) -> DataFrame:
    """Returns the committed records of partitions, through Spark's connector; with their headers if `has_headers` is true."""
    ranges = {place: each for place, each in offsets.items() if each.first_offset < each.last_stable_offset}
    if not ranges:
        return spark.createDataFrame(
            [],
            f"topic string, partition int, offset long, timestamp timestamp, key binary, value binary, headers {HEADERS_TYPE}",
        )
    starts = by_topic({place: each.first_offset for place, each in ranges.items()})
    ends = by_topic({place: each.last_stable_offset for place, each in ranges.items()})
    reader = spark.read.format("kafka").options(**cluster.spark_options()).option("kafka.isolation.level", "read_committed")
    return (
        reader.option("assign", json.dumps({topic: [int(number) for number in numbers] for topic, numbers in starts.items()}))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("minPartitions", str(spark.sparkContext.defaultParallelism))
        .option("includeHeaders", has_headers)
        .load()
    )


def by_topic(offsets: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    """Returns offsets in the form that Spark's connector takes: {"topic": {"partition": offset}}."""
    found: dict[str, dict[str, int]] = {}
    for place, offset in offsets.items():
        found.setdefault(place.topic, {})[str(place.partition)] = offset
    return found


def read_data_dirs(spark: SparkSession, data_dirs: Sequence[Path], topics: Iterable[str]) -> DataFrame:
    """Returns the committed records of data directories, through the data source `wirekafka-log`."""
    from wirekafka.pipelines import register
    from wirekafka.pipelines.audit.offsets import places_in

    register(spark)
    frames = []
    for directory in data_dirs:
        present = sorted({place.topic for place in places_in([directory])} & set(topics))
        if present:
            reader = spark.read.format("wirekafka-log").option("isolation", "committed").option("topic", ",".join(present))
            frames.append(reader.load(str(directory.resolve())))
    return union(frames)


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Returns the rows of all frames, which have the same columns; there is one frame at least."""
    first, *others = frames
    for other in others:
        first = first.unionByName(other)
    return first


def count_brokers(
    records: DataFrame, offsets: Offsets, lakes: Sequence[Mapping[Place, Range]], times: Times
) -> dict[Minute, BrokerCount]:
    """Counts the records of the brokers.

    Args:
        records: at least topic, partition, offset, timestamp, key and value.
        offsets: the partitions and the offsets that are counted.
        lakes: for each lake, the offsets that it has reached, in the partitions that it reads.
        times: the timestamps that are counted.

    Raises:
        PipelineError: there are too many minutes.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    counted = {place: Range(each.first_offset, each.last_stable_offset) for place, each in offsets.items()}
    rows = _in_minutes(_with_ranges(records, [counted, *lakes]), times).where(_is_in(0))
    within = [F.count_if(_is_in(number)) for number in range(1, len(lakes) + 1)]
    beyond = [F.count_if(F.col("offset") >= F.col(f"end_{number}")) for number in range(1, len(lakes) + 1)]
    counts = rows.groupBy("topic", "partition", "minute_ms").agg(
        F.count("*"), _bytes_of("key"), _bytes_of("value"), F.min("offset"), *within, *beyond
    )
    found = {}
    for topic, partition, minute_ms, count, key_bytes, value_bytes, first_offset, *of_lakes in _collect(counts):
        reached, missed = of_lakes[: len(lakes)], of_lakes[len(lakes) :]
        each = BrokerCount(count, key_bytes, value_bytes, first_offset, tuple(reached), tuple(missed))
        found[Minute(topic, partition, minute_ms)] = each
    return found


def count_lake(
    records: DataFrame, reached: Mapping[Place, Range], starts: Mapping[Place, int], times: Times
) -> dict[Minute, LakeCount]:
    """Counts the records of a lake in the partitions of `starts`.

    Args:
        records: at least topic, partition, offset and timestamp.
        reached: the offsets that the lake has reached.
        starts: the first offset that the brokers have of each partition.
        times: the timestamps that are counted.

    Raises:
        PipelineError: there are too many minutes.
    """
    from pyspark.sql import functions as F  # noqa: N812

    known = {place: Range(start, start) for place, start in starts.items()}
    rows = _in_minutes(_with_ranges(records, [known, reached]), times).where("first_0 IS NOT NULL")
    zone = F.when(F.col("offset") < F.col("first_0"), "deleted").when(_is_in(1), "within").otherwise("beyond")
    counts = rows.groupBy("topic", "partition", "minute_ms", zone.alias("zone")).agg(F.count("*"), F.count_distinct("offset"))
    found: dict[Minute, LakeCount] = {}
    for topic, partition, minute_ms, zone_name, count, distinct in _collect(counts):
        each = found.setdefault(Minute(topic, partition, minute_ms), LakeCount())
        each.records += count
        each.duplicates += count - distinct
        each.within += distinct if zone_name == "within" else 0
        each.deleted += distinct if zone_name == "deleted" else 0
    return found


MOST_CLAIMED = 10**12
"""A claim of more records, or of more bytes, is malformed: sums of such claims would overflow."""

LATEST_MS = 8_640_000_000_000_000
"""A claim of a minute further from 1970 is malformed: no clock shows such a time."""

CLAIM_FIELDS = "id string, sequence long, topic string, partition int, minute_ms long, count long, size_bytes long"


def count_claims(records: DataFrame, topics: Iterable[str], times: Times) -> Claims:
    """Adds the claims of some topics up; of the claims with the same id, the one with the greatest sequence counts.

    Args:
        records: the records of the topic of the claims: at least partition, offset and value.
        topics: the topics whose claims are wanted.
        times: the timestamps that are counted.

    Raises:
        PipelineError: there are too many minutes.
    """
    from pyspark.sql import functions as F  # noqa: N812

    options = {"columnNameOfCorruptRecord": "malformed"}
    claim = F.from_json(F.col("value").cast("string"), f"{CLAIM_FIELDS}, malformed string", options)
    required = ("id", "sequence", "topic", "minute_ms", "count", "size_bytes")
    is_claim = F.lit(True)
    for name in required:
        is_claim &= F.col(f"claim.{name}").isNotNull()
    is_claim &= F.col("claim.malformed").isNull() & F.col("claim.minute_ms").between(-LATEST_MS, LATEST_MS)
    is_claim &= F.col("claim.count").between(0, MOST_CLAIMED) & F.col("claim.size_bytes").between(0, MOST_CLAIMED)
    parsed = records.where("value IS NOT NULL").select(
        F.col("partition").alias("p"), F.col("offset").alias("o"), claim.alias("claim")
    )
    malformed = parsed.where(~F.coalesce(is_claim, F.lit(False))).count()
    rank = F.struct("claim.sequence", "p", "o")
    last = parsed.where(is_claim).groupBy("claim.id").agg(F.max_by("claim", rank).alias("claim")).select("claim.*")
    wanted = last.where(F.col("topic").isin(*topics)).withColumn("minute_ms", _floor_to_minute(F.col("minute_ms")))
    wanted = _between(wanted, times)
    counts = wanted.groupBy("topic", "partition", "minute_ms").agg(F.sum("count"), F.sum("size_bytes"))
    return Claims(_merged({Minute(*row[:3]): ClaimCount(*row[3:]) for row in _collect(counts)}), malformed)


def _merged(claims: dict[Minute, ClaimCount]) -> dict[Minute, ClaimCount]:
    """Returns the claims, added up by topic and minute in the topics with a claim without a partition."""
    without_partition = {minute.topic for minute in claims if minute.partition is None}
    found: dict[Minute, ClaimCount] = {}
    for minute, claim in claims.items():
        place = minute._replace(partition=None) if minute.topic in without_partition else minute
        total = found.setdefault(place, ClaimCount(0, 0))
        total.records += claim.records
        total.size_bytes += claim.size_bytes
    return found


def _with_ranges(records: DataFrame, ranges: Sequence[Mapping[Place, Range]]) -> DataFrame:
    """Adds the columns first_N and end_N: the range of the record's partition in the Nth mapping, null if it has none."""
    from pyspark.sql import functions as F  # noqa: N812

    places = sorted({place for each in ranges for place in each})
    names = [f"{name}_{number} long" for number in range(len(ranges)) for name in ("first", "end")]
    rows: list[Any] = [(*place, *(bound for each in ranges for bound in each.get(place, (None, None)))) for place in places]
    frame = records.sparkSession.createDataFrame(rows, ", ".join(["topic string", "partition int", *names]))
    return records.join(F.broadcast(frame), ["topic", "partition"])


def _is_in(number: int) -> Column:
    """Returns whether a record's offset is in the Nth range."""
    from pyspark.sql import functions as F  # noqa: N812

    return (F.col("offset") >= F.col(f"first_{number}")) & (F.col("offset") < F.col(f"end_{number}"))


def _in_minutes(records: DataFrame, times: Times) -> DataFrame:
    """Adds the column minute_ms, and leaves out the records outside of the times."""
    from pyspark.sql import functions as F  # noqa: N812

    time_ms = F.unix_millis("timestamp")
    return _between(records.withColumn("minute_ms", F.when(time_ms != NO_TIMESTAMP_MS, _floor_to_minute(time_ms))), times)


def _between(rows: DataFrame, times: Times) -> DataFrame:
    """Leaves out the rows whose minute_ms is outside of the times."""
    if times.since_ms is not None:
        rows = rows.where(f"minute_ms >= {times.since_ms}")
    if times.until_ms is not None:
        rows = rows.where(f"minute_ms < {times.until_ms}")
    return rows


def _floor_to_minute(time_ms: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.floor(time_ms / MINUTE_MS) * MINUTE_MS


def _bytes_of(column: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.sum(F.coalesce(F.length(column), F.lit(0)))


def _collect(counts: DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yields the rows.

    Raises:
        PipelineError: there are too many.
    """
    table = counts.limit(MOST_MINUTES + 1).toArrow()
    if table.num_rows > MOST_MINUTES:
        raise PipelineError(
            f"the records lie in more than {MOST_MINUTES} minutes of partitions: narrow --topic, --since or --until"
        )
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
