"""A controller for the simulation: it elects in-sync leaders, answers AlterPartition, and tells the brokers.

How it works: every broker has a `Controller`, and competes for `/controller`. The controller handles one event after the other;
an event is a script of operations on ZooKeeper. Each write is a multi with a check of `/controller_epoch`. So a controller that
was deposed changes nothing, but may still send its old state. After a write the state is sent to the brokers, one request at a
time to each, until the broker has answered or is not live any more. After an operation of unknown outcome everything is read
again.

It decides as Apache Kafka's controller does for clean elections, without reassignments, deletions and new topics.

Source: kafka.controller.KafkaController, ReplicaStateMachine, PartitionStateMachine, ControllerChannelManager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Any

from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.simulation.events import MS
from wirekafka.simulation.node import Node
from wirekafka.simulation.scripts import Script, run_script
from wirekafka.wire.messages.alter_partition import (
    AlterPartitionPartition,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopicResponse,
)
from wirekafka.wire.messages.leader_and_isr import (
    LEADER_AND_ISR,
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from wirekafka.wire.messages.update_metadata import UPDATE_METADATA, UpdateMetadataBroker, UpdateMetadataRequest
from wirekafka.wire.requests import RequestType
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import ControllerRegistration, read_controller_epoch, write_controller_epoch
from wirekafka.zookeeper.layout.topics import NO_LEADER, PartitionState
from wirekafka.zookeeper.session import (
    Check,
    Children,
    Create,
    Data,
    GetChildren,
    GetData,
    Multi,
    SessionState,
    SetData,
    WatchEvent,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

RETRY_US = 100 * MS

AnswerAlterPartition = Callable[[AlterPartitionResponse], None]
Event = Callable[[], Script]


class DeposedError(Exception):
    """Another broker has become the controller."""


class Controller:
    """The controller of one broker, which is active or competes.

    Attributes:
        epoch: the controller epoch; None while another broker is the controller.
    """

    def __init__(self, broker: Node) -> None:
        self._broker = broker
        self._client = broker.registration.client
        self._events: deque[Event] = deque()
        self._is_running = False
        self._epoch_version = 0
        self.epoch: int | None = None
        self._live: dict[int, int] = {}
        self._states: dict[TopicPartition, tuple[PartitionState, int]] = {}
        self._channels: dict[int, _Channel] = {}
        self._client.add_watch_listener(self._note_watch)

    # Events

    def note_session(self, state: SessionState) -> None:
        """Takes a state of the session. The registration comes before the competition."""
        if state is SessionState.LOST:
            self._resign("its session has expired")

    def compete(self) -> None:
        """Tries to become the controller after each registration and each connection; it may still be the controller."""
        self._events.clear()
        self._enter(self._compete)

    def _note_watch(self, event: WatchEvent) -> None:
        if event.path == paths.CONTROLLER:
            self._enter(self._compete)
        elif event.path == paths.BROKER_IDS and self.epoch is not None:
            self._enter(self._look_at_brokers)

    def _enter(self, event: Event) -> None:
        self._events.append(event)
        self._run_next()

    def _run_next(self) -> None:
        if self._is_running or not self._events:
            return
        self._is_running = True
        run_script(self._client, self._guard(self._events.popleft()), self._end)

    def _guard(self, event: Event) -> Script:
        try:
            yield from event()
        except DeposedError:
            self._resign("another controller has the next epoch")
            yield GetData(paths.CONTROLLER, watch=True)

    def _end(self, error: ZooKeeperError | None) -> None:
        self._is_running = False
        if error is not None:
            self._broker.note(f"controller: {error}")
            self._broker.process.call_later(RETRY_US, self._try_again)
        self._broker.process.call_later(0, self._run_next)

    def _try_again(self) -> None:
        if self._client.state is SessionState.CONNECTED and self._broker.registration.is_current:
            self.compete()

    def _resign(self, reason: str) -> None:
        if self.epoch is not None:
            self._broker.note(f"controller: resigns, {reason}")
        self.epoch = None
        self._events.clear()
        for channel in self._channels.values():
            channel.close()
        self._channels = {}

    # Becoming the controller

    def _compete(self) -> Script:
        """Source: KafkaController.elect, KafkaZkClient.registerControllerAndIncrementControllerEpoch."""
        try:
            found: Data = yield GetData(paths.CONTROLLER, watch=True)
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                raise
        else:
            yield from self._look_at_controller(found)
            return
        epoch: Data = yield GetData(paths.CONTROLLER_EPOCH)
        number = read_controller_epoch(epoch.data) + 1
        registration = ControllerRegistration(self._broker.broker_id, self._broker.clock_ms()).write()
        create = Create(paths.CONTROLLER, registration, ephemeral=True)
        try:
            yield Multi((create, SetData(paths.CONTROLLER_EPOCH, write_controller_epoch(number), epoch.stat.version)))
        except ZooKeeperError as error:
            if error.is_outcome_unknown or not error.codes:
                raise
            self._broker.process.call_later(0, lambda: self._enter(self._compete))
            return
        yield from self._begin(number, epoch.stat.version + 1)

    def _look_at_controller(self, found: Data) -> Script:
        """Reads which broker is the controller. It may be this broker, if a reply was lost."""
        if found.stat.ephemeral_owner != self._client.session_id:
            if self.epoch is not None:
                self._resign("another broker is the controller")
            return
        epoch: Data = yield GetData(paths.CONTROLLER_EPOCH)
        yield from self._begin(read_controller_epoch(epoch.data), epoch.stat.version)

    def _begin(self, epoch: int, epoch_version: int) -> Script:
        self._broker.note(f"controller: has epoch {epoch}")
        self._resign("it begins anew")
        self._live = {}
        for name in self._broker.cluster.partitions:
            found: Data = yield GetData(paths.partition_state(name))
            self._states[name] = PartitionState.read(name, found.data), found.stat.version
        self.epoch, self._epoch_version = epoch, epoch_version
        yield from self._look_at_brokers()

    # Brokers that come and go

    def _look_at_brokers(self) -> Script:
        if self.epoch is None:
            return
        children: Children = yield GetChildren(paths.BROKER_IDS, watch=True)
        live: dict[int, int] = {}
        for child in children.names:
            try:
                found: Data = yield GetData(paths.broker(int(child)))
            except ZooKeeperError as error:
                if error.code is not ZooKeeperErrorCode.NO_NODE:
                    raise
            else:
                live[int(child)] = found.stat.czxid
        former, self._live = self._live, live
        came = [broker_id for broker_id, epoch in live.items() if former.get(broker_id) != epoch]
        gone = [broker_id for broker_id, epoch in former.items() if live.get(broker_id) != epoch]
        if not former:
            # A broker may have restarted while there was no controller.
            gone = [broker_id for broker_id in self._broker.cluster.broker_ids if broker_id not in live]
        if not came and not gone:
            return
        self._broker.note(f"controller: live brokers {live}, came {came}, gone {gone}")
        self._open_channels()
        for name in self._broker.cluster.partitions:
            yield from self._take_offline(name, gone)
        if came:
            self._tell([], live)
        self._tell(self._states, live)

    def _open_channels(self) -> None:
        for broker_id, channel in list(self._channels.items()):
            if self._live.get(broker_id) != channel.broker_epoch:
                channel.close()
                del self._channels[broker_id]
        for broker_id, epoch in self._live.items():
            if broker_id not in self._channels:
                self._channels[broker_id] = _Channel(self._broker, broker_id, epoch)

    def _take_offline(self, name: TopicPartition, gone: list[int]) -> Script:
        """Removes brokers that are not live from the in-sync replicas, and elects a leader if the leader is not live.

        A broker that has restarted counts as not live: its log may have lost records. The last in-sync replica stays.

        Source: ReplicaStateMachine.removeReplicasFromIsr; PartitionLeaderElectionAlgorithms.offlinePartitionLeaderElection.
        """
        state, _ = self._states[name]
        isr = [broker_id for broker_id in state.isr if broker_id not in gone]
        isr = isr or [next((broker_id for broker_id in state.isr if broker_id in self._live), state.isr[-1])]
        leader = state.leader
        if leader in gone or leader not in self._live or leader not in isr:
            alive = [broker_id for broker_id in self._replicas(name) if broker_id in isr and broker_id in self._live]
            leader = next(iter(alive), NO_LEADER)
        is_same_leader = leader == state.leader and leader not in gone
        if tuple(isr) == state.isr and is_same_leader:
            return
        yield from self._write(name, replace(state, leader=leader, isr=tuple(isr), leader_epoch=state.leader_epoch + 1))

    def _replicas(self, name: TopicPartition) -> tuple[int, ...]:
        return self._broker.cluster.replicas(name)

    def elect(self, name: TopicPartition, leader: int) -> None:
        """Makes an in-sync replica the leader, as an election of the preferred leader does."""
        if self.epoch is not None:
            self._enter(lambda: self._elect(name, leader))

    def _elect(self, name: TopicPartition, leader: int) -> Script:
        if self.epoch is None:
            return
        state, _ = self._states[name]
        if leader in state.isr and leader in self._live and leader != state.leader:
            yield from self._write(name, replace(state, leader=leader, leader_epoch=state.leader_epoch + 1))
            self._tell([name], self._live)

    def _write(self, name: TopicPartition, state: PartitionState) -> Script:
        """Writes a state.

        Raises:
            DeposedError: this is not the controller any more.
            ZooKeeperError: the outcome is unknown.
        """
        assert self.epoch is not None, "only the controller writes"
        state = replace(state, controller_epoch=self.epoch)
        version = self._states[name][1]
        check = Check(paths.CONTROLLER_EPOCH, self._epoch_version)
        try:
            yield Multi((check, SetData(paths.partition_state(name), state.write(), version)))
        except ZooKeeperError as error:
            if error.codes and error.codes[0] is ZooKeeperErrorCode.BAD_VERSION:
                raise DeposedError from None
            raise
        self._states[name] = state, version + 1
        self._broker.note(
            f"controller: {name} has leader {state.leader}, epoch {state.leader_epoch}, in sync {list(state.isr)}, "
            f"partition epoch {version + 1}"
        )

    # Telling the brokers

    def _tell(self, names: Iterable[TopicPartition], live: Iterable[int]) -> None:
        """Sends states to the brokers, and then the live brokers. Source: ControllerBrokerRequestBatch.sendRequestsToBrokers."""
        partitions = [self._message(name) for name in names]
        for broker_id in live:
            channel = self._channels[broker_id]
            if partitions:
                channel.send(LEADER_AND_ISR, self._leaders(channel.broker_epoch, partitions))
            channel.send(UPDATE_METADATA, self._metadata(channel.broker_epoch))

    def _metadata(self, broker_epoch: int) -> UpdateMetadataRequest:
        return UpdateMetadataRequest(
            controller_id=self._broker.broker_id,
            controller_epoch=self.epoch or 0,
            broker_epoch=broker_epoch,
            live_brokers=[UpdateMetadataBroker(id=broker_id) for broker_id in self._live],
        )

    def _leaders(self, broker_epoch: int, partitions: list[LeaderAndIsrPartitionState]) -> LeaderAndIsrRequest:
        cluster = self._broker.cluster
        topic = LeaderAndIsrTopicState(topic_name=cluster.topic, topic_id=cluster.topic_id, partition_states=partitions)
        return LeaderAndIsrRequest(
            controller_id=self._broker.broker_id,
            controller_epoch=self.epoch or 0,
            broker_epoch=broker_epoch,
            topic_states=[topic],
            live_leaders=[LeaderAndIsrLiveLeader(broker_id=broker_id) for broker_id in self._live],
        )

    def _message(self, name: TopicPartition) -> LeaderAndIsrPartitionState:
        state, version = self._states[name]
        return LeaderAndIsrPartitionState(
            partition_index=name.partition,
            controller_epoch=state.controller_epoch,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=[*state.isr],
            partition_epoch=version,
            replicas=[*self._replicas(name)],
        )

    # AlterPartition

    def alter_partition(self, request: AlterPartitionRequest, answer: AnswerAlterPartition) -> None:
        """Answers a leader that asks for other in-sync replicas. Source: KafkaController.processAlterPartition."""
        self._enter(lambda: self._alter(request, answer))

    def _alter(self, request: AlterPartitionRequest, answer: AnswerAlterPartition) -> Script:
        if self.epoch is None:
            answer(AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER))
            return
        if self._live.get(request.broker_id) != request.broker_epoch:
            answer(AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
            return
        topics = [AlterPartitionTopicResponse(topic_id=topic.topic_id, partitions=[]) for topic in request.topics]
        for asked, answered in zip(request.topics, topics, strict=True):
            for change in asked.partitions:
                answered.partitions.append((yield from self._alter_one(request.broker_id, change)))
        answer(AlterPartitionResponse(topics=topics))

    def _alter_one(self, broker_id: int, change: AlterPartitionPartition) -> Generator[Any, Any, AlterPartitionPartitionResponse]:
        name = TopicPartition(self._broker.cluster.topic, change.partition_index)
        error = self._refusal(broker_id, name, change)
        if error is not ErrorCode.NONE:
            self._broker.note(f"controller: refuses a change of {name}, {error.name}")
            return AlterPartitionPartitionResponse(partition_index=name.partition, error_code=error)
        state, _ = self._states[name]
        isr = tuple(each.broker_id for each in change.new_isr_with_epochs)
        if set(isr) != set(state.isr):
            yield from self._write(name, replace(state, isr=isr))
            self._tell([], self._live)
        state, version = self._states[name]
        return AlterPartitionPartitionResponse(
            partition_index=name.partition,
            leader_id=state.leader,
            leader_epoch=state.leader_epoch,
            isr=[*state.isr],
            partition_epoch=version,
        )

    def _refusal(self, broker_id: int, name: TopicPartition, change: AlterPartitionPartition) -> ErrorCode:
        """Returns why a change is refused; NONE if it is not, or if it is in force already.

        If the epochs of the leader are newer, this controller was deposed (KAFKA-14154).

        Source: KafkaController.tryProcessAlterPartition.
        """
        state, version = self._states[name]
        proposed = {each.broker_id: each.broker_epoch for each in change.new_isr_with_epochs}
        if change.leader_epoch > state.leader_epoch or change.partition_epoch > version:
            return ErrorCode.NOT_CONTROLLER
        if change.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if set(proposed) == set(state.isr):
            return ErrorCode.NONE
        if broker_id != state.leader:
            return ErrorCode.INVALID_REQUEST
        if change.partition_epoch < version:
            return ErrorCode.INVALID_UPDATE_VERSION
        if any(epoch not in (-1, self._live.get(each)) or each not in self._live for each, epoch in proposed.items()):
            return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE


class _Channel:
    """The queue of requests to one broker."""

    def __init__(self, broker: Node, target: int, broker_epoch: int) -> None:
        self._broker = broker
        self._target = target
        self.broker_epoch = broker_epoch
        self._requests: deque[tuple[RequestType[Any, Any], Any]] = deque()
        self._peer = broker.new_peer(target)
        self._is_sending = False
        self._is_closed = False

    def send(self, type_: RequestType[Any, Any], request: Any) -> None:
        """Sends a request after those before it."""
        self._requests.append((type_, request))
        if not self._is_sending:
            self._send_first()

    def close(self) -> None:
        """Drops the requests that are not sent yet."""
        self._is_closed = True

    def _send_first(self) -> None:
        if self._is_closed or not self._requests:
            self._is_sending = False
            return
        self._is_sending = True
        type_, request = self._requests[0]
        self._peer.ask(type_, request, self._take, timeout_us=self._broker.options.request_timeout_ms * MS)

    def _take(self, response: Any) -> None:
        if response is None:
            self._broker.process.call_later(RETRY_US, self._send_first)
            return
        self._requests.popleft()
        self._send_first()
