"""Waiting for what another process does: polled, and never without a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02


def wait_until(condition: Callable[[], T], *, timeout_s: float, what: str, poll_s: float = POLL_S) -> T:
    """The first truthy value of `condition`.

    Raises:
        AssertionError: there was none in time; it names `what` and the last value.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}; last seen: {value!r}"
        time.sleep(poll_s)


def wait_while(condition: Callable[[], object], *, for_s: float, what: str, poll_s: float = POLL_S) -> None:
    """Sees that `condition` holds for the whole time.

    Raises:
        AssertionError: it did not.
    """
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert condition(), f"no longer: {what}"
        time.sleep(poll_s)
