"""The leader of one partition: its followers, the in-sync replicas, and the high watermark.

How it works: the broker reports what happens to the partition as an `Event`. `Leadership.step` changes the state and returns the
effects, which the broker executes in their order. A `Leadership` exists while this broker leads the partition; it is dropped when
the broker becomes a follower or stops the replica, and waiting requests then get NOT_LEADER_OR_FOLLOWER.

Rules of this file:
    The high watermark is the least log end offset of the leader, of the maximal in-sync replicas, and of the eligible replicas
    that have caught up within `replica.lag.time.max.ms`. It moves only while the committed in-sync replicas reach
    `min.insync.replicas` (KIP-966), and never decreases.
    The maximal in-sync replicas are the committed ones, and a replica whose addition the controller has not answered yet. While a
    removal is pending, the replicas that would be removed still count (KIP-497).
    At most one change is pending. After an error that does not say whether the controller has applied the change, it stays
    pending until the controller sends a newer partition epoch.

Invariant: high_watermark <= the log end offset of the leader and, while no change is pending, of each in-sync replica that has
fetched, except after an unclean election.

Differs from Apache Kafka:
    A broker epoch in a Fetch is compared with the known epoch of the broker. Apache Kafka 3.9 does this with KRaft only
    (KIP-903).
    If the controller repeats the state that a pending change is based on, the change stays pending, and is proposed
    again if its outcome is unknown. Apache Kafka drops the change. If the controller applies it after all, the high watermark of
    the leader no longer waits for the replica that has joined.
    A leader that missed a leader epoch forgets how far its followers are, because they may have truncated their logs to that of
    another leader in the missed epoch. Apache Kafka keeps their log end offsets, and may commit records that no follower has.

Source: kafka.cluster.Partition, kafka.cluster.Replica, kafka.cluster.PartitionState; KIP-497, KIP-903, KIP-966.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition as the controller has decided it.

    Attributes:
        replicas: the broker ids of all replicas, the leader's included.
        in_sync_replicas: a subset of `replicas` that includes the leader.
        partition_epoch: increases with each change of the state; the version of the znode with ZooKeeper.
    """

    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """LeaderAndIsr or the metadata says that this broker leads the partition, in a new leader epoch or still in the current one.

    Attributes:
        log_end_offset: the end of the local log.
    """

    state: PartitionState
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The local log has grown to `log_end_offset`."""

    log_end_offset: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """A follower has fetched from `fetch_offset`, so it has all records before it; its log does not diverge from the leader's.

    Attributes:
        log_start_offset: the start of the follower's log.
        broker_epoch: the epoch of the follower's registration; None if the request does not say it.
    """

    replica_id: int
    fetch_offset: int
    log_start_offset: int
    broker_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class WasIdle:
    """A follower in a fetch session had all records until its last fetch, at `time_ms`.

    A session reads a partition only if there is something to read, so an idle follower does not cause `Fetched`.
    """

    replica_id: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class LagChecked:
    """It is time to look for in-sync replicas that lag: every half of `replica.lag.time.max.ms`."""


@dataclass(frozen=True, slots=True)
class LiveBrokersChanged:
    """The live brokers have changed. A replica on a dead broker cannot join, so it no longer holds the high watermark back."""


@dataclass(frozen=True, slots=True)
class MinInSyncReplicasChanged:
    """The setting `min.insync.replicas` of the topic has another value."""

    min_insync_replicas: int


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A change of the in-sync replicas that is proposed to the controller.

    Attributes:
        in_sync_replicas: the proposed in-sync replicas, with the broker epoch of each; None if the epoch is unknown.
        partition_epoch: the partition epoch that the change is based on.
    """

    leader_epoch: int
    partition_epoch: int
    in_sync_replicas: tuple[tuple[int, int | None], ...]

    @property
    def proposed(self) -> frozenset[int]:
        """The broker ids of the proposed in-sync replicas."""
        return frozenset(broker_id for broker_id, _ in self.in_sync_replicas)


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """The controller has answered a change with the state of the partition that is in force now."""

    change: IsrChange
    leader_epoch: int
    partition_epoch: int
    in_sync_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IsrChangeFailed:
    """The controller has answered a change with an error of the partition, or the request has failed for good."""

    change: IsrChange
    error: ErrorCode


Event = (
    BecameLeader
    | Appended
    | Fetched
    | WasIdle
    | LagChecked
    | LiveBrokersChanged
    | MinInSyncReplicasChanged
    | IsrChanged
    | IsrChangeFailed
)


@dataclass(frozen=True, slots=True)
class StartLeaderEpoch:
    """Note in the log that the leader epoch begins at `start_offset`, before any record is appended.

    A follower may have records of an epoch that is newer than the leader's last record. It finds by this entry where its log
    diverges.

    Source: UnifiedLog.maybeAssignEpochStartOffset.
    """

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Commit the records before `offset`, and complete the requests that wait for it."""

    offset: int


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Send the change to the controller by AlterPartition. The sender finds the controller and pauses between attempts."""

    change: IsrChange


Effect = StartLeaderEpoch | AdvanceHighWatermark | ProposeIsr
Effects = Sequence[Effect]
NO_EFFECTS: Effects = ()

NOT_APPLIED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""The change was not applied, and the partition epoch is current: the committed state counts again."""

OUTCOME_UNKNOWN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The state of the leader or of the controller is out of date: the change stays pending until newer metadata. After other errors
it is proposed again.

Source: Partition.handleAlterPartitionError.
"""


@dataclass(slots=True)
class Follower:
    """What the leader knows about a follower. None means that the follower has not fetched since this broker leads.

    Attributes:
        last_fetch_end_offset: the leader's log end offset at the follower's last fetch.
        last_caught_up_ms: the greatest time at which the follower had all records of that time; None if it has never had.
    """

    log_end_offset: int | None = None
    log_start_offset: int | None = None
    last_fetch_ms: int | None = None
    last_fetch_end_offset: int = 0
    last_caught_up_ms: int | None = None
    broker_epoch: int | None = None

    def is_caught_up(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Whether the follower has all records, or has had all within `max_lag_ms`."""
        if self.log_end_offset == leader_end_offset:
            return True
        return self.last_caught_up_ms is not None and now_ms - self.last_caught_up_ms <= max_lag_ms

    def take_fetch(self, event: Fetched, leader_end_offset: int, now_ms: int) -> None:
        """Notes a fetch.

        A follower that always lags a little, because records arrive between its fetches, counts as caught up at the time of its
        former fetch if it now has what the log had then.

        Source: Replica.updateFetchStateOrThrow.
        """
        if event.fetch_offset >= leader_end_offset:
            self._caught_up_at(now_ms)
        elif self.last_fetch_ms is not None and event.fetch_offset >= self.last_fetch_end_offset:
            self._caught_up_at(self.last_fetch_ms)
        self.log_end_offset = event.fetch_offset
        self.log_start_offset = event.log_start_offset
        self.last_fetch_ms = now_ms
        self.last_fetch_end_offset = max(leader_end_offset, self.last_fetch_end_offset)
        self.broker_epoch = event.broker_epoch

    def was_idle(self, time_ms: int) -> None:
        """Notes the fetches up to a time at which the follower had all records, and found none."""
        self._caught_up_at(time_ms)
        if self.last_fetch_ms is not None:
            self.last_fetch_ms = max(self.last_fetch_ms, time_ms)

    def _caught_up_at(self, time_ms: int) -> None:
        former_ms = self.last_caught_up_ms
        self.last_caught_up_ms = time_ms if former_ms is None else max(former_ms, time_ms)

    def begin_epoch(self, leader_end_offset: int, now_ms: int, *, is_in_sync: bool) -> None:
        """Gives an in-sync follower the whole lag time again. Other followers must catch up before they count.

        Source: Replica.resetReplicaState.
        """
        self.last_caught_up_ms = now_ms if is_in_sync else None
        self.last_fetch_ms = now_ms if is_in_sync and self.log_end_offset is not None else None
        self.last_fetch_end_offset = leader_end_offset


class Leadership:
    """The state of the leader of one partition.

    Args:
        broker_id: this broker.
        high_watermark: the high watermark of the local log.
        min_insync_replicas: the setting of the topic.
        replica_lag_time_max_ms: `replica.lag.time.max.ms`.
        broker_epochs: the live brokers, which may join the in-sync replicas, with their epochs; None for an epoch that is
            unknown. All partitions share it; its owner keeps it current.

    Attributes:
        leader_epoch, partition_epoch: -1 before the first `BecameLeader`.
        pending: the change that the controller has not answered, or has answered by an error that leaves its outcome unknown.
        followers: the other replicas, by broker id.
    """

    __slots__ = (
        "_broker_epochs",
        "_is_outcome_unknown",
        "_max_lag_ms",
        "broker_id",
        "committed_isr",
        "epoch_start_offset",
        "followers",
        "high_watermark",
        "leader_epoch",
        "log_end_offset",
        "min_insync_replicas",
        "partition_epoch",
        "pending",
    )

    def __init__(
        self,
        broker_id: int,
        *,
        high_watermark: int,
        min_insync_replicas: int,
        replica_lag_time_max_ms: int,
        broker_epochs: Mapping[int, int | None],
    ) -> None:
        self.broker_id = broker_id
        self.high_watermark = high_watermark
        self.log_end_offset = high_watermark
        self.min_insync_replicas = min_insync_replicas
        self._max_lag_ms = replica_lag_time_max_ms
        self._broker_epochs = broker_epochs
        self.leader_epoch = NO_LEADER_EPOCH
        self.partition_epoch = -1
        self.epoch_start_offset = 0
        self.committed_isr: frozenset[int] = frozenset()
        self.pending: IsrChange | None = None
        self._is_outcome_unknown = False
        self.followers: dict[int, Follower] = {}

    def step(self, event: Event, now_ms: int) -> Effects:
        """Handles an event; returns the effects in the order of their execution.

        Raises:
            KafkaError: the fetch of a follower is refused and changes nothing: UNKNOWN_LEADER_EPOCH, the broker is no replica;
                NOT_LEADER_OR_FOLLOWER, its epoch is older than its registration.
        """
        match event:
            case Appended(log_end_offset):
                self.log_end_offset = log_end_offset
                return self._commit(now_ms)
            case Fetched():
                return self._take_fetch(event, now_ms)
            case WasIdle(replica_id, time_ms):
                return self._note_idle(replica_id, time_ms)
            case LagChecked():
                return self._shrink(now_ms)
            case LiveBrokersChanged():
                return self._commit(now_ms)
            case BecameLeader(state, log_end_offset):
                return self._lead(state, log_end_offset, now_ms)
            case IsrChanged():
                return self._change_isr(event, now_ms)
            case IsrChangeFailed(change, error):
                return self._fail_change(change, error, now_ms)
            case MinInSyncReplicasChanged(count):
                self.min_insync_replicas = count
                return self._commit(now_ms)
            case _:
                assert_never(event)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The replicas that must have a record before it is committed."""
        return self.committed_isr if self.pending is None else self.committed_isr | self.pending.proposed

    @property
    def effective_min_insync_replicas(self) -> int:
        """`min.insync.replicas`, but at most the number of replicas (Partition.effectiveMinIsr)."""
        return min(self.min_insync_replicas, len(self.followers) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether the committed in-sync replicas are too few for a commit."""
        return len(self.committed_isr) < self.effective_min_insync_replicas

    def low_watermark(self, log_start_offset: int) -> int | None:
        """Returns the least log start offset of the leader and of all live followers; None while one of these is unknown.

        Args:
            log_start_offset: the start of the local log.

        Source: Partition.lowWatermarkIfLeader.
        """
        low_watermark = log_start_offset
        for replica_id, follower in self.followers.items():
            if replica_id not in self._broker_epochs:
                continue
            if follower.log_start_offset is None:
                return None
            low_watermark = min(low_watermark, follower.log_start_offset)
        return low_watermark

    def check_enough_in_sync_replicas(self) -> None:
        """Raises unless records with acks=all may be appended.

        Raises:
            KafkaError: NOT_ENOUGH_REPLICAS.

        Source: Partition.appendRecordsToLeader.
        """
        if self.is_under_min_isr:
            count = len(self.committed_isr)
            message = f"{count} in-sync replicas, but min.insync.replicas is {self.effective_min_insync_replicas}"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message)

    def commit_error(self) -> ErrorCode | None:
        """Returns the error for a request with acks=all whose records are committed now; None if they are on enough replicas.

        The in-sync replicas may have shrunk between the append and the commit.

        Source: Partition.checkEnoughReplicasReachOffset.
        """
        if len(self.maximal_isr) >= self.effective_min_insync_replicas:
            return None
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def _lead(self, state: PartitionState, log_end_offset: int, now_ms: int) -> Effects:
        if state.partition_epoch < self.partition_epoch or state.leader_epoch < self.leader_epoch:
            return NO_EFFECTS
        is_repeated = (state.partition_epoch, state.leader_epoch) == (self.partition_epoch, self.leader_epoch)
        self.log_end_offset = log_end_offset
        others = [replica_id for replica_id in state.replicas if replica_id != self.broker_id]
        self.followers = {replica_id: self.followers.get(replica_id) or Follower() for replica_id in others}
        if is_repeated:
            return [*self._propose_again(), *self._commit(now_ms)]
        self.partition_epoch = state.partition_epoch
        self.committed_isr = frozenset(state.in_sync_replicas)
        self.pending = None
        if state.leader_epoch == self.leader_epoch:
            return self._commit(now_ms)
        return [self._begin_epoch(state.leader_epoch, now_ms), *self._commit(now_ms)]

    def _propose_again(self) -> Effects:
        """Sends a pending change of unknown outcome again. The controller answers with the new state if it has applied it."""
        if self.pending is None or not self._is_outcome_unknown:
            return NO_EFFECTS
        self._is_outcome_unknown = False
        return [ProposeIsr(self.pending)]

    def _begin_epoch(self, leader_epoch: int, now_ms: int) -> StartLeaderEpoch:
        if leader_epoch != self.leader_epoch + 1:
            # Another broker may have led in the missed epochs, and the followers may have truncated their logs then.
            self.followers = {replica_id: Follower() for replica_id in self.followers}
        self.leader_epoch = leader_epoch
        self.epoch_start_offset = self.log_end_offset
        for replica_id, follower in self.followers.items():
            follower.begin_epoch(self.log_end_offset, now_ms, is_in_sync=replica_id in self.committed_isr)
        return StartLeaderEpoch(leader_epoch, self.epoch_start_offset)

    def _take_fetch(self, event: Fetched, now_ms: int) -> Effects:
        follower = self.followers.get(event.replica_id)
        if follower is None:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {event.replica_id} is no replica")
        known_epoch = self._broker_epochs.get(event.replica_id)
        if event.broker_epoch is not None and known_epoch is not None and event.broker_epoch < known_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {event.replica_id} has a newer epoch, {known_epoch}")
        former_end_offset = follower.log_end_offset
        follower.take_fetch(event, self.log_end_offset, now_ms)
        proposed = self._expand(event.replica_id, follower)
        # A fetch from the same offset changes nothing, so an idle follower costs no comparison with the other followers.
        committed = self._commit(now_ms) if follower.log_end_offset != former_end_offset else NO_EFFECTS
        return [*proposed, *committed] if proposed else committed

    def _note_idle(self, replica_id: int, time_ms: int) -> Effects:
        follower = self.followers.get(replica_id)
        if follower is not None:
            follower.was_idle(time_ms)
        return NO_EFFECTS

    def _expand(self, replica_id: int, follower: Follower) -> Effects:
        if self.pending is not None or replica_id in self.committed_isr or not self._is_eligible(replica_id, follower):
            return NO_EFFECTS
        end_offset = follower.log_end_offset
        if end_offset is None or end_offset < max(self.high_watermark, self.epoch_start_offset):
            return NO_EFFECTS
        return self._propose(self.committed_isr | {replica_id})

    def _is_eligible(self, replica_id: int, follower: Follower) -> bool:
        """Whether the follower may join: its broker is alive, and the fetch came from its present registration.

        Source: Partition.isReplicaIsrEligible; KIP-903.
        """
        if replica_id not in self._broker_epochs:
            return False
        known_epoch = self._broker_epochs[replica_id]
        return known_epoch is None or follower.broker_epoch is None or follower.broker_epoch == known_epoch

    def _shrink(self, now_ms: int) -> Effects:
        if self.pending is not None:
            return NO_EFFECTS
        lagging = {replica_id for replica_id in self.committed_isr if self._is_lagging(replica_id, now_ms)}
        # A replica that lags cannot join, so it no longer holds the high watermark back.
        return self._propose(self.committed_isr - lagging) if lagging else self._commit(now_ms)

    def _is_lagging(self, replica_id: int, now_ms: int) -> bool:
        if replica_id == self.broker_id:
            return False
        follower = self.followers.get(replica_id)
        return follower is None or not follower.is_caught_up(self.log_end_offset, now_ms, self._max_lag_ms)

    def _propose(self, in_sync_replicas: frozenset[int]) -> Effects:
        with_epochs = tuple((replica_id, self._epoch_of(replica_id)) for replica_id in sorted(in_sync_replicas))
        self.pending = IsrChange(self.leader_epoch, self.partition_epoch, with_epochs)
        self._is_outcome_unknown = False
        return [ProposeIsr(self.pending)]

    def _epoch_of(self, replica_id: int) -> int | None:
        """Returns the broker epoch that the replica fetches with, or this broker's own; None if it is unknown.

        A replica of unknown epoch is in sync since before this leadership. If its broker restarts, the controller removes it from
        the in-sync replicas and refuses the change by its partition epoch (Partition.addBrokerEpochToIsr).
        """
        follower = self.followers.get(replica_id)
        return self._broker_epochs.get(replica_id) if follower is None else follower.broker_epoch

    def _change_isr(self, event: IsrChanged, now_ms: int) -> Effects:
        is_current = event.leader_epoch == self.leader_epoch and event.partition_epoch >= self.partition_epoch
        if self.pending is not event.change or not is_current:
            return NO_EFFECTS
        self.pending = None
        self.partition_epoch = event.partition_epoch
        self.committed_isr = frozenset(event.in_sync_replicas)
        return self._commit(now_ms)

    def _fail_change(self, change: IsrChange, error: ErrorCode, now_ms: int) -> Effects:
        if self.pending is not change:
            return NO_EFFECTS
        if error in OUTCOME_UNKNOWN:
            self._is_outcome_unknown = True
            return NO_EFFECTS
        if error in NOT_APPLIED:
            self.pending = None
            return self._commit(now_ms)
        return [ProposeIsr(change)]

    def _commit(self, now_ms: int) -> Effects:
        """Advances the high watermark if it may move.

        A replica that has caught up but is not in sync yet holds the high watermark back. Otherwise a leader that is alone in
        sync would always be ahead of it, and the replica could never join.

        Differs from Apache Kafka: a fetch that brings nothing new does not check the high watermark, so all events that end the
        hold do.

        Source: Partition.maybeIncrementLeaderHW.
        """
        if self.is_under_min_isr:
            return NO_EFFECTS
        offset = self.log_end_offset
        maximal_isr = self.maximal_isr
        for replica_id, follower in self.followers.items():
            end_offset = follower.log_end_offset
            if end_offset is not None and end_offset >= offset:
                continue
            if replica_id in maximal_isr or self._may_join_soon(replica_id, follower, now_ms):
                if end_offset is None:
                    return NO_EFFECTS
                offset = end_offset
        if offset <= self.high_watermark:
            return NO_EFFECTS
        self.high_watermark = offset
        return [AdvanceHighWatermark(offset)]

    def _may_join_soon(self, replica_id: int, follower: Follower, now_ms: int) -> bool:
        return follower.is_caught_up(self.log_end_offset, now_ms, self._max_lag_ms) and self._is_eligible(replica_id, follower)
