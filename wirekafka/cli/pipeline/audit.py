"""`wirekafka pipeline audit`: compares producers' claims, brokers and lakes, and shows lag, sizes and rates."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wirekafka.cli.pipeline.shared import (
    cluster_options,
    dry_run_option,
    open_spark,
    print_plan,
    regular_expression,
    session_options,
)

if TYPE_CHECKING:
    from wirekafka.pipelines.audit.report import AuditReport
    from wirekafka.pipelines.audit.summary import Table
    from wirekafka.pipelines.kafka import Cluster
    from wirekafka.pipelines.session import SessionOptions

DIFFERENT = 1
MOST_ROWS = 20
WIDE = 4096
"""The width of every table. Folded cells on a narrow terminal would be unreadable."""

EXAMPLE = """\b
Example:
  wirekafka pipeline audit --bootstrap localhost:9092 --topic orders --lake /data/lake \\
      --claims orders-claims --html audit.html
"""


def _minute(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Returns a time that is a whole minute in ms since 1970."""
    from wirekafka.pipelines.audit.options import parse_minute

    try:
        return None if text is None else parse_minute(text)
    except ValueError:
        accepted = "write 2013-01-01, 2013-01-01T05:17, or ms since 1970"
        raise click.BadParameter(f"{text!r} is no whole minute: {accepted}.", context, parameter) from None


@click.command(epilog=EXAMPLE)
@cluster_options(required=False)
@click.option("--topic", "topics", metavar="NAME", multiple=True, help="A topic to count. Can be given several times.")
@click.option(
    "--pattern",
    metavar="REGEX",
    callback=regular_expression,
    help="Count the topics whose whole names match; all but internal ones by default.",
)
@click.option(
    "--data-dir",
    "data_dirs",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Count the records in a broker's data directory, which is faster than asking the broker. Can be given several times.",
)
@click.option("--lake", "lakes", metavar="LAKE", multiple=True, help="A lake to compare. Can be given several times.")
@click.option("--claims", metavar="TOPIC", help="The topic in which producers claim what they have sent.")
@click.option(
    "--checkpoint",
    "checkpoints",
    metavar="DIR",
    multiple=True,
    help="The checkpoint of a streaming query whose lag is wanted; those of lakes are known. Can be given several times.",
)
@click.option(
    "--since", metavar="TIME", callback=_minute, help="Count records from this minute on (UTC), such as 2013-01-01T05:17."
)
@click.option("--until", metavar="TIME", callback=_minute, help="Count records before this minute (UTC).")
@click.option("--grace", metavar="SECONDS", type=float, help="How long after a minute its claims may still come; 300 by default.")
@click.option("--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with plots.")
@click.option("--json", "is_json", is_flag=True, help="Print the whole report as JSON instead of tables.")
@session_options
@dry_run_option
def audit(
    cluster: Cluster | None,
    topics: tuple[str, ...],
    pattern: str | None,
    data_dirs: tuple[Path, ...],
    lakes: tuple[str, ...],
    claims: str | None,
    checkpoints: tuple[str, ...],
    since: int | None,
    until: int | None,
    grace: float | None,
    html: Path | None,
    is_json: bool,
    session: SessionOptions,
    dry_run: bool,
) -> None:
    """Compares what producers claim, what the brokers have and what lakes have.

    It counts records by topic, partition and minute of their timestamps, and shows where the counts differ. Records that a lake
    has not reached yet, or that retention has deleted, are no differences. It also shows the lag of consumer groups and of
    Spark's queries, sizes and rates.

    Exit code: 0 without differences, 1 with differences or if the audit failed, 2 for wrong arguments.
    """
    from wirekafka.pipelines.audit.options import ALL_TOPICS, DEFAULT_GRACE_S, AuditOptions
    from wirekafka.pipelines.audit.run import describe, open_places, run_audit
    from wirekafka.pipelines.kafka import TopicSelection
    from wirekafka.pipelines.session import Connector

    if topics and pattern is not None:
        raise click.UsageError("--topic and --pattern cannot be given together.")
    options = AuditOptions(
        cluster=cluster,
        topics=TopicSelection(topics, pattern) if topics or pattern is not None else ALL_TOPICS,
        data_dirs=data_dirs,
        lakes=lakes,
        claims_topic=claims,
        checkpoints=checkpoints,
        since_ms=since,
        until_ms=until,
        grace_s=DEFAULT_GRACE_S if grace is None else grace,
    )
    plan = describe(options)
    connectors = {Connector.KAFKA} if cluster is not None else set()
    connectors |= {Connector.DELTA} if lakes else set()
    if dry_run:
        if lakes or checkpoints:
            with open_spark("audit", connectors, session) as spark:
                open_places(spark, options, [])
        print_plan({**plan, "writes": str(html) if html is not None else "nothing"})
        return
    with open_spark("audit", connectors, session) as spark:
        report = run_audit(spark, options)
    _show(report, html, is_json=is_json)
    sys.exit(DIFFERENT if report.has_differences else 0)


def _show(report: AuditReport, html: Path | None, *, is_json: bool) -> None:
    """Prints the report, and writes the page."""
    from wirekafka.pipelines.audit.page import page
    from wirekafka.pipelines.audit.summary import tables, verdict

    if html is not None:
        _write(html, page(report))
    if is_json:
        click.echo(json.dumps(report.to_json(), indent=1))
        return
    for table in tables(report, MOST_ROWS):
        _print_table(table)
    for note in report.notes:
        click.echo(note)
    click.echo(verdict(report))


def _write(path: Path, text: str) -> None:
    from wirekafka.pipelines.errors import PipelineError

    try:
        path.write_text(text)
    except OSError as error:
        raise PipelineError(f"the page cannot be written: {error}") from None


def _print_table(table: Table) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable

    shown = RichTable(
        title=table.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=0, collapse_padding=True
    )
    for name in table.columns:
        shown.add_column(name, justify="right" if name in table.numbers else "left", no_wrap=True)
    for row in table.rows:
        shown.add_row(*row)
    console = Console(width=WIDE, highlight=False, markup=False, emoji=False)
    console.print(shown)
    if table.left_out:
        click.echo(f"and {table.left_out:,} more rows, which --json prints\n")
