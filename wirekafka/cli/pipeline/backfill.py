"""`wirekafka pipeline backfill`: writes records of a lake into topics."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from wirekafka.cli.pipeline.shared import cluster_options, dry_run_option, open_spark, print_plan, session_options

if TYPE_CHECKING:
    from wirekafka.pipelines.kafka import Cluster
    from wirekafka.pipelines.session import SessionOptions

OFFSET = "[TOPIC[:PARTITION]=]OFFSET"


@click.command(
    epilog="""\b
Example:
  wirekafka pipeline backfill ./lake --bootstrap localhost:9092 --topic orders \\
      --to orders-again --from-time 2026-01-01
"""
)
@click.argument("lake")
@click.option(
    "--topic", "topics", metavar="NAME", multiple=True, help="A topic of the lake; all by default. Can be given several times."
)
@click.option("--to", "target", metavar="TOPIC", help="The topic to write, if one topic is read.")
@click.option(
    "--prefix",
    metavar="TEXT",
    default="",
    help="Begins the names of the topics to write. Without --to and --prefix, the names stay.",
)
@click.option(
    "--partitions",
    type=click.Choice(["keep", "by-key"]),
    default="keep",
    show_default=True,
    help="Write each record to its partition, or to the one that its key's hash chooses.",
)
@click.option(
    "--create-partitions", metavar="N", type=click.IntRange(1), help="The number of partitions of a topic that is created."
)
@click.option(
    "--from-offset", "from_offsets", metavar=OFFSET, multiple=True, help="The first offset. Can be given several times."
)
@click.option("--to-offset", "to_offsets", metavar=OFFSET, multiple=True, help="The end, excluded. Can be given several times.")
@click.option("--from-time", metavar="TIME", help="The first timestamp: ms since 1970, or ISO 8601 (UTC without an offset).")
@click.option("--to-time", metavar="TIME", help="The end of the timestamps, excluded.")
@click.option(
    "--name", metavar="NAME", help="The name of the backfill; by default made from LAKE and these options. The same name goes on."
)
@cluster_options(uses_connector=False)
@session_options
@dry_run_option
def backfill(
    *,
    lake: str,
    topics: tuple[str, ...],
    from_offsets: tuple[str, ...],
    to_offsets: tuple[str, ...],
    from_time: str | None,
    to_time: str | None,
    cluster: Cluster,
    session: SessionOptions,
    dry_run: bool,
    **fields: Any,
) -> None:
    """Writes the records of LAKE back into topics, each exactly once.

    Keys, headers, timestamps, and the order within a partition of the source are kept. A command that was killed goes on where it
    ended when it runs again. Values have the bytes that were ingested if the lake keeps these; otherwise they are encoded again.
    """
    from wirekafka.pipelines.backfill.job import describe, run_backfill
    from wirekafka.pipelines.backfill.options import BackfillOptions, OffsetBound, parse_time_ms
    from wirekafka.pipelines.backfill.progress import report_partitions
    from wirekafka.pipelines.running import stop_on_signals
    from wirekafka.pipelines.session import Connector

    options = BackfillOptions(
        cluster=cluster,
        lake=lake,
        topics=topics,
        from_offsets=tuple(_parsed("--from-offset", OffsetBound.parse, text) for text in from_offsets),
        to_offsets=tuple(_parsed("--to-offset", OffsetBound.parse, text) for text in to_offsets),
        from_ms=None if from_time is None else _parsed("--from-time", parse_time_ms, from_time),
        to_ms=None if to_time is None else _parsed("--to-time", parse_time_ms, to_time),
        **fields,
    )
    if options.target is not None and options.prefix:
        raise click.UsageError("--to names the topic: leave --prefix out")
    with open_spark("backfill", {Connector.AVRO, Connector.DELTA}, session) as spark:
        if dry_run:
            print_plan(describe(spark, options))
            return
        with stop_on_signals() as stop, report_partitions(sys.stdout) as report:
            result = run_backfill(spark, options, stop, report)
    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)
    for each in result.topics:
        click.echo(f"{each.topic} -> {each.target}: {each.written} records written, {each.written_before} were written before")
        click.echo(f"  values: {each.values}")
    click.echo(f"name: {result.name}")


def _parsed(option: str, parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
