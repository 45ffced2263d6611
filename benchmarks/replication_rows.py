"""Rows about replication: three brokers that lead and follow, beside three of Apache Kafka 3.9.

Each row starts a cluster of its own, with a ZooKeeper. The brokers 1 to 3 are measured. Broker 4 is always Apache Kafka, starts
first, is therefore the controller, and holds no partitions of the rows. So both kinds of brokers have the same controller, whose
CPU time counts for neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import load
from benchmarks.brokers import SETTINGS, MeasuredKafka, MeasuredWirekafka
from benchmarks.processes import cpu_seconds
from benchmarks.rows import Figure, Figures, Row, Timing
from compat_tests.harness.broker import Broker
from compat_tests.harness.mixed_cluster import AnyMember, JvmMember, Member, MixedCluster
from compat_tests.harness.waiting import wait_until
from compat_tests.harness.zookeeper import zookeeper

MEASURED_IDS = (1, 2, 3)
CONTROLLER_ID = 4
PARTITIONS = 12
RECORD_BYTES = 1024
LED_PARTITIONS = 2000
"""The partitions that each broker leads at rest; each broker follows twice as many."""

SETTINGS_OF_KAFKA = {"num.network.threads": "3", "num.io.threads": "8", "log.cleaner.dedupe.buffer.size": "134217728"}
"""The defaults of Apache Kafka, which the harness of the tests lowers."""


class _MeasuredMember(MeasuredWirekafka, Member):
    """wirekafka in a cluster."""


class _MeasuredJvmMember(MeasuredKafka, JvmMember):
    """Apache Kafka 3.9 in a cluster with ZooKeeper, with its start script's JVM flags."""


KINDS: dict[str, type[AnyMember]] = {"wirekafka": _MeasuredMember, "kafka": _MeasuredJvmMember}


@dataclass(frozen=True, slots=True)
class ClusterRow(Row):
    """A row that runs on a new cluster."""

    run: Callable[[MixedCluster, Timing], Figures]


@contextmanager
def open_cluster(kind: str, directory: Path) -> Iterator[MixedCluster]:
    """Runs the controller and three brokers of a kind, and kills all of them at the end."""
    kinds: dict[int, type[AnyMember]] = {CONTROLLER_ID: JvmMember, **dict.fromkeys(MEASURED_IDS, KINDS[kind])}
    settings = SETTINGS | (SETTINGS_OF_KAFKA if kind == "kafka" else {})
    with zookeeper(directory) as server:
        cluster = MixedCluster(directory, server, settings, kinds)
        try:
            cluster.brokers[CONTROLLER_ID].start()
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda broker: broker.start(), _measured(cluster)))
            wait_until(
                lambda: all(cluster.controller_id(number) == CONTROLLER_ID for number in MEASURED_IDS),
                timeout_s=60,
                what="all brokers know the controller",
                poll_s=0.1,
            )
            yield cluster
        finally:
            for broker in cluster.brokers.values():
                if broker.is_running():
                    broker.kill()


def _measured(cluster: MixedCluster) -> list[Broker]:
    return [cluster.brokers[number] for number in MEASURED_IDS]


def _create_topic(cluster: MixedCluster, topic: str, partitions: int) -> None:
    """Creates a topic with three replicas, all on measured brokers, each of which leads a third of the partitions."""
    rotated = [[*MEASURED_IDS[first:], *MEASURED_IDS[:first]] for first in range(len(MEASURED_IDS))]
    cluster.create_topic(topic, [rotated[index % len(rotated)] for index in range(partitions)])


def replication(cluster: MixedCluster, timing: Timing) -> Figures:
    """Measures Produce with acks=all, and then the latency from the producer to the consumer at 1,000 records/s."""
    brokers = _measured(cluster)
    _create_topic(cluster, "replicated", PARTITIONS)
    _create_topic(cluster, "latency", 1)
    produced = load.measure(
        brokers,
        "produce",
        topic="replicated",
        partitions=PARTITIONS,
        size=RECORD_BYTES,
        acks="all",
        **timing.options(),
    )
    cluster.until_in_sync("replicated")
    options = {"topic": "latency", "rate": 1000, "size": RECORD_BYTES, "acks": "all", "linger_ms": 0, **timing.options()}
    delayed = load.measure(brokers, "latency", **options)
    return {
        "rate": produced.per_second("records") / 1e3,
        "cpu": produced.broker_cpu_s / produced.counted["records"] * 1e6,
        "p50": delayed.counted["p50_ms"],
        "p99": delayed.counted["p99_ms"],
        "latency_cpu": delayed.broker_cpu_s / delayed.seconds * 100,
    }


def rest(cluster: MixedCluster, timing: Timing) -> Figures:
    """Measures the CPU time of brokers that lead and follow many partitions, to which nobody writes."""
    brokers = _measured(cluster)
    _create_topic(cluster, "resting", LED_PARTITIONS * len(brokers))
    time.sleep(timing.warmup)
    before, began = cpu_seconds(*brokers), time.monotonic()
    time.sleep(max(timing.seconds, 5))
    return {"cpu": (cpu_seconds(*brokers) - before) / (time.monotonic() - began) * 100}


REPLICATION_ROWS = (
    ClusterRow(
        "replication",
        "Produce 1 KiB over 12 partitions of 3 replicas, acks=all",
        {
            "rate": Figure("thousand records/s"),
            "cpu": Figure("CPU s of all brokers a million"),
            "p50": Figure("p50 ms at 1,000 records/s"),
            "p99": Figure("p99 ms at 1,000 records/s"),
            "latency_cpu": Figure("CPU % of all brokers meanwhile"),
        },
        replication,
    ),
    ClusterRow(
        "replication-rest",
        f"Three brokers that lead {LED_PARTITIONS:,} partitions each, at rest",
        {"cpu": Figure("CPU % of all brokers")},
        rest,
    ),
)
