"""Controllers of a cluster whose brokers, connections and messages fail at random, while topics come, move and go.

How it works: the real controllers run over the model of ZooKeeper. The brokers are played: they host what a controller tells
them, by the epochs that real brokers check. After every write the znodes are checked. At the end all faults are healed, and the
cluster must come to rest: every partition has a live leader and all its replicas in sync, every broker knows it, and nothing is
left of what was asked for.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from wirekafka.controller.alter_partition import alter_partition
from wirekafka.controller.controlled_shutdown import shut_down
from wirekafka.controller.controller import Controller
from wirekafka.controller.elections import Election
from wirekafka.controller.reassignment import alter_reassignments
from wirekafka.controller.requested_elections import elect_leaders
from wirekafka.controller.settings import AutoRebalance, ControllerSettings
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.controllers import accept
from wirekafka.tests.controller.played_brokers import PlayedTimers
from wirekafka.tests.controller.stage import NOW_MS, a_registration
from wirekafka.wire.messages.alter_partition import (
    AlterPartitionPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    BrokerState,
)
from wirekafka.wire.messages.controlled_shutdown import ControlledShutdownRequest
from wirekafka.wire.messages.leader_and_isr import LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrResponse
from wirekafka.wire.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from wirekafka.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from wirekafka.wire.requests import RequestType
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import BrokerRegistration
from wirekafka.zookeeper.layout.requests import write_log_dir_event, write_preferred_replica_election, write_reassignment
from wirekafka.zookeeper.layout.topics import LEADER_DURING_DELETE, NO_LEADER, PartitionState, ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.model.client import Fault, ModelClient
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.session import (
    Create,
    Created,
    Exists,
    GetChildren,
    GetData,
    Operation,
    SessionState,
    SetData,
    Stat,
    WatchEvent,
    ZooKeeperError,
)

BROKER_IDS = (1, 2, 3, 4)
TOPICS = ("a", "b")
ACTIONS = 120
MOST_STEPS = 20_000
"""More than the cluster needs to come to rest."""


class _Deaf:
    """The listener of the connection by which the test looks at the znodes."""

    def on_watch_event(self, event: WatchEvent) -> None:
        """Ignores it."""

    def on_disconnect(self) -> None:
        """Ignores it."""


@dataclass(slots=True)
class _Hosted:
    """A replica of a broker, as a controller has told it."""

    topic_id: bytes
    told: LeaderAndIsrPartitionState
    isr: list[int] = field(default_factory=list)
    partition_epoch: int = 0


class _Peer:
    """A connection of a controller to a broker. Messages arrive once, or not at all."""

    def __init__(self, world: World, broker_id: int) -> None:
        self._world = world
        self._broker_id = broker_id
        self._is_closed = False

    def send(self, kind: RequestType[Any, Any], request: Any, version: int, on_end: Callable[[Any], object]) -> None:
        """Sends a request, which arrives later even if the connection is closed meanwhile."""
        kind.frame(request, version, correlation_id=0, client_id="")
        self._world.steps.append(partial(self._arrive, self._node.timers, request, on_end))

    @property
    def _node(self) -> Node:
        return self._world.nodes[self._broker_id]

    def _arrive(self, process: PlayedTimers, request: Any, on_end: Callable[[Any], object]) -> None:
        # A process that was started meanwhile has other connections.
        is_lost = self._world.happens(0.1) or self._node.timers is not process
        response = None if is_lost else self._node.handle(request)
        if self._world.happens(0.05):
            response = None
        self._world.steps.append(lambda: None if self._is_closed else on_end(response))

    def close(self) -> None:
        """Closes the connection."""
        self._is_closed = True


class Node:
    """A played broker with a real controller.

    Attributes:
        hosted: the replicas that a controller has told the broker of since it started.
        failed: the replicas whose directory has failed; a restart repairs it.
        metadata: the leaders that the broker would tell clients.
    """

    def __init__(self, world: World, broker_id: int) -> None:
        self.broker_id = broker_id
        self._world = world
        self.hosted: dict[TopicPartition, _Hosted] = {}
        self.failed: set[TopicPartition] = set()
        self.metadata: dict[TopicPartition, int] = {}
        self.is_up = False
        self.controller_epoch = 0
        self.broker_epoch = -1
        self.timers = PlayedTimers()
        self.start()

    def start(self) -> None:
        """Starts a process, which knows nothing."""
        self.hosted, self.failed, self.metadata = {}, set(), {}
        self.is_up, self.controller_epoch, self.broker_epoch = True, 0, -1
        self.timers = PlayedTimers()
        client = self.client = ModelClient(self._world.server, self._world.steps.append, lambda: NOW_MS)
        client.choose_fault = self._world.choose_fault
        self.controller = Controller(
            client,
            lambda broker_id, registration: self._connect(broker_id, registration),
            self.timers,
            ControllerSettings(self.broker_id, auto_rebalance=AutoRebalance(interval_s=10)),
            now_ms=lambda: NOW_MS,
            call_soon=self._world.steps.append,
            on_change=lambda: None,
            seconds=lambda: 0.0,
        )
        client.add_state_listener(self.controller.note_session)
        client.add_state_listener(lambda state: self._note_session(client, state))

    def _connect(self, broker_id: int, registration: BrokerRegistration) -> _Peer:
        assert registration.endpoints, "a registration has endpoints"
        return _Peer(self._world, broker_id)

    def stop(self) -> None:
        """Kills the process; its session ends."""
        self.is_up = False
        self.controller.close()
        self.client.cut()
        self._expire()

    def _expire(self) -> None:
        if self.client.session_id is not None:
            self._world.server.expire_session(self.client.session_id)

    def lose_session(self) -> None:
        """Ends the session; the client begins another one."""
        self._expire()

    # The registration

    def _note_session(self, client: ModelClient, state: SessionState) -> None:
        if state is SessionState.CONNECTED and client is self.client and self.is_up:
            client.submit(Exists(paths.broker(self.broker_id)), partial(self._register, client))

    def _register(self, client: ModelClient, found: Stat | ZooKeeperError | None) -> None:
        if isinstance(found, ZooKeeperError):
            return
        if found is None:
            create = Create(paths.broker(self.broker_id), a_registration(self.broker_id).write(), ephemeral=True)
            client.submit(create, self._note_created)
        elif found.ephemeral_owner == client.session_id and found.czxid != self.broker_epoch:
            self._note_registered(found.czxid)

    def _note_created(self, created: Created | ZooKeeperError) -> None:
        if isinstance(created, Created) and created.stat is not None:
            self._note_registered(created.stat.czxid)

    def _note_registered(self, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch
        if self.is_up:
            self.controller.note_registered()

    # The requests of controllers

    def handle(self, request: Any) -> Any:
        """Does what a controller says, and answers; None if the broker is down."""
        if not self.is_up:
            return None
        fault = ErrorCode.NONE
        if request.controller_epoch < self.controller_epoch:
            fault = ErrorCode.STALE_CONTROLLER_EPOCH
        elif request.broker_epoch < self.broker_epoch:
            fault = ErrorCode.STALE_BROKER_EPOCH
        if fault is not ErrorCode.NONE:
            match request:
                case LeaderAndIsrRequest():
                    return LeaderAndIsrResponse(error_code=fault)
                case StopReplicaRequest():
                    return StopReplicaResponse(error_code=fault)
            return UpdateMetadataResponse(error_code=fault)
        self.controller_epoch = request.controller_epoch
        response = accept(request)
        match request:
            case LeaderAndIsrRequest():
                self._lead_and_follow(request)
                self._refuse_failed(request, response)
            case StopReplicaRequest():
                self._stop(request)
                for each in response.partition_errors:
                    if TopicPartition(each.topic_name, each.partition_index) in self.failed:
                        each.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            case UpdateMetadataRequest():
                self._update(request)
        return response

    def _refuse_failed(self, request: LeaderAndIsrRequest, response: LeaderAndIsrResponse) -> None:
        for topic, answered in zip(request.topic_states, response.topics, strict=True):
            for each in answered.partition_errors:
                if TopicPartition(topic.topic_name, each.partition_index) in self.failed:
                    each.error_code = ErrorCode.KAFKA_STORAGE_ERROR

    def _lead_and_follow(self, request: LeaderAndIsrRequest) -> None:
        # A replica of a former topic may be left: its controller has died between the end of its reassignment and StopReplica.
        for topic in request.topic_states:
            for told in topic.partition_states:
                name = TopicPartition(topic.topic_name, told.partition_index)
                if name in self.failed:
                    self.hosted.pop(name, None)
                    continue
                former = self.hosted.get(name)
                if former is not None and former.topic_id == topic.topic_id and not self._is_news(former, told):
                    continue
                self.hosted[name] = _Hosted(topic.topic_id, told, [*told.isr], told.partition_epoch)

    def _is_news(self, former: _Hosted, told: LeaderAndIsrPartitionState) -> bool:
        if told.leader_epoch == former.told.leader_epoch:
            return told.leader == self.broker_id and told.partition_epoch > former.partition_epoch
        return told.leader_epoch > former.told.leader_epoch

    def _stop(self, request: StopReplicaRequest) -> None:
        for topic in request.topic_states:
            for each in topic.partition_states:
                name = TopicPartition(topic.topic_name, each.partition_index)
                hosted = self.hosted.get(name)
                if hosted is None or each.leader_epoch < 0 or each.leader_epoch >= hosted.told.leader_epoch:
                    self.hosted.pop(name, None)

    def _update(self, request: UpdateMetadataRequest) -> None:
        for topic in request.topic_states:
            for each in topic.partition_states:
                name = TopicPartition(topic.topic_name, each.partition_index)
                if each.leader == LEADER_DURING_DELETE:
                    self.metadata.pop(name, None)
                else:
                    self.metadata[name] = each.leader

    # The requests of leaders

    def propose(self, name: TopicPartition, isr: list[int]) -> None:
        """Proposes in-sync replicas as the leader, to a broker that takes itself for the controller."""
        hosted, controller = self.hosted[name], self._world.active_controller()
        if controller is None:
            return
        partition = AlterPartitionPartition(
            partition_index=name.partition,
            leader_epoch=hosted.told.leader_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=each, broker_epoch=self._world.nodes[each].broker_epoch) for each in isr],
            partition_epoch=hosted.partition_epoch,
        )
        topic = AlterPartitionTopic(topic_id=hosted.topic_id, partitions=[partition])
        request = AlterPartitionRequest(broker_id=self.broker_id, broker_epoch=self.broker_epoch, topics=[topic])
        controller.enter(
            lambda context, batch: alter_partition(context, batch, request, 3), lambda result: self._take(name, hosted, result)
        )

    def _take(self, name: TopicPartition, hosted: _Hosted, result: Any) -> None:
        if isinstance(result, AlterPartitionResponse) and result.topics and self.hosted.get(name) is hosted:
            answer = result.topics[0].partitions[0]
            if answer.error_code == ErrorCode.NONE and answer.partition_epoch > hosted.partition_epoch:
                hosted.isr, hosted.partition_epoch = [*answer.isr], answer.partition_epoch


class World:
    """A cluster that fails at random.

    Attributes:
        steps: what happens next, in about this order.
        nodes: the brokers by id.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.is_failing = False
        self.steps: deque[Callable[[], object]] = deque()
        self.server = ModelServer(lambda: NOW_MS)
        self._eye = self.server.connect(_Deaf(), 1 << 40)
        self._seen_zxid = -1
        self._seen: dict[tuple[bytes | None, TopicPartition], tuple[PartitionState, int]] = {}
        self._count = 0
        for path in paths.PERSISTENT:
            for each in (*paths.parents(path), path):
                self.write(Create(each, None))
        self.nodes = {broker_id: Node(self, broker_id) for broker_id in BROKER_IDS}

    def happens(self, probability: float) -> bool:
        """Whether a fault happens now."""
        return self.is_failing and self.dice.random() < probability

    def choose_fault(self, operation: Operation[Any]) -> Fault | None:
        """Breaks connections to ZooKeeper."""
        return self.dice.choice([*Fault]) if self.happens(0.004) else None

    def active_controller(self) -> Controller | None:
        """Returns a controller that takes itself for the active one."""
        active = [node.controller for node in self.nodes.values() if node.controller.is_active]
        return self.dice.choice(active) if active else None

    # ZooKeeper, without faults

    def read(self, operation: Operation[Any]) -> Any:
        """Reads at once; returns None if the znode does not exist."""
        try:
            return self._eye.request(operation)
        except ZooKeeperError:
            return None

    def write(self, operation: Operation[Any]) -> bool:
        """Writes at once, as a tool does; returns whether ZooKeeper has accepted it."""
        try:
            self._eye.request(operation)
        except ZooKeeperError:
            return False
        return True

    def topic(self, name: str) -> TopicAssignment | None:
        """Reads a topic."""
        found = self.read(GetData(paths.topic(name)))
        return None if found is None else TopicAssignment.read(name, found.data)

    def states(self) -> dict[TopicPartition, tuple[TopicAssignment, PartitionState | None, int]]:
        """Reads all partitions: their topic, their state, and the version of the state."""
        states: dict[TopicPartition, tuple[TopicAssignment, PartitionState | None, int]] = {}
        for name in self.read(GetChildren(paths.TOPICS)).names:
            topic = self.topic(name)
            assert topic is not None, "the topic was listed just now"
            for index in topic.partitions:
                partition = TopicPartition(name, index)
                found = self.read(GetData(paths.partition_state(partition)))
                state = None if found is None else PartitionState.read(partition, found.data)
                states[partition] = topic, state, -1 if found is None else found.stat.version
        return states

    # Steps

    def run(self, most: int) -> None:
        """Runs some steps, nearly in order, and checks the znodes after each write."""
        for _ in range(most):
            if not self.steps:
                return
            place = self.dice.randrange(min(len(self.steps), 4))
            self.steps.rotate(-place)
            step = self.steps.popleft()
            self.steps.rotate(place)
            step()
            if self.server.last_zxid != self._seen_zxid:
                self._seen_zxid = self.server.last_zxid
                self._check_states()

    def _check_states(self) -> None:
        for name, (topic, state, version) in self.states().items():
            if state is None:
                continue
            replicas = topic.partitions[name.partition].replicas
            assert state.isr and set(state.isr) <= set(replicas), f"{name}: in sync {state.isr}, replicas {replicas}"
            assert state.leader == NO_LEADER or state.leader in state.isr, f"{name}: {state}"
            former, former_version = self._seen.get((topic.topic_id, name), (state, version))
            assert version >= former_version
            assert set(former.isr) & set(state.isr), f"{name}: unclean, {former} before {state}"
            assert state.leader_epoch >= former.leader_epoch + (state.leader not in (former.leader, NO_LEADER))
            self._seen[topic.topic_id, name] = state, version

    def pass_time(self, milliseconds: int) -> None:
        """Lets time pass for all brokers."""
        for node in self.nodes.values():
            node.timers.pass_time(milliseconds)
            if node.is_up:
                node.client.tick()

    # Actions

    def act(self) -> None:
        """Does something at random."""
        actions = [
            (3, self._create_topic),
            (1, self._delete_topic),
            (1, self._grow_topic),
            (4, self._reassign),
            (2, self._cancel),
            (1, self._reassign_in_zookeeper),
            (1, self._elect),
            (1, self._elect_in_zookeeper),
            (8, self._propose),
            (2, self._stop_or_start),
            (1, self._lose_session),
            (1, self._lose_connection),
            (1, self._shut_down),
            (1, self._lose_directory),
        ]
        [(_, action)] = self.dice.choices(actions, [weight for weight, _ in actions])
        action()

    def _replicas(self) -> tuple[int, ...]:
        return tuple(self.dice.sample(BROKER_IDS, self.dice.randint(1, 3)))

    def _partition(self) -> TopicPartition:
        return TopicPartition(self.dice.choice(TOPICS), self.dice.randrange(3))

    def _create_topic(self) -> None:
        self._count += 1
        topic_id = self._count.to_bytes(16, "big")
        partitions = {index: ReplicaAssignment(self._replicas()) for index in range(2)}
        name = self.dice.choice(TOPICS)
        if self.read(Exists(paths.deleted_topic(name))) is None:
            self.write(Create(paths.topic(name), TopicAssignment(topic_id, partitions).write()))

    def _delete_topic(self) -> None:
        name = self.dice.choice(TOPICS)
        controller = self.active_controller()
        if controller is not None and controller.context is not None and name in controller.context.topics:
            self.write(Create(paths.deleted_topic(name), None))

    def _grow_topic(self) -> None:
        name = self.dice.choice(TOPICS)
        found = self.read(GetData(paths.topic(name)))
        if found is not None:
            stored = TopicAssignment.read(name, found.data)
            partitions = {**stored.partitions}
            partitions.setdefault(len(partitions) % 4, ReplicaAssignment(self._replicas()))
            content = TopicAssignment(stored.topic_id, partitions).write()
            self.write(SetData(paths.topic(name), content, found.stat.version))

    def _alter(self, target: tuple[int, ...] | None) -> None:
        controller, name = self.active_controller(), self._partition()
        if controller is not None:
            controller.enter(lambda context, batch: alter_reassignments(context, batch, {name: target}), lambda result: None)

    def _reassign(self) -> None:
        self._alter(self._replicas())

    def _cancel(self) -> None:
        self._alter(None)

    def _reassign_in_zookeeper(self) -> None:
        self.write(Create(paths.REASSIGN_PARTITIONS, write_reassignment({self._partition(): self._replicas()})))

    def _elect(self) -> None:
        controller = self.active_controller()
        if controller is not None:
            controller.enter(lambda context, batch: elect_leaders(context, batch, None, Election.PREFERRED), lambda result: None)

    def _elect_in_zookeeper(self) -> None:
        self.write(Create(paths.PREFERRED_REPLICA_ELECTION, write_preferred_replica_election([self._partition()])))

    def _propose(self) -> None:
        leaders = [(node, name) for node in self.nodes.values() for name in self.led_by(node)]
        if leaders:
            node, name = self.dice.choice(leaders)
            following = self.following(node, name)
            node.propose(name, [node.broker_id, *self.dice.sample(following, self.dice.randint(0, len(following)))])

    def led_by(self, node: Node) -> list[TopicPartition]:
        """Returns the partitions that a broker leads, as far as it knows."""
        hosted = {name: each for name, each in node.hosted.items() if name not in node.failed}
        return [name for name, each in hosted.items() if each.told.leader == node.broker_id and node.is_up]

    def following(self, leader: Node, name: TopicPartition) -> list[int]:
        """Returns the replicas that follow a leader in its epoch."""
        known = leader.hosted[name]
        candidates = [self.nodes[each] for each in known.told.replicas if each != leader.broker_id]
        return [each.broker_id for each in candidates if each.is_up and self._follows(each, name, known)]

    def _follows(self, node: Node, name: TopicPartition, known: _Hosted) -> bool:
        hosted = node.hosted.get(name)
        if hosted is None or name in node.failed or hosted.topic_id != known.topic_id:
            return False
        return hosted.told.leader_epoch == known.told.leader_epoch

    def _stop_or_start(self) -> None:
        node = self.dice.choice([*self.nodes.values()])
        if not node.is_up:
            node.start()
        elif sum(each.is_up for each in self.nodes.values()) > 2:
            node.stop()

    def _shut_down(self) -> None:
        """A broker gives its leaderships away, and may stop before it has an answer."""
        node, controller = self.dice.choice([*self.nodes.values()]), self.active_controller()
        if controller is not None and node.is_up and sum(each.is_up for each in self.nodes.values()) > 2:
            request = ControlledShutdownRequest(broker_id=node.broker_id, broker_epoch=node.broker_epoch)
            settings = ControllerSettings(node.broker_id)
            controller.enter(lambda context, batch: shut_down(context, batch, settings, request), lambda result: None)
            self.run(self.dice.choice([3, 30]))
            node.stop()

    def _lose_directory(self) -> None:
        """A log directory fails, with the replicas that are in it."""
        node = self.dice.choice([*self.nodes.values()])
        if node.is_up and node.hosted:
            node.failed.update(self.dice.sample([*node.hosted], 1))
            self.write(Create(paths.LOG_DIR_EVENT_PREFIX, write_log_dir_event(node.broker_id), sequential=True))

    def _lose_session(self) -> None:
        self.dice.choice([*self.nodes.values()]).lose_session()

    def _lose_connection(self) -> None:
        node = self.dice.choice([*self.nodes.values()])
        if node.is_up:
            node.client.lose_connection()

    # The end

    def heal(self) -> None:
        """Ends all faults, and lets the leaders take all replicas into their in-sync replicas, until nothing changes any more."""
        self.is_failing = False
        for node in self.nodes.values():
            if node.failed and node.is_up:
                node.stop()
            if not node.is_up:
                node.start()
        for _ in range(40):
            self.pass_time(1_000)
            self.run(MOST_STEPS)
            assert not self.steps, "the cluster does not come to rest"
            for node in self.nodes.values():
                for name in self.led_by(node):
                    if {node.broker_id, *self.following(node, name)} != set(node.hosted[name].isr):
                        node.propose(name, [node.broker_id, *self.following(node, name)])

    def check_rest(self) -> None:
        """Checks that everything that was asked for is done, and that all brokers know it."""
        assert [node.controller.is_active for node in self.nodes.values()].count(True) == 1
        assert self.read(GetChildren(paths.DELETE_TOPICS)).names == ()
        assert self.read(GetData(paths.REASSIGN_PARTITIONS)) is None
        assert self.read(GetData(paths.PREFERRED_REPLICA_ELECTION)) is None
        states = self.states()
        for name, (topic, state, _) in states.items():
            assignment = topic.partitions[name.partition]
            assert assignment == ReplicaAssignment(assignment.replicas), f"{name} is being reassigned: {assignment}"
            assert state is not None, f"{name} has no state"
            assert set(state.isr) == set(assignment.replicas), f"{name}: {state}, {assignment}"
            assert state.leader in state.isr, f"{name}: {state}"
            for broker_id in assignment.replicas:
                hosted = self.nodes[broker_id].hosted[name]
                assert hosted.topic_id == topic.topic_id
                assert (hosted.told.leader, hosted.told.leader_epoch) == (state.leader, state.leader_epoch)
                assert set(hosted.told.replicas) == set(assignment.replicas)
        leaders = {name: state.leader for name, (_, state, _) in states.items() if state is not None}
        for node in self.nodes.values():
            assert node.metadata == leaders, f"broker {node.broker_id}"


@pytest.mark.parametrize("seed", range(40))
def test_cluster_that_fails_at_random_comes_to_rest(seed: int) -> None:
    world = World(seed)
    world.run(MOST_STEPS)
    world.is_failing = True
    for _ in range(ACTIONS):
        world.act()
        world.run(world.dice.choice([3, 30, 300]))
        world.pass_time(world.dice.choice([0, 50, 200]))
    world.heal()
    world.check_rest()
