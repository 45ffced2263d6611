"""Members in one program, over sockets of loopback, whose ZooKeeper is the model on a socket: one of them is the controller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from wirekafka.config.endpoints import Listener
from wirekafka.membership.member import Member
from wirekafka.metadata.image import PartitionImage
from wirekafka.names import new_topic_id
from wirekafka.server.local_controller import address_of, newest_registration
from wirekafka.server.running import open_broker
from wirekafka.tests.controller import controllers
from wirekafka.tests.controller.stage import a_registration
from wirekafka.tests.server.test_membership import World, run
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.configs import EntityConfigs, write_config_change
from wirekafka.zookeeper.layout.membership import BrokerRegistration, ControllerRegistration, Endpoint
from wirekafka.zookeeper.layout.topics import ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.session import GetData, SetData


class Cluster:
    """Members that run until they are stopped."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self.world = world
        self.members: dict[int, Member] = {}
        self._nursery = nursery
        self._stops: dict[int, tuple[trio.CancelScope, trio.Event]] = {}

    async def start(self, node_id: int, **settings: str) -> None:
        """Starts a member, and waits until it is ready."""
        await self._nursery.start(self._run, node_id, settings)

    async def stop(self, node_id: int) -> None:
        """Stops a member in order, and waits for its end."""
        scope, has_ended = self._stops[node_id]
        scope.cancel()
        await has_ended.wait()

    async def _run(
        self, node_id: int, settings: dict[str, str], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        has_ended = trio.Event()
        with trio.CancelScope() as scope:
            async with open_broker(self.world.config(node_id, **settings)) as running:
                assert running.broker.member is not None
                self.members[node_id] = running.broker.member
                self._stops[node_id] = scope, has_ended
                task_status.started()
                await trio.sleep_forever()
        del self.members[node_id]
        has_ended.set()

    async def registered_controller(self) -> int:
        found = await self.world.zookeeper.ask(GetData(paths.CONTROLLER))
        return ControllerRegistration.read(found.data).broker_id

    async def create_topic(self, name: str, *replicas: tuple[int, ...]) -> None:
        """Writes the znode of a topic, as old tools do."""
        assignments = {index: ReplicaAssignment(each) for index, each in enumerate(replicas)}
        await self.world.zookeeper.create_persistent(paths.topic(name), TopicAssignment(new_topic_id(), assignments).write())

    def partition(self, node_id: int, topic: str, index: int = 0) -> PartitionImage | None:
        """Returns a partition as a member describes it."""
        found = self.members[node_id].image.topics.get(topic)
        return None if found is None else found.partitions.get(index)

    def leader(self, node_id: int, topic: str, index: int = 0) -> int | None:
        found = self.partition(node_id, topic, index)
        return None if found is None else found.leader

    @property
    def active(self) -> list[int]:
        return [
            node_id
            for node_id, member in self.members.items()
            if member.local_controller is not None and member.local_controller.is_active
        ]


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - of plain values, which tell nobody that they change
            await trio.sleep(0.005)


@asynccontextmanager
async def cluster_of(world: World, *node_ids: int, **settings: str) -> AsyncIterator[Cluster]:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(world, nursery)
        for node_id in node_ids:
            await cluster.start(node_id, **settings)
        yield cluster
        for node_id in [*cluster.members]:
            await cluster.stop(node_id)


def test_first_broker_rules_itself_and_those_that_come_later(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with cluster_of(world, 1, 2, 3) as cluster:
            assert cluster.active == [1]
            assert await cluster.registered_controller() == 1
            for member in cluster.members.values():
                await until(lambda member=member: sorted(member.image.brokers) == [1, 2, 3])
                assert member.image.controller_id == 1

    run(act, tmp_path)


def test_topic_whose_znode_is_written_gets_leaders_on_all_brokers(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with cluster_of(world, 1, 2, 3) as cluster:
            await cluster.create_topic("flights", (1, 2, 3), (2, 3, 1), (3, 1, 2))
            for node_id in cluster.members:
                await until(lambda asked=node_id: [cluster.leader(asked, "flights", index) for index in range(3)] == [1, 2, 3])

    run(act, tmp_path)


def test_controller_that_stops_moves_its_leaderships_and_is_replaced_before_its_session_would_end(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with cluster_of(world, 1, 2, 3) as cluster:
            await cluster.create_topic("flights", (1, 2, 3))
            await until(lambda: cluster.leader(2, "flights") == 1)
            began = trio.current_time()
            await cluster.stop(1)
            await until(lambda: len(cluster.active) == 1 and 1 not in cluster.members[2].image.brokers)
            assert trio.current_time() - began < 3, "the session would last 4 s"
            [controller] = cluster.active
            assert await cluster.registered_controller() == controller
            for node_id in cluster.members:
                await until(lambda asked=node_id: cluster.members[asked].image.controller_id == controller)
                assert cluster.leader(node_id, "flights") in (2, 3)
            await cluster.start(1)
            await until(lambda: (found := cluster.partition(2, "flights")) and sorted(found.in_sync_replicas) == [1, 2, 3])

    run(act, tmp_path)


def test_controller_whose_session_expires_is_replaced_and_obeys(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with cluster_of(world, 1, 2) as cluster:
            await cluster.create_topic("flights", (1, 2))
            await until(lambda: cluster.leader(2, "flights") == 1)
            former = cluster.members[1].broker_epoch
            found = await world.zookeeper.ask(GetData(paths.broker(1)))
            world.model.expire_session(found.stat.ephemeral_owner)
            await until(lambda: cluster.members[1].broker_epoch > former and len(cluster.active) == 1)
            await until(lambda: (view := cluster.partition(2, "flights")) and sorted(view.in_sync_replicas) == [1, 2])

    run(act, tmp_path)


def test_only_broker_of_a_cluster_stops_at_once(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        async with cluster_of(world, 1, controlled_shutdown_retry_backoff_ms="60000") as cluster:
            await cluster.create_topic("flights", (1, 2))
            await until(lambda: cluster.leader(1, "flights") == 1)
            with trio.fail_after(10):
                await cluster.stop(1)

    run(act, tmp_path)


@pytest.mark.parametrize("entity", ["topics/flights", "brokers/<default>"])
def test_setting_that_allows_unclean_elections_elects_a_leader_of_an_offline_partition(tmp_path: Path, entity: str) -> None:
    async def act(world: World) -> None:
        async with cluster_of(world, 1, 2) as cluster:
            await cluster.create_topic("flights", (2, 1))
            await until(lambda: cluster.leader(1, "flights") == 2)
            await cluster.stop(1)
            await until(lambda: (view := cluster.partition(2, "flights")) and view.in_sync_replicas == (2,))
            await cluster.stop(2)
            await cluster.start(1)
            await until(lambda: cluster.leader(1, "flights") == -1)
            kind, _, name = entity.partition("/")
            await put_configs(world, kind, name)
            await until(lambda: cluster.leader(1, "flights") == 1)

    run(act, tmp_path)


async def put_configs(world: World, kind: str, entity: str) -> None:
    configs = EntityConfigs({"unclean.leader.election.enable": "true"}).write()
    await world.zookeeper.create_persistent(paths.configs(kind, entity), configs)
    await world.zookeeper.create_sequential(paths.CONFIG_CHANGE_PREFIX, write_config_change(f"{kind}/{entity}"))


def test_address_of_a_broker_is_that_of_the_listener_for_brokers() -> None:
    endpoints = tuple(Endpoint(Listener(name, "b1", port), "PLAINTEXT") for name, port in (("CLIENTS", 1), ("BROKERS", 2)))
    assert address_of(BrokerRegistration(endpoints), "BROKERS") == ("b1", 2)
    assert address_of(BrokerRegistration(endpoints), "OTHERS") is None


def test_registration_of_a_broker_is_the_newest_one() -> None:
    cluster = controllers.Cluster(1, 2)
    controller = cluster.start().controller
    first, changed = a_registration(2), a_registration(2, rack="moved")

    cluster.stage.do(SetData(paths.broker(2), changed.write()))

    assert newest_registration(controller, 2, first) == changed
    controller.resign("the test says so")
    assert newest_registration(controller, 2, first) == first
