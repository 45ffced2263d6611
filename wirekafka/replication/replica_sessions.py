"""Fetch sessions of other replicas: the leader reads only the partitions with something to read for the follower.

How it works: as the sessions of consumers (`fetch_sessions.py`), with two differences. An append makes a partition dirty, and a
waiting fetch counts its bytes. A new high watermark makes the partition dirty too, but wakes no fetch: the follower gets the new
high watermark with the next response, as in Apache Kafka.

Rules of this file:
    Invariant: a partition that is not dirty is watched, and its follower has all records, is in sync, and knows the high
    watermark.
    The leader of a partition must know that an idle follower still fetches, although the partition is not read. The session tells
    the leader when the partition becomes dirty, because the leader does not need the time of the fetch before.

Source: kafka.server.FetchSession, kafka.cluster.Partition.updateFollowerFetchState; KIP-227.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from wirekafka.replication.fetch_sessions import FetchSession, HeldPartitions, SessionPartition
from wirekafka.replication.partition import Partition
from wirekafka.replication.purgatory import DelayedReplicaFetch


class Leader(Protocol):
    """The leader of a partition, as `LeaderReplica` is."""

    def note_idle(self, replica_id: int, time_ms: int) -> None:
        """Notes that a follower had all records until its fetch at this time."""


class ReplicaSessionPartition(SessionPartition):
    """One partition of a follower's session. It watches the appends and the commits of the `Partition`."""

    __slots__ = ()

    def watch(self) -> None:
        """Watches the partition for its next append and its next commit."""
        if self.partition is not None:
            self.partition.watchers[self] = None
            self.partition.replica_watchers[self] = None

    def detach(self) -> None:
        """Stops watching the partition."""
        if self.partition is not None:
            self.partition.watchers.pop(self, None)
            self.partition.replica_watchers.pop(self, None)

    def on_append(self, partition: Partition, size_bytes: int) -> None:
        """Marks the partition dirty, and counts the bytes for the waiting fetch of the session."""
        session = self.session
        assert isinstance(session, ReplicaSession)
        if self not in session.dirty:
            session.dirty[self] = None
            session.note_idle(partition)
        waiting = session.waiting
        if waiting is None or waiting.pending.is_done:
            partition.replica_watchers.pop(self, None)
        elif isinstance(waiting, DelayedReplicaFetch):
            waiting.count_appended(partition, size_bytes, self.asked.partition_max_bytes)

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        """Marks the partition dirty, because its high watermark or its log start has moved."""
        session = self.session
        assert isinstance(session, ReplicaSession)
        if self not in session.dirty:
            session.dirty[self] = None
            session.note_idle(partition)
        partition.watchers.pop(self, None)

    def mark_clean(self) -> None:
        """Excludes the partition from the next fetches if only an append or a commit is news for the follower.

        A follower that is not in sync is read although it has all records, so that the leader notices it.
        """
        partition, session = self.partition, self.session
        assert isinstance(session, ReplicaSession)
        if (
            partition is not None
            and self.asked.fetch_offset >= partition.log.log_end_offset
            and self.sent_high_watermark == partition.log.high_watermark
            and session.replica_id in partition.in_sync_replicas
        ):
            super().mark_clean()


class ReplicaSession(FetchSession):
    """The fetch session of another broker.

    Args:
        replica_id: the other broker.
        leaders: the partitions that this broker leads.
        monotonic_ms: returns the time, by the clock of the leaders.

    Attributes:
        fetched_ms: the time of the last fetch.
    """

    __slots__ = ("_leaders", "_monotonic_ms", "fetched_ms", "replica_id")

    is_privileged: ClassVar[bool] = True
    entry_type: ClassVar[type[SessionPartition]] = ReplicaSessionPartition

    def __init__(
        self,
        session_id: int,
        held: HeldPartitions,
        *,
        uses_topic_ids: bool,
        now_ms: int,
        replica_id: int,
        leaders: Mapping[Partition, Leader],
        monotonic_ms: Callable[[], int],
    ) -> None:
        super().__init__(session_id, held, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
        self.replica_id = replica_id
        self._leaders = leaders
        self._monotonic_ms = monotonic_ms
        self.fetched_ms = monotonic_ms()

    def advance_epoch(self) -> None:
        """Notes the time of a fetch, and sets the epoch of the next one."""
        self.fetched_ms = self._monotonic_ms()
        super().advance_epoch()

    def note_idle(self, partition: Partition) -> None:
        """Tells the leader of a partition that was clean until now that the follower had all records at its last fetch."""
        leader = self._leaders.get(partition)
        if leader is not None:
            leader.note_idle(self.replica_id, self.fetched_ms)
