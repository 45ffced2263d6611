"""The rows of the table: the load of each row and the figures that it measures.

A row is a function of a running broker. `ROWS` holds the rows in the order in which they run; the figure of `memory` depends on
the rows before it. The rows of `RESTING` have a broker of their own that had no load before.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import load
from benchmarks.brokers import AnyBroker, ask_metadata, await_metadata
from benchmarks.processes import resident_bytes

IDLE_CONNECTIONS = 1000
PARTITIONS = 2000

SPARK_RECORDS = 5_000_000

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Timing:
    """The seconds for which a row warms up, and those for which it measures.

    Attributes:
        spark_records: the records that a row of Spark reads; such a row measures how long that takes.
    """

    warmup: int
    seconds: int
    spark_records: int = SPARK_RECORDS

    def options(self) -> dict[str, int]:
        """Returns the options of the load program."""
        return {"warmup": self.warmup, "seconds": self.seconds}

    def of_many_files(self) -> Timing:
        """Returns a timing with a longer warm-up, for hundreds of partitions.

        Apache Kafka maps two index files of 10 MiB for each partition. A kernel that reads 8 MiB ahead fills nearly all of a file
        with zeros at its first use, which takes 10 to 20 s of CPU for 500 partitions (2026-11).
        """
        return Timing(3 * self.warmup, self.seconds, self.spark_records)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a row.

    Attributes:
        unit: the unit in the table.
        asked_ratio: the required ratio wirekafka / Kafka, at least (rates) or at most (others); None if there is none.
        asked: the greatest allowed figure of wirekafka; None if there is none.
        asked_least: the least required figure of wirekafka; None if there is none.
    """

    unit: str
    asked_ratio: float | None = None
    asked: float | None = None
    asked_least: float | None = None

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its name for `--only`, its title, its figures, the function that measures, and whether the floor supports it."""

    name: str
    title: str
    figures: dict[str, Figure]
    run: Callable[[Any, Timing], Figures]
    has_floor: bool = False


BATCHES_OF_9000 = {"connections": 1, "in_flight": 5, "records": 9000}
"""The options of the load's requests: batches of 1 MB, the largest that brokers accept."""
BATCHES_OF_500_PARTITIONS = {"connections": 1, "in_flight": 5, "records": 1000, "partitions": 500}
"""The same options for 500 partitions; librdkafka's queue holds 1,000 records of each."""
READ_RECORDS = 5_000_000


def throughput(measured: load.Measured) -> Figures:
    """Returns the records per second, and the CPU time of a million records on both sides."""
    millions = measured.counted["records"] / 1e6
    return {
        "rate": measured.per_second("records") / 1e6,
        "cpu": measured.broker_cpu_s / millions,
        "load_cpu": measured.load_cpu_s / millions,
    }


def throughput_figures(rate: float | None = None, cpu: float | None = None) -> dict[str, Figure]:
    """Returns the figures of `throughput` with the required ratios."""
    return {
        "rate": Figure("million records/s", asked_ratio=rate),
        "cpu": Figure("broker CPU s a million", asked_ratio=cpu),
        "load_cpu": Figure("load CPU s a million"),
    }


def create_topic(broker: AnyBroker, topic: str, partitions: int = 1) -> None:
    """Creates a topic and waits until its partitions accept records; Apache Kafka names a leader a moment before it leads."""
    load.run(broker, "create", topic=topic, partitions=partitions)
    load.run(broker, "produce", topic=topic, partitions=partitions, count=1000)


def _produce(broker: AnyBroker, timing: Timing, *, topic: str, partitions: int, **options: object) -> Figures:
    load.run(broker, "create", topic=topic, partitions=partitions)
    return throughput(load.measure(broker, "produce", topic=topic, partitions=partitions, **options, **timing.options()))


def produce(broker: AnyBroker, timing: Timing) -> Figures:
    return _produce(broker, timing, topic="one", partitions=1)


def produce_batches(broker: AnyBroker, timing: Timing) -> Figures:
    create_topic(broker, "batches")
    return throughput(load.measure(broker, "requests", topic="batches", **BATCHES_OF_9000, **timing.options()))


def produce_500_batches(broker: AnyBroker, timing: Timing) -> Figures:
    create_topic(broker, "many-batches", 500)
    options = {"topic": "many-batches", **BATCHES_OF_500_PARTITIONS, **timing.of_many_files().options()}
    return throughput(load.measure(broker, "requests", **options))


def fetch(broker: AnyBroker, timing: Timing) -> Figures:
    load.run(broker, "create", topic="read", partitions=1)
    load.run(broker, "produce", topic="read", count=READ_RECORDS)
    return throughput(load.measure(broker, "fetch", topic="read", wait_ms=1, **timing.options()))


def fetch_batches(broker: AnyBroker, timing: Timing) -> Figures:
    create_topic(broker, "read-batches")
    load.run(broker, "requests", topic="read-batches", count=READ_RECORDS, **BATCHES_OF_9000)
    return throughput(load.measure(broker, "fetches", topic="read-batches", **timing.options()))


def produce_500(broker: AnyBroker, timing: Timing) -> Figures:
    return _produce(broker, timing.of_many_files(), topic="many", partitions=500)


def produce_lz4(broker: AnyBroker, timing: Timing) -> Figures:
    return _produce(broker, timing, topic="lz4", partitions=1, codec="lz4")


def produce_1k(broker: AnyBroker, timing: Timing) -> Figures:
    return _produce(broker, timing, topic="all", partitions=12, size=1024, acks="all")


def _requests(broker: AnyBroker, timing: Timing, connections: int, in_flight: int) -> Figures:
    topic = f"requests-{connections}"
    create_topic(broker, topic)
    options = {"topic": topic, "connections": connections, "in_flight": in_flight}
    measured = load.measure(broker, "requests", **options, **timing.options())
    requests = measured.counted["requests"]
    return {
        "rate": measured.per_second("requests") / 1e3,
        "cpu": measured.broker_cpu_s / requests * 1e6,
        "p99": measured.counted["p99_ms"],
        "load_cpu": measured.load_cpu_s / requests * 1e6,
    }


def _request_figures(rate: float, cpu: float, p99: float) -> dict[str, Figure]:
    return {
        "rate": Figure("thousand requests/s", asked_ratio=rate),
        "cpu": Figure("broker CPU us a request", asked_ratio=cpu),
        "p99": Figure("p99 ms", asked_ratio=p99),
        "load_cpu": Figure("load CPU us a request"),
    }


def requests_20x5(broker: AnyBroker, timing: Timing) -> Figures:
    return _requests(broker, timing, 20, 5)


def requests_200x1(broker: AnyBroker, timing: Timing) -> Figures:
    return _requests(broker, timing, 200, 1)


def latency(broker: AnyBroker, timing: Timing) -> Figures:
    load.run(broker, "create", topic="latency", partitions=1)
    measured = load.measure(broker, "latency", topic="latency", rate=1000, linger_ms=0, **timing.options())
    return {
        "p50": measured.counted["p50_ms"],
        "p99": measured.counted["p99_ms"],
        "cpu": measured.broker_cpu_s / measured.seconds * 100,
    }


def fairness(broker: AnyBroker, timing: Timing) -> Figures:
    create_topic(broker, "greedy")
    create_topic(broker, "small")
    greed = {"topic": "greedy", "connections": 1, "in_flight": 64, "records": 600}
    with load.start(broker, "requests", **greed, warmup=0, seconds=timing.warmup + timing.seconds + 5) as greedy:
        try:
            measured = load.measure(broker, "requests", topic="small", **timing.options())
        finally:
            greedy.kill()
    return {"p50": measured.counted["p50_ms"], "p99": measured.counted["p99_ms"], "max": measured.counted["max_ms"]}


def memory(broker: AnyBroker, timing: Timing) -> Figures:
    return {"rss": resident_bytes(broker) / 2**20}


def start(broker: AnyBroker, timing: Timing) -> Figures:
    started_ms = await_metadata(broker)
    time.sleep(timing.warmup)
    return {"start": started_ms, "rss": resident_bytes(broker) / 2**20}


def idle_connections(broker: AnyBroker, timing: Timing) -> Figures:
    before = resident_bytes(broker)
    with contextlib.ExitStack() as connections:
        for _ in range(IDLE_CONNECTIONS):
            ask_metadata(connections.enter_context(socket.create_connection(broker.address, timeout=30)))
        time.sleep(1)
        return {"rss": (resident_bytes(broker) - before) / 1024 / IDLE_CONNECTIONS}


def partitions(broker: AnyBroker, timing: Timing) -> Figures:
    before = resident_bytes(broker)
    load.run(broker, "create", topic="partitions", partitions=PARTITIONS)
    load.run(broker, "produce", topic="partitions", partitions=PARTITIONS, count=10 * PARTITIONS)
    added = resident_bytes(broker) - before
    broker.terminate(timeout_s=120)
    broker.start()
    return {"rss": added / 1024 / PARTITIONS, "start": await_metadata(broker)}


RESTING = (
    Row(
        "start",
        "Start to first answered Metadata; memory at rest",
        {"start": Figure("ms", asked_ratio=0.12), "rss": Figure("MiB at rest", asked_ratio=0.11)},
        start,
    ),
    Row("idle-connections", "1,000 idle connections", {"rss": Figure("KiB each", asked=20)}, idle_connections),
    Row(
        "partitions",
        "2,000 partitions",
        {"rss": Figure("KiB each", asked=20), "start": Figure("ms to start", asked=3000)},
        partitions,
    ),
)

ROWS = (
    Row("produce", "Produce 100 B, 1 partition, acks=1", throughput_figures(1.5, 0.25), produce, has_floor=True),
    Row("fetch", "Fetch of the same", throughput_figures(1.0, 0.3), fetch, has_floor=True),
    Row("produce-500", "Produce 100 B over 500 partitions", throughput_figures(2.0, 0.25), produce_500, has_floor=True),
    Row(
        "requests-20x5",
        "One-record Produce requests, 20 connections x 5 in flight",
        _request_figures(1.5, 0.5, 0.6),
        requests_20x5,
    ),
    Row("requests-200x1", "The same, 200 x 1", _request_figures(0.8, 0.9, 0.8), requests_200x1),
    Row(
        "latency",
        "End to end at 1,000 records/s",
        {"p50": Figure("p50 ms"), "p99": Figure("p99 ms", asked_ratio=0.5), "cpu": Figure("broker CPU %")},
        latency,
    ),
    Row(
        "fairness",
        "One-record requests beside a greedy connection",
        {"p50": Figure("p50 ms"), "p99": Figure("p99 ms"), "max": Figure("max ms")},
        fairness,
    ),
    Row(
        "produce-batches",
        "Produce 100 B in batches of 9,000 made beforehand",
        throughput_figures(1.5, 0.25),
        produce_batches,
        has_floor=True,
    ),
    Row(
        "fetch-batches",
        "Fetch of the same, without looking at records",
        throughput_figures(1.0, 0.3),
        fetch_batches,
        has_floor=True,
    ),
    Row(
        "produce-500-batches",
        "Produce 100 B over 500 partitions, in batches of 1,000 made beforehand",
        throughput_figures(2.0, 0.25),
        produce_500_batches,
        has_floor=True,
    ),
    Row("produce-1k", "Produce 1 KiB over 12 partitions, acks=all", throughput_figures(), produce_1k),
    Row("produce-lz4", "Produce 100 B, lz4", throughput_figures(), produce_lz4, has_floor=True),
    Row("memory", "Memory after all that", {"rss": Figure("MiB", asked_ratio=0.2)}, memory),
)
