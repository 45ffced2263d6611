"""Exactly once, end to end: consume, transform, produce, while workers and the broker are killed at random.

The test compares the output under read_committed with the input, record by record: no record is missing, no record is repeated,
and every partition is in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.chaos import Chaos, Source, Worker
from compat_tests.harness.exactly_once import (
    COPIERS,
    COUNTERS,
    PARTITIONS,
    check_copies,
    check_counts,
    copying_workers,
    counting_workers,
)
from compat_tests.harness.proxy import CuttingProxy
from compat_tests.harness.raw import ConnectionEndedError, RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactions import ask
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java"), pytest.mark.timeout(900)]

PER_SECOND = 200


def committed_count(broker: Broker, group: str, topic: str) -> int:
    """Returns the number of records that the group has committed; -1 if the broker does not answer.

    The topic has one record at each offset. The function sends a raw request, because librdkafka's admin client crashes on
    some answers of a failing broker (2.16, 2026-11).
    """
    topics = [{"name": topic, "partition_indexes": list(range(PARTITIONS))}]
    try:
        with RawConnection(broker.address, timeout_s=5) as connection:
            answer = ask(connection, "offset_fetch", 7, group_id=group, topics=topics, require_stable=False)
    except (OSError, ConnectionEndedError):
        return -1
    return sum(max(place.committed_offset, 0) for each in answer.topics for place in each.partitions)


def end_offsets(broker: Broker, topic: str, isolation_level: int) -> list[int]:
    """Returns the end of each partition for an isolation level: 0 is read_uncommitted, 1 read_committed."""
    partitions = [{"partition_index": partition, "timestamp": -1} for partition in range(PARTITIONS)]
    topics = [{"name": topic, "partitions": partitions}]
    with RawConnection(broker.address) as connection:
        answer = ask(connection, "list_offsets", 3, replica_id=-1, isolation_level=isolation_level, topics=topics)
    return [place.offset for place in sorted(answer.topics[0].partitions, key=lambda place: place.partition_index)]


def open_transactions(broker: Broker) -> str:
    """Returns the open transactions that the coordinator and the partitions describe."""
    with RawConnection(broker.address) as connection:
        listed = ask(connection, "list_transactions", 0, state_filters=[], producer_id_filters=[]).transaction_states
        states = [f"{each.transactional_id} {each.producer_id} {each.transaction_state}" for each in listed]
        numbers = {"__consumer_offsets": range(4), "target": range(PARTITIONS)}
        topics = [{"name": name, "partition_indexes": list(partitions)} for name, partitions in numbers.items()]
        described = ask(connection, "describe_producers", 0, topics=topics).topics
    open_ones = [
        f"{topic.name}-{partition.partition_index} {producer.producer_id} from {producer.current_txn_start_offset}"
        for topic in described
        for partition in topic.partitions
        for producer in partition.active_producers
        if producer.current_txn_start_offset >= 0
    ]
    return f"the coordinator says: {', '.join(states)}; open in the logs: {', '.join(open_ones)}"


class Stage:
    """A broker behind a proxy, two topics, and the source that writes to the first topic."""

    def __init__(self, broker: Broker, proxy: CuttingProxy) -> None:
        self.broker, self.proxy = broker, proxy
        proxy.upstream = broker.address
        for topic in ("source", "target"):
            create_topic(broker.bootstrap, topic, PARTITIONS)
        self.source = Source(proxy.bootstrap, "source", PER_SECOND)

    def run(self, workers: list[Worker], group: str, seconds: float) -> None:
        """Runs the workers, and kills them and the broker, until all records are processed."""
        seed = random.randrange(1 << 32)
        chaos = Chaos(self.broker, self.proxy, workers, seed)
        chaos.start()
        try:
            wait_until(
                lambda: chaos.restart_ended() and committed_count(self.broker, group, "source") > 0,
                timeout_s=60,
                what="the workers have begun",
                poll_s=0.2,
            )
            chaos.run(seconds)
            self.source.finish()
            wait_until(
                lambda: chaos.restart_ended() and committed_count(self.broker, group, "source") == self.source.sent,
                timeout_s=120,
                what=f"all {self.source.sent} records are processed",
                poll_s=0.2,
            )
        except AssertionError as error:
            done = committed_count(self.broker, group, "source")
            told = open_transactions(self.broker)
            raise AssertionError(f"{error}; {done} of {self.source.sent} were; {told}; seed {seed}; {chaos}") from None
        finally:
            chaos.stop()
        # The next workers with the same transactional ids, or the timeout, abort the open transactions of killed workers.
        wait_until(
            lambda: end_offsets(self.broker, "target", 0) == end_offsets(self.broker, "target", 1),
            timeout_s=30,
            what="every transaction has ended",
            poll_s=0.2,
        )
        print(chaos)
        assert chaos.broker_kill_count > 0
        assert any(worker.kill_count for worker in workers)


@pytest.fixture
def stage(make_broker: Callable[..., Broker], proxy: CuttingProxy) -> Iterator[Stage]:
    stage = Stage(make_broker(advertised=proxy.bootstrap), proxy)
    yield stage
    stage.source.close()


def test_a_topic_is_copied_exactly_once_by_workers_that_are_killed(stage: Stage, chaos_seconds: float, tmp_path: Path) -> None:
    stage.run(copying_workers(stage.proxy.bootstrap, tmp_path, "target"), COPIERS, chaos_seconds)
    check_copies(stage.broker.bootstrap, stage.source, "target")


def test_kafka_streams_counts_exactly_while_it_is_killed(stage: Stage, chaos_seconds: float, tmp_path: Path) -> None:
    stage.run(counting_workers(stage.proxy.bootstrap, tmp_path, "target"), COUNTERS, chaos_seconds)
    check_counts(stage.broker.bootstrap, stage.source, "target")
