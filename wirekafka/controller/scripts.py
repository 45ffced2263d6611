"""Scripts: the controller's work on ZooKeeper, written as generators that yield operations and receive their results.

A script yields one of these:

- an operation: the script receives its result, or the `ZooKeeperError` is raised at the yield;
- a list of operations, which go out one after the other without waiting: the script receives a list with the result or the
  `ZooKeeperError` of each, in the same order. No error is raised for them. The list may be long: it goes out in slices;
- `PAUSE`, wherever long work may pause, so that the loop serves others.

An exception of the client, which could not send an operation, is raised at the yield too.

Scripts know no loop. `run_script` runs one over a `ZooKeeperClient`; the broker and the simulation use it alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, TypeVar

from wirekafka.faults import isolate
from wirekafka.zookeeper.session import Operation, ZooKeeperClient

T = TypeVar("T")

PAUSE: Final = None
"""What a script yields where it may pause."""

Step = Operation[Any] | Sequence[Operation[Any]] | None
Script = Generator[Step, Any, T]
"""A script with a result of type T."""

SLICE_SECONDS = 0.003
"""How long a script runs without a pause if it yields `PAUSE` often enough."""

CallSoon = Callable[[Callable[[], object]], object]
"""Calls back in a later turn of the loop."""


def run_script(
    client: ZooKeeperClient,
    script: Script[T],
    end: Callable[[T | Exception], object],
    call_soon: CallSoon,
    seconds: Callable[[], float] = time.perf_counter,
) -> None:
    """Begins a script; its first step runs at once.

    Args:
        end: is called once, with the result or with the exception that the script has not handled, never inside this call's
            caller's turn before the first step.
        call_soon: calls back in a later turn of the loop.
        seconds: returns the time by which a slice is measured.
    """
    _Run(client, script, end, call_soon, seconds).begin()


class _Run:
    """A script in progress."""

    def __init__(
        self,
        client: ZooKeeperClient,
        script: Script[Any],
        end: Callable[[Any], object],
        call_soon: CallSoon,
        seconds: Callable[[], float],
    ) -> None:
        self._client = client
        self._script = script
        self._end = end
        self._call_soon = call_soon
        self._seconds = seconds

    def begin(self) -> None:
        """Runs the first slice."""
        self._advance(None)

    def _advance(self, received: Any) -> None:
        """Gives the script what it waits for, and runs it until it waits for ZooKeeper, pauses for others, or ends."""
        slice_end = self._seconds() + SLICE_SECONDS
        try:
            step = self._script.throw(received) if isinstance(received, Exception) else self._script.send(received)
            while step is PAUSE:
                if self._seconds() >= slice_end:
                    self._call_soon(lambda: self._advance(None))
                    return
                step = next(self._script)
        except StopIteration as ended:
            self._finish(ended.value)
        except Exception as error:  # noqa: BLE001 - the owner of the script handles it
            self._finish(error)
        else:
            self._submit(step)

    def _submit(self, step: Operation[Any] | Sequence[Operation[Any]]) -> None:
        if not isinstance(step, Operation):
            self._submit_together(step)
            return
        try:
            self._client.submit(step, self._advance)
        except Exception as error:  # noqa: BLE001 - the script, or else its owner, handles it
            failure = error
            self._call_soon(lambda: self._advance(failure))

    def _submit_together(self, step: Sequence[Operation[Any]]) -> None:
        if step:
            _Together(self._client, step, self._advance, self._call_soon, self._seconds).submit()
        else:
            self._call_soon(lambda: self._advance([]))

    def _finish(self, result: Any) -> None:
        with isolate("The end of the controller's work could not be handled"):
            self._end(result)


class _Together:
    """Operations that go out without waiting for each other.

    If the client cannot send one, no later one goes out, and the exception is the result, after the results of those before it.
    """

    def __init__(
        self,
        client: ZooKeeperClient,
        operations: Sequence[Operation[Any]],
        take: Callable[[list[Any] | Exception], object],
        call_soon: CallSoon,
        seconds: Callable[[], float],
    ) -> None:
        self._client = client
        self._operations = operations
        self._take = take
        self._call_soon = call_soon
        self._seconds = seconds
        self._submitted = 0
        self._results: list[Any] = []
        self._failure: Exception | None = None

    def submit(self) -> None:
        """Submits operations until all are on their way, or the slice ends."""
        slice_end = self._seconds() + SLICE_SECONDS
        while self._submitted < len(self._operations):
            try:
                self._client.submit(self._operations[self._submitted], self._note)
            except Exception as error:  # noqa: BLE001 - the script, or else its owner, handles it
                self._fail(error)
                return
            self._submitted += 1
            if self._seconds() >= slice_end:
                self._call_soon(self.submit)
                return

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        if len(self._results) == self._submitted:
            self._call_soon(lambda: self._take(failure))

    def _note(self, result: Any) -> None:
        # Operations complete in the order in which they were submitted.
        self._results.append(result)
        if len(self._results) == len(self._operations):
            self._take(self._results)
        elif self._failure is not None and len(self._results) == self._submitted:
            self._take(self._failure)


def in_slices(
    items: Iterable[T], is_wanted: Callable[[T], bool] = lambda item: True, count: int = 64
) -> Generator[None, Any, list[T]]:
    """Collects the items of an iterable that are wanted, with a pause after every `count` items.

    A generator that leaves out items itself would hold the loop until it has found `count` of them.
    """
    collected: list[T] = []
    for number, item in enumerate(items, 1):
        if is_wanted(item):
            collected.append(item)
        if number % count == 0:
            yield PAUSE
    return collected
