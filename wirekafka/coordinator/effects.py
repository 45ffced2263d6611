"""The effects of a step of the coordinator: records to append, replies to release, timers to set or to cancel.

Rules of this file: a step does none of this itself. `runtime` does, in this order: timers; records; `then`, if the step has
one, with the result of the append; replies last, so that no client sees what is not in the log.

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
        delay_ms: how long this round lasted.
        remaining_ms: how much longer the wait may be extended if members came meanwhile.
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
    """Members that have not sent SyncGroup within the rebalance timeout are to be removed."""

    group_id: str


class TimerEvent(Protocol):
    """The event of a timer of a group; each type of groups has its own classes."""

    @property
    def group_id(self) -> str:
        """Of the group that it concerns."""


class TimerKey(NamedTuple):
    """The purpose of a timer; a timer that is set replaces the one of the same key."""

    purpose: str
    group_id: str
    member_id: str = ""


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """The key of a member's session timeout."""
    return TimerKey("session", group_id, member_id)


def join_timer(group_id: str) -> TimerKey:
    """The key of a group's wait for JoinGroup requests."""
    return TimerKey("join", group_id)


def sync_timer(group_id: str) -> TimerKey:
    """The key of a group's wait for SyncGroup requests."""
    return TimerKey("sync", group_id)


class SetTimer(NamedTuple):
    """Make `event` happen in `delay_ms`.

    Attributes:
        is_first: a timer that is set for this key already stays as it is.
    """

    key: TimerKey
    delay_ms: int
    event: TimerEvent
    is_first: bool = False


class WritingProducer(NamedTuple):
    """The producer in whose transaction records are written."""

    producer_id: int
    producer_epoch: int


class BackgroundWork(NamedTuple):
    """Work of a step that would hold the loop for too long.

    Attributes:
        begin: called once the records of the step are in the log; False if the work is no longer wanted.
        compute: the work itself, which a thread runs: it reads snapshots alone, and changes nothing.
        then: called with the result, None if there is none, and the time in milliseconds. It returns the steps that follow, for
            the same partition. Each step is carried out before the next one is asked for.
    """

    begin: Callable[[], bool]
    compute: Callable[[], Any]
    then: Callable[[Any, int], Iterator[Effects]]


@dataclass(slots=True)
class Effects:
    """What one step asks for.

    Attributes:
        records: to append to the partition of the step's group; replayed once appended, if `is_replayed`.
        is_replayed: False where the step, through `then`, brings about itself what the records say (Kafka's
            replayRecords): a live group knows more than its record does.
        is_atomic: all records in one batch, or none.
        must_be_atomic: a later part of the step may not make `is_atomic` False.
        producer: whose open transaction the records are part of; None for records that count at once.
        replies: completed once the records are in the log; at once if there are none.
        timers: a `SetTimer`, or the key of a timer to cancel; in order.
        then: told once the append is decided (None, or what went wrong) and the time in milliseconds; its own effects come
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
        """Makes `event` happen in `delay_ms` instead of what was set for this key before."""
        self.timers.append(SetTimer(key, delay_ms, event))

    def set_timer_if_absent(self, key: TimerKey, delay_ms: int, event: TimerEvent) -> None:
        """Makes `event` happen in `delay_ms`, unless something is set for this key already."""
        self.timers.append(SetTimer(key, delay_ms, event, is_first=True))

    def cancel_timer(self, key: TimerKey) -> None:
        """Makes what was set for this key not happen."""
        self.timers.append(key)

    def reply(self, pending: Pending[Any], result: Any) -> None:
        """Completes a `Pending` with a result, after the records are in the log."""
        self.replies.append((pending, result))


def append_error(code: ErrorCode) -> ErrorCode:
    """The error that a client is told when its group's records could not be appended because of `code`.

    A storage error is COORDINATOR_NOT_AVAILABLE here, where Apache Kafka says NOT_COORDINATOR: there it means that the
    directory, and with it the partition, is given up; here the broker stays the coordinator, and accepts writes again once
    there is room. Clients look the coordinator up and try again on either.

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
