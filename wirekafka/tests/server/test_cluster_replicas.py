"""Two brokers in one program, over sockets of loopback: the test is the controller that gives them their roles."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import trio

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode
from wirekafka.metadata.image import ClusterImage
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending
from wirekafka.replication.cluster_replicas import ClusterReplicas
from wirekafka.replication.fetcher import FetcherSettings
from wirekafka.replication.leader_replica import LeaderReplica
from wirekafka.replication.leadership import IsrChange, IsrChanged
from wirekafka.replication.member_topics import open_member_topics
from wirekafka.replication.replica_fetcher import ReplicaFetchers
from wirekafka.server.peers import PeerConnection, PeerSettings
from wirekafka.server.running import RunningBroker, open_broker
from wirekafka.tests.api.data_plane import batch, values_of
from wirekafka.tests.server.test_replication import PRODUCE, TOPIC_ID, until
from wirekafka.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from wirekafka.wire.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState

BROKERS = (1, 2)
RETRIED = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
Act = Callable[["Cluster"], Awaitable[None]]


class Settings:
    """No topic has settings of its own."""

    def read(self, topics: object) -> Pending[None]:
        pending: Pending[None] = Pending()
        pending.complete(None)
        return pending


class Member:
    """A broker with the replicas of a member."""

    def __init__(self, cluster: Cluster, running: RunningBroker) -> None:
        self.cluster, self.running, self.broker = cluster, running, running.broker
        broker = self.broker
        broker.topics.close()
        self.topics = open_member_topics(broker.config, ClusterImage())
        broker.topics = cast(Any, self.topics)
        self.replicas = ClusterReplicas(
            broker.config,
            broker.clock,
            broker.logs,
            self.topics,
            ReplicaFetchers(
                FetcherSettings(replica_id=broker.node_id, broker_epoch=lambda: broker.node_id, max_wait_ms=50, back_off_ms=20),
                fetcher_count=1,
                connect=self.connect,
                timers=broker.clock,
                slices=broker.slices,
            ),
            broker.slices,
            node_id=broker.node_id,
            propose=cluster.accept,
            live_brokers=dict.fromkeys(BROKERS),
            configs=Settings(),
            leader_replicas=broker.leader_replicas,
        )

    def connect(self, broker_id: int, number: int = 0) -> PeerConnection:
        settings = PeerSettings(client_id=f"broker-{self.broker.node_id}", back_off_ms=5, most_back_off_ms=20)
        address = self.cluster.addresses[broker_id]
        return PeerConnection(
            lambda: (address.host, address.port),
            settings,
            self.running.driver,
            self.broker.clock,
            self.broker.slices,
            self.cluster.nursery,
        )

    async def run(self, work: Any) -> Any:
        """Runs the work of a request; returns the response."""
        answers: list[Any] = []
        result: Any = self.broker.slices.run(work)
        if not isinstance(result, Pending):
            return result
        result.then(answers.append)
        await until(lambda: answers)
        return answers[0]

    def stored(self, index: int) -> bytes:
        """Returns all bytes of a log."""
        found = self.broker.logs.get(TopicPartition("flights", index))
        assert found is not None
        log = found.reader
        records = log.read(log.log_start_offset, max_bytes=1 << 30, end_offset=log.log_end_offset, min_one_batch=True)
        return records if isinstance(records, bytes) else records.read()


class Cluster:
    """The brokers, and what the controller knows.

    Attributes:
        leaders, epochs: the leader and the leader epoch of each partition.
        partition_epochs, in_sync: its partition epoch and in-sync replicas.
    """

    def __init__(self, running: list[RunningBroker], nursery: trio.Nursery, count: int) -> None:
        self.nursery = nursery
        self.addresses = {each.broker.node_id: each.addresses[0] for each in running}
        self.leaders = [-1] * count
        self.epochs = [0] * count
        self.partition_epochs = [0] * count
        self.in_sync: list[tuple[int, ...]] = [BROKERS for _ in range(count)]
        self.members = {each.broker.node_id: Member(self, each) for each in running}

    async def elect(self, index: int, leader: int, *, first: int = 1) -> None:
        """Tells both brokers a new leader, which must be in sync, `first` before the other one."""
        assert leader in self.in_sync[index]
        self.leaders[index] = leader
        self.epochs[index] += 1
        self.partition_epochs[index] += 1
        for broker_id in (first, 3 - first):
            await self.tell(broker_id, index)

    async def tell(self, broker_id: int, index: int) -> None:
        state = LeaderAndIsrPartitionState(
            partition_index=index,
            leader=self.leaders[index],
            leader_epoch=self.epochs[index],
            partition_epoch=self.partition_epochs[index],
            isr=[*self.in_sync[index]],
            replicas=[*BROKERS],
        )
        topic = LeaderAndIsrTopicState(topic_name="flights", topic_id=TOPIC_ID, partition_states=[state])
        member = self.members[broker_id]
        response = await member.run(member.replicas.apply(LeaderAndIsrRequest(controller_epoch=1, topic_states=[topic])))
        [error] = response.partition_errors
        assert error.error_code == ErrorCode.NONE

    async def delete_replica(self, broker_id: int, index: int) -> None:
        """Takes a replica from a follower, as a reassignment does."""
        self.in_sync[index] = (3 - broker_id,)
        self.epochs[index] += 1
        self.partition_epochs[index] += 1
        await self.tell(3 - broker_id, index)
        state = StopReplicaPartitionState(partition_index=index, leader_epoch=self.epochs[index], delete_partition=True)
        request = StopReplicaRequest(
            controller_epoch=1, topic_states=[StopReplicaTopicState(topic_name="flights", partition_states=[state])]
        )
        member = self.members[broker_id]
        response = await member.run(member.replicas.stop(request))
        assert response.partition_errors[0].error_code == ErrorCode.NONE

    def accept(self, leader: LeaderReplica, change: IsrChange) -> None:
        """Accepts a change of in-sync replicas if it is based on the newest state."""
        index = leader.partition.index
        if (change.leader_epoch, change.partition_epoch) != (self.epochs[index], self.partition_epochs[index]):
            return
        self.partition_epochs[index] += 1
        self.in_sync[index] = tuple(sorted(change.proposed))
        leader.take_answer(IsrChanged(change, change.leader_epoch, self.partition_epochs[index], self.in_sync[index]))

    async def produce(self, index: int, value: bytes) -> ErrorCode:
        """Produces with acks=all to the leader."""
        answers: list[Any] = []
        leader = self.leaders[index]
        connection = self.members[leader].connect(leader)
        data = PartitionProduceData(index=index, records=bytes(batch(value)))
        topic = TopicProduceData(name="flights", partition_data=[data])
        connection.send(PRODUCE, ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic]), 9, answers.append)
        await until(lambda: answers)
        connection.close()
        return ErrorCode(answers[0].responses[0].partition_responses[0].error_code)


def run(act: Act, path: Path, *, partition_count: int = 1) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            running = []
            for node_id in BROKERS:
                settings = {
                    "node.id": str(node_id),
                    "listeners": "PLAINTEXT://127.0.0.1:0",
                    "log.dirs": str(path / str(node_id)),
                    "min.insync.replicas": "2",
                }
                running.append(await stack.enter_async_context(open_broker(BrokerConfig.load(None, settings))))
            async with trio.open_nursery() as nursery:
                cluster = Cluster(running, nursery, partition_count)
                await act(cluster)
                for member in cluster.members.values():
                    member.replicas.close()
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_records_that_are_acknowledged_survive_changes_of_the_leaders(tmp_path: Path) -> None:
    async def act(cluster: Cluster) -> None:
        count, dice = 2, random.Random(5)
        acknowledged: list[set[bytes]] = [set() for _ in range(count)]
        is_over = False

        async def produce(index: int) -> None:
            number = 0
            while not is_over:
                value = b"%d" % number
                error = await cluster.produce(index, value)
                assert error is ErrorCode.NONE or error in RETRIED
                if error is ErrorCode.NONE:
                    acknowledged[index].add(value)
                    number += 1

        for index in range(count):
            await cluster.elect(index, 1)
        async with trio.open_nursery() as nursery:
            for index in range(count):
                nursery.start_soon(produce, index)
            for _ in range(8):
                index = dice.randrange(count)
                target = len(acknowledged[index]) + 3
                await until(lambda index=index, target=target: len(acknowledged[index]) >= target)
                await until(lambda index=index: cluster.in_sync[index] == BROKERS)
                await cluster.elect(index, 3 - cluster.leaders[index], first=dice.choice(BROKERS))
            is_over = True
        first, second = cluster.members.values()
        for index in range(count):
            await until(lambda index=index: first.stored(index) == second.stored(index))
            assert acknowledged[index] <= set(values_of(first.stored(index)))

    run(act, tmp_path, partition_count=2)


def test_follower_that_loses_its_replica_and_gets_it_again_is_filled_and_joins(tmp_path: Path) -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.elect(0, 1)
        assert await cluster.produce(0, b"a") is ErrorCode.NONE
        await cluster.delete_replica(2, 0)
        assert cluster.members[2].broker.logs.get(TopicPartition("flights", 0)) is None
        assert await cluster.produce(0, b"b") is ErrorCode.NOT_ENOUGH_REPLICAS
        await cluster.elect(0, 1)
        await until(lambda: cluster.in_sync[0] == BROKERS)
        assert await cluster.produce(0, b"c") is ErrorCode.NONE
        assert values_of(cluster.members[2].stored(0)) == [b"a", b"c"]

    run(act, tmp_path)
