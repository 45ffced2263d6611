"""Replies that a handler returns when it must wait, and completes later.

Rules of this file:
    A `Pending` is completed once; later completions are ignored, so a deadline and the awaited event may race.
    It has one consumer, the caller of `then`. Everything runs on the broker's one loop: there is no lock, and a callback
    runs inside the call that completed the reply.

Source: org.apache.kafka.server.purgatory.DelayedOperation (completed exactly once, by the first caller).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

Work = Generator[None, None, T]
"""Long work in steps. Other requests may be handled between two steps. The return value is the result. `slices` runs the work."""


class Pending(Generic[T]):
    """A reply that is not complete yet.

    Attributes:
        is_done: the reply is complete, or the consumer has abandoned it.
        holds_connection: no further request of the connection is handled before this reply is complete. `release_connection`
            makes it False.

    Args:
        on_abandon: called at most once, if the consumer abandons the reply before it is complete. It cancels timers and removes
            the reply from watch lists.
    """

    __slots__ = ("_callback", "_on_abandon", "_on_release", "_result", "holds_connection", "is_done")

    def __init__(self, on_abandon: Callable[[], object] | None = None) -> None:
        self.is_done = False
        self.holds_connection = True
        self._result: Any = None
        self._callback: Callable[[T], object] | None = None
        self._on_abandon = on_abandon
        self._on_release: Callable[[], object] | None = None

    def complete(self, result: T) -> bool:
        """Completes the reply; returns False if it is complete already, or the consumer has abandoned it."""
        if self.is_done:
            return False
        self.is_done = True
        self._result = result
        self._on_abandon = self._on_release = None
        if self._callback is not None:
            self._callback(result)
        return True

    def abandon(self) -> None:
        """Ends the wait without a reply, because the consumer no longer needs it."""
        if self.is_done:
            return
        self.is_done = True
        self._callback = self._on_release = None
        if self._on_abandon is not None:
            on_abandon, self._on_abandon = self._on_abandon, None
            on_abandon()

    def release_connection(self) -> None:
        """Lets the connection handle further Produce requests before this reply is complete; the replies keep their order.

        A Produce calls this after its records are appended, when it waits for their commit only.
        """
        if self.is_done or not self.holds_connection:
            return
        self.holds_connection = False
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()

    def then(self, callback: Callable[[T], object], on_release: Callable[[], object] | None = None) -> None:
        """Sets the one consumer.

        Args:
            callback: called with the reply, at once if the reply is complete already.
            on_release: called once if the connection is released after this call and before the reply is complete.
        """
        assert self._callback is None, "a pending reply has one consumer"
        self._callback = callback
        if self.is_done:
            callback(self._result)
        elif self.holds_connection:
            self._on_release = on_release

    def map(self, function: Callable[[T], U | Pending[U]]) -> Pending[U]:
        """Returns a reply made from this one. It holds the connection as this one does, and abandoning it abandons this one.

        Args:
            function: returns the new reply, or a Pending of it.
        """
        mapped: Pending[U] = Pending(on_abandon=self.abandon)
        mapped.holds_connection = self.holds_connection

        self.then(lambda result: mapped.complete_with(function(result)), mapped.release_connection)
        return mapped

    def complete_with(self, reply: T | Pending[T]) -> None:
        """Gives the reply, or the reply that another Pending gives; then abandoning this one abandons the other one."""
        if not isinstance(reply, Pending):
            self.complete(reply)
            return
        if self.is_done:
            reply.abandon()
            return
        self._on_abandon = reply.abandon
        reply.then(self.complete, self.release_connection)


def finish(work: Work[T]) -> T:
    """Runs all steps of the work at once, and returns its result.

    Raises:
        Exception: whatever the work raises.
    """
    try:
        while True:
            next(work)
    except StopIteration as ended:
        result: T = ended.value
        return result
