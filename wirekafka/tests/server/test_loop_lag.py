from __future__ import annotations

import gc
import select
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest
import structlog
import trio
import trio.testing

from wirekafka.server import idle, loop_lag
from wirekafka.server.loop_lag import BOUNDS_MS, LoopLag


class Measured:
    """A monitor with a clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lag = LoopLag(lambda: self.now)

    def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Runs a test under the monitor."""

        async def main() -> None:
            trio.lowlevel.add_instrument(self.lag)
            await trio.lowlevel.checkpoint()
            await body()
            await trio.lowlevel.checkpoint()

        trio.run(main)


def test_work_between_two_waits_is_one_pass() -> None:
    it = Measured()

    async def work() -> None:
        it.now += 0.03
        await trio.lowlevel.checkpoint()
        it.now += 0.004
        await trio.lowlevel.checkpoint()

    it.run(work)
    assert it.lag.longest_seconds == pytest.approx(0.03)
    assert it.lag.counts[BOUNDS_MS.index(50)] == 1
    assert it.lag.counts[BOUNDS_MS.index(5)] == 1


def test_work_of_all_tasks_of_a_pass_counts_together() -> None:
    it = Measured()

    async def work() -> None:
        it.now += 0.02

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(work)

    it.run(body)
    assert it.lag.longest_seconds == pytest.approx(0.06)


def test_collection_of_garbage_is_measured_and_told_with_a_stall() -> None:
    it = Measured()
    collections = it.lag.collections

    class Slow:
        """Takes a second to be collected."""

        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            it.now += 1

    async def work() -> None:
        it.now += 0.25
        Slow()
        gc.collect()

    gc.collect()
    with structlog.testing.capture_logs() as lines:
        with collections.measured():
            it.run(work)
        Slow()
        gc.collect()
    assert collections.seconds == collections.longest_seconds == 1
    assert [(line["seconds"], line["collecting_garbage_seconds"]) for line in lines] == [(1.25, 1)]


@pytest.mark.parametrize(
    ("freezes", "generation", "seconds", "frozen"),
    [(True, 2, 0.011, 1), (True, 2, 0.009, 0), (True, 1, 0.03, 0), (False, 2, 0.03, 0)],
)
def test_objects_are_frozen_after_a_long_full_collection(
    monkeypatch: pytest.MonkeyPatch, freezes: bool, generation: int, seconds: float, frozen: int
) -> None:
    it = Measured()
    collector = SimpleNamespace(callbacks=[], frozen=0)
    collector.freeze = lambda: setattr(collector, "frozen", collector.frozen + 1)
    monkeypatch.setattr(loop_lag, "gc", collector)
    it.lag.collections.freezes = freezes
    with it.lag.collections.measured():
        [note] = collector.callbacks
        note("start", {"generation": generation})
        it.now += seconds
        note("stop", {"generation": generation})
    assert collector.frozen == frozen
    assert collector.callbacks == []


@pytest.mark.parametrize(("seconds", "is_logged"), [(0.5, False), (0.51, True), (99, True)])
def test_stall_is_logged(seconds: float, is_logged: bool) -> None:
    it = Measured()

    async def work() -> None:
        it.now += seconds

    with structlog.testing.capture_logs() as lines:
        it.run(work)
    assert [line["seconds"] for line in lines] == [seconds] * is_logged
    assert sum(it.lag.counts[BOUNDS_MS.index(500) :]) >= 1


def test_time_that_the_driver_sleeps_is_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Poll:
        """A poll during which a minute passes."""

        def __init__(self) -> None:
            self.real = select.poll()
            self.register = self.real.register

        def poll(self, timeout: int | None) -> list[tuple[int, int]]:
            now[0] += 60
            return self.real.poll(timeout)

    monkeypatch.setattr(idle, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))

    async def main() -> None:
        lag = LoopLag(lambda: now[0])
        trio.lowlevel.add_instrument(lag)
        with select.epoll() as epoll:
            driver_sleep = idle.Idle(epoll, lag)
            await driver_sleep.begin()
            with trio.move_on_after(0.01):
                await driver_sleep.sleep()
            driver_sleep.end()
        assert now[0] >= 60, "it has waited outside of trio's loop"
        assert lag.longest_seconds == 0

    trio.run(main)
