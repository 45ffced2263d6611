"""Workers run plain functions in a bounded number of threads, and return the results on the loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from structlog.testing import capture_logs

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import forget_logged
from wirekafka.workers import MOST_QUEUED_BYTES, MOST_QUEUED_JOBS, Workers, rest


def run(play: Callable[[Workers], Awaitable[None]], thread_count: int = 2) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                workers = Workers(thread_count=thread_count)
                workers.start(nursery)
                await play(workers)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_submit_without_a_free_thread_of_the_machine_gives_done_the_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(workers: Workers) -> None:
        async def fail(*arguments: object, **settings: object) -> None:
            raise RuntimeError("can't start new thread")

        results = Results()
        with monkeypatch.context() as patch:
            patch.setattr(trio.to_thread, "run_sync", fail)
            workers.submit(lambda: 1, results.add)
            assert [repr(each) for each in await results.wait(1)] == ['RuntimeError("can\'t start new thread")']
        workers.submit(lambda: 2, results.add)
        assert (await results.wait(2))[1] == 2

    run(play)


def test_submit_after_the_close_runs_nothing() -> None:
    async def main() -> None:
        workers, results = Workers(), Results()
        async with trio.open_nursery() as nursery:
            workers.start(nursery)
        workers.close()
        workers.submit(lambda: 1, results.add)
        await trio.lowlevel.checkpoint()
        assert results.found == []

    trio.run(main)


class Results:
    """Records the results, and waits for a number of them."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.threads: set[int] = set()
        self._changed = trio.Event()

    def add(self, result: Any) -> None:
        self.found.append(result)
        self.threads.add(threading.get_ident())
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, count: int) -> list[Any]:
        while len(self.found) < count:
            await self._changed.wait()
        return self.found


def test_submit_work_runs_in_a_thread_and_done_on_the_loop() -> None:
    async def play(workers: Workers) -> None:
        results = Results()
        workers.submit(threading.get_ident, results.add)
        assert results.found == []
        (thread,) = await results.wait(1)
        assert thread != threading.get_ident()
        assert results.threads == {threading.get_ident()}

    run(play)


def test_submit_work_that_raises_gives_done_the_exception() -> None:
    async def play(workers: Workers) -> None:
        results = Results()

        def fail() -> None:
            raise RuntimeError("no such thing")

        workers.submit(fail, results.add)
        (error,) = await results.wait(1)
        assert repr(error) == "RuntimeError('no such thing')"

    run(play)


def test_submit_done_that_raises_is_logged_and_other_jobs_go_on() -> None:
    async def play(workers: Workers) -> None:
        forget_logged()
        results = Results()

        def fail(result: object) -> None:
            raise RuntimeError("no such thing")

        with capture_logs() as lines:
            workers.submit(lambda: 1, fail)
            workers.submit(lambda: 2, results.add)
            assert await results.wait(1) == [2]
        assert [line["event"] for line in lines] == ["The result of a worker could not be used"]

    run(play, thread_count=1)


def test_submit_many_jobs_runs_at_most_as_many_at_once_as_there_are_threads() -> None:
    async def play(workers: Workers) -> None:
        results = Results()
        lock = threading.Lock()
        running = [0, 0]
        both = threading.Barrier(2, timeout=20)

        def work() -> None:
            with lock:
                running[0] += 1
                running[1] = max(running)
            both.wait()
            with lock:
                running[0] -= 1

        for _ in range(6):
            workers.submit(work, results.add)
        assert await results.wait(6) == [None] * 6
        assert running == [0, 2]

    run(play)


def test_cancel_queued_job_is_never_run() -> None:
    async def play(workers: Workers) -> None:
        results = Results()
        is_free = threading.Event()
        ran: list[int] = []
        workers.submit(lambda: is_free.wait(20), results.add)
        job = workers.submit(lambda: ran.append(1), results.add)
        job.cancel()
        is_free.set()
        workers.submit(lambda: "last", results.add)
        assert await results.wait(2) == [True, "last"]
        assert ran == []

    run(play, thread_count=1)


def test_cancel_running_job_ends_at_its_next_rest_and_done_is_not_called() -> None:
    async def play(workers: Workers) -> None:
        results = Results()
        has_begun = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def work() -> None:
            token.run_sync_soon(has_begun.set)
            while True:
                rest()

        job = workers.submit(work, results.add)
        await has_begun.wait()
        job.cancel()
        workers.submit(lambda: "next", results.add)
        assert await results.wait(1) == ["next"]

    run(play, thread_count=1)


def test_rest_outside_of_a_worker_does_nothing() -> None:
    rest()


def test_submit_to_a_queue_that_is_full_of_jobs_is_refused_with_a_retriable_error() -> None:
    async def play(workers: Workers) -> None:
        results = Results()
        is_free = threading.Event()
        workers.submit(lambda: is_free.wait(20), lambda result: None)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(MOST_QUEUED_JOBS):
            workers.submit(lambda: None, lambda result: None)
        workers.submit(lambda: "ran", results.add)
        is_free.set()
        (error,) = await results.wait(1)
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.REQUEST_TIMED_OUT

    run(play, thread_count=1)


def test_submit_to_a_queue_that_holds_too_many_bytes_is_refused() -> None:
    async def play(workers: Workers) -> None:
        results = Results()
        is_free = threading.Event()
        workers.submit(lambda: is_free.wait(20), lambda result: None)
        await trio.testing.wait_all_tasks_blocked()
        workers.submit(lambda: "alone", results.add, held_bytes=2 * MOST_QUEUED_BYTES)
        workers.submit(lambda: "more", results.add, held_bytes=1)
        is_free.set()
        alone, error = await results.wait(2)
        assert alone == "alone"
        assert isinstance(error, KafkaError)

    run(play, thread_count=1)


def test_close_cancels_what_waits_and_what_runs() -> None:
    async def play(workers: Workers) -> None:
        results = Results()
        has_begun = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def work() -> None:
            token.run_sync_soon(has_begun.set)
            while True:
                rest()

        workers.submit(work, results.add)
        workers.submit(lambda: "waiting", results.add)
        await has_begun.wait()
        workers.close()
        assert workers.queued_count == 0
        workers.submit(lambda: "later", results.add)
        assert await results.wait(1) == ["later"]

    run(play, thread_count=1)


def test_nursery_cancelled_while_work_runs_does_not_wait_for_it() -> None:
    is_free = threading.Event()
    results: list[object] = []

    async def play(workers: Workers) -> None:
        has_begun = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def work() -> None:
            token.run_sync_soon(has_begun.set)
            is_free.wait(20)

        workers.submit(work, results.append)
        await has_begun.wait()

    run(play)
    is_free.set()
    assert results == []
