"""The driver's part of the sink: it prepares the topics, and lets Spark run the writers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.failures import explained
from wirekafka.pipelines.transactional_sink.delivery import RESULT_SCHEMA, Plan, write_partitions
from wirekafka.pipelines.transactional_sink.options import SinkOptions
from wirekafka.pipelines.transactional_sink.rows import COLUMNS
from wirekafka.pipelines.transactional_sink.topics import prepare_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MIN_TASKS = 8
"""With a few more tasks than cores, two large source partitions seldom fall into one task."""


@dataclass(slots=True, frozen=True)
class PartitionResult:
    """What one call of `write` did with one source partition.

    Attributes:
        written: the number of records that it wrote.
        skipped: the number of records that were written before.
        next_offset: the first source offset that is not written.
    """

    source_topic: str
    source_partition: int
    written: int
    skipped: int
    next_offset: int


@dataclass(slots=True, frozen=True)
class WriteResult:
    """What one call of `write` did."""

    partitions: list[PartitionResult]

    @property
    def written(self) -> int:
        """The number of records that were written."""
        return sum(each.written for each in self.partitions)

    @property
    def skipped(self) -> int:
        """The number of records that were written before."""
        return sum(each.skipped for each in self.partitions)


def write(frame: DataFrame, sink: SinkOptions) -> WriteResult:
    """Writes each row of a frame to its topic exactly once, however often the frame, or a later one, has the same rows.

    The frame has the columns `source_topic`, `source_partition`, `source_offset`, `topic`, `partition` (null: chosen by the hash
    of the key, as Kafka's Java client does, or at random without a key), `key`, `value`, `headers` (array of struct of `key` and
    `value`) and `timestamp_ms` (null: now). A row whose source offset is below the sink's progress is skipped, so the frames of
    one sink have ascending source offsets in each source partition; the offsets may have gaps.

    Durability: on return, all rows are in committed transactions.

    Raises:
        PipelineError: a target topic is missing, or refuses a record, or a source topic was created again.
        UnreachableError: the brokers did not answer, or another run took over; write the frame again.
    """
    _check_columns(frame)
    plan = Plan(sink, prepare_topics(sink))
    tasks = max(int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions")), MIN_TASKS)
    source = ("source_topic", "source_partition")
    sorted_rows = (
        frame.selectExpr(*(f"CAST({name} AS {kind}) AS {name}" for name, kind in COLUMNS.items()))
        .repartition(tasks, *source)
        .sortWithinPartitions(*source, "source_offset")
    )
    written = sorted_rows.mapInArrow(partial(write_partitions, plan), RESULT_SCHEMA)
    with explained():
        rows = written.collect()
    return WriteResult([PartitionResult(**row.asDict()) for row in rows])


def _check_columns(frame: DataFrame) -> None:
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise PipelineError(f"the frame has no column {', '.join(missing)}; it has {', '.join(frame.columns)}")
