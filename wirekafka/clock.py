"""Time: the wall clock in milliseconds, and timers, for everything that needs them.

Theory of operation: timers are one heap and one task that sleeps until the first of them is due: a timer costs an entry in the
heap, not a task. A timer that is put off moves in the heap only when its former time comes; one that is cancelled goes when its
time comes, or when half of the heap is like it.

A process may stand still for longer than a session lasts: stopped by a signal or a debugger, or its machine too busy. What
clients have sent meanwhile waits in their sockets, and some of these clients stood still as well; the timers that would call
them dead are due all at once. Such a timer is set by `expire_later`. The task that comes `LATE_SECONDS` too late for any timer
knows that time was lost, and for `GRACE_SECONDS` fires none of them, each once. To know it in time, it looks at each of them
that long before it is due: a loss that ends in the very moment in which it is due has begun before.

Rules of this file:
    Nobody else asks for the time, so that a test may run a broker under trio's MockClock and let a month of retention pass in
    milliseconds.
    Invariant: `_cancelled_count` is the number of timers in the heap that are cancelled.

Differs from Apache Kafka:
    After the broker has stood still, as a process that is stopped and continued does, no session, rebalance, transaction or
    lock on records runs out for a second, in which the requests that wait are handled. In Apache Kafka the thread of the timers
    races with those that read, and members are taken for dead.

Source: org.apache.kafka.server.util.timer.SystemTimer.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from itertools import count

import trio

from wirekafka.faults import log_once

LATE_SECONDS = 0.25
"""Who wakes so late has lost time; a loop that is only busy lets its tasks run more often."""

GRACE_SECONDS = 1.0
"""Enough for a heartbeat of each of 10,000 members, at 60 us, and for clients that come back to life along with the broker."""

LEAST_CANCELLED = 64


class Timer:
    """One call in the future; `cancel` makes it never happen.

    Attributes:
        due: when, by trio's clock, in seconds.
        lead: so long before it is due it is looked at; 0 for a timer that fires however late it is.
        was_held: it was due, and put off because time had been lost.
    """

    __slots__ = ("_callback", "_clock", "due", "lead", "was_held")

    def __init__(self, clock: Clock, due: float, lead: float, callback: Callable[[], object]) -> None:
        self.due = due
        self.lead = lead
        self.was_held = False
        self._clock = clock
        self._callback: Callable[[], object] | None = callback

    @property
    def is_due_later(self) -> bool:
        """Neither fired nor cancelled yet."""
        return self._callback is not None

    def cancel(self) -> None:
        """Never calls; does nothing if it has called already."""
        if self._callback is not None:
            self._callback = None
            self._clock.note_cancelled()

    def fire(self) -> None:
        """Calls now, unless cancelled or called before. An exception of the callback is logged: it costs this timer alone."""
        callback, self._callback = self._callback, None
        if callback is None:
            return
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - one timer must not end the task of all timers
            log_once(error, "A timer failed", callback=getattr(callback, "__qualname__", repr(callback)))


class Clock:
    """The wall clock and the timers of one broker.

    Args:
        wall: seconds since the Unix epoch; `time.time` unless a test brings its own.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._timers: list[tuple[float, int, Timer]] = []
        self._cancelled_count = 0
        self._tick = count()
        self._wake: trio.CancelScope | None = None
        self._held_until = float("-inf")

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return int(self._wall() * 1000)

    def monotonic_ms(self) -> int:
        """Milliseconds since nobody knows when, by the clock of the timers, which never jumps."""
        return int(trio.current_time() * 1000)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Calls back on the broker's loop once `delay_ms` milliseconds have passed, by trio's clock."""
        return self._set(delay_ms, 0.0, callback)

    def expire_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Calls back once nobody has postponed or cancelled it for `delay_ms` milliseconds, though they could have.

        For what a client loses that has not been heard of in time: if the broker itself stood still, the client gets a grace.
        """
        return self._set(delay_ms, _lead(delay_ms), callback)

    def postpone(self, timer: Timer, delay_ms: float) -> bool:
        """Makes a timer call `delay_ms` milliseconds from now instead; False if that is not later, or it is not set any more.

        What is put off again and again, as a member's session is by each heartbeat, stays one entry in the heap: it moves only
        when its former time comes.
        """
        due = trio.current_time() + delay_ms / 1000
        if due < timer.due or not timer.is_due_later:
            return False
        timer.due = due
        timer.was_held = False
        return True

    def note_cancelled(self) -> None:
        """A timer in the heap was cancelled: once they are the most of it, they go."""
        self._cancelled_count += 1
        if self._cancelled_count >= LEAST_CANCELLED and 2 * self._cancelled_count > len(self._timers):
            # In place, for `_fire_due` may be at it.
            self._timers[:] = [entry for entry in self._timers if entry[2].is_due_later]
            heapq.heapify(self._timers)
            self._cancelled_count = 0

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

    def _set(self, delay_ms: float, lead: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(self, trio.current_time() + delay_ms / 1000, lead, callback)
        self._push(timer.due - lead, timer)
        return timer

    def _push(self, when: float, timer: Timer) -> None:
        is_first = not self._timers or when < self._timers[0][0]
        heapq.heappush(self._timers, (when, next(self._tick), timer))
        if is_first and self._wake is not None:
            self._wake.cancel()

    def _fire_due(self) -> None:
        now = trio.current_time()
        if self._timers and now - self._timers[0][0] > LATE_SECONDS:
            self._held_until = now + GRACE_SECONDS
        while self._timers and (self._timers[0][0] <= now or not self._timers[0][2].is_due_later):
            _, _, timer = heapq.heappop(self._timers)
            if not timer.is_due_later:
                self._cancelled_count -= 1
                continue
            when = self._next_look(timer, now)
            if when is not None:
                self._push(when, timer)
                continue
            timer.fire()

    def _next_look(self, timer: Timer, now: float) -> float | None:
        """When to look at a timer again that was looked at now; None if it is to fire."""
        for when in (timer.due - timer.lead, timer.due):
            if when > now:
                return when
        if timer.lead and now < self._held_until and not timer.was_held:
            timer.was_held = True
            return self._held_until
        return None


def _lead(delay_ms: float) -> float:
    return min(GRACE_SECONDS, max(delay_ms, 0.0) / 2000)
