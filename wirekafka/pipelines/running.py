"""Runs a streaming query until it ends or is told to stop, and starts it again from its checkpoint after an outage.

Spark's query fails when no broker answers for some seconds. Its checkpoint says where it goes on, so the query is started again,
until brokers have been away for `OUTAGE_S`.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

OUTAGE_S = 300.0
"""A query whose brokers do not answer is started again for this long since its last batch."""

RESTART_DELAY_S = 1.0
POLL_S = 0.2

OUTAGES = re.compile(
    r"TimeoutException|DisconnectException|Failed to (?:construct|create) (?:new )?Kafka|No resolvable bootstrap"
    r"|_TRANSPORT|_ALL_BROKERS_DOWN|_TIMED_OUT|COORDINATOR_NOT_AVAILABLE|NOT_COORDINATOR|NETWORK_EXCEPTION|SinkInterrupted"
)
"""What errors of Spark, of Kafka's Java client, of librdkafka and of the transactional sink say when no broker answers."""


class StopRequest:
    """Tells a pipeline to end after its running batch; SIGTERM and SIGINT set it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Asks for the end."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether the end was asked for."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the request; returns whether it came."""
        return self._event.wait(timeout_s)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Yields a request that SIGTERM and SIGINT set, as long as the block runs."""
    request = StopRequest()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: request.set()) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_query(start: Callable[[], StreamingQuery], stop: StopRequest) -> None:
    """Runs the query that `start` starts, until it ends by itself or `stop` is set; a running batch ends first.

    Raises:
        PipelineError: the query failed for another reason than an outage of the brokers, or the outage was too long.
    """
    from pyspark.errors import StreamingQueryException

    last_success = time.monotonic()
    while True:
        query = start()
        batch: Any = None
        try:
            while not query.awaitTermination(POLL_S):
                progress = query.lastProgress
                if progress is not None and progress["batchId"] != batch:
                    batch, last_success = progress["batchId"], time.monotonic()
                if stop.is_set():
                    _stop_after_batch(query)
                    return
            return
        except StreamingQueryException as error:
            if OUTAGES.search(str(error)) is None or time.monotonic() - last_success > OUTAGE_S:
                raise PipelineError(str(error)) from error
        if stop.wait(RESTART_DELAY_S):
            return


def _stop_after_batch(query: StreamingQuery) -> None:
    """Stops a query between two batches; in a batch, it waits for the end of the batch."""
    while query.isActive and query.status["isTriggerActive"]:
        time.sleep(POLL_S)
    query.stop()
