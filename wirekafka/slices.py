"""Slices: long work on the broker's loop, run a few milliseconds at a time, so that no request delays the others.

A handler, or a part of the broker that works in the background, writes the work as a generator that yields wherever the work may
pause, and gives it to `Slices.run`. Other requests may change state between two yields, and each yield must leave the broker's
state consistent. The first slice runs at once: most work ends within it and is answered without any wait. The rest runs in turns
with other sliced work and with the other requests of the loop, one slice in each turn of the loop.

Work that needs no state of the broker and more than some 10 ms of CPU belongs in `Workers` instead.

Rules of this file:
    One slice of all sliced work together runs in a turn of the loop, whatever the number of requests. What follows from the end
    of a work, as the handler that gets its result and the first slice of that handler's work, belongs to the same slice.
    If the client of the work goes away, the work is closed at its current yield: its `finally` and `except GeneratorExit` blocks
    run. Work that outlives its client goes on to its end in slices instead, because to undo or to finish it at once would take
    long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from wirekafka.clock import Clock
from wirekafka.faults import isolate
from wirekafka.pending import Pending, Work

T = TypeVar("T")

SLICE_SECONDS = 0.003
"""The time that a slice may take. The step that exceeds this time is the last one of the slice. Between two slices the loop
serves other clients; such a turn of the loop costs 0.1 ms (2026-11)."""

FIRST_SLICE_SECONDS = 0.002

BUSY_COUNT = 4
"""While so much work is in progress, no further work should begin: each piece takes memory, and delays all others."""


class Slices:
    """The sliced work of one broker, oldest first.

    Args:
        clock: calls `Slices` for the next slice.
        seconds: returns the time by which slices are measured.
    """

    def __init__(self, clock: Clock, seconds: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = seconds
        self._waiting: deque[_Sliced] = deque()
        self._is_due = False
        self._slice_end: float | None = None
        """The end of the slice that runs now, by `seconds`; None between slices."""

    @property
    def is_busy(self) -> bool:
        """Whether so much work is in progress that no further work should begin."""
        return len(self._waiting) >= BUSY_COUNT

    def run(
        self,
        work: Work[T],
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        outlives_client: bool = False,
    ) -> T | Pending[Any]:
        """Runs the first slice of the work; returns the work's result or, if it takes longer, a Pending of it.

        An exception of a later slice is the result of the Pending. Work that must wait at its end returns a Pending, whose result
        is then the work's.

        Args:
            around: opens a block around each slice, for example one that syncs the slice's changes at its end.
            outlives_client: the work goes on if its client goes away.

        Raises:
            Exception: whatever the first slice raises.
        """
        # Small requests are finished here, without an object for remaining work.
        try:
            with around():
                try:
                    seconds, end = self._seconds, self._slice_end
                    if end is None:
                        end = seconds() + FIRST_SLICE_SECONDS
                    next(work)
                    while seconds() < end:
                        next(work)
                except StopIteration as ended:
                    result: T = ended.value
                    return result
        except Exception:
            work.close()
            raise
        sliced = _Sliced(work, around, outlives_client=outlives_client)
        self._waiting.append(sliced)
        self._call_again()
        return sliced.pending

    def close(self) -> None:
        """Closes all work at its current yield; no slice runs from now on."""
        waiting, self._waiting = self._waiting, deque()
        for sliced in waiting:
            with isolate("Work could not be ended when the broker was closed"):
                sliced.close()

    def _call_again(self) -> None:
        if not self._is_due and self._waiting:
            self._is_due = True
            self._clock.call_later(0, self._turn)

    def _turn(self) -> None:
        """Runs one slice of the oldest work, and puts the work last."""
        self._is_due = False
        if not self._waiting:
            return
        sliced = self._waiting.popleft()
        try:
            if sliced.is_over:
                return
            self._slice_end = self._seconds() + SLICE_SECONDS
            if not sliced.advance(self._seconds, self._slice_end):
                self._waiting.append(sliced)
                return
            try:
                result = sliced.result()
            except Exception as error:  # noqa: BLE001 - the reply of the request gets the error
                result = error
            sliced.pending.complete_with(result)
        finally:
            self._slice_end = None
            self._call_again()


def collect(items: Iterable[T]) -> Work[list[T]]:
    """Collects the items of an iterator, one in each step."""
    collected = []
    for item in items:
        collected.append(item)
        yield
    return collected


class _Sliced:
    """Work in progress, and the reply that waits for it."""

    __slots__ = ("_around", "_error", "_outlives_client", "_result", "_work", "pending")

    def __init__(self, work: Work[Any], around: Callable[[], AbstractContextManager[object]], *, outlives_client: bool) -> None:
        self._work = work
        self._around = around
        self._result: Any = None
        self._error: Exception | None = None
        self._outlives_client = outlives_client
        self.pending: Pending[Any] = Pending(on_abandon=None if outlives_client else self.close)

    @property
    def is_over(self) -> bool:
        """Whether the client has gone away, and the work with it."""
        return self.pending.is_done and not self._outlives_client

    def advance(self, seconds: Callable[[], float], end: float) -> bool:
        """Runs steps until `end`, at least one; returns whether the work has ended, with a result or an exception."""
        try:
            with self._around():
                try:
                    next(self._work)
                    while seconds() < end:
                        next(self._work)
                except StopIteration as ended:
                    self._result = ended.value
                    return True
        except Exception as error:  # noqa: BLE001 - `result` raises it
            self._error = error
            self.close()
            return True
        return False

    def result(self) -> Any:
        """Returns the result of the work, or raises the exception that it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def close(self) -> None:
        """Closes the work at its current yield."""
        self._work.close()
