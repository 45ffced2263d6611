"""Workers: threads that run CPU-heavy plain functions of one broker off its loop.

How it works: a handler that needs more than about 10 ms of CPU gives the work to `Workers` as a plain function and returns
a `Pending`. The jobs wait in one queue, first in, first out. A task for each thread takes a job, runs it in the thread, and
calls `done` with the result on the loop. A task starts when a job arrives, and ends when the queue is empty, so a broker without
heavy requests has no such tasks and threads.

CPython runs one thread at a time, and a thread that needs the interpreter waits up to 5 ms until another one gives it up. So
long work calls `rest` every few tenths of a millisecond: the thread sleeps briefly, and the loop continues meanwhile.

Rules of this file:
    `done` is called on the loop, once for each job that is not cancelled. An exception that `done` raises is logged.
    The queue is bounded in jobs and in bytes. A job that does not fit gets REQUEST_TIMED_OUT, which clients answer with a retry.
    Work never touches the state of the broker: it gets bytes and settings, and returns a result.
    Invariant: `_running_count <= _thread_count`.

Source: none; Apache Kafka runs this work on its request handler threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import local
from typing import Any, TypeVar

import trio

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import log_once

T = TypeVar("T")

THREAD_COUNT = 2
"""Two threads, so that a short job need not wait for a long one. More threads would only compete for the interpreter."""

MOST_QUEUED_JOBS = 1000
MOST_QUEUED_BYTES = 1 << 28
"""The memory that all jobs in the queue may hold together; a single job in the queue may hold more."""

SLICE_SECONDS = 0.0005
"""The time that a thread works between two rests."""
REST_SECONDS = 0.0001
"""The time of a rest, which is long enough for the loop to get the interpreter."""


class CancelledJobError(Exception):
    """The job was cancelled. `rest` raises it in the thread of the job, and `Job.run` catches it."""


class Job:
    """One piece of work that was submitted.

    Attributes:
        is_cancelled: the result is not needed; a thread that runs the job ends at the next `rest`.
        held_bytes: the memory that the job holds until it has run.
    """

    __slots__ = ("_done", "_work", "held_bytes", "is_cancelled")

    def __init__(self, work: Callable[[], Any], done: Callable[[Any], None], held_bytes: int) -> None:
        self.is_cancelled = False
        self.held_bytes = held_bytes
        self._work: Callable[[], Any] | None = work
        self._done: Callable[[Any], None] | None = done

    def cancel(self) -> None:
        """Prevents the call of `done`; does nothing if `done` was called already."""
        self.is_cancelled = True
        self._work = self._done = None

    def run(self) -> object:
        """Runs the work in this thread; returns its result, or the exception that it raised."""
        work, self._work = self._work, None
        _this_thread.job = self
        _this_thread.slice_end = time.monotonic() + SLICE_SECONDS
        try:
            return None if work is None else work()
        except Exception as error:  # noqa: BLE001 - `done` gets the exception
            return error
        finally:
            _this_thread.job = None

    def complete(self, result: object) -> None:
        """Calls `done` on the loop, unless the job was cancelled or completed before."""
        done, self._done = self._done, None
        if done is None:
            return
        try:
            done(result)
        except Exception as error:  # noqa: BLE001 - one result must not end the task that hands over all results
            log_once(error, "The result of a worker could not be used")


class _ThisThread(local):
    job: Job | None = None
    slice_end = 0.0


_this_thread = _ThisThread()


def rest() -> None:
    """Lets other threads run if this one has worked for `SLICE_SECONDS`; does nothing outside of a worker's thread.

    Raises:
        CancelledJobError: the job that this thread runs was cancelled.
    """
    job = _this_thread.job
    if job is None or time.monotonic() < _this_thread.slice_end:
        return
    if job.is_cancelled:
        raise CancelledJobError
    time.sleep(REST_SECONDS)
    _this_thread.slice_end = time.monotonic() + SLICE_SECONDS


class Workers:
    """The threads of one broker for CPU-heavy work; `start` comes first."""

    def __init__(self, *, thread_count: int = THREAD_COUNT) -> None:
        self._thread_count = thread_count
        self._limiter = trio.CapacityLimiter(thread_count)
        self._nursery: trio.Nursery | None = None
        self._queue: deque[Job] = deque()
        self._queued_bytes = 0
        self._running: set[Job] = set()
        self._running_count = 0

    @property
    def queued_count(self) -> int:
        """The number of jobs that wait for a thread."""
        return len(self._queue)

    def start(self, nursery: trio.Nursery) -> None:
        """Runs jobs in tasks of this nursery from now on.

        Cancellation: waiting jobs are dropped. A thread that runs a job ends at its next `rest`; nothing waits for it.
        """
        self._nursery = nursery
        self._start_tasks()

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, held_bytes: int = 0) -> Job:
        """Runs `work` in a thread, then calls `done` on the loop with its result, or with the exception that it raised.

        `done` is never called before this method returns. Jobs begin in the order of their submission and may end in any order.

        Args:
            held_bytes: the memory that `work` holds beside the broker's own, for example a copy of a request's records.
        """
        job = Job(work, done, held_bytes)
        is_full = len(self._queue) >= MOST_QUEUED_JOBS or self._queued_bytes + held_bytes > MOST_QUEUED_BYTES
        if self._queue and is_full:
            job = Job(_refuse, done, 0)
        self._queue.append(job)
        self._queued_bytes += job.held_bytes
        self._start_tasks()
        return job

    def close(self) -> None:
        """Cancels all jobs; a job that is submitted from now on never runs."""
        self._nursery = None
        for job in (*self._queue, *self._running):
            job.cancel()
        self._queue.clear()
        self._queued_bytes = 0

    def _start_tasks(self) -> None:
        if self._nursery is not None and self._queue and self._running_count < self._thread_count:
            self._running_count += 1
            self._nursery.start_soon(self._run_jobs)

    async def _run_jobs(self) -> None:
        try:
            while self._queue:
                job = self._queue.popleft()
                self._queued_bytes -= job.held_bytes
                if not job.is_cancelled:
                    await self._run(job)
        finally:
            self._running_count -= 1

    async def _run(self, job: Job) -> None:
        self._running.add(job)
        result: object
        try:
            result = await trio.to_thread.run_sync(job.run, limiter=self._limiter, abandon_on_cancel=True)
        except trio.Cancelled:
            job.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - no thread can be started; the other tasks of the nursery must continue
            result = error
        finally:
            self._running.discard(job)
        job.complete(result)


def _refuse() -> object:
    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the broker has too much work in its queue; try again")
