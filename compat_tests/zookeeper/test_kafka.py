"""Apache Kafka 3.9 with the model on a socket as its ZooKeeper: its shell, and a broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness import jars
from compat_tests.harness.broker import running
from compat_tests.harness.zookeeper import LOGGING, KafkaOfZooKeeper
from compat_tests.zookeeper.stage import Relay, SocketStage, play
from wirekafka.tests.zookeeper.contract import Desk, created, deleted
from wirekafka.zookeeper.session import Exists, GetChildren, GetData, Stat

pytestmark = pytest.mark.java

SHELL = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"


def run_shell(address: str, commands: str) -> str:
    """Returns what zookeeper-shell prints."""
    command = [*jars.java_command(jars.OLDER_KAFKA, SHELL, heap_mib=96, flags=(LOGGING,)), "-server", address]
    ended = subprocess.run(
        command, input=commands, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
    )
    return ended.stdout


def test_zookeeper_shell_works() -> None:
    commands = {
        "create /a hello": "Created /a",
        "get /a": "hello",
        "create -s -e /a/e- x": "Created /a/e-0000000000",
        "create -e /a/f": "Created /a/f",
        "ls /a": "[e-0000000000, f]",
        "set -v 7 /a two": "version No is not valid : /a",
        "getAcl /a": ": cdrwa",
        "stat -w /a": "numChildren = 2",
        "set /a two": "",
        "create /b/c": "Node does not exist: /b/c",
        "delete /a": "Node not empty: /a",
        "deleteall /a": "",
        "ls /": "[zookeeper]",
        "sync /": "Sync is OK",
        "setAcl / world:anyone:r": "KeeperErrorCode = Unimplemented for /",
        "quit": "",
    }

    async def test(stage: SocketStage) -> None:
        script = "\n".join(commands) + "\n"
        out = await trio.to_thread.run_sync(run_shell, stage.address, script)
        # The shell's second thread writes events, perhaps after the answers to later commands.
        assert "WatchedEvent state:SyncConnected type:NodeDataChanged path:/a" in out
        at = 0
        for command, answer in commands.items():
            found = out.find(answer, at)
            assert found >= 0, f"{command}: no {answer!r} in {out[at:]!r}"
            at = found

    play(test, None)


@dataclass
class Cluster:
    """Brokers of Kafka that use a model, over a relay.

    Attributes:
        desk: a client of the model, whose chroot is that of the brokers.
    """

    stage: SocketStage
    desk: Desk
    relay: Relay
    brokers: list[KafkaOfZooKeeper]


def on_kafka(test: Callable[[Cluster], Awaitable[None]], directory: Path, broker_count: int = 1) -> None:
    """Runs a test with the brokers 1 and so on."""

    async def on_stage(stage: SocketStage) -> None:
        address, relay = await stage.relayed()
        cluster = Cluster(stage, await Desk.open(stage, "/kafka"), relay, [])
        with ExitStack() as stack:
            for number in range(1, broker_count + 1):
                settings = {"zookeeper.session.timeout.ms": "3000"}
                broker = KafkaOfZooKeeper(directory / str(number), f"{address}{stage.root}/kafka", number, settings)
                await trio.to_thread.run_sync(stack.enter_context, running(broker))
                cluster.brokers.append(broker)
            await test(cluster)

    play(on_stage, None)


async def content(desk: Desk, path: str) -> Any:
    return json.loads((await desk.ask(GetData(path))).data)


async def until_exists(desk: Desk, path: str) -> Stat:
    with trio.fail_after(30):
        stat = await desk.ask(Exists(path, watch=True))
        if stat is None:
            await desk.until(created(path))
            stat = await desk.ask(Exists(path))
    assert stat is not None
    return stat


def create_topic(bootstrap: str, topic: str, replication_factor: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=replication_factor)])[topic].result(60)


def produce_and_consume(bootstrap: str, topic: str) -> bytes | None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"value")
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(20)
        return message.value() if message is not None and message.error() is None else None
    finally:
        consumer.close()


def test_kafka_broker_runs_on_the_model(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        desk, broker = cluster.desk, cluster.brokers[0]
        registration = await desk.ask(Exists("/brokers/ids/1"))
        assert registration is not None
        assert registration.ephemeral_owner != 0
        assert (await content(desk, "/brokers/ids/1"))["endpoints"] == [f"PLAINTEXT://{broker.bootstrap}"]
        assert (await content(desk, "/controller"))["brokerid"] == 1
        assert (await desk.ask(GetData("/controller_epoch"))).data == b"1"

        await trio.to_thread.run_sync(create_topic, broker.bootstrap, "t")
        assert (await desk.ask(GetChildren("/brokers/topics/t/partitions"))).names == ("0", "1")
        state = await content(desk, "/brokers/topics/t/partitions/1/state")
        assert (state["leader"], state["isr"], state["controller_epoch"]) == (1, [1], 1)
        assert await trio.to_thread.run_sync(produce_and_consume, broker.bootstrap, "t") == b"value"

        await trio.to_thread.run_sync(broker.terminate)
        assert await desk.ask(Exists("/brokers/ids/1")) is None
        assert await desk.ask(Exists("/controller")) is None

    on_kafka(test, tmp_path)


def test_kafka_broker_registers_again_after_its_session_has_expired(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        desk, model = cluster.desk, cluster.stage.model
        before = await desk.ask(Exists("/brokers/ids/1"))
        assert before is not None
        assert model is not None
        model.expire_session(before.ephemeral_owner)
        after = await until_exists(desk, "/brokers/ids/1")
        assert after.czxid > before.czxid
        assert after.ephemeral_owner not in (0, before.ephemeral_owner)
        await until_exists(desk, "/controller")
        assert (await desk.ask(GetData("/controller_epoch"))).data == b"2"

    on_kafka(test, tmp_path)


def test_kafka_cluster_on_the_model_survives_the_crash_of_its_controller(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        desk, (first, second) = cluster.desk, cluster.brokers
        assert (await content(desk, "/controller"))["brokerid"] == 1
        await trio.to_thread.run_sync(create_topic, second.bootstrap, "t", 2)
        first.kill()
        states = [f"/brokers/topics/t/partitions/{partition}/state" for partition in (0, 1)]
        with trio.fail_after(30):
            while [(await content(desk, path))["leader"] for path in states] != [2, 2]:  # noqa: ASYNC110 - Kafka writes them
                await trio.sleep(0.1)
        assert (await content(desk, "/controller"))["brokerid"] == 2
        assert [(await content(desk, path))["isr"] for path in states] == [[2], [2]]
        assert await trio.to_thread.run_sync(produce_and_consume, second.bootstrap, "t") == b"value"

    on_kafka(test, tmp_path, broker_count=2)


def test_kafka_broker_keeps_its_watches_after_a_lost_connection(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        desk, (broker,) = cluster.desk, cluster.brokers
        await trio.to_thread.run_sync(create_topic, broker.bootstrap, "t")
        before = await desk.ask(Exists("/brokers/ids/1"))
        count = cluster.relay.connection_count
        cluster.relay.cut()
        await cluster.stage.until(lambda: cluster.relay.connection_count > count)
        await desk.ask(Exists("/brokers/topics/t", watch=True))
        await desk.make("/admin/delete_topics/t")  # as tools of Kafka 2 do it: the controller watches the parent
        await desk.until(deleted("/brokers/topics/t"))
        assert await desk.ask(Exists("/brokers/ids/1")) == before

    on_kafka(test, tmp_path)
