"""One node becomes three brokers, and three become five, while producers write: nothing is lost, doubled or reordered."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.mixed_cluster import Member, MixedCluster, mixed_cluster
from compat_tests.harness.single_node import SETTINGS, SingleNode, reassign
from compat_tests.harness.steady_load import steady_load
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("growth")]

TOPIC, TRANSACTED, HEAVY = "load", "transacted", "heavy"
PARTITION_COUNTS = {TOPIC: 3, TRANSACTED: 2, HEAVY: 6, "__consumer_offsets": 3, "__transaction_state": 3}
HEAVY_VALUES = [b"%03d" % number + b"x" * 10_000 for number in range(100)]
"""Bytes for `cluster balance`, which moves nothing if no broker has much more than others."""
PAUSE_S = 0.02


class Transactions:
    """The transactions of one producer, each with a record for each partition. Every third one is aborted.

    Attributes:
        committed: the values of committed transactions.
        errors: why the producer ended.
    """

    def __init__(self, bootstrap: str) -> None:
        self.committed: list[bytes] = []
        self.errors: list[str] = []
        settings = {"bootstrap.servers": bootstrap, "transactional.id": "growth", "reconnect.backoff.max.ms": 200}
        self._producer = Producer(settings)

    def run(self, stop: threading.Event) -> None:
        """Runs transactions until it is told to stop."""
        try:
            self._producer.init_transactions(60)
            number = 0
            while not stop.wait(PAUSE_S):
                self._transact(b"transaction %d" % number, is_aborted=number % 3 == 2)
                number += 1
        except KafkaException as error:
            self.errors.append(str(error))

    def _transact(self, value: bytes, *, is_aborted: bool) -> None:
        self._producer.begin_transaction()
        for index in range(PARTITION_COUNTS[TRANSACTED]):
            self._producer.produce(TRANSACTED, value, partition=index)
        self._producer.flush(60)
        if is_aborted:
            self._producer.abort_transaction(60)
        else:
            self._producer.commit_transaction(60)
            self.committed.append(value)

    def until_more(self, count: int = 5) -> None:
        """Waits until some more transactions are committed."""
        wanted = len(self.committed) + count
        wait_until(lambda: self.errors or len(self.committed) >= wanted, timeout_s=60, what="transactions are committed")


@contextmanager
def transactions(cluster: MixedCluster) -> Iterator[Transactions]:
    """Runs transactions while the block lasts. At the end none has failed, and the committed ones can be read in order."""
    load, stop = Transactions(cluster.bootstrap), threading.Event()
    thread = threading.Thread(target=load.run, args=(stop,))
    thread.start()
    try:
        load.until_more()
        yield load
        load.until_more()
    finally:
        stop.set()
        thread.join(120)
    assert not thread.is_alive(), "the transactional producer hangs"
    assert load.errors == []
    for index in range(PARTITION_COUNTS[TRANSACTED]):
        assert cluster.consume(TRANSACTED, index, len(load.committed)) == load.committed


def add_brokers(cluster: MixedCluster, *numbers: int) -> None:
    """Starts brokers, and waits until all know them."""
    for number in numbers:
        cluster.add(number, Member)
        cluster.brokers[number].start()
    cluster.until_all_know_each_other()


def balance(cluster: MixedCluster) -> None:
    """Runs `wirekafka cluster balance --execute`."""
    command = [sys.executable, "-m", "wirekafka", "cluster", "balance", "--bootstrap-server", cluster.bootstrap, "--execute"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def until_replicas_are_equal(cluster: MixedCluster, topic: str) -> set[int]:
    """Waits until the replicas of every partition have the same bytes; returns the brokers that have replicas."""
    views = cluster.until_in_sync(topic)
    for index, view in views.items():
        assert len(view.replicas) == 3
        wait_until(
            lambda index=index, view=view: len({cluster.stored(each, topic, index) for each in view.replicas}) == 1,
            timeout_s=60,
            what=f"the replicas of {topic}-{index} have the same bytes",
        )
    return {number for view in views.values() for number in view.replicas}


def test_one_broker_becomes_three_and_five_under_load(tmp_path: Path) -> None:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    began = time.monotonic()
    with mixed_cluster(tmp_path, SETTINGS, {1: SingleNode}) as cluster:
        for topic in (TOPIC, TRANSACTED, HEAVY):
            cluster.create_topic(topic, [[1]] * PARTITION_COUNTS[topic])
        for index in range(PARTITION_COUNTS[HEAVY]):
            cluster.produce(HEAVY, index, HEAVY_VALUES)
        cluster.commit("readers", TOPIC, [1, 2, 3])
        with steady_load(cluster, TOPIC, PARTITION_COUNTS[TOPIC]) as load, transactions(cluster) as transacted:
            cluster.replace(1, Member)
            load.until_more()
            transacted.until_more()
            add_brokers(cluster, 2, 3)
            on_three = [[2, 3, 1], [3, 1, 2], [1, 2, 3]] * 2
            reassign(cluster, {topic: on_three[:count] for topic, count in PARTITION_COUNTS.items()})
            for index in range(PARTITION_COUNTS[TOPIC]):
                cluster.elect_preferred(TOPIC, index)
            load.until_more()
            transacted.until_more()
            add_brokers(cluster, 4, 5)
            balance(cluster)
        assert cluster.committed_offsets("readers", TOPIC, 3) == [1, 2, 3]
        assert {4, 5} <= set.union(*(until_replicas_are_equal(cluster, topic) for topic in PARTITION_COUNTS))
        for index in range(PARTITION_COUNTS[HEAVY]):
            assert cluster.consume(HEAVY, index, len(HEAVY_VALUES)) == HEAVY_VALUES
    count = load.count(), len(transacted.committed)
    print(f"the longest gap was {load.longest_gap_s:.2f} s; {count} records, {time.monotonic() - began:.1f} s in all")
