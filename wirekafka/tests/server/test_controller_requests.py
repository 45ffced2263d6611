"""A whole member, with ZooKeeper's model and a controller that the test plays: the requests of the member to the controller."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.names import TopicPartition
from wirekafka.replication.cluster_replicas import ClusterReplicas
from wirekafka.server import membership
from wirekafka.server.peers import PeerConnection, PeerConnections
from wirekafka.server.running import RunningBroker, open_broker
from wirekafka.tests.membership.played_broker import PlayedBroker
from wirekafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from wirekafka.wire.messages.alter_partition import (
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopicResponse,
)
from wirekafka.wire.messages.controlled_shutdown import (
    CONTROLLED_SHUTDOWN,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from wirekafka.wire.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from wirekafka.wire.messages.leader_and_isr import (
    LEADER_AND_ISR,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from wirekafka.wire.messages.stop_replica import (
    STOP_REPLICA,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from wirekafka.wire.messages.update_metadata import (
    UPDATE_METADATA,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message
from wirekafka.zookeeper.kazoo_session import open_kazoo_session
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import ControllerRegistration
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.server import serve_model

METADATA = RequestType(3, MetadataRequest, MetadataResponse, range(9, 10), flexible_since=9)
INIT_PRODUCER_ID = RequestType(22, InitProducerIdRequest, InitProducerIdResponse, range(4, 5), flexible_since=2)
MEMBER_ID, CONTROLLER_ID, NOBODY = 1, 5, 9
FLIGHTS = TopicPartition("flights", 0)
TOPIC_ID = b"flights-flights-"
Act = Callable[["World"], Awaitable[None]]


class World:
    """A running member, and the broker that plays its controller.

    Attributes:
        controller: the played broker.
    """

    def __init__(self, running: RunningBroker, nursery: trio.Nursery, controller: PlayedBroker, port: int) -> None:
        self.running = running
        self.controller = controller
        self._controller_port = port
        [address] = running.addresses
        connections = PeerConnections(running.driver, running.broker.clock, running.broker.slices, nursery)
        connect = partial(connections.open, lambda: (address.host, address.port), timeout_ms=20_000, most_response_bytes=1 << 20)
        self.from_controller, self.client = connect("controller"), connect("client")

    @property
    def broker_epoch(self) -> int:
        member = self.running.broker.member
        assert member is not None
        return member.broker_epoch

    @property
    def live_broker(self) -> UpdateMetadataBroker:
        """The played broker, as UpdateMetadata describes it."""
        endpoint = UpdateMetadataEndpoint(port=self._controller_port, host="127.0.0.1", listener="PLAINTEXT")
        return UpdateMetadataBroker(id=CONTROLLER_ID, endpoints=[endpoint], rack=None)

    @property
    def replicas(self) -> ClusterReplicas:
        member = self.running.broker.member
        assert member is not None
        return member.replicas

    async def ask(self, connection: PeerConnection, kind: RequestType[Any, Any], request: Message) -> Any:
        """Returns the member's answer, in the newest version."""
        answers: list[Any] = []
        connection.send(kind, request, kind.versions[-1], answers.append)
        await until(lambda: answers)
        assert answers[0] is not None
        return answers[0]

    async def tell_brokers(self) -> None:
        """Tells the member that the played broker is alive, and is the controller."""
        request = UpdateMetadataRequest(
            controller_id=CONTROLLER_ID, controller_epoch=1, broker_epoch=self.broker_epoch, live_brokers=[self.live_broker]
        )
        assert (await self.ask(self.from_controller, UPDATE_METADATA, request)).error_code == ErrorCode.NONE

    async def make_leader(self) -> None:
        """Makes the member the leader of a partition whose other replica, in sync, is on the played broker."""
        brokers = [MEMBER_ID, CONTROLLER_ID]
        state = LeaderAndIsrPartitionState(
            leader=MEMBER_ID, leader_epoch=3, partition_epoch=8, isr=brokers, replicas=brokers, is_new=True, controller_epoch=1
        )
        request = LeaderAndIsrRequest(
            controller_id=CONTROLLER_ID,
            controller_epoch=1,
            broker_epoch=self.broker_epoch,
            topic_states=[LeaderAndIsrTopicState(topic_name=FLIGHTS.topic, topic_id=TOPIC_ID, partition_states=[state])],
        )
        assert (await self.ask(self.from_controller, LEADER_AND_ISR, request)).error_code == ErrorCode.NONE

    def close(self) -> None:
        self.from_controller.close()
        self.client.close()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - the broker gives no event
            await trio.sleep(0.001)


def answer(request: Message, version: int) -> Message:
    """Answers as a controller that agrees to everything."""
    match request:
        case CreateTopicsRequest():
            return CreateTopicsResponse(topics=[CreatableTopicResult(name=topic.name) for topic in request.topics])
        case AllocateProducerIdsRequest():
            return AllocateProducerIdsResponse(producer_id_start=4_000, producer_id_len=1_000)
        case ControlledShutdownRequest():
            return ControlledShutdownResponse()
        case AlterPartitionRequest():
            return AlterPartitionResponse(topics=[accepted(topic) for topic in request.topics])
        case _:
            raise AssertionError(request)


def accepted(topic: Any) -> AlterPartitionTopicResponse:
    partitions = [
        AlterPartitionPartitionResponse(
            partition_index=each.partition_index,
            leader_id=MEMBER_ID,
            leader_epoch=each.leader_epoch,
            isr=[state.broker_id for state in each.new_isr_with_epochs],
            partition_epoch=each.partition_epoch + 1,
        )
        for each in topic.partitions
    ]
    return AlterPartitionTopicResponse(topic_id=topic.topic_id, partitions=partitions)


@pytest.fixture(autouse=True)
def _start_before_the_controller_has_sent_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MOST_WAIT_FOR_IMAGE_S", 0)


def run(act: Act, path: Path) -> PlayedBroker:
    """Runs a test; returns the played controller after the member has stopped."""
    controller = PlayedBroker(answer)

    async def main() -> None:
        model = ModelServer(lambda: round(time.time() * 1000))
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        async with serve_model(model) as address, trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, controller.serve, [listener])
            async with open_kazoo_session(f"{address}/kafka") as client:
                registration = ControllerRegistration(CONTROLLER_ID, 1).write()
                await RetryingClient(client).create_persistent(paths.CONTROLLER, registration)
            settings = {
                "broker.id": str(MEMBER_ID),
                "zookeeper.connect": f"{address}/kafka",
                "controlled.shutdown.retry.backoff.ms": "1",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(path),
                "replica.lag.time.max.ms": "200",
                "default.replication.factor": "2",
            }
            async with open_broker(BrokerConfig.load(None, settings)) as running:
                world = World(running, nursery, controller, port)
                await world.tell_brokers()
                await act(world)
                world.close()
            nursery.cancel_scope.cancel()

    trio.run(main)
    return controller


def requests_of(controller: PlayedBroker, kind: type[Message]) -> list[Any]:
    return [request for request, _ in controller.asked if isinstance(request, kind)]


def test_topic_that_a_client_asks_for_is_created(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="ports")])
        [topic] = (await world.ask(world.client, METADATA, request)).topics
        assert (topic.name, topic.error_code) == ("ports", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await until(lambda: world.controller.asked)
        [created] = requests_of(world.controller, CreateTopicsRequest)[0].topics
        assert (created.name, created.num_partitions, created.replication_factor) == ("ports", 1, 2)

    run(act, tmp_path)


def test_producers_get_ids_from_the_controllers_block(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        ids: list[int] = []
        request = InitProducerIdRequest(transactional_id=None)
        with trio.fail_after(30):
            while len(ids) < 3:
                response = await world.ask(world.client, INIT_PRODUCER_ID, request)
                if response.error_code == ErrorCode.NONE:
                    ids.append(response.producer_id)
                else:
                    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert ids == [4_000, 4_001, 4_002]
        assert requests_of(world.controller, AllocateProducerIdsRequest) == [
            AllocateProducerIdsRequest(broker_id=MEMBER_ID, broker_epoch=world.broker_epoch)
        ]

    run(act, tmp_path)


def test_replica_that_does_not_fetch_leaves_the_in_sync_replicas(tmp_path: Path) -> None:
    async def act(world: World) -> None:
        await world.make_leader()
        await until(lambda: world.controller.asked)
        [request] = requests_of(world.controller, AlterPartitionRequest)
        [topic] = request.topics
        [partition] = topic.partitions
        assert (request.broker_epoch, topic.topic_id) == (world.broker_epoch, TOPIC_ID)
        assert [state.broker_id for state in partition.new_isr_with_epochs] == [MEMBER_ID]
        assert (partition.leader_epoch, partition.partition_epoch) == (3, 8)
        found = world.running.broker.topics.find_partition(*FLIGHTS)
        await until(lambda: tuple(found.in_sync_replicas) == (MEMBER_ID,))

    run(act, tmp_path)


def test_roles_of_a_controller_that_hung_up_are_taken_before_the_replicas_are_deleted(tmp_path: Path) -> None:
    count = 300

    async def act(world: World) -> None:
        states = [
            LeaderAndIsrPartitionState(
                partition_index=index,
                leader=NOBODY,
                leader_epoch=1,
                partition_epoch=1,
                isr=[NOBODY],
                replicas=[MEMBER_ID, NOBODY],
            )
            for index in range(count)
        ]
        roles = LeaderAndIsrRequest(
            controller_id=CONTROLLER_ID,
            controller_epoch=1,
            broker_epoch=world.broker_epoch,
            topic_states=[LeaderAndIsrTopicState(topic_name="flights", topic_id=TOPIC_ID, partition_states=states)],
        )
        world.from_controller.send(LEADER_AND_ISR, roles, LEADER_AND_ISR.versions[-1], lambda answer: None)
        await until(lambda: len(world.replicas))
        assert len(world.replicas) < count
        world.from_controller.close()
        stops = [
            StopReplicaPartitionState(partition_index=index, leader_epoch=-2, delete_partition=True) for index in range(count)
        ]
        deletion = StopReplicaRequest(
            controller_id=CONTROLLER_ID,
            controller_epoch=1,
            broker_epoch=world.broker_epoch,
            topic_states=[StopReplicaTopicState(topic_name="flights", partition_states=stops)],
        )
        # As the controller does, which numbers its requests over all connections.
        world.client._last_correlation_id = 100
        response = await world.ask(world.client, STOP_REPLICA, deletion)
        assert {error.error_code for error in response.partition_errors} == {ErrorCode.NONE}
        assert len(world.replicas) == 0 and not list(world.running.broker.logs.discover())

    run(act, tmp_path)


def test_member_hands_over_before_it_stops(tmp_path: Path) -> None:
    epochs = []

    async def act(world: World) -> None:
        epochs.append(world.broker_epoch)
        assert world.controller.asked == []

    controller = run(act, tmp_path)
    assert [request for request, _ in controller.asked] == [
        ControlledShutdownRequest(broker_id=MEMBER_ID, broker_epoch=epochs[0])
    ]


@pytest.mark.parametrize("version", CONTROLLED_SHUTDOWN.versions)
def test_broker_that_takes_a_member_for_the_controller_is_told_in_every_version(tmp_path: Path, version: int) -> None:
    async def act(world: World) -> None:
        answers: list[Any] = []
        request = ControlledShutdownRequest(broker_id=2**31 - 1)
        for _ in range(2):
            world.client.send(CONTROLLED_SHUTDOWN, request, version, answers.append)
        await until(lambda: len(answers) == 2)
        assert [answer.error_code for answer in answers] == [ErrorCode.STALE_CONTROLLER_EPOCH] * 2

    run(act, tmp_path)


@pytest.mark.parametrize("name", ["a b", ""])
def test_name_that_is_not_allowed_is_refused_at_once(tmp_path: Path, name: str) -> None:
    async def act(world: World) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        [topic] = (await world.ask(world.client, METADATA, request)).topics
        assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert requests_of(world.controller, CreateTopicsRequest) == []

    run(act, tmp_path)
