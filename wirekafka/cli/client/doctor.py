"""`wirekafka doctor`: looks at a broker as a client, and says what is wrong and what helps.

Exit codes: 0 everything is fine, 1 there are findings, 2 the broker could not be looked at, or wrong arguments.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from wirekafka.cli.client.errors import ClientCommand, ClientCommandError, print_error
from wirekafka.cli.client.options import BOOTSTRAP, json_option, property_options

if TYPE_CHECKING:
    from wirekafka.cli.client.examination import Report

FINDINGS = 1
COULD_NOT_LOOK = 2


@click.command(cls=ClientCommand)
@click.argument("address", metavar="HOST:PORT")
@click.option("--topic", metavar="TOPIC", help="Write the record to this topic, instead of a temporary one.")
@click.option("--no-write", is_flag=True, help="Write no record, and create no topic.")
@json_option
@property_options
def doctor(
    address: str, topic: str | None, no_write: bool, is_json: bool, client_settings: dict[str, str], timeout_s: float
) -> None:
    """Looks at a Kafka-compatible broker as a client does, and says what is wrong with the remedy.

    It checks that the name resolves, that the port speaks Kafka, its versions, that the advertised addresses of all brokers
    answer, topics that are offline or lack replicas, a record there and back in a temporary topic, and the clock.

    The exit code is 0 if everything is fine, 1 if there are findings, and 2 if the broker cannot be looked at.

    Example: wirekafka doctor localhost:9092
    """
    from wirekafka.cli.client.tables import print_json
    from wirekafka.cli.cluster.client import parse_bootstrap
    from wirekafka.cli.cluster.errors import ClusterCommandError

    try:
        [found] = parse_bootstrap(address)
    except (ClusterCommandError, ValueError):
        raise click.UsageError(f"{address}: accepted is HOST:PORT, such as localhost:9092.") from None
    try:
        from wirekafka.cli.client.connection import Connection, library
        from wirekafka.cli.client.examination import Patient, as_json, examine

        library()
        connection = Connection(client_settings | {BOOTSTRAP: str(found)}, timeout_s)
        report = examine(Patient(found.host, found.port, connection, topic, not no_write))
    except ClientCommandError as error:
        print_error(str(error))
        sys.exit(COULD_NOT_LOOK)
    if is_json:
        print_json(as_json(str(found), report))
    else:
        _print(report)
    sys.exit(COULD_NOT_LOOK if not report.could_look else FINDINGS if report.findings else 0)


def _print(report: Report) -> None:
    from wirekafka.cli.client.tables import print_heading, print_table

    print_table(("check", "state", "found"), [(each.check, each.state, each.detail) for each in report.results], health="state")
    if not report.findings:
        print_heading("Everything is fine.")
    for each in report.findings:
        print_heading(f"{each.check}: {each.detail}")
        click.echo(f"    {each.remedy}")
