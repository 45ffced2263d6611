"""Each aircraft's day as a session, for applyInPandasWithState: its departures from New York and their arrivals, summed up.

Spark keeps one state for each aircraft: its open days. A day is closed and returned once the watermark says that no event of the
day can come any more. The state is text of JSON, so that Spark's state data source shows it.

Spark's tasks get `update_days` by value, because the machines of a cluster do not have this package. cloudpickle copies the
functions that `update_days` calls, but a task would import a function with the decorator functools.cache, so no function has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState

FIELDS = ("kind", "service_date", "event_ms", "delay_minutes", "distance_miles", "air_time_minutes")
"""The fields of an event that `update_days` reads, from a column `event` of JSON. For each aircraft, Spark converts each
column to pandas on its own, so one column costs less than six."""

OUTPUT = (
    "tailnum STRING, service_date STRING, departures INT, arrivals INT, first_ms BIGINT, last_ms BIGINT, "
    "distance_miles BIGINT, air_time_minutes DOUBLE, departure_delay_minutes DOUBLE"
)

STATE = "days STRING"

CLOSED_AFTER_MS = 3 * 24 * 3_600_000
"""From the beginning of the day (UTC): 24 h, 5 h to New York's time, at most 22 h of delay and 12 h in the air."""

Totals = list[Any]
"""departures, arrivals, first_ms, last_ms, distance_miles, air_time_minutes, departure_delay_minutes"""


def update_days(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Adds the events of an aircraft to its open days, and yields those days that are over."""
    days: dict[str, Totals] = json.loads(state.get[0]) if state.exists else {}
    if not state.hasTimedOut:
        for frame in frames:
            _add(days, frame)
    watermark_ms = state.getCurrentWatermarkMs()
    over = sorted(day for day in days if close_ms(day) <= watermark_ms)
    if over:
        rows = [(key[0], day, *days.pop(day)) for day in over]
        yield pd.DataFrame(rows, columns=[column.split()[0] for column in OUTPUT.split(", ")])
    if days:
        state.update((json.dumps(days),))
        state.setTimeoutTimestamp(min(map(close_ms, days)))
    else:
        state.remove()


def _add(days: dict[str, Totals], frame: pd.DataFrame) -> None:
    for text in frame.event.tolist():
        event = json.loads(text)
        event_ms = event["event_ms"]
        totals = days.setdefault(event["service_date"], [0, 0, event_ms, event_ms, 0, 0.0, 0.0])
        totals[2], totals[3] = min(totals[2], event_ms), max(totals[3], event_ms)
        if event["kind"] == "departure":
            totals[0] += 1
            totals[6] += event["delay_minutes"]
        else:
            totals[1] += 1
            totals[4] += event["distance_miles"]
            totals[5] += event["air_time_minutes"]


def close_ms(day: str) -> int:
    """Returns the watermark at which a day is over."""
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000) + CLOSED_AFTER_MS
