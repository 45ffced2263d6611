"""Waits for the effects of other processes: by polling, and always with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02


def wait_until(condition: Callable[[], T], *, timeout_s: float, what: str, poll_s: float = POLL_S) -> T:
    """Returns the first truthy value of `condition`.

    Raises:
        AssertionError: no value was truthy in time; the message has `what` and the last value.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}; last seen: {value!r}"
        time.sleep(poll_s)


def wait_while(condition: Callable[[], object], *, for_s: float, what: str, poll_s: float = POLL_S) -> None:
    """Checks that `condition` holds for the whole time.

    Raises:
        AssertionError: the condition did not hold.
    """
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert condition(), f"no longer: {what}"
        time.sleep(poll_s)
