"""The options that several commands of `wirekafka cluster` have."""

from __future__ import annotations

import click

bootstrap_option = click.option(
    "--bootstrap-server",
    "bootstrap",
    required=True,
    metavar="HOST:PORT[,...]",
    help="Brokers of the cluster, of which one has to answer. Their listener must be PLAINTEXT.",
)
timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1, max=3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="The time limit of each connection attempt and of each request.",
)
