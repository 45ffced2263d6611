"""How the epoll driver sleeps: in a wait of its own where trio has nothing else to do, and else in trio's.

Theory of operation: a task that awaits a descriptor is woken by way of trio's epoll, its loop and its scheduler, and goes to
sleep the same way. With the caches gone cold meanwhile that takes 90 us of CPU, where a process that waits in an epoll of its own
takes 50 (2026-11), and a broker with few clients pays it for each request. Where no other task can run, trio's loop would sleep
as well, until a descriptor is ready or a deadline comes. So the driver's task waits for just that, for its own epoll and for
trio's at once, and goes on without a turn of trio's loop if it is its own that is ready.

Rules of this file:
    Nobody waits here while another task is runnable, which an instrument knows of each, or while a test waits for idleness; nor
    in guest mode, nor with a clock that jumps.
    Whatever else happens ends the wait, and trio's loop is entered: descriptors, deadlines, and by way of descriptors signals and
    what other threads have done.
    What has to be known of trio's loop is not public: where it is not found, the driver sleeps as any task does.
"""

from __future__ import annotations

import select
from math import ceil, inf
from typing import Any

import trio

from wirekafka.server.loop_lag import LoopLag

_MOST_SECONDS = 3600.0


class Runnable(trio.abc.Instrument):
    """Keeps the tasks that are scheduled and have not been run yet.

    trio's own statistics leave out those that have their turn in the same pass of its loop as the task that asks.
    """

    def __init__(self) -> None:
        self.tasks: set[trio.lowlevel.Task] = set()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Called by trio: the task will be run."""
        self.tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by trio: the task is being run."""
        self.tasks.discard(task)


def _run_loop() -> Any:
    """The loop that runs this task, as far as nothing but its tasks, deadlines and descriptors ever wakes it; else None."""
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
        epoll: only one task waits for it, in which `begin` and `end` are called.
        lag: told when a wait outside of trio's loop begins and ends.
    """

    __slots__ = ("_epoll", "_lag", "_loop", "_poll", "_runnable")

    def __init__(self, epoll: select.epoll, lag: LoopLag | None = None) -> None:
        self._epoll = epoll
        self._lag = lag
        self._loop: Any = None
        self._poll = select.poll()
        self._runnable = Runnable()

    async def begin(self) -> None:
        """Looks at the loop that runs this task; `sleep` works without it."""
        self._loop = _run_loop()
        if self._loop is not None:
            trio.lowlevel.add_instrument(self._runnable)
            self._poll.register(self._epoll.fileno(), select.POLLIN)
            self._poll.register(self._loop.io_manager._epoll.fileno(), select.POLLIN)
            for _ in range(2):  # then every task has been run that was scheduled before the instrument was there
                await trio.lowlevel.checkpoint()

    def end(self) -> None:
        """The task sleeps no more."""
        if self._loop is not None:
            self._loop = None
            trio.lowlevel.remove_instrument(self._runnable)

    async def sleep(self) -> None:
        """Returns once there are events, and perhaps before; other tasks that can run have run by then."""
        if self._loop is None or not self._wait_here():
            await trio.lowlevel.wait_readable(self._epoll.fileno())

    def _wait_here(self) -> bool:
        """Waits outside of trio's loop while no other task has anything to do; False if a task may have."""
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
