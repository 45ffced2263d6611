"""A Produce with acks=all whose records are appended and not yet committed.

Theory of operation: the request waits in each partition for the offset after its last record (`Partition.on_commit`), counts the
partitions down, and is answered when the last of them is committed, is lost, or the request's timeout is over. It costs no task.

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
"""Told why a partition's records may not be committed; they are appended all the same."""


class Appended(NamedTuple):
    """Records of a Produce that are in a log.

    Attributes:
        end_offset: the offset after the last of them.
        on_failure: told why they may not be committed, if the request is answered before they are.
    """

    partition: Partition
    end_offset: int
    on_failure: OnFailure


class DelayedProduce:
    """A Produce that waits for the commit of its records.

    Args:
        answer: makes the response; it never raises.

    Attributes:
        pending: the reply.
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
        # All records are appended, so the next Produce of the connection may be handled before this one is answered.
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
