"""Shows what a stream does: on a terminal a table that changes, otherwise one JSON line for each batch.

Spark's StreamingQueryListener tells the progress of every query of the session. The events come in order, but later than the
query goes on, so the reporter waits at its end for those that are still on their way.

Source: https://spark.apache.org/docs/latest/streaming/apis-on-dataframes-and-datasets.html#monitoring-streaming-queries
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.table import Table

EVENTS_TIMEOUT_S = 10.0
"""The reporter waits this long at its end for the events of queries that have ended."""

Offsets = Mapping[str, Mapping[str, int]]


@dataclass(slots=True, frozen=True)
class BatchProgress:
    """What a query did in one batch.

    Attributes:
        query: the name of the query, or its id.
        batch: the number of the batch, from the checkpoint.
        timestamp: when the batch began, in ISO 8601.
        records: the records that were read.
        records_per_second: at which the batch processed them.
        duration_ms: of the batch.
        lag: the offsets that remain to be read, by topic. None if the source is not Kafka, and in a batch that an earlier run
            had planned: Spark did not ask for the ends of the topics.
        state_rows: rows in the state stores.
        state_bytes: memory that the state stores use.
        watermark: the event time up to which the batch took no rows, in ISO 8601; None without a watermark.
        late_rows: rows that stateful operators dropped because they were behind the watermark.
    """

    query: str
    batch: int
    timestamp: str
    records: int
    records_per_second: float
    duration_ms: int
    lag: Mapping[str, int] | None
    state_rows: int
    state_bytes: int
    watermark: str | None
    late_rows: int


def batch_progress(progress: Mapping[str, Any]) -> BatchProgress | None:
    """Returns what Spark's StreamingQueryProgress says, as a mapping; None if it reports no batch, but that nothing came."""
    if "addBatch" not in progress["durationMs"]:
        return None
    states = progress["stateOperators"]
    return BatchProgress(
        query=str(progress["name"] or progress["id"]),
        batch=progress["batchId"],
        timestamp=progress["timestamp"],
        records=progress["numInputRows"],
        records_per_second=round(_number(progress.get("processedRowsPerSecond")), 1),
        duration_ms=progress["durationMs"].get("triggerExecution", 0),
        lag=_lag(progress["sources"]),
        state_rows=sum(state["numRowsTotal"] for state in states),
        state_bytes=sum(state["memoryUsedBytes"] for state in states),
        watermark=progress.get("eventTime", {}).get("watermark"),
        late_rows=sum(state["numRowsDroppedByWatermark"] for state in states),
    )


@contextmanager
def report_progress(spark: SparkSession, *, out: IO[str]) -> Iterator[None]:
    """Reports the progress of all queries that start in the block.

    Args:
        spark: the session of the queries.
        out: a terminal, or anything else for JSON lines.
    """
    with ExitStack() as stack:
        show = stack.enter_context(_table(out)) if out.isatty() else _json_lines(out)
        listener = _listener(show)
        spark.streams.addListener(listener)
        stack.callback(spark.streams.removeListener, listener)
        stack.callback(listener.wait_for_ends)
        yield


def _listener(show: Callable[[BatchProgress], None]) -> Any:
    """Returns the listener; its class cannot exist before PySpark is imported."""
    from pyspark.sql.streaming import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def __init__(self) -> None:
            self._changed = threading.Condition()
            self._running: set[str] = set()

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            with self._changed:
                self._running.add(str(event.runId))

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            found = batch_progress(json.loads(event.progress.json))
            if found is not None:
                show(found)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            with self._changed:
                self._running.discard(str(event.runId))
                self._changed.notify_all()

        def wait_for_ends(self) -> None:
            """Waits for the last events of the queries that were started."""
            with self._changed:
                self._changed.wait_for(lambda: not self._running, EVENTS_TIMEOUT_S)

    return Listener()


def _json_lines(out: IO[str]) -> Callable[[BatchProgress], None]:
    def show(progress: BatchProgress) -> None:
        out.write(json.dumps(asdict(progress)) + "\n")
        out.flush()

    return show


@contextmanager
def _table(out: IO[str]) -> Iterator[Callable[[BatchProgress], None]]:
    from rich.console import Console
    from rich.live import Live

    last: dict[str, BatchProgress] = {}
    totals: Counter[str] = Counter()
    begun = time.monotonic()
    with Live(console=Console(file=out), auto_refresh=False) as live:

        def show(progress: BatchProgress) -> None:
            last[progress.query] = progress
            totals[progress.query] += progress.records
            live.update(progress_table(last, totals, time.monotonic() - begun), refresh=True)

        yield show


def progress_table(last: Mapping[str, BatchProgress], totals: Mapping[str, int], elapsed_s: float) -> Table:
    """Returns a table of the last batch of each query.

    Args:
        last: the last batch of each query.
        totals: the records of each query since the start.
        elapsed_s: the seconds since the start.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table("query", "batch", "records", "records/s", "total", "lag", "state rows", "watermark", box=SIMPLE_HEAD)
    table.title, table.title_justify = f"{elapsed_s:,.0f} s", "left"
    for name, progress in last.items():
        lag = "\n".join(f"{topic} {count:,}" for topic, count in (progress.lag or {}).items())
        numbers = (progress.records, round(progress.records_per_second), totals[name])
        state = (f"{progress.state_rows:,}", progress.watermark or "")
        table.add_row(name, str(progress.batch), *(f"{number:,}" for number in numbers), lag, *state)
    return table


def _lag(sources: list[Mapping[str, Any]]) -> dict[str, int] | None:
    """Returns the offsets from the end of the batch to the end of each topic, of the sources that are Kafka."""
    lag: Counter[str] = Counter()
    kafka = [source for source in sources if source["description"].startswith("KafkaV2") and source.get("latestOffset")]
    for source in kafka:
        ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for topic, partitions in latest.items():
            for partition, offset in partitions.items():
                lag[topic] += max(0, offset - ends.get(topic, {}).get(partition, 0))
    return dict(sorted(lag.items())) if kafka else None


def _offsets(value: Any) -> Offsets:
    """Returns the offsets of Kafka's source, which are an object or the text of one."""
    return json.loads(value) if isinstance(value, str) else value or {}


def _number(value: Any) -> float:
    """Returns a rate; Spark writes NaN and Infinity, which JSON lacks, as text."""
    number = float(value or 0)
    return number if number == number and abs(number) != float("inf") else 0.0
