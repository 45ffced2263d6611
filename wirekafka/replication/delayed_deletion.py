"""A DeleteRecords that waits until its records are deleted on all live replicas.

How it works: the request waits in each leader until the low watermark, the least log start offset of the live replicas, has
reached its offset. The response is sent when the wait in every partition has ended, or when the timeout has passed.

Source: kafka.server.DelayedDeleteRecords.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending

if TYPE_CHECKING:
    from wirekafka.replication.leader_replica import LeaderReplica
    from wirekafka.replication.partition import CommitWait
    from wirekafka.replication.replica_fetcher import Timers

NO_LOW_WATERMARK = -1


class Result(Protocol):
    """The answer for one partition."""

    low_watermark: int
    error_code: int


Deleted = tuple["LeaderReplica", int, Result]
"""The leader of a partition, the offset before which its records are deleted, and the answer."""


class DelayedDeletion:
    """A DeleteRecords that waits for the followers.

    Args:
        response: the response with the answers.

    Attributes:
        pending: the response.
    """

    __slots__ = ("_response", "_timer", "_waiting", "pending")

    def __init__(self, clock: Timers, *, timeout_ms: int, response: Any) -> None:
        self._response = response
        self._waiting: dict[int, tuple[Result, CommitWait | None]] = {}
        self._timer = clock.call_later(max(timeout_ms, 0), self._time_out)
        self.pending: Pending[Any] = Pending(on_abandon=self._let_go)

    def wait_for(self, deleted: Sequence[Deleted]) -> None:
        """Waits until no live replica has the deleted records."""
        self._waiting = {number: (result, None) for number, (_, _, result) in enumerate(deleted)}
        for number, (leader, offset, result) in enumerate(deleted):
            low_watermark = leader.low_watermark
            result.low_watermark = NO_LOW_WATERMARK if low_watermark is None else low_watermark
            wait = leader.on_deletion(offset, partial(self._note, number, leader))
            if number in self._waiting:
                self._waiting[number] = result, wait

    def _note(self, number: int, leader: LeaderReplica, error: ErrorCode | None) -> None:
        result, _ = self._waiting.pop(number)
        low_watermark = leader.low_watermark if error is None else None
        result.low_watermark = NO_LOW_WATERMARK if low_watermark is None else low_watermark
        result.error_code = ErrorCode.NONE if error is None else error
        if not self._waiting:
            self._finish()

    def _time_out(self) -> None:
        for result, _ in self._waiting.values():
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._finish()

    def _finish(self) -> None:
        self._let_go()
        self.pending.complete(self._response)

    def _let_go(self) -> None:
        self._timer.cancel()
        for _, wait in self._waiting.values():
            if wait is not None:
                wait.cancel()
        self._waiting = {}
