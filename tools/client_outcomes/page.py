"""The tables in docs/testing.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.client_outcomes.cases import SECTIONS, Case

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "testing.md"
BEGIN, END = "<!-- outcomes: written by python -m tools.client_outcomes -->", "<!-- end of outcomes -->"

Row = tuple[str, str]
"""The name of a section, and the label of a case."""

Cells = Mapping[Row, Mapping[str, str]]
"""The outcomes by row and client."""


def rows() -> dict[Row, Case]:
    """Returns all cases, in the order of the page."""
    return {(section, case.label): case for section, cases in SECTIONS.items() for case in cases}


def render(cells: Cells) -> str:
    """Returns the tables."""
    parts = []
    for section in SECTIONS:
        of_section = {label: row for (name, label), row in cells.items() if name == section}
        clients = list(next(iter(of_section.values())))
        lines = [f"| {' | '.join([section, *clients])} |", f"|---|{'---|' * len(clients)}"]
        lines += [f"| {' | '.join([f'`{label}`', *row.values()])} |" for label, row in of_section.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def parse(text: str) -> Cells:
    """Returns the cells of the tables that `render` has made."""
    cells: dict[Row, dict[str, str]] = {}
    for table in text.strip().split("\n\n"):
        heads, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        for label, *row in lines:
            cells[heads[0], label.strip("`")] = dict(zip(heads[1:], row, strict=True))
    return cells


def written_cells() -> Cells:
    """Returns the cells of the page."""
    return parse(PAGE.read_text().partition(BEGIN)[2].partition(END)[0])


def write_cells(cells: Cells) -> None:
    """Replaces the tables of the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{render(cells)}\n\n{END}{rest.partition(END)[2]}")
