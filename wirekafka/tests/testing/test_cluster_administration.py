"""Topics of a cluster of three brokers, as clients create, extend, move and delete them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from wirekafka.testing.cluster import TestCluster
from wirekafka.tests.testing.test_cluster import VALUES, consume, produce, run

MOVED = TopicPartition("moved", 0)


def replicas_of(admin: AdminClient, topic: str) -> list[tuple[int, list[int]]]:
    """Returns the leader and the replicas of each partition."""
    partitions = admin.list_topics(topic, timeout=60).topics[topic].partitions
    return [(partitions[index].leader, partitions[index].replicas) for index in sorted(partitions)]


def has_partitions(admin: AdminClient, topic: str, count: int) -> bool:
    """Whether the broker that is asked has heard of so many partitions."""
    return len(replicas_of(admin, topic)) == count


def until(condition: Callable[[], bool]) -> None:
    """Waits until all brokers have heard of a change, or a reassignment is complete."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.1)


def create_and_delete_again_and_again(bootstrap: str) -> None:
    """A topic can be created as soon as its deletion is acknowledged, with nothing of the former one."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for count in (1, 2, 3):
        most = count + 2
        admin.create_topics([NewTopic("again", num_partitions=count, replication_factor=3)])["again"].result(60)
        produce(bootstrap, "again", [b"%d" % count])
        assert consume(bootstrap, "again", 1) == [b"%d" % count]
        admin.create_partitions([NewPartitions("again", most)])["again"].result(60)
        until(partial(has_partitions, admin, "again", most))
        admin.delete_topics(["again"])["again"].result(60)


def move(bootstrap: str) -> None:
    """A partition moves to other brokers with its records, and its leader to the preferred replica."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    tool = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    admin.create_topics([NewTopic("moved", num_partitions=1, replica_assignment=[[1, 2]])])["moved"].result(60)
    produce(bootstrap, "moved", VALUES)
    assert tool.alter_partition_reassignments({MOVED: [3, 2]}) == {MOVED: None}
    until(lambda: not tool.list_partition_reassignments())
    assert tool.alter_partition_reassignments({MOVED: [2, 3]}) == {MOVED: None}
    tool.elect_leaders(0, {"moved": [0]}, raise_errors=False)
    until(lambda: replicas_of(admin, "moved") == [(2, [2, 3])])
    assert consume(bootstrap, "moved", len(VALUES)) == VALUES
    tool.close()


def test_topics_are_created_extended_and_deleted(tmp_path: Path) -> None:
    async def act(cluster: TestCluster) -> None:
        await trio.to_thread.run_sync(create_and_delete_again_and_again, cluster.bootstrap)

    run(act, tmp_path)


def test_partition_moves_to_other_brokers(tmp_path: Path) -> None:
    async def act(cluster: TestCluster) -> None:
        await trio.to_thread.run_sync(move, cluster.bootstrap)

    run(act, tmp_path)
