"""What the active controller knows of the cluster: brokers, topics, assignments, and the state of each partition and replica.

Rules of this file: it changes nothing outside, and decides nothing. Scripts change it after ZooKeeper has the change.

Source: kafka.controller.ControllerContext.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wirekafka.names import TopicPartition
from wirekafka.wire.messages.stop_replica import StopReplicaPartitionState
from wirekafka.zookeeper.layout.membership import BrokerRegistration
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker.

    Attributes:
        epoch: the broker epoch, the czxid of the registration.
        registration: the content of its znode.
    """

    broker_id: int
    epoch: int
    registration: BrokerRegistration


@dataclass(slots=True)
class Topic:
    """A topic.

    Attributes:
        topic_id: 16 bytes; None in a cluster whose release is below 2.8.
        version: the version of the znode with the assignments.
        assignments: the replicas of each partition.
    """

    name: str
    topic_id: bytes | None
    version: int
    assignments: dict[int, ReplicaAssignment]


@dataclass(slots=True)
class StoredState:
    """The state of a partition in ZooKeeper.

    Attributes:
        state: the content of the znode.
        version: the version of the znode, which is the partition epoch.
    """

    state: PartitionState
    version: int


@dataclass(slots=True)
class ControllerContext:
    """What the active controller knows.

    Attributes:
        epoch: the controller epoch.
        epoch_version: the version of `/controller_epoch`, by which each write is checked.
        live: the registered brokers, by id; also those that shut down.
        settled_epochs: the broker epochs for which the in-sync replicas are right, by broker id: a broker with another epoch has
            restarted, and has not left them yet. Empty until the cluster was read.
        shutting_down: the brokers that have asked for a controlled shutdown.
        topics: by name.
        topic_names: the name of each topic id.
        states: the state of each partition that has one; a new partition has none before its first leader is elected.
        offline_replicas: for each broker, the partitions whose directory has failed there.
        deleting: the topics that shall be deleted, in the order in which that was asked for.
        ineligible: the topics whose deletion waits, because a replica is not available.
        untold_waits: for each topic whose deletion waits, and whose waiting is not logged yet, the reason.
        stopping_replicas: for each topic that is being deleted, the replicas whose broker was told to delete the log, and has not
            answered: each a partition and a broker id.
        deletion_orders: for each topic that is being deleted, the newest order to delete the log of each replica. Only the answer
            to this order counts: StopReplica has no topic ids, and an earlier order may be about a former topic of the same name.
        deleted_replicas: for each topic that is being deleted, the replicas that are deleted.
        reassigning: the partitions with a reassignment in progress.
    """

    epoch: int
    epoch_version: int
    live: dict[int, LiveBroker] = field(default_factory=dict)
    settled_epochs: dict[int, int] = field(default_factory=dict)
    shutting_down: set[int] = field(default_factory=set)
    topics: dict[str, Topic] = field(default_factory=dict)
    topic_names: dict[bytes, str] = field(default_factory=dict)
    states: dict[TopicPartition, StoredState] = field(default_factory=dict)
    offline_replicas: dict[int, set[TopicPartition]] = field(default_factory=dict)
    deleting: dict[str, None] = field(default_factory=dict)
    ineligible: set[str] = field(default_factory=set)
    untold_waits: dict[str, str] = field(default_factory=dict)
    stopping_replicas: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    deletion_orders: dict[str, dict[tuple[int, int], StopReplicaPartitionState]] = field(default_factory=dict)
    deleted_replicas: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    reassigning: dict[TopicPartition, None] = field(default_factory=dict)

    # Brokers

    def settle_epochs(self) -> None:
        """Notes that the live brokers which have restarted have left the in-sync replicas."""
        self.settled_epochs = {broker.broker_id: broker.epoch for broker in self.live.values()}

    @property
    def available(self) -> list[int]:
        """The brokers that may become leaders: live, and not in a controlled shutdown."""
        return [broker_id for broker_id in self.live if broker_id not in self.shutting_down]

    def is_online(self, broker_id: int, name: TopicPartition, *, includes_shutting_down: bool = False) -> bool:
        """Whether a replica can serve: its broker is live and its directory has not failed.

        Source: ControllerContext.isReplicaOnline.
        """
        is_live = broker_id in self.live and (includes_shutting_down or broker_id not in self.shutting_down)
        return is_live and name not in self.offline_replicas.get(broker_id, ())

    # Topics

    def put_topic(self, topic: Topic) -> None:
        """Adds a topic, or replaces what is known of it, with its reassignments in progress."""
        self.topics[topic.name] = topic
        if topic.topic_id is not None:
            self.topic_names[topic.topic_id] = topic.name
        for index, assignment in topic.assignments.items():
            if assignment.adding_replicas or assignment.removing_replicas:
                self.reassigning[TopicPartition(topic.name, index)] = None

    def remove_topic(self, name: str) -> None:
        """Forgets a topic, its partitions, and its deletion."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        if topic.topic_id is not None:
            self.topic_names.pop(topic.topic_id, None)
        for index in topic.assignments:
            partition = TopicPartition(name, index)
            self.states.pop(partition, None)
            self.reassigning.pop(partition, None)
            for failed in self.offline_replicas.values():
                failed.discard(partition)
        self.deleting.pop(name, None)
        self.ineligible.discard(name)
        self.stopping_replicas.pop(name, None)
        self.deletion_orders.pop(name, None)
        self.deleted_replicas.pop(name, None)

    def assignment(self, name: TopicPartition) -> ReplicaAssignment | None:
        """Returns the replicas of a partition; None if it does not exist."""
        topic = self.topics.get(name.topic)
        return None if topic is None else topic.assignments.get(name.partition)

    def replicas(self, name: TopicPartition) -> tuple[int, ...]:
        """Returns the brokers that have a replica of a partition; empty if it does not exist."""
        found = self.assignment(name)
        return () if found is None else found.replicas

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Returns the partitions of a topic, in order."""
        return [TopicPartition(topic, index) for index in sorted(self.topics[topic].assignments)]

    def all_partitions(self) -> Iterable[TopicPartition]:
        """Returns all partitions."""
        for topic in self.topics.values():
            for index in topic.assignments:
                yield TopicPartition(topic.name, index)

    def partitions_among(self, topics: Iterable[str]) -> Iterable[TopicPartition]:
        """Returns the partitions of topics, without the topics that do not exist."""
        for name in topics:
            if name in self.topics:
                yield from self.partitions_of(name)

    def is_deleting(self, topic: str) -> bool:
        """Whether a topic shall be deleted."""
        return topic in self.deleting
