"""A reply that is not there yet: what a handler returns when it must wait.

Rules of this file: a `Pending` is completed once; whoever is late is ignored, so a deadline and the awaited event may race.
It has one consumer, who called `then`. All of it happens on the broker's one loop: there is no lock, and a callback runs
inside the call that completed it.

Source: org.apache.kafka.server.purgatory.DelayedOperation (completed exactly once, by whoever comes first).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Pending(Generic[T]):
    """A reply in the making.

    Args:
        on_abandon: called at most once, if the waiting side goes away before the reply is there; it lets go of timers and
            watch lists.
    """

    __slots__ = ("_callback", "_on_abandon", "_result", "is_done")

    def __init__(self, on_abandon: Callable[[], object] | None = None) -> None:
        self.is_done = False
        self._result: Any = None
        self._callback: Callable[[T], object] | None = None
        self._on_abandon = on_abandon

    def complete(self, result: T) -> bool:
        """Gives the reply; False if there was one already, or nobody waits any more."""
        if self.is_done:
            return False
        self.is_done = True
        self._result = result
        self._on_abandon = None
        if self._callback is not None:
            self._callback(result)
        return True

    def abandon(self) -> None:
        """The waiting side is gone: what would complete this may forget it."""
        if self.is_done:
            return
        self.is_done = True
        self._callback = None
        if self._on_abandon is not None:
            on_abandon, self._on_abandon = self._on_abandon, None
            on_abandon()

    def then(self, callback: Callable[[T], object]) -> None:
        """Names the one consumer; it is called at once if the reply is there already."""
        assert self._callback is None, "a pending reply has one consumer"
        self._callback = callback
        if self.is_done:
            callback(self._result)

    def map(self, function: Callable[[T], U]) -> Pending[U]:
        """A reply made from this one; abandoning it abandons this one."""
        mapped: Pending[U] = Pending(on_abandon=self.abandon)
        self.then(lambda result: mapped.complete(function(result)))
        return mapped
