"""Reads what `wirekafka cluster` shows: brokers, partitions, bytes, lags and reassignments, at about one moment.

How it works: Metadata names brokers and partitions. DescribeConfigs has `min.insync.replicas` of each topic, DescribeLogDirs the
bytes of each replica, ListPartitionReassignments the reassignments. For replicas out of sync, ListOffsets asks the leader and the
replica for their log end offsets; the difference is the lag in records.

Rules of this file: a broker that does not answer costs its own part of the snapshot only; `Broker.problem` says why.

Differs from Apache Kafka, which has no tool for the lag of replicas: DescribeLogDirs has an `offset_lag`, but a follower compares
its end with its own high watermark, so it is 0.

Source: org.apache.kafka.tools.TopicCommand (under-replicated, under-min-isr), ReplicaVerificationTool (replica id -2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from wirekafka.api import list_offsets
from wirekafka.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse
from wirekafka.api.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResponse
from wirekafka.api.list_partition_reassignments import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
from wirekafka.api.metadata import MetadataResponse
from wirekafka.cli.cluster.client import ClusterClient, UnreachableError, request_type
from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.errors import ErrorCode
from wirekafka.metadata.config_resources import ResourceType
from wirekafka.names import TopicPartition
from wirekafka.wire.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

T = TypeVar("T")

MIN_INSYNC_REPLICAS = "min.insync.replicas"
TOPICS_AT_ONCE = 1_000
"""The topics of one DescribeConfigs: a request may have 20,000 elements."""
PARTITIONS_AT_ONCE = 2_000
"""The partitions of one ListOffsets."""

DESCRIBE_CONFIGS = request_type(DescribeConfigsRequest, DescribeConfigsResponse)
DESCRIBE_LOG_DIRS = request_type(DescribeLogDirsRequest, DescribeLogDirsResponse)
LIST_REASSIGNMENTS = request_type(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse)


@dataclass(slots=True)
class Broker:
    """A broker that is registered, or that has replicas.

    Attributes:
        host, port: the address that clients of the bootstrap server's listener are told; None if the broker is not registered.
        replica_bytes: the bytes of each of its replicas; empty while `problem` is not None.
        failed_log_dirs: its data directories that have failed.
        problem: why its bytes are unknown; None if they are known.
    """

    broker_id: int
    host: str | None = None
    port: int | None = None
    rack: str | None = None
    replica_bytes: dict[TopicPartition, int] = field(default_factory=dict)
    failed_log_dirs: list[str] = field(default_factory=list)
    problem: str | None = None

    @property
    def is_registered(self) -> bool:
        """Whether the cluster lists the broker as live."""
        return self.host is not None


@dataclass(slots=True)
class Reassignment:
    """The replicas that a partition gets and loses."""

    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(slots=True)
class PartitionInfo:
    """A partition as its cluster describes it.

    Attributes:
        leader: None if the partition is offline.
        replicas: the first one is the preferred leader.
        isr: the replicas in sync.
        min_isr: `min.insync.replicas` of its topic; None if it is unknown.
        reassignment: None unless one is in progress.
        lags: the records that a replica out of sync lacks, by broker; None if a broker did not tell.
    """

    name: TopicPartition
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int | None = None
    reassignment: Reassignment | None = None
    lags: dict[int, int | None] = field(default_factory=dict)

    @property
    def is_offline(self) -> bool:
        """Whether nobody can read or write the partition."""
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        """Whether replicas are out of sync, those that a reassignment adds left out (KIP-352)."""
        adding = self.reassignment.adding if self.reassignment is not None else ()
        return len(self.isr) < len(self.replicas) - len(adding)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether acks=all is refused. A `min.insync.replicas` above the number of replicas counts as that number.

        Brokers of Apache Kafka before 3.7 take it as it is, and refuse acks=all although no replica is missing.

        Source: Partition.effectiveMinIsr; KAFKA-15583.
        """
        return self.is_offline or (self.min_isr is not None and len(self.isr) < min(self.min_isr, len(self.replicas)))

    @property
    def out_of_sync(self) -> list[int]:
        """The replicas that are not in sync."""
        return [replica for replica in self.replicas if replica not in self.isr]


@dataclass(slots=True)
class Snapshot:
    """A cluster at about one moment.

    Attributes:
        controller_id: None if there is no controller.
        brokers: the registered brokers, and those that have replicas, by id.
        partitions: by topic and index.
        notes: what could not be read, and why.
        has_controller_answered: False if the controller is known, and does not answer: it has lost ZooKeeper, for example.
    """

    cluster_id: str | None
    controller_id: int | None
    brokers: dict[int, Broker]
    partitions: dict[TopicPartition, PartitionInfo]
    notes: list[str] = field(default_factory=list)
    has_controller_answered: bool = True

    @property
    def topic_count(self) -> int:
        """The number of topics."""
        return len({name.topic for name in self.partitions})

    @property
    def is_degraded(self) -> bool:
        """Whether something is offline: a partition, a broker, a data directory, or the controller."""
        return (
            self.controller_id is None
            or not self.has_controller_answered
            or any(partition.is_offline for partition in self.partitions.values())
            or any(broker.problem is not None or broker.failed_log_dirs for broker in self.brokers.values())
        )

    def bytes_of(self, name: TopicPartition) -> int | None:
        """Returns the bytes of a partition: its leader's, or those of its largest replica; None if no broker told them."""
        partition = self.partitions[name]
        leader = self.brokers.get(-1 if partition.leader is None else partition.leader)
        if leader is not None and name in leader.replica_bytes:
            return leader.replica_bytes[name]
        told = [self.brokers[each].replica_bytes[name] for each in partition.replicas if name in self.brokers[each].replica_bytes]
        return max(told, default=None)


def read_snapshot(client: ClusterClient) -> Snapshot:
    """Reads the whole cluster.

    Raises:
        ClusterCommandError: no broker answers, or one refuses a request for the whole cluster.
    """
    snapshot = snapshot_of(client.metadata())
    _read_min_isr(client, snapshot)
    for broker in snapshot.brokers.values():
        read_log_dirs(client, broker)
    try:
        for name, reassignment in read_reassignments(client).items():
            if name in snapshot.partitions:
                snapshot.partitions[name].reassignment = reassignment
    except ClusterCommandError as error:
        snapshot.notes.append(f"reassignments are unknown: {error}")
        snapshot.has_controller_answered = not isinstance(error, UnreachableError)
    _read_lags(client, snapshot)
    return snapshot


def snapshot_of(metadata: MetadataResponse) -> Snapshot:
    """Returns what the Metadata of a cluster says."""
    brokers = {each.node_id: Broker(each.node_id, each.host, each.port, each.rack) for each in metadata.brokers}
    partitions = {}
    for topic in sorted(metadata.topics, key=lambda topic: topic.name or ""):
        for part in sorted(topic.partitions, key=lambda part: part.partition_index):
            name = TopicPartition(topic.name or "", part.partition_index)
            leader = None if part.leader_id < 0 else part.leader_id
            partitions[name] = PartitionInfo(name, leader, tuple(part.replica_nodes), tuple(part.isr_nodes))
            for replica in part.replica_nodes:
                brokers.setdefault(replica, Broker(replica, problem="it is not registered"))
    controller_id = metadata.controller_id if metadata.controller_id in brokers else None
    return Snapshot(metadata.cluster_id, controller_id, dict(sorted(brokers.items())), partitions)


def _read_min_isr(client: ClusterClient, snapshot: Snapshot) -> None:
    """Fills in `PartitionInfo.min_isr`."""
    topics: dict[str, list[PartitionInfo]] = defaultdict(list)
    for name, partition in snapshot.partitions.items():
        topics[name.topic].append(partition)
    for names in in_batches(topics, TOPICS_AT_ONCE):
        resources = [
            DescribeConfigsResource(
                resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=[MIN_INSYNC_REPLICAS]
            )
            for name in names
        ]
        response = client.ask(DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=resources))
        for result in response.results:
            for config in result.configs:
                if config.name == MIN_INSYNC_REPLICAS and config.value is not None and config.value.isdecimal():
                    for partition in topics.get(result.resource_name, ()):
                        partition.min_isr = int(config.value)


def read_log_dirs(client: ClusterClient, broker: Broker, names: Iterable[TopicPartition] | None = None) -> None:
    """Reads the bytes of the replicas of a broker; sets `Broker.problem` if the broker does not tell them.

    Args:
        names: the partitions to read; None for all.
    """
    if not broker.is_registered:
        return
    try:
        response = client.ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=_log_dir_topics(names)), broker.broker_id)
    except ClusterCommandError as error:
        broker.problem = str(error)
        return
    if response.error_code:
        broker.problem = f"it refuses DescribeLogDirs: {error_text(response.error_code)}"
        return
    broker.failed_log_dirs = [each.log_dir for each in response.results if each.error_code]
    for directory in response.results:
        for topic in directory.topics:
            for part in topic.partitions:
                if not part.is_future_key:
                    broker.replica_bytes[TopicPartition(topic.name, part.partition_index)] = part.partition_size


def _log_dir_topics(names: Iterable[TopicPartition] | None) -> list[DescribableLogDirTopic] | None:
    if names is None:
        return None
    return [DescribableLogDirTopic(topic=topic, partitions=indexes) for topic, indexes in by_topic(names).items()]


def read_reassignments(client: ClusterClient) -> dict[TopicPartition, Reassignment]:
    """Returns the reassignments in progress.

    Raises:
        ClusterCommandError: the controller does not answer, or refuses the request.
    """
    response = client.ask_controller(
        LIST_REASSIGNMENTS, ListPartitionReassignmentsRequest(topics=None), lambda response: response.error_code
    )
    if response.error_code:
        raise ClusterCommandError(
            f"the controller refuses ListPartitionReassignments: {response.error_message or error_text(response.error_code)}"
        )
    return {
        TopicPartition(topic.name, part.partition_index): Reassignment(tuple(part.adding_replicas), tuple(part.removing_replicas))
        for topic in response.topics
        for part in topic.partitions
    }


def _read_lags(client: ClusterClient, snapshot: Snapshot) -> None:
    """Fills in `PartitionInfo.lags`."""
    asked: dict[int, list[TopicPartition]] = defaultdict(list)
    for name, partition in snapshot.partitions.items():
        partition.lags = dict.fromkeys(partition.out_of_sync)
        if partition.leader is not None:
            for broker_id in {partition.leader, *partition.out_of_sync} if partition.out_of_sync else ():
                asked[broker_id].append(name)
    ends = {broker_id: _log_end_offsets(client, snapshot.brokers[broker_id], names) for broker_id, names in asked.items()}
    for name, partition in snapshot.partitions.items():
        leader_end = None if partition.leader is None else ends.get(partition.leader, {}).get(name)
        for replica in partition.lags if leader_end is not None else ():
            end = ends.get(replica, {}).get(name)
            partition.lags[replica] = None if end is None or leader_end is None else max(leader_end - end, 0)


def _log_end_offsets(client: ClusterClient, broker: Broker, names: list[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Returns the log end offsets of the replicas of a broker, without those that it does not tell."""
    found: dict[TopicPartition, int] = {}
    for batch in in_batches(names if broker.problem is None else (), PARTITIONS_AT_ONCE):
        topics = [
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=index, timestamp=list_offsets.LATEST) for index in indexes],
            )
            for topic, indexes in by_topic(batch).items()
        ]
        request = ListOffsetsRequest(replica_id=list_offsets.DEBUGGING_REPLICA_ID, topics=topics)
        try:
            response = client.ask(LIST_OFFSETS, request, broker.broker_id)
        except UnreachableError as error:
            broker.problem = str(error)
            break
        for topic in response.topics:
            for part in topic.partitions:
                if not part.error_code and part.offset >= 0:
                    found[TopicPartition(topic.name, part.partition_index)] = part.offset
    return found


def by_topic(names: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the indexes of partitions by topic, as requests have them."""
    indexes: dict[str, list[int]] = defaultdict(list)
    for name in names:
        indexes[name.topic].append(name.partition)
    return indexes


def in_batches(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """Yields the items in lists of at most `most`."""
    rest = iter(items)
    while batch := list(islice(rest, most)):
        yield batch


def error_text(code: int) -> str:
    """Returns the name of an error code."""
    return ErrorCode.of(code).name
