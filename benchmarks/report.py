"""Prints the figures as tables: the medians of the rounds, their ratio, and the required value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.brokers import FLOOR, KINDS
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


def _is_missed(figure: Figure, ours: Sequence[float] | None, theirs: Sequence[float] | None) -> bool:
    """Whether the figure, or its ratio, is not what is asked."""
    if not ours:
        return False
    value = median(ours)
    if figure.asked_ratio is not None and theirs and median(theirs):
        ratio = value / median(theirs)
        return ratio < figure.asked_ratio if figure.is_rate else ratio > figure.asked_ratio
    if figure.asked_least is not None:
        return value < figure.asked_least
    return figure.asked is not None and value > figure.asked


def _marked(text: str, is_missed: bool) -> str:
    return f"**{text}**" if is_missed and text != "-" else text


def figures_table(rows: Sequence[Row], results: Results) -> Table:
    """Makes the table of all figures of the rows that ran. What is not reached is bold; the floor has columns if it ran."""
    has_floor = any(FLOOR in by_kind for by_kind in results.values())
    of_floor = ("floor", "floor / Kafka") if has_floor else ()
    table = Table("", "figure", "wirekafka", "Apache Kafka", "ratio", "asked", *of_floor, box=box.MARKDOWN)
    for row in rows:
        for place, (name, figure) in enumerate(row.figures.items()):
            ours, theirs, least = (results.get(row.name, {}).get(kind, {}).get(name) for kind in KINDS)
            is_missed, has_ratio = _is_missed(figure, ours, theirs), figure.asked_ratio is not None
            title = "" if place else row.title
            cells = [title, figure.unit, _marked(_shown(ours), is_missed and not has_ratio), _shown(theirs)]
            cells += [_marked(_ratio(ours, theirs), is_missed and has_ratio), _asked(figure)]
            table.add_row(*cells, *((_shown(least), _ratio(least, theirs)) if has_floor else ()))
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
