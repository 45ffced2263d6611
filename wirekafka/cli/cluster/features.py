"""`wirekafka cluster features`: shows the features of a cluster, and finalizes their newest levels.

Exit codes: 0 success, 1 failure, 2 wrong arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.cli.cluster.options import bootstrap_option, timeout_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wirekafka.cli.cluster.feature_levels import Feature

WIDE = 4096
"""The width of every table. Folded cells would be unreadable."""


@click.command()
@bootstrap_option
@click.option("--finalize", is_flag=True, help="Finalize the newest level of each feature that all brokers support.")
@timeout_option
def features(bootstrap: str, finalize: bool, timeout_s: float) -> None:
    """Shows the features of a cluster.

    A feature is a protocol that all brokers must have, such as consumer groups of KIP-848 (group.version), share groups
    (share.version) and transactions of version 2 (transaction.version). It is off in a cluster with ZooKeeper until its level is
    finalized. A broker of Apache Kafka 3.9 supports none, and exits when it finds one: finalize them once the last of these
    brokers has left for good. kafka-features.sh lowers levels.
    """
    from wirekafka.cli.cluster.client import ClusterClient, parse_bootstrap
    from wirekafka.cli.cluster.feature_levels import finalize_newest, read_features

    with ClusterClient(parse_bootstrap(bootstrap), timeout_s) as client:
        found = read_features(client)
        if finalize:
            finalize_newest(client, found)
            found = read_features(client)
    if not found:
        raise ClusterCommandError("no broker supports features: the brokers are older than Apache Kafka 2.7, or of 3.9")
    print_features(found)


def print_features(found: Sequence[Feature]) -> None:
    """Prints a table with a row for each feature."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console: Any = Console(width=WIDE, highlight=False, markup=False, emoji=False)
    table = Table(box=SIMPLE_HEAD, padding=0)
    for heading in ("feature", "finalized", "newest", "brokers that lack it"):
        table.add_column(heading, justify="left" if heading.startswith(("feature", "brokers")) else "right", no_wrap=True)
    for each in found:
        level = str(each.finalized) if each.finalized else "off"
        table.add_row(each.name, level, str(each.newest or "-"), ",".join(map(str, each.lacking)))
    console.print(table)
