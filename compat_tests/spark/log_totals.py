"""Reads a data directory as a data source and prints totals by partition; a program of its own, for a session on a cluster."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from wirekafka.cli.pipeline.shared import open_spark, session_options
from wirekafka.pipelines import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wirekafka.pipelines.session import SessionOptions

REPORT_S = 0.2


@click.command()
@click.argument("directory")
@click.argument("topic")
@click.option("--split-bytes", default="1000")
@session_options
def main(directory: str, topic: str, split_bytes: str, session: SessionOptions) -> None:
    with open_spark("totals", (), session) as spark:
        register(spark)
        options = {"topic": topic, "splitBytes": split_bytes}
        frame = spark.read.format("wirekafka-log").options(**options).load(directory)
        totals = frame.groupBy("partition").agg({"offset": "sum", "*": "count"}).toDF("partition", "offsets", "records")
        with _reported_tasks(spark):
            rows = totals.collect()
        click.echo(json.dumps({"totals": sorted([row.partition, row.records, row.offsets] for row in rows)}))


@contextmanager
def _reported_tasks(spark: SparkSession) -> Iterator[None]:
    """Prints the number of tasks that have ended, while the block runs."""
    tracker = spark.sparkContext.statusTracker()
    is_done = threading.Event()

    def report() -> None:
        while not is_done.wait(REPORT_S):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            click.echo(json.dumps({"tasks": sum(stage.numCompletedTasks for stage in stages if stage is not None)}))

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


if __name__ == "__main__":
    main()
