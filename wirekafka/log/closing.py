"""Closes the logs of a data directory: writes what the next start reads, then waits for the disk for a bounded time.

How it works: the indexes and producers of each log are written in a few threads, because most of that time passes in the
file system. Then the same threads flush the logs, until all of them are on the disk or `FLUSH_SECONDS` have passed.

Rules of this file:
    Nothing appends to a log from the call of `close_logs` on.
    An error of one log costs the clean mark of its directory, and nothing else.
    A thread reports errors to the loop, and never changes the state of a directory.

Source: kafka.log.LogManager.shutdown, which has num.recovery.threads.per.data.dir threads for it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import trio

from wirekafka.faults import isolate
from wirekafka.log.flush import Flush
from wirekafka.log.log import Log

FLUSH_SECONDS = 1
"""The seconds for which a close waits for the disk."""
MOST_THREADS = 4
"""The most threads of one close. File systems commit the syncs of several threads together."""
_LOGS_FOR_A_THREAD = 64
"""The number of logs for each thread; another thread for fewer logs would not be faster."""
_RECOVERS = "The next start recovers the partition. Report this with the traceback"


class Closed(NamedTuple):
    """The result of closing the logs of a directory.

    Attributes:
        is_clean: every log was written; the next start needs no recovery while the machine runs.
        is_on_disk: everything that was written is on the disk too.
    """

    is_clean: bool
    is_on_disk: bool


class _Closing:
    """One log that is being closed, in the threads.

    Attributes:
        flush: writes the log's unsynced data to the disk; None until `write` has succeeded.
        error: the exception that ended `write` or `sync`; None if there was none.
    """

    __slots__ = ("error", "flush", "is_flushed", "log")

    def __init__(self, closing: Log) -> None:
        self.log = closing
        self.flush: Flush | None = None
        self.error: Exception | None = None
        self.is_flushed = False

    def write(self) -> None:
        """Writes what the next start reads. Runs in any thread."""
        self._attempt("Could not close a log", self._write)

    def sync(self) -> None:
        """Waits for the disk. Runs in any thread."""
        self._attempt("Could not flush a log", self._sync)

    def _write(self) -> None:
        self.flush = self.log.write_for_restart()

    def _sync(self) -> None:
        if self.flush is not None:
            self.flush.run()
            self.is_flushed = True

    def _attempt(self, failure: str, work: Callable[[], None]) -> None:
        with isolate(failure, remedy=_RECOVERS, partition=str(self.log.topic_partition)) as fault:
            try:
                work()
            except OSError as error:
                self.error = error
                return
        self.error = fault.error


async def close_logs(logs: Iterable[Log]) -> Closed:
    """Ends all appends to the logs of one directory, writes what the next start reads, and flushes the logs.

    Durability: in the page cache if `is_clean`; on disk if `is_on_disk`.
    Cancellation: the logs that are not written yet are recovered by the next start.
    """
    found = list(logs)
    closings = [_Closing(each) for each in found if each.reader.offline_reason is None]
    for closing in closings:
        closing.log.end_appends()
    await _run_in_threads(_Closing.write, closings, deadline=math.inf)
    for closing in closings:
        if isinstance(closing.error, OSError):
            closing.log.reader.note_disk_error("close", closing.error)
    written = [closing for closing in closings if closing.flush is not None]
    await _flush(written)
    is_on_disk = all(closing.log.flusher.recovery_point == closing.log.reader.log_end_offset for closing in written)
    return Closed(len(written) == len(found), is_on_disk)


async def _flush(written: list[_Closing]) -> None:
    await _run_in_threads(_Closing.sync, written, deadline=time.monotonic() + FLUSH_SECONDS)
    for closing in written:
        if closing.is_flushed and closing.flush is not None:
            closing.log.flusher.complete(closing.flush)
        elif isinstance(closing.error, OSError):
            closing.log.reader.note_disk_error("flush", closing.error)


async def _run_in_threads(work: Callable[[_Closing], None], closings: list[_Closing], deadline: float) -> None:
    """Does the work for each log, in a few threads; no work begins after the deadline, in seconds of `time.monotonic`.

    Cancellation: no more work begins.
    """
    waiting = deque(closings)

    def run() -> None:
        while time.monotonic() < deadline:
            trio.from_thread.check_cancelled()
            try:
                closing = waiting.popleft()
            except IndexError:
                return
            work(closing)

    thread_count = min(MOST_THREADS, -(-len(closings) // _LOGS_FOR_A_THREAD))
    async with trio.open_nursery() as nursery:
        for _ in range(thread_count):
            nursery.start_soon(trio.to_thread.run_sync, run)
