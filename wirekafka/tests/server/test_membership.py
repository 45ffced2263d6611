"""A broker as a member of a cluster whose ZooKeeper is the model on a socket."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from wirekafka.config import BrokerConfig, ConfigError
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.membership.controller_requests import ControllerRequests
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.server.membership import wait_for_image
from wirekafka.server.running import open_broker
from wirekafka.tests.membership.zookeeper import Stage, play
from wirekafka.zookeeper.kazoo_session import open_kazoo_session
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import ProducerIdBlock
from wirekafka.zookeeper.layout.configs import EntityConfigs
from wirekafka.zookeeper.layout.membership import BrokerRegistration, write_cluster_id
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.server import serve_model
from wirekafka.zookeeper.session import Create, Exists, GetData


@dataclass
class World:
    """A ZooKeeper, and a client of it below the chroot of the cluster."""

    path: Path
    model: ModelServer
    connect: str
    zookeeper: RetryingClient

    def config(self, node_id: int = 1, **settings: str) -> BrokerConfig:
        given = {
            "broker.id": str(node_id),
            "zookeeper.connect": self.connect,
            "zookeeper.session.timeout.ms": "4000",
            "controlled.shutdown.retry.backoff.ms": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self.path / str(node_id)),
        }
        return BrokerConfig.load(None, given | {name.replace("_", "."): value for name, value in settings.items()})

    async def registered_epoch(self, node_id: int = 1) -> int | None:
        stat = await self.zookeeper.ask(Exists(paths.broker(node_id)))
        return None if stat is None else stat.czxid


def run(act: Callable[[World], Awaitable[None]], path: Path) -> None:
    async def main() -> None:
        model = ModelServer(lambda: round(time.time() * 1000))
        async with serve_model(model) as address, open_kazoo_session(f"{address}/kafka") as client:
            await act(World(path, model, f"{address}/kafka", RetryingClient(client)))

    trio.run(main)


def test_member_is_registered_while_it_serves(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with open_broker(world.config(broker_rack="here")) as running:
            broker = running.broker
            assert broker.member is not None
            assert broker.member.broker_epoch == await world.registered_epoch()
            found = await world.zookeeper.ask(GetData(paths.broker(1)))
            registration = BrokerRegistration.read(1, found.data)
            [endpoint] = registration.endpoints
            assert (endpoint.listener.host, endpoint.listener.port) == ("127.0.0.1", running.addresses[0].port)
            assert registration.rack == "here"
        assert await world.registered_epoch() is None
        assert "version=0" in (tmp_path / "1" / "meta.properties").read_text()

    run(act, tmp_path)


def test_controlled_shutdown_ends_if_all_data_directories_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: World) -> None:
        has_begun = trio.Event()

        async def hang(*_: object) -> bool:
            has_begun.set()
            await trio.sleep_forever()

        monkeypatch.setattr(ControllerRequests, "controlled_shutdown", hang)

        async def serve() -> None:
            with pytest.raises(KafkaError, match="all data directories have failed"):
                async with open_broker(world.config()) as running:
                    all_failed.append(running.broker.logs.all_failed)

        all_failed: list[trio.Event] = []
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                await has_begun.wait()
                assert await world.registered_epoch() is not None
                all_failed[0].set()

    run(act, tmp_path)


def test_member_registers_again_after_its_session_has_expired(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with open_broker(world.config()) as running:
            member = running.broker.member
            assert member is not None
            first = member.broker_epoch
            stat = await world.zookeeper.ask(Exists(paths.broker(1)))
            assert stat is not None
            world.model.expire_session(stat.ephemeral_owner)
            with trio.fail_after(20):
                while member.broker_epoch == first:  # noqa: ASYNC110 - the epoch is a plain number
                    await trio.sleep(0.01)
            assert member.broker_epoch == await world.registered_epoch()

    run(act, tmp_path)


def test_members_have_one_cluster_id_and_keep_it(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with open_broker(world.config(1)) as first, open_broker(world.config(2)) as second:
            assert first.broker.cluster_id == second.broker.cluster_id != ""
            cluster_id = first.broker.cluster_id
        async with open_broker(world.config(1)) as again:
            assert again.broker.cluster_id == cluster_id

    run(act, tmp_path)


def test_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with open_broker(world.config()):
            pass
        async with open_kazoo_session(world.connect.replace("/kafka", "/other")) as client:
            await RetryingClient(client).create_persistent(paths.CLUSTER_ID, write_cluster_id("other"))
        with pytest.raises(KafkaError, match="leads to cluster other") as caught:
            async with open_broker(world.config(zookeeper_connect=world.connect.replace("/kafka", "/other"))):
                pass
        assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID

    run(act, tmp_path)


def test_member_has_the_dynamic_settings_of_zookeeper(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        configs = EntityConfigs({"log.retention.ms": "77"}).write()
        await world.zookeeper.create_persistent(paths.configs("brokers", paths.DEFAULT_ENTITY), configs)
        async with open_broker(world.config()) as running:
            assert running.broker.config.integer("log.retention.ms") == 77

    run(act, tmp_path)


def test_member_beside_brokers_before_kafka_3_0_takes_producer_ids_by_zookeeper(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with open_broker(world.config(inter_broker_protocol_version="2.8")) as running:
            with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
                running.broker.producer_ids.take()
            data = b""
            with trio.fail_after(20):
                while not data:
                    data = (await world.zookeeper.ask(GetData(paths.PRODUCER_ID_BLOCK))).data
                await trio.testing.wait_all_tasks_blocked(0.05)
            block = ProducerIdBlock.read(data)
            assert block is not None and (block.broker_id, block.first, block.last) == (1, 0, 999)
            assert [running.broker.producer_ids.take() for _ in range(3)] == [0, 1, 2]

    run(act, tmp_path)


def test_second_broker_with_the_same_id_is_refused(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with open_broker(world.config()):
            twin = world.config(log_dirs=str(tmp_path / "twin"))
            with pytest.raises(KafkaError, match=r"broker\.id must be unique"):
                async with open_broker(twin):
                    pass

    run(act, tmp_path)


def test_zookeeper_that_does_not_answer_ends_the_start_with_a_message(tmp_path: Path) -> None:
    settings = {
        "broker.id": "1",
        "zookeeper.connect": "127.0.0.1:1",
        "zookeeper.connection.timeout.ms": "300",
        "log.dirs": str(tmp_path),
        "listeners": "PLAINTEXT://127.0.0.1:0",
    }

    async def main(settings: dict[str, str]) -> None:
        async with open_broker(BrokerConfig.load(None, settings)):
            pass

    with pytest.raises(KafkaError, match=r"Start ZooKeeper, or correct zookeeper\.connect"):
        trio.run(main, settings)
    with pytest.raises(ConfigError, match="no path of ZooKeeper"):
        trio.run(main, settings | {"zookeeper.connect": "127.0.0.1:1//x"})


def test_broker_without_zookeeper_imports_nothing_of_a_member() -> None:
    source = """
import sys
import wirekafka.server.running, wirekafka.api.alter_configs
rooms = ("wirekafka.membership", "wirekafka.zookeeper", "wirekafka.server.membership", "kazoo")
found = [name for name in sys.modules if name.startswith(rooms)]
sys.exit(str(found) if found else 0)
"""
    assert subprocess.run([sys.executable, "-c", source], check=False, timeout=60).returncode == 0


def test_member_does_not_listen_before_it_is_registered(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = world.config(listeners=f"PLAINTEXT://127.0.0.1:{port}")
        async with open_kazoo_session(world.connect, session_timeout_ms=4_000) as client:
            former = RetryingClient(client)
            await former.create_persistent(paths.BROKER_IDS)
            await former.ask(Create(paths.broker(1), b"{}", ephemeral=True))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_run_until_cancelled, config)
                await until_bound(port)
                with pytest.raises(OSError, match="all attempts to connect"):
                    await trio.open_tcp_stream("127.0.0.1", port)
                nursery.cancel_scope.cancel()

    run(act, tmp_path)


@pytest.mark.parametrize("has_topics", [False, True])
def test_member_of_a_cluster_with_topics_is_ready_once_the_controller_has_sent_them(has_topics: bool) -> None:
    async def act(stage: Stage) -> None:
        await stage.zookeeper.create_persistent(paths.topic("flights") if has_topics else paths.TOPICS)
        member = SimpleNamespace(has_brokers=trio.Event(), has_image=trio.Event())
        is_ready = trio.Event()

        async def wait() -> None:
            await wait_for_image(stage.zookeeper, cast(Any, member))
            is_ready.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            assert not is_ready.is_set()
            member.has_brokers.set()
            await trio.sleep(1)
            assert is_ready.is_set() != has_topics
            member.has_image.set()
            await trio.sleep(1)
            assert is_ready.is_set()

    play(act)


async def _run_until_cancelled(config: BrokerConfig) -> None:
    async with open_broker(config):
        raise AssertionError("it runs before it is registered")


async def until_bound(port: int) -> None:
    """Waits until a socket is bound to the port."""
    with trio.fail_after(20):
        while True:
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    return
            await trio.sleep(0.01)
