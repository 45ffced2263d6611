"""The timers of groups. Steps of the coordinator set and cancel them; a key has at most one timer.

Rules of this file:
    Invariant: `_armed` has a key if and only if the timer of the key is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from wirekafka.coordinator.effects import InitialJoinExpired, SetTimer, TimerEvent, TimerKey

if TYPE_CHECKING:
    from wirekafka.clock import Clock, Timer


class _Armed(NamedTuple):
    timer: Timer
    event: TimerEvent


class GroupTimers:
    """The timers of all groups.

    Args:
        on_timer: Called with the event of a timer when the timer is due.
    """

    def __init__(self, clock: Clock, on_timer: Callable[[TimerEvent], object]) -> None:
        self._clock = clock
        self._on_timer = on_timer
        self._armed: dict[TimerKey, _Armed] = {}

    def __len__(self) -> int:
        return len(self._armed)

    def apply(self, changes: Iterable[SetTimer | TimerKey]) -> None:
        """Sets the timer of each `SetTimer`, and cancels the timer of each `TimerKey`."""
        for change in changes:
            if not isinstance(change, SetTimer):
                armed = self._armed.pop(change, None)
                if armed is not None:
                    armed.timer.cancel()
                continue
            armed = self._armed.get(change.key)
            if armed is None:
                self._set(change)
            elif not change.is_first:
                is_same = armed.event is change.event or armed.event == change.event
                if not is_same or not self._clock.postpone(armed.timer, change.delay_ms):
                    armed.timer.cancel()
                    self._set(change)

    def _set(self, change: SetTimer) -> None:
        # The initial wait of a new group penalizes no client, so it needs no grace after a pause. All other timers do.
        is_wait = isinstance(change.event, InitialJoinExpired)
        set_timer = self._clock.call_later if is_wait else self._clock.expire_later
        timer = set_timer(change.delay_ms, partial(self._fire, change.key, change.event))
        self._armed[change.key] = _Armed(timer, change.event)

    def _fire(self, key: TimerKey, event: TimerEvent) -> None:
        del self._armed[key]
        self._on_timer(event)
