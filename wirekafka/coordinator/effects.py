"""The effects of a step of the coordinator: records to append, replies to release, timers to set or to cancel.

Rules of this file: a step only returns its effects. `runtime` executes them in this order: timers; records; `then`, if the step
has one, with the result of the append; replies last, so that no client sees state that is not in the log.

Source: org.apache.kafka.coordinator.common.runtime.CoordinatorResult (records, appendFuture, replayRecords, isAtomic).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from wirekafka.coordinator.groups.records import CoordinatorRecord
from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """A member has sent no request for its session timeout."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class InitialJoinExpired:
    """The time that a new group waits for more members is over, at least for this round of it.

    Attributes:
        delay_ms: the duration of this round.
        remaining_ms: the time by which the wait may still be extended if members join.
    """

    group_id: str
    delay_ms: int
    remaining_ms: int


@dataclass(frozen=True, slots=True)
class JoinExpired:
    """The rebalance timeout is over: the group continues with the members that have joined."""

    group_id: str


@dataclass(frozen=True, slots=True)
class SyncExpired:
    """Members have not sent SyncGroup within the rebalance timeout, and are removed."""

    group_id: str


class TimerEvent(Protocol):
    """The event of a timer of a group; each type of groups has its own classes."""

    @property
    def group_id(self) -> str:
        """The id of the group of the timer."""


class TimerKey(NamedTuple):
    """The purpose of a timer. A new timer replaces the timer with the same key."""

    purpose: str
    group_id: str
    member_id: str = ""


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """Returns the key of a member's session timeout."""
    return TimerKey("session", group_id, member_id)


def join_timer(group_id: str) -> TimerKey:
    """Returns the key of a group's wait for JoinGroup requests."""
    return TimerKey("join", group_id)


def sync_timer(group_id: str) -> TimerKey:
    """Returns the key of a group's wait for SyncGroup requests."""
    return TimerKey("sync", group_id)


class SetTimer(NamedTuple):
    """Sets a timer that triggers `event` after `delay_ms`.

    Attributes:
        is_first: if a timer is set for this key, it stays unchanged.
    """

    key: TimerKey
    delay_ms: int
    event: TimerEvent
    is_first: bool = False


class WritingProducer(NamedTuple):
    """The producer of the transaction to which records belong."""

    producer_id: int
    producer_epoch: int


class BackgroundWork(NamedTuple):
    """Work of a step that would hold the loop for too long.

    Attributes:
        begin: called once the records of the step are in the log; returns False if the work is no longer needed.
        compute: the work itself, which a thread runs. It reads snapshots only, and changes nothing.
        then: called with the result, or None if there is none, and the time in milliseconds. It returns the steps that follow,
            for the same partition. Each step is executed before the next one is requested.
    """

    begin: Callable[[], bool]
    compute: Callable[[], Any]
    then: Callable[[Any, int], Iterator[Effects]]


@dataclass(slots=True)
class Effects:
    """The effects of one step.

    Attributes:
        records: the records to append to the partition of the step's group; they are replayed after the append if `is_replayed`.
        is_replayed: False if the step changes the state itself, in `then` (Kafka's replayRecords), because a live group has more
            state than its record.
        is_atomic: the records are appended in one batch, or not at all.
        must_be_atomic: a later part of the step must not set `is_atomic` to False.
        producer: the producer to whose open transaction the records belong; None for records without a transaction.
        replies: completed once the records are in the log; at once if there are no records.
        timers: each a `SetTimer`, or the key of a timer to cancel; in order.
        then: called after the append with its error (None if it succeeded) and the time in milliseconds. Its effects are executed
            next, before `replies`.
        background: work that the step starts if its records were appended.
    """

    records: list[CoordinatorRecord] = field(default_factory=list)
    is_replayed: bool = True
    is_atomic: bool = True
    must_be_atomic: bool = False
    producer: WritingProducer | None = None
    replies: list[tuple[Pending[Any], Any]] = field(default_factory=list)
    timers: list[SetTimer | TimerKey] = field(default_factory=list)
    then: Callable[[ErrorCode | None, int], Effects] | None = None
    background: BackgroundWork | None = None

    def set_timer(self, key: TimerKey, delay_ms: int, event: TimerEvent) -> None:
        """Sets a timer that triggers `event` after `delay_ms`; it replaces the timer of this key."""
        self.timers.append(SetTimer(key, delay_ms, event))

    def set_timer_if_absent(self, key: TimerKey, delay_ms: int, event: TimerEvent) -> None:
        """Sets a timer that triggers `event` after `delay_ms`, unless a timer of this key is set."""
        self.timers.append(SetTimer(key, delay_ms, event, is_first=True))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancels the timer of this key."""
        self.timers.append(key)

    def reply(self, pending: Pending[Any], result: Any) -> None:
        """Completes a `Pending` with a result, after the records are in the log."""
        self.replies.append((pending, result))


def append_error(code: ErrorCode) -> ErrorCode:
    """Returns the error for the client if the append of its group's records failed with `code`.

    A storage error becomes COORDINATOR_NOT_AVAILABLE, because this broker stays the coordinator and accepts writes again once the
    disk has space. Apache Kafka answers NOT_COORDINATOR, because it takes the directory with the partition offline. After either
    error clients look the coordinator up and try again.

    Source: GroupMetadataManager.appendGroupMetadataErrorToResponseError.
    """
    match code:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
            | ErrorCode.KAFKA_STORAGE_ERROR
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE | ErrorCode.INVALID_FETCH_SIZE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        case _:
            return code
