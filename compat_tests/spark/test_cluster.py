"""The pipelines on a standalone cluster of Spark, unchanged but for `--master`, while one of its two workers is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest
from confluent_kafka import Producer

from compat_tests.harness.broker import Broker
from compat_tests.harness.spark_cluster import StandaloneCluster
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from compat_tests.spark.conftest import MakePipeline
from compat_tests.spark.flights_in_pandas import (
    assert_days,
    assert_delays,
    assert_departures,
    assert_malformed,
    first_days,
    flights_on_time,
)
from examples.flights.encoding import Format
from examples.flights.replay import replay
from examples.flights.timeline import Disorder, build_timeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark-cluster"),
    pytest.mark.timeout(500),
]

PARTITIONS = 4
PER_PARTITION = 3000

FLIGHT_DAYS = 3
STATEFUL_QUERIES = {"delays", "departures", "days"}


def fill(bootstrap: str, topic: str) -> None:
    """Writes the same number of records to each partition, in small batches."""
    create_topic(bootstrap, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 50})
    for number in range(PARTITIONS * PER_PARTITION):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0


@pytest.mark.long("an ingest goes on without its worker in the next test, and test_log_source reads the data source")
@pytest.mark.wirekafka_only("the data source reads any broker's directory, see test_log_source")
def test_the_data_source_reads_all_records_though_a_worker_is_killed(
    broker: Broker, cluster: StandaloneCluster, pipeline: MakePipeline, topic: str
) -> None:
    fill(broker.bootstrap, topic)
    reader = pipeline(broker.data_dir, topic, session=cluster.session(), program=("-m", "compat_tests.spark.log_totals"))
    reader.start()
    wait_until(
        lambda: any(line.get("tasks", 0) >= 4 for line in reader.json_lines()) or not reader.is_running(),
        timeout_s=200,
        what="some tasks have ended",
    )
    assert reader.is_running(), reader.log_text()
    cluster.workers[0].kill()
    assert reader.wait(240) == 0, reader.log_text()
    offsets = PER_PARTITION * (PER_PARTITION - 1) // 2
    assert reader.json_lines()[-1] == {"totals": [[partition, PER_PARTITION, offsets] for partition in range(PARTITIONS)]}


def test_an_ingest_writes_each_record_once_though_a_worker_is_killed(
    broker: Broker, cluster: StandaloneCluster, pipeline: MakePipeline, topic: str, tmp_path: Path
) -> None:
    fill(broker.bootstrap, topic)
    batches = ["--max-offsets-per-batch", 1500, "--once"]
    stream = pipeline(
        *("ingest", tmp_path / "lake", "--bootstrap", broker.bootstrap, "--topic", topic, *batches), session=cluster.session()
    )
    stream.start()
    stream.wait_for_batches(2, timeout_s=200)
    cluster.workers[0].kill()
    assert stream.wait(240) == 0, stream.log_text()
    assert len(stream.json_lines()) > 2, "the worker was killed in the middle"
    rows = Counter[tuple[int, int]]()
    for file in (tmp_path / "lake").glob("topic=*/**/*.parquet"):
        table = pyarrow.parquet.ParquetFile(file).read(["partition", "offset"]).to_pydict()
        rows.update(zip(table["partition"], table["offset"], strict=True))
    assert rows == Counter((partition, offset) for partition in range(PARTITIONS) for offset in range(PER_PARTITION))


def without_the_example(directory: Path) -> list[str]:
    """Returns the arguments of a session whose executors cannot import `examples`, as on a machine without the checkout."""
    directory.mkdir()
    (directory / "examples.py").write_text("raise ImportError('this machine does not have the example')\n")
    return ["--conf", f"spark.executorEnv.PYTHONPATH={directory}"]


@pytest.mark.long("an ingest goes on without its worker in a test above, and test_flights_analytics kills driver and broker")
@pytest.mark.timeout(900)
def test_the_analytics_of_the_flights_are_those_of_pandas_though_a_worker_is_killed(
    make_broker: Callable[..., Broker], cluster: StandaloneCluster, pipeline: MakePipeline, spark: SparkSession, tmp_path: Path
) -> None:
    broker, results = make_broker(), tmp_path / "results"
    timeline = build_timeline(Disorder(malformed=0.01), days=FLIGHT_DAYS)
    replay(broker.bootstrap, Format.JSON, timeline)
    analytics = pipeline(
        *("--bootstrap", broker.bootstrap, "--results", results, "--max-offsets", 2500, "--once"),
        session=[*cluster.session(), *without_the_example(tmp_path / "shadow")],
        program=("-m", "examples.flights.analytics"),
    )
    analytics.start()
    wait_until(
        lambda: any(line["state_rows"] for line in analytics.json_lines()) or not analytics.is_running(),
        timeout_s=300,
        what="a batch has left state",
    )
    assert analytics.is_running(), analytics.log_text()
    cluster.workers[0].kill()
    before = len(analytics.json_lines())
    assert analytics.wait(500) == 0, analytics.log_text()
    assert {line["query"] for line in analytics.json_lines()[before:]} >= STATEFUL_QUERIES, "the worker was killed in the middle"

    names = {*STATEFUL_QUERIES, "malformed"}
    tables = {name: spark.read.format("delta").load(str(results / name)).toArrow().to_pandas() for name in names}
    flights = flights_on_time(timeline, first_days(FLIGHT_DAYS))
    assert_delays(tables["delays"], flights)
    assert_departures(tables["departures"], flights, timeline)
    assert_days(tables["days"], flights)
    assert_malformed(tables["malformed"], timeline)
