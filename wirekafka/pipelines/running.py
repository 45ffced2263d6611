"""Runs a streaming query until it ends or is told to stop, and starts it again from its checkpoint after an outage.

Spark's query fails when no broker answers for some time. Its checkpoint says where it goes on, so the query is started again,
until the brokers have been away for `OUTAGE_S`.

A stop that is asked for waits for the running batch. Spark itself has only `StreamingQuery.stop`, which interrupts a batch, and a
query that always has data is never idle. So after a request:

- the batch that runs ends, and is committed to the checkpoint;
- the next one ends in `stoppable`, before its function does anything, or is interrupted when the end of the batch is noticed.

A second request, or `STOP_TIMEOUT_S`, interrupts the batch. The next run does such a batch again, and the sinks make sure that
this changes nothing.

Source: org.apache.spark.sql.execution.streaming.StreamExecution and MicroBatchExecution of Spark 4.0.
"""

from __future__ import annotations

import functools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.failures import explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

OUTAGE_S = 300.0
"""A query whose brokers do not answer is started again for this long since its first failure, if no batch ends meanwhile."""

STOP_TIMEOUT_S = 300.0
"""A stop waits this long for the running batch."""

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 15.0

JITTER = 0.3
"""A delay is shorter by up to this part, so that pipelines that failed together do not start together."""

POLL_S = 0.1

STOPPED = "WIREKAFKA_STOPPED_BETWEEN_BATCHES"
"""In the text of the failure by which `stoppable` ends a query."""


class StopRequest:
    """Tells a pipeline to end: after the running batch if it was asked for once, at once if it was asked for again."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.is_urgent = False

    def set(self) -> None:
        """Asks for the end."""
        self.is_urgent = self._asked.is_set()
        self._asked.set()

    def is_set(self) -> bool:
        """Whether the end was asked for."""
        return self._asked.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the request; returns whether it came."""
        return self._asked.wait(timeout_s)


_current: StopRequest | None = None
"""The request of the signals of this process, for `stoppable`."""


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Yields a request that SIGTERM and SIGINT set, as long as the block runs."""
    global _current
    request = _current = StopRequest()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: request.set()) for number in numbers}
    try:
        yield request
    finally:
        _current = None
        for number, handler in before.items():
            signal.signal(number, handler)


def stoppable(write_batch: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Returns a function for `foreachBatch` that ends the query before a batch if a stop was asked for."""

    @functools.wraps(write_batch)
    def write(frame: DataFrame, batch_id: int) -> None:
        if _current is not None and _current.is_set():
            raise PipelineError(STOPPED)
        write_batch(frame, batch_id)

    return write


Recover = Callable[[str], "UnreachableError | None"]


def no_recovery(failure: str) -> UnreachableError | None:
    """Mends nothing: the failure ends the run."""
    return None


def tell(message: str) -> None:
    """Prints a message of a running pipeline on stderr."""
    print(f"wirekafka: {message}", file=sys.stderr, flush=True)


def run_query(
    start: Callable[[], StreamingQuery], stop: StopRequest, notify: Callable[[str], None] = tell, recover: Recover = no_recovery
) -> None:
    """Runs the query that `start` starts, until it ends by itself or `stop` is set; a running batch ends first.

    Args:
        start: starts the query from its checkpoint.
        stop: the request to end.
        notify: takes a message about an outage.
        recover: mends what a query cannot go on from. It gets the text of the failure; if it returns an error, the query is
            started again, as after an outage. It may raise a PipelineError.

    Raises:
        PipelineError: the query cannot start, it failed for another reason than an outage of the brokers, or the outage was
            too long.
    """
    run = _Run(stop, recover)
    first = start()
    outage = run.attempt(lambda: first)
    while outage is not None:
        delay_s = run.next_delay(outage)
        notify(f"{outage}; the pipeline tries again in {delay_s:.1f} s")
        if stop.wait(delay_s):
            return
        outage = run.attempt(start)


class _Run:
    """The run of a query over all its starts."""

    def __init__(self, stop: StopRequest, recover: Recover) -> None:
        self._stop = stop
        self._recover = recover
        self._last_batch: Any = None
        self._failing_since_s: float | None = None
        self._delay_s = FIRST_DELAY_S

    def attempt(self, start: Callable[[], StreamingQuery]) -> UnreachableError | None:
        """Runs the query until its end; returns the outage that ended it.

        Raises:
            PipelineError: the query failed for another reason.
        """
        from pyspark.errors import PySparkException

        try:
            query = start()
        except UnreachableError as outage:
            return outage
        try:
            self._watch(query)
        except PySparkException as error:
            if STOPPED in str(error):
                return None
            self._note_batch(query)
            return self._explain(error)
        return None

    def _explain(self, failure: Exception) -> UnreachableError:
        """Returns the outage that has ended the query, or what `recover` has mended.

        Raises:
            PipelineError: the query failed for another reason.
        """
        explanation = explain(str(failure))
        if isinstance(explanation, UnreachableError):
            return explanation
        try:
            mended = self._recover(str(failure))
        except UnreachableError as outage:
            return outage
        if mended is None:
            raise explanation from failure
        return mended

    def _watch(self, query: StreamingQuery) -> None:
        """Waits for the end of the query, or stops it when the stop is asked for."""
        while not query.awaitTermination(POLL_S):
            if self._stop.is_set():
                self._note_batch(query)
                self._stop_after_batch(query)
                return

    def next_delay(self, outage: UnreachableError) -> float:
        """Returns the seconds until the next start; they double from one start to the next, less a random part.

        Raises:
            UnreachableError: no batch has ended for too long.
        """
        if self._failing_since_s is None:
            self._failing_since_s = time.monotonic()
        if time.monotonic() - self._failing_since_s > OUTAGE_S:
            raise outage
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        return delay_s * random.uniform(1 - JITTER, 1)

    def _note_batch(self, query: StreamingQuery) -> bool:
        """Returns whether another batch, or another look for data, has ended since the last call.

        It is called seldom: PySpark makes the progress with lookups of classes, which read the directory of each jar in vain.
        Four queries that asked ten times a second took 45 % of the JVM's CPU (2026-11-23, PySpark 4.0.0).
        """
        progress = query.lastProgress
        batch = (progress["batchId"], progress["timestamp"]) if progress is not None else None
        if batch is None or batch == self._last_batch:
            return False
        self._last_batch, self._failing_since_s, self._delay_s = batch, None, FIRST_DELAY_S
        return True

    def _stop_after_batch(self, query: StreamingQuery) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while query.isActive and query.status["isTriggerActive"] and not self._stop.is_urgent:
            if self._note_batch(query) or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        query.stop()
        failure = query.exception()
        # A batch that a second request has interrupted may say that it failed.
        if failure is not None and not self._stop.is_urgent:
            raise failure
