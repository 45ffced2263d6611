"""A thread with a trio loop, in which a program that does not run on trio keeps something open."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

import trio

T = TypeVar("T")
U = TypeVar("U")


class LoopThread(Generic[T]):
    """Opens a thing in a loop of its own, and lets other threads call functions there.

    Args:
        what: the name of the thing, for errors.
        open_it: returns the context in which the thing is open.
        clock: the clock of the loop; that of the machine if it is None.
    """

    def __init__(
        self, what: str, open_it: Callable[[], AbstractAsyncContextManager[T]], clock: trio.abc.Clock | None = None
    ) -> None:
        self._what = what
        self._open_it = open_it
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._opened: T | None = None
        self._ended: Future[None] = Future()

    @property
    def is_running(self) -> bool:
        """Whether `start` was called, and `stop` was not."""
        return self._thread is not None

    def start(self) -> None:
        """Opens the thing, and returns once it is open.

        Raises:
            ValueError: it is open already.
            Exception: what opening it raises.
        """
        if self._thread is not None:
            raise ValueError(f"the {self._what} runs already")
        ready: Future[None] = Future()
        self._ended = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name=f"wirekafka {self._what}", daemon=True)
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            # After an interrupt the thread still opens the thing, and finds out that nobody waits for it.
            if not ready.cancel() and ready.exception() is None:
                self._ask_to_stop()
            self._thread.join()
            self._thread = None
            raise

    def stop(self) -> None:
        """Closes the thing, and returns once it is closed; does nothing if it is not open.

        Raises:
            Exception: what has ended it before, such as a failed disk.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ask_to_stop()
        thread.join()
        self._opened = self._token = self._stop = None
        self._ended.result()

    def _ask_to_stop(self) -> None:
        if self._token is not None and self._stop is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)

    def call(self, method: Callable[..., Awaitable[U]], *args: Any) -> U:
        """Calls an async function in the loop, with the thing as its first argument; returns its result.

        Raises:
            ValueError: the thing is not open.
            Exception: what the function raises.
        """
        if self._thread is None or self._opened is None:
            raise ValueError(f"the {self._what} does not run: use it in a with-block, or call start()")
        try:
            return trio.from_thread.run(method, self._opened, *args, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            self._ended.result()
            raise ValueError(f"the {self._what} has stopped") from None

    def _run(self, ready: Future[None]) -> None:
        try:
            trio.run(self._serve, ready, clock=self._clock)
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            (self._ended if ready.done() else ready).set_exception(error)
        if not self._ended.done():
            self._ended.set_result(None)

    async def _serve(self, ready: Future[None]) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        async with self._open_it() as self._opened:
            ready.set_result(None)
            await self._stop.wait()
