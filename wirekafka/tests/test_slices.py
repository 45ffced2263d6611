"""Work in slices: turns, results, failures, and clients that disconnect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import Pending, Work
from wirekafka.slices import BUSY_COUNT, SLICE_SECONDS, Slices

STEPS_A_SLICE = 4


def slow_clock() -> Callable[[], float]:
    """A clock by which a slice is over after `STEPS_A_SLICE` steps."""
    numbers = count()
    return lambda: next(numbers) * SLICE_SECONDS / STEPS_A_SLICE


def steps(number: int, done: list[int], *, fails_at: int | None = None) -> Work[str]:
    try:
        for step in range(number):
            if step == fails_at:
                raise KafkaError(ErrorCode.POLICY_VIOLATION)
            done.append(step)
            yield
    except GeneratorExit:
        done.append(-1)
        raise
    return "finished"


def run(body: Callable[[Clock], Any]) -> None:
    async def main() -> None:
        clock = Clock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clock.run)
            await body(clock)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def result_of(pending: Pending[Any]) -> Any:
    found: list[Any] = []
    done = trio.Event()
    pending.then(lambda result: (found.append(result), done.set()))
    with trio.fail_after(10):
        await done.wait()
    return found[0]


def test_work_that_ends_in_its_first_slice_is_answered_at_once() -> None:
    async def body(clock: Clock) -> None:
        done: list[int] = []
        assert Slices(clock, seconds=lambda: 0.0).run(steps(100, done)) == "finished"
        assert done == list(range(100))

    run(body)


def test_work_that_is_too_long_does_one_slice_at_once_and_the_rest_later() -> None:
    async def body(clock: Clock) -> None:
        done: list[int] = []
        pending = Slices(clock, seconds=slow_clock()).run(steps(50, done))
        assert isinstance(pending, Pending)
        assert 0 < len(done) <= STEPS_A_SLICE
        assert await result_of(pending) == "finished"
        assert done == list(range(50))

    run(body)


def test_two_works_take_turns() -> None:
    async def body(clock: Clock) -> None:
        slices, order = Slices(clock, seconds=slow_clock()), []

        def work(name: str) -> Work[str]:
            for _ in range(3 * STEPS_A_SLICE):
                order.append(name)
                yield
            return name

        first, second = slices.run(work("a")), slices.run(work("b"))
        assert isinstance(first, Pending)
        assert isinstance(second, Pending)
        assert {await result_of(first), await result_of(second)} == {"a", "b"}
        changes = sum(one != other for one, other in zip(order, order[1:], strict=False))
        assert changes >= 4

    run(body)


def test_work_that_follows_from_a_work_belongs_to_the_same_slice() -> None:
    async def body(clock: Clock) -> None:
        slices, done = Slices(clock, seconds=slow_clock()), []  # type: ignore[var-annotated]
        followed: list[int] = []

        def follow(result: str) -> Any:
            begun = len(done)
            answer = slices.run(steps(50, done))
            followed.append(len(done) - begun)
            return answer

        first = slices.run(steps(2 * STEPS_A_SLICE, done))
        assert isinstance(first, Pending)
        assert await result_of(first.map(follow)) == "finished"
        assert 0 < followed[0] < STEPS_A_SLICE

    run(body)


def test_slices_are_busy_while_several_works_are_in_progress() -> None:
    async def body(clock: Clock) -> None:
        slices = Slices(clock, seconds=slow_clock())
        works = [slices.run(steps(50, [])) for _ in range(BUSY_COUNT - 1)]
        assert not slices.is_busy
        works.append(slices.run(steps(50, [])))
        assert slices.is_busy
        for work in works:
            assert isinstance(work, Pending)
            assert await result_of(work) == "finished"
        assert not slices.is_busy

    run(body)


def test_failure_in_the_first_slice_is_raised_and_a_later_one_is_the_result() -> None:
    async def body(clock: Clock) -> None:
        slices, done = Slices(clock, seconds=slow_clock()), []  # type: ignore[var-annotated]
        with pytest.raises(KafkaError):
            slices.run(steps(10, done, fails_at=0))
        late = slices.run(steps(50, done, fails_at=40))
        assert isinstance(late, Pending)
        error = await result_of(late)
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.POLICY_VIOLATION

    run(body)


def test_work_whose_client_goes_away_is_closed_where_it_stands() -> None:
    async def body(clock: Clock) -> None:
        done: list[int] = []
        pending = Slices(clock, seconds=slow_clock()).run(steps(1000, done))
        assert isinstance(pending, Pending)
        pending.abandon()
        assert done[-1] == -1
        await trio.sleep(1)
        assert len(done) <= STEPS_A_SLICE + 1

    run(body)


def test_work_that_outlives_its_client_goes_on_in_slices_until_it_ends_or_the_broker_is_closed() -> None:
    async def body(clock: Clock) -> None:
        done: list[int] = []
        slices = Slices(clock, seconds=slow_clock())
        pending = slices.run(steps(50, done), outlives_client=True)
        assert isinstance(pending, Pending)
        pending.abandon()
        assert len(done) <= STEPS_A_SLICE
        await trio.sleep(1)
        assert done == list(range(50))
        done.clear()
        pending = slices.run(steps(50, done), outlives_client=True)
        slices.close()
        assert done[-1] == -1
        await trio.sleep(1)
        assert done[-1] == -1

    run(body)


def test_block_around_work_is_entered_for_each_slice_and_left_before_the_reply() -> None:
    async def body(clock: Clock) -> None:
        events: list[str] = []

        @contextmanager
        def around() -> Iterator[None]:
            events.append("enter")
            yield
            events.append("leave")

        pending = Slices(clock, seconds=slow_clock()).run(steps(2 * STEPS_A_SLICE, []), around)
        assert isinstance(pending, Pending)
        await result_of(pending)
        assert len(events) >= 4
        assert events == ["enter", "leave"] * (len(events) // 2)

    run(body)


def test_failure_of_the_block_around_a_slice_is_the_failure_of_the_work() -> None:
    async def body(clock: Clock) -> None:
        @contextmanager
        def around() -> Iterator[None]:
            yield
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

        done: list[int] = []
        with pytest.raises(KafkaError):
            Slices(clock, seconds=slow_clock()).run(steps(100, done), around)
        assert done[-1] == -1

    run(body)


def test_work_that_returns_a_pending_reply_is_answered_with_that_reply() -> None:
    reply: Pending[str] = Pending()

    def work(step_count: int) -> Work[Pending[str]]:
        for _ in range(step_count):
            yield
        return reply

    async def body(clock: Clock) -> None:
        assert Slices(clock, slow_clock()).run(work(1)) is reply
        later = Slices(clock, slow_clock()).run(work(3 * STEPS_A_SLICE))
        assert isinstance(later, Pending)
        await trio.sleep(1)
        assert not later.is_done
        reply.complete("late")
        assert await result_of(later) == "late"

    run(body)
