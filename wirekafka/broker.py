"""The broker: every part of it, built in order and closed in reverse.

Rules of this file: a part is given what it needs and finds nothing for itself; handlers reach the parts as attributes of the
broker; the broker knows no protocol and no socket.
"""

from __future__ import annotations

import os
from typing import Protocol

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.cluster import producer_ids
from wirekafka.cluster.fetch_sessions import FetchSessions
from wirekafka.cluster.producer_ids import ProducerIds
from wirekafka.cluster.purgatory import Purgatory
from wirekafka.cluster.topics import Topics
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.consumer.runtime import ConsumerGroupRuntime
from wirekafka.coordinator.modern.live_topics import LiveTopics
from wirekafka.coordinator.runtime import GroupRuntime
from wirekafka.coordinator.share.runtime import ShareGroupRuntime
from wirekafka.coordinator.transactions.markers import MarkerWriter
from wirekafka.coordinator.transactions.runtime import TransactionRuntime
from wirekafka.log.manager import LogManager

log = structlog.get_logger(__name__)


class Client(Protocol):
    """What the broker wants to know of the other end of a connection."""

    host: str
    listener: str
    local_host: str
    local_port: int


class Broker:
    """One broker; `open` builds it.

    Attributes:
        config: its settings.
        clock: its time and its timers.
        node_id: the id by which clients know it.
        cluster_id: the id of its cluster, kept in the data directory.
        logs: the logs of all partitions.
        topics: the table of topics, with their partitions.
        purgatory: the fetches that wait for records.
        fetch_sessions: what consumers fetch, remembered.
        producer_ids: gives ids to producers.
        groups: the group coordinator.
        live_topics: the topics as the group coordinator sees them.
        consumer_groups: its groups of the consumer protocol.
        share_groups: its share groups, and what they fetch.
        markers: writes what ends a transaction in a partition.
        transactions: the transaction coordinator.
    """

    __slots__ = (
        "clock",
        "cluster_id",
        "config",
        "consumer_groups",
        "fetch_sessions",
        "groups",
        "live_topics",
        "logs",
        "markers",
        "node_id",
        "producer_ids",
        "purgatory",
        "share_groups",
        "topics",
        "transactions",
        "_advertised",
        "_told",
    )

    def __init__(self, config: BrokerConfig, clock: Clock, logs: LogManager, topics: Topics) -> None:
        self.config = config
        self.clock = clock
        self.node_id = config.node_id
        self.cluster_id = logs.cluster_id
        self.logs = logs
        self.topics = topics
        self.purgatory = Purgatory(clock)
        self.fetch_sessions = FetchSessions(config.integer("max.incremental.fetch.session.cache.slots"))
        path = os.path.join(config.log_dirs[0], producer_ids.FILE_NAME)
        self.producer_ids = ProducerIds(path, logs.storage, node_id=self.node_id, greatest_known=self._greatest_producer_id)
        self.groups = GroupRuntime(config, clock, topics)
        self.live_topics = LiveTopics(topics, config.rack, clock.now_ms)
        self.consumer_groups = ConsumerGroupRuntime(config, clock, self.groups, topics, self.live_topics)
        self.share_groups = ShareGroupRuntime(config, clock, topics, self.live_topics, self.groups, self.purgatory)
        self.markers = MarkerWriter(topics, self.groups)
        self.transactions = TransactionRuntime(config, clock, topics, self.markers, self.producer_ids.take)
        self._advertised = config.advertised_listeners
        self._told: set[str] = set()

    @classmethod
    async def open(cls, config: BrokerConfig, clock: Clock) -> Broker:
        """Opens the data directories and brings back what they hold.

        Raises:
            DirectoryLockedError: another broker holds a directory.
            KafkaError: KAFKA_STORAGE_ERROR, if the data cannot be read.
            OSError: a directory cannot be made or read.

        Cancellation: what was opened is closed again.
        """
        logs = await LogManager.open(config, clock)
        try:
            broker = cls(config, clock, logs, Topics.open(config, logs))
            broker.groups.load()
            broker.share_groups.load()
            broker.transactions.load()
        except BaseException:
            with trio.CancelScope(shield=True):
                await logs.close()
            raise
        return broker

    def start(self, nursery: trio.Nursery) -> None:
        """Starts the work that nobody asks for: timers, retention, checkpoints, compaction."""
        nursery.start_soon(self.clock.run)
        self.logs.start(nursery)

    async def close(self) -> None:
        """Closes everything, once nobody asks for anything any more.

        Durability: all logs are on disk, and marked as closed cleanly.
        """
        self.topics.close()
        await self.logs.close()

    def advertised_address(self, client: Client) -> tuple[str, int]:
        """Where a client is told to connect to: as configured for the listener that it came by, or where it reached the broker.

        Logs once for each client that is told a loopback address and calls from elsewhere.
        """
        configured = self._advertised.get(client.listener)
        if configured is None:
            return client.local_host, client.local_port
        port = configured.port or client.local_port
        if is_loopback(configured.host) and not is_loopback(client.host) and client.host not in self._told:
            self._told.add(client.host)
            log.warning(
                "A client elsewhere is told an address where it finds itself, unless it forwards that port to here; "
                "see advertised.listeners",
                client=client.host,
                advertised=f"{configured.host}:{port}",
            )
        return configured.host, port

    def _greatest_producer_id(self) -> int:
        """The greatest producer id that any log remembers, -1 if none does."""
        partitions = (partition for topic in self.topics for partition in topic.partitions)
        return max((producer.producer_id for partition in partitions for producer in partition.log.producers), default=-1)


def is_loopback(host: str) -> bool:
    """Whether the host is the machine that asks."""
    return host == "localhost" or host == "::1" or host.startswith("127.")
