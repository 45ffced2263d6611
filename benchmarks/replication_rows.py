"""Rows about clusters: three brokers of wirekafka beside three of Apache Kafka 3.9, and clusters of wirekafka that grow.

Each cluster has a ZooKeeper of its own, and one of its brokers is the controller. The clusters run one after the other, and the
next round begins with the other one. The topics have three replicas and `min.insync.replicas=2`, and producers use acks=all. CPU
time and memory are those of all three brokers, without ZooKeeper.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import load
from benchmarks.brokers import SETTINGS, MeasuredKafka, MeasuredWirekafka
from benchmarks.log_rows import LogRow
from benchmarks.processes import cpu_seconds, resident_bytes
from benchmarks.rows import Figure, Figures, Row, Timing
from compat_tests.harness.mixed_cluster import AnyMember, JvmMember, Member, MixedCluster
from compat_tests.harness.steady_load import steady_load
from compat_tests.harness.waiting import wait_until
from compat_tests.harness.zookeeper import zookeeper

BROKER_IDS = (1, 2, 3)
SIZES = {"1k": (1024, "1 KiB"), "100": (100, "100 B")}
PARTITION_COUNTS = (12, 500)
LED_PARTITIONS = 2000
"""The partitions that each broker leads at rest; each broker follows twice as many."""
SESSION_TIMEOUT_MS = 10_000

SETTINGS_OF_CLUSTERS = {**SETTINGS, "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
SETTINGS_OF_KAFKA = {"num.network.threads": "3", "num.io.threads": "8", "log.cleaner.dedupe.buffer.size": "134217728"}
"""The defaults of Apache Kafka, which the harness of the tests lowers."""

SMALL_INDEXES = {"segment.index.bytes": str(1 << 20)}
"""For topics of 500 partitions. Apache Kafka maps two indexes for each replica, 30 GB with the default of 10 MiB, and some
kernels fill all of that with zeros (`Timing.of_many_files`)."""

GROWTH_PARTITION_COUNT = 30
GROWTH = ((1, 1), (3, 1), (5, 1), (3, 3), (5, 3))
"""How many brokers, and how many replicas."""


class _MeasuredMember(MeasuredWirekafka, Member):
    """wirekafka in a cluster."""


class _MeasuredJvmMember(MeasuredKafka, JvmMember):
    """Apache Kafka 3.9 in a cluster with ZooKeeper, with its start script's JVM flags."""


KINDS: dict[str, type[AnyMember]] = {"wirekafka": _MeasuredMember, "kafka": _MeasuredJvmMember}


@dataclass(frozen=True, slots=True)
class ClusterRow(Row):
    """A row that runs on a cluster of three brokers."""

    run: Callable[[MixedCluster, Timing], Figures]


@contextmanager
def open_cluster(kind: str, directory: Path, broker_ids: Sequence[int] = BROKER_IDS) -> Iterator[MixedCluster]:
    """Runs brokers of a kind, and kills all of them at the end."""
    directory.mkdir(exist_ok=True)
    settings = SETTINGS_OF_CLUSTERS | (SETTINGS_OF_KAFKA if kind == "kafka" else {})
    with zookeeper(directory) as server, ExitStack() as started:
        cluster = MixedCluster(directory, server, settings, dict.fromkeys(broker_ids, KINDS[kind]))
        started.callback(_kill_all, cluster)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda broker: broker.start(), cluster.brokers.values()))
        cluster.until_all_know_each_other()
        yield cluster


def _kill_all(cluster: MixedCluster) -> None:
    for broker in cluster.brokers.values():
        if broker.is_running():
            broker.kill()


def warm_up(cluster: MixedCluster, timing: Timing) -> None:
    """Produces for five times the warm-up of a row, so that the JVM has compiled the code of leaders and followers."""
    long = Timing(5 * timing.warmup, 1)
    _produce(cluster, long, size=1024, partition_count=12)
    delete_topics(cluster)


def delete_topics(cluster: MixedCluster) -> None:
    """Deletes all topics but internal ones, and waits until their files are gone on all brokers."""
    load.run(cluster.brokers[1], "delete")

    def are_gone() -> bool:
        directories = [path for broker in cluster.brokers.values() for path in broker.data_dir.iterdir() if path.is_dir()]
        return all(path.name.startswith("__") for path in directories)

    wait_until(are_gone, timeout_s=300, what="the files of deleted topics are gone", poll_s=0.2)


def _create_topic(cluster: MixedCluster, topic: str, partition_count: int, replica_count: int = 3) -> None:
    """Creates a topic with replicas on all brokers in turn, so that each leads as many partitions."""
    numbers = [*cluster.brokers]
    rotated = [[*numbers[first:], *numbers[:first]][:replica_count] for first in range(len(numbers))]
    assignment = [rotated[index % len(rotated)] for index in range(partition_count)]
    configs = {"min.insync.replicas": str(min(2, replica_count))}
    cluster.create_topic(topic, assignment, configs | (SMALL_INDEXES if partition_count > 100 else {}))


def _measure(cluster: MixedCluster, timing: Timing, topic: str, partition_count: int, size: int) -> load.Measured:
    options = {"topic": topic, "partitions": partition_count, "size": size, "acks": "all", **timing.options()}
    return load.measure([*cluster.brokers.values()], "produce", **options)


def _figures(measured: load.Measured) -> Figures:
    millions = measured.counted["records"] / 1e6
    return {
        "rate": measured.per_second("records") / 1e3,
        "cpu": measured.broker_cpu_s / millions,
        "load_cpu": measured.load_cpu_s / millions,
    }


def _produce(
    cluster: MixedCluster, timing: Timing, *, size: int, partition_count: int, replica_count: int = 3, topic: str = "replicated"
) -> Figures:
    _create_topic(cluster, topic, partition_count, replica_count)
    return _figures(_measure(cluster, timing, topic, partition_count, size))


def roles(cluster: MixedCluster, timing: Timing) -> Figures:
    """Measures what a leader and a follower cost: broker 1 leads all partitions, and the others follow."""
    brokers = [cluster.brokers[number] for number in BROKER_IDS]
    cluster.create_topic("roles", [[*BROKER_IDS]] * 12)
    measured = _measure(cluster, timing, "roles", 12, 1024)
    cpu = [each / measured.counted["records"] * 1e6 for each in measured.each_broker_cpu_s]
    assert len(cpu) == len(brokers)
    return {"rate": measured.per_second("records") / 1e3, "leader": cpu[0], "follower": sum(cpu[1:]) / len(cpu[1:])}


def latency(cluster: MixedCluster, timing: Timing) -> Figures:
    """Measures the time from the producer to the consumer at 1,000 records/s, in one partition."""
    _create_topic(cluster, "latency", 1)
    options = {"topic": "latency", "rate": 1000, "size": 1024, "acks": "all", "linger_ms": 0}
    slow = Timing(3 * timing.warmup, 2 * timing.seconds)
    measured = load.measure([*cluster.brokers.values()], "latency", **options, **slow.options())
    return {
        "p50": measured.counted["p50_ms"],
        "p99": measured.counted["p99_ms"],
        "cpu": measured.broker_cpu_s / measured.seconds * 100,
    }


def memory(cluster: MixedCluster, timing: Timing) -> Figures:
    """Measures the memory after the rows before it."""
    return {"rss": sum(map(resident_bytes, cluster.brokers.values())) / 2**20}


def failover(cluster: MixedCluster, timing: Timing) -> Figures:
    """Kills a leader (kill -9) that is not the controller, and then one that is; a producer writes all the time.

    The figure is the time between two acknowledgements. A killed broker is started again, and every record is read at the end.
    """
    figures = {}
    for name, is_controller in (("leader", False), ("controller", True)):
        controller_id = cluster.controller_id()
        leader = next(number for number in BROKER_IDS if (number == controller_id) == is_controller)
        cluster.create_topic(name, [[leader, *(number for number in BROKER_IDS if number != leader)]])
        with steady_load(cluster, name, 1) as producer:
            cluster.brokers[leader].kill()
            producer.until_more()
        figures[name] = producer.longest_gap_s * 1e3
        cluster.brokers[leader].start()
        cluster.until_all_know_each_other()
        cluster.until_in_sync(name)
    return figures


def rest(cluster: MixedCluster, timing: Timing) -> Figures:
    """Measures the CPU time of brokers that lead and follow many partitions, to which nobody writes."""
    brokers = [*cluster.brokers.values()]
    _create_topic(cluster, "resting", LED_PARTITIONS * len(brokers))
    time.sleep(10 * timing.warmup)  # the JVM goes on compiling and collecting garbage for a while
    before, began = cpu_seconds(*brokers), time.monotonic()
    time.sleep(max(timing.seconds, 5))
    return {"cpu": (cpu_seconds(*brokers) - before) / (time.monotonic() - began) * 100}


def growth(directory: Path, timing: Timing) -> Figures:
    """Measures Produce on clusters of one, three and five brokers on this machine."""
    figures = {}
    for broker_count in sorted({count for count, _ in GROWTH}):
        with open_cluster("wirekafka", directory / str(broker_count), range(1, broker_count + 1)) as cluster:
            for replica_count in (replicas for count, replicas in GROWTH if count == broker_count):
                options = {"size": 1024, "partition_count": GROWTH_PARTITION_COUNT, "replica_count": replica_count}
                found = _produce(cluster, timing, **options, topic=f"grown-{replica_count}")
                figures[f"rate_{broker_count}_{replica_count}"] = found["rate"]
                figures[f"cpu_{broker_count}_{replica_count}"] = found["cpu"]
                delete_topics(cluster)
    return figures


def _growth_figures() -> dict[str, Figure]:
    figures = {}
    for broker_count, replica_count in GROWTH:
        title = f"{broker_count} broker{'s' * (broker_count > 1)}, {replica_count} replica{'s' * (replica_count > 1)}"
        figures[f"rate_{broker_count}_{replica_count}"] = Figure(f"{title}: thousand records/s")
        figures[f"cpu_{broker_count}_{replica_count}"] = Figure(f"{title}: CPU s of all brokers a million")
    return figures


def _produce_row(size_name: str, partition_count: int) -> ClusterRow:
    size, title = SIZES[size_name]
    return ClusterRow(
        f"replication-{size_name}-{partition_count}",
        f"Produce {title} over {partition_count} partitions of 3 replicas, acks=all",
        {
            "rate": Figure("thousand records/s", asked_ratio=2.0),
            "cpu": Figure("CPU s of all brokers a million", asked_ratio=0.3),
            "load_cpu": Figure("load CPU s a million"),
        },
        partial(_run_produce, size=size, partition_count=partition_count),
    )


def _run_produce(cluster: MixedCluster, timing: Timing, *, size: int, partition_count: int) -> Figures:
    warm = timing.of_many_files() if partition_count > 100 else timing
    return _produce(cluster, warm, size=size, partition_count=partition_count)


REPLICATION_ROWS = (
    *(_produce_row(size_name, partition_count) for size_name in SIZES for partition_count in PARTITION_COUNTS),
    ClusterRow(
        "replication-roles",
        "Produce 1 KiB over 12 partitions with one leader and two followers",
        {
            "rate": Figure("thousand records/s"),
            "leader": Figure("CPU s of the leader a million"),
            "follower": Figure("CPU s of each follower a million"),
        },
        roles,
    ),
    ClusterRow(
        "replication-latency",
        "1,000 records/s of 1 KiB, acks=all, linger 0, from producer to consumer",
        {"p50": Figure("p50 ms"), "p99": Figure("p99 ms", asked_ratio=0.5), "cpu": Figure("CPU % of all brokers")},
        latency,
    ),
    ClusterRow("replication-memory", "Memory of three brokers after these rows", {"rss": Figure("MiB")}, memory),
    ClusterRow(
        "replication-failover",
        f"kill -9 of a leader until its partition takes a record, session timeout {SESSION_TIMEOUT_MS:,} ms",
        {
            "leader": Figure("ms", asked=SESSION_TIMEOUT_MS + 1000),
            "controller": Figure("ms, the leader is the controller", asked=SESSION_TIMEOUT_MS + 1000),
        },
        failover,
    ),
    ClusterRow(
        "replication-rest",
        f"Three brokers that lead {LED_PARTITIONS:,} partitions each, at rest",
        {"cpu": Figure("CPU % of all brokers")},
        rest,
    ),
)

GROWTH_ROWS = (
    LogRow(
        "replication-growth",
        f"Produce 1 KiB over {GROWTH_PARTITION_COUNT} partitions, acks=all, brokers on this machine",
        _growth_figures(),
        growth,
    ),
)
