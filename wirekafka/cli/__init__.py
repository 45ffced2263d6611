"""The command line: `wirekafka serve` runs a broker, `wirekafka config` checks its settings, `wirekafka log` reads its files,
`wirekafka cluster` shows and changes clusters, `wirekafka pipeline` runs data pipelines on Spark.

Rules of this room: one module for each subject. A module imports the rest of the package only when its command runs. Exit codes:
0 success, 1 failure, 2 wrong arguments or settings.
"""

from __future__ import annotations

import click

from wirekafka import __version__
from wirekafka.cli.cluster import cluster as cluster_group
from wirekafka.cli.config import config as config_group
from wirekafka.cli.log import log as log_group
from wirekafka.cli.output import SafeOutputGroup
from wirekafka.cli.pipeline import pipeline as pipeline_group
from wirekafka.cli.serve import serve as serve_command


@click.group(cls=SafeOutputGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="wirekafka", message="%(prog)s %(version)s")
def main() -> None:
    """A Kafka broker in Python."""


main.add_command(serve_command)
main.add_command(config_group)
main.add_command(log_group)
main.add_command(cluster_group)
main.add_command(pipeline_group)
