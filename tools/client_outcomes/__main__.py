"""Writes the tables of docs/testing.md: `python -m tools.client_outcomes`. It takes some minutes.

It needs what `make test` installs, Java and Maven.
"""

from __future__ import annotations

import logging

import click

from tools.client_outcomes.all_clients import find_cells
from tools.client_outcomes.page import render, rows, write_cells


@click.command(help=__doc__)
@click.option("--only", metavar="TEXT", help="Run the cases with this text in their labels, and print them instead.")
def main(only: str | None) -> None:
    """Writes the page."""
    logging.disable(logging.CRITICAL)
    cells = find_cells({row: case for row, case in rows().items() if only is None or only in row[1]})
    if only is None:
        write_cells(cells)
    else:
        click.echo(render(cells))


if __name__ == "__main__":
    main()
