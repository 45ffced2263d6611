"""The tables of a lake as Parquet files, which Spark writes to an attempt's directory before a commit moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wirekafka.pipelines.lake import layout
from wirekafka.pipelines.lake.commits import Attempt, Change, CommitLog
from wirekafka.pipelines.lake.files import Files
from wirekafka.pipelines.lake.session_settings import changed_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WRITE_SETTINGS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Spark writes timestamps as INT96 otherwise, which has no statistics and which newer readers refuse."""


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

    def write_batch(self, frames: Sequence[DataFrame], query_id: str, batch_id: int) -> bool:
        """Adds records unless the batch was written before; returns whether it added them."""
        log = self._batches(query_id)
        log.settle()
        attempt = log.begin(batch_id)
        if attempt is None:
            return False
        for number, frame in enumerate(frames):
            with changed_settings(frame.sparkSession, WRITE_SETTINGS):
                frame.write.partitionBy("topic", "date").parquet(f"{self._path}/{attempt.data}/{number}")
        return log.commit(attempt, Change(added=self._staged(attempt)))

    def read(self, topic: str, schema: StructType) -> DataFrame:
        """Returns the records of a topic that has a table."""
        reader = self._spark.read.schema(schema).option("basePath", self._path)
        return reader.parquet(f"{self._path}/{layout.table_directory(topic)}").select(*schema.names)

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
