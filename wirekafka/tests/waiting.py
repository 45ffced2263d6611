"""Waits for a thread, for which trio has no event."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

DEADLINE_SECONDS = 20.0


async def until(condition: Callable[[], object], *, poll_seconds: float = 0.001) -> None:
    """Waits until the condition holds.

    The deadline is of real time: a thread takes real time, however fast a `MockClock` runs.

    Args:
        condition: the effect of a thread, or of a task that a thread wakes.
        poll_seconds: how far the trio clock advances between two checks.

    Raises:
        AssertionError: the condition did not hold in time.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS} s"
        await trio.sleep(poll_seconds)
