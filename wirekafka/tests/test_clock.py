from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from wirekafka.clock import Clock


def run(play: Callable[[Clock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = Clock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.run)
            await play(clock)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_timers_fire_in_order_at_their_times() -> None:
    async def play(clock: Clock) -> None:
        fired: list[tuple[str, float]] = []
        start = trio.current_time()
        for name, delay_ms in (("late", 2000), ("early", 1000), ("now", 0)):
            clock.call_later(delay_ms, lambda name=name: fired.append((name, trio.current_time() - start)))
        await trio.sleep(3)
        assert [name for name, _ in fired] == ["now", "early", "late"]
        assert [when for _, when in fired] == pytest.approx([0, 1, 2])

    run(play)


def test_cancelled_timer_never_fires() -> None:
    async def play(clock: Clock) -> None:
        fired: list[str] = []
        timer = clock.call_later(1000, lambda: fired.append("cancelled"))
        assert timer.is_due_later
        timer.cancel()
        await trio.sleep(2)
        assert not fired
        assert not clock.postpone(timer, 1000)

    run(play)


def test_postponed_timer_fires_once_at_its_last_time() -> None:
    async def play(clock: Clock) -> None:
        fired: list[float] = []
        start = trio.current_time()
        timer = clock.call_later(1000, lambda: fired.append(trio.current_time() - start))
        for _ in range(5):
            await trio.sleep(0.9)
            assert clock.postpone(timer, 1000)
        await trio.sleep(5)
        assert fired == pytest.approx([5.5])
        assert not clock.postpone(timer, 1000)

    run(play)


def test_timer_cannot_be_postponed_to_an_earlier_time() -> None:
    async def play(clock: Clock) -> None:
        fired: list[str] = []
        timer = clock.call_later(1000, lambda: fired.append("fired"))
        assert not clock.postpone(timer, 500)
        await trio.sleep(0.9)
        assert not fired
        await trio.sleep(0.2)
        assert fired

    run(play)


def test_timer_that_fails_does_not_stop_the_others() -> None:
    async def play(clock: Clock) -> None:
        fired: list[str] = []
        clock.call_later(0, lambda: 1 / 0)
        clock.call_later(0, lambda: fired.append("fired"))
        with capture_logs() as lines:
            await trio.sleep(1)
        assert fired
        assert lines[0]["event"] == "a timer failed"

    run(play)
