"""A follower's replica of a partition: `Following` decides, and the log and the fetcher do it.

How it works: a `FollowerReplica` passes the events of its partition to `Following`, executes the effects on the log, and passes
the effects on the leader, such as the next fetch, to the fetcher. Appends of many batches run in slices.

Rules of this file: no decision is made here. At most one append runs. It is ended before the log is truncated, and when the
leader changes.

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
    Append,
    AskEarliestOffset,
    AskLatestOffset,
    BackOff,
    BecameFollower,
    Effect,
    Event,
    Fetch,
    Following,
    StopFetching,
    TruncateFullyAndStartAt,
    TruncateTo,
    WriteFailed,
    Written,
)

if TYPE_CHECKING:
    from wirekafka.log.log import Log

Request = Fetch | StopFetching | AskLatestOffset | AskEarliestOffset | BackOff
"""What the fetcher does. It reports the outcome by `FollowerReplica.handle`."""


Run = Callable[[Work[int]], int | Pending[Any]]
"""Runs work in slices, as `Slices.run` does: returns the result, or a Pending of it."""


class FollowerReplica:
    """A follower's replica of one partition.

    Args:
        log: the own log, which nobody else writes.
        back_off_ms: `replica.fetch.backoff.ms`.
        request: passes a request to the fetcher.
        now_ms: returns the time.

    Attributes:
        following: the state that decides.
    """

    def __init__(
        self, log: Log, *, back_off_ms: int, run: Run, request: Callable[[Request], object], now_ms: Callable[[], int]
    ) -> None:
        self.log = log
        self.following = Following(log.reader.end_offset_for_epoch, back_off_ms=back_off_ms)
        self._run = run
        self._request = request
        self._now_ms = now_ms
        self._appending: Pending[Any] | None = None

    def follow(self, leader_id: int | None, leader_epoch: int) -> None:
        """Follows a leader from now on.

        Args:
            leader_id: None if there is no leader, or its broker is not alive.
        """
        reader = self.log.reader
        latest_epoch = reader.epochs.latest
        self.handle(
            BecameFollower(
                leader_id, leader_epoch, reader.log_start_offset, reader.high_watermark, reader.log_end_offset, latest_epoch
            )
        )

    def handle(self, event: Event) -> None:
        """Takes an event, and executes what follows from it. If the log cannot be written, the follower stops."""
        effects = self.following.step(event, self._now_ms())
        if self._appending is not None and self.following.pending_append is None:
            self._end_append()
        try:
            for effect in effects:
                self._execute(effect)
        except KafkaError as error:
            self._report_failure(error.code)
        except Exception as error:  # noqa: BLE001 - other partitions are replicated
            log_once(error, "A follower could not write its log", partition=str(self.log.topic_partition))
            self._report_failure(ErrorCode.UNKNOWN_SERVER_ERROR)

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
                self.log.reader.advance_high_watermark(offset)
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
            case KafkaError(code=code):
                self._report_failure(code)
            case Exception():
                log_once(result, "A follower could not append", partition=str(self.log.topic_partition))
                self._report_failure(ErrorCode.UNKNOWN_SERVER_ERROR)
            case _:
                self._report_written()

    def _end_append(self) -> None:
        appending, self._appending = self._appending, None
        if appending is not None:
            appending.abandon()

    def _report_written(self) -> None:
        reader = self.log.reader
        self.handle(Written(reader.log_end_offset, reader.epochs.latest))

    def _report_failure(self, code: int) -> None:
        reader = self.log.reader
        self.handle(WriteFailed(ErrorCode(code), reader.log_end_offset, reader.epochs.latest))

    def close(self) -> None:
        """Ends an append, because the broker stops the replica."""
        self._end_append()
