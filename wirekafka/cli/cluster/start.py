"""`wirekafka cluster start`: a cluster on this machine, for development."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from wirekafka.cli.arguments import ArgumentError, parse_settings
from wirekafka.cli.cluster.errors import ClusterCommandError

MOST_BROKERS = 30

OF_EACH_BROKER = {
    "broker.id": "N",
    "node.id": "N",
    "zookeeper.connect": "none, because the command has a model of ZooKeeper",
    "listeners": "--port",
    "advertised.listeners": "--port",
    "log.dir": "--data-dir",
    "log.dirs": "--data-dir",
}
"""The settings that differ between the brokers, and what decides them here."""


def _check_settings(settings: tuple[str, ...]) -> None:
    """Raises unless all brokers can have the settings.

    Raises:
        click.BadParameter: a setting is malformed, or differs between the brokers.
    """
    try:
        keys = parse_settings(settings).keys()
    except ArgumentError as error:
        raise click.BadParameter(str(error), param_hint="--set") from None
    for key in keys & OF_EACH_BROKER.keys():
        message = f"{key} differs between the brokers, and cannot be set for all of them; use instead: {OF_EACH_BROKER[key]}"
        raise click.BadParameter(message, param_hint="--set")


@click.command()
@click.argument("broker_count", metavar="COUNT", type=click.IntRange(1, MOST_BROKERS))
@click.option(
    "--data-dir", metavar="DIR", required=True, type=click.Path(file_okay=False, path_type=Path), help="Keep the cluster here."
)
@click.option(
    "--port",
    "base_port",
    metavar="PORT",
    type=click.IntRange(1, 65_535 - MOST_BROKERS),
    help="The port of the first broker; the others have the following ports. Without it, the kernel chooses free ports.",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="One of Kafka's broker settings, for all brokers. Can be given several times.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="The least severe lines of the brokers that are logged on stderr.",
)
def start(broker_count: int, data_dir: Path, base_port: int | None, settings: tuple[str, ...], log_level: str) -> None:
    """Runs COUNT brokers and a model of ZooKeeper on this machine until a signal stops them.

    The cluster is for development: it needs no JVM, and everything listens on 127.0.0.1. When all brokers serve, the command
    prints the bootstrap addresses on stdout. The lines of a broker on stderr begin with its number.

    The data of the cluster are in DIR. The same command starts the cluster again with its data; COUNT may be greater then. New
    topics have three replicas, or COUNT if there are fewer brokers.

    Ctrl-C and SIGTERM stop all brokers in order, and a second signal kills them.
    """
    _check_settings(settings)
    if not sys.platform.startswith("linux"):
        raise ClusterCommandError("brokers run on Linux; on another system run them in containers, see docs/docker.md")
    import trio

    from wirekafka.cli.cluster.supervisor import Options, supervise
    from wirekafka.server.logging import configure_logging
    from wirekafka.server.running import only_cause

    configure_logging(log_level)
    options = Options(broker_count, os.path.abspath(data_dir), base_port, settings, log_level)
    try:
        trio.run(supervise, options)
    except BaseException as error:
        cause = only_cause(error)
        if isinstance(cause, OSError):
            raise ClusterCommandError(f"{cause.filename or data_dir}: {cause.strerror}") from None
        if isinstance(cause, ClusterCommandError):
            raise cause from None
        raise
