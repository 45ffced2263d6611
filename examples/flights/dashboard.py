"""Makes one HTML page of the results, which needs neither a server nor the network: plotly stands in the page itself.

    python -m examples.flights.dashboard --results results --page dashboard.html

The page is written beside its place and then renamed, so a browser never sees half of it. The browser loads it again every
few seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import click
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go
import plotly.io
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.flights.results import DAYS, DELAYS, DEPARTURES, MALFORMED, TABLES, Results
from examples.flights.timeline import ORIGINS
from wirekafka.cli.pipeline.shared import session_options
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.session import Connector, SessionOptions, open_session

RELOAD_S = 10
"""A browser loads the page again after this time."""

LEAST_FLIGHTS = 100
"""Groups with fewer flights are left out of the plots of means."""


@dataclass(slots=True)
class Dashboard:
    """The page of one directory of results.

    Attributes:
        page: the path of the HTML file.
    """

    spark: SparkSession
    results: Results
    page: Path
    _seen: list[int] = field(default_factory=list)

    def refresh(self) -> bool:
        """Makes the page again if a table has changed since the last time; returns whether it has."""
        versions = [_version(self.results.path(table)) for table in TABLES]
        if versions == self._seen:
            return False
        parts = [_numbers(self), *(_html(figure(self), number) for number, figure in enumerate(FIGURES))]
        write_atomically(self.page, _document(parts))
        self._seen = versions
        return True

    def rows(self, frame: DataFrame) -> pd.DataFrame:
        """Returns the rows of a small frame."""
        return frame.toPandas()


def delays_by_hour_of_day(dashboard: Dashboard) -> go.Figure:
    """The mean delay of departures by airport and hour of the day in New York."""
    delays = dashboard.results.read(dashboard.spark, DELAYS).filter(f.col("airport").isin(*ORIGINS))
    hour = f.hour(f.from_utc_timestamp("hour", "America/New_York")).alias("hour of the day")
    totals = delays.groupBy("airport", hour).agg(
        f.sum("departure_delay_minutes").alias("delay"), f.sum("departures").alias("departures")
    )
    rows = dashboard.rows(totals.filter(f.col("departures") > 0).orderBy("airport", "hour of the day"))
    rows["mean delay in minutes"] = rows.delay / rows.departures
    title = "Departures: mean delay by airport and hour of the day"
    return px.line(rows, x="hour of the day", y="mean delay in minutes", color="airport", title=title, markers=True)


def delays_by_date(dashboard: Dashboard) -> go.Figure:
    """The mean delay of departures by airport and date."""
    delays = dashboard.results.read(dashboard.spark, DELAYS).filter(f.col("airport").isin(*ORIGINS))
    date = f.to_date(f.from_utc_timestamp("hour", "America/New_York")).alias("date")
    totals = delays.groupBy("airport", date).agg(
        f.sum("departure_delay_minutes").alias("delay"), f.sum("departures").alias("departures")
    )
    rows = dashboard.rows(totals.filter(f.col("departures") > 0).orderBy("airport", "date"))
    rows["mean delay in minutes"] = rows.delay / rows.departures
    return px.line(rows, x="date", y="mean delay in minutes", color="airport", title="Departures: mean delay by airport and date")


def delays_by_weather(dashboard: Dashboard) -> go.Figure:
    """The mean delay of departures by visibility and precipitation."""
    departures = dashboard.results.read(dashboard.spark, DEPARTURES).filter("visib IS NOT NULL")
    rain = f.when(f.col("precip") > 0, "with precipitation").otherwise("dry").alias("precipitation")
    totals = departures.groupBy(f.floor("visib").alias("visibility in miles"), rain).agg(
        f.avg("delay_minutes").alias("mean delay in minutes"), f.count("*").alias("flights")
    )
    rows = dashboard.rows(totals.filter(f.col("flights") >= LEAST_FLIGHTS).orderBy("visibility in miles", "precipitation"))
    title = "Departures joined with the weather: mean delay by visibility"
    columns = {"x": "visibility in miles", "y": "mean delay in minutes", "color": "precipitation"}
    return px.bar(rows, **columns, barmode="group", hover_data=["flights"], title=title)


def delays_by_manufacturer(dashboard: Dashboard) -> go.Figure:
    """The mean delay of departures by the manufacturer of the plane, from the compacted topic of planes."""
    departures = dashboard.results.read(dashboard.spark, DEPARTURES)
    maker = f.coalesce(f.initcap("manufacturer"), f.lit("unknown")).alias("manufacturer")
    totals = departures.groupBy(maker).agg(f.avg("delay_minutes").alias("mean delay in minutes"), f.count("*").alias("flights"))
    rows = dashboard.rows(totals.filter(f.col("flights") >= LEAST_FLIGHTS).orderBy(f.desc("flights")))
    title = "Departures joined with the planes: mean delay by manufacturer"
    return px.bar(rows, x="manufacturer", y="mean delay in minutes", hover_data=["flights"], title=title)


def delays_by_destination(dashboard: Dashboard) -> go.Figure:
    """The destinations at their places, from the compacted topic of airports."""
    departures = dashboard.results.read(dashboard.spark, DEPARTURES).filter("dest_lat IS NOT NULL")
    totals = departures.groupBy("dest").agg(
        f.max("dest_name").alias("airport"),
        f.max("dest_lon").alias("longitude"),
        f.max("dest_lat").alias("latitude"),
        f.avg("delay_minutes").alias("mean delay"),
        f.count("*").alias("flights"),
    )
    rows = dashboard.rows(totals.orderBy("dest"))
    title = "Departures joined with the airports: flights and mean delay by destination"
    columns = {"x": "longitude", "y": "latitude", "size": "flights", "color": "mean delay"}
    return px.scatter(rows, **columns, hover_name="airport", title=title)


def aircraft_days(dashboard: Dashboard) -> go.Figure:
    """How many departures from New York an aircraft has on one day."""
    days = dashboard.results.read(dashboard.spark, DAYS)
    counts = days.groupBy("departures").agg(f.count("*").alias("days"), f.avg("departure_delay_minutes").alias("delay"))
    rows = dashboard.rows(counts.filter("departures > 0").orderBy("departures"))
    rows["mean delay in minutes"] = rows.delay / rows.departures
    columns = {"x": "departures", "y": "days", "color": "mean delay in minutes"}
    return px.bar(rows, **columns, log_y=True, title="Each aircraft's day: departures from New York, and their mean delay")


FIGURES: tuple[Callable[[Dashboard], go.Figure], ...] = (
    delays_by_hour_of_day,
    delays_by_date,
    delays_by_weather,
    delays_by_manufacturer,
    delays_by_destination,
    aircraft_days,
)


def _numbers(dashboard: Dashboard) -> str:
    """Returns a table of the totals."""
    spark, results = dashboard.spark, dashboard.results
    delays = results.read(spark, DELAYS).selectExpr(
        "sum(departures)", "sum(arrivals)", "sum(cancellations)", "sum(departure_delay_minutes) / sum(departures)", "max(hour)"
    )
    departures, arrivals, cancellations, delay, hour = delays.first() or (None,) * 5
    totals = {
        "events until": "" if hour is None else f"{hour:%Y-%m-%d %H:%M} UTC",
        "departures": f"{departures or 0:,}",
        "arrivals": f"{arrivals or 0:,}",
        "cancellations": f"{cancellations or 0:,}",
        "mean delay of a departure": "" if delay is None else f"{delay:.1f} minutes",
        "departures joined": f"{results.read(spark, DEPARTURES).count():,}",
        "aircraft days": f"{results.read(spark, DAYS).count():,}",
        "malformed records": f"{results.read(spark, MALFORMED).count():,}",
        "made at": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
    }
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in totals.items())
    return f"<table>{cells}</table>"


def _html(figure: go.Figure, number: int) -> str:
    """Returns a figure; the first one brings plotly's program."""
    figure.update_layout(template="plotly_white", height=420)
    return str(plotly.io.to_html(figure, full_html=False, include_plotlyjs=number == 0, div_id=f"figure-{number}"))


def _document(parts: list[str]) -> str:
    style = (
        "body{font-family:sans-serif;margin:2em auto;max-width:1500px}"
        "main{display:grid;grid-template-columns:repeat(auto-fit,minmax(600px,1fr));gap:1em}"
        "th{text-align:left;padding-right:1em;font-weight:normal;color:#555}td{text-align:right}"
    )
    figures = "".join(f"<section>{part}</section>" for part in parts)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Flights of 2013</title>'
        f'<meta http-equiv="refresh" content="{RELOAD_S}"><style>{style}</style></head>'
        f"<body><h1>Flights from New York in 2013</h1><main>{figures}</main></body></html>"
    )


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file; a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _version(table_path: str) -> int:
    """Returns the number of commits in the log of a Delta table; -1 without one."""
    names = (path.stem for path in Path(table_path, "_delta_log").glob("*.json"))
    return max((int(name) for name in names if name.isdigit()), default=-1)


@click.command(help=__doc__)
@click.option("--results", "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), default="dashboard.html", show_default=True)
@session_options
def main(directory: Path, page: Path, session: SessionOptions) -> None:
    try:
        spark = open_session("flights dashboard", frozenset({Connector.DELTA}), session)
        Dashboard(spark, Results(directory), page).refresh()
        spark.stop()
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    print(page.resolve().as_uri())


if __name__ == "__main__":
    main()
