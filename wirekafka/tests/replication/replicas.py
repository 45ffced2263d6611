"""A cluster of replicas of one partition in memory: the two cores, logs that are lists, a scripted controller, and lost messages.

A step is one thing that happens to one broker: a producer writes, a request or an answer arrives or is lost, the controller
elects a leader, a broker restarts, or time passes. The order of the steps is chosen by the test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.replication import following, leadership
from wirekafka.replication.following import (
    Answered,
    Append,
    AskEarliestOffset,
    AskLatestOffset,
    BackOffEnded,
    BecameFollower,
    ConnectionLost,
    Fetch,
    Following,
    OffsetAnswered,
    Refused,
    StopFetching,
    TruncateFullyAndStartAt,
    TruncateTo,
    Written,
)
from wirekafka.replication.following import Event as FollowingEvent
from wirekafka.replication.leadership import (
    Appended,
    BecameLeader,
    Fetched,
    IsrChange,
    IsrChanged,
    IsrChangeFailed,
    LagChecked,
    Leadership,
    PartitionState,
    ProposeIsr,
    StartLeaderEpoch,
)
from wirekafka.replication.leadership import Event as LeadershipEvent

BROKERS = (1, 2, 3)
LAG_MS = 1_000
BACK_OFF_MS = 300
RECORDS_A_FETCH = 3

Record = tuple[int, int]
"""The leader epoch and the value."""


class MemoryLog:
    """A log that is a list of records from offset 0 on, with its leader epochs."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.epochs = LeaderEpochs()
        self.high_watermark = 0

    @property
    def end_offset(self) -> int:
        return len(self.records)

    def append(self, records: list[Record]) -> None:
        for epoch, value in records:
            self.epochs.assign(epoch, self.end_offset)
            self.records.append((epoch, value))

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.truncate_end(offset)
        self.high_watermark = min(self.high_watermark, offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        return self.epochs.end_offset_of(epoch, self.end_offset)


@dataclass
class Decision:
    """The state of the partition as the controller has it."""

    leader: int
    state: PartitionState


@dataclass
class Replica:
    """One broker's replica.

    Attributes:
        checkpoint: the high watermark on disk, which a restart goes on with.
        asked: the request that the follower sends next; None if it has sent it, or has none to send.
        arriving: the answers on their way to the follower; late ones belong to earlier leaders.
        proposals: the changes on their way to the controller.
        news: the states on their way from the controller.
    """

    broker_id: int
    log: MemoryLog = field(default_factory=MemoryLog)
    checkpoint: int = 0
    leadership: Leadership | None = None
    following: Following | None = None
    asked: Fetch | AskLatestOffset | AskEarliestOffset | None = None
    arriving: deque[FollowingEvent] = field(default_factory=deque)
    proposals: deque[IsrChange] = field(default_factory=deque)
    answers: deque[LeadershipEvent] = field(default_factory=deque)
    news: deque[Decision] = field(default_factory=deque)
    retry_at_ms: int | None = None


class Cluster:
    """Three replicas and their controller.

    Attributes:
        committed: what was committed, by offset. It must stay in the log of every later leader.
    """

    def __init__(self, min_insync_replicas: int = 1) -> None:
        self.min_insync_replicas = min_insync_replicas
        self.now_ms = 0
        self.next_value = 0
        self.committed: list[Record] = []
        self.broker_epochs: dict[int, int | None] = dict.fromkeys(BROKERS, 1)
        self.replicas = {broker_id: Replica(broker_id) for broker_id in BROKERS}
        self.decision = Decision(1, PartitionState(0, 0, BROKERS, BROKERS))
        self._announce()

    # The controller

    def _announce(self) -> None:
        for replica in self.replicas.values():
            replica.news.append(self.decision)

    def _decide(self, *, leader: int, isr: tuple[int, ...], is_new_epoch: bool) -> None:
        state = self.decision.state
        self.decision = Decision(
            leader, PartitionState(state.leader_epoch + is_new_epoch, state.partition_epoch + 1, BROKERS, isr)
        )

    def elect(self, broker_id: int) -> None:
        """Elects a leader, if it is in sync."""
        isr = self.decision.state.in_sync_replicas
        if broker_id in isr:
            self._decide(leader=broker_id, isr=isr, is_new_epoch=True)
            self._announce()

    def restart(self, broker_id: int) -> None:
        """Ends a broker and starts it again. Unless it is alone in sync, it loses its last record.

        The controller removes the broker from the in-sync replicas, and tells it the state again.
        """
        old = self.replicas[broker_id]
        self.replicas[broker_id] = new = Replica(broker_id, old.log, old.checkpoint)
        self.broker_epochs[broker_id] = (self.broker_epochs[broker_id] or 0) + 1
        state = self.decision.state
        others = tuple(replica for replica in state.in_sync_replicas if replica != broker_id)
        if others:
            new.log.truncate(max(0, new.log.end_offset - 1))
        new.log.high_watermark = min(old.checkpoint, new.log.end_offset)
        if broker_id not in state.in_sync_replicas:
            self.repeat(broker_id)
            return
        isr = others or state.in_sync_replicas
        self._decide(leader=isr[0] if self.decision.leader == broker_id else self.decision.leader, isr=isr, is_new_epoch=True)
        self._announce()

    def propose(self, broker_id: int) -> None:
        """Takes the oldest proposal of a leader to the controller, and sends the answer."""
        replica = self.replicas[broker_id]
        if replica.proposals:
            change = replica.proposals.popleft()
            replica.answers.append(self._answer_proposal(change))

    def _answer_proposal(self, change: IsrChange) -> LeadershipEvent:
        """KafkaController.tryProcessAlterPartition; a change that is in force already is answered with the state."""
        state = self.decision.state
        if change.leader_epoch != state.leader_epoch:
            return IsrChangeFailed(change, ErrorCode.FENCED_LEADER_EPOCH)
        if change.proposed != frozenset(state.in_sync_replicas):
            if change.partition_epoch != state.partition_epoch:
                return IsrChangeFailed(change, ErrorCode.INVALID_UPDATE_VERSION)
            if any(epoch is not None and epoch != self.broker_epochs[broker] for broker, epoch in change.in_sync_replicas):
                return IsrChangeFailed(change, ErrorCode.INELIGIBLE_REPLICA)
            self._decide(leader=self.decision.leader, isr=tuple(sorted(change.proposed)), is_new_epoch=False)
            state = self.decision.state
        return IsrChanged(change, state.leader_epoch, state.partition_epoch, state.in_sync_replicas)

    def repeat(self, broker_id: int) -> None:
        """Sends the present state once more, as a new controller does."""
        self.replicas[broker_id].news.append(self.decision)

    # Brokers

    def notify(self, broker_id: int) -> None:
        """Brings the oldest state from the controller to a broker."""
        replica = self.replicas[broker_id]
        if not replica.news:
            return
        decision = replica.news.popleft()
        if decision.leader == broker_id:
            self._become_leader(replica, decision.state)
        else:
            self._become_follower(replica, decision)

    def _become_leader(self, replica: Replica, state: PartitionState) -> None:
        if replica.following is not None and state.leader_epoch <= replica.following.leader_epoch:
            return
        replica.following = replica.asked = replica.retry_at_ms = None
        if replica.leadership is None:
            replica.leadership = Leadership(
                replica.broker_id,
                high_watermark=replica.log.high_watermark,
                min_insync_replicas=self.min_insync_replicas,
                replica_lag_time_max_ms=LAG_MS,
                broker_epochs=self.broker_epochs,
            )
        self._lead(replica, BecameLeader(state, replica.log.end_offset))

    def _become_follower(self, replica: Replica, decision: Decision) -> None:
        epoch = decision.state.leader_epoch
        if replica.leadership is not None:
            if epoch <= replica.leadership.leader_epoch:
                return
            replica.leadership = None
            replica.proposals.clear()
            replica.answers.clear()
        if replica.following is None:
            replica.following = Following(replica.log.end_offset_for_epoch, back_off_ms=BACK_OFF_MS)
        log = replica.log
        self._follow(replica, BecameFollower(decision.leader, epoch, 0, log.high_watermark, log.end_offset, log.epochs.latest))

    def _lead(self, replica: Replica, event: LeadershipEvent) -> None:
        assert replica.leadership is not None
        for effect in replica.leadership.step(event, self.now_ms):
            match effect:
                case StartLeaderEpoch(epoch, start_offset):
                    assert start_offset == replica.log.end_offset
                    replica.log.epochs.assign(epoch, start_offset)
                case leadership.AdvanceHighWatermark(offset):
                    self._commit(replica, offset)
                case ProposeIsr(change):
                    replica.proposals.append(change)

        check_leadership(replica.leadership)

    def _commit(self, replica: Replica, offset: int) -> None:
        log = replica.log
        assert log.high_watermark < offset <= log.end_offset, "the high watermark only grows, within the log"
        log.high_watermark = offset
        known = self.committed[:offset]
        assert log.records[: len(known)] == known, "a committed record is lost or has changed"
        self.committed.extend(log.records[len(self.committed) : offset])

    def _follow(self, replica: Replica, event: FollowingEvent) -> None:
        events: deque[FollowingEvent] = deque([event])
        while events:
            assert replica.following is not None
            for effect in replica.following.step(events.popleft(), self.now_ms):
                written = self._execute(replica, effect)
                if written is not None:
                    events.append(written)

    def _execute(self, replica: Replica, effect: following.Effect) -> Written | None:
        log = replica.log
        match effect:
            case Fetch() | AskLatestOffset() | AskEarliestOffset():
                replica.asked, replica.retry_at_ms = effect, None
            case StopFetching():
                replica.asked = replica.retry_at_ms = None
            case following.BackOff(until_ms):
                replica.asked, replica.retry_at_ms = None, until_ms
            case Append(records, _):
                log.append(records)
                return Written(log.end_offset, log.epochs.latest)
            case TruncateTo(offset) | TruncateFullyAndStartAt(offset):
                log.truncate(offset)
                return Written(log.end_offset, log.epochs.latest)
            case following.AdvanceHighWatermark(offset):
                assert log.high_watermark < offset <= log.end_offset
                log.high_watermark = offset
        return None

    def produce(self, broker_id: int) -> None:
        """Appends a record, if the broker believes that it leads the partition."""
        replica = self.replicas[broker_id]
        if replica.leadership is None:
            return
        self.next_value += 1
        replica.log.append([(replica.leadership.leader_epoch, self.next_value)])
        self._lead(replica, Appended(replica.log.end_offset))

    def ask(self, broker_id: int) -> None:
        """Brings the follower's request to its leader, whose answer then is on its way."""
        replica = self.replicas[broker_id]
        asked, replica.asked = replica.asked, None
        if asked is None:
            return
        assert asked.leader_id is not None
        try:
            answer = self._serve(replica.broker_id, self.replicas[asked.leader_id], asked)
        except KafkaError as error:
            answer = Refused(asked.leader_epoch, ErrorCode(error.code))
        replica.arriving.append(answer)

    def _serve(self, follower: int, replica: Replica, asked: Fetch | AskLatestOffset | AskEarliestOffset) -> FollowingEvent:
        """Partition.fetchRecords and readRecords of a leader."""
        if replica.leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if asked.leader_epoch != replica.leadership.leader_epoch:
            is_older = asked.leader_epoch < replica.leadership.leader_epoch
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH)
        log = replica.log
        match asked:
            case AskLatestOffset():
                return OffsetAnswered(asked.leader_epoch, log.end_offset)
            case AskEarliestOffset():
                return OffsetAnswered(asked.leader_epoch, 0)
        answer = Answered(asked.leader_epoch, asked.offset, [], log.high_watermark, 0)
        diverging = find_divergence(log, asked)
        if diverging is not None:
            return replace(answer, diverging_epoch=diverging)
        if asked.offset > log.end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        records = log.records[asked.offset : asked.offset + RECORDS_A_FETCH]
        self._lead(replica, Fetched(follower, asked.offset, 0, self.broker_epochs[follower]))
        return replace(answer, records=records, high_watermark=log.high_watermark)

    def deliver(self, broker_id: int) -> None:
        """Brings an answer to a follower."""
        replica = self.replicas[broker_id]
        if replica.arriving:
            answer = replica.arriving.popleft()
            if replica.following is not None:
                self._follow(replica, answer)

    def lose(self, broker_id: int) -> None:
        """Ends the connections of a follower; the leader may have got the request."""
        replica = self.replicas[broker_id]
        replica.arriving.clear()
        if replica.following is not None:
            self._follow(replica, ConnectionLost())

    def hear(self, broker_id: int) -> None:
        """Brings the controller's answer to a leader."""
        replica = self.replicas[broker_id]
        if replica.leadership is not None and replica.answers:
            self._lead(replica, replica.answers.popleft())

    def mishear(self, broker_id: int) -> None:
        """Loses the controller's answer; the leader gets an error and tries again."""
        replica = self.replicas[broker_id]
        if replica.leadership is not None and replica.answers:
            answer = replica.answers.popleft()
            assert isinstance(answer, IsrChanged | IsrChangeFailed)
            self._lead(replica, IsrChangeFailed(answer.change, ErrorCode.NETWORK_EXCEPTION))

    def save(self, broker_id: int) -> None:
        """Writes the high watermark to disk."""
        replica = self.replicas[broker_id]
        replica.checkpoint = replica.log.high_watermark

    def wait(self, broker_id: int) -> None:
        """Lets time pass, and the timers of one broker expire."""
        self.now_ms += LAG_MS // 2
        replica = self.replicas[broker_id]
        if replica.leadership is not None:
            self._lead(replica, LagChecked())
        if replica.following is not None and replica.retry_at_ms is not None and self.now_ms >= replica.retry_at_ms:
            self._follow(replica, BackOffEnded())

    # What must hold

    def heal(self) -> None:
        """Lets everything arrive until all replicas are in sync and equal.

        Raises:
            AssertionError: they do not become so.
        """
        for _ in range(60):
            for act in (self.notify, self.ask, self.deliver, self.propose, self.hear, self.repeat, self.wait):
                for broker_id in BROKERS:
                    act(broker_id)
            if self._is_whole:
                return
        raise AssertionError(f"not in sync: {self.decision}, {[replica.log.records for replica in self.replicas.values()]}")

    @property
    def _is_whole(self) -> bool:
        logs = [replica.log for replica in self.replicas.values()]
        end_offset = logs[0].end_offset
        return (
            set(self.decision.state.in_sync_replicas) == set(BROKERS)
            and all(log.records == logs[0].records for log in logs)
            and all(log.high_watermark == end_offset for log in logs)
        )

    def check(self) -> None:
        """Checks what holds at every moment.

        Raises:
            AssertionError: a committed record is missing in an in-sync replica, or two logs differ below their high watermarks.
        """
        for broker_id in self.decision.state.in_sync_replicas:
            records = self.replicas[broker_id].log.records
            assert records[: len(self.committed)] == self.committed, f"broker {broker_id} is in sync and lacks committed records"
        for replica in self.replicas.values():
            log = replica.log
            assert log.high_watermark <= len(self.committed)
            assert log.records[: log.high_watermark] == self.committed[: log.high_watermark]


def check_leadership(leader: Leadership) -> None:
    """Checks that the high watermark is at most the end of each log that is in sync, if the leader knows this end.

    While a change is pending, the controller may have removed a replica already, which then has lost its last record.
    """
    assert leader.high_watermark <= leader.log_end_offset
    if leader.pending is not None:
        return
    for replica_id in leader.committed_isr - {leader.broker_id}:
        end_offset = leader.followers[replica_id].log_end_offset
        assert end_offset is None or leader.high_watermark <= end_offset


def find_divergence(log: MemoryLog, asked: Fetch) -> tuple[int, int] | None:
    """Partition.readRecords: where the follower's log diverges, by the epoch of its last record."""
    if asked.last_fetched_epoch is None:
        return None
    end = log.end_offset_for_epoch(asked.last_fetched_epoch)
    if end is None:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    epoch, end_offset = end
    return end if epoch < asked.last_fetched_epoch or end_offset < asked.offset else None


Act = Callable[[Cluster, int], None]
SELDOM: tuple[Act, ...] = (
    Cluster.elect,
    Cluster.restart,
    Cluster.lose,
    Cluster.mishear,
    Cluster.repeat,
    Cluster.save,
    Cluster.wait,
)
OFTEN: tuple[Act, ...] = (
    Cluster.produce,
    Cluster.ask,
    Cluster.ask,
    Cluster.deliver,
    Cluster.deliver,
    Cluster.notify,
    Cluster.propose,
    Cluster.hear,
)
ACTS: tuple[Act, ...] = SELDOM + 2 * (Cluster.wait, Cluster.mishear) + 4 * OFTEN
"""What can happen to a broker. An act that is there several times is chosen more often: bugs show if replicas come forward, and
if it takes them more than the lag time.
"""
