"""Writes the results of a batch: into a Delta table, and as keyed upserts into a compacted topic.

Each batch is in the Delta table once, although a batch may run again after a crash: Delta remembers the query and the number of
the last batch that it took, and skips a batch that it has. The topic may get the same upserts twice, which changes no value.

Source: https://docs.delta.io/latest/delta-streaming.html#idempotent-table-writes-in-foreachbatch
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.flights import topics
from wirekafka.pipelines.kafka import Cluster

TRANSACTION = "spark.databricks.delta.write.txn"


@dataclass(slots=True, frozen=True)
class Table:
    """A table of results.

    Attributes:
        keys: the columns that identify a row.
        is_merged: a later batch may change a row; otherwise each row is written once.
        topic: the compacted topic of the upserts; None for none.
    """

    name: str
    columns: str
    keys: tuple[str, ...]
    is_merged: bool
    topic: str | None

    def column_names(self) -> list[str]:
        """Returns the names of the columns."""
        return [column.split()[0] for column in self.columns.split(", ")]


DELAYS = Table(
    "delays",
    "airport STRING, hour TIMESTAMP, departures BIGINT, departure_delay_minutes DOUBLE, delayed_departures BIGINT, "
    "arrivals BIGINT, arrival_delay_minutes DOUBLE, cancellations BIGINT",
    ("airport", "hour"),
    True,
    topics.DELAYS,
)
DEPARTURES = Table(
    "departures",
    "event_id STRING, tailnum STRING, carrier STRING, flight INT, origin STRING, dest STRING, scheduled TIMESTAMP, "
    "delay_minutes DOUBLE, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE, "
    "manufacturer STRING, model STRING, seats INT, dest_name STRING, dest_lat DOUBLE, dest_lon DOUBLE, dest_alt INT",
    ("event_id",),
    False,
    topics.DEPARTURES,
)
DAYS = Table(
    "days",
    "tailnum STRING, service_date DATE, departures INT, arrivals INT, first_event TIMESTAMP, last_event TIMESTAMP, "
    "distance_miles BIGINT, air_time_minutes DOUBLE, departure_delay_minutes DOUBLE",
    ("tailnum", "service_date"),
    False,
    topics.DAYS,
)
MALFORMED = Table(
    "malformed",
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY",
    ("topic", "partition", "offset"),
    False,
    None,
)
TABLES = (DELAYS, DEPARTURES, DAYS, MALFORMED)


@dataclass(slots=True, frozen=True)
class Results:
    """A directory with the Delta tables and the checkpoints of the queries, which belong together."""

    directory: Path

    def path(self, table: Table) -> str:
        """Returns the path of the Delta table."""
        return str(self.directory.resolve() / table.name)

    def checkpoint(self, table: Table) -> str:
        """Returns the path of the checkpoint of the query that writes the table."""
        return str(self.directory.resolve() / "_checkpoints" / table.name)

    def create_tables(self, spark: SparkSession) -> None:
        """Creates the tables that do not exist."""
        for table in TABLES:
            spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{self.path(table)}` ({table.columns}) USING delta")

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        """Returns the rows that the table has now."""
        return spark.read.format("delta").load(self.path(table))

    def batch_writer(self, table: Table, cluster: Cluster) -> Callable[[DataFrame, int], None]:
        """Returns the function for foreachBatch that writes each batch to the table and to its topic."""

        def write(batch: DataFrame, batch_id: int) -> None:
            batch = batch.persist()
            try:
                if not batch.isEmpty():
                    self._write_table(table, batch, _query_id(batch), batch_id)
                    _upsert(table, batch, cluster)
            finally:
                batch.unpersist()

        return write

    def _write_table(self, table: Table, batch: DataFrame, query_id: str, batch_id: int) -> None:
        spark = batch.sparkSession
        if not table.is_merged:
            writer = batch.write.format("delta").mode("append").option("txnAppId", query_id).option("txnVersion", batch_id)
            writer.save(self.path(table))
            return
        batch.createOrReplaceTempView("batch")
        spark.conf.set(f"{TRANSACTION}AppId", query_id)
        spark.conf.set(f"{TRANSACTION}Version", str(batch_id))
        matches = " AND ".join(f"old.{key} = new.{key}" for key in table.keys)
        spark.sql(
            f"MERGE INTO delta.`{self.path(table)}` AS old USING batch AS new ON {matches} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def _query_id(batch: DataFrame) -> str:
    """Returns the id of the streaming query whose foreachBatch runs in this thread; it is that of the checkpoint."""
    query_id: str | None = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert query_id is not None
    return query_id


def _upsert(table: Table, batch: DataFrame, cluster: Cluster) -> None:
    """Writes each row into the topic of the table: key and value are JSON objects."""
    if table.topic is None:
        return
    key, value = f.to_json(f.struct(*table.keys)).alias("key"), f.to_json(f.struct("*")).alias("value")
    batch.select(key, value).write.format("kafka").options(**cluster.spark_options(), topic=table.topic).save()
