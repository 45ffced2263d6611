"""Prints the figures as tables: the medians of the rounds, their ratio, and the required value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.brokers import KINDS
from benchmarks.rows import Figure, Row

Results = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""One number per round, by row, broker and figure."""


def _number(value: float) -> str:
    for limit, digits in ((0.1, 4), (1, 3), (100, 2), (1000, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"


def _shown(rounds: Sequence[float] | None) -> str:
    if not rounds:
        return "-"
    middle = _number(median(rounds))
    return middle if len(rounds) == 1 else f"{middle} ({_number(min(rounds))} to {_number(max(rounds))})"


def _ratio(ours: Sequence[float] | None, kafka: Sequence[float] | None) -> str:
    if not ours or not kafka or not median(kafka):
        return "-"
    return _number(median(ours) / median(kafka))


def _asked(figure: Figure) -> str:
    if figure.asked_ratio is not None:
        return f"{figure.asked_ratio}"
    if figure.asked_least is not None:
        return f"> {figure.asked_least:,g}"
    return f"< {figure.asked:,g}" if figure.asked is not None else ""


def figures_table(rows: Sequence[Row], results: Results) -> Table:
    """Makes the table of all figures of the rows that ran."""
    table = Table("", "figure", "wirekafka", "Apache Kafka", "ratio", "asked", "floor", "floor / Kafka", box=box.MARKDOWN)
    for row in rows:
        for place, (name, figure) in enumerate(row.figures.items()):
            ours, theirs, least = (results.get(row.name, {}).get(kind, {}).get(name) for kind in KINDS)
            title = "" if place else row.title
            compared = _ratio(ours, theirs), _asked(figure), _shown(least), _ratio(least, theirs)
            table.add_row(title, figure.unit, _shown(ours), _shown(theirs), *compared)
    return table


def facts_table(facts: Mapping[str, str]) -> Table:
    """Makes the table of the facts of the machine."""
    table = Table("", "", box=box.MARKDOWN)
    for name, fact in facts.items():
        table.add_row(name, fact)
    return table


def print_report(facts: Mapping[str, str], rows: Sequence[Row], results: Results) -> None:
    """Prints both tables in Markdown at full width."""
    console = Console(width=220)
    console.print(facts_table(facts))
    console.print()
    console.print(figures_table(rows, results))
