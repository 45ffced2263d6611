"""Measures how long the loop is held: the time in which no other task, timer or client is served.

How it works: a pass of trio's loop begins when its wait for descriptors and deadlines ends, runs each task that can run, and ends
when the loop waits again. An event during a pass waits until the end of the pass, so the length of passes is the lag. The driver
sleeps in a wait of its own (`idle.py`), which also ends a pass. Each pass costs two readings of the clock. Python's collections
of cyclic garbage stop all threads. They are part of the passes, and are also measured by themselves.

Rules of this file: a pass that is longer than `STALL_SECONDS` is logged, because all clients waited meanwhile.
"""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
import trio

log = structlog.get_logger(__name__)

BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
"""The upper bounds, inclusive, of the lengths by which passes are counted; longer passes are counted last."""

STALL_SECONDS = 0.5


FREEZE_AFTER_SECONDS = 0.01

OLDEST_GENERATION = 2
"""A collection of this generation visits all objects that are not frozen."""


class Collections:
    """Measures Python's collections of cyclic garbage in this process, and keeps them short.

    A full collection visits every object that Python tracks, 1.6 million in a broker with 500,000 producer ids. After a full
    collection of more than `FREEZE_AFTER_SECONDS`, all objects are frozen: later collections do not visit them. Reference counts
    still free frozen objects, but cycles of them are never freed. Therefore a small broker freezes nothing.

    Attributes:
        seconds: the time that all collections have taken.
        longest_seconds: the longest collection so far; a reader may set it to 0.
        freezes: objects are frozen after a long collection. Only a process that does nothing else sets this.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self.longest_seconds = 0.0
        self.freezes = False
        self._clock = clock
        self._begun: float | None = None

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measures the collections for as long as the block lasts."""
        gc.callbacks.append(self._note)
        try:
            yield
        finally:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        """Called by Python at the start and the end of each collection."""
        if phase == "start":
            self._begun = self._clock()
        elif self._begun is not None:
            seconds = self._clock() - self._begun
            self._begun = None
            self.seconds += seconds
            self.longest_seconds = max(self.longest_seconds, seconds)
            if self.freezes and seconds > FREEZE_AFTER_SECONDS and info["generation"] == OLDEST_GENERATION:
                gc.freeze()


class LoopLag(trio.abc.Instrument):
    """Measures the passes of a trio loop, of which it is an instrument.

    Attributes:
        longest_seconds: the longest pass so far; a reader may set it to 0.
        total_seconds: the time of all passes together.
        counts: the number of passes up to each of `BOUNDS_MS`, and of longer ones.
        collections: measures the collections of garbage.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.longest_seconds = 0.0
        self.total_seconds = 0.0
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.collections = Collections(clock)
        self._clock = clock
        self._begun: float | None = None
        self._collected = 0.0

    def begin(self) -> None:
        """Records the beginning of a pass."""
        self._begun = self._clock()
        self._collected = self.collections.seconds

    def end(self) -> None:
        """Records the end of a pass, if a pass has begun."""
        if self._begun is None:
            return
        seconds = self._clock() - self._begun
        self._begun = None
        self.counts[bisect_left(BOUNDS_MS, seconds * 1000)] += 1
        self.total_seconds += seconds
        if seconds > self.longest_seconds:
            self.longest_seconds = seconds
        if seconds > STALL_SECONDS:
            log.warning(
                "The loop was blocked: one piece of work took too long, or the machine paused",
                seconds=round(seconds, 3),
                collecting_garbage_seconds=round(self.collections.seconds - self._collected, 3),
            )

    def after_io_wait(self, timeout: float) -> None:
        """Called by trio."""
        self.begin()

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio."""
        self.end()
