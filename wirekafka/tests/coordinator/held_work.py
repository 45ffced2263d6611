"""Workers that run when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class HeldWork:
    """Attributes:
    waiting: what was submitted and has not run, with what to call with its result.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))

    def run(self) -> None:
        """Runs all work that waits, as `Workers` do: an exception is the result."""
        waiting, self.waiting = self.waiting, []
        for work, done in waiting:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - the result tells it
                result = error
            done(result)
