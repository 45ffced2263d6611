"""The leader's replica of a partition with several replicas: executes the decisions of `Leadership` on the partition.

How it works: a `LeaderReplica` watches the appends of its partition, and answers the fetches of the followers from the log, up to
its end. After each event it executes the effects of `Leadership`: it moves the high watermark of the partition, which completes
the requests that wait for a commit, and passes proposed changes of the in-sync replicas on.

Rules of this file: `Leadership` makes all decisions.

Source: kafka.cluster.Partition.fetchRecords, readRecords, updateFollowerFetchState.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from wirekafka.replication.leadership import (
    AdvanceHighWatermark,
    Appended,
    BecameLeader,
    Event,
    Fetched,
    IsrChange,
    IsrChanged,
    IsrChangeFailed,
    LagChecked,
    Leadership,
    LiveBrokersChanged,
    MinInSyncReplicasChanged,
    PartitionState,
    ProposeIsr,
    StartLeaderEpoch,
    WasIdle,
)
from wirekafka.replication.partition import CommitWait, OnCommit

if TYPE_CHECKING:
    from wirekafka.log.storage import FileRegion
    from wirekafka.replication.partition import Partition

Propose = Callable[["LeaderReplica", IsrChange], object]
"""Sends a change to the controller, and later passes the answer to `LeaderReplica.take_answer`."""


@dataclass(frozen=True, slots=True)
class ReplicaFetch:
    """One partition of a follower's Fetch.

    Attributes:
        leader_epoch: None if the request has none.
        last_fetched_epoch: the leader epoch of the follower's last record; None if it has none.
        broker_epoch: the epoch of the follower's registration; None if the request has none.
    """

    replica_id: int
    leader_epoch: int | None
    offset: int
    last_fetched_epoch: int | None
    log_start_offset: int
    broker_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaRead:
    """The answer to a follower's fetch.

    Attributes:
        diverging_epoch: where the follower's log diverges; None if it does not.
    """

    records: FileRegion | bytes
    high_watermark: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None = None


class IsrChanges:
    """Counts the changes of in-sync replicas of all partitions that a broker leads.

    Source: kafka.server.ReplicaManager (IsrShrinksPerSec, IsrExpandsPerSec).
    """

    __slots__ = ("expands", "shrinks")

    def __init__(self) -> None:
        self.expands = self.shrinks = 0

    def note(self, before: frozenset[int], after: frozenset[int]) -> None:
        """Counts a change that the controller has accepted."""
        self.expands += bool(after - before)
        self.shrinks += bool(before - after)


class LeaderReplica:
    """The leader's replica of one partition.

    Args:
        partition: a partition that was opened with `is_sole_replica=False`.
        broker_epochs: the live brokers; see `Leadership`.
        now_ms: returns the time of a monotonic clock, which is also the clock of the fetch sessions.
        isr_changes: counts the changes of in-sync replicas; None if nobody reads the counts.

    Attributes:
        leadership: the state of the leader.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        replica_lag_time_max_ms: int,
        broker_epochs: Mapping[int, int | None],
        propose: Propose,
        now_ms: Callable[[], int],
        isr_changes: IsrChanges | None = None,
    ) -> None:
        self.partition = partition
        self._isr_changes = isr_changes
        self._propose = propose
        self._deletions: list[CommitWait] = []
        self._now_ms = now_ms
        self.leadership = Leadership(
            partition.leader,
            high_watermark=partition.log.high_watermark,
            min_insync_replicas=partition.log.config.min_insync_replicas,
            replica_lag_time_max_ms=replica_lag_time_max_ms,
            broker_epochs=broker_epochs,
        )
        partition.replica_watchers[self] = None

    def lead(self, state: PartitionState) -> None:
        """Takes a decision of the controller that makes this broker the leader, or leaves it the leader.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        self._handle(BecameLeader(state, self.partition.log.log_end_offset))

    def fetch(self, fetch: ReplicaFetch, *, max_bytes: int, min_one_batch: bool, is_noted: bool = False) -> ReplicaRead:
        """Reads for a follower, and notes that the follower has all records before its fetch offset.

        Args:
            is_noted: the fetch was noted before it waited. Its offset is then not compared with the present log end offset.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE,
                KAFKA_STORAGE_ERROR.
        """
        partition = self.partition
        if fetch.leader_epoch is not None:
            partition.check_leader_epoch(fetch.leader_epoch)
        if fetch.last_fetched_epoch is not None:
            diverging_epoch = partition.find_divergence(fetch.last_fetched_epoch, fetch.offset)
            if diverging_epoch is not None:
                return self._read(b"", diverging_epoch)
        records = partition.read_for_replica(fetch.offset, max_bytes=max_bytes, min_one_batch=min_one_batch)
        if not is_noted:
            self._handle(Fetched(fetch.replica_id, fetch.offset, fetch.log_start_offset, fetch.broker_epoch))
        return self._read(records, None)

    def _read(self, records: FileRegion | bytes, diverging_epoch: tuple[int, int] | None) -> ReplicaRead:
        log = self.partition.log
        return ReplicaRead(records, log.high_watermark, log.log_start_offset, diverging_epoch)

    def check_lag(self) -> None:
        """Proposes to remove the replicas that lag. The broker calls it every half of `replica.lag.time.max.ms`."""
        self._handle(LagChecked())

    def note_brokers(self) -> None:
        """Notes that the live brokers have changed."""
        self._handle(LiveBrokersChanged())

    def note_idle(self, replica_id: int, time_ms: int) -> None:
        """Notes that a follower had all records until its fetch at this time."""
        self._handle(WasIdle(replica_id, time_ms))

    def take_answer(self, answer: IsrChanged | IsrChangeFailed) -> None:
        """Takes the controller's answer to a change. The answer has no effect if the broker does not lead any more."""
        if self.partition.is_gone:
            return
        before = self.leadership.committed_isr
        self._handle(answer)
        if self._isr_changes is not None:
            self._isr_changes.note(before, self.leadership.committed_isr)

    @property
    def low_watermark(self) -> int | None:
        """The least log start offset of all live replicas; None if that of a live replica is unknown."""
        return self.leadership.low_watermark(self.partition.log.log_start_offset)

    def on_deletion(self, offset: int, callback: OnCommit) -> CommitWait:
        """Calls back once no live replica has records before `offset`, or with an error if this broker does not lead any more.

        Source: kafka.server.DelayedDeleteRecords.
        """
        wait = CommitWait(offset, callback)
        partition = self.partition
        if partition.is_gone or partition.is_offline:
            # The followers of a former leader do not tell it their log start offsets.
            wait.end(partition.lost_error)
            return wait
        self._deletions.append(wait)
        self._end_deletions()
        return wait

    def _end_deletions(self) -> None:
        low_watermark = self.low_watermark
        waits, self._deletions = self._deletions, []
        for wait in waits:
            if low_watermark is not None and wait.offset <= low_watermark:
                wait.end(None)
            elif wait.callback is not None:
                self._deletions.append(wait)

    def on_append(self, partition: Partition, size_bytes: int) -> None:
        """Is called by the partition after each append."""
        self._handle(Appended(partition.log.log_end_offset))

    def on_gone(self, partition: Partition) -> None:
        """Is called by the partition when it is closed or offline; it no longer calls `on_append`."""
        waits, self._deletions = self._deletions, []
        for wait in waits:
            wait.end(partition.lost_error)

    def _handle(self, event: Event) -> None:
        now_ms, leadership = self._now_ms(), self.leadership
        least = self.partition.log.config.min_insync_replicas
        effects = list(leadership.step(event, now_ms))
        if least != leadership.min_insync_replicas:
            effects += leadership.step(MinInSyncReplicasChanged(least), now_ms)
        if not isinstance(event, Appended | Fetched | WasIdle | LagChecked):
            self._take_state()
        for effect in effects:
            match effect:
                case AdvanceHighWatermark(offset):
                    self.partition.advance_high_watermark(offset)
                case ProposeIsr(change):
                    self._propose(self, change)
                case StartLeaderEpoch(leader_epoch):
                    self.partition.writable_log.begin_leader_epoch(leader_epoch)
                case _:
                    assert_never(effect)
        if self._deletions:
            self._end_deletions()

    def _take_state(self) -> None:
        leadership = self.leadership
        self.partition.take_state(
            leader_epoch=leadership.leader_epoch,
            replicas=(leadership.broker_id, *leadership.followers),
            in_sync_replicas=sorted(leadership.committed_isr),
        )
        # A follower that is not in sync any more must be read again, although it has all records, so that it can join.
        self.partition.tell_replicas(0)
