"""Two brokers in one program, over sockets of loopback: one leads, the other follows, and the test is the controller."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode
from wirekafka.replication.fetcher import FetcherSettings, FollowedPartition
from wirekafka.replication.leader_replica import LeaderReplica
from wirekafka.replication.leadership import IsrChange, IsrChanged, PartitionState
from wirekafka.replication.partition import Partition
from wirekafka.replication.protocol_versions import VERSIONS, ReplicationVersions
from wirekafka.replication.replica_fetcher import ReplicaFetchers
from wirekafka.server.peers import PeerConnection, PeerSettings
from wirekafka.server.running import RunningBroker, open_broker
from wirekafka.tests.api.data_plane import batch
from wirekafka.wire.requests import RequestType

PRODUCE = RequestType(0, ProduceRequest, ProduceResponse, range(3, 10), flexible_since=9)
TOPIC_ID = b"t" * 16
LAG_MS = 10_000
Act = Callable[["Cluster"], Awaitable[None]]


class Member:
    """A broker, the partitions that it leads and those that it follows.

    Attributes:
        connections: its connections to the other broker, oldest first.
    """

    def __init__(self, cluster: Cluster, running: RunningBroker, partition_count: int, versions: ReplicationVersions) -> None:
        self.cluster = cluster
        self.running = running
        self.broker = running.broker
        self.node_id = running.broker.node_id
        self.connections: list[PeerConnection] = []
        self.partitions: list[Partition] = self.broker.topics.create("flights", partition_count).partitions
        self.fetchers = ReplicaFetchers(
            FetcherSettings(
                replica_id=self.node_id, broker_epoch=lambda: 10 * self.node_id, versions=versions, max_wait_ms=50, back_off_ms=20
            ),
            fetcher_count=1,
            connect=self.connect,
            timers=self.broker.clock,
            slices=self.broker.slices,
        )

    def connect(self, broker_id: int, number: int) -> PeerConnection:
        settings = PeerSettings(client_id=f"broker-{self.node_id}-fetcher-{number}", back_off_ms=5, most_back_off_ms=20)
        self.connections.append(self.cluster.connect(self, broker_id, settings))
        return self.connections[-1]

    def followed(self, index: int) -> FollowedPartition:
        return FollowedPartition("flights", self.cluster.topic_id, index)

    def lead(self, epoch: int, in_sync_replicas: tuple[int, ...]) -> None:
        for index, old in enumerate(self.partitions):
            self.fetchers.stop(self.followed(index))
            partition = Partition("flights", old.topic_id, index, old.writable_log, leader=self.node_id, is_sole_replica=False)
            self.replace(index, partition)
            leader = LeaderReplica(
                partition,
                replica_lag_time_max_ms=LAG_MS,
                broker_epochs={1: 10, 2: 20},
                propose=self.cluster.accept,
                now_ms=self.broker.clock.monotonic_ms,
            )
            self.broker.leader_replicas[partition] = leader
            leader.lead(PartitionState(epoch, epoch, (1, 2), in_sync_replicas))

    def follow(self, leader_id: int, epoch: int) -> None:
        for index, old in enumerate(self.partitions):
            self.broker.leader_replicas.pop(old, None)
            partition = Partition("flights", old.topic_id, index, old.writable_log, leader=leader_id, is_sole_replica=False)
            self.replace(index, partition)
            self.fetchers.follow(self.followed(index), partition.writable_log, leader_id, epoch)

    def replace(self, index: int, partition: Partition) -> None:
        self.partitions[index].close()
        self.partitions[index] = partition

    def stored(self, index: int = 0) -> bytes:
        """Returns all bytes of the log."""
        log = self.partitions[index].log
        records = log.read(log.log_start_offset, max_bytes=1 << 30, end_offset=log.log_end_offset, min_one_batch=True)
        return records if isinstance(records, bytes) else records.read()

    @property
    def high_watermarks(self) -> list[int]:
        return [partition.log.high_watermark for partition in self.partitions]


class Cluster:
    """Two brokers, and a producer for each.

    Attributes:
        changes: the changes of the in-sync replicas, which the controller accepts at once.
    """

    def __init__(self, running: list[RunningBroker], nursery: trio.Nursery, count: int, versions: ReplicationVersions) -> None:
        self.nursery = nursery
        self.changes: list[IsrChange] = []
        self.addresses = {each.broker.node_id: each.addresses[0] for each in running}
        self.members = {each.broker.node_id: Member(self, each, count, versions) for each in running}
        first, second = self.members.values()
        # A follower asks for the id that the leader knows: here, each broker leads with the id of its own topic.
        self.topic_id = first.partitions[0].topic_id
        self.ids = {first.node_id: self.topic_id, second.node_id: second.partitions[0].topic_id}

    def connect(self, member: Member, broker_id: int, settings: PeerSettings) -> PeerConnection:
        address = self.addresses[broker_id]
        return PeerConnection(
            lambda: (address.host, address.port),
            settings,
            member.running.driver,
            member.broker.clock,
            member.broker.slices,
            self.nursery,
        )

    def elect(self, leader_id: int, epoch: int, in_sync_replicas: tuple[int, ...] = (1, 2)) -> None:
        follower_id = 3 - leader_id
        for member in self.members.values():
            member.fetchers.close()
        self.topic_id = self.ids[leader_id]
        self.members[leader_id].lead(epoch, in_sync_replicas)
        self.members[follower_id].follow(leader_id, epoch)

    def accept(self, leader: LeaderReplica, change: IsrChange) -> None:
        self.changes.append(change)
        in_sync_replicas = tuple(sorted(change.proposed))
        leader.take_answer(IsrChanged(change, change.leader_epoch, change.partition_epoch + 1, in_sync_replicas))

    async def produce(self, broker_id: int, *values: bytes, index: int = 0, acks: int = -1) -> int:
        """Produces a batch by a connection of its own; returns the error code."""
        answers: list[Any] = []
        connection = self.connect(self.members[broker_id], broker_id, PeerSettings(client_id="producer"))
        data = PartitionProduceData(index=index, records=bytes(batch(*values)))
        request = ProduceRequest(
            acks=acks, timeout_ms=5_000, topic_data=[TopicProduceData(name="flights", partition_data=[data])]
        )
        connection.send(PRODUCE, request, 9, answers.append)
        await until(lambda: answers)
        connection.close()
        assert answers[0] is not None
        return int(answers[0].responses[0].partition_responses[0].error_code)

    async def until_equal(self) -> None:
        """Waits until both brokers have the same bytes in all partitions, and have committed them."""
        first, second = self.members.values()
        ends = [partition.log.log_end_offset for partition in first.partitions]
        await until(lambda: first.high_watermarks == second.high_watermarks == ends)
        for index in range(len(first.partitions)):
            assert first.stored(index) == second.stored(index) != b""


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def open_cluster(path: Path, partition_count: int, versions: ReplicationVersions) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        running = []
        for node_id in (1, 2):
            settings = {
                "node.id": str(node_id),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(path / str(node_id)),
                "min.insync.replicas": "1",
            }
            running.append(await stack.enter_async_context(open_broker(BrokerConfig.load(None, settings))))
        async with trio.open_nursery() as nursery:
            cluster = Cluster(running, nursery, partition_count, versions)
            yield cluster
            for member in cluster.members.values():
                member.fetchers.close()
            nursery.cancel_scope.cancel()


def run(act: Act, path: Path, *, partition_count: int = 1, versions: ReplicationVersions = VERSIONS["3.9"]) -> None:
    async def main() -> None:
        async with open_cluster(path, partition_count, versions) as cluster:
            await act(cluster)

    trio.run(main)


@pytest.mark.parametrize("release", ["2.8", "3.3", "3.9"])
def test_records_that_are_acknowledged_are_on_both_brokers(tmp_path: Path, release: str) -> None:
    async def act(cluster: Cluster) -> None:
        cluster.elect(1, epoch=1)
        for number in range(5):
            for index in range(3):
                assert await cluster.produce(1, b"value %d" % number, b"x" * 1_000, index=index) == ErrorCode.NONE
        follower = cluster.members[2]
        assert [partition.log.log_end_offset for partition in follower.partitions] == [10, 10, 10]
        await cluster.until_equal()

    run(act, tmp_path, partition_count=3, versions=VERSIONS[release])


def test_follower_gets_batches_that_are_larger_than_its_limits(tmp_path: Path) -> None:
    async def act(cluster: Cluster) -> None:
        cluster.elect(1, epoch=1)
        assert await cluster.produce(1, *[b"y" * 1_000 for _ in range(1_000)]) == ErrorCode.NONE
        for _ in range(30):
            await cluster.produce(1, b"z" * 100_000, acks=1)
        await cluster.until_equal()

    run(act, tmp_path)


def test_connection_that_is_cut_is_followed_by_another_and_nothing_is_lost(tmp_path: Path) -> None:
    async def act(cluster: Cluster) -> None:
        cluster.elect(1, epoch=1)
        follower = cluster.members[2]
        for number in range(5):
            assert await cluster.produce(1, b"before %d" % number) == ErrorCode.NONE
            [connection] = follower.connections
            await until(lambda connection=connection: connection.is_connected)
            assert connection._socket is not None
            connection._socket.shutdown(socket.SHUT_RDWR)
            assert await cluster.produce(1, b"after %d" % number) == ErrorCode.NONE
        await cluster.until_equal()
        assert follower.partitions[0].log.log_end_offset == 10

    run(act, tmp_path)


def test_leader_that_listens_nowhere_for_a_while_is_followed_again(tmp_path: Path) -> None:
    async def act(cluster: Cluster) -> None:
        cluster.elect(1, epoch=1)
        await cluster.produce(1, b"before")
        [connection] = cluster.members[2].connections
        right_address, connection._address = connection._address, lambda: ("127.0.0.1", 1)
        assert connection._socket is not None
        connection._socket.shutdown(socket.SHUT_RDWR)
        await cluster.produce(1, b"meanwhile", acks=1)
        await until(lambda: connection._failure_count > 2)
        assert cluster.members[1].high_watermarks == [1]
        connection._address = right_address
        await cluster.until_equal()

    run(act, tmp_path)


def test_follower_that_was_away_joins_the_in_sync_replicas(tmp_path: Path) -> None:
    async def act(cluster: Cluster) -> None:
        cluster.elect(1, epoch=1, in_sync_replicas=(1,))
        await cluster.produce(1, b"a")
        await until(lambda: cluster.changes)
        assert [change.in_sync_replicas for change in cluster.changes] == [((1, 10), (2, 20))]
        await cluster.until_equal()

    run(act, tmp_path)


def test_deposed_leader_truncates_what_was_not_committed(tmp_path: Path) -> None:
    async def act(cluster: Cluster) -> None:
        cluster.elect(1, epoch=1)
        await cluster.produce(1, b"committed")
        await cluster.until_equal()
        cluster.members[2].fetchers.close()
        await cluster.produce(1, b"lost", b"lost", acks=1)
        cluster.elect(2, epoch=2)
        assert await cluster.produce(2, b"kept") == ErrorCode.NONE
        await cluster.until_equal()
        assert b"kept" in cluster.members[1].stored() and b"lost" not in cluster.members[1].stored()
        assert await cluster.produce(1, b"refused") == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(act, tmp_path)


def test_follower_that_lost_its_log_is_filled_from_the_leaders_start(tmp_path: Path) -> None:
    async def act(cluster: Cluster) -> None:
        leader = cluster.members[1]
        cluster.elect(1, epoch=1, in_sync_replicas=(1,))
        cluster.members[2].fetchers.close()
        for number in range(4):
            await cluster.produce(1, b"%d" % number, acks=1)
        await until(lambda: leader.high_watermarks == [4])
        leader.partitions[0].delete_records(2)
        cluster.elect(1, epoch=2, in_sync_replicas=(1,))
        await cluster.until_equal()
        assert cluster.members[2].partitions[0].log.log_start_offset == 2

    run(act, tmp_path)


def test_broker_without_other_brokers_imports_nothing_of_replication() -> None:
    source = """
import sys
import wirekafka.api.fetch.handler, wirekafka.api.produce.handler, wirekafka.server.running
names = "leader_replica leadership following follower_replica fetcher replica_fetcher replica_sessions".split()
unwanted = {f"wirekafka.replication.{name}" for name in names} | {"wirekafka.server.peers", "wirekafka.api.fetch.replica_pass"}
unwanted |= {"wirekafka.metadata.image", "wirekafka.metadata.cluster_topics", "wirekafka.replication.member_topics"}
sys.exit(str(unwanted & sys.modules.keys()) if unwanted & sys.modules.keys() else 0)
"""
    assert subprocess.run([sys.executable, "-c", source], check=False, timeout=60).returncode == 0
