"""Time: the wall clock in milliseconds, and timers, for everything that needs them.

Rules of this file: nobody else asks for the time, so that a test may run a broker under trio's MockClock and let a month of
retention pass in milliseconds. Timers are one heap and one task that sleeps until the first of them is due: a timer costs
an entry in the heap, not a task.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from itertools import count

import structlog
import trio

log = structlog.get_logger(__name__)


class Timer:
    """One call in the future; `cancel` makes it never happen.

    Attributes:
        due: when, by trio's clock, in seconds.
    """

    __slots__ = ("_callback", "due")

    def __init__(self, due: float, callback: Callable[[], object]) -> None:
        self.due = due
        self._callback: Callable[[], object] | None = callback

    @property
    def is_due_later(self) -> bool:
        """Neither fired nor cancelled yet."""
        return self._callback is not None

    def cancel(self) -> None:
        """Never calls; does nothing if it has called already."""
        self._callback = None

    def fire(self) -> None:
        """Calls now, unless cancelled or called before."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Clock:
    """The wall clock and the timers of one broker.

    Args:
        wall: seconds since the Unix epoch; `time.time` unless a test brings its own.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._timers: list[tuple[float, int, Timer]] = []
        self._tick = count()
        self._wake: trio.CancelScope | None = None

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return int(self._wall() * 1000)

    def monotonic_ms(self) -> int:
        """Milliseconds since nobody knows when, by the clock of the timers, which never jumps."""
        return int(trio.current_time() * 1000)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Calls back on the broker's loop once `delay_ms` milliseconds have passed, by trio's clock."""
        due = trio.current_time() + delay_ms / 1000
        timer = Timer(due, callback)
        is_first = not self._timers or due < self._timers[0][0]
        heapq.heappush(self._timers, (due, next(self._tick), timer))
        if is_first and self._wake is not None:
            self._wake.cancel()
        return timer

    def postpone(self, timer: Timer, delay_ms: float) -> bool:
        """Makes a timer call `delay_ms` milliseconds from now instead; False if that is not later, or it is not set any more.

        What is put off again and again, as a member's session is by each heartbeat, stays one entry in the heap: it moves only
        when its former time comes.
        """
        due = trio.current_time() + delay_ms / 1000
        if due < timer.due or not timer.is_due_later:
            return False
        timer.due = due
        return True

    async def run(self) -> None:
        """Fires timers until cancelled. One task a broker runs this.

        Cancellation: timers that are not due are dropped.
        """
        while True:
            deadline = self._timers[0][0] if self._timers else float("inf")
            with trio.CancelScope(deadline=deadline) as self._wake:
                await trio.sleep_forever()
            self._wake = None
            self._fire_due()

    def _fire_due(self) -> None:
        now = trio.current_time()
        while self._timers and (self._timers[0][0] <= now or not self._timers[0][2].is_due_later):
            _, _, timer = heapq.heappop(self._timers)
            if timer.due > now and timer.is_due_later:
                heapq.heappush(self._timers, (timer.due, next(self._tick), timer))
                continue
            try:
                timer.fire()
            except Exception:
                log.exception("a timer failed")
