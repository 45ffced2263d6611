"""The tables of a lake as Parquet files, which Spark writes to an attempt's directory before a commit moves them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.lake import layout
from wirekafka.pipelines.lake.commits import Attempt, Change, CommitLog
from wirekafka.pipelines.lake.compaction import CompactionResult, Merge, commits_of, plan_merges
from wirekafka.pipelines.lake.files import Files
from wirekafka.pipelines.lake.session_settings import changed_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WRITE_SETTINGS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Spark writes timestamps as INT96 otherwise, which has no statistics and which newer readers refuse."""

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""A topic can have the name that Spark reads as null in `topic=NAME`."""

SNAPSHOT_TRIES = 20


class ParquetTables:
    """The Parquet files of a lake."""

    def __init__(self, spark: SparkSession, path: str, files: Files) -> None:
        self._spark = spark
        self._path = path
        self._files = files
        self._compactions = CommitLog(files, "compaction", layout.COMPACTIONS, layout.STAGING)

    def prepare(self) -> None:
        """Finishes the commits that killed writers have decided, and removes what else they have left."""
        self.settle()
        for log in self._logs():
            log.clean()

    def settle(self) -> None:
        """Finishes the commits that killed writers have decided."""
        for log in self._logs():
            log.settle()

    def write_batch(self, frames: Sequence[DataFrame], query_id: str, batch_id: int) -> None:
        """Adds records unless the batch was written before."""
        log = self._batches(query_id)
        log.settle()
        attempt = log.begin(batch_id)
        if attempt is None:
            return
        with self._abandoned_on_error(attempt):
            for number, frame in enumerate(frames):
                self._write(frame, attempt, number)
        log.commit(attempt, Change(added=self._staged(attempt)))

    def snapshot(self, topic: str, schema: StructType) -> DataFrame:
        """Returns the records of a topic between two commits: Spark lists the files when the frame is made.

        Raises:
            PipelineError: there was a commit during each of many listings.
        """
        for _ in range(SNAPSHOT_TRIES):
            before = self._last_commits()
            self.settle()
            frame = self.read(topic, schema)
            if self._last_commits() == before:
                return frame
        raise PipelineError(f"the lake {self._path} changes faster than its files are listed: try again, or stop its writer")

    def compact(self, topic: str, schema: Callable[[], StructType], target_bytes: int) -> CompactionResult:
        """Merges the small files of each date of a topic, unless another process does it now.

        The schema is asked for after the files are listed, so it has all of their columns.
        """
        result = CompactionResult()
        groups = list(commits_of(self._merges(topic, target_bytes)))
        for _ in groups:
            number = (self._compactions.last() or 0) + 1
            self.settle()
            # The files of a merge are looked up after the number is known: a compaction in between takes the number.
            group = next(commits_of(self._merges(topic, target_bytes)), [])
            if group:
                result += self._compact_group(number, group, schema())
        return result

    def read(self, topic: str, schema: StructType) -> DataFrame:
        """Returns the records of a topic that has a table."""
        return self._frame([layout.table_directory(topic)], schema)

    def _merges(self, topic: str, target_bytes: int) -> list[Merge]:
        return plan_merges(self._files.sizes(layout.table_directory(topic)), target_bytes)

    def _compact_group(self, number: int, group: Sequence[Merge], schema: StructType) -> CompactionResult:
        attempt = self._compactions.begin(number)
        if attempt is None:
            return CompactionResult()
        with self._abandoned_on_error(attempt):
            self._write_merged(attempt, group, schema)
        added, removed = self._staged(attempt), [path for merge in group for path in merge.files]
        if not self._compactions.commit(attempt, Change(added, removed)):
            return CompactionResult()
        return CompactionResult(len(removed), len(added))

    def _write_merged(self, attempt: Attempt, group: Sequence[Merge], schema: StructType) -> None:
        order = ("topic", "date", "partition", "offset")
        whole = [path for merge in group if merge.output_count == 1 for path in merge.files]
        if whole:
            self._write(self._frame(whole, schema).repartition("date").sortWithinPartitions(*order), attempt, 0)
        for index, merge in enumerate(merge for merge in group if merge.output_count > 1):
            ranges = self._frame(merge.files, schema).repartitionByRange(merge.output_count, "partition", "offset")
            self._write(ranges.sortWithinPartitions(*order), attempt, index + 1)

    @contextmanager
    def _abandoned_on_error(self, attempt: Attempt) -> Iterator[None]:
        """Deletes an undecided attempt if its files cannot be written, for example on a full disk."""
        try:
            yield
        except BaseException:
            self._files.delete(attempt.directory)
            raise

    def _frame(self, paths: Sequence[str], schema: StructType) -> DataFrame:
        from pyspark.sql import functions

        reader = self._spark.read.schema(schema).option("basePath", self._path)
        frame = reader.parquet(*(_literal(f"{self._path}/{path}") for path in paths))
        return frame.withColumn("topic", functions.coalesce("topic", functions.lit(NULL_PARTITION))).select(*schema.names)

    def _write(self, frame: DataFrame, attempt: Attempt, number: int) -> None:
        with changed_settings(frame.sparkSession, WRITE_SETTINGS):
            frame.write.partitionBy("topic", "date").parquet(f"{self._path}/{attempt.data}/{number}")

    def _last_commits(self) -> list[int | None]:
        return [log.last() for log in self._logs()]

    def _logs(self) -> list[CommitLog]:
        return [*map(self._batches, self._files.names(layout.BATCHES)), self._compactions]

    def _batches(self, query_id: str) -> CommitLog:
        return CommitLog(self._files, query_id, f"{layout.BATCHES}/{query_id}", layout.STAGING)

    def _staged(self, attempt: Attempt) -> dict[str, str]:
        """Returns the files that Spark has written for an attempt, and their places in the tables."""
        staged = {}
        for path in self._files.sizes(attempt.data):
            _, table_path = path.removeprefix(f"{attempt.data}/").split("/", 1)
            staged[path] = table_path
        return staged


def _literal(path: str) -> str:
    """Returns the pattern that matches only this path, because Spark reads the paths of files as patterns.

    Source: org.apache.hadoop.fs.GlobPattern
    """
    return re.sub(r"([][{}*?\\])", r"\\\1", path)
