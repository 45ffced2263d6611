"""The command line: `wirekafka serve` runs a broker, `wirekafka config` checks its settings, `wirekafka log` reads its files,
`wirekafka cluster` shows and changes clusters, `wirekafka pipeline` runs data pipelines on Spark. `wirekafka topic`, `group`,
`produce`, `consume` and `doctor` are clients of any Kafka-compatible cluster.

Rules of this room: one module for each subject. The module of a command is imported when the command is named. It imports the
rest of the package when the command runs. Exit codes: 0 success, 1 failure, 2 wrong arguments or settings.
"""

from __future__ import annotations

import click

from wirekafka import __version__
from wirekafka.cli.output import SafeOutputGroup

COMMANDS = {
    "cluster": "wirekafka.cli.cluster",
    "config": "wirekafka.cli.config",
    "consume": "wirekafka.cli.client.consume",
    "doctor": "wirekafka.cli.client.doctor",
    "group": "wirekafka.cli.client.group",
    "log": "wirekafka.cli.log",
    "pipeline": "wirekafka.cli.pipeline",
    "produce": "wirekafka.cli.client.produce",
    "serve": "wirekafka.cli.serve",
    "topic": "wirekafka.cli.client.topic",
    "version": "wirekafka.cli.version",
}
"""The module of each command, in which the command has its own name."""


class MainGroup(SafeOutputGroup):
    """The group of all commands, which imports the module of a command when the command is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns a command; None if there is no such command."""
        from importlib import import_module

        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=MainGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="wirekafka", message="%(prog)s %(version)s")
def main() -> None:
    """A Kafka broker in Python, and tools for any Kafka-compatible cluster."""
