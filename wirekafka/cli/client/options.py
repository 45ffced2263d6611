"""The options of every command that is a client of a cluster.

`connection_options` gives a command the parameter `connection`, a `Connection`, which connects when it is first used:

    @click.command(cls=ClientCommand)
    @connection_options
    def count(connection: Connection) -> None: ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from wirekafka.cli.cluster.options import timeout_option

Function = TypeVar("Function", bound=Callable[..., Any])

BOOTSTRAP = "bootstrap.servers"
BOOTSTRAP_VARIABLE = "WIREKAFKA_BOOTSTRAP_SERVER"


def property_options(command: Function) -> Function:
    """Adds the options that say how to connect; the command gets `client_settings`, properties of librdkafka, and `timeout_s`."""

    @functools.wraps(command)
    def run(config: Path | None, properties: tuple[tuple[str, str], ...], **values: Any) -> Any:
        return command(client_settings=(read_config(config) if config else {}) | dict(properties), **values)

    options = (
        click.option(
            "--config",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A file with properties of librdkafka, one name=value a line, for TLS and SASL among others.",
        ),
        click.option(
            "-X",
            "--property",
            "properties",
            metavar="NAME=VALUE",
            multiple=True,
            callback=parsed_settings,
            help="A property of librdkafka, such as security.protocol=SSL; overrides --config. Can be given several times.",
        ),
        timeout_option,
    )
    decorated: Any = run
    for option in reversed(options):
        decorated = option(decorated)
    return cast(Function, decorated)


def connection_options(command: Function) -> Function:
    """Adds the options that name a cluster; the command gets them as `connection`."""

    @functools.wraps(command)
    def run(bootstrap: str | None, client_settings: dict[str, str], timeout_s: float, **values: Any) -> Any:
        from wirekafka.cli.client.connection import Connection

        if bootstrap is not None:
            client_settings[BOOTSTRAP] = bootstrap
        if not client_settings.get(BOOTSTRAP) and not client_settings.get("metadata.broker.list"):
            raise click.UsageError(f"Missing option '--bootstrap-server': accepted is HOST:PORT, also from {BOOTSTRAP_VARIABLE}.")
        return command(connection=Connection(client_settings, timeout_s), **values)

    bootstrap_option = click.option(
        "--bootstrap-server",
        "-b",
        "bootstrap",
        metavar="HOST:PORT[,...]",
        envvar=BOOTSTRAP_VARIABLE,
        help=f"Brokers of the cluster, of which one has to answer. [env var: {BOOTSTRAP_VARIABLE}]",
    )
    return cast(Function, bootstrap_option(property_options(cast(Any, run))))


json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


def parsed_settings(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Returns the names and values of an option NAME=VALUE.

    Raises:
        click.BadParameter: a value is not NAME=VALUE.
    """
    return tuple(_parsed(value, ctx, parameter) for value in values)


def _parsed(text: str, ctx: click.Context | None = None, parameter: click.Parameter | None = None) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{text}: accepted is NAME=VALUE.", ctx, parameter)
    return name.strip(), value.strip()


def read_config(path: Path) -> dict[str, str]:
    """Returns the properties of a file for `--config`.

    Raises:
        click.UsageError: the file cannot be read, or a line is malformed.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--config {path} cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                name, value = _parsed(line)
            except click.BadParameter as error:
                raise click.UsageError(f"--config {path}, line {number}: {error.message}") from None
            found[name] = value
    return found
