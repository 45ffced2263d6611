"""`wirekafka pipeline NAME`: runs a data pipeline on Spark against a Kafka cluster.

Rules of this room: one module for each command, listed in `COMMANDS`; what the commands share is in `shared`. A module imports
the pipelines when its command runs, so that `--help` imports no PySpark. Exit codes: 0 success, 1 failure, 2 wrong arguments.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from wirekafka.cli.pipeline.audit import audit
from wirekafka.cli.pipeline.backfill import backfill
from wirekafka.cli.pipeline.check import check
from wirekafka.cli.pipeline.ingest import ingest
from wirekafka.cli.pipeline.mirror import mirror

FAILED = 1

COMMANDS: tuple[click.Command, ...] = (audit, backfill, check, ingest, mirror)


class PipelineGroup(click.Group):
    """A group of commands that prints a PipelineError as one line on stderr and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        from wirekafka.pipelines.errors import PipelineError

        try:
            return super().invoke(ctx)
        except PipelineError as error:
            click.echo(f"wirekafka: {' '.join(str(error).split())}", err=True)
            sys.exit(FAILED)


@click.group(cls=PipelineGroup)
def pipeline() -> None:
    """Runs data pipelines on Spark.

    They need Java 17 or 21 and the packages of the extra: pip install 'wirekafka[spark]'. The addresses of --bootstrap may be
    those of wirekafka or of Apache Kafka.
    """


for command in COMMANDS:
    pipeline.add_command(command)
