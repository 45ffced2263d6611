"""`wirekafka cluster balance`: proposes other replicas for partitions, or more of them, and moves them if told so.

Exit codes: 0 the proposal was shown or carried out, or nothing is to be moved; 1 failure; 2 wrong arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.cli.cluster.options import bootstrap_option, timeout_option

if TYPE_CHECKING:
    from wirekafka.cli.cluster.balancing import PartitionLoad, Proposal
    from wirekafka.cli.cluster.reassigning import OnProgress
    from wirekafka.cli.cluster.snapshot import Snapshot

BYTES = "bytes"
LEADERS = "leaders"
MOST_ROWS = 50
WIDE = 4096
"""The width of every table. Folded cells would be unreadable."""


@click.command()
@bootstrap_option
@click.option(
    "--by",
    type=click.Choice([BYTES, LEADERS]),
    default=BYTES,
    show_default=True,
    help="Equal bytes by moving replicas, or equally many leaders by electing others.",
)
@click.option(
    "--within",
    "within_percent",
    type=click.FloatRange(0, 100),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="How far the bytes of a broker may be from the mean. Less moves more data.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help="Instead of balancing, add replicas to the partitions that have fewer. No replica is removed.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="A topic for --replication-factor; may be repeated. Without it, all topics, internal ones too.",
)
@click.option("--execute", is_flag=True, help="Carry out the proposal.")
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="BYTES_PER_S",
    help="The most bytes that each broker copies in a second, with --execute.",
)
@click.option("--json", "is_json", is_flag=True, help="Print the proposal as kafka-reassign-partitions takes it.")
@timeout_option
def balance(
    bootstrap: str,
    by: str,
    within_percent: float,
    replication_factor: int | None,
    topics: tuple[str, ...],
    execute: bool,
    throttle: int | None,
    is_json: bool,
    timeout_s: float,
) -> None:
    """Spreads bytes or leaders over the brokers, or raises the number of replicas.

    Prints the proposal, which copies about as few bytes as possible and keeps replicas in different racks. With --execute it is
    carried out: the command waits until the new replicas are in sync, and elects the preferred leaders. ^C cancels the moves that
    are not complete, and removes the throttle.
    """
    from wirekafka.cli.cluster.client import ClusterClient, parse_bootstrap
    from wirekafka.cli.cluster.snapshot import read_snapshot

    if throttle is not None and not (execute and by == BYTES):
        raise click.UsageError("--throttle needs --execute and --by bytes.")
    _check_options(replication_factor, topics, by)
    with ClusterClient(parse_bootstrap(bootstrap), timeout_s) as client:
        snapshot = read_snapshot(client)
        _check(snapshot, by)
        if replication_factor is not None:
            _check_replication(snapshot, replication_factor, topics)
        loads = loads_of(snapshot)
        proposal = _propose(snapshot, loads, by, within_percent, replication_factor, topics)
        if is_json:
            click.echo(json.dumps(reassignment_json(proposal)))
        else:
            _print(snapshot, loads, proposal)
        if execute:
            _execute(client, snapshot, loads, proposal, throttle, elects_all=by == LEADERS)


def _check_options(replication_factor: int | None, topics: tuple[str, ...], by: str) -> None:
    """Raises UsageError if options contradict each other."""
    if replication_factor is None:
        if topics:
            raise click.UsageError("--topic needs --replication-factor.")
        return
    if by == LEADERS:
        raise click.UsageError("--replication-factor spreads the leaders itself: leave out --by leaders.")
    if click.get_current_context().get_parameter_source("within_percent") is not ParameterSource.DEFAULT:
        raise click.UsageError("--replication-factor does not balance bytes: leave out --within.")


def _check_replication(snapshot: Snapshot, factor: int, topics: tuple[str, ...]) -> None:
    """Raises ClusterCommandError if the cluster cannot have so many replicas, or lacks a topic."""
    live = [each.broker_id for each in snapshot.brokers.values() if each.is_registered]
    if factor > len(live):
        raise ClusterCommandError(
            f"{factor} replicas need {factor} live brokers, and the cluster has {len(live)} ({', '.join(map(str, live))}): "
            f"start more brokers, or give at most --replication-factor {len(live)}"
        )
    unknown = sorted(set(topics) - {each.topic for each in snapshot.partitions})
    if unknown:
        raise ClusterCommandError(
            f"the cluster has no topic {', '.join(unknown)}: correct --topic (wirekafka topic list --internal shows the names)"
        )


def _propose(
    snapshot: Snapshot,
    loads: list[PartitionLoad],
    by: str,
    within_percent: float,
    replication_factor: int | None,
    topics: tuple[str, ...],
) -> Proposal:
    from wirekafka.cli.cluster.balancing import propose_by_bytes, propose_by_leaders, propose_replication_factor

    racks = {each.broker_id: each.rack for each in snapshot.brokers.values() if each.is_registered}
    if replication_factor is not None:
        return propose_replication_factor(loads, racks, replication_factor, topics or None)
    return propose_by_bytes(loads, racks, within_percent) if by == BYTES else propose_by_leaders(loads, racks)


def _check(snapshot: Snapshot, by: str) -> None:
    """Raises ClusterCommandError if a proposal would stand on sand."""
    if any(each.reassignment is not None for each in snapshot.partitions.values()):
        raise ClusterCommandError(
            "reassignments are in progress: wait until wirekafka cluster describe shows none, or cancel them with "
            "kafka-reassign-partitions --cancel"
        )
    silent = [each for each in snapshot.brokers.values() if each.is_registered and each.problem is not None]
    if by == BYTES and silent:
        raise ClusterCommandError(f"the bytes of broker {silent[0].broker_id} are unknown: {silent[0].problem}")


def loads_of(snapshot: Snapshot) -> list[PartitionLoad]:
    """Returns the partitions for a proposal; those that are not completely in sync stay where they are."""
    from wirekafka.cli.cluster.balancing import PartitionLoad

    return [
        PartitionLoad(
            name,
            each.replicas,
            snapshot.bytes_of(name) or 0,
            is_movable=each.leader is not None and not each.out_of_sync,
        )
        for name, each in snapshot.partitions.items()
    ]


def reassignment_json(proposal: Proposal) -> dict[str, Any]:
    """Returns a proposal in the format of `kafka-reassign-partitions --reassignment-json-file`."""
    return {
        "version": 1,
        "partitions": [
            {"topic": name.topic, "partition": name.partition, "replicas": [*replicas]}
            for name, replicas in sorted(proposal.items())
        ],
    }


def _print(snapshot: Snapshot, loads: list[PartitionLoad], proposal: Proposal) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from wirekafka.cli.cluster.balancing import loads_after, moved_bytes
    from wirekafka.cli.cluster.description import counted, shown_bytes

    console = Console(width=WIDE, highlight=False, markup=False, emoji=False)
    brokers = [each.broker_id for each in snapshot.brokers.values() if each.is_registered]
    (bytes_now, leaders_now), (bytes_then, leaders_then) = (loads_after(loads, brokers, each) for each in ({}, proposal))
    table = Table(box=SIMPLE_HEAD, padding=0)
    for heading in ("broker", "bytes", "proposed", "preferred leaders", "proposed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in brokers:
        sizes = (shown_bytes(bytes_now[each]), shown_bytes(bytes_then[each]))
        table.add_row(str(each), *sizes, f"{leaders_now[each]:,}", f"{leaders_then[each]:,}")
    console.print(table)
    fixed = sum(not each.is_movable for each in loads)
    if fixed:
        console.print(f"note: {fixed:,} partitions stay, because not all of their replicas are in sync")
    if not proposal:
        console.print("Nothing to move.")
        return
    sizes_of = {each.name: each.size_bytes for each in loads}
    moves = Table(box=SIMPLE_HEAD, padding=0)
    for heading in ("topic", "partition", "replicas", "proposed", "bytes to copy"):
        moves.add_column(heading, justify="right" if heading in ("partition", "bytes to copy") else "left", no_wrap=True)
    for name, after in sorted(proposal.items())[:MOST_ROWS]:
        before = snapshot.partitions[name].replicas
        copied = shown_bytes(sizes_of[name] * len(set(after) - set(before)))
        moves.add_row(name.topic, str(name.partition), ",".join(map(str, before)), ",".join(map(str, after)), copied)
    console.print(moves)
    if len(proposal) > MOST_ROWS:
        console.print(f"... and {len(proposal) - MOST_ROWS:,} more; --json has all")
    console.print(f"{counted(len(proposal), 'partition')} change: {shown_bytes(moved_bytes(loads, proposal))} are copied")


def _execute(
    client: Any,
    snapshot: Snapshot,
    loads: list[PartitionLoad],
    proposal: Proposal,
    throttle: int | None,
    *,
    elects_all: bool,
) -> None:
    from wirekafka.cli.cluster.balancing import moved_bytes
    from wirekafka.cli.cluster.reassigning import Reassigner

    with _progress(moved_bytes(loads, proposal)) as on_progress:
        reassigner = Reassigner(client, snapshot, proposal, throttle, on_progress)
        if proposal:
            reassigner.run()
    if elects_all:
        waiting = {
            each.name: each.replicas
            for each in loads
            if each.is_movable and snapshot.partitions[each.name].leader != each.replicas[0]
        }
        reassigner.proposal = waiting | proposal
    if reassigner.proposal:
        elected = reassigner.elect()
        click.echo(f"wirekafka: {elected:,} of {len(reassigner.proposal):,} partitions have their preferred leaders", err=True)


@contextmanager
def _progress(total_bytes: int) -> Iterator[OnProgress]:
    """Shows a progress bar on stderr while bytes are copied."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    if not total_bytes:
        yield lambda copied: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("Copying", total=total_bytes)
        yield lambda copied: progress.update(task, completed=copied)
