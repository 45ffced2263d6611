"""Exactly once in a cluster of three wirekafka brokers, whose brokers are killed, stopped and paused, the controller too.

Workers of librdkafka and Java copy a topic, and Kafka Streams counts its records by key (exactly_once_v2), while brokers and
workers fail. The Java clients use transactions of version 2, which the cluster has finalized, and librdkafka those before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.chaos import Source
from compat_tests.harness.cluster_chaos import ClusterChaos
from compat_tests.harness.exactly_once import (
    COPIERS,
    COUNTERS,
    PARTITIONS,
    check_copies,
    check_counts,
    copying_workers,
    counting_workers,
)
from compat_tests.harness.mixed_cluster import ALONE, MixedCluster, mixed_cluster
from compat_tests.harness.waiting import wait_until

pytestmark = [
    pytest.mark.long("test_new_protocols and the tests of one broker show transactions in a cluster and exactly once"),
    pytest.mark.java,
    pytest.mark.xdist_group("cluster-exactly-once"),
    pytest.mark.timeout(900),
]

SESSION_TIMEOUT_S = 4.0
PER_SECOND = 100
COPIES, COUNTS = "copies", "counts"
SETTINGS = {
    "zookeeper.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "5",
}


class Stage:
    """The cluster with its topics, and the source that writes while brokers fail."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster, self.bootstrap = cluster, cluster.bootstrap
        for topic in ("source", COPIES, COUNTS):
            cluster.create_topic(topic, [[1 + (index + step) % 3 for step in range(3)] for index in range(PARTITIONS)])
        self.source = Source(self.bootstrap, "source", PER_SECOND)

    def run(self, directory: Path, seconds: float) -> None:
        """Runs the workers, and makes faults, until all records are processed and all transactions have ended."""
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        workers = copying_workers(self.bootstrap, directory, COPIES, librdkafka_count=2)
        workers += counting_workers(self.bootstrap, directory, COUNTS)
        chaos = ClusterChaos(self.cluster, ("source", COPIES, COUNTS), SESSION_TIMEOUT_S, workers, seed)
        chaos.start()
        try:
            self._wait(chaos, lambda: min(self.processed_counts()) > 0, "the workers have begun")
            chaos.run(seconds)
            self.source.finish()
            self._wait(chaos, lambda: self.processed_counts() == [self.source.sent] * 2, "all records are processed")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.processed_counts()} of {self.source.sent}; seed {seed}; {chaos}") from None
        finally:
            chaos.stop()
        print(f"the longest time without an acknowledgement of a partition: {self.source.longest_gap_s:.1f} s; {chaos}")
        # The timeouts of the killed workers' transactions abort them.
        for topic in (COPIES, COUNTS):
            wait_until(partial(self._is_stable, topic), timeout_s=60, what="every transaction has ended", poll_s=0.5)

    def _wait(self, chaos: ClusterChaos, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: chaos.restart_ended() and condition(), timeout_s=180, what=what, poll_s=0.5)

    def processed_counts(self) -> list[int]:
        """Returns the number of records that each group has committed; -1 if its coordinator does not answer."""
        return [self._committed_count(group) for group in (COPIERS, COUNTERS)]

    def _committed_count(self, group: str) -> int:
        try:
            found = self.cluster.committed_offsets(group, "source", PARTITIONS)
        except KafkaException:
            return -1
        return sum(max(offset, 0) for offset in found)

    def _is_stable(self, topic: str) -> bool:
        """Returns whether the last stable offset of each partition is its end."""
        return self._ends(topic, "read_uncommitted") == self._ends(topic, "read_committed")

    def _ends(self, topic: str, isolation: str) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "unused", "isolation.level": isolation})
        try:
            places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
            return [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Returns the stage after all faults; they are made once, because each application needs the same."""
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    directory = tmp_path_factory.mktemp("cluster")
    with mixed_cluster(directory, SETTINGS, ALONE) as cluster:
        assert cluster.features("--finalize")["transaction.version"] == "2"
        stage = Stage(cluster)
        try:
            stage.run(directory, request.config.getoption("--chaos-seconds") or 0)
            yield stage
        finally:
            stage.source.close()


def test_workers_copy_each_record_once_while_brokers_fail(stage: Stage) -> None:
    check_copies(stage.bootstrap, stage.source, COPIES)


def test_kafka_streams_counts_exactly_while_brokers_fail(stage: Stage) -> None:
    check_counts(stage.bootstrap, stage.source, COUNTS)
