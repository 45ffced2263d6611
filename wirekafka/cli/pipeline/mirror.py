"""`wirekafka pipeline mirror`: mirrors topics from one cluster to another."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from wirekafka.cli.pipeline.shared import (
    allow_data_loss_option,
    batch_limit_option,
    cluster_options,
    dry_run_option,
    isolation_option,
    once_option,
    open_spark,
    pattern_option,
    print_plan,
    regular_expression,
    run_stream,
    selected_topics,
    session_options,
)

if TYPE_CHECKING:
    from wirekafka.pipelines.mirror.options import MirrorOptions
    from wirekafka.pipelines.session import SessionOptions


@click.command(
    epilog="""\b
Example:
  wirekafka pipeline mirror --pattern 'orders.*' --source-bootstrap here:9092 \\
      --target-bootstrap there:9092 --checkpoint /var/lib/mirror \\
      --rename 'here.{topic}' --groups 'shop-.*'
"""
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@pattern_option
@cluster_options("source", "source-")
@cluster_options("target", "target-", uses_connector=False)
@click.option("--checkpoint", metavar="DIR", help="A directory for Spark's checkpoint, in any file system of Hadoop.")
@click.option(
    "--name",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Names the mirror at the target, where its progress is. Mirrors of several sources into one target need several names.",
)
@click.option(
    "--rename",
    metavar="TEMPLATE",
    default="{topic}",
    show_default=True,
    help="The name of a topic's mirror, such as 'here.{topic}'.",
)
@click.option(
    "--groups",
    metavar="REGEX",
    callback=regular_expression,
    help="Translate the offsets of the consumer groups whose whole names match.",
)
@click.option(
    "--groups-every",
    "groups_every_s",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="How often the offsets of groups are translated.",
)
@click.option(
    "--groups-only",
    is_flag=True,
    help="Translate the groups once, print each offset, and mirror no records. With --dry-run: only print.",
)
@click.option(
    "--allow-group-rewind",
    "allows_group_rewind",
    is_flag=True,
    help="Set a group's offset at the target back to an earlier record too.",
)
@isolation_option
@batch_limit_option("--batch-records", "batch_records", 500_000)
@once_option
@allow_data_loss_option("allows_data_loss")
@click.option("--into-existing", "allows_existing", is_flag=True, help="Mirror into topics that have records of others.")
@click.option(
    "--restart-topic",
    "restarted_topics",
    metavar="TOPIC",
    multiple=True,
    help="Mirror this topic from its beginning, after it or its mirror was created again. Can be given several times.",
)
@session_options
@dry_run_option
def mirror(
    *,
    topics: tuple[str, ...],
    pattern: str | None,
    checkpoint: str | None,
    rename: str,
    groups_only: bool,
    session: SessionOptions,
    dry_run: bool,
    **fields: Any,
) -> None:
    """Mirrors topics from one cluster to another, exactly once.

    Partitions, order, keys, headers, timestamps and tombstones are kept. Topics are created at the target with the settings of
    the source. Progress and offsets are stored at the target in the transactions of the records, so after a kill at any moment,
    and after the loss of the checkpoint too, the mirror goes on without a lost or a doubled record.
    """
    from wirekafka.pipelines.mirror.names import TopicNames
    from wirekafka.pipelines.mirror.options import MirrorOptions

    selection = selected_topics(topics, pattern)
    if checkpoint is None and not groups_only:
        raise click.UsageError("Missing option '--checkpoint'.")
    if groups_only and fields["groups"] is None:
        raise click.UsageError("--groups-only needs --groups.")
    options = MirrorOptions(topics=selection, checkpoint=checkpoint or "", names=TopicNames(rename), **fields)
    if groups_only:
        _print_groups(options, commits=not dry_run)
    elif dry_run:
        _print_plan(options)
    else:
        _run(options, session)


def _print_plan(options: MirrorOptions) -> None:
    from wirekafka.pipelines.mirror.commands import describe

    print_plan(describe(options))


def _run(options: MirrorOptions, session: SessionOptions) -> None:
    from wirekafka.pipelines.mirror.commands import run_mirror
    from wirekafka.pipelines.session import Connector

    with open_spark("mirror", {Connector.KAFKA}, session) as spark:
        run_mirror(options, lambda start, recover: run_stream(spark, start, recover), spark)


def _print_groups(options: MirrorOptions, *, commits: bool) -> None:
    """Prints a table on a terminal, else a JSON object a line."""
    from wirekafka.pipelines.mirror.commands import translate_groups
    from wirekafka.pipelines.mirror.groups import columns

    rows = columns(translate_groups(options, commits=commits))
    if not rows:
        click.echo(f"no group that matches {options.groups!r} has offsets of the mirrored topics", err=True)
        return
    if not sys.stdout.isatty():
        for row in rows:
            click.echo(json.dumps(row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows[0])
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console().print(table)
