"""Three brokers and a ZooKeeper in one process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from wirekafka.testing.cluster import TestCluster, open_cluster

VALUES = [b"value %d" % number for number in range(100)]


def run(act: Callable[[TestCluster], Awaitable[None]], path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(120):
            async with open_cluster(3, path) as cluster:
                await act(cluster)

    trio.run(main)


def create(bootstrap: str, topic: str, replicas: list[list[int]]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=len(replicas), replica_assignment=replicas)])[topic].result(60)


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    errors: list[object] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert (producer.flush(60), errors) == (0, [])


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(60)
        assert message is not None, f"{len(found)} of {count} records"
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    return found


def test_brokers_replicate_and_survive_the_loss_of_a_leader(tmp_path: Path) -> None:
    async def act(cluster: TestCluster) -> None:
        bootstrap = cluster.bootstrap
        assert bootstrap.count(",") == 2
        await trio.to_thread.run_sync(create, bootstrap, "kept", [[2, 3, 1]])
        await trio.to_thread.run_sync(produce, bootstrap, "kept", VALUES)
        assert await trio.to_thread.run_sync(consume, bootstrap, "kept", 100) == VALUES
        await cluster.stop(2)
        assert cluster.brokers.keys() == {1, 3}
        await trio.to_thread.run_sync(produce, cluster.bootstrap, "kept", VALUES)
        assert await trio.to_thread.run_sync(consume, cluster.bootstrap, "kept", 100) == VALUES
        await cluster.start(2)
        assert cluster.bootstrap == bootstrap
        member = cluster.brokers[1].broker.member
        assert member is not None
        assert member.image.brokers.keys() == {1, 2, 3}

    run(act, tmp_path)


def test_broker_whose_session_has_expired_returns(tmp_path: Path) -> None:
    async def act(cluster: TestCluster) -> None:
        await trio.to_thread.run_sync(create, cluster.bootstrap, "led", [[3, 1]])
        stat = cluster.zookeeper.tree.get("/kafka/brokers/ids/3").stat()
        cluster.zookeeper.expire_session(stat.ephemeral_owner)
        await until_registered_again(cluster, stat.czxid)
        await trio.to_thread.run_sync(produce, cluster.bootstrap, "led", VALUES)

    run(act, tmp_path)


async def until_registered_again(cluster: TestCluster, former_epoch: int) -> None:
    while True:
        znode = cluster.zookeeper.tree.find("/kafka/brokers/ids/3")
        if znode is not None and znode.czxid != former_epoch:
            return
        await trio.sleep(0.01)
