"""Time: the wall clock in milliseconds, and timers, for everything that needs them.

How it works: timers are one heap and one task that sleeps until the first of them is due: a timer costs an entry in the
heap, not a task. A postponed timer moves in the heap only when its former time comes. A cancelled timer is removed when its time
comes, or when half of the timers in the heap are cancelled.

A process may pause for longer than a session lasts: a signal or a debugger stops it, or the machine is too busy. The requests of
its clients wait in their sockets, and the timers that expire these clients are due all at once. `expire_later` sets such timers.
When the task of the timers wakes `LATE_SECONDS` too late, the process has paused, and the task delays each expiry timer once, by
`GRACE_SECONDS`. The task checks each expiry timer some time before the timer is due, so that it also detects a pause that ends
at the moment when the timer is due.

Rules of this file:
    No other module reads the time, so that a test can run a broker under trio's MockClock and let a month of retention pass in
    milliseconds.
    Invariant: `_cancelled_count` is the number of timers in the heap that are cancelled.

Differs from Apache Kafka:
    After a pause of the process, no session, rebalance, transaction or lock on records expires for one second, in which the
    broker handles the requests that wait. In Apache Kafka the thread of the timers races with the network threads, and members
    are removed.

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
"""The task of the timers wakes this late only after a pause of the process; a busy loop runs its tasks more often."""

GRACE_SECONDS = 1.0
"""Long enough for a heartbeat of each of 10,000 members, at 60 us, and for clients that paused together with the broker."""

LEAST_CANCELLED = 64


class Timer:
    """One call in the future; `cancel` prevents the call.

    Attributes:
        due: the time of the call, in seconds of trio's clock.
        lead: the clock looks at the timer so many seconds before it is due; 0 for a timer that fires however late the clock is.
        was_held: the timer was due after a pause of the process, and got its grace.
        is_due_later: the timer has neither fired nor been cancelled.
    """

    __slots__ = ("_callback", "_clock", "due", "is_due_later", "lead", "was_held")

    def __init__(self, clock: Clock, due: float, lead: float, callback: Callable[[], object]) -> None:
        self.due = due
        self.lead = lead
        self.was_held = False
        self.is_due_later = True
        self._clock = clock
        self._callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Prevents the call; does nothing if the timer has fired."""
        if self.is_due_later:
            self.is_due_later = False
            self._callback = None
            self._clock.note_cancelled()

    def fire(self) -> None:
        """Calls back now, unless the timer was cancelled or has fired. An exception of the callback is logged."""
        callback, self._callback = self._callback, None
        self.is_due_later = False
        if callback is None:
            return
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - one timer must not end the task of all timers
            log_once(error, "A timer failed", callback=getattr(callback, "__qualname__", repr(callback)))


class Clock:
    """The wall clock and the timers of one broker.

    Args:
        wall: returns the seconds since the Unix epoch; `time.time` except in tests.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._seconds: Callable[[], float] = trio.current_time
        """Returns the time of trio's clock; `run` replaces it by the clock's own method, which takes a third of the time."""
        self._timers: list[tuple[float, int, Timer]] = []
        self._cancelled_count = 0
        self._tick = count()
        self._wake: trio.CancelScope | None = None
        self._held_until = float("-inf")
        self._has_jumped = False

    def now_ms(self) -> int:
        """Returns the milliseconds since the Unix epoch."""
        return int(self._wall() * 1000)

    def monotonic_ms(self) -> int:
        """Returns the milliseconds of the clock of the timers, which has no fixed origin and never jumps."""
        return int(self._seconds() * 1000)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Calls back on the broker's loop once `delay_ms` milliseconds have passed, by trio's clock."""
        return self._set(delay_ms, 0.0, callback)

    def expire_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Calls back after `delay_ms` milliseconds without a `postpone` or a `cancel`.

        Used to expire clients that send nothing: after a pause of the process, each timer gets a grace of `GRACE_SECONDS`.
        """
        return self._set(delay_ms, _lead(delay_ms), callback)

    def postpone(self, timer: Timer, delay_ms: float) -> bool:
        """Makes a timer call back `delay_ms` milliseconds from now instead.

        A timer that is postponed often, as each heartbeat postpones the member's session, stays one entry in the heap. The entry
        moves only when its former time comes.

        Returns:
            False if the new time is earlier, or if the timer has fired or was cancelled; nothing has changed then.
        """
        due = self._seconds() + delay_ms / 1000
        if due < timer.due or not timer.is_due_later:
            return False
        timer.due = due
        timer.was_held = False
        return True

    def note_cancelled(self) -> None:
        """Counts a cancelled timer in the heap, and removes all of them once they are more than half of the heap."""
        self._cancelled_count += 1
        if self._cancelled_count >= LEAST_CANCELLED and 2 * self._cancelled_count > len(self._timers):
            # In place, because `_fire_due` may be reading the list.
            self._timers[:] = [entry for entry in self._timers if entry[2].is_due_later]
            heapq.heapify(self._timers)
            self._cancelled_count = 0

    def note_jump(self) -> None:
        """Is called after a test has moved trio's clock forward: the timers that are due now fire as if there was no pause."""
        self._has_jumped = True
        if self._wake is not None:
            self._wake.cancel()

    async def run(self) -> None:
        """Fires timers until cancelled. One task of each broker runs this.

        Cancellation: the remaining timers never fire.
        """
        self._seconds = trio.lowlevel.current_clock().current_time
        while True:
            deadline = self._timers[0][0] if self._timers else float("inf")
            with trio.CancelScope(deadline=deadline) as self._wake:
                await trio.sleep_forever()
            self._wake = None
            self._fire_due()

    def _set(self, delay_ms: float, lead: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(self, self._seconds() + delay_ms / 1000, lead, callback)
        self._push(timer.due - lead, timer)
        return timer

    def _push(self, when: float, timer: Timer) -> None:
        is_first = not self._timers or when < self._timers[0][0]
        heapq.heappush(self._timers, (when, next(self._tick), timer))
        if is_first and self._wake is not None:
            self._wake.cancel()

    def _fire_due(self) -> None:
        now = self._seconds()
        if self._timers and now - self._timers[0][0] > LATE_SECONDS and not self._has_jumped:
            self._held_until = now + GRACE_SECONDS
        self._has_jumped = False
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
        """Returns the time of the next look at a timer; None if the timer fires now."""
        for when in (timer.due - timer.lead, timer.due):
            if when > now:
                return when
        if timer.lead and now < self._held_until and not timer.was_held:
            timer.was_held = True
            return self._held_until
        return None


def _lead(delay_ms: float) -> float:
    return min(GRACE_SECONDS, max(delay_ms, 0.0) / 2000)
