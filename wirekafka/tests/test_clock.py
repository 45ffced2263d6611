from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from wirekafka.clock import GRACE_SECONDS, LEAST_CANCELLED, Clock


def run(play: Callable[[Clock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = Clock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.run)
            await play(clock)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def stand_still(seconds: float) -> None:
    """The clocks as a stopped process sees them."""
    mock_clock = trio.lowlevel.current_clock()
    assert isinstance(mock_clock, trio.testing.MockClock)
    mock_clock.jump(seconds)


class Fired(list[float]):
    """Records when timers fired, in seconds since the test began."""

    def __init__(self) -> None:
        self.start = trio.current_time()

    def note(self) -> None:
        self.append(round(trio.current_time() - self.start, 6))


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
        assert lines[0]["event"] == "A timer failed"

    run(play)


def test_timer_that_is_set_later_and_due_earlier_fires_earlier() -> None:
    async def play(clock: Clock) -> None:
        fired = Fired()
        await trio.sleep(1)
        for delay_ms in (5000, 3000, 4000, 2000):
            clock.call_later(delay_ms, fired.note)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(10)
        assert fired == [3, 4, 5, 6]

    run(play)


def test_timers_that_are_left_when_others_are_cancelled_fire_in_order() -> None:
    async def play(clock: Clock) -> None:
        fired: list[int] = []
        chance = random.Random(1)
        delays = [chance.randrange(1, 10_000) for _ in range(1000)]
        timers = [clock.call_later(delay_ms, lambda delay_ms=delay_ms: fired.append(delay_ms)) for delay_ms in delays]
        kept = set(chance.sample(range(1000), 100))
        for number, timer in enumerate(timers):
            if number not in kept:
                timer.cancel()
        await trio.sleep(20)
        assert fired == sorted(delays[number] for number in kept)
        assert (clock._timers, clock._cancelled_count) == ([], 0)

    run(play)


def test_timer_that_was_cancelled_and_whose_time_has_come_is_not_counted_any_more() -> None:
    async def play(clock: Clock) -> None:
        for _ in range(LEAST_CANCELLED - 1):
            clock.call_later(1000, lambda: None).cancel()
        await trio.sleep(2)
        assert (clock._timers, clock._cancelled_count) == ([], 0)

    run(play)


def test_cancelled_timers_leave_the_heap_before_their_time() -> None:
    async def play(clock: Clock) -> None:
        fired: list[int] = []
        kept = [clock.call_later(1000 + number, lambda number=number: fired.append(number)) for number in range(10)]
        for _ in range(10_000):
            clock.call_later(1_000_000_000, lambda: None).cancel()
            assert len(clock._timers) <= len(kept) + LEAST_CANCELLED
        await trio.sleep(2)
        assert fired == list(range(10))

    run(play)


def test_timers_that_a_timer_cancels_do_not_fire() -> None:
    async def play(clock: Clock) -> None:
        fired: list[int] = []
        timers = [clock.call_later(1000, lambda number=number: fired.append(number)) for number in range(3 * LEAST_CANCELLED)]
        clock.call_later(999, lambda: [timer.cancel() for timer in timers[1:]])
        await trio.sleep(2)
        assert fired == [0]
        assert not clock._timers

    run(play)


@pytest.mark.parametrize("delay_ms", [-(2**31), 0, 100, 1000, 10_000])
def test_expiry_comes_at_its_time(delay_ms: int) -> None:
    async def play(clock: Clock) -> None:
        fired = Fired()
        clock.expire_later(delay_ms, fired.note)
        await trio.sleep(20)
        assert fired == [max(0, delay_ms) / 1000]

    run(play)


def test_expiry_that_is_postponed_comes_once_at_its_last_time() -> None:
    async def play(clock: Clock) -> None:
        fired = Fired()
        timer = clock.expire_later(10_000, fired.note)
        for _ in range(20):
            await trio.sleep(3)
            assert clock.postpone(timer, 10_000)
            assert len(clock._timers) == 1
        await trio.sleep(20)
        assert fired == [70]

    run(play)


@pytest.mark.parametrize(
    "stopped_s",
    # For long; until just after the end of the session; and until just before it, with requests of the pause still unread.
    [600, 5.001, 4.999],
)
def test_who_is_heard_of_right_after_a_standstill_does_not_expire(stopped_s: float) -> None:
    async def play(clock: Clock) -> None:
        fired = Fired()
        timer = clock.expire_later(10_000, fired.note)
        await trio.sleep(5)
        assert clock.postpone(timer, 10_000)
        await trio.sleep(5)
        stand_still(stopped_s)
        await trio.sleep(GRACE_SECONDS * 0.9)
        assert not fired
        assert clock.postpone(timer, 10_000)
        await trio.sleep(20)
        assert fired == [pytest.approx(10 + stopped_s + GRACE_SECONDS * 0.9 + 10)]

    run(play)


def test_timer_that_takes_nothing_from_anybody_fires_right_after_a_standstill() -> None:
    async def play(clock: Clock) -> None:
        fired = Fired()
        clock.call_later(2000, fired.note)
        stand_still(60)
        await trio.sleep(1)
        assert fired == [60]

    run(play)


def test_who_is_not_heard_of_after_a_standstill_expires_a_grace_later() -> None:
    async def play(clock: Clock) -> None:
        fired = Fired()
        for delay_ms in (5000, 50_500, 52_000):
            clock.expire_later(delay_ms, fired.note)
        stand_still(50)
        await trio.sleep(10)
        assert fired == [51, 51, 52]

    run(play)


def test_expiry_is_put_off_once_however_often_time_is_lost() -> None:
    async def play(clock: Clock) -> None:
        fired = Fired()
        clock.expire_later(1000, fired.note)
        for _ in range(10):
            stand_still(1.5)
            await trio.sleep(0.1)
        assert fired == [3.1]

    run(play)


def test_every_standstill_gives_a_grace_to_who_was_heard_of_since_the_last() -> None:
    async def play(clock: Clock) -> None:
        fired = Fired()
        timer = clock.expire_later(1000, fired.note)
        for _ in range(10):
            stand_still(60)
            await trio.sleep(0.1)
            assert clock.postpone(timer, 1000)
        await trio.sleep(10)
        assert fired == [602]

    run(play)


def test_timer_that_fails_with_a_failing_log_sink_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk:
        def error(self, *args: object, **fields: object) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("wirekafka.faults.log", FullDisk())

    async def play(clock: Clock) -> None:
        fired: list[str] = []
        clock.call_later(0, lambda: 1 / 0)
        clock.call_later(0, lambda: fired.append("fired"))
        await trio.sleep(1)
        assert fired

    run(play)
