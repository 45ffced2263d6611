"""A Spark session with the connectors of the pipelines and no Kafka settings, and a stream from Kafka into files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compat_tests.harness import jars
from wirekafka.pipelines.session import AVRO_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def spark_session(directory: Path, java_options: Sequence[str]) -> Iterator[SparkSession]:
    """Returns a small session: two threads, half a gibibyte, no web pages, all its files below `directory`."""
    from pyspark.sql import SparkSession

    connector = ",".join(str(path) for path in sorted(jars.jars(jars.SPARK_PIPELINES).glob("*.jar")))
    log4j = jars.HERE / "java" / "log4j2.properties"
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("wirekafka")
        .config("spark.jars", connector)
        .config("spark.driver.memory", "768m")
        .config(
            "spark.driver.extraJavaOptions",
            f"{' '.join(java_options)} {AVRO_LIMITS} -Dlog4j2.configurationFile={log4j} -Dderby.system.home={directory}",
        )
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory))
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


class Stream:
    """A stream from Kafka into files. It runs until it has read all records or is stopped, and restarts from its checkpoint."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path, **options: str) -> None:
        self.spark, self.bootstrap, self.directory = spark, bootstrap, directory
        self.options = options

    def _writer(self) -> Any:
        source = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap).options(**self.options)
        records = source.load().selectExpr("CAST(value AS STRING) AS value", "topic", "partition", "offset")
        return (
            records.writeStream.format("json")
            .option("path", str(self.directory / "out"))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
        )

    def run_available(self) -> list[int]:
        """Runs until all records are read; returns the number of rows of each batch."""
        query = self._writer().trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(90), "the stream did not end"
        finally:
            query.stop()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def start(self) -> Any:
        """Starts a query that runs until it is stopped."""
        return self._writer().trigger(processingTime="100 milliseconds").start()

    def rows(self) -> list[str]:
        """Returns the values that were written so far."""
        if not list((self.directory / "out").glob("*.json")):
            return []
        return sorted(row.value for row in self.spark.read.schema("value STRING").json(str(self.directory / "out")).collect())
