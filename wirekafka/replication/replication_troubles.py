"""Says in the log why partitions are not replicated: one line for each reason, however many partitions it concerns.

How it works: the thousands of partitions of a leader, or of a topic that was just deleted, have the same trouble. The reasons are
collected for `DELAY_MS` and then logged, each with the number of the partitions and the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

DELAY_MS = 1_000

MOST_NAMED = 10
"""The most partitions that a line of the log names."""


class Timer(Protocol):
    """One call in the future."""

    def cancel(self) -> None:
        """Prevents the call."""


class Timers(Protocol):
    """Calls in the future."""

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Calls back once."""


@dataclass(slots=True)
class _Trouble:
    """What the partitions of one line have in common."""

    count: int = 0
    first: list[str] = field(default_factory=list)


class ReplicationTroubles:
    """The reasons that are not logged yet."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._timer: Timer | None = None
        self._troubles: dict[tuple[str, bool], _Trouble] = {}

    def note(self, partition: str, reason: str, *, tries_again: bool) -> None:
        """Takes the reason why a partition is not replicated, which is logged soon."""
        trouble = self._troubles.setdefault((reason, tries_again), _Trouble())
        trouble.count += 1
        if trouble.count <= MOST_NAMED:
            trouble.first.append(partition)
        if self._timer is None:
            self._timer = self._timers.call_later(DELAY_MS, self.flush)

    def flush(self) -> None:
        """Logs the reasons now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        troubles, self._troubles = self._troubles, {}
        for (reason, tries_again), trouble in troubles.items():
            log.warning(
                "Partitions are not replicated",
                count=trouble.count,
                first=trouble.first,
                reason=reason,
                tries_again=tries_again,
            )
