"""The requests of the controller to the brokers, collected while an event is handled, and sent together after it.

How it works: scripts add what a broker must learn when the context has it. `send` makes the messages: for each broker at most one
LeaderAndIsr, one UpdateMetadata and one StopReplica, in this order. The messages of a partition are made once for all brokers.

Rules of this file:
    A partition is described as the context has it when it is added; a later addition replaces an earlier one.
    A broker that is not live gets nothing; one that shuts down does.
    The versions are those of the release, as Apache Kafka's controller does not ask brokers for ApiVersions.

Source: kafka.controller.AbstractControllerBrokerRequestBatch of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from wirekafka.controller.context import ControllerContext, LiveBroker, StoredState
from wirekafka.controller.scripts import PAUSE, Script
from wirekafka.controller.settings import ControllerSettings
from wirekafka.names import ZERO_TOPIC_ID, TopicPartition
from wirekafka.replication.protocol_versions import CONTROLLER_VERSIONS
from wirekafka.wire.messages.leader_and_isr import (
    LEADER_AND_ISR,
    LeaderAndIsrLiveLeader,
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
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from wirekafka.wire.requests import RequestType
from wirekafka.zookeeper.layout.topics import LEADER_DURING_DELETE, ReplicaAssignment

NO_LEADER_EPOCH = -1
EPOCH_DURING_DELETE = -2
"""The leader epochs of a StopReplica for a partition without a state, and of a topic that is deleted (LeaderAndIsr.scala)."""

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""org.apache.kafka.common.security.auth.SecurityProtocol."""

SLICE = 64
"""How many partitions are looked at without a pause."""


class Channels(Protocol):
    """The queues of requests to the brokers."""

    def send(self, broker: LiveBroker, kind: RequestType[Any, Any], request: Any, version: int) -> None:
        """Sends a request to a live broker, after those that were sent to it before."""


class RequestBatch:
    """The requests of one event.

    Args:
        channels: takes the requests in `send`.

    Attributes:
        settings: those of the controller, for the scripts of the event.
        reassigning: the partitions with a reassignment in progress that brokers were told about: their state may have changed.
    """

    def __init__(self, context: ControllerContext, settings: ControllerSettings, channels: Channels) -> None:
        self._context = context
        self.settings = settings
        self.reassigning: dict[TopicPartition, None] = {}
        self._versions = CONTROLLER_VERSIONS[settings.release]
        self._channels = channels
        self._leader_and_isr: dict[int, dict[TopicPartition, LeaderAndIsrPartitionState]] = {}
        self._stop_replica: dict[int, dict[TopicPartition, StopReplicaPartitionState]] = {}
        self._told: dict[int, None] = {}
        """The brokers that get an UpdateMetadata."""
        self._metadata: dict[TopicPartition, UpdateMetadataPartitionState] = {}

    def leader_and_isr(self, broker_ids: Iterable[int], name: TopicPartition, *, is_new: bool = False) -> None:
        """Tells brokers the state of a partition that they have a replica of, and all brokers the metadata of the partition.

        Args:
            is_new: the replica is new, so the broker may create its log although a directory has failed.
        """
        stored, assignment = self._context.states[name], self._context.assignment(name)
        assert assignment is not None, "a partition with a state has replicas"
        messages = {is_new: self._leadership(name, stored, assignment, is_new=is_new)}
        for broker_id in broker_ids:
            states = self._leader_and_isr.setdefault(broker_id, {})
            is_new_there = is_new or (name in states and states[name].is_new)
            if is_new_there not in messages:
                messages[is_new_there] = self._leadership(name, stored, assignment, is_new=is_new_there)
            states[name] = messages[is_new_there]
        self.update_metadata(self._context.live, [name])

    def stop_replica(self, broker_ids: Iterable[int], name: TopicPartition, *, deletes: bool) -> None:
        """Tells brokers to stop their replica of a partition.

        Args:
            deletes: the log is deleted too.
        """
        leader_epoch = self._leader_epoch(name)
        for broker_id in broker_ids:
            states = self._stop_replica.setdefault(broker_id, {})
            is_deletion = deletes or (name in states and states[name].delete_partition)
            stop = states[name] = StopReplicaPartitionState(
                partition_index=name.partition, leader_epoch=leader_epoch, delete_partition=is_deletion
            )
            if is_deletion and self._context.is_deleting(name.topic):
                self._context.deletion_orders.setdefault(name.topic, {})[name.partition, broker_id] = stop

    def update_metadata(self, broker_ids: Iterable[int], names: Iterable[TopicPartition] = ()) -> None:
        """Tells brokers the live brokers, and the metadata of partitions.

        All brokers that are told anything in this event are told all these partitions. A partition without a state is not told.
        """
        self._told.update(dict.fromkeys(broker_ids))
        for name in names:
            stored = self._context.states.get(name)
            if stored is not None:
                self._metadata[name] = self._metadata_of(name, stored)
                if name in self._context.reassigning:
                    self.reassigning[name] = None

    def send(self) -> Script[None]:
        """Sends what was collected, and forgets it. It needs no ZooKeeper; it pauses between the brokers."""
        leader_and_isr, self._leader_and_isr = self._leader_and_isr, {}
        for broker_id, states in leader_and_isr.items():
            if (broker := self._context.live.get(broker_id)) is not None:
                request = yield from self._leader_and_isr_request(broker, states)
                self._channels.send(broker, LEADER_AND_ISR, request, self._versions.leader_and_isr)
        yield from self._send_metadata()
        stop_replica, self._stop_replica = self._stop_replica, {}
        for broker_id, stops in stop_replica.items():
            if (broker := self._context.live.get(broker_id)) is not None:
                stop_request = yield from self._stop_replica_request(broker, stops)
                self._channels.send(broker, STOP_REPLICA, stop_request, self._versions.stop_replica)

    # LeaderAndIsr

    def _leadership(
        self, name: TopicPartition, stored: StoredState, assignment: ReplicaAssignment, *, is_new: bool
    ) -> LeaderAndIsrPartitionState:
        state = stored.state
        return LeaderAndIsrPartitionState(
            partition_index=name.partition,
            controller_epoch=state.controller_epoch,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=[*state.isr],
            partition_epoch=stored.version,
            replicas=[*assignment.replicas],
            adding_replicas=[*assignment.adding_replicas],
            removing_replicas=[*assignment.removing_replicas],
            is_new=is_new,
            leader_recovery_state=state.leader_recovery_state,
        )

    def _leader_and_isr_request(
        self, broker: LiveBroker, states: dict[TopicPartition, LeaderAndIsrPartitionState]
    ) -> Script[LeaderAndIsrRequest]:
        topics: dict[str, LeaderAndIsrTopicState] = {}
        leaders: dict[int, None] = {}
        for count, (name, state) in enumerate(states.items(), 1):
            topic = topics.get(name.topic)
            if topic is None:
                topic = topics[name.topic] = LeaderAndIsrTopicState(
                    topic_name=name.topic, topic_id=self._topic_id(name.topic), partition_states=[]
                )
            topic.partition_states.append(state)
            leaders[state.leader] = None
            if count % SLICE == 0:
                yield PAUSE
        live_leaders = [self._live_leader(live) for live in self._context.live.values() if live.broker_id in leaders]
        return LeaderAndIsrRequest(
            controller_id=self.settings.broker_id,
            controller_epoch=self._context.epoch,
            broker_epoch=broker.epoch,
            topic_states=[*topics.values()],
            live_leaders=live_leaders,
        )

    def _live_leader(self, broker: LiveBroker) -> LeaderAndIsrLiveLeader:
        """Returns the address of a leader; an empty one if the broker has not the listener."""
        for endpoint in broker.registration.endpoints:
            if endpoint.listener.name == self.settings.listener_name:
                host, port = endpoint.listener.host, endpoint.listener.port
                return LeaderAndIsrLiveLeader(broker_id=broker.broker_id, host_name=host, port=port)
        return LeaderAndIsrLiveLeader(broker_id=broker.broker_id)

    def _topic_id(self, topic: str) -> bytes:
        found = self._context.topics.get(topic)
        return ZERO_TOPIC_ID if found is None else found.topic_id or ZERO_TOPIC_ID

    # UpdateMetadata

    def _metadata_of(self, name: TopicPartition, stored: StoredState) -> UpdateMetadataPartitionState:
        state, replicas = stored.state, self._context.replicas(name)
        is_deleting = self._context.is_deleting(name.topic)  # LeaderAndIsr.duringDelete
        return UpdateMetadataPartitionState(
            partition_index=name.partition,
            controller_epoch=state.controller_epoch,
            leader=LEADER_DURING_DELETE if is_deleting else state.leader,
            leader_epoch=0 if is_deleting else state.leader_epoch,
            isr=[*state.isr],
            zk_version=0 if is_deleting else stored.version,
            replicas=[*replicas],
            offline_replicas=[each for each in replicas if not self._context.is_online(each, name)],
        )

    def _send_metadata(self) -> Script[None]:
        told, self._told = self._told, {}
        metadata, self._metadata = self._metadata, {}
        topics: dict[str, UpdateMetadataTopicState] = {}
        for count, (name, state) in enumerate(metadata.items(), 1):
            topic = topics.get(name.topic)
            if topic is None:
                topic = topics[name.topic] = UpdateMetadataTopicState(
                    topic_name=name.topic, topic_id=self._topic_id(name.topic), partition_states=[]
                )
            topic.partition_states.append(state)
            if count % SLICE == 0:
                yield PAUSE
        live_brokers = [_metadata_broker(live) for live in self._context.live.values()]
        for broker_id in told:
            if (broker := self._context.live.get(broker_id)) is not None:
                request = UpdateMetadataRequest(
                    controller_id=self.settings.broker_id,
                    controller_epoch=self._context.epoch,
                    broker_epoch=broker.epoch,
                    topic_states=[*topics.values()],
                    live_brokers=live_brokers,
                )
                self._channels.send(broker, UPDATE_METADATA, request, self._versions.update_metadata)
                yield PAUSE

    # StopReplica

    def _leader_epoch(self, name: TopicPartition) -> int:
        if self._context.is_deleting(name.topic):
            return EPOCH_DURING_DELETE
        stored = self._context.states.get(name)
        return NO_LEADER_EPOCH if stored is None else stored.state.leader_epoch

    def _stop_replica_request(
        self, broker: LiveBroker, stops: dict[TopicPartition, StopReplicaPartitionState]
    ) -> Script[StopReplicaRequest]:
        topics: dict[str, StopReplicaTopicState] = {}
        for count, (name, stop) in enumerate(stops.items(), 1):
            topic = topics.get(name.topic)
            if topic is None:
                topic = topics[name.topic] = StopReplicaTopicState(topic_name=name.topic, partition_states=[])
            topic.partition_states.append(stop)
            if count % SLICE == 0:
                yield PAUSE
        return StopReplicaRequest(
            controller_id=self.settings.broker_id,
            controller_epoch=self._context.epoch,
            broker_epoch=broker.epoch,
            topic_states=[*topics.values()],
        )


def _metadata_broker(broker: LiveBroker) -> UpdateMetadataBroker:
    endpoints = [
        UpdateMetadataEndpoint(
            port=each.listener.port,
            host=each.listener.host,
            listener=each.listener.name,
            security_protocol=SECURITY_PROTOCOLS.get(each.security_protocol, 0),
        )
        for each in broker.registration.endpoints
    ]
    return UpdateMetadataBroker(id=broker.broker_id, endpoints=endpoints, rack=broker.registration.rack)
