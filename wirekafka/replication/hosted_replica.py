"""A replica that this broker has of a partition, and its role: it leads, follows, or has stopped.

How it works: for each role there is another `Partition` with the same log. The new `Partition` replaces the former one in the
table of topics. The waiting requests of the former one get NOT_LEADER_OR_FOLLOWER. A leader that is elected again keeps its
`Partition`.

Rules of this file:
    Invariant: at most one role writes the log. A leader's partition gives way before the fetcher starts, and the fetcher stops
    before the broker leads.
    `cluster_replicas` decides whether a role is taken.

Source: kafka.cluster.Partition.makeLeader, makeFollower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wirekafka.names import NO_LEADER_EPOCH, NO_LEADER_ID, TopicPartition
from wirekafka.replication.fetcher import FollowedPartition
from wirekafka.replication.leader_replica import LeaderReplica
from wirekafka.replication.leadership import PartitionState
from wirekafka.replication.partition import Partition

if TYPE_CHECKING:
    from wirekafka.config import LogConfig
    from wirekafka.log.log import Log
    from wirekafka.replication.replica_fetcher import ReplicaFetchers


class HostedTopics(Protocol):
    """The table of topics of a member, as far as its replicas need it; `wirekafka.metadata.cluster_topics.ClusterTopics`."""

    def put_hosted(self, partition: Partition) -> object:
        """Puts a partition with a replica on this broker into the table, in place of the object that is there."""

    def remove_hosted(self, name: str, index: int) -> object:
        """Notes that this broker has no replica of the partition any more."""

    def log_config_of(self, topic: str) -> LogConfig:
        """Returns all settings of a topic, as they are known."""


class Roles(NamedTuple):
    """What the replicas of a broker need for their roles.

    Attributes:
        node_id: the id of this broker.
        fetchers: fetch from leaders.
        leader_replicas: the leaders on this broker, by their partitions.
        make_leader: makes the leader of a partition.
    """

    node_id: int
    topics: HostedTopics
    fetchers: ReplicaFetchers
    leader_replicas: dict[Partition, LeaderReplica]
    make_leader: Callable[[Partition], LeaderReplica]


class HostedReplica:
    """One replica on this broker. It has stopped until it gets a role.

    Args:
        topic_id: zero if the topic has none.

    Attributes:
        leader_epoch: the newest leader epoch in the controller's requests; -1 if there is none.
        partition: the object in the table of topics.
        leader: None unless this broker leads.
        is_following: whether this broker follows a leader.
    """

    __slots__ = ("_partition_epoch", "_roles", "is_following", "leader", "leader_epoch", "log", "name", "partition", "topic_id")

    def __init__(self, roles: Roles, name: TopicPartition, topic_id: bytes, log: Log) -> None:
        self._roles = roles
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = NO_LEADER_EPOCH
        self._partition_epoch = -1
        self.leader: LeaderReplica | None = None
        self.is_following = False
        self.partition = self._make_partition(NO_LEADER_ID)
        roles.topics.put_hosted(self.partition)

    def __repr__(self) -> str:
        return f"<HostedReplica {self.name}>"

    @property
    def is_offline(self) -> bool:
        """Whether the log cannot be used until the broker starts again."""
        return self.log.reader.offline_reason is not None

    @property
    def partition_epoch(self) -> int:
        """The newest partition epoch in the controller's requests and responses; -1 if there is none."""
        leader = self.leader
        return self._partition_epoch if leader is None else max(self._partition_epoch, leader.leadership.partition_epoch)

    def lead(self, state: PartitionState) -> bool:
        """Leads the partition with this state; returns whether the replica did not lead before.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the replica has stopped.
        """
        leader, partition = self.leader, self.partition
        is_new = leader is None
        if leader is None:
            self._stop_fetching()
            partition = self._make_partition(self._roles.node_id)
            leader = self._roles.make_leader(partition)
        try:
            leader.lead(state)
        except BaseException:
            partition.give_way()
            self.stop()
            raise
        if is_new:
            self.leader = leader
            self._roles.leader_replicas[partition] = leader
            self._replace(partition)
        self._note(state)
        return is_new

    def follow(self, leader_id: int, state: PartitionState) -> None:
        """Follows a leader from now on.

        Args:
            leader_id: negative if there is no leader.
        """
        partition = self._make_partition(leader_id)
        partition.take_state(leader_epoch=state.leader_epoch, replicas=state.replicas, in_sync_replicas=())
        self._end_leadership()
        self._replace(partition)
        self._note(state)
        self.is_following = True
        self._fetch(leader_id)

    def take_topic_id(self, topic_id: bytes) -> None:
        """Sets the topic id, which earlier requests of the controller did not have. A follower fetches by the id from now on."""
        self._roles.fetchers.stop(self._followed)
        self.topic_id = self.partition.topic_id = topic_id
        if self.is_following:
            self._fetch(self.partition.leader)

    def stop(self) -> None:
        """Ends the role. The log remains."""
        self._stop_fetching()
        self._end_leadership()
        stopped = self._make_partition(NO_LEADER_ID)
        stopped.take_state(leader_epoch=self.leader_epoch, replicas=self.partition.replicas, in_sync_replicas=())
        self._replace(stopped)

    def remove(self) -> None:
        """Ends the role, and removes the replica from the table of topics. The caller deletes or keeps the log."""
        self._stop_fetching()
        self._end_leadership()
        self._roles.topics.remove_hosted(self.name.topic, self.name.partition)
        self.partition.give_way()

    def go_offline(self) -> None:
        """Ends the role, because the log has gone offline. Requests get KAFKA_STORAGE_ERROR from now on."""
        self._stop_fetching()
        self._end_leadership()
        self.partition.wake_watchers()

    @property
    def _followed(self) -> FollowedPartition:
        return FollowedPartition(self.name.topic, self.topic_id, self.name.partition)

    def _make_partition(self, leader_id: int) -> Partition:
        topic, index = self.name
        return Partition(topic, self.topic_id, index, self.log, leader=leader_id, is_sole_replica=False)

    def _note(self, state: PartitionState) -> None:
        self.leader_epoch = state.leader_epoch
        self._partition_epoch = max(state.partition_epoch, self.partition_epoch)

    def _fetch(self, leader_id: int) -> None:
        known_id = leader_id if leader_id >= 0 else None
        # Consumers may wait for the records of a follower (KIP-392).
        commit = self.partition.advance_high_watermark
        self._roles.fetchers.follow(self._followed, self.log, known_id, self.leader_epoch, commit)

    def _stop_fetching(self) -> None:
        if self.is_following:
            self.is_following = False
            self._roles.fetchers.stop(self._followed)

    def _end_leadership(self) -> None:
        if self.leader is not None:
            self._partition_epoch = self.partition_epoch
            self.leader = None
            del self._roles.leader_replicas[self.partition]

    def _replace(self, partition: Partition) -> None:
        former, self.partition = self.partition, partition
        # Requests that end look the partition up again, and must find the new object.
        self._roles.topics.put_hosted(partition)
        former.give_way()
