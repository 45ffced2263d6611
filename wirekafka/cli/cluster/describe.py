"""`wirekafka cluster describe`: shows a cluster, what is not in order in it, and what is in progress.

Exit codes: 0 nothing is offline, 1 something is offline or the cluster could not be read, 2 wrong arguments.
"""

from __future__ import annotations

import json
import sys

import click

from wirekafka.cli.cluster.options import bootstrap_option, timeout_option

DEGRADED = 1
WIDE = 4096
"""The width of every table. Folded cells would be unreadable."""


@click.command()
@bootstrap_option
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object, with everything.")
@timeout_option
def describe(bootstrap: str, is_json: bool, timeout_s: float) -> None:
    """Shows a cluster.

    Shows its brokers with racks, leaders and bytes, the controller, the partitions that are offline, under min.insync.replicas or
    under-replicated, the replicas out of sync with their lag, and the reassignments in progress.

    The exit code is 1 if a partition has no leader, a broker does not answer or is not registered, a data directory has failed,
    or no controller answers. Under-replicated partitions alone leave it at 0.
    """
    from rich.console import Console

    from wirekafka.cli.cluster.client import ClusterClient, parse_bootstrap
    from wirekafka.cli.cluster.description import as_json, print_tables
    from wirekafka.cli.cluster.snapshot import read_snapshot

    with ClusterClient(parse_bootstrap(bootstrap), timeout_s) as client:
        snapshot = read_snapshot(client)
    if is_json:
        click.echo(json.dumps(as_json(snapshot), indent=2))
    else:
        print_tables(snapshot, Console(width=WIDE, highlight=False, markup=False, emoji=False))
    sys.exit(DEGRADED if snapshot.is_degraded else 0)
