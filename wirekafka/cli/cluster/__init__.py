"""`wirekafka cluster NAME`: shows and changes clusters of brokers.

Rules of this room: one module for each command, listed in `COMMANDS`. A module imports the rest of the package only when its
command runs. A command that fails raises a `ClusterCommandError`. Exit codes: 0 success, 1 failure, 2 wrong arguments.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from wirekafka.cli.cluster.balance import balance
from wirekafka.cli.cluster.describe import describe
from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.cli.cluster.features import features
from wirekafka.cli.cluster.leave import leave
from wirekafka.cli.cluster.start import start

FAILED = 1

COMMANDS: tuple[click.Command, ...] = (balance, describe, features, leave, start)


class ClusterGroup(click.Group):
    """A group of commands that prints a ClusterCommandError as one line on stderr and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except ClusterCommandError as error:
            click.echo(f"wirekafka: {' '.join(str(error).split())}", err=True)
            sys.exit(FAILED)


@click.group(cls=ClusterGroup)
def cluster() -> None:
    """Shows and changes clusters of brokers.

    The brokers may be wirekafka or Apache Kafka.
    """


for command in COMMANDS:
    cluster.add_command(command)
