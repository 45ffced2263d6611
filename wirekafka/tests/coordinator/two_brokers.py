"""Two brokers of a cluster without sockets: their requests to each other pass through the codec. The test is the controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio
import trio.testing

from wirekafka.coordinator.cluster import CoordinatorCluster
from wirekafka.metadata.image import ClusterImage, LiveBroker
from wirekafka.names import GROUP_METADATA_TOPIC, NO_LEADER_ID, TRANSACTION_STATE_TOPIC, TopicPartition
from wirekafka.pending import Pending, finish
from wirekafka.replication.partition import Partition
from wirekafka.testing.data_plane import Caller, open_caller
from wirekafka.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

TOPIC = "t"


class CallerChannel:
    """A connection to a broker; the answer comes in a later turn of the loop.

    Attributes:
        sent: the requests, with their versions.
        is_cut: whether requests end without an answer.
        is_silent: whether requests do not end.
    """

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.sent: list[tuple[Message, int]] = []
        self.is_cut = False
        self.is_silent = False
        self.is_closed = False

    def send(self, kind: RequestType[Any, Any], request: Any, version: int, on_end: Callable[[Any], object]) -> None:
        self.sent.append((request, version))
        self.caller.broker.clock.call_later(1, lambda: self._answer(request, version, on_end))

    def _answer(self, request: Any, version: int, on_end: Callable[[Any], object]) -> None:
        if self.is_cut:
            on_end(None)
            return
        if self.is_silent or self.is_closed:
            return
        response = self.caller.ask(request, version)
        if isinstance(response, Pending):
            response.then(on_end)
        else:
            on_end(response)

    def close(self) -> None:
        self.is_closed = True


class ClusterMember:
    """A broker of the cluster.

    Attributes:
        channels: its connections to the other broker, by purpose.
        hosted: the partitions that the broker hosts by the controller's LeaderAndIsr, of those that the image lacks.
    """

    def __init__(self, cluster: TwoBrokers, caller: Caller) -> None:
        self.cluster = cluster
        self.caller = caller
        self.broker = caller.broker
        self.image = ClusterImage()
        self.image.brokers = {node_id: LiveBroker(node_id, {}, None) for node_id in (1, 2)}
        self.channels: dict[str, CallerChannel] = {}
        for name in (TOPIC, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
            topic = self.broker.topics.create(TOPIC, 2) if name == TOPIC else self.broker.topics.create_internal(name)
            for partition in topic.partitions:
                partition.leader = NO_LEADER_ID
        self.hosted: set[TopicPartition] = set()
        self.view = CoordinatorCluster(self.broker.node_id, self.image, self, is_hosted=self.hosted.__contains__)
        self.broker.join_cluster(self.view)

    def connect(self, broker_id: int, purpose: str) -> CallerChannel:
        assert purpose not in self.channels or self.channels[purpose].is_closed, "one connection is enough"
        channel = self.channels[purpose] = CallerChannel(self.cluster.members[broker_id].caller)
        return channel

    def partition(self, topic: str, index: int) -> Partition:
        return self.broker.topics.get(topic).partitions[index]

    def take_role(self, topic: str, index: int, leader_id: int, epoch: int) -> None:
        partition = self.partition(topic, index)
        was_leader = partition.leader == self.broker.node_id
        partition.leader, partition.leader_epoch = leader_id, epoch
        if leader_id == self.broker.node_id:
            self.broker.load_coordinator(partition)
        elif was_leader:
            self.broker.unload_coordinator(partition, epoch)


class TwoBrokers:
    """The cluster, in which each partition has one replica."""

    def __init__(self, callers: list[Caller]) -> None:
        self.members: dict[int, ClusterMember] = {}
        for caller in callers:
            self.members[caller.broker.node_id] = ClusterMember(self, caller)

    async def elect(self, topic: str, index: int, leader_id: int, epoch: int = 1) -> None:
        """Makes a broker the leader of a partition, and tells both brokers."""
        for member in self.members.values():
            member.take_role(topic, index, leader_id, epoch)
        self.tell(topic, index, leader_id, epoch)
        await trio.sleep(1)

    def tell(self, topic: str, index: int, leader_id: int, epoch: int = 1) -> None:
        """Tells both brokers who leads a partition."""
        for member in self.members.values():
            finish(member.image.update(told([(topic, index, leader_id)], member.image, epoch)))

    def tell_brokers(self, *live_brokers: int) -> None:
        """Tells both brokers who is alive."""
        for member in self.members.values():
            member.image.brokers = {node_id: LiveBroker(node_id, {}, None) for node_id in live_brokers}
            for callback in member.image.on_brokers_change:
                callback()

    def forget(self, topic: str) -> None:
        """Tells both brokers that a topic was deleted."""
        for member in self.members.values():
            del member.image.topics[topic]

    def coordinator_epochs(self, broker_id: int, topic: str, index: int) -> list[int]:
        """Returns the coordinator epochs of the producers in a partition."""
        producers = self.members[broker_id].partition(topic, index).log.producers
        return [producer.coordinator_epoch for producer in producers]


def told(leaders: Iterable[tuple[str, int, int]], image: ClusterImage, epoch: int = 1) -> UpdateMetadataRequest:
    """Returns an UpdateMetadata request of the controller of an image, with the same live brokers.

    Args:
        leaders: topics, each with the index of one partition and the partition's leader.
        epoch: the leader epoch of the partitions.
    """
    brokers = [UpdateMetadataBroker(id=each) for each in image.brokers]
    request = UpdateMetadataRequest(controller_epoch=image.controller_epoch, live_brokers=brokers)
    for topic, index, leader_id in leaders:
        state = UpdateMetadataPartitionState(
            partition_index=index, leader=leader_id, leader_epoch=epoch, isr=[leader_id], replicas=[leader_id]
        )
        topic_id = topic.encode().ljust(16, b"-")[:16]
        request.topic_states.append(UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id, partition_states=[state]))
    return request


def run(body: Callable[[TwoBrokers], Awaitable[None]], path: Path, **settings: str) -> None:
    """Runs a test with two brokers: 1 leads t-0 and all of __transaction_state, 2 leads t-1 and all of __consumer_offsets."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            callers = []
            for node_id in (1, 2):
                opened = open_caller(
                    path / str(node_id),
                    node_id=str(node_id),
                    offsets_topic_num_partitions="1",
                    transaction_state_log_num_partitions="1",
                    **settings,
                )
                callers.append(await stack.enter_async_context(opened))
            cluster = TwoBrokers(callers)
            await cluster.elect(TRANSACTION_STATE_TOPIC, 0, 1, epoch=5)
            await cluster.elect(GROUP_METADATA_TOPIC, 0, 2)
            await cluster.elect(TOPIC, 0, 1)
            await cluster.elect(TOPIC, 1, 2)
            await body(cluster)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def partitions(*indexes: int) -> list[TopicPartition]:
    return [TopicPartition(TOPIC, index) for index in indexes]
