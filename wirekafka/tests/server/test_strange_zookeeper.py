"""A whole member whose ZooKeeper, the model on a socket, has content that nobody expects."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import structlog.testing
import trio
import trio.testing

from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.server.running import open_broker
from wirekafka.tests.server.test_membership import World, run
from wirekafka.wire.messages.update_metadata import UPDATE_METADATA, UpdateMetadataRequest
from wirekafka.zookeeper.kazoo_session import open_kazoo_session
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.configs import EntityConfigs, write_config_change
from wirekafka.zookeeper.layout.membership import BrokerRegistration, ControllerRegistration, write_cluster_id
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.server import serve_model
from wirekafka.zookeeper.session import Create, Delete, GetChildren, GetData, SetData, ZooKeeperError

KRAFT_CONTROLLER = ControllerRegistration(3000, 1, 7).write()
STRANGE = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"version":99}',
    b'{"version":"1","brokerid":"1","config":[],"entity_path":7,"id":{}}',
    b'{"version":1,"brokerid":99999999999,"config":{"retention.ms":7,"log.retention.ms":[]}}',
    b'{"version":2,"entity_path":"\\ud800","brokerid":null,"config":{"\\ud800":"1"}}',
    b'{"version":2,"entity_path":"topics/../../x"}',
    b'{"version":2,"entity_path":"topics/\\u0000"}',
    b'{"version":2,"entity_path":"brokers/1","brokerid":-7,"kraftControllerEpoch":0,"config":{}}',
    b"[" * 100_000,
    b'{"x":' + b"9" * 10_000 + b"}",
    b'{"config":{"retention.ms":"' + b"1" * 900_000 + b'"},"version":1}',
)


async def put(zookeeper: RetryingClient, path: str, content: bytes) -> None:
    """Creates a znode or replaces its content."""
    if not await zookeeper.create_persistent(path, content):
        await zookeeper.ask(SetData(path, content))


async def notify(zookeeper: RetryingClient, entity: str) -> None:
    """Says that settings have changed."""
    await zookeeper.create_sequential(paths.CONFIG_CHANGE_PREFIX, write_config_change(entity))


async def until(condition: Callable[[], object]) -> None:
    """Waits for a condition."""
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - of plain values, which tell nobody that they change
            await trio.sleep(0.01)


async def delete_all(zookeeper: RetryingClient, path: str) -> None:
    """Deletes a znode and what is below it, as an operator does by `deleteall`, also what is created meanwhile."""
    while (found := await zookeeper.find(GetChildren(path))) is not None:
        for name in found.names:
            await delete_all(zookeeper, f"{path}/{name}")
        with suppress(ZooKeeperError):  # NOT_EMPTY
            await zookeeper.ask(Delete(path))


def test_running_member_outlives_every_strange_content_and_follows_the_next_good_one(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        zookeeper = world.zookeeper
        async with open_broker(world.config()) as running:
            with structlog.testing.capture_logs() as logs:
                for content in STRANGE:
                    for path in (paths.CONTROLLER, paths.configs("topics", "t"), paths.configs("brokers", "1"), paths.broker(77)):
                        await put(zookeeper, path, content)
                    await zookeeper.create_sequential(paths.CONFIG_CHANGE_PREFIX, content)
                    await put(zookeeper, f"{paths.CONFIG_CHANGES}/strange", content)
                    await notify(zookeeper, "topics/t")
                    await notify(zookeeper, "brokers/1")
                await put(zookeeper, paths.configs("brokers", "1"), EntityConfigs({"log.retention.ms": "77"}).write())
                await notify(zookeeper, "brokers/1")
                await until(lambda: running.broker.config.get("log.retention.ms") == 77)
            assert all("remedy" in line or line["log_level"] != "error" for line in logs)
            assert all(len(str(line)) < 4_000 for line in logs)
            assert not [line for line in logs if line.get("exc_info")]
            assert await world.registered_epoch() is not None

    run(act, tmp_path)


def test_member_registers_again_after_its_chroot_was_deleted_and_restored(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with (
            open_broker(world.config()) as running,
            open_kazoo_session(world.connect.removesuffix("/kafka")) as client,
        ):
            root, member = RetryingClient(client), running.broker.member
            assert member is not None
            first = member.broker_epoch
            with structlog.testing.capture_logs() as logs:
                await delete_all(root, "/kafka")
                await until(lambda: any("waits until ZooKeeper has its cluster" in line["event"] for line in logs))
                await root.create_persistent("/kafka" + paths.BROKER_IDS)
                await root.create_persistent("/kafka" + paths.CLUSTER_ID, write_cluster_id(running.broker.cluster_id))
                with trio.fail_after(20):
                    while await world.registered_epoch() is None:
                        await trio.testing.wait_all_tasks_blocked(0.01)
            assert first < member.broker_epoch == await world.registered_epoch()

    run(act, tmp_path)


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        (paths.CONTROLLER, KRAFT_CONTROLLER, "A KRaft controller, 3000, rules the cluster"),
        (paths.MIGRATION, b'{"version":0}', "migrates to KRaft"),
        (paths.CLUSTER_ID, b"{", "/cluster/id is malformed"),
        (paths.CLUSTER_ID, write_cluster_id("another"), "belongs to cluster"),
    ],
)
def test_process_of_a_member_ends_with_a_plain_message(path: str, content: bytes, message: str, tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with open_broker(world.config()):
            pass
        await put(world.zookeeper, path, content)
        settings = tmp_path / "server.properties"
        given = {"broker.id": 1, "zookeeper.connect": world.connect, "listeners": "PLAINTEXT://127.0.0.1:0"}
        given["log.dirs"] = tmp_path / "1"
        settings.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        command = [sys.executable, "-m", "wirekafka", "serve", str(settings)]
        with trio.fail_after(60):
            ended = await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
        assert ended.returncode not in (0, None)
        assert message in ended.stderr.decode()
        assert b"Traceback" not in ended.stderr and b"ready" not in ended.stdout

    run(act, tmp_path)


def test_member_goes_on_when_a_controller_of_kraft_appears(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with open_broker(world.config()):
            with structlog.testing.capture_logs() as logs:
                await put(world.zookeeper, paths.CONTROLLER, KRAFT_CONTROLLER)
                await until(lambda: any("that this broker cannot use" in line["event"] for line in logs))
            assert await world.registered_epoch() is not None

    run(act, tmp_path)


def test_member_is_ready_when_the_controller_has_told_it_the_cluster(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        await world.zookeeper.create_persistent(paths.BROKER_IDS)
        await world.zookeeper.ask(Create(paths.CONTROLLER, ControllerRegistration(5, 1).write()))
        is_ready = trio.Event()

        async def serve() -> None:
            async with open_broker(world.config()):
                is_ready.set()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            with trio.fail_after(20):
                while (epoch := await world.registered_epoch()) is None:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                found = await world.zookeeper.ask(GetData(paths.broker(1)))
                [endpoint] = BrokerRegistration.read(1, found.data).endpoints
                stream = await trio.open_tcp_stream(endpoint.listener.host, endpoint.listener.port)
            await trio.sleep(0.2)
            assert not is_ready.is_set()
            request = UpdateMetadataRequest(controller_id=5, controller_epoch=1, broker_epoch=epoch)
            await stream.send_all(UPDATE_METADATA.frame(request, 8, correlation_id=1, client_id="controller"))
            with trio.fail_after(20):
                await is_ready.wait()
            await stream.aclose()
            nursery.cancel_scope.cancel()

    run(act, tmp_path)


def test_member_whose_zookeeper_has_stopped_stops_soon(tmp_path: Path) -> None:
    model = ModelServer(lambda: round(time.time() * 1000))
    running = trio.CancelScope()

    async def serve(task_status: trio.TaskStatus[str]) -> None:
        with running:
            async with serve_model(model) as address:
                task_status.started(address)
                await trio.sleep_forever()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            world = World(tmp_path, model, await nursery.start(serve), cast(RetryingClient, None))
            async with open_broker(world.config()):
                with structlog.testing.capture_logs() as logs:
                    running.cancel()
                    await until(lambda: any("connection to ZooKeeper was lost" in line["event"] for line in logs))
                nursery.cancel_scope.deadline = trio.current_time() + 20
        assert not nursery.cancel_scope.cancelled_caught

    trio.run(main)
