"""What the commands of `wirekafka pipeline` share: options, the session, the run of a stream, the output of a dry run.

A command is a module of this room and looks like this; `COMMANDS` of `wirekafka.cli.pipeline` lists it.

    @click.command(epilog="Example: wirekafka pipeline count orders --bootstrap localhost:9092")
    @click.argument("topic")
    @cluster_options()
    @session_options
    @dry_run_option
    def count(topic: str, cluster: Cluster, session: SessionOptions, dry_run: bool) -> None:
        (docstring: the help of the command)
        from wirekafka.pipelines.counting import CountOptions, describe, start_count
        from wirekafka.pipelines.session import Connector

        options = CountOptions(cluster, topic)
        if dry_run:
            print_plan(describe(options))
        else:
            with open_spark("count", {Connector.KAFKA}, session) as spark:
                run_stream(spark, lambda: start_count(spark, options))

`cluster_options` gives the command a `cluster`, `session_options` a `session`, `dry_run_option` a `dry_run`. `run_stream`
prints the progress, and stops the stream after its running batch at SIGTERM and SIGINT. A PipelineError needs no handling in a
command: the group prints it in one line and exits with 1. Wrong arguments are a `click.UsageError`, and the exit code is 2.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from wirekafka.pipelines.kafka import TopicSelection
    from wirekafka.pipelines.running import Recover
    from wirekafka.pipelines.session import Connector

Function = TypeVar("Function", bound=Callable[..., Any])


def cluster_options(
    name: str = "cluster", prefix: str = "", *, required: bool = True, uses_connector: bool = True
) -> Callable[[Function], Function]:
    """Adds the options of a Kafka cluster; the command gets them as a `Cluster`, or None without an address.

    Args:
        name: the parameter of the command.
        prefix: begins the names of the options, for a command with two clusters: "source-" gives `--source-bootstrap`.
        required: whether the address must be given.
        uses_connector: whether Spark's connector reads or writes the cluster, so that its Java clients can have settings.
    """
    whose = f"of the {prefix.rstrip('-')} cluster " if prefix else ""
    connector_option = click.option(
        f"--{prefix}kafka-option",
        f"{name}_kafka_options",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_parsed,
        help=f"A setting of the Java clients {whose}in Spark's connector, such as security.protocol=SSL."
        " Can be given several times.",
    )
    options = (
        click.option(
            f"--{prefix}bootstrap",
            f"{name}_bootstrap",
            metavar="HOST:PORT",
            required=required,
            callback=_addresses,
            help=f"Addresses of the {prefix.rstrip('-') or 'Kafka'} cluster's brokers, separated by commas.",
        ),
        *((connector_option,) if uses_connector else ()),
        click.option(
            f"--{prefix}client-option",
            f"{name}_client_options",
            metavar="KEY=VALUE",
            multiple=True,
            callback=_parsed,
            help=f"A setting of the librdkafka clients {whose}for what Spark does not do: topics, offsets, transactions."
            " Can be given several times.",
        ),
    )

    def with_cluster(command: Function) -> Function:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            from wirekafka.pipelines.kafka import Cluster

            bootstrap = values.pop(f"{name}_bootstrap")
            settings = (values.pop(f"{name}_kafka_options", {}), values.pop(f"{name}_client_options"))
            return command(**values, **{name: Cluster(bootstrap, *settings) if bootstrap else None})

        return cast(Function, _with_options(run, options))

    return with_cluster


def session_options(command: Function) -> Function:
    """Adds the options of the SparkSession; the command gets them as `session`, a SessionOptions."""
    options = (
        click.option("--master", metavar="URL", help="Spark's master: local[*] (default), local[2], spark://HOST:7077, yarn."),
        click.option(
            "--jars",
            metavar="DIR",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Take the connectors from the jars of this directory instead of Maven Central.",
        ),
        click.option(
            "--conf",
            metavar="KEY=VALUE",
            multiple=True,
            callback=_parsed,
            help="A setting of Spark, such as spark.executor.memory=4g. Can be given several times.",
        ),
    )

    @functools.wraps(command)
    def run(*, master: str | None, jars: Path | None, conf: dict[str, str], **values: Any) -> Any:
        from wirekafka.pipelines.session import DEFAULT_MASTER, SessionOptions

        return command(**values, session=SessionOptions(master or DEFAULT_MASTER, jars, conf))

    return cast(Function, _with_options(run, options))


dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be read and written, and do nothing.")


once_option = click.option("--once", is_flag=True, help="Read what is there now, and end.")

isolation_option = click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="read_uncommitted reads the records of open and aborted transactions too.",
)


def pattern_option(command: Function) -> Function:
    """Adds `--pattern`; the command gets a regular expression as text, or None."""
    text = "Read the topics whose whole names match, those that are created later too."
    return click.option("--pattern", metavar="REGEX", callback=regular_expression, help=text)(command)


def allow_data_loss_option(parameter: str) -> Callable[[Function], Function]:
    """Adds `--allow-data-loss`; the command gets a flag as `parameter`."""
    text = "Go on although the broker has deleted records that were not read yet."
    return click.option("--allow-data-loss", parameter, is_flag=True, help=text)


def batch_limit_option(name: str, parameter: str, default: int) -> Callable[[Function], Function]:
    """Adds an option for the size of a batch; the command gets a number as `parameter`."""
    text = "At most about this many offsets are in a batch."
    return click.option(name, parameter, type=click.IntRange(1), default=default, show_default=True, metavar="N", help=text)


def selected_topics(names: tuple[str, ...], pattern: str | None) -> TopicSelection:
    """Returns the topics that a command reads.

    Raises:
        click.UsageError: there are both names and a pattern, or neither.
    """
    from wirekafka.pipelines.kafka import TopicSelection

    if bool(names) == (pattern is not None):
        raise click.UsageError("Give either the names of topics, or --pattern.")
    return TopicSelection(names, pattern)


@contextmanager
def open_spark(name: str, connectors: Collection[Connector], options: Any) -> Iterator[SparkSession]:
    """Opens a SparkSession for one command, and stops it at the end of the block.

    Raises:
        PipelineError: the session cannot be opened, or Spark failed in the block.
    """
    from wirekafka.pipelines.failures import explained
    from wirekafka.pipelines.session import open_session

    session = open_session(name, frozenset(connectors), options)
    with explained():
        try:
            yield session
        finally:
            session.stop()


def run_stream(spark: SparkSession, start: Callable[[], StreamingQuery], recover: Recover | None = None) -> None:
    """Runs a stream until it ends by itself or a signal stops it after the running batch.

    Args:
        spark: the session of the stream.
        start: starts the query from its checkpoint; it is called again after an outage of the brokers.
        recover: mends what the query cannot go on from, see `run_query`.

    Raises:
        PipelineError: the stream failed.
    """
    from wirekafka.pipelines.progress import report_progress
    from wirekafka.pipelines.running import no_recovery, run_query, stop_on_signals

    with stop_on_signals() as stop, report_progress(spark, out=sys.stdout):
        run_query(start, stop, recover=recover or no_recovery)


def regular_expression(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Returns the value of an option that is a regular expression.

    Raises:
        click.BadParameter: it is none.
    """
    try:
        re.compile(text or "")
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}.", context, parameter) from None
    return text


def print_plan(plan: Mapping[str, object]) -> None:
    """Prints names and values, a line each, the values in one column; a list has a line for each item."""
    width = max((len(name) for name in plan), default=0)
    for name, value in plan.items():
        items = value if isinstance(value, list | tuple) else [value]
        for index, item in enumerate(items or ["none"]):
            click.echo(f"{name if index == 0 else '':{width}}  {item}")


def _with_options(command: Any, options: tuple[Callable[[Any], Any], ...]) -> Any:
    for option in reversed(options):
        command = option(command)
    return command


def _addresses(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Returns the addresses of brokers. Kafka's Java client needs each port, librdkafka would take 9092."""
    for address in text.split(",") if text is not None else ():
        if not re.fullmatch(r".+:\d+", address.strip()):
            raise click.BadParameter(f"{address!r} is not HOST:PORT, such as localhost:9092.", context, parameter)
    return text


def _parsed(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Returns the pairs KEY=VALUE of an option."""
    settings = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{text!r} is not KEY=VALUE.", context, parameter)
        settings[key.strip()] = value
    return settings
