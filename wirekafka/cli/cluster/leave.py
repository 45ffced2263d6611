"""`wirekafka cluster leave`: turns the last member of a cluster into a single node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from wirekafka.cli.cluster.errors import ClusterCommandError

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig
    from wirekafka.membership.leaving import Left


@click.command()
@click.argument("source", metavar="SERVER.PROPERTIES|DATA_DIR", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--zookeeper",
    metavar="HOST:PORT/CHROOT",
    help="The ZooKeeper of the cluster, if DATA_DIR is given; otherwise SERVER.PROPERTIES names it by zookeeper.connect.",
)
def leave(source: Path, zookeeper: str | None) -> None:
    """Turns the last broker of a cluster into a single node.

    The broker is stopped, no other broker is registered, and all partitions are on this broker alone. Their topics, settings and
    producer ids move from ZooKeeper to the data directory, and the chroot is emptied. The broker then starts without
    zookeeper.connect. If the command is interrupted, run it again.

    A broker with several log.dirs needs its SERVER.PROPERTIES.
    """
    from wirekafka.cli.cluster.description import counted
    from wirekafka.server.logging import configure_logging

    configure_logging("warning")
    config = _config_of(source, zookeeper)
    left = _run(config)
    if left.is_repeated:
        click.echo("The data directory is that of a single node already; the chroot is empty now.")
    else:
        directories = ", ".join(config.log_dirs)
        topics, partitions = counted(left.topic_count, "topic"), counted(left.partition_count, "partition")
        click.echo(f"{directories} is a single node now: {topics}, {partitions}.")
    for each in left.dropped:
        click.echo(f"It does not have: {each}", err=True)
    click.echo("Start it without zookeeper.connect. With it, the topics move into an empty chroot again.")


def _config_of(source: Path, zookeeper: str | None) -> BrokerConfig:
    from wirekafka.config import BrokerConfig, ConfigError

    overrides = {} if zookeeper is None else {"zookeeper.connect": zookeeper}
    if source.is_dir():
        overrides |= {"log.dirs": str(source), "broker.id": str(_broker_id_of(source)), "listeners": "PLAINTEXT://127.0.0.1:0"}
    try:
        config = BrokerConfig.load(None if source.is_dir() else source, overrides)
    except (ConfigError, OSError) as error:
        raise ClusterCommandError(str(error)) from None
    if not config.is_member:
        raise ClusterCommandError(f"{source} does not name the ZooKeeper of a cluster: give --zookeeper HOST:PORT/CHROOT")
    return config


def _broker_id_of(directory: Path) -> int:
    from wirekafka.errors import KafkaError
    from wirekafka.log.directory import read_owner
    from wirekafka.log.storage import Storage

    try:
        owner = read_owner(str(directory), Storage())
    except KafkaError as error:
        raise ClusterCommandError(error.message or str(error)) from None
    if owner is None:
        raise ClusterCommandError(f"{directory} is not a data directory: it has no meta.properties")
    return owner.node_id


def _run(config: BrokerConfig) -> Left:
    import trio

    from wirekafka.errors import KafkaError
    from wirekafka.log.directory import DirectoryLockedError
    from wirekafka.server.running import only_cause
    from wirekafka.zookeeper.kazoo_session import ZooKeeperUnreachableError
    from wirekafka.zookeeper.layout.content import MalformedZnodeError
    from wirekafka.zookeeper.session import ZooKeeperError

    try:
        return trio.run(_leave, config)
    except BaseException as error:
        cause = only_cause(error)
        if isinstance(cause, KafkaError):
            raise ClusterCommandError(cause.message or str(cause)) from None
        if isinstance(cause, DirectoryLockedError):
            raise ClusterCommandError(f"{cause}: stop the broker first") from None
        if isinstance(cause, (ZooKeeperUnreachableError, ZooKeeperError, MalformedZnodeError, OSError, ValueError)):
            raise ClusterCommandError(str(cause)) from None
        raise


async def _leave(config: BrokerConfig) -> Left:
    from wirekafka.clock import Clock
    from wirekafka.membership.leaving import leave as leave_cluster
    from wirekafka.membership.retrying_client import RetryingClient
    from wirekafka.zookeeper.kazoo_session import open_kazoo_session

    timeout_ms = config.integer("zookeeper.session.timeout.ms")
    connect = config.text("zookeeper.connect")
    async with open_kazoo_session(connect, session_timeout_ms=timeout_ms, connection_timeout_ms=timeout_ms) as client:
        return await leave_cluster(RetryingClient(client), config, Clock())
