"""Apache Kafka 3.9 with the model on a socket as its ZooKeeper: its shell, and a broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness import jars
from compat_tests.harness.broker import running
from compat_tests.harness.zookeeper import LOGGING, KafkaOfZooKeeper
from compat_tests.zookeeper.stage import SocketStage, play
from wirekafka.tests.zookeeper.contract import Desk, created
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
        "set /a two": "WatchedEvent state:SyncConnected type:NodeDataChanged path:/a",
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
        at = 0
        for command, answer in commands.items():
            found = out.find(answer, at)
            assert found >= 0, f"{command}: no {answer!r} in {out[at:]!r}"
            at = found

    play(test, None)


Test = Callable[[SocketStage, Desk, list[KafkaOfZooKeeper]], Awaitable[None]]


def on_kafka(test: Test, directory: Path, broker_count: int = 1) -> None:
    """Runs a test with brokers of Kafka, 1 and so on, that use a model."""

    async def on_stage(stage: SocketStage) -> None:
        desk = await Desk.open(stage, "/kafka")
        connect = f"{stage.address}{stage.root}/kafka"
        brokers = [
            KafkaOfZooKeeper(directory / str(number), connect, number, {"zookeeper.session.timeout.ms": "3000"})
            for number in range(1, broker_count + 1)
        ]
        with ExitStack() as stack:
            for broker in brokers:
                await trio.to_thread.run_sync(stack.enter_context, running(broker))
            await test(stage, desk, brokers)

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
    admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=replication_factor)])[topic].result(20)


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
    async def test(stage: SocketStage, desk: Desk, brokers: list[KafkaOfZooKeeper]) -> None:
        (broker,) = brokers
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
    async def test(stage: SocketStage, desk: Desk, brokers: list[KafkaOfZooKeeper]) -> None:
        before = await desk.ask(Exists("/brokers/ids/1"))
        assert before is not None
        assert stage.model is not None
        stage.model.expire_session(before.ephemeral_owner)
        after = await until_exists(desk, "/brokers/ids/1")
        assert after.czxid > before.czxid
        assert after.ephemeral_owner not in (0, before.ephemeral_owner)
        await until_exists(desk, "/controller")
        assert (await desk.ask(GetData("/controller_epoch"))).data == b"2"

    on_kafka(test, tmp_path)


def test_kafka_cluster_on_the_model_survives_the_crash_of_its_controller(tmp_path: Path) -> None:
    async def test(stage: SocketStage, desk: Desk, brokers: list[KafkaOfZooKeeper]) -> None:
        first, second = brokers
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
