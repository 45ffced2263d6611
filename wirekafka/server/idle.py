"""The sleep of the epoll driver: a wait outside trio's loop if no other task can run, otherwise an ordinary wait in trio's loop.

How it works: a task that awaits a descriptor goes to sleep and wakes through trio's scheduler, loop and epoll. With cold
caches that takes 90 us of CPU; a process that waits in an epoll of its own takes 50 us (2026-11). A broker with few clients pays
this for each request. If no other task can run, trio's loop would also sleep until a descriptor is ready or a deadline comes. So
the driver's task waits for both its own epoll and trio's epoll. If its own epoll is ready, the task continues without a turn of
trio's loop.

Rules of this file:
    The driver does not wait here while another task is runnable (an instrument keeps the runnable tasks), while a test waits for
    idleness, in guest mode, or with a clock that jumps.
    Every other event ends the wait, and trio's loop runs: a descriptor, a deadline, and, through descriptors, a signal or a call
    from another thread.
    The state of trio's loop that this file reads is not public. If it is not found, the driver sleeps as any other task does.
"""

from __future__ import annotations

import select
from math import ceil, inf
from typing import Any

import trio

from wirekafka.server.loop_lag import LoopLag

_MOST_SECONDS = 3600.0


class Runnable(trio.abc.Instrument):
    """Keeps the tasks that are scheduled and have not run yet.

    trio's statistics do not count the tasks that run in the same pass of its loop as the task that reads the statistics.
    """

    def __init__(self) -> None:
        self.tasks: set[trio.lowlevel.Task] = set()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Adds a task; trio calls it when it schedules the task."""
        self.tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Removes a task; trio calls it before it runs the task."""
        self.tasks.discard(task)


def _run_loop() -> Any:
    """Returns the loop that runs this task; None unless only its tasks, deadlines and descriptors can wake the loop."""
    try:
        run = trio._core._run
        runner: Any = run.GLOBAL_RUN_CONTEXT.runner
        is_plain = isinstance(runner.clock, run.SystemClock) and not runner.is_guest
        _ = runner.waiting_for_idle, runner.clock.current_time()
        return runner if is_plain and runner.deadlines.next_deadline() and runner.io_manager._epoll.fileno() >= 0 else None
    except AttributeError:
        return None


class Idle:
    """Sleeps until an epoll has events.

    Args:
        epoll: only one task waits for it; the same task calls `begin` and `end`.
        lag: gets the beginning and the end of each wait outside trio's loop.
    """

    __slots__ = ("_epoll", "_lag", "_loop", "_poll", "_runnable")

    def __init__(self, epoll: select.epoll, lag: LoopLag | None = None) -> None:
        self._epoll = epoll
        self._lag = lag
        self._loop: Any = None
        self._poll = select.poll()
        self._runnable = Runnable()

    async def begin(self) -> None:
        """Finds the loop that runs this task; without `begin`, `sleep` waits in trio's loop."""
        self._loop = _run_loop()
        if self._loop is not None:
            trio.lowlevel.add_instrument(self._runnable)
            self._poll.register(self._epoll.fileno(), select.POLLIN)
            self._poll.register(self._loop.io_manager._epoll.fileno(), select.POLLIN)
            for _ in range(2):  # after this, every task that was scheduled before the instrument was added has run
                await trio.lowlevel.checkpoint()

    def end(self) -> None:
        """Removes the instrument; the task does not sleep again."""
        if self._loop is not None:
            self._loop = None
            trio.lowlevel.remove_instrument(self._runnable)

    async def sleep(self) -> None:
        """Returns when the epoll has events, or earlier; other runnable tasks have run by then."""
        if self._loop is None or not self._wait_here():
            await trio.lowlevel.wait_readable(self._epoll.fileno())

    def _wait_here(self) -> bool:
        """Waits outside trio's loop until the epoll has events (True), or another task may have work (False)."""
        loop = self._loop
        if self._runnable.tasks or loop.waiting_for_idle:
            return False
        seconds = loop.deadlines.next_deadline() - loop.clock.current_time()
        if seconds <= 0:
            return False
        if self._lag is not None:
            self._lag.end()
        ready = self._poll.poll(ceil(min(seconds, _MOST_SECONDS) * 1000) if seconds < inf else None)
        if self._lag is not None:
            self._lag.begin()
        return len(ready) == 1 and ready[0][0] == self._epoll.fileno()
