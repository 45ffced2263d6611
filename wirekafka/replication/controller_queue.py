"""The queue of the controllers' requests: a broker executes them one after the other.

How it works: LeaderAndIsr, StopReplica and UpdateMetadata are work in steps, and a LeaderAndIsr may have to wait for the settings
of a topic. A controller whose connection has ended connects again and sends its next request, and a newer controller does not
wait for the older one. So requests of two connections may be in progress at once. The later request begins when the former one
has ended.

Rules of this file:
    A request that has begun is executed to its end, also if its connection ends. A request that has not begun is dropped if its
    connection ends: its controller gets no response, and sends the request again.
    The epochs of a request are checked when the request begins.

Source: kafka.server.ReplicaManager (replicaStateChangeLock).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol, TypeVar

from wirekafka.pending import Pending, Work

T = TypeVar("T")


class Runner(Protocol):
    """Runs work in slices, as `Slices` does."""

    def run(self, work: Work[Any], *, outlives_client: bool) -> Any:
        """Runs the work; returns its result, or a Pending of it."""


class ControllerQueue:
    """The requests of all controllers to one broker.

    Args:
        slices: runs the requests.
    """

    def __init__(self, slices: Runner) -> None:
        self._slices = slices
        self._waiting: dict[Work[Any], Pending[Any]] = {}
        """The requests that have not begun, oldest first, with their replies."""
        self._has_begun = False
        """Whether a request has begun that has not ended."""
        self._is_advancing = False

    def __len__(self) -> int:
        """Returns the number of the requests that have not begun."""
        return len(self._waiting)

    def run(self, work: Work[T | Pending[T]]) -> T | Pending[Any]:
        """Runs the work on a request once all former requests have ended; returns its result, or a Pending of it.

        An exception of work that did not begin at once is the result of the Pending.

        Raises:
            Exception: whatever the first slice raises, if the work begins at once.
        """
        if not self._has_begun and not self._waiting:
            result: T | Pending[Any] = self._begin(work)
            return result
        answer: Pending[Any] = Pending(on_abandon=partial(self._waiting.pop, work, None))
        self._waiting[work] = answer
        return answer

    def _begin(self, work: Work[Any]) -> Any:
        self._has_begun = True
        try:
            result = self._slices.run(work, outlives_client=True)
        except BaseException:
            self._has_begun = False
            raise
        if not isinstance(result, Pending):
            self._has_begun = False
            return result
        answer: Pending[Any] = Pending()
        result.then(partial(self._end, answer))
        return answer

    def _end(self, answer: Pending[Any], result: object) -> None:
        self._has_begun = False
        try:
            answer.complete(result)
        finally:
            self._advance()

    def _advance(self) -> None:
        """Begins the requests that wait, until one of them does not end at once."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._waiting and not self._has_begun:
                self._begin_next()
        finally:
            self._is_advancing = False

    def _begin_next(self) -> None:
        work = next(iter(self._waiting))
        answer = self._waiting.pop(work)
        try:
            result = self._begin(work)
        except Exception as error:  # noqa: BLE001 - the reply of the request gets the error
            result = error
        answer.complete_with(result)
