"""A follower of one partition: what to fetch from the leader, and what to do with the own log.

How it works: `Following.step` takes an event, changes the state, and returns the effects. The broker executes them in their
order, and reports the result of a write or of a request as the next event. The states are `State`, and `EXPECTED`
says which events each state handles. An answer to a request of an earlier state or leader epoch is ignored. The broker executes
an `Append` only while it is `pending_append`, because validation in a thread may end after the leader has changed.

Rules of this file:
    Every request has the leader epoch of the follower, and every fetch the epoch of its last record (KIP-320, KIP-595).
    The leader answers a fetch from a log that diverges with the greatest common epoch and its end. The follower truncates to the
    end of this epoch in both logs, and fetches again (KIP-101, KIP-279).
    The follower truncates to the high watermark only if the log has no leader epochs (message formats 0 and 1).
    The high watermark is at most the leader's and at most the own log end offset. Only a truncation decreases it.
    The follower backs off after an answer that should change the own log and does not, such as records without a complete batch.
    The leader would answer the next fetch in the same way, and without an end.
    After FENCED_LEADER_EPOCH or a lasting error of the own log the follower stops, until it gets a newer leader epoch. After an
    error that may pass, such as that of a full disk, it backs off and fetches again.

Differs from Apache Kafka:
    After an error of the disk that leaves the data directory online, such as that of a full disk, the follower backs off and
    fetches again. In Apache Kafka each error of the disk ends the replication of the partition, mostly with its directory.
    OFFSET_MOVED_TO_TIERED_STORAGE stops the follower, because wirekafka has no tiered storage.
    If the high watermark of a new leader is lower, the follower keeps its own. In Apache Kafka the follower takes the lower one.
    In Apache Kafka the follower fetches again at once, without an end, after records of which it appends none, after a divergence
    that truncates nothing, and after OFFSET_OUT_OF_RANGE for an offset within the leader's log.

Source: kafka.server.AbstractFetcherThread, kafka.server.ReplicaFetcherThread; KIP-101, KIP-279, KIP-320, KIP-595.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

from wirekafka.errors import ErrorCode
from wirekafka.names import NO_LEADER_EPOCH


class State(Enum):
    """What a follower is waiting for."""

    STOPPED = "stopped"
    """Another leader or leader epoch: there is no leader, or the follower has stopped after an error."""
    FETCHING = "fetching"
    """The answer to a fetch."""
    APPENDING = "appending"
    """The end of an append to the own log."""
    TRUNCATING = "truncating"
    """The end of a truncation of the own log."""
    ASKING_LATEST = "asking for the latest offset"
    """The leader's log end offset, after OFFSET_OUT_OF_RANGE."""
    ASKING_EARLIEST = "asking for the earliest offset"
    """The leader's log start offset, after OFFSET_OUT_OF_RANGE."""
    DELAYED = "delayed"
    """The end of the back-off; then the follower fetches again."""


@dataclass(frozen=True, slots=True)
class BecameFollower:
    """LeaderAndIsr or the metadata names the leader of the partition.

    Attributes:
        leader_id: None if there is no leader, or its broker is not alive.
        log_start_offset, high_watermark, log_end_offset: those of the own log.
        latest_epoch: the leader epoch of the last record of the own log; None if the log has no epochs.
    """

    leader_id: int | None
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    latest_epoch: int | None


@dataclass(frozen=True, slots=True)
class Answered:
    """The leader has answered a fetch for this partition.

    Attributes:
        leader_epoch, fetch_offset: those of the request.
        records: the batches; empty if there are none.
        high_watermark, log_start_offset: the leader's.
        diverging_epoch: the greatest epoch that both logs may have, and its end in the leader's log; None if the logs agree.
    """

    leader_epoch: int
    fetch_offset: int
    records: Any = b""
    high_watermark: int = 0
    log_start_offset: int = 0
    diverging_epoch: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class OffsetAnswered:
    """The leader has answered the request for its latest or earliest offset."""

    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The leader has answered a request with an error for this partition.

    Attributes:
        leader_epoch: that of the request.
    """

    leader_epoch: int
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A request has failed: no connection, a timeout, an error for the whole request, or bytes that are no response."""


@dataclass(frozen=True, slots=True)
class Written:
    """An append or a truncation has ended.

    Attributes:
        log_end_offset, latest_epoch: those of the own log now.
    """

    log_end_offset: int
    latest_epoch: int | None


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """An append, a truncation or a deletion has failed.

    Attributes:
        log_start_offset, high_watermark, log_end_offset, latest_epoch: those of the own log now; an append may have written the
            first of its batches, and a truncation may have removed some.
        may_pass: the same write may succeed later, because the log is still in use.
    """

    error: ErrorCode
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    latest_epoch: int | None
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class BackOffEnded:
    """The time of a `BackOff` has come."""


Event = BecameFollower | Answered | OffsetAnswered | Refused | ConnectionLost | Written | WriteFailed | BackOffEnded

EXPECTED: dict[State, tuple[type[Event], ...]] = {
    State.STOPPED: (),
    State.FETCHING: (Answered, Refused, ConnectionLost, WriteFailed),
    State.APPENDING: (Written, WriteFailed),
    State.TRUNCATING: (Written, WriteFailed),
    State.ASKING_LATEST: (OffsetAnswered, Refused, ConnectionLost),
    State.ASKING_EARLIEST: (OffsetAnswered, Refused, ConnectionLost),
    State.DELAYED: (BackOffEnded,),
}
"""The events that a state handles besides `BecameFollower`. All other events belong to earlier requests, and are ignored."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch from the leader from now on, at `offset`.

    Attributes:
        last_fetched_epoch: the epoch of the record before `offset`, by which the leader finds that the logs diverge; None if it
            is unknown.
    """

    leader_id: int | None
    leader_epoch: int
    offset: int
    last_fetched_epoch: int | None


@dataclass(frozen=True, slots=True)
class StopFetching:
    """Send no more requests for this partition, and ignore the answers to those that were sent."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append the leader's batches, which follow the end of the own log; then report `Written` or `WriteFailed`.

    Attributes:
        leader_epoch: the greatest leader epoch that a batch may have.
    """

    records: Any
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Remove the records from `offset` on, and the leader epochs that begin there; then report `Written` or `WriteFailed`."""

    offset: int


@dataclass(frozen=True, slots=True)
class TruncateFullyAndStartAt:
    """Remove all records, and begin the log at `offset`; then report `Written` or `WriteFailed`."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskLatestOffset:
    """Ask the leader for its log end offset, by ListOffsets."""

    leader_id: int | None
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class AskEarliestOffset:
    """Ask the leader for its log start offset, by ListOffsets."""

    leader_id: int | None
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class BackOff:
    """Do not fetch, and report `BackOffEnded` at `until_ms`."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Set the high watermark of the own log."""

    offset: int


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Delete the records before `offset`, which the leader has deleted; report `WriteFailed` if that fails."""

    offset: int


Effect = (
    Fetch
    | StopFetching
    | Append
    | TruncateTo
    | TruncateFullyAndStartAt
    | AskLatestOffset
    | AskEarliestOffset
    | BackOff
    | AdvanceHighWatermark
    | AdvanceLogStart
)
Effects = Sequence[Effect]
NO_EFFECTS: Effects = ()

STOPPING = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE})
"""The leader's errors after which the follower waits for a newer leader epoch. After OFFSET_OUT_OF_RANGE it asks for the leader's
offsets. After any other error it backs off, for example because the broker does not know yet that it is the leader."""

PASSING_WRITE_ERRORS = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD})
"""The errors of an append that another fetch may avoid, because the bytes may have changed on their way."""

EndOffsetForEpoch = Callable[[int], "tuple[int, int] | None"]
"""Returns the greatest leader epoch of the own log up to an epoch, and its end; None if the log knows no epochs. If all
its epochs are later, it returns the epoch and the start of the first one, as `log.epochs` does."""


class Following:
    """The state of the follower of one partition.

    Args:
        end_offset_for_epoch: reads the leader epochs of the own log.
        back_off_ms: `replica.fetch.backoff.ms`.

    Attributes:
        leader_id: None if there is no leader.
        leader_epoch: -1 before the first `BecameFollower`.
        log_end_offset: the end of the own log, which is the next fetch offset.
        pending_append: the append that the broker may execute; None if there is none.
    """

    __slots__ = (
        "_answer",
        "_back_off_ms",
        "_end_offset_for_epoch",
        "_retry_at_ms",
        "_truncation",
        "high_watermark",
        "latest_epoch",
        "leader_epoch",
        "leader_id",
        "log_end_offset",
        "log_start_offset",
        "pending_append",
        "state",
    )

    def __init__(self, end_offset_for_epoch: EndOffsetForEpoch, *, back_off_ms: int) -> None:
        self._end_offset_for_epoch = end_offset_for_epoch
        self._back_off_ms = back_off_ms
        self._retry_at_ms = 0
        self._answer: Answered | None = None
        self._truncation: TruncateTo | TruncateFullyAndStartAt | None = None
        """The truncation that the log needs before it may fetch; it stays while the disk refuses it."""
        self.state = State.STOPPED
        self.leader_id: int | None = None
        self.leader_epoch = NO_LEADER_EPOCH
        self.log_start_offset = self.high_watermark = self.log_end_offset = 0
        self.latest_epoch: int | None = None
        self.pending_append: Append | None = None

    def step(self, event: Event, now_ms: int) -> Effects:
        """Handles an event; returns the effects in the order of their execution."""
        if isinstance(event, BecameFollower):
            return self._follow(event)
        if type(event) not in EXPECTED[self.state] or not self._is_current(event):
            return NO_EFFECTS
        match event:
            case Answered():
                return self._take_answer(event, now_ms)
            case OffsetAnswered(_, offset):
                return self._take_offset(offset, now_ms)
            case Refused(_, error):
                return self._take_error(error, now_ms)
            case ConnectionLost():
                return self._back_off(now_ms)
            case Written(log_end_offset, latest_epoch):
                return self._take_write(log_end_offset, latest_epoch, now_ms)
            case WriteFailed():
                return self._fail_write(event, now_ms)
            case BackOffEnded():
                return self._retry() if now_ms >= self._retry_at_ms else NO_EFFECTS
            case _:
                assert_never(event)

    def _is_current(self, event: Event) -> bool:
        """Whether the event answers the newest request; other events are always current."""
        match event:
            case Answered(leader_epoch, fetch_offset):
                return leader_epoch == self.leader_epoch and fetch_offset == self.log_end_offset
            case OffsetAnswered(leader_epoch) | Refused(leader_epoch):
                return leader_epoch == self.leader_epoch
        return True

    def _follow(self, event: BecameFollower) -> Effects:
        is_repeated = event.leader_epoch == self.leader_epoch and event.leader_id == self.leader_id
        if is_repeated or event.leader_epoch < self.leader_epoch:
            return NO_EFFECTS
        self.leader_id, self.leader_epoch = event.leader_id, event.leader_epoch
        self.log_start_offset, self.log_end_offset = event.log_start_offset, event.log_end_offset
        self.high_watermark, self.latest_epoch = event.high_watermark, event.latest_epoch
        self._answer = self._truncation = self.pending_append = None
        if event.leader_id is None:
            return self._stop()
        if event.latest_epoch is None and event.high_watermark < event.log_end_offset:
            return self._truncate(event.high_watermark)
        return self._fetch()

    def _fetch(self) -> Effects:
        self.state = State.FETCHING
        return [Fetch(self.leader_id, self.leader_epoch, self.log_end_offset, self.latest_epoch)]

    def _retry(self) -> Effects:
        """Fetches again. A truncation that failed is repeated first, because the log may diverge or have lost its epochs."""
        match self._truncation:
            case TruncateTo(offset):
                return self._truncate(offset)
            case TruncateFullyAndStartAt(offset):
                return self._start_at(offset)
        return self._fetch()

    def _stop(self) -> Effects:
        self.state = State.STOPPED
        return [StopFetching()]

    def _back_off(self, now_ms: int) -> Effects:
        self.state = State.DELAYED
        self._retry_at_ms = now_ms + self._back_off_ms
        return [BackOff(self._retry_at_ms)]

    def _take_answer(self, answer: Answered, now_ms: int) -> Effects:
        # An answer from a log that diverges has no records, and its offsets count only after the truncation.
        if answer.diverging_epoch is not None:
            return self._diverge(*answer.diverging_epoch, now_ms)
        if not len(answer.records):
            return self._adopt_offsets(answer)
        self.state = State.APPENDING
        self._answer = answer
        self.pending_append = Append(answer.records, self.leader_epoch)
        return [self.pending_append]

    def _adopt_offsets(self, answer: Answered) -> Effects:
        """Takes over the leader's high watermark and log start, as far as the own log has the records; then fetches again."""
        effects: list[Effect] = []
        high_watermark = min(answer.high_watermark, self.log_end_offset)
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            effects.append(AdvanceHighWatermark(high_watermark))
        log_start_offset = min(answer.log_start_offset, self.high_watermark)
        if log_start_offset > self.log_start_offset:
            self.log_start_offset = log_start_offset
            effects.append(AdvanceLogStart(log_start_offset))
        return [*effects, *self._fetch()]

    def _diverge(self, epoch: int, end_offset: int, now_ms: int) -> Effects:
        """Truncates to the end of an epoch that both logs have.

        If the own log does not have the leader's epoch, it is truncated to the end of its greatest earlier epoch, and the
        leader's answer to the next fetch names an earlier epoch (KIP-279). If the own log knows no epochs, the leader's end
        counts.

        Source: AbstractFetcherThread.getOffsetTruncationState.
        """
        if end_offset < 0:
            return self._back_off(now_ms)
        own = self._end_offset_for_epoch(epoch)
        if own is None:
            return self._truncate(end_offset)
        own_epoch, own_end_offset = own
        return self._truncate(min(own_end_offset, end_offset) if own_epoch == epoch else own_end_offset)

    def _truncate(self, offset: int) -> Effects:
        self.state = State.TRUNCATING
        offset = min(offset, self.log_end_offset)
        if offset < self.log_start_offset:
            return self._start_at(offset)
        self._truncation = TruncateTo(offset)
        return [self._truncation]

    def _start_at(self, offset: int) -> Effects:
        self.state = State.TRUNCATING
        self.high_watermark = self.log_start_offset = offset
        self._truncation = TruncateFullyAndStartAt(offset)
        return [self._truncation]

    def _take_error(self, error: ErrorCode, now_ms: int) -> Effects:
        if error in STOPPING:
            return self._stop()
        if error == ErrorCode.OFFSET_OUT_OF_RANGE and self.state is State.FETCHING:
            self.state = State.ASKING_LATEST
            return [AskLatestOffset(self.leader_id, self.leader_epoch)]
        return self._back_off(now_ms)

    def _take_offset(self, offset: int, now_ms: int) -> Effects:
        """Fetches on from where the leader's log and the own log overlap. If they do not overlap, empties the own log first.

        The own log is longer than the leader's after an unclean election. It is truncated to the leader's end, and its records
        below this end may differ from the leader's. It ends before the leader's start if the follower was down for long. If they
        overlap, the leader has grown since it refused the offset, or contradicts itself.

        Source: AbstractFetcherThread.fetchOffsetAndTruncate.
        """
        if self.state is State.ASKING_EARLIEST:
            return self._start_at(offset) if offset > self.log_end_offset else self._back_off(now_ms)
        if offset < self.log_end_offset:
            return self._truncate(offset)
        self.state = State.ASKING_EARLIEST
        return [AskEarliestOffset(self.leader_id, self.leader_epoch)]

    def _take_write(self, log_end_offset: int, latest_epoch: int | None, now_ms: int) -> Effects:
        is_unchanged = (log_end_offset, latest_epoch) == (self.log_end_offset, self.latest_epoch)
        self.log_end_offset, self.latest_epoch = log_end_offset, latest_epoch
        self.high_watermark = min(self.high_watermark, log_end_offset)
        answer, self._answer, self._truncation, self.pending_append = self._answer, None, None, None
        if is_unchanged:
            return self._back_off(now_ms)
        return self._fetch() if answer is None else self._adopt_offsets(answer)

    def _fail_write(self, event: WriteFailed, now_ms: int) -> Effects:
        may_pass = event.may_pass or (self.state is State.APPENDING and event.error in PASSING_WRITE_ERRORS)
        self.log_start_offset, self.high_watermark = event.log_start_offset, event.high_watermark
        self.log_end_offset, self.latest_epoch = event.log_end_offset, event.latest_epoch
        self._answer = self.pending_append = None
        return self._back_off(now_ms) if may_pass else self._stop()
