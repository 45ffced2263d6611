"""Spark as the load of the rows of Spark: reads one topic in each way, with several masters, in a process of its own.

    python -m benchmarks.spark_load < WORK.json

Writes a JSON list of readings to the file that the work names. Each way reads a smaller topic first, unmeasured, so that the JVM
has compiled its code. A read that does not give all records ends the program.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import wirekafka.pipelines
from compat_tests.harness import jars
from wirekafka.pipelines.ingest.options import IngestOptions
from wirekafka.pipelines.ingest.query import start_ingest
from wirekafka.pipelines.kafka import Cluster, TopicSelection
from wirekafka.pipelines.session import Connector, SessionOptions, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRIVER_MEMORY = "2g"
BATCHES_OF_A_STREAM = 5


@dataclass(slots=True)
class Work:
    """What is read, and where the figures go.

    Attributes:
        bootstrap, pid, data_dir: the address, the process and the data directory of the broker.
        topics: the number of records by topic; the first topic is for the warm-up.
        cores: the threads of each local master in turn.
        ways: the names of the ways to read in `WAYS`.
        directory: for checkpoints and lakes.
        result: the file of the figures.
    """

    bootstrap: str
    pid: int
    data_dir: str
    topics: dict[str, int]
    cores: list[int]
    ways: list[str]
    directory: str
    result: str


@dataclass(slots=True)
class Reading:
    """One measured read: its way, the threads of Spark, the seconds that it took, and the CPU time of the broker meanwhile."""

    way: str
    cores: int
    seconds: float
    broker_cpu_s: float


def read_batch(spark: SparkSession, work: Work, topic: str, directory: str) -> int:
    """Reads a topic with Spark's connector."""
    options = {"kafka.bootstrap.servers": work.bootstrap, "subscribe": topic}
    return _count(spark.read.format("kafka").options(**options).load())


def read_log(spark: SparkSession, work: Work, topic: str, directory: str) -> int:
    """Reads a topic from the segment files with the data source."""
    return _count(spark.read.format("wirekafka-log").option("topic", topic).load(work.data_dir))


def _count(frame: DataFrame) -> int:
    """Reads all columns of all rows into nothing; returns the number of rows."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

    seen = Observation()
    frame.observe(seen, F.count(F.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def read_stream(spark: SparkSession, work: Work, topic: str, directory: str) -> int:
    """Reads a topic as a stream of several batches with Spark's connector."""
    options = {"kafka.bootstrap.servers": work.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    most = work.topics[topic] // BATCHES_OF_A_STREAM
    frame = spark.readStream.format("kafka").options(**options).option("maxOffsetsPerTrigger", most).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint")
    return _finish(writer.trigger(availableNow=True).start())


def ingest(spark: SparkSession, work: Work, topic: str, directory: str) -> int:
    """Reads a topic into a lake of Parquet files, each record once."""
    cluster, topics = Cluster(work.bootstrap), TopicSelection((topic,))
    most = work.topics[topic] // BATCHES_OF_A_STREAM
    options = IngestOptions(cluster, f"{directory}/lake", topics, once=True, max_offsets_per_batch=most)
    return _finish(start_ingest(spark, options))


def _finish(query: Any) -> int:
    """Waits for the end of a streaming query; returns the number of rows."""
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


WAYS: dict[str, Callable[[SparkSession, Work, str, str], int]] = {
    "batch": read_batch,
    "stream": read_stream,
    "ingest": ingest,
    "log": read_log,
}


@contextmanager
def session(cores: int) -> Iterator[SparkSession]:
    """Opens a session on a local master."""
    conf = {"spark.driver.memory": DRIVER_MEMORY, "spark.sql.shuffle.partitions": str(cores)}
    options = SessionOptions(f"local[{cores}]", jars.jars(jars.SPARK_PIPELINES), conf)
    spark = open_session("benchmark", frozenset({Connector.KAFKA}), options)
    wirekafka.pipelines.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def measure(spark: SparkSession, work: Work, way: str, topic: str, cores: int) -> Reading:
    """Reads a topic in one way."""
    broker = psutil.Process(work.pid)
    with tempfile.TemporaryDirectory(dir=work.directory) as directory:
        cpu_before, before = broker.cpu_times(), time.monotonic()
        rows = WAYS[way](spark, work, topic, directory)
        seconds, cpu = time.monotonic() - before, broker.cpu_times()
    if rows != work.topics[topic]:
        sys.exit(f"{way} has read {rows} records of {topic} instead of {work.topics[topic]}")
    return Reading(way, cores, seconds, cpu.user + cpu.system - cpu_before.user - cpu_before.system)


def main() -> None:
    """Does the work of the standard input."""
    work = Work(**json.load(sys.stdin))
    warmup, *measured = work.topics
    readings = []
    for cores in work.cores:
        with session(cores) as spark:
            for way in work.ways:
                measure(spark, work, way, warmup, cores)
                readings += [measure(spark, work, way, topic, cores) for topic in measured]
    Path(work.result).write_text(json.dumps([asdict(reading) for reading in readings]))


if __name__ == "__main__":
    main()
