"""A Produce with acks=all whose records are appended and not yet committed.

How it works: the request waits in each partition for the commit of its last record (`Partition.on_commit`). The response
is sent when the wait in every partition has ended, with a commit or an error, or when the request's timeout has passed. The wait
needs no task.

Source: kafka.server.DelayedProduce, Partition.checkEnoughReplicasReachOffset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from wirekafka.clock import Clock
from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending
from wirekafka.replication.partition import CommitWait, Partition

OnFailure = Callable[[ErrorCode], object]
"""Called with the reason why a partition's records may not be committed. The records remain in the log."""


class Appended(NamedTuple):
    """Records of a Produce that are appended to a log.

    Attributes:
        end_offset: The offset after the last record.
        on_failure: Called if the response is sent before the records are committed.
    """

    partition: Partition
    end_offset: int
    on_failure: OnFailure


class DelayedProduce:
    """A Produce that waits for the commit of its records.

    Args:
        answer: Returns the response; it never raises.

    Attributes:
        pending: The response.
    """

    __slots__ = ("_answer", "_timer", "_waiting", "pending")

    def __init__(self, clock: Clock, *, timeout_ms: int, answer: Callable[[], Any]) -> None:
        self._answer = answer
        self._waiting: dict[int, tuple[OnFailure, CommitWait | None]] = {}
        self._timer = clock.call_later(max(timeout_ms, 0), self._time_out)
        self.pending: Pending[Any] = Pending(on_abandon=self._let_go)

    def wait_for(self, appended: Sequence[Appended]) -> None:
        """Waits until all these records are committed."""
        self._waiting = {number: (each.on_failure, None) for number, each in enumerate(appended)}
        for number, each in enumerate(appended):
            wait = each.partition.on_commit(each.end_offset, partial(self._note, number, each.partition))
            if number in self._waiting:
                self._waiting[number] = each.on_failure, wait
        # All records are appended, so the connection may handle its next Produce before the response to this one.
        self.pending.release_connection()

    def _note(self, number: int, partition: Partition, error: ErrorCode | None) -> None:
        on_failure, _ = self._waiting.pop(number)
        if error is None and not partition.has_enough_in_sync_replicas:
            error = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        if error is not None:
            on_failure(error)
        if not self._waiting:
            self._finish()

    def _time_out(self) -> None:
        for on_failure, _ in self._waiting.values():
            on_failure(ErrorCode.REQUEST_TIMED_OUT)
        self._finish()

    def _finish(self) -> None:
        self._let_go()
        self.pending.complete(self._answer())

    def _let_go(self) -> None:
        self._timer.cancel()
        for _, wait in self._waiting.values():
            if wait is not None:
                wait.cancel()
        self._waiting = {}
