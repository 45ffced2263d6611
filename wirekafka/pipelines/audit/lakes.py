"""The lakes of an audit: their records, how far they have come, and their files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.audit.checkpoints import Checkpoint, read_checkpoint
from wirekafka.pipelines.audit.counts import Range, union
from wirekafka.pipelines.audit.offsets import Offsets, Place
from wirekafka.pipelines.lake.files import open_files
from wirekafka.pipelines.lake.lake import Lake, open_lake
from wirekafka.pipelines.lake.layout import table_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("topic", "partition", "offset", "timestamp")


@dataclass(slots=True)
class AuditedLake:
    """A lake, and how far it has come.

    Attributes:
        topics: the audited topics that it reads.
        checkpoint: None if no query has begun to fill it.
    """

    lake: Lake
    topics: Collection[str]
    checkpoint: Checkpoint | None

    @property
    def path(self) -> str:
        """The path of the lake."""
        return self.lake.path

    def reached(self, offsets: Offsets) -> dict[Place, Range]:
        """Returns the offsets that the lake has reached in the partitions of its topics; the range may be empty."""
        checkpoint = self.checkpoint or Checkpoint("", "")
        return {
            place: Range(checkpoint.first_offsets.get(place, 0), checkpoint.end_offsets.get(place, 0))
            for place in offsets
            if place.topic in self.topics
        }


def open_audited(spark: SparkSession, path: str, topics: Iterable[str]) -> AuditedLake:
    """Opens a lake; a query may fill it meanwhile.

    Raises:
        PipelineError: the path is no lake.
    """
    lake = open_lake(spark, path)
    description = lake.description
    if description.pattern is not None:
        names = {topic for topic in topics if re.fullmatch(description.pattern, topic)}
    else:
        names = set(description.topics) & set(topics)
    files = open_files(spark, lake.checkpoint)
    checkpoint = read_checkpoint(files, lake.checkpoint) if files.read("metadata") is not None else None
    return AuditedLake(lake, names, checkpoint)


def lake_records(audited: AuditedLake, dead_letters: DataFrame | None) -> DataFrame:
    """Returns topic, partition, offset and timestamp of the audited records of a lake, and of its dead letters.

    Args:
        audited: a lake that reads an audited topic at least.
        dead_letters: the records that could not be parsed, with the same columns; None without.
    """
    frames = [audited.lake.snapshot(topic).select(*COLUMNS) for topic in sorted(audited.topics)]
    return union(frames if dead_letters is None else [*frames, dead_letters.select(*COLUMNS)])


def table_files(spark: SparkSession, lake: Lake, topic: str) -> tuple[int, int]:
    """Returns the number of files of a topic's table, and their bytes; old files of a Delta table do not count."""
    if topic not in lake.topics():
        return 0, 0
    names = {path.rpartition("/")[2] for path in lake.snapshot(topic).inputFiles()}
    sizes: Mapping[str, Any] = open_files(spark, lake.path).sizes(table_directory(topic))
    found = [size for path, size in sizes.items() if path.rpartition("/")[2] in names]
    return len(found), sum(found)
