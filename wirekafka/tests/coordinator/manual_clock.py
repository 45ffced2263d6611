"""A clock that a test moves by hand: the wall clock, and timers that fire when the test passes their due times."""

from __future__ import annotations

from collections.abc import Callable


class ManualTimer:
    def __init__(self, due_ms: float, callback: Callable[[], object]) -> None:
        self.due_ms = due_ms
        self.callback: Callable[[], object] | None = callback

    @property
    def is_due_later(self) -> bool:
        return self.callback is not None

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """Replaces `wirekafka.clock.Clock` in a test without an event loop. Timers with the same due time fire in their order."""

    def __init__(self, now_ms: int) -> None:
        self.time_ms = now_ms
        self._timers: list[ManualTimer] = []

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> ManualTimer:
        timer = ManualTimer(self.time_ms + delay_ms, callback)
        self._timers.append(timer)
        return timer

    expire_later = call_later

    def postpone(self, timer: ManualTimer, delay_ms: float) -> bool:
        if self.time_ms + delay_ms < timer.due_ms or not timer.is_due_later:
            return False
        timer.due_ms = self.time_ms + delay_ms
        return True

    def pass_time(self, ms: int) -> None:
        """Fires the timers that are due, each at its own time."""
        end_ms = self.time_ms + ms
        while True:
            self._timers = [timer for timer in self._timers if timer.is_due_later]
            timer = min(self._timers, key=lambda each: each.due_ms, default=None)
            if timer is None or timer.due_ms > end_ms:
                break
            self.time_ms = max(self.time_ms, int(timer.due_ms))
            callback, timer.callback = timer.callback, None
            assert callback is not None
            callback()
        self.time_ms = end_ms

    def drop_timers(self) -> None:
        """Cancels all timers, as the end of the process does."""
        self._timers = []
