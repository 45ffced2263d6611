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
from wirekafka.log.manager import LogManager
from wirekafka.metadata import producer_ids
from wirekafka.metadata.producer_ids import ProducerIds
from wirekafka.names import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from wirekafka.pending import Work
from wirekafka.replication.fetch_sessions import FetchSessions
from wirekafka.replication.purgatory import Purgatory
from wirekafka.replication.replica_manager import HostedTopics, open_hosted_topics
from wirekafka.slices import Slices
from wirekafka.workers import Workers

if TYPE_CHECKING:
    from wirekafka.coordinator.groups.consumer.runtime import ConsumerGroupRuntime
    from wirekafka.coordinator.groups.modern.live_topics import LiveTopics
    from wirekafka.coordinator.groups.runtime import GroupRuntime
    from wirekafka.coordinator.share_delivery.runtime import ShareGroupRuntime
    from wirekafka.coordinator.transactions.markers import MarkerWriter
    from wirekafka.coordinator.transactions.runtime import TransactionRuntime
    from wirekafka.replication.partition import Partition

log = structlog.get_logger(__name__)


class Client(Protocol):
    """The properties of a client that the broker needs to choose the address that it advertises."""

    host: str
    listener: str
    local_host: str
    local_port: int


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
        workers: threads for requests that need much CPU.
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
        self.fetch_sessions = FetchSessions(config.integer("max.incremental.fetch.session.cache.slots"))
        path = os.path.join(config.log_dirs[0], producer_ids.FILE_NAME)
        self.producer_ids = ProducerIds(path, logs.storage, node_id=self.node_id, greatest_known=self._greatest_producer_id)
        self._is_loaded = False
        self._advertised = config.advertised_listeners
        self._told: set[str] = set()

    @classmethod
    async def open(cls, config: BrokerConfig, clock: Clock) -> Broker:
        """Opens the data directories, and loads the state that they hold.

        Raises:
            DirectoryLockedError: another broker holds a directory.
            KafkaError: KAFKA_STORAGE_ERROR if the data cannot be read.
            OSError: a directory cannot be created or read.

        Cancellation: everything that was opened is closed.
        """
        logs = await LogManager.open(config, clock)
        try:
            broker = cls(config, clock, logs, open_hosted_topics(config, logs))
            broker._load()
        except BaseException:
            with trio.CancelScope(shield=True):
                await logs.close()
            raise
        return broker

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
        if self._is_loaded:
            made.load()
        return made

    @cached_property
    def live_topics(self) -> LiveTopics:
        """The topics as the group coordinator uses them."""
        from wirekafka.coordinator.groups.modern.live_topics import LiveTopics

        return LiveTopics(self.topics, self.config.rack, self.clock.now_ms)

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
        if self._is_loaded:
            made.load()
        return made

    @cached_property
    def markers(self) -> MarkerWriter:
        """Writes the markers that end transactions in partitions."""
        from wirekafka.coordinator.transactions.markers import MarkerWriter

        return MarkerWriter(self.topics, self.groups)

    @cached_property
    def transactions(self) -> TransactionRuntime:
        """The transaction coordinator."""
        from wirekafka.coordinator.transactions.runtime import TransactionRuntime

        made = TransactionRuntime(
            self.config,
            self.clock,
            self.topics,
            self.markers,
            self.producer_ids.take,
            self.reply_gate,
            self._run_in_slices,
        )
        if self._is_loaded:
            made.load()
        return made

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
