"""Known bugs in what brokers accept from deposed controllers and for former registrations."""

from __future__ import annotations

from wirekafka.errors import ErrorCode
from wirekafka.metadata.image import ClusterImage
from wirekafka.names import TopicPartition
from wirekafka.replication.cluster_replicas import ClusterReplicas
from wirekafka.replication.controller_order import ControllerOrder, ControllerRequest
from wirekafka.replication.controller_requests import TopicState
from wirekafka.simulation.broker import Broker
from wirekafka.simulation.planted.planting import PlantedBug, Replacement
from wirekafka.wire.messages.leader_and_isr import LeaderAndIsrPartitionState, LeaderAndIsrRequest
from wirekafka.wire.messages.stop_replica import StopReplicaRequest
from wirekafka.wire.messages.update_metadata import UpdateMetadataRequest

_take_state = ClusterReplicas._take_state
_take_order = ControllerOrder.take


def _is_never_old(self: ClusterReplicas, request: LeaderAndIsrRequest | StopReplicaRequest) -> bool:
    request.controller_epoch = max(request.controller_epoch, self.controller_epoch)
    return False


def _take_any_state(
    self: ClusterReplicas, request: LeaderAndIsrRequest, topic: TopicState, state: LeaderAndIsrPartitionState
) -> ErrorCode:
    replica = self.find(TopicPartition(topic.name, state.partition_index))
    if replica is not None and state.leader_epoch < replica.leader_epoch:
        replica.leader_epoch = state.leader_epoch - 1
        if replica.leader is not None:
            replica.stop()
        replica._partition_epoch = state.partition_epoch
    return _take_state(self, request, topic, state)


def _take_any_order(self: ControllerOrder, request: ControllerRequest, correlation_id: int, connection: int) -> bool:
    return True


def _take_order_of_any_registration(
    self: ControllerOrder, request: ControllerRequest, correlation_id: int, connection: int
) -> bool:
    newest = self._newest
    is_stale = request.controller_epoch == newest.controller_epoch and request.broker_epoch < newest.broker_epoch
    return is_stale or _take_order(self, request, correlation_id, connection)


def _take_state_of_any_registration(
    self: ClusterReplicas, request: LeaderAndIsrRequest, topic: TopicState, state: LeaderAndIsrPartitionState
) -> ErrorCode:
    own_epoch = self._live_brokers.get(self._node_id)
    is_stale = own_epoch is not None and request.broker_epoch < own_epoch
    return (_take_any_state if is_stale else _take_state)(self, request, topic, state)


def _check_nothing(self: ClusterImage, request: UpdateMetadataRequest) -> None:
    pass


def _is_never_stale(self: Broker, broker_epoch: int) -> bool:
    return False


BUGS = (
    PlantedBug(
        "accept-stale-controller-epoch",
        "a broker executes requests of a deposed controller, and returns to the older leader epochs in them",
        "KafkaApis.handleLeaderAndIsrRequest",
        (
            Replacement(ControllerOrder, "take", _take_any_order),
            Replacement(ClusterImage, "_check_epoch", _check_nothing),
            Replacement(ClusterReplicas, "_is_old", _is_never_old),
            Replacement(ClusterReplicas, "_take_state", _take_any_state),
        ),
    ),
    PlantedBug(
        "accept-stale-broker-epoch",
        "a broker that has restarted executes requests for its former registration, and returns to their leader epochs",
        "KIP-380",
        (
            Replacement(ControllerOrder, "take", _take_order_of_any_registration),
            Replacement(Broker, "_is_stale", _is_never_stale),
            Replacement(ClusterReplicas, "_take_state", _take_state_of_any_registration),
        ),
    ),
    PlantedBug(
        "accept-overtaken-requests",
        "a broker executes a request of the controller that arrives after a newer one, and returns to its leader epochs",
        "ReplicaManager.becomeLeaderOrFollower",
        (
            Replacement(ControllerOrder, "take", _take_any_order),
            Replacement(ClusterReplicas, "_take_state", _take_any_state),
        ),
    ),
)
"""The bugs, the switches of which are their names."""
