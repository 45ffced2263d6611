"""`wirekafka consume`: reads records."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from wirekafka.cli.client.completion import complete_topic
from wirekafka.cli.client.errors import ClientCommand, ClientCommandError
from wirekafka.cli.client.options import connection_options

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from wirekafka.cli.client.connection import Connection
    from wirekafka.cli.client.signals import StopSignal

INTERRUPTED = 130
STYLES = ("text", "hex", "base64")


class Reading(NamedTuple):
    """Which records are read.

    Attributes:
        follows: whether to go on at the end.
    """

    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    first: str
    until: str
    follows: bool
    most_records: int | None
    group: str | None
    isolation_level: str


@click.command(cls=ClientCommand)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.option("--from", "first", metavar="POSITION", help="Begin at beginning (default), end, OFFSET, -COUNT, +COUNT or @TIME.")
@click.option("--until", metavar="POSITION", help="End before this position; default: the end as it is at the start.")
@click.option("--until-end", is_flag=True, help="End at the end; the default.")
@click.option("--follow", "-f", "follows", is_flag=True, help="Go on at the end, and wait for new records.")
@click.option(
    "--max-messages", "-n", "most_records", type=click.IntRange(min=1), metavar="COUNT", help="End after so many records."
)
@click.option("--partition", "-p", "partitions", type=click.IntRange(min=0), multiple=True, help="Can be given several times.")
@click.option("--group", "-g", metavar="GROUP", help="Read as a member of this group, and commit what was printed.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Whether records of open and aborted transactions are left out.",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object a line, which `wirekafka produce --json` reads.")
@click.option("--format", "-F", "template", metavar="TEXT", help=r"Print in a format, such as '%t %p %o %d %k=%v %h\n'.")
@click.option("--key-separator", "-K", metavar="TEXT", help="Print the key and this text before each value.")
@click.option("--bytes", "value_style", type=click.Choice(STYLES), default="text", show_default=True, help="How bytes are shown.")
@click.option("--key-bytes", "key_style", type=click.Choice(STYLES), help="How keys are shown; default: as --bytes.")
@click.option("--null", metavar="TEXT", default="null", show_default=True, help="Stands for keys and values that are null.")
@connection_options
def consume(
    connection: Connection,
    is_json: bool,
    template: str | None,
    key_separator: str | None,
    value_style: str,
    key_style: str | None,
    null: str,
    until_end: bool,
    **selection: Any,
) -> None:
    r"""Prints the records of topics: what is there, or with --follow also what comes.

    A POSITION is in each partition. -10 is ten before the end, +10 is ten after the beginning, and @TIME is the first record of
    this time or later: @2026-05-01T12:00:00 (UTC), @1777636800000 or @-1h.

    A format has %t topic, %p partition, %o offset, %k key, %v value, %h headers, %T timestamp in ms, %d date, %K and %S the
    sizes of key and value; \n, \t, \0 and \xNN.

    Example: wirekafka consume orders -b localhost:9092 --from @-1h --follow
    """
    from wirekafka.cli.client.record_text import RecordText
    from wirekafka.cli.client.signals import StopSignal
    from wirekafka.inspection.text import BytesStyle

    if sum((is_json, template is not None, key_separator is not None)) > 1:
        raise click.UsageError("--json, --format and --key-separator exclude each other.")
    if until_end and (selection["follows"] or selection["until"]):
        raise click.UsageError("--until-end excludes --until and --follow.")
    reading = _checked(Reading(**selection))
    text = RecordText(BytesStyle(key_style or value_style), BytesStyle(value_style), null=null, is_terminal=sys.stdout.isatty())
    prefix = "" if key_separator is None else f"%k{_literal(key_separator)}"
    as_text = text.json_line if is_json else text.formatter(f"{prefix}%v\\n" if template is None else template)
    with StopSignal() as stop:
        _print_records(connection, reading, as_text, stop)
    if stop.is_set and not reading.follows:
        sys.exit(INTERRUPTED)


def _checked(reading: Reading) -> Reading:
    """Returns the reading with its defaults.

    Raises:
        click.UsageError: options contradict each other.
    """
    if reading.follows and reading.until is not None:
        raise click.UsageError("--until and --follow exclude each other.")
    if reading.group is not None and (reading.partitions or reading.until is not None):
        raise click.UsageError("--group excludes --partition and --until: the group gives each member its partitions.")
    if reading.first in ("end", "latest") and not reading.follows and reading.group is None:
        raise click.UsageError(f"--from {reading.first} begins where nothing is left: add --follow.")
    return reading._replace(first=reading.first or "beginning", until=reading.until or "end")


def _literal(text: str) -> str:
    return text.replace("%", "%%")


def _print_records(connection: Connection, reading: Reading, as_text: Callable[[Message], bytes], stop: StopSignal) -> None:
    output = sys.stdout.buffer
    count = 0
    with _opened(connection, reading) as consumer:
        for records in _records(connection, consumer, reading, stop):
            wanted = records if reading.most_records is None else records[: reading.most_records - count]
            for record in wanted:
                output.write(as_text(record))
                if reading.group is not None:
                    consumer.store_offsets(record)
            output.flush()
            count += len(wanted)
            if count == reading.most_records:
                break
        if reading.group is not None:
            _commit(consumer)


@contextmanager
def _opened(connection: Connection, reading: Reading) -> Iterator[Consumer]:
    consumer = connection.consumer(
        group_id=reading.group or "wirekafka-consume",
        enable_auto_commit=reading.group is not None,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        isolation_level=reading.isolation_level,
        auto_offset_reset="latest" if reading.group and reading.first in ("end", "latest") else "earliest",
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _records(connection: Connection, consumer: Consumer, reading: Reading, stop: StopSignal) -> Iterator[list[Message]]:
    from wirekafka.cli.client.positions import Kind, parse_position, ranges_of
    from wirekafka.cli.client.reading import read_as_member, read_ranges

    now_ms = round(time.time() * 1000)
    first, until = parse_position(reading.first, now_ms), parse_position(reading.until, now_ms)
    metadata = connection.metadata()
    names = _names(metadata, reading)
    if reading.group is not None:
        if first.kind not in (Kind.BEGINNING, Kind.END):
            raise click.UsageError("With --group, --from is beginning or end; `wirekafka group reset-offsets` does the others.")
        yield from read_as_member(consumer, reading.topics, follows=reading.follows, is_stopped=lambda: stop.is_set)
        return
    is_committed_only = reading.isolation_level == "read_committed"
    ranges = ranges_of(connection, names, first, until, is_committed_only=is_committed_only)
    yield from read_ranges(connection, consumer, ranges, follows=reading.follows, is_stopped=lambda: stop.is_set)


def _names(metadata: Any, reading: Reading) -> list[tuple[str, int]]:
    """Returns the partitions to read.

    Raises:
        ClientCommandError: a topic or a partition does not exist.
    """
    from wirekafka.cli.client.connection import partition_names

    for topic in reading.topics:
        if topic not in metadata.topics:
            raise ClientCommandError(f"topic {topic} does not exist; `wirekafka topic list` shows the topics")
        for partition in reading.partitions:
            if partition not in metadata.topics[topic].partitions:
                raise ClientCommandError(f"topic {topic} has no partition {partition}; `wirekafka topic describe` shows them")
    names = partition_names(metadata, dict.fromkeys(reading.topics))
    return [name for name in names if not reading.partitions or name[1] in reading.partitions]


def _commit(consumer: Consumer) -> None:
    """Commits the offsets of the records that were printed.

    Raises:
        ClientCommandError: the coordinator refuses.
    """
    from confluent_kafka import KafkaException

    from wirekafka.cli.client.connection import sentence

    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].name() != "_NO_OFFSET":
            raise ClientCommandError(f"the offsets are not committed: {sentence(error.args[0])}") from None
