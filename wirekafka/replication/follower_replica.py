"""A follower's replica of a partition: executes the decisions of `Following` on the log and by the fetcher.

How it works: a `FollowerReplica` passes the events of its partition to `Following`, executes the effects on the log, and passes
the effects on the leader, such as the next fetch, to the fetcher. Appends of many batches run in slices.

Rules of this file:
    `Following` makes all decisions.
    At most one append runs. The append is abandoned before the log is truncated, and when the leader changes.
    The reason why a partition is not replicated is logged once, and again when it changes.

Source: kafka.server.ReplicaFetcherThread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_never

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import log_once
from wirekafka.pending import Pending, Work
from wirekafka.replication.following import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    Answered,
    Append,
    AskEarliestOffset,
    AskLatestOffset,
    BackOff,
    BecameFollower,
    Effect,
    Event,
    Fetch,
    Following,
    OffsetAnswered,
    Refused,
    State,
    StopFetching,
    TruncateFullyAndStartAt,
    TruncateTo,
    WriteFailed,
    Written,
)

if TYPE_CHECKING:
    from wirekafka.log.log import Log
    from wirekafka.replication.replication_troubles import ReplicationTroubles

USUAL_ERRORS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""The leader's errors that pass by themselves after an election. Apache Kafka logs them for debugging only."""

Request = Fetch | StopFetching | AskLatestOffset | AskEarliestOffset | BackOff
"""The requests to the fetcher, which reports the outcome by `FollowerReplica.handle`."""


Commit = Callable[[int], object]
"""Advances the high watermark of the log to an offset, and tells the consumers that wait for it."""

Run = Callable[[Work[int]], int | Pending[Any]]
"""Runs work in slices, as `Slices.run` does: returns the result, or a Pending of it."""


class FollowerReplica:
    """A follower's replica of one partition.

    Args:
        log: the log of this replica, which only this object writes.
        back_off_ms: `replica.fetch.backoff.ms`.
        request: passes a request to the fetcher.
        now_ms: returns the time.
        troubles: logs why the partition is not replicated.

    Attributes:
        following: the state of the follower.
    """

    def __init__(
        self,
        log: Log,
        *,
        back_off_ms: int,
        run: Run,
        request: Callable[[Request], object],
        now_ms: Callable[[], int],
        troubles: ReplicationTroubles,
    ) -> None:
        self.log = log
        self.following = Following(log.reader.end_offset_for_epoch, back_off_ms=back_off_ms)
        self._run = run
        self._request = request
        self._now_ms = now_ms
        self._troubles = troubles
        self._commit: Commit = log.reader.advance_high_watermark
        self._appending: Pending[Any] | None = None
        self._trouble: str | None = None
        """What was logged last."""

    def follow(self, leader_id: int | None, leader_epoch: int, commit: Commit | None = None) -> None:
        """Follows a leader from now on.

        Args:
            leader_id: None if there is no leader, or its broker is not alive.
            commit: advances the high watermark; by default, that of the log only.
        """
        self._commit = commit or self.log.reader.advance_high_watermark
        reader = self.log.reader
        latest_epoch = reader.epochs.latest
        self.handle(
            BecameFollower(
                leader_id, leader_epoch, reader.log_start_offset, reader.high_watermark, reader.log_end_offset, latest_epoch
            )
        )

    def handle(self, event: Event) -> None:
        """Passes an event to `Following`, and executes the effects; an error of the log is the next event."""
        effects = self.following.step(event, self._now_ms())
        self._note_outcome(event)
        if self._appending is not None and self.following.pending_append is None:
            self._end_append()
        try:
            for effect in effects:
                self._execute(effect)
        except KafkaError as error:
            self._report_failure(error)
        except Exception as error:  # noqa: BLE001 - other partitions are replicated
            log_once(error, "A follower could not write its log", partition=str(self.log.topic_partition))
            self._report_failure(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, type(error).__name__))

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Append(records, leader_epoch):
                self._append(records, leader_epoch)
            case TruncateTo(offset):
                self.log.truncate_to(offset)
                self._report_written()
            case TruncateFullyAndStartAt(offset):
                self.log.truncate_fully_and_start_at(offset)
                self._report_written()
            case AdvanceHighWatermark(offset):
                self._commit(offset)
            case AdvanceLogStart(offset):
                self.log.retention.delete_records(offset)
            case Fetch() | StopFetching() | AskLatestOffset() | AskEarliestOffset() | BackOff():
                self._request(effect)
            case _:
                assert_never(effect)

    def _append(self, records: memoryview, leader_epoch: int) -> None:
        result = self._run(self.log.append_as_follower(records, leader_epoch=leader_epoch))
        if isinstance(result, Pending):
            self._appending = result
            result.then(self._take_result)
        else:
            self._report_written()

    def _take_result(self, result: object) -> None:
        self._appending = None
        match result:
            case KafkaError():
                self._report_failure(result)
            case Exception():
                log_once(result, "A follower could not append", partition=str(self.log.topic_partition))
                self._report_failure(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, type(result).__name__))
            case _:
                self._report_written()

    def _end_append(self) -> None:
        appending, self._appending = self._appending, None
        if appending is not None:
            appending.abandon()

    def _report_written(self) -> None:
        reader = self.log.reader
        self.handle(Written(reader.log_end_offset, reader.epochs.latest))

    def _report_failure(self, error: KafkaError) -> None:
        reader = self.log.reader
        code = ErrorCode(error.code)
        # An error that takes the directory offline closes the log.
        may_pass = code == ErrorCode.KAFKA_STORAGE_ERROR and reader.offline_reason is None and not reader.is_closed
        offsets = reader.log_start_offset, reader.high_watermark, reader.log_end_offset
        self.handle(WriteFailed(code, *offsets, reader.epochs.latest, may_pass))
        if error.code != ErrorCode.KAFKA_STORAGE_ERROR:  # which the data directory logs
            self._note_trouble(str(error))

    def _note_outcome(self, event: Event) -> None:
        match event:
            case Refused(_, error) if error not in USUAL_ERRORS:
                self._note_trouble(f"the leader answers {error.name}")
            case Answered() | OffsetAnswered() | Written() if self.following.state is State.DELAYED:
                self._note_trouble("the answer of the leader changes nothing")
            case Written() | Answered(records=b"", diverging_epoch=None):
                self._trouble = None

    def _note_trouble(self, reason: str) -> None:
        if reason != self._trouble:
            self._trouble = reason
            tries_again = self.following.state is not State.STOPPED
            self._troubles.note(str(self.log.topic_partition), reason, tries_again=tries_again)

    def close(self) -> None:
        """Abandons the append that runs, because the broker stops the replica."""
        self._end_append()
