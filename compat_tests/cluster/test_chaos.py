"""Brokers of a cluster of Apache Kafka 3.9 and wirekafka are killed and stopped at random, under load."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.cluster_load import PARTITION_COUNT, TOPICS, ClusterLoad
from compat_tests.harness.mixed_cluster import JVM_IDS, MixedCluster, mixed_cluster

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster"), pytest.mark.timeout(1_200)]

DEFAULT_SECONDS, LONG_SECONDS = 15.0, 60.0
PAUSE_S = 12.0
"""Longer than the timeout of a session."""


def kill(cluster: MixedCluster, broker_id: int) -> None:
    """Kills a broker. Apache Kafka does not start again before its session has expired."""
    cluster.brokers[broker_id].kill()
    if broker_id in JVM_IDS:
        time.sleep(PAUSE_S)
    cluster.brokers[broker_id].start()


def stop(cluster: MixedCluster, broker_id: int) -> None:
    cluster.brokers[broker_id].terminate(120)
    cluster.brokers[broker_id].start()


def pause(cluster: MixedCluster, broker_id: int) -> None:
    process = cluster.brokers[broker_id].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    time.sleep(PAUSE_S)
    process.send_signal(signal.SIGCONT)


def elect(cluster: MixedCluster, broker_id: int) -> None:
    """Elects the preferred leaders of all partitions, one of which is this broker."""
    for topic in TOPICS:
        for index in range(PARTITION_COUNT):
            cluster.elect_preferred_if_needed(topic, index)


def test_nothing_that_was_acknowledged_is_lost_or_doubled(tmp_path: Path, request: pytest.FixtureRequest, is_long: bool) -> None:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with mixed_cluster(tmp_path, {"auto.leader.rebalance.enable": "true"}) as cluster:
        load = ClusterLoad(cluster, tmp_path)
        default_s = LONG_SECONDS if is_long else DEFAULT_SECONDS
        end = time.monotonic() + (request.config.getoption("--chaos-seconds") or default_s)
        with load.running():
            while time.monotonic() < end:
                fault = dice.choice((kill, stop, pause, elect))
                broker_id = dice.choice(list(cluster.brokers))
                print(f"{fault.__name__} {broker_id}, {len(load.committed)} transactions")
                fault(cluster, broker_id)
                for topic in TOPICS:
                    cluster.until_in_sync(topic)
        load.check(cluster)
