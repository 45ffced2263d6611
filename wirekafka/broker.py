"""The broker: its parts, opened in order and closed in reverse.

How it works: a coordinator is created, and its code imported, when a request first needs it, or at the start if the data
directories hold its state. A broker that only stores records starts in two thirds of the time and takes less memory.

Rules of this file: each part is given the other parts that it needs; no part looks another one up. Handlers reach the parts as
attributes of the broker. The broker knows no protocol and no socket.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.reply_gate import ReplyGate
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.directory import read_owner
from wirekafka.log.manager import LogManager
from wirekafka.log.meta_properties import MetaPropertiesVersion
from wirekafka.log.storage import Storage
from wirekafka.metadata import producer_ids
from wirekafka.metadata.features import TRANSACTION_VERSION
from wirekafka.metadata.journal import has_journal
from wirekafka.metadata.producer_ids import ProducerIds
from wirekafka.metadata.takeover import SETTINGS
from wirekafka.names import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from wirekafka.pending import Work
from wirekafka.replication.fetch_sessions import FetchSessions
from wirekafka.replication.purgatory import Purgatory
from wirekafka.replication.replica_manager import HostedTopics, open_hosted_topics
from wirekafka.slices import Slices
from wirekafka.troubles import ClientTroubles
from wirekafka.workers import Workers

if TYPE_CHECKING:
    from wirekafka.coordinator.cluster import CoordinatorCluster
    from wirekafka.coordinator.groups.consumer.runtime import ConsumerGroupRuntime
    from wirekafka.coordinator.groups.modern.live_topics import LiveTopics
    from wirekafka.coordinator.groups.runtime import GroupRuntime
    from wirekafka.coordinator.share_delivery.runtime import ShareGroupRuntime
    from wirekafka.coordinator.transactions.markers import MarkerWriter
    from wirekafka.coordinator.transactions.remote_markers import ClusterMarkers
    from wirekafka.coordinator.transactions.runtime import TransactionRuntime
    from wirekafka.membership.member import Member
    from wirekafka.replication.leader_replica import LeaderReplica
    from wirekafka.replication.member_topics import MemberTopics
    from wirekafka.replication.partition import Partition

log = structlog.get_logger(__name__)


COORDINATORS = {
    GROUP_METADATA_TOPIC: "groups",
    TRANSACTION_STATE_TOPIC: "transactions",
    SHARE_STATE_TOPIC: "share_groups",
}
"""The attributes of `Broker` that are created with the coordinator of a topic."""


class Client(Protocol):
    """The properties of a client that the broker needs to choose the address that it advertises."""

    host: str
    listener: str
    local_host: str
    local_port: int


class ProducerIdSource(Protocol):
    """Gives producer ids: from blocks of the disk, or in a cluster from blocks of the controller."""

    def take(self) -> int:
        """Returns a producer id that no other producer has.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, COORDINATOR_LOAD_IN_PROGRESS.
        """


class Coordinator(Protocol):
    """A coordinator whose state moves between brokers, with the leaders of the partitions of its topic."""

    def load(self) -> None:
        """Loads all state, because no other broker leads a partition of it."""

    def join_cluster(self, cluster: CoordinatorCluster) -> None:
        """Is called instead of `load` if other brokers may lead partitions of the state."""

    def load_partition(self, partition: Partition) -> None:
        """Loads a partition that this broker leads now."""

    def unload_partition(self, index: int, leader_epoch: int | None) -> None:
        """Removes the state of a partition that this broker no longer leads."""


class Broker:
    """One broker; `open` builds it.

    Attributes:
        config: the broker's settings.
        clock: the broker's time and timers.
        node_id: the id by which clients know it.
        cluster_id: the id of the cluster, which is stored in the data directory.
        logs: the logs of all partitions.
        topics: the table of topics, with their partitions.
        purgatory: the fetches that wait for records.
        reply_gate: holds the replies of coordinators until the state that they depend on is committed.
        slices: the long work of requests, which runs a few milliseconds at a time.
        fetch_sessions: the fetch sessions of consumers.
        producer_ids: gives ids to producers.
        leader_replicas: the leaders of the partitions that have other replicas; empty in a broker without other brokers.
        workers: threads for requests that need much CPU.
        troubles: what the log has about clients that fail.
        member: the parts that only a member of a cluster has; None in a broker without other brokers.
    """

    def __init__(self, config: BrokerConfig, clock: Clock, logs: LogManager, topics: HostedTopics) -> None:
        self.config = config
        self.clock = clock
        self.node_id = config.node_id
        self.cluster_id = logs.cluster_id
        self.logs = logs
        self.topics = topics
        self.purgatory = Purgatory(clock)
        self.reply_gate = ReplyGate(self.purgatory)
        self.slices = Slices(clock)
        self.workers = Workers()
        self.troubles = ClientTroubles()
        self.fetch_sessions = FetchSessions(config.integer("max.incremental.fetch.session.cache.slots"))
        path = os.path.join(config.log_dirs[0], producer_ids.FILE_NAME)
        self.producer_ids: ProducerIdSource = ProducerIds(
            path, logs.storage, node_id=self.node_id, greatest_known=self._greatest_producer_id
        )
        self.leader_replicas: dict[Partition, LeaderReplica] = {}
        self.member: Member | None = None
        self._is_loaded = False
        self._cluster: CoordinatorCluster | None = None
        self._advertised = config.advertised_listeners
        self._told: set[str] = set()

    @classmethod
    async def open(cls, config: BrokerConfig, clock: Clock, storage: Storage | None = None) -> Broker:
        """Opens the data directories, and loads the state that they hold.

        Args:
            storage: the file system; None for the real one.

        Raises:
            DirectoryLockedError: another broker holds a directory.
            KafkaError: KAFKA_STORAGE_ERROR if the data cannot be read; INVALID_CONFIG if a directory belongs to a member of a
                cluster.
            OSError: a directory cannot be created or read.

        Cancellation: everything that was opened is closed.
        """
        _check_is_no_member(config, Storage())
        logs = await LogManager.open(config, clock, storage=storage)
        try:
            broker = cls(config, clock, logs, open_hosted_topics(config, logs))
            broker._load()
        except BaseException:
            with trio.CancelScope(shield=True):
                await logs.close()
            raise
        return broker

    @classmethod
    async def open_member(cls, config: BrokerConfig, clock: Clock, topics: MemberTopics, cluster_id: str) -> Broker:
        """Opens the data directories of a member of a cluster; the controller gives the partitions their roles later.

        Args:
            topics: the table of topics, which has their settings already.

        Raises:
            DirectoryLockedError, KafkaError, OSError: as `open`; INCONSISTENT_CLUSTER_ID if a directory belongs to another
                cluster.

        Cancellation: everything that was opened is closed.
        """
        logs = await LogManager.open(config, clock, config_of=topics.log_config_of, cluster_id=cluster_id)
        return cls(config, clock, logs, topics)  # type: ignore[arg-type]

    def _load(self) -> None:
        """Creates and loads the coordinators that have state in the data directories."""
        topics = self.topics
        if any(topics.find(name) is not None for name in (GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC)):
            # The groups of each type register with the group coordinator before its one log is read.
            share_groups, _ = self.share_groups, self.consumer_groups
            self.groups.load()
            share_groups.load()
        self._is_loaded = True
        if topics.find(TRANSACTION_STATE_TOPIC) is not None:
            # The transaction coordinator comes last, because it may have markers to write for groups. It is loaded when it is
            # created. If groups are created first, so are they.
            _ = self.transactions

    @cached_property
    def groups(self) -> GroupRuntime:
        """The group coordinator: the state that groups of all types share, and the classic groups."""
        from wirekafka.coordinator.groups.runtime import GroupRuntime

        made = GroupRuntime(self.config, self.clock, self.topics, self.reply_gate, self.workers.submit)
        self._begin(made)
        return made

    @cached_property
    def live_topics(self) -> LiveTopics:
        """The topics as the group coordinator uses them."""
        from wirekafka.coordinator.groups.modern.live_topics import LiveTopics

        cluster = self._cluster
        if cluster is None:
            return LiveTopics(self.topics, self.config.rack, self.clock.now_ms)
        return LiveTopics(self.topics, None, self.clock.now_ms, cluster.knows_topics)

    @cached_property
    def consumer_groups(self) -> ConsumerGroupRuntime:
        """The groups of the consumer protocol."""
        from wirekafka.coordinator.groups.consumer.runtime import ConsumerGroupRuntime

        return ConsumerGroupRuntime(self.config, self.clock, self.groups, self.topics, self.live_topics)

    @cached_property
    def share_groups(self) -> ShareGroupRuntime:
        """The share groups, and the delivery of their records."""
        from wirekafka.coordinator.share_delivery.runtime import ShareGroupRuntime

        made = ShareGroupRuntime(
            self.config,
            self.clock,
            self.topics,
            self.live_topics,
            self.groups,
            self.purgatory,
            self.reply_gate,
            self._run_in_slices,
        )
        if self._cluster is not None:
            made.join_cluster(self._cluster)
        elif self._is_loaded:
            made.load()
        return made

    @cached_property
    def markers(self) -> MarkerWriter:
        """Writes the markers that end transactions in partitions."""
        from wirekafka.coordinator.transactions.markers import MarkerWriter

        return MarkerWriter(self.topics, self.groups, self.node_id)

    @cached_property
    def transactions(self) -> TransactionRuntime:
        """The transaction coordinator."""
        from wirekafka.coordinator.transactions.runtime import TransactionRuntime

        made = TransactionRuntime(
            self.config,
            self.clock,
            self.topics,
            self._cluster_markers(self._cluster) if self._cluster is not None else self.markers,
            self.producer_ids.take,
            self.reply_gate,
            self._run_in_slices,
        )
        self._begin(made)
        return made

    def _cluster_markers(self, cluster: CoordinatorCluster) -> ClusterMarkers:
        from wirekafka.coordinator.transactions.remote_markers import ClusterMarkers

        return ClusterMarkers(self.markers, cluster, self.clock, lambda: self.topics.features.level(TRANSACTION_VERSION))

    def _begin(self, coordinator: Coordinator) -> None:
        """Loads the state of a coordinator; in a cluster, it is loaded when this broker leads a partition of the state."""
        if self._cluster is not None:
            coordinator.join_cluster(self._cluster)
        elif self._is_loaded:
            coordinator.load()

    def join_cluster(self, cluster: CoordinatorCluster) -> None:
        """Lets coordinators serve only what `load_coordinator` has loaded. It is called once, before a coordinator is used."""
        self._cluster = cluster

    def leave_cluster(self) -> None:
        """Ends the requests of the coordinators to other brokers, because this broker stops."""
        if self._cluster is not None:
            self._cluster.close()

    def load_coordinator(self, partition: Partition) -> None:
        """Loads the state in a partition, in slices, because this broker has become its leader.

        It is called for every partition, and ignores those without state.

        Source: RequestHandlerHelper.onLeadershipChange (updatedLeaders).
        """
        coordinator = self._coordinator_of(partition.topic)
        if coordinator is not None:
            coordinator.load_partition(partition)

    def unload_coordinator(self, partition: Partition, leader_epoch: int | None) -> None:
        """Removes the state of a partition, in slices, because this broker no longer leads it.

        Args:
            leader_epoch: the epoch of the new leader; None if the partition is deleted.

        Source: RequestHandlerHelper.onLeadershipChange (updatedFollowers), KafkaApis.handleStopReplicaRequest.
        """
        if "share_groups" in vars(self):
            self.share_groups.partitions.unload_partition(partition.topic_id, partition.index)
        is_created = COORDINATORS.get(partition.topic) in vars(self)
        coordinator = self._coordinator_of(partition.topic) if is_created else None
        if coordinator is not None:
            coordinator.unload_partition(partition.index, leader_epoch)

    def _coordinator_of(self, topic: str) -> Coordinator | None:
        """Returns the coordinator that keeps its state in a topic; None if none does."""
        match topic:
            case "__consumer_offsets":
                # The groups of each type register with the group coordinator before a log is read.
                _ = self.consumer_groups, self.share_groups
                return self.groups
            case "__transaction_state":
                return self.transactions
            case "__share_group_state":
                return self.share_groups.states
            case _:
                return None

    def _run_in_slices(self, work: Work[None]) -> object:
        """Runs background work of a coordinator in slices."""
        return self.slices.run(work)

    def find_partition(self, topic: str | bytes, index: int, leader_epoch: int | None = None) -> Partition:
        """Returns a partition whose log this broker may read and write for a client.

        Args:
            topic: the topic's name, or its id as bytes.
            leader_epoch: the leader epoch that the client knows; None or -1 if the client knows none.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID if the partition does not exist; KAFKA_STORAGE_ERROR if it
                is offline; NOT_LEADER_OR_FOLLOWER if another broker leads it; FENCED_LEADER_EPOCH if the client's epoch is
                older than the partition's, UNKNOWN_LEADER_EPOCH if it is newer.

        Source: ReplicaManager.getPartitionOrError, Partition.localLogWithEpochOrThrow.
        """
        partition = self.topics.find_partition(topic, index)
        # `check_leads` is called only if something may be wrong: each call costs the hot path 0.05 us.
        if partition.log.offline_reason is not None or partition.leader != self.node_id or leader_epoch is not None:
            self.check_leads(partition, leader_epoch)
        return partition

    def check_leads(self, partition: Partition, leader_epoch: int | None = None) -> None:
        """Raises unless this broker leads a partition that was found before, and can use its log.

        Args, Raises: as `find_partition`.
        """
        if partition.log.offline_reason is not None:
            partition.check_online()
        if partition.leader != self.node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader_epoch is not None and leader_epoch != partition.leader_epoch:
            partition.check_leader_epoch(leader_epoch)

    def check_hosts(self, partition: Partition, leader_epoch: int) -> None:
        """Raises unless this broker has a replica of a partition that was found before, and can use its log.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; NOT_LEADER_OR_FOLLOWER if it has no replica; FENCED_LEADER_EPOCH if the client's
                epoch is older than the partition's, UNKNOWN_LEADER_EPOCH if it is newer.
        """
        if partition.log.offline_reason is not None:
            partition.check_online()
        if not partition.is_hosted:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition.check_leader_epoch(leader_epoch)

    def start(self, nursery: trio.Nursery) -> None:
        """Starts the background work: timers, retention, checkpoints, compaction."""
        nursery.start_soon(self.clock.run)
        self.workers.start(nursery)
        self.logs.start(nursery)

    async def close(self) -> None:
        """Closes all parts; no connection may use the broker any more.

        Durability: all logs are on disk, and marked as closed cleanly.
        """
        self.workers.close()
        self.slices.close()
        try:
            self.topics.close()
        finally:
            await self.logs.close()

    def advertised_address(self, client: Client) -> tuple[str, int]:
        """Returns the address for a client: the one configured for its listener, or the one at which it reached the broker.

        Logs a warning once for each client on another machine that gets a loopback address.
        """
        configured = self._advertised.get(client.listener)
        if configured is None:
            return client.local_host, client.local_port
        port = configured.port or client.local_port
        if is_loopback(configured.host) and not is_loopback(client.host) and client.host not in self._told:
            self._told.add(client.host)
            log.warning(
                "A client on another machine is told a loopback address, which it can use only if it forwards that port to this "
                "broker; see advertised.listeners",
                client=client.host,
                advertised=f"{configured.host}:{port}",
            )
        return configured.host, port

    def _greatest_producer_id(self) -> int:
        """Returns the greatest producer id in any log or transactional id; -1 if there is none."""
        partitions = (partition for topic in self.topics for partition in topic.partitions)
        in_logs = max((producer.producer_id for partition in partitions for producer in partition.log.producers), default=-1)
        has_transactions = self.topics.find(TRANSACTION_STATE_TOPIC) is not None
        return max(in_logs, self.transactions.greatest_producer_id) if has_transactions else in_logs


def is_loopback(host: str) -> bool:
    """Whether the host is a loopback address."""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _check_is_no_member(config: BrokerConfig, storage: Storage) -> None:
    """Raises if the first data directory belongs to a member of a cluster with ZooKeeper, and no setting asks for a takeover.

    A broker without ZooKeeper makes the directory its own before it knows the topics, and then no member can use it any more.
    `zookeeper.connect` is easily forgotten.

    Raises:
        KafkaError: INVALID_CONFIG; KAFKA_STORAGE_ERROR, the owner of the directory cannot be read.
        OSError: the directory cannot be read.
    """
    folder = config.log_dirs[0]
    is_asked_for = config.get("wirekafka.takeover.settings") or SETTINGS in config.items("wirekafka.takeover.without")
    if is_asked_for or has_journal(folder):
        return
    owner = read_owner(folder, storage)
    if owner is None or owner.version is not MetaPropertiesVersion.V0:
        return
    message = (
        f"{folder} belongs to broker {owner.node_id} of a cluster with ZooKeeper: start the broker with zookeeper.connect. The "
        "last broker of a cluster becomes a single node by `wirekafka cluster leave`. To take over the topics of Apache Kafka "
        "without their cluster, set wirekafka.takeover.settings (docs/takeover.md)"
    )
    raise KafkaError(ErrorCode.INVALID_CONFIG, message)
