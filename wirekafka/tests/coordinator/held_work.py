"""Workers that run when a test calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wirekafka.errors import ErrorCode, KafkaError


class HeldWork:
    """Attributes:
    waiting: the submitted work that has not run, with the callback for its result.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))

    def run(self) -> None:
        """Runs all waiting work as `Workers` do: an exception becomes the result."""
        waiting, self.waiting = self.waiting, []
        for work, done in waiting:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - the result tells it
                result = error
            done(result)

    def refuse(self) -> None:
        """Refuses all waiting work as `Workers` do with a full queue."""
        waiting, self.waiting = self.waiting, []
        for _, done in waiting:
            done(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the queue is full"))
