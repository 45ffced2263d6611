"""A clock that a test moves forward: sessions expire, transactions time out and segments are deleted, and nobody waits.

    clock = AdvancingClock()
    trio.run(main, clock=clock)      # trio's deadlines follow it
    Broker.open(config, clock.of_broker())
    await clock.advance(3600)

How it works: the clock adds an offset to the time of the machine. Between two advances it runs as fast as the machine's, so
clients in other processes, whose time is not moved, work with the broker as always. An advance moves from deadline to deadline,
and lets the tasks whose deadlines have come run at each of them.

Rules of this file:
    The time of trio never goes back. The wall clock of each broker begins at the time of the machine.
"""

from __future__ import annotations

import time

import trio

from wirekafka.clock import Clock

MOST_STEPS = 200
"""An advance visits at most so many deadlines; those of one step come together."""

MOST_ADVANCED_SECONDS = 1e11
"""3,170 years in all: the timers still have microseconds, and the year has four digits."""

TURNS_PER_STEP = 5
"""The turns of the loop at each deadline: a timer wakes a task, which ends a request, whose reply is sent."""


class AdvancingClock(trio.abc.Clock):
    """The clock of trio, and of the brokers that run in its loop.

    Attributes:
        advanced_seconds: by how much it was moved in all.
    """

    def __init__(self) -> None:
        self.advanced_seconds = 0.0
        self._origins: dict[Clock, float] = {}
        """For each clock of a broker, by how much trio's clock was advanced when the broker's time was that of the machine."""

    def start_clock(self) -> None:
        """Does nothing: the clock runs already."""

    def current_time(self) -> float:
        """Returns the seconds of the clock, which has no fixed origin."""
        return time.perf_counter() + self.advanced_seconds

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Returns the seconds until a deadline."""
        return deadline - self.current_time()

    def of_broker(self) -> Clock:
        """Returns a clock for a broker, whose wall clock shows the time of the machine until the next advance."""
        made = Clock(wall=lambda: time.time() + self.advanced_seconds - self._origins[made])
        self.set_to_now(made)
        return made

    def set_to_now(self, clock: Clock) -> None:
        """Sets the wall clock of a broker to the time of the machine, before the broker serves anybody."""
        self._origins[clock] = self.advanced_seconds

    def forget(self, clock: Clock) -> None:
        """Drops the clock of a broker that has ended and reads the time no more."""
        del self._origins[clock]

    async def advance(self, seconds: float) -> None:
        """Moves the time forward. What is due meanwhile happens, in order, before this method returns.

        Raises:
            ValueError: the seconds are negative, not finite, or more than `MOST_ADVANCED_SECONDS` with all former ones.
        """
        left = MOST_ADVANCED_SECONDS - self.advanced_seconds
        if not 0 <= seconds <= left:
            raise ValueError(f"time can be advanced by 0 seconds or more, and {left:g} at most, not by {seconds}")
        left = seconds
        while left > 0:
            next_deadline = trio.lowlevel.current_statistics().seconds_to_next_deadline
            step = min(left, max(next_deadline, seconds / MOST_STEPS))
            left -= step
            self.advanced_seconds += step
            for clock in self._origins:
                clock.note_jump()
            for _ in range(TURNS_PER_STEP):
                await trio.lowlevel.checkpoint()
