"""Completes the names of topics and groups in a shell, from the cluster that the command line names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from wirekafka.cli.client.connection import Connection

TIMEOUT_SECONDS = 2.0


def complete_topic(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns the topics whose names begin so; none if no cluster is named or answers."""
    from wirekafka.cli.client.errors import ClientCommandError

    connection = _connection(ctx)
    try:
        names = [] if connection is None else list(connection.metadata().topics)
    except ClientCommandError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def complete_group(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Returns the groups whose names begin so; none if no cluster is named or answers."""
    from wirekafka.cli.client.errors import ClientCommandError

    connection = _connection(ctx)
    if connection is None:
        return []
    try:
        connection.metadata()
        found = connection.result(connection.ask(connection.admin.list_consumer_groups), "groups").valid
    except ClientCommandError:
        return []
    return sorted(each.group_id for each in found if each.group_id.startswith(incomplete))


def _connection(ctx: click.Context) -> Connection | None:
    from wirekafka.cli.client.connection import Connection
    from wirekafka.cli.client.options import BOOTSTRAP, read_config

    config = ctx.params.get("config")
    try:
        settings = (read_config(config) if config else {}) | dict(ctx.params.get("properties") or ())
    except click.UsageError:
        return None
    if ctx.params.get("bootstrap"):
        settings[BOOTSTRAP] = ctx.params["bootstrap"]
    return Connection(settings, TIMEOUT_SECONDS) if settings.get(BOOTSTRAP) else None
