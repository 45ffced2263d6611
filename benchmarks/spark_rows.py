"""Rows about Spark: one topic read by Spark's connector in batches, as a stream and by an ingest, and by the data source.

Each row loads a topic into the broker, and a Spark of its own (`spark_load`) reads the topic in each way with local[2] and with
local[1]. The broker's CPU time is measured during each read. The rows run only if `--only` names them, because they take minutes.

Invariant: both brokers hold the same number of records of the same size in as many partitions, from the same program.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks import load
from benchmarks.brokers import AnyBroker
from benchmarks.rows import Figure, Figures, Row, Timing
from benchmarks.spark_load import Reading, Work

PARTITIONS = 4
"""Of a topic; Spark reads each with one task."""

CORES = (2, 1)
WARMUP_RECORDS = 200_000
WAYS = {
    "batch": "batch read",
    "stream": "streaming read",
    "ingest": "ingest to Parquet",
    "log": "data source",
}
"""The ways to read that `spark_load` knows, with their names in the table."""

CONNECTOR_WAYS = [way for way in WAYS if way != "log"]


def _figures() -> dict[str, Figure]:
    figures = {}
    for cores in CORES:
        for way in CONNECTOR_WAYS:
            title = f"{WAYS[way]}, local[{cores}]"
            figures[f"{way}_{cores}"] = Figure(f"{title}: thousand records/s", asked_ratio=0.95)
            figures[f"{way}_{cores}_cpu"] = Figure(f"{title}: broker CPU s a million", asked_ratio=0.5)
        figures[f"log_{cores}"] = Figure(f"{WAYS['log']}, local[{cores}]: thousand records/s")
        figures[f"log_{cores}_factor"] = Figure(f"{WAYS['log']} / {WAYS['batch']}, local[{cores}]", asked_least=2)
    return figures


def read(broker: AnyBroker, timing: Timing, *, size: int) -> Figures:
    """Loads a topic, and reads it with Spark in each way."""
    warmup, topic = f"spark-warmup-{size}", f"spark-{size}"
    topics = {warmup: min(WARMUP_RECORDS, timing.spark_records), topic: timing.spark_records}
    for name, count in topics.items():
        load.run(broker, "create", topic=name, partitions=PARTITIONS)
        load.run(broker, "produce", topic=name, partitions=PARTITIONS, size=size, count=count)
    with tempfile.TemporaryDirectory(prefix="spark-", dir=broker.directory.parent) as directory:
        result = Path(directory) / "figures.json"
        data_dir = str(broker.data_dir)
        work = Work(broker.bootstrap, broker.pid, data_dir, topics, [*CORES], [*WAYS], directory, str(result))
        command = [sys.executable, "-m", "benchmarks.spark_load"]
        done = subprocess.run(command, input=json.dumps(asdict(work)), stdout=subprocess.DEVNULL, text=True, check=False)
        if done.returncode:
            raise load.LoadError(f"benchmarks.spark_load ended with {done.returncode}")
        readings = [Reading(**reading) for reading in json.loads(result.read_text())]
    return _figures_of(readings, timing.spark_records)


def _figures_of(readings: list[Reading], records: int) -> Figures:
    figures = {}
    for reading in readings:
        name = f"{reading.way}_{reading.cores}"
        figures[name] = records / reading.seconds / 1e3
        if reading.way != "log":
            figures[f"{name}_cpu"] = reading.broker_cpu_s / records * 1e6
    for cores in CORES:
        figures[f"log_{cores}_factor"] = figures[f"log_{cores}"] / figures[f"batch_{cores}"]
    return figures


SPARK_ROWS = (
    Row("spark-100", "Spark reads records of 100 B", _figures(), partial(read, size=100)),
    Row("spark-1k", "Spark reads records of 1 KB", _figures(), partial(read, size=1000)),
)
