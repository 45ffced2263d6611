"""The parts of a broker that only a member of a cluster has. Handlers reach them as `broker.member`."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from wirekafka.controller.local_controller import LocalController
from wirekafka.membership.configs import ClusterConfigs
from wirekafka.membership.controller_requests import ControllerRequests
from wirekafka.membership.peers import Peers
from wirekafka.membership.registration import Registration
from wirekafka.membership.topic_waits import TopicWaits
from wirekafka.metadata.image import ClusterImage
from wirekafka.replication.cluster_replicas import ClusterReplicas
from wirekafka.replication.controller_queue import ControllerQueue
from wirekafka.replication.throttle import ReplicationThrottle


@dataclass(slots=True)
class Member:
    """A broker as a member of a cluster with ZooKeeper.

    Attributes:
        node_id: the id of this broker.
        registration: the znode of this broker.
        configs: the settings in ZooKeeper.
        image: the brokers and topics of the controller's last UpdateMetadata.
        replicas: the replicas of this broker.
        controller_queue: executes the requests of controllers, one after the other.
        peers: connects to the other brokers.
        leader_throttle: limits what this broker sends to followers that are not in sync.
        controller_requests: sends requests to the controller of the cluster.
        local_controller: the controller that this broker is, or may become.
        topic_waits: the replies that wait for word of topics from the controller.
        has_brokers: is set after the first UpdateMetadata, which may have brokers only.
        has_image: is set after the first UpdateMetadata with partitions, which has the whole cluster.
    """

    node_id: int
    registration: Registration
    configs: ClusterConfigs
    image: ClusterImage
    replicas: ClusterReplicas
    controller_queue: ControllerQueue
    peers: Peers
    controller_requests: ControllerRequests
    leader_throttle: ReplicationThrottle
    local_controller: LocalController | None = None
    topic_waits: TopicWaits = field(init=False)
    has_brokers: trio.Event = field(default_factory=trio.Event)
    has_image: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.topic_waits = TopicWaits(self.image)

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker: the czxid of its znode, -1 before it is registered."""
        return self.registration.broker_epoch
