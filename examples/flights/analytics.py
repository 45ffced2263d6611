"""Analyses the flight events in Spark: delays by airport and hour, departures with their weather, and each aircraft's day.

    python -m examples.flights.analytics --bootstrap 127.0.0.1:9092 --results results --dashboard dashboard.html --once

Without --once the queries go on until SIGTERM or SIGINT. After a crash, the same command goes on from the checkpoints.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import click

from examples.flights import topics
from examples.flights.dashboard import Dashboard
from examples.flights.encoding import Format
from examples.flights.queries import Analytics
from examples.flights.results import Results
from wirekafka.cli.pipeline.shared import cluster_options, session_options
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster, TopicSelection
from wirekafka.pipelines.progress import report_progress
from wirekafka.pipelines.running import StopRequest, run_query, stop_on_signals
from wirekafka.pipelines.session import Connector, SessionOptions, open_session

CONNECTORS = frozenset({Connector.KAFKA, Connector.AVRO, Connector.DELTA})

SETTINGS = {"spark.databricks.delta.snapshotPartitions": "2"}
"""Delta's own default of 50 is for tables of a hundred thousand files."""

WATERMARK = "14 days"
"""Much more than the 13 hours that an event may be late, because the partitions are not read in step: Spark reads a backlog of a
year in proportion to the sizes of the partitions, and these are then up to four days apart in event time."""

MAX_OFFSETS = 125_000
"""A batch spans about 68 days of events, so that the events that come 180 days late are behind the watermark. Spark computes
the watermark of a batch from the events of the batches before it, and compares the next batch with it: two span 136 days."""

DASHBOARD_S = 15.0
"""The dashboard is made at most this often while the queries run."""

DASHBOARD_SHARE = 0.1
"""The dashboard is made in at most this share of the time, because it takes CPU from the queries."""


def analyse(analytics: Analytics, stop: StopRequest, dashboard: Dashboard | None = None) -> None:
    """Runs the queries until they end or `stop` is set, and makes the dashboard again when the results have changed.

    Raises:
        PipelineError: a query failed; the others were stopped.
    """
    TopicSelection(names=topics.SOURCES).matching(analytics.cluster)
    topics.create_topics(analytics.cluster.bootstrap, topics.RESULTS)
    analytics.results.create_tables(analytics.spark)
    starts = (analytics.start_delays, analytics.start_departures, analytics.start_days, analytics.start_malformed)
    refresh = dashboard.refresh if dashboard is not None else lambda: None
    run_together([partial(run_query, start, stop) for start in starts], stop, refresh)
    refresh()


def run_together(runs: Sequence[Callable[[], None]], stop: StopRequest, meanwhile: Callable[[], object]) -> None:
    """Runs functions in threads until all have ended, and `meanwhile` again and again; if one fails, `stop` ends the others.

    Raises:
        BaseException: the first failure. Later ones may be its consequences.
    """
    failures: list[BaseException] = []

    def run_one(run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            failures.append(error)
            _stop_others(stop)
            raise

    with ThreadPoolExecutor(len(runs)) as pool:
        try:
            running = [pool.submit(run_one, run) for run in runs]
            pause_s = DASHBOARD_S
            while wait(running, pause_s).not_done:
                begun_s = time.monotonic()
                meanwhile()
                pause_s = max(DASHBOARD_S, (time.monotonic() - begun_s) / DASHBOARD_SHARE)
        except BaseException:
            _stop_others(stop)
            raise
    if failures:
        raise failures[0]


def _stop_others(stop: StopRequest) -> None:
    """Asks for a stop after the running batches; a second request would interrupt them."""
    if not stop.is_set():
        stop.set()


def run(
    cluster: Cluster,
    results: Results,
    session: SessionOptions,
    *,
    record_format: Format = Format.JSON,
    watermark: str = WATERMARK,
    max_offsets: int = MAX_OFFSETS,
    runs_once: bool = False,
    page: Path | None = None,
) -> bool:
    """Opens a SparkSession, runs the queries in it until they end or a signal comes, and closes it.

    Progress is printed on stdout. Returns whether the queries have ended by themselves.

    Raises:
        PipelineError: the session cannot be opened, topics are missing, or a query failed.
    """
    settings = SessionOptions(session.master, session.jars, {**SETTINGS, **session.conf})
    spark = open_session("flights", CONNECTORS, settings)
    try:
        with stop_on_signals() as stop, report_progress(spark, out=sys.stdout):
            analytics = Analytics(spark, cluster, results, record_format, watermark, max_offsets, runs_once)
            analyse(analytics, stop, None if page is None else Dashboard(spark, results, page))
        return not stop.is_set()
    finally:
        spark.stop()


@click.command(help=__doc__)
@cluster_options()
@click.option("--results", type=click.Path(file_okay=False, path_type=Path), required=True, help="Tables and checkpoints.")
@click.option("--dashboard", "page", type=click.Path(dir_okay=False, path_type=Path), help="An HTML page of the results.")
@click.option("--format", "record_format", type=click.Choice([f.value for f in Format]), default="json", show_default=True)
@click.option("--once", is_flag=True, help="End when everything that is in the topics now is read.")
@click.option("--watermark", default=WATERMARK, show_default=True, help="How late an event may come.")
@click.option("--max-offsets", type=click.IntRange(1), default=MAX_OFFSETS, show_default=True, help="Most records of a batch.")
@session_options
def main(
    cluster: Cluster,
    results: Path,
    page: Path | None,
    record_format: str,
    once: bool,
    watermark: str,
    max_offsets: int,
    session: SessionOptions,
) -> None:
    try:
        run(
            cluster,
            Results(results),
            session,
            record_format=Format(record_format),
            watermark=watermark,
            max_offsets=max_offsets,
            runs_once=once,
            page=page,
        )
    except PipelineError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
