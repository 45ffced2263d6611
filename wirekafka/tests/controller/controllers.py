"""Brokers with controllers on one model of ZooKeeper; a test plays their answers to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wirekafka.controller.channel import Connect
from wirekafka.controller.context import ControllerContext
from wirekafka.controller.controller import Controller
from wirekafka.controller.settings import ControllerSettings
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.played_brokers import PlayedBrokers, PlayedChannel, PlayedTimers
from wirekafka.tests.controller.stage import NOW_MS, Stage, a_registration
from wirekafka.wire.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from wirekafka.wire.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from wirekafka.wire.messages.update_metadata import UpdateMetadataPartitionState, UpdateMetadataRequest, UpdateMetadataResponse
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import ControllerRegistration
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.model.client import ModelClient
from wirekafka.zookeeper.session import Create, Delete


def accept(request: Any) -> Any:
    """Answers as a broker that does what the controller says."""
    match request:
        case LeaderAndIsrRequest():
            return LeaderAndIsrResponse(
                topics=[
                    LeaderAndIsrTopicError(
                        topic_id=topic.topic_id,
                        partition_errors=[
                            LeaderAndIsrPartitionError(partition_index=each.partition_index) for each in topic.partition_states
                        ],
                    )
                    for topic in request.topic_states
                ]
            )
        case StopReplicaRequest():
            return StopReplicaResponse(
                partition_errors=[
                    StopReplicaPartitionError(topic_name=topic.topic_name, partition_index=each.partition_index)
                    for topic in request.topic_states
                    for each in topic.partition_states
                ]
            )
        case UpdateMetadataRequest():
            return UpdateMetadataResponse()
    raise AssertionError(f"a controller does not send {request}")


class Broker:
    """A broker with a controller; it registers when the test says so.

    Attributes:
        client: its session.
        controller: its controller.
        peers: the connections of its controller; all brokers accept its requests by default.
        changes: whether its controller was active after each change.
    """

    def __init__(self, cluster: Cluster, broker_id: int, settings: ControllerSettings | None) -> None:
        self.broker_id = broker_id
        self._cluster = cluster
        self.client: ModelClient = cluster.stage.connect()
        self.peers = PlayedBrokers(cluster.stage.steps)
        self.peers.answer = accept
        self.timers = PlayedTimers()
        self.changes: list[bool] = []
        connect: Connect = self.peers.connect
        self.controller = Controller(
            self.client,
            connect,
            self.timers,
            settings or ControllerSettings(broker_id),
            now_ms=lambda: NOW_MS,
            call_soon=cluster.stage.steps.append,
            on_change=lambda: self.changes.append(self.controller.is_active),
        )
        self.client.add_state_listener(self.controller.note_session)

    def register(self) -> None:
        """Registers the broker, and lets everything happen that follows."""
        self._cluster.stage.turn()
        registration = a_registration(self.broker_id).write()
        self._cluster.stage.do(Create(paths.broker(self.broker_id), registration, ephemeral=True), self.client)
        self.controller.note_registered()
        self._cluster.stage.turn()

    def expire(self) -> None:
        """Ends the session of the broker, as after a long pause."""
        session_id = self.client.session_id
        assert session_id is not None
        self._cluster.stage.server.expire_session(session_id)
        self._cluster.stage.turn()

    def lose_connection(self) -> None:
        """Breaks the connection of the broker to ZooKeeper, which it then has again."""
        self.client.lose_connection()
        self._cluster.stage.turn()

    @property
    def context(self) -> ControllerContext:
        """What the active controller knows."""
        assert self.controller.context is not None, "the controller is not active"
        return self.controller.context

    def newest(self, broker_id: int) -> PlayedChannel:
        """Returns the newest connection of the controller to a broker."""
        return self.peers.channels[broker_id][-1]

    def told(self, broker_id: int) -> list[Any]:
        """Returns the requests of the controller to a broker, of all connections."""
        return [request for channel in self.peers.channels.get(broker_id, []) for request in channel.seen]

    def leaders_told(self, broker_id: int) -> dict[TopicPartition, LeaderAndIsrPartitionState]:
        """Returns what the controller has told a broker last by LeaderAndIsr."""
        return {
            TopicPartition(topic.topic_name, each.partition_index): each
            for request in self.told(broker_id)
            if isinstance(request, LeaderAndIsrRequest)
            for topic in request.topic_states
            for each in topic.partition_states
        }

    def metadata_told(self, broker_id: int) -> dict[TopicPartition, UpdateMetadataPartitionState]:
        """Returns what the controller has told a broker last by UpdateMetadata."""
        return {
            TopicPartition(topic.topic_name, each.partition_index): each
            for request in self.told(broker_id)
            if isinstance(request, UpdateMetadataRequest)
            for topic in request.topic_states
            for each in topic.partition_states
        }


class Cluster:
    """A cluster in a model of ZooKeeper.

    Attributes:
        stage: the model; its context is not used, and its client is that of a tool.
        brokers: by id.
    """

    def __init__(self, *broker_ids: int, settings: Callable[[int], ControllerSettings] | None = None) -> None:
        self.stage = Stage()
        self.stage.do(Delete(paths.CONTROLLER_EPOCH))
        self.brokers = {
            broker_id: Broker(self, broker_id, None if settings is None else settings(broker_id)) for broker_id in broker_ids
        }
        self.stage.turn()

    def start(self) -> Broker:
        """Registers all brokers; returns the first one, which becomes the controller."""
        for broker in self.brokers.values():
            broker.register()
        return next(iter(self.brokers.values()))

    def turn(self) -> None:
        """Lets everything happen that waits for no time."""
        self.stage.turn()

    def pass_time(self, milliseconds: float) -> None:
        """Lets time pass for all brokers."""
        for broker in self.brokers.values():
            broker.timers.pass_time(milliseconds)
        self.stage.turn()

    def create_topic(self, name: str, replicas: dict[int, tuple[int, ...]]) -> None:
        """Creates a topic as a tool does, by its znode."""
        assignments = {index: ReplicaAssignment(each) for index, each in replicas.items()}
        content = TopicAssignment(name.encode().rjust(16, b"\0"), assignments).write()
        self.stage.do(Create(paths.topic(name), content))

    def state(self, name: TopicPartition) -> PartitionState:
        """Returns the state of a partition in ZooKeeper."""
        return self.stage.state(name)

    @property
    def controller_id(self) -> int | None:
        """The controller in ZooKeeper."""
        found = self.stage.data(paths.CONTROLLER)
        return None if found is None else ControllerRegistration.read(found.data).broker_id

    @property
    def epoch(self) -> bytes:
        """The content of `/controller_epoch`."""
        found = self.stage.data(paths.CONTROLLER_EPOCH)
        assert found is not None
        return found.data


def cluster_with_topic() -> Cluster:
    """Returns a cluster of three brokers, whose controller is broker 1, with the partition `t-0` that broker 2 leads."""
    cluster = Cluster(1, 2, 3)
    cluster.start()
    cluster.create_topic("t", {0: (2, 3, 1)})
    return cluster
