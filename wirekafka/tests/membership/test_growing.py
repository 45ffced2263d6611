"""A single node moves its topics into ZooKeeper, and is interrupted at every point."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from wirekafka.clock import Clock
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.directory import DirectoryLockedError
from wirekafka.membership import growing
from wirekafka.membership.cluster_id import join_cluster
from wirekafka.membership.growing import grow
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.membership.single_node import Owner, find_owner
from wirekafka.metadata.cluster_features import features_of_member
from wirekafka.names import TopicPartition
from wirekafka.tests.membership.nodes import LOGINS, ORDERS, all_znodes, config_of, make_node, meta_of, open_node
from wirekafka.tests.membership.zookeeper import Stage, play
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FinalizedFeatures, ProducerIdBlock
from wirekafka.zookeeper.layout.configs import EntityConfigs
from wirekafka.zookeeper.layout.membership import write_cluster_id
from wirekafka.zookeeper.layout.moves import Direction, Move
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import Create, GetData, Multi

MOST_REQUESTS = 65
LEVELS = {name: levels.most for name, levels in features_of_member(config_of(Path())).items()}
"""The features of a single node that no client has changed, as far as a cluster can have them."""


class CrashError(BaseException):
    """The end of the process."""


async def grown(stage: Stage, path: Path) -> dict[str, bytes]:
    """Moves the node of a directory, and returns the znodes."""
    await grow(stage.zookeeper, config_of(path), Clock())
    return await all_znodes(stage.zookeeper)


def check_is_member(path: Path, cluster_id: str) -> None:
    for directory in ("a", "b"):
        meta = meta_of(path / directory)
        assert (meta["version"], meta["broker.id"], meta["cluster.id"]) == ("0", "1", cluster_id)
    assert find_owner(config_of(path)) is Owner.CLUSTER
    assert (path / "a" / "wirekafka.metadata.migrated").exists()


def test_topics_settings_and_producer_ids_move_with_their_ids_and_the_next_leader_epoch(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_node(tmp_path)
        found = await grown(stage, tmp_path)
        mine = ReplicaAssignment((1,))
        assert found[paths.CLUSTER_ID] == write_cluster_id(cluster_id)
        assert found[paths.topic("orders")] == TopicAssignment(ORDERS, {0: mine, 1: mine}).write()
        assert found[paths.topic("logins")] == TopicAssignment(LOGINS, {0: mine}).write()
        for name, leader_epoch in {("orders", 0): 1, ("orders", 1): 7, ("logins", 0): 1}.items():
            expected = PartitionState(1, leader_epoch, (1,), 0).write()
            assert found[paths.partition_state(TopicPartition(*name))] == expected
        assert found["/config/topics/orders"] == EntityConfigs({"retention.ms": "1000"}).write()
        assert found["/config/topics/logins"] == EntityConfigs({}).write()
        assert found["/config/brokers/<default>"] == EntityConfigs({"log.retention.ms": "5000"}).write()
        assert found["/config/brokers/1"] == EntityConfigs({"message.max.bytes": "2000000"}).write()
        assert found[paths.PRODUCER_ID_BLOCK] == ProducerIdBlock(1, 2000, 2999).write()
        assert found[paths.FEATURE] == FinalizedFeatures(LEVELS).write()
        assert paths.MOVE not in found
        check_is_member(tmp_path, cluster_id)
        assert await join_cluster(stage.zookeeper, lambda: "new") == cluster_id

    play(act)


def test_directory_that_is_new_or_a_members_is_left_alone(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        assert await grown(stage, tmp_path) == {}
        cluster_id = await make_node(tmp_path)
        found = await grown(stage, tmp_path)
        assert await grown(stage, tmp_path) == found
        check_is_member(tmp_path, cluster_id)

    play(act)


def test_node_without_topics_gives_the_cluster_its_id(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        node = await open_node(tmp_path)
        await node.close()
        found = await grown(stage, tmp_path)
        assert found[paths.CLUSTER_ID] == write_cluster_id(node.logs.cluster_id)
        check_is_member(tmp_path, node.logs.cluster_id)

    play(act)


def test_chroot_of_another_cluster_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_node(tmp_path)
        await stage.zookeeper.create_persistent(paths.CLUSTER_ID, write_cluster_id("another"))
        before = await all_znodes(stage.zookeeper)
        with pytest.raises(KafkaError, match=f"leads to cluster another.*single node of cluster {cluster_id}") as caught:
            await grow(stage.zookeeper, config_of(tmp_path), Clock())
        assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
        assert "name one in zookeeper.connect" in str(caught.value.message)
        assert await all_znodes(stage.zookeeper) == before
        assert find_owner(config_of(tmp_path)) is Owner.SINGLE_NODE

    play(act)


@pytest.mark.parametrize(
    "path", ["/brokers/topics/t", "/brokers/ids/7", "/config/users/u", "/controller_epoch", "/feature", "/migration"]
)
def test_chroot_that_is_not_empty_is_refused(tmp_path: Path, path: str) -> None:
    async def act(stage: Stage) -> None:
        await make_node(tmp_path)
        await stage.zookeeper.create_persistent(path)
        before = await all_znodes(stage.zookeeper)
        with pytest.raises(KafkaError, match="not empty"):
            await grow(stage.zookeeper, config_of(tmp_path), Clock())
        assert await all_znodes(stage.zookeeper) == before

    play(act)


def test_empty_directories_of_kafka_are_no_obstacle(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_node(tmp_path)
        for path in paths.PERSISTENT:
            await stage.zookeeper.create_persistent(path)
        await grown(stage, tmp_path)
        check_is_member(tmp_path, cluster_id)

    play(act)


def test_node_that_is_running_does_not_move(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_node(tmp_path)
        node = await open_node(tmp_path)
        with pytest.raises(DirectoryLockedError):
            await grow(stage.zookeeper, config_of(tmp_path), Clock())
        assert await all_znodes(stage.zookeeper) == {}
        await node.close()

    play(act)


def test_brokers_do_not_join_during_the_move(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_node(tmp_path)
        await stage.zookeeper.create_persistent(paths.MOVE, Move(Direction.IN, 9, "other").write())
        with pytest.raises(KafkaError, match="Broker 9 is moving the topics"):
            await join_cluster(stage.zookeeper, lambda: "new")
        with pytest.raises(KafkaError, match="Broker 9 is moving the topics"):
            await grow(stage.zookeeper, config_of(tmp_path), Clock())
        assert set(await all_znodes(stage.zookeeper)) == {paths.MOVE}

    play(act)


def test_directory_that_has_moved_is_refused_as_a_single_node(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_node(tmp_path)
        await grown(stage, tmp_path)
        with pytest.raises(KafkaError, match="start the broker with zookeeper.connect"):
            await open_node(tmp_path)

    play(act)


def test_settings_of_groups_move(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_node(tmp_path)
        node = await open_node(tmp_path)
        node.topics.group_configs.alter("a/b", {"consumer.heartbeat.interval.ms": "6000"})
        await node.close()
        await grown(stage, tmp_path)
        found = await stage.zookeeper.ask(GetData(f"{paths.GROUP_CONFIGS}/a%2Fb"))
        assert EntityConfigs.read("", found.data).values == {"consumer.heartbeat.interval.ms": "6000"}

    play(act)


def test_node_that_changes_after_an_interrupted_move_moves_as_it_is_then(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_node(tmp_path)
        # Attempt one writes all znodes, and ends before the journal is renamed.
        with pytest.MonkeyPatch.context() as patch, pytest.raises(CrashError):
            patch.setattr(growing, "rename_migrated", crash)
            await grow(stage.zookeeper, config_of(tmp_path), Clock())
        node = await open_node(tmp_path)
        node.topics.delete(node.topics.get("orders"))
        node.topics.create("orders", 1, topic_id=b"orders-is-anew!!")
        node.topics.alter(node.topics.get("logins"), {"retention.ms": "7"})
        node.topics.alter_broker_configs("1", {})
        await node.close()
        found = await grown(stage, tmp_path)
        fresh = Stage()
        shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
        (tmp_path / "copy" / "a" / "wirekafka.metadata.migrated").rename(tmp_path / "copy" / "a" / "wirekafka.metadata")
        assert found == await grown(fresh, tmp_path / "copy")
        assert "/config/brokers/1" not in found
        assert paths.partition(TopicPartition("orders", 1)) not in found

    play(act)


def crash(*_: object) -> None:
    raise CrashError


# Crashes at every request


class Crashes:
    """Ends the process at one request to ZooKeeper.

    Attributes:
        count: the requests so far.
    """

    def __init__(self, number: int, fault: Fault | None, scope: trio.CancelScope) -> None:
        self.count = 0
        self._number = number
        self._fault = fault
        self._scope = scope

    def choose(self, operation: object) -> Fault | None:
        """Is `ModelClient.choose_fault`."""
        self.count += 1
        if self.count != self._number:
            return None
        self._scope.cancel()
        return self._fault


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, bytes]]:
    """The directories of a node, the id of its cluster, and the znodes of its move without a fault."""
    path = tmp_path_factory.mktemp("node")
    found: list[tuple[str, dict[str, bytes]]] = []

    async def act(stage: Stage) -> None:
        cluster_id = await make_node(path / "node")
        shutil.copytree(path / "node", path / "moved")
        count = Crashes(0, None, trio.CancelScope())
        stage.client.choose_fault = count.choose
        await grow(stage.zookeeper, config_of(path / "moved"), Clock())
        assert MOST_REQUESTS - 10 <= count.count <= MOST_REQUESTS
        stage.client.choose_fault = lambda operation: None
        found.append((cluster_id, await all_znodes(stage.zookeeper)))

    play(act)
    return path / "node", *found[0]


@pytest.mark.parametrize("number", range(1, MOST_REQUESTS + 1))
def test_move_that_crashes_at_any_request_is_repeated_with_the_same_znodes(
    tmp_path: Path, reference: tuple[Path, str, dict[str, bytes]], number: int
) -> None:
    source, cluster_id, expected = reference
    shutil.copytree(source, tmp_path / "node")

    async def act(stage: Stage) -> None:
        with trio.CancelScope() as scope:
            stage.client.choose_fault = Crashes(number, None, scope).choose
            await grow(stage.zookeeper, config_of(tmp_path / "node"), Clock())
        await trio.sleep(1)
        stage.client.choose_fault = lambda operation: None
        stage.client.close()
        next_life = RetryingClient(stage.connect())
        await grow(next_life, config_of(tmp_path / "node"), Clock())
        assert await all_znodes(next_life) == expected
        check_is_member(tmp_path / "node", cluster_id)

    play(act)


@pytest.mark.parametrize("number", range(1, MOST_REQUESTS + 1))
def test_move_survives_a_lost_connection_at_any_request(
    tmp_path: Path, reference: tuple[Path, str, dict[str, bytes]], number: int
) -> None:
    source, cluster_id, expected = reference
    shutil.copytree(source, tmp_path / "node")

    async def act(stage: Stage) -> None:
        stage.client.choose_fault = Crashes(number, Fault.REPLY_LOST, trio.CancelScope()).choose
        await grow(stage.zookeeper, config_of(tmp_path / "node"), Clock())
        stage.client.choose_fault = lambda operation: None
        assert await all_znodes(stage.zookeeper) == expected
        check_is_member(tmp_path / "node", cluster_id)

    play(act)


def crash_before(_: Callable[..., object]) -> Callable[..., object]:
    return crash


def crash_after(step: Callable[..., object]) -> Callable[..., object]:
    def act(*given: object) -> None:
        step(*given)
        raise CrashError

    return act


@pytest.mark.parametrize("step", ["rename_migrated", "change_version"])
@pytest.mark.parametrize("crashing", [crash_before, crash_after])
def test_move_that_crashes_at_a_step_on_disk_is_repeated_with_the_same_znodes(
    tmp_path: Path,
    reference: tuple[Path, str, dict[str, bytes]],
    step: str,
    crashing: Callable[[Callable[..., object]], Callable[..., object]],
) -> None:
    source, cluster_id, expected = reference
    shutil.copytree(source, tmp_path / "node")

    async def act(stage: Stage) -> None:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(CrashError):
            patch.setattr(growing, step, crashing(getattr(growing, step)))
            await grow(stage.zookeeper, config_of(tmp_path / "node"), Clock())
        await grow(stage.zookeeper, config_of(tmp_path / "node"), Clock())
        assert await all_znodes(stage.zookeeper) == expected
        check_is_member(tmp_path / "node", cluster_id)

    play(act)


def test_move_that_lost_the_race_for_the_chroot_is_undone(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_node(tmp_path)
        other = stage.connect()

        def choose(operation: object) -> Fault | None:
            if not isinstance(operation, Multi) or has_joined:
                return None
            # The other broker is faster.
            has_joined.append(True)
            other.submit(Create(paths.CLUSTER_ID, write_cluster_id("another")), lambda created: None)
            return Fault.REQUEST_LOST

        has_joined: list[bool] = []
        stage.client.choose_fault = choose
        with pytest.raises(KafkaError, match="leads to cluster another"):
            await grow(stage.zookeeper, config_of(tmp_path), Clock())
        stage.client.choose_fault = lambda operation: None
        assert find_owner(config_of(tmp_path)) is Owner.SINGLE_NODE
        node = await open_node(tmp_path)
        assert node.topics.find("orders") is not None
        await node.close()

    play(act)
