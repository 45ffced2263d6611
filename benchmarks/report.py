"""Figures into tables: medians of the rounds, their ratio, and what is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.rows import Figure, Row

Results = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""By row, broker and figure: one number a round."""

BROKERS = ("wirekafka", "kafka")


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


def _ratio(wirekafka: Sequence[float] | None, kafka: Sequence[float] | None) -> str:
    if not wirekafka or not kafka or not median(kafka):
        return "-"
    return _number(median(wirekafka) / median(kafka))


def _asked(figure: Figure) -> str:
    if figure.asked_ratio is not None:
        return f"{figure.asked_ratio}"
    if figure.asked_least is not None:
        return f"> {figure.asked_least:,g}"
    return f"< {figure.asked:,g}" if figure.asked is not None else ""


def figures_table(rows: Sequence[Row], results: Results) -> Table:
    """Every figure of the rows that ran."""
    table = Table("", "figure", "wirekafka", "Apache Kafka", "ratio", "asked", box=box.MARKDOWN)
    for row in rows:
        for place, (name, figure) in enumerate(row.figures.items()):
            ours, theirs = (results.get(row.name, {}).get(broker, {}).get(name) for broker in BROKERS)
            title = "" if place else row.title
            table.add_row(title, figure.unit, _shown(ours), _shown(theirs), _ratio(ours, theirs), _asked(figure))
    return table


def facts_table(facts: Mapping[str, str]) -> Table:
    """The machine."""
    table = Table("", "", box=box.MARKDOWN)
    for name, fact in facts.items():
        table.add_row(name, fact)
    return table


def print_report(facts: Mapping[str, str], rows: Sequence[Row], results: Results) -> None:
    """Both tables, in Markdown, as wide as they are."""
    console = Console(width=180)
    console.print(facts_table(facts))
    console.print()
    console.print(figures_table(rows, results))
