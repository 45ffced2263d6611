"""The error of the commands that are clients of a cluster, and the classes of commands that print it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

FAILED = 1


class ClientCommandError(Exception):
    """A command has failed. The text is one sentence for the user: what failed, and what the user can do."""


def print_error(message: str) -> None:
    """Prints a message as one line on stderr."""
    click.echo(f"wirekafka: {' '.join(message.split())}", err=True)


@contextmanager
def _printed_errors() -> Iterator[None]:
    try:
        yield
    except ClientCommandError as error:
        print_error(str(error))
        sys.exit(FAILED)


class ClientCommand(click.Command):
    """A command that prints a ClientCommandError as one line on stderr and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        with _printed_errors():
            return super().invoke(ctx)


class ClientGroup(click.Group):
    """A group of commands that prints a ClientCommandError as one line on stderr and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        with _printed_errors():
            return super().invoke(ctx)
