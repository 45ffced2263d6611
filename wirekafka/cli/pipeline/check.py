"""`wirekafka pipeline check`: proves that a lake has each record once, or names what is lost or doubled."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wirekafka.cli.pipeline.shared import cluster_options, dry_run_option, open_spark, print_plan, session_options

if TYPE_CHECKING:
    from wirekafka.pipelines.check.report import CheckReport
    from wirekafka.pipelines.kafka import Cluster
    from wirekafka.pipelines.session import SessionOptions

NOT_PROVEN = 1
WIDE = 4096
"""The width of the table. Folded cells on a narrow terminal would be unreadable."""

EXAMPLE = """\b
Example:
  wirekafka pipeline check ./lake --bootstrap localhost:9092
  wirekafka pipeline check ./lake --data-dir /var/lib/wirekafka --json
"""

COLUMNS = {
    "rows": "row_count",
    "begin": "begin_offset",
    "end": "end_offset",
    "not finished": "later_count",
    "dead letters": "dead_letter_count",
    "control": "control_count",
    "aborted": "aborted_count",
    "compacted": "compacted_count",
    "no record": "unread_count",
    "deleted": "deleted_count",
    "unexplained": "unexplained_count",
}
"""The columns of numbers of the table, and the fields of a partition's report."""


@click.command(epilog=EXAMPLE)
@click.argument("lake", metavar="LAKE")
@cluster_options(required=False)
@click.option(
    "--data-dir",
    "data_dirs",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read a broker's segment files instead of asking the brokers for records: they tell control records, aborted ones and"
    " compacted ones apart. Can be given several times.",
)
@click.option("--accept-deleted", is_flag=True, help="Pass over missing offsets before the log start offset.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@session_options
@dry_run_option
def check(
    lake: str,
    cluster: Cluster | None,
    data_dirs: tuple[Path, ...],
    accept_deleted: bool,
    as_json: bool,
    session: SessionOptions,
    dry_run: bool,
) -> None:
    """Proves that the directory LAKE has each record of its topics once.

    Each offset between the first and the last that were ingested must have one row, or be a dead letter, a control record, a
    record of an aborted transaction, or one that compaction has removed. Records that are lost or doubled are named.

    An ingest may run meanwhile: the check covers the batches that were finished when it began.

    Exit code 0: proven, 1: not proven.
    """
    from wirekafka.pipelines.check.options import CheckOptions, connectors
    from wirekafka.pipelines.check.run import describe, run_check

    options = CheckOptions(lake, cluster, data_dirs, accept_deleted)
    with open_spark("check", connectors(options), session) as spark:
        if dry_run:
            print_plan(describe(spark, options))
            return
        report = run_check(spark, options)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=1))
    else:
        print_report(report)
    sys.exit(0 if report.is_proven else NOT_PROVEN)


def print_report(report: CheckReport) -> None:
    """Prints a table of the partitions, without the columns in which all numbers are 0, and what is not proven."""
    from rich.console import Console
    from rich.table import Table

    always = ("rows", "begin", "end")
    columns = {
        title: field
        for title, field in COLUMNS.items()
        if title in always or any(getattr(each, field) for each in report.partitions)
    }
    table = Table(box=None, header_style="", pad_edge=False)
    for title in ("topic", "partition", *columns, "doubled", "lost"):
        table.add_column(title, justify="left" if title == "topic" else "right")
    for each in report.partitions:
        numbers = [getattr(each, field) for field in columns.values()]
        table.add_row(each.topic, *map(str, (each.partition, *numbers, each.doubled.count, each.lost.count)))
    Console(width=WIDE, highlight=False, markup=False).print(table)
    for line in report.problems():
        click.echo(line)
    click.echo("proven: each record once" if report.is_proven else "not proven")
