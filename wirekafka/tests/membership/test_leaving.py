"""The last member of a cluster becomes a single node, and is interrupted at every point."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from wirekafka.clock import Clock
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.directory import DirectoryLockedError
from wirekafka.log.manager import LogManager
from wirekafka.membership import leaving
from wirekafka.membership.cluster_id import join_cluster
from wirekafka.membership.growing import grow
from wirekafka.membership.leaving import Left, leave
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.membership.single_node import Owner, find_owner
from wirekafka.names import TopicPartition
from wirekafka.tests.membership.nodes import (
    LOGINS,
    ORDERS,
    all_znodes,
    config_of,
    journal_of,
    make_node,
    meta_of,
    open_node,
)
from wirekafka.tests.membership.test_growing import CrashError, Crashes, crash_after, crash_before
from wirekafka.tests.membership.zookeeper import Stage, play
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FinalizedFeatures, ProducerIdBlock
from wirekafka.zookeeper.layout.configs import EntityConfigs
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import Create, SetData, ZooKeeperError, ZooKeeperErrorCode

MOST_REQUESTS = 93


async def make_member(stage: Stage, path: Path) -> str:
    """Makes the directories of a member from those of a node, and returns the id of its cluster."""
    cluster_id = await make_node(path)
    await grow(stage.zookeeper, config_of(path), Clock())
    return cluster_id


async def put(stage: Stage, path: str, data: bytes) -> None:
    if not await stage.zookeeper.create_persistent(path, data):
        await stage.zookeeper.ask(SetData(path, data))


def check_is_single(path: Path, cluster_id: str) -> None:
    for directory in ("a", "b"):
        meta = meta_of(path / directory)
        assert (meta["version"], meta["node.id"], meta["cluster.id"]) == ("1", "1", cluster_id)
    assert find_owner(config_of(path)) is Owner.SINGLE_NODE
    assert not (path / "a" / "wirekafka.metadata.migrated").exists()
    journal = journal_of(path)
    orders, logins = journal.topics["orders"], journal.topics["logins"]
    assert (orders.topic_id, orders.partition_count, orders.overrides) == (ORDERS, 2, {"retention.ms": "1000"})
    assert (logins.topic_id, logins.partition_count, logins.overrides) == (LOGINS, 1, {})
    assert journal.broker_configs == {"": {"log.retention.ms": "5000"}, "1": {"message.max.bytes": "2000000"}}


def test_member_takes_topics_settings_and_producer_ids_with_it_and_empties_the_chroot(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_member(stage, tmp_path)
        await put(stage, paths.partition_state(TopicPartition("orders", 0)), PartitionState(1, 12, (1,), 5).write())
        await put(stage, paths.PRODUCER_ID_BLOCK, ProducerIdBlock(2, 8000, 8999).write())
        assert await leave(stage.zookeeper, config_of(tmp_path), Clock()) == Left(2, 3)
        assert await all_znodes(stage.zookeeper) == {}
        check_is_single(tmp_path, cluster_id)
        node = await open_node(tmp_path)
        assert [each.leader_epoch for each in node.topics.get("orders").partitions] == [12, 12]
        assert [each.log.log_end_offset for each in node.topics.get("orders").partitions] == [0, 1]
        await node.close()
        assert '"block_end": "8999"' in (tmp_path / "a" / "latest-producer-id-block").read_text()

    play(act)


def test_node_that_has_left_grows_again_with_the_same_topics(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_member(stage, tmp_path)
        before = await all_znodes(stage.zookeeper)
        await leave(stage.zookeeper, config_of(tmp_path), Clock())
        await grow(stage.zookeeper, config_of(tmp_path), Clock())
        after = await all_znodes(stage.zookeeper)
        assert after.keys() == before.keys()
        assert after[paths.topic("orders")] == before[paths.topic("orders")]
        state = PartitionState.read(TopicPartition("orders", 1), after[paths.partition_state(TopicPartition("orders", 1))])
        assert state.leader_epoch == 8
        assert await join_cluster(stage.zookeeper, lambda: "new") == cluster_id

    play(act)


def test_levels_of_features_are_those_of_the_cluster(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_member(stage, tmp_path)
        await put(stage, paths.FEATURE, FinalizedFeatures({"transaction.version": 1}).write())
        await leave(stage.zookeeper, config_of(tmp_path), Clock())
        assert journal_of(tmp_path).feature_levels == {"transaction.version": 1}

    play(act)


def test_settings_of_groups_stay(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_member(stage, tmp_path)
        settings = {"share.isolation.level": "read_committed", "no.such": "1"}
        await put(stage, f"{paths.GROUP_CONFIGS}/a%2Fb", EntityConfigs(settings).write())
        left = await leave(stage.zookeeper, config_of(tmp_path), Clock())
        assert left.dropped == ("no.such=1 of group a/b",)
        assert journal_of(tmp_path).group_configs == {"a/b": {"share.isolation.level": "read_committed"}}

    play(act)


def test_settings_that_a_single_node_cannot_have_are_named(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_member(stage, tmp_path)
        await put(stage, "/config/topics/orders", EntityConfigs({"retention.ms": "1000", "strange": "1"}).write())
        await put(stage, "/config/brokers/1", EntityConfigs({"message.max.bytes": "2000000", "num.io.threads": "3"}).write())
        await put(stage, "/config/brokers/2", EntityConfigs({"message.max.bytes": "1"}).write())
        await put(stage, "/config/users/alice", EntityConfigs({"producer_byte_rate": "1"}).write())
        left = await leave(stage.zookeeper, config_of(tmp_path), Clock())
        expected = [
            "strange=1 of topic orders",
            "num.io.threads=3 of broker 1",
            "the settings of broker 2",
            "the settings of users",
        ]
        assert sorted(left.dropped) == sorted(expected)
        check_is_single(tmp_path, cluster_id)

    play(act)


def test_folders_that_the_cluster_does_not_have_are_renamed(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_member(stage, tmp_path)
        await put(stage, paths.topic("orders"), TopicAssignment(ORDERS, {0: ReplicaAssignment((1,))}).write())
        await leave(stage.zookeeper, config_of(tmp_path), Clock())
        node = await open_node(tmp_path)
        assert len(node.topics.get("orders").partitions) == 1
        await node.close()
        names = [*os.listdir(tmp_path / "a"), *os.listdir(tmp_path / "b")]
        assert [name.split(".")[0] for name in names if name.endswith("-stray")] == ["orders-1"]

    play(act)


def test_directory_without_folders_of_partitions_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_member(stage, tmp_path)
        before = await all_znodes(stage.zookeeper)
        with pytest.raises(KafkaError, match="Name all log.dirs of the broker"):
            await leave(stage.zookeeper, config_of(tmp_path, log_dirs=str(tmp_path / "a")), Clock())
        assert await all_znodes(stage.zookeeper) == before

    play(act)


OTHERS = {
    "another broker is registered": (paths.broker(2), b"{}", "Brokers are registered.*2"),
    "this broker is registered": (paths.broker(1), b"{}", "Brokers are registered.*1"),
    "another broker has a replica": (
        paths.topic("logins"),
        TopicAssignment(LOGINS, {0: ReplicaAssignment((1, 2))}).write(),
        "Other brokers have replicas of the topics logins",
    ),
    "a topic is being deleted": (paths.deleted_topic("logins"), b"", "Topics are being deleted: logins"),
    "another broker alone is in sync": (
        paths.partition_state(TopicPartition("logins", 0)),
        PartitionState(-1, 3, (2,), 5).write(),
        "not in sync in the partitions logins-0",
    ),
}


@pytest.mark.parametrize("obstacle", OTHERS)
def test_member_that_is_not_the_last_is_refused_and_nothing_changes(tmp_path: Path, obstacle: str) -> None:
    path, data, message = OTHERS[obstacle]

    async def act(stage: Stage) -> None:
        await make_member(stage, tmp_path)
        await put(stage, path, data)
        before = await all_znodes(stage.zookeeper)
        with pytest.raises(KafkaError, match=message) as caught:
            await leave(stage.zookeeper, config_of(tmp_path), Clock())
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert await all_znodes(stage.zookeeper) == before
        assert find_owner(config_of(tmp_path)) is Owner.CLUSTER

    play(act)


@pytest.mark.parametrize("error", [OSError("no space"), ZooKeeperError(ZooKeeperErrorCode.NO_AUTH)])
def test_leave_that_fails_before_its_first_write_lets_brokers_join(tmp_path: Path, error: Exception) -> None:
    def fail(*given: object) -> None:
        raise error

    async def act(stage: Stage) -> None:
        await make_member(stage, tmp_path)
        before = await all_znodes(stage.zookeeper)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leaving, "_prepare_logs", fail)
            with pytest.raises(type(error)):
                await leave(stage.zookeeper, config_of(tmp_path), Clock())
        assert await all_znodes(stage.zookeeper) == before
        assert find_owner(config_of(tmp_path)) is Owner.CLUSTER

    play(act)


def test_leave_with_a_malformed_topic_lets_brokers_join(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_member(stage, tmp_path)
        await put(stage, paths.topic("logins"), b"{")
        before = await all_znodes(stage.zookeeper)
        with pytest.raises(MalformedZnodeError):
            await leave(stage.zookeeper, config_of(tmp_path), Clock())
        assert await all_znodes(stage.zookeeper) == before

    play(act)


def test_member_that_runs_is_refused(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_member(stage, tmp_path)
        logs = await LogManager.open(config_of(tmp_path), Clock(), cluster_id=cluster_id)
        with pytest.raises(DirectoryLockedError):
            await leave(stage.zookeeper, config_of(tmp_path), Clock())
        await logs.close()

    play(act)


def test_single_node_and_new_directory_are_refused(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_member(stage, tmp_path / "member")
        await make_node(tmp_path / "node")
        with pytest.raises(KafkaError, match="single node already"):
            await leave(stage.zookeeper, config_of(tmp_path / "node"), Clock())
        with pytest.raises(KafkaError, match="not a data directory"):
            await leave(stage.zookeeper, config_of(tmp_path / "new"), Clock())

    play(act)


def test_broker_that_joins_at_the_last_moment_keeps_the_chroot(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_member(stage, tmp_path)
        other = stage.connect()
        await trio.lowlevel.checkpoint()

        def join(*given: object) -> None:
            write_node(*given)
            other.submit(Create(paths.broker(2), b"{}", ephemeral=True), lambda created: None)

        write_node: Callable[..., None] = leaving._write_node
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KafkaError, match="Brokers have joined.*2"):
            patch.setattr(leaving, "_write_node", join)
            await leave(stage.zookeeper, config_of(tmp_path), Clock())
        check_is_single(tmp_path, cluster_id)
        assert paths.topic("orders") in await all_znodes(stage.zookeeper)
        other.close()
        assert await leave(stage.zookeeper, config_of(tmp_path), Clock()) == Left(is_repeated=True)
        assert await all_znodes(stage.zookeeper) == {}

    play(act)


def test_member_does_not_start_while_it_leaves(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await make_member(stage, tmp_path)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(CrashError):
            patch.setattr(leaving, "_empty", crash_before(leaving._empty))
            await leave(stage.zookeeper, config_of(tmp_path), Clock())
        with pytest.raises(KafkaError, match="which the broker of this data directory has left"):
            await grow(stage.zookeeper, config_of(tmp_path), Clock())
        with pytest.raises(KafkaError, match="Broker 1 is leaving the cluster"):
            await join_cluster(stage.zookeeper, lambda: "new")

    play(act)


# Crashes at every request


@pytest.mark.parametrize("number", range(1, MOST_REQUESTS + 1))
def test_leave_that_crashes_at_any_request_is_repeated(tmp_path: Path, number: int) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_member(stage, tmp_path)
        with trio.CancelScope() as scope:
            stage.client.choose_fault = Crashes(number, None, scope).choose
            await leave(stage.zookeeper, config_of(tmp_path), Clock())
        await trio.sleep(1)
        stage.client.choose_fault = lambda operation: None
        stage.client.close()
        await repeat(RetryingClient(stage.connect()), tmp_path)
        check_is_single(tmp_path, cluster_id)

    play(act)


async def repeat(zookeeper: RetryingClient, path: Path) -> None:
    """Leaves again; nothing is left to do only if the chroot is empty."""
    if await all_znodes(zookeeper):
        try:
            await leave(zookeeper, config_of(path), Clock())
        except KafkaError:
            assert set(await all_znodes(zookeeper)) <= {"/cluster"}
    assert set(await all_znodes(zookeeper)) <= {"/cluster"}


@pytest.mark.parametrize("number", range(1, MOST_REQUESTS + 1))
def test_leave_survives_a_lost_connection_at_any_request(tmp_path: Path, number: int) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_member(stage, tmp_path)
        faults = Crashes(number, Fault.REPLY_LOST, trio.CancelScope())
        stage.client.choose_fault = faults.choose
        await leave(stage.zookeeper, config_of(tmp_path), Clock())
        assert faults.count >= MOST_REQUESTS - 10
        stage.client.choose_fault = lambda operation: None
        assert await all_znodes(stage.zookeeper) == {}
        check_is_single(tmp_path, cluster_id)

    play(act)


@pytest.mark.parametrize("step", ["_prepare_logs", "_write_node", "change_version", "remove_migrated"])
@pytest.mark.parametrize("crashing", [crash_before, crash_after])
def test_leave_that_crashes_at_a_step_on_disk_is_repeated(
    tmp_path: Path, step: str, crashing: Callable[[Callable[..., object]], Callable[..., object]]
) -> None:
    async def act(stage: Stage) -> None:
        cluster_id = await make_member(stage, tmp_path)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(CrashError):
            patch.setattr(leaving, step, crashing(getattr(leaving, step)))
            await leave(stage.zookeeper, config_of(tmp_path), Clock())
        await leave(stage.zookeeper, config_of(tmp_path), Clock())
        check_is_single(tmp_path, cluster_id)
        assert await all_znodes(stage.zookeeper) == {}

    play(act)
