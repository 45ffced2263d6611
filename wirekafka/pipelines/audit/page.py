"""The report as one HTML file, which holds the plots, their data and plotly's JavaScript, and loads nothing.

The page forbids itself every access to a network by a Content-Security-Policy. It opens from file://.

Source: https://plotly.com/python/interactive-html-export/, https://www.w3.org/TR/CSP3/
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

import numpy

from wirekafka.pipelines.audit.claims import MINUTE_MS
from wirekafka.pipelines.audit.options import format_time
from wirekafka.pipelines.audit.report import AuditReport
from wirekafka.pipelines.audit.series import grid, per_second, topic_series
from wirekafka.pipelines.audit.summary import Table, tables, verdict

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_ROWS = 500
MOST_TOPICS = 20
MOST_BARS = 50

POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1c2733; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
.verdict { padding: .7rem 1rem; border-left: .35rem solid #2a9d5c; background: #eef8f1; font-weight: 600; }
.verdict.different { border-color: #c8372d; background: #fcefee; }
.scroll { overflow: auto; max-height: 30rem; } table { border-collapse: collapse; font-size: .88rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #dde3ea; text-align: left; white-space: nowrap; }
th { color: #55636f; font-weight: 600; position: sticky; top: 0; background: #fff; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.note { color: #55636f; }
"""

LINES = {"brokers": {"color": "#9cc4e4", "width": 4}, "claims": {"color": "#e08a1e", "width": 1.5}}
LAKE_COLORS = ("#2a9d5c", "#8a4fbf", "#b0446e", "#5c6b2f")


def page(report: AuditReport) -> str:
    """Returns the HTML file."""
    from plotly.offline import get_plotlyjs

    state = "verdict different" if report.has_differences else "verdict"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>Audit of {escape(_where(report))}</title><style>{STYLE}</style>",
        f"<script>{get_plotlyjs()}</script></head><body>",
        f'<h1>Audit of {escape(_where(report))}</h1><p class="note">{format_time(report.audited_at_ms)}; minutes are in UTC</p>',
        f'<p class="{state}">{escape(verdict(report))}</p>',
        *(_table(table) for table in tables(report, MOST_ROWS)),
        *(f'<p class="note">{escape(note)}</p>' for note in report.notes),
        *_plots(report),
        "</body></html>",
    ]
    return "\n".join(parts)


def _where(report: AuditReport) -> str:
    return str(report.read["records from"])


def _table(table: Table) -> str:
    """Returns a heading and a table."""
    classes = [' class="number"' if name in table.numbers else "" for name in table.columns]
    head = "".join(f"<th{style}>{escape(name)}</th>" for name, style in zip(table.columns, classes, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{style}>{escape(cell)}</td>" for cell, style in zip(row, classes, strict=True)) + "</tr>"
        for row in table.rows
    )
    more = f'<p class="note">and {table.left_out:,} more rows, which the JSON has</p>' if table.left_out else ""
    return f'<h2>{escape(table.title)}</h2><div class="scroll"><table><tr>{head}</tr>{body}</table></div>{more}'


def _plots(report: AuditReport) -> Iterator[str]:
    for title, figure in figures(report):
        yield f"<h2>{escape(title)}</h2>"
        yield figure.to_html(full_html=False, include_plotlyjs=False, config={"displayModeBar": False, "responsive": True})
    if len(report.topics) > MOST_TOPICS:
        yield f'<p class="note">The {MOST_TOPICS} topics with the most records have plots, of {len(report.topics):,} topics.</p>'


def figures(report: AuditReport) -> Iterator[tuple[str, Figure]]:
    """Yields the plots with their titles."""
    largest = sorted(report.topics, key=lambda topic: -topic.records)[:MOST_TOPICS]
    for topic in largest:
        if topic.records:
            yield f"Rates of {topic.topic}", _rates(report, topic.topic)
    groups = {f"{each.group}: {each.topic}": 0 for each in report.groups}
    for each in report.groups:
        groups[f"{each.group}: {each.topic}"] += each.lag
    queries = {f"{each.checkpoint}: {each.topic}": 0 for each in report.queries}
    for query in report.queries:
        queries[f"{query.checkpoint}: {query.topic}"] += query.lag
    for title, lags in (("Largest lags of consumer groups", groups), ("Largest lags of Spark's queries", queries)):
        if lags:
            yield title, _bars(lags)


def _rates(report: AuditReport, topic: str) -> Figure:
    """Returns the records and the bytes per second of a topic, at each place."""
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    series = topic_series(report.counts, topic)
    times = grid(minute for values in series.records.values() for minute in values)
    x = [str(numpy.datetime64(time_ms // MINUTE_MS, "m")).replace("T", " ") for time_ms in times.times_ms]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    lakes = iter(LAKE_COLORS * len(series.records))
    for place, values in series.records.items():
        line = LINES.get(place) or {"color": next(lakes), "width": 1.5, "dash": "dot"}
        figure.add_trace(
            Scatter(x=x, y=per_second(values, times), name=escape(place), mode="lines", line={**line, "shape": "hv"}),
            row=1,
            col=1,
        )
    line = {"color": "#1f6fb2", "shape": "hv", "width": 1.5}
    sizes = per_second(series.size_bytes, times)
    figure.add_trace(Scatter(x=x, y=sizes, name="bytes at the brokers", mode="lines", line=line), row=2, col=1)
    minutes = times.width_ms // 60_000
    figure.update_yaxes(title_text="records/s", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title_text="bytes/s", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title_text="by minute" if minutes == 1 else f"means of {minutes} minutes", row=2, col=1)
    figure.update_layout(height=460, margin={"l": 60, "r": 20, "t": 20, "b": 50}, template="plotly_white", hovermode="x unified")
    return figure


def _bars(lags: dict[str, int]) -> Figure:
    from plotly.graph_objects import Bar, Figure

    shown = sorted(lags.items(), key=lambda item: -item[1])[:MOST_BARS][::-1]
    figure = Figure(Bar(x=[lag for _, lag in shown], y=[escape(name) for name, _ in shown], orientation="h"))
    figure.update_layout(height=120 + 26 * len(shown), margin={"l": 20, "r": 20, "t": 10, "b": 40}, template="plotly_white")
    figure.update_xaxes(title_text="lag in offsets", rangemode="tozero")
    figure.update_yaxes(automargin=True)
    return figure
