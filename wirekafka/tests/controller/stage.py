"""A model of ZooKeeper with a cluster in it, on which a test runs scripts of the controller."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from wirekafka.config.endpoints import Listener
from wirekafka.controller.context import ControllerContext, LiveBroker, StoredState, Topic
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import Script, run_script
from wirekafka.controller.settings import ControllerSettings
from wirekafka.names import TopicPartition
from wirekafka.wire.messages.leader_and_isr import LEADER_AND_ISR, LeaderAndIsrPartitionState
from wirekafka.wire.messages.stop_replica import STOP_REPLICA, StopReplicaPartitionState
from wirekafka.wire.messages.update_metadata import UPDATE_METADATA, UpdateMetadataPartitionState
from wirekafka.wire.requests import RequestType
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import BrokerRegistration, Endpoint, write_controller_epoch
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.model.client import ModelClient
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.session import (
    Create,
    Data,
    Delete,
    GetChildren,
    GetData,
    Operation,
    SetData,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

T = TypeVar("T")

NOW_MS = 1_700_000_000_000
EPOCH = 5
"""The controller epoch of the stage."""


class Sent(NamedTuple):
    """A request to a broker."""

    broker_id: int
    kind: RequestType[Any, Any]
    request: Any
    version: int


class Stage:
    """A cluster in the model, and the context of its controller, whose epoch is `EPOCH`.

    The helpers that add something change both. The test changes the context alone by its attributes, and ZooKeeper alone by `do`.

    Attributes:
        server: the model.
        client: the client of the controller.
        steps: what waits for the next turns.
        sent: the requests to the brokers, in order.
    """

    def __init__(self, settings: ControllerSettings | None = None) -> None:
        self.steps: deque[Callable[[], object]] = deque()
        self.server = ModelServer(lambda: NOW_MS)
        self.client = self.connect()
        self.settings = settings or ControllerSettings(broker_id=1)
        self.sent: list[Sent] = []
        self.context = ControllerContext(epoch=EPOCH, epoch_version=0)
        self.turn()
        for path in paths.PERSISTENT:
            self._create_persistent(path)
        self.do(Create(paths.CONTROLLER_EPOCH, write_controller_epoch(EPOCH)))

    def connect(self) -> ModelClient:
        """Returns a new client."""
        return ModelClient(self.server, self.steps.append, lambda: NOW_MS)

    def turn(self) -> None:
        """Runs until nothing happens any more."""
        while self.steps:
            self.steps.popleft()()

    # ZooKeeper

    def do(self, operation: Operation[T], client: ModelClient | None = None) -> T:
        """Executes one operation; returns its result or raises its error."""
        results: list[Any] = []
        (client or self.client).submit(operation, results.append)
        self.turn()
        (result,) = results
        if isinstance(result, ZooKeeperError):
            raise result
        found: T = result
        return found

    def data(self, path: str) -> Data | None:
        """Returns what a znode has; None if it does not exist."""
        try:
            return self.do(GetData(path))
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
        return None

    def children(self, path: str) -> tuple[str, ...]:
        """Returns the names of the children of a znode."""
        return self.do(GetChildren(path)).names

    def state(self, name: TopicPartition) -> PartitionState:
        """Returns the state of a partition in ZooKeeper."""
        return PartitionState.read(name, self.do(GetData(paths.partition_state(name))).data)

    def depose(self) -> None:
        """Lets another controller have the next epoch."""
        self.do(SetData(paths.CONTROLLER_EPOCH, write_controller_epoch(EPOCH + 1)))

    def _create_persistent(self, path: str, data: bytes | None = None) -> None:
        for each in (*paths.parents(path), path):
            try:
                self.do(Create(each, data if each == path else None))
            except ZooKeeperError as error:
                if error.code is not ZooKeeperErrorCode.NODE_EXISTS:
                    raise

    # The cluster

    def add_broker(self, broker_id: int, *, rack: str | None = None) -> LiveBroker:
        """Registers a broker."""
        registration = a_registration(broker_id, rack=rack)
        created = self.do(Create(paths.broker(broker_id), registration.write(), ephemeral=True))
        assert created.stat is not None
        broker = self.context.live[broker_id] = LiveBroker(broker_id, created.stat.czxid, registration)
        return broker

    def remove_broker(self, broker_id: int) -> None:
        """Ends the registration of a broker."""
        self.do(Delete(paths.broker(broker_id)))
        del self.context.live[broker_id]

    def add_topic(self, name: str, replicas: Mapping[int, tuple[int, ...]], *, topic_id: bytes | None = None) -> Topic:
        """Creates a topic without states of its partitions."""
        assignments = {index: ReplicaAssignment(each) for index, each in replicas.items()}
        topic_id = topic_id or name.encode().rjust(16, b"\0")
        self._create_persistent(paths.topic(name), TopicAssignment(topic_id, assignments).write())
        topic = Topic(name, topic_id, 0, assignments)
        self.context.put_topic(topic)
        return topic

    def add_state(
        self, name: TopicPartition, leader: int, isr: tuple[int, ...], *, leader_epoch: int = 0, recovery_state: int = 0
    ) -> StoredState:
        """Creates the state of a partition."""
        state = PartitionState(leader, leader_epoch, isr, EPOCH, recovery_state)
        self._create_persistent(paths.partition_state(name), state.write())
        stored = self.context.states[name] = StoredState(state, 0)
        return stored

    # Scripts and requests

    def run(self, script: Script[T]) -> T:
        """Runs a script to its end; returns its result or raises its error."""
        results: list[Any] = []
        run_script(self.client, script, results.append, self.steps.append)
        self.turn()
        (result,) = results
        if isinstance(result, Exception):
            raise result
        found: T = result
        return found

    def event(self, event: Callable[[ControllerContext, RequestBatch], Script[T]]) -> T:
        """Runs an event to its end, and sends its requests."""
        batch = self.batch()
        result = self.run(event(self.context, batch))
        self.run(batch.send())
        return result

    def batch(self) -> RequestBatch:
        """Returns a batch whose requests are in `sent` after its script `send` has run."""
        return RequestBatch(self.context, self.settings, self)

    def send(self, broker: LiveBroker, kind: RequestType[Any, Any], request: Any, version: int) -> None:
        """Takes a request to a broker."""
        self.sent.append(Sent(broker.broker_id, kind, request, version))

    def leader_and_isr(self, broker_id: int) -> dict[TopicPartition, LeaderAndIsrPartitionState]:
        """Returns what a broker was told last of each partition by LeaderAndIsr."""
        return {
            TopicPartition(topic.topic_name, state.partition_index): state
            for each in self._requests(broker_id, LEADER_AND_ISR)
            for topic in each.topic_states
            for state in topic.partition_states
        }

    def stop_replica(self, broker_id: int) -> dict[TopicPartition, StopReplicaPartitionState]:
        """Returns what a broker was told last of each partition by StopReplica."""
        return {
            TopicPartition(topic.topic_name, state.partition_index): state
            for each in self._requests(broker_id, STOP_REPLICA)
            for topic in each.topic_states
            for state in topic.partition_states
        }

    def metadata(self, broker_id: int) -> dict[TopicPartition, UpdateMetadataPartitionState]:
        """Returns what a broker was told last of each partition by UpdateMetadata."""
        return {
            TopicPartition(topic.topic_name, state.partition_index): state
            for each in self._requests(broker_id, UPDATE_METADATA)
            for topic in each.topic_states
            for state in topic.partition_states
        }

    def told_brokers(self, broker_id: int) -> list[list[int]]:
        """Returns the live brokers of each UpdateMetadata that a broker was sent."""
        return [[live.id for live in each.live_brokers] for each in self._requests(broker_id, UPDATE_METADATA)]

    def _requests(self, broker_id: int, kind: RequestType[Any, Any]) -> list[Any]:
        return [each.request for each in self.sent if each.broker_id == broker_id and each.kind is kind]


def a_registration(broker_id: int, *, rack: str | None = None) -> BrokerRegistration:
    """Returns the registration of a broker with the listener PLAINTEXT."""
    endpoint = Endpoint(Listener("PLAINTEXT", f"host{broker_id}", 9092), "PLAINTEXT")
    return BrokerRegistration((endpoint,), NOW_MS, rack)
