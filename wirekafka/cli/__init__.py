"""The command line: `wirekafka serve` runs a broker, `wirekafka log` looks into data directories.

Rules of this room: a module for each subject, which imports what it needs once its command runs. Exit codes: 0 all is well,
1 it is not, 2 asked for something wrong.
"""

from __future__ import annotations

import click

from wirekafka import __version__
from wirekafka.cli.log import log as log_group
from wirekafka.cli.serve import serve as serve_command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="wirekafka", message="%(prog)s %(version)s")
def main() -> None:
    """A Kafka broker in Python."""


main.add_command(serve_command)
main.add_command(log_group)
