from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.replication.partition import Partition
from wirekafka.replication.purgatory import ANSWERED_AT_ONCE, SECONDS_AT_ONCE, DelayedFetch, Purgatory
from wirekafka.tests.replication.memory_log import append, make_partition


def delay(purgatory: Purgatory, *limits: tuple[Partition, int], missing_bytes: int = 1, max_wait_ms: int = 500) -> DelayedFetch:
    delayed = DelayedFetch(
        purgatory, max_wait_ms=max_wait_ms, missing_bytes=missing_bytes, counted_bytes={}, answer=lambda: "answer"
    )
    for partition, limit in limits:
        delayed.watch(partition, limit)
    return delayed


def run(body: Callable[[Purgatory], object]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            clock = Clock()
            nursery.start_soon(clock.run)
            result = body(Purgatory(clock))
            if isinstance(result, DelayedFetch):
                await trio.sleep(10)
                assert result.pending.is_done
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_delayed_fetch_append_that_is_enough_answers() -> None:
    def body(purgatory: Purgatory) -> None:
        partition = make_partition()
        delayed = delay(purgatory, (partition, 1000))
        append(partition, 10)
        assert delayed.pending.is_done
        assert not partition.watchers

    run(body)


def test_delayed_fetch_that_was_answered_leaves_no_timer() -> None:
    def body(purgatory: Purgatory) -> None:
        partition = make_partition()
        delayed = delay(purgatory, (partition, 1000))
        assert delayed._timer.is_due_later
        append(partition, 10)
        assert not delayed._timer.is_due_later

    run(body)


def test_delayed_fetch_append_that_is_too_little_waits_on() -> None:
    def body(purgatory: Purgatory) -> None:
        first, second = make_partition(index=0), make_partition(index=1)
        delayed = delay(purgatory, (first, 1000), (second, 1000), missing_bytes=100)
        append(first, 60)
        assert not delayed.pending.is_done
        append(second, 40)
        assert delayed.pending.is_done

    run(body)


def test_delayed_fetch_counts_no_more_of_a_partition_than_its_limit() -> None:
    def body(purgatory: Purgatory) -> None:
        first, second = make_partition(index=0), make_partition(index=1)
        delayed = delay(purgatory, (first, 50), (second, 50), missing_bytes=100)
        append(first, 500)
        append(first, 500)
        assert not delayed.pending.is_done
        append(second, 50)
        assert delayed.pending.is_done

    run(body)


def test_delayed_fetch_partition_gone_answers() -> None:
    def body(purgatory: Purgatory) -> None:
        partition = make_partition()
        delayed = delay(purgatory, (partition, 1000))
        partition.close()
        assert delayed.pending.is_done

    run(body)


def test_delayed_fetch_deadline_answers() -> None:
    run(lambda purgatory: delay(purgatory, (make_partition(), 1000), max_wait_ms=9_000))


def test_delayed_fetch_abandoned_lets_go_of_its_partitions() -> None:
    def body(purgatory: Purgatory) -> None:
        partition = make_partition()
        delayed = delay(purgatory, (partition, 1000))
        delayed.pending.abandon()
        assert not partition.watchers
        append(partition, 10)

    run(body)


def test_purgatory_held_answers_on_release() -> None:
    def body(purgatory: Purgatory) -> None:
        partition = make_partition()
        delayed = delay(purgatory, (partition, 1000))
        purgatory.hold()
        append(partition, 10)
        append(partition, 10)
        assert not delayed.pending.is_done
        purgatory.release()
        assert delayed.pending.is_done

    run(body)


@pytest.mark.parametrize("is_held", [False, True])
def test_commit_that_is_enough_for_many_answers_some_at_once_and_the_others_in_later_turns(is_held: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            clock = Clock()
            nursery.start_soon(clock.run)
            purgatory = Purgatory(clock, seconds=lambda: 0.0)
            partition = make_partition()
            waiting = [delay(purgatory, (partition, 1000)) for _ in range(3 * ANSWERED_AT_ONCE)]
            if is_held:
                purgatory.hold()
            append(partition, 10)
            append(partition, 10)
            if is_held:
                purgatory.release()
            answered = [delayed.pending.is_done for delayed in waiting]
            assert sum(answered) == ANSWERED_AT_ONCE
            assert answered == sorted(answered, reverse=True)
            await trio.testing.wait_all_tasks_blocked()
            assert all(delayed.pending.is_done for delayed in waiting)
            assert not partition.watchers
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock())


@pytest.mark.parametrize("is_held", [False, True])
def test_commit_that_is_enough_for_slow_requests_answers_the_others_in_later_turns(is_held: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            clock = Clock()
            nursery.start_soon(clock.run)
            numbers = count()
            purgatory = Purgatory(clock, seconds=lambda: next(numbers) * SECONDS_AT_ONCE)
            partition = make_partition()
            waiting = [delay(purgatory, (partition, 1000)) for _ in range(10)]
            if is_held:
                purgatory.hold()
            append(partition, 10)
            if is_held:
                purgatory.release()
            assert 0 < sum(delayed.pending.is_done for delayed in waiting) < len(waiting) / 2
            await trio.sleep(0.1)
            assert all(delayed.pending.is_done for delayed in waiting)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
