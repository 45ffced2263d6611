"""The whole example: a broker of its own, the replay, the analytics, and the dashboard.

    python -m examples.flights.demo

Everything but the dashboard is removed at the end. Ctrl-C stops it at any time.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from examples.flights import analytics
from examples.flights.encoding import Format
from examples.flights.replay import replay
from examples.flights.results import Results
from examples.flights.timeline import Disorder, build_timeline
from wirekafka.cli.pipeline.shared import session_options
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.session import SessionOptions

STOP_S = 30

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""A run of a minute or two gains more from quick compilation than from the best code. Java reserves only 48 MB for such code by
itself, and stops compiling when the code that Spark generates has filled them."""

SETTINGS = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": JAVA_OPTIONS}


@contextmanager
def running_broker(directory: Path) -> Iterator[str]:
    """Runs a broker with its data in a directory, on a port that the kernel chooses; yields HOST:PORT.

    The broker has a session of its own, so Ctrl-C on the terminal does not stop it before Spark has stopped.

    Raises:
        PipelineError: the broker did not start; its log says why.
    """
    command = [sys.executable, "-m", "wirekafka", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(directory / "data")]
    log_path = directory / "broker.log"
    with log_path.open("wb") as log:
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    assert broker.stdout is not None
    try:
        ready = re.search(r"ready on (\S+:\d+)", broker.stdout.readline())
        if ready is None:
            raise PipelineError(f"the broker did not start:\n{log_path.read_text()[-2000:]}")
        yield ready[1]
    finally:
        broker.send_signal(signal.SIGTERM)
        try:
            broker.wait(STOP_S)
        except subprocess.TimeoutExpired:
            broker.kill()
            broker.wait()
        broker.stdout.close()


def run_demo(page: Path, record_format: Format, days: int, session: SessionOptions) -> None:
    """Runs the example in a temporary directory, and leaves the page.

    Raises:
        PipelineError: the broker, the replay or the analytics failed.
    """
    directory = Path(tempfile.mkdtemp(prefix="wirekafka-flights-"))
    try:
        with running_broker(directory) as bootstrap:
            print(f"The broker runs on {bootstrap}. The replay sends the flights of {days} days.", flush=True)
            print(json.dumps(replay(bootstrap, record_format, build_timeline(Disorder(), days=days))), flush=True)
            print("Spark analyses the events.", flush=True)
            settings = SessionOptions(session.master, session.jars, {**SETTINGS, **session.conf})
            results = Results(directory / "results")
            cluster = Cluster(bootstrap)
            if not analytics.run(cluster, results, settings, record_format=record_format, runs_once=True, page=page):
                raise KeyboardInterrupt
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@click.command(help=__doc__)
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), default="flights.html", show_default=True)
@click.option("--format", "record_format", type=click.Choice([f.value for f in Format]), default="json", show_default=True)
@click.option("--days", type=click.IntRange(1, 365), default=365, show_default=True, help="The first days of 2013.")
@session_options
def main(page: Path, record_format: str, days: int, session: SessionOptions) -> None:
    begun_s = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        run_demo(page, Format(record_format), days, session)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        sys.exit("stopped")
    print(f"The dashboard is {page.resolve().as_uri()} ({time.monotonic() - begun_s:.0f} s).")


if __name__ == "__main__":
    main()
