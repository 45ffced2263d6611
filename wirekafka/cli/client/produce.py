"""`wirekafka produce`: writes records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import click

from wirekafka.cli.client.completion import complete_topic
from wirekafka.cli.client.errors import FAILED, ClientCommand, ClientCommandError, print_error
from wirekafka.cli.client.options import connection_options, parsed_settings

if TYPE_CHECKING:
    from wirekafka.cli.client.connection import Connection
    from wirekafka.cli.client.input_records import NewRecord
    from wirekafka.cli.client.sending import Sender

MOST_PARTITIONS = 4
"""More partitions are counted in the last line, not listed."""
INTERRUPTED = 130


@dataclass(slots=True)
class Input:
    """Where the records come from.

    Attributes:
        value: the value of a single record, instead of files.
    """

    files: tuple[str, ...]
    is_json: bool
    is_whole: bool
    key_separator: str | None
    null: str | None
    style: str
    key: str | None
    value: str | None
    is_tombstone: bool
    partition: int | None
    headers: tuple[tuple[str, str], ...]


@click.command(cls=ClientCommand)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--key-separator", "-K", metavar="TEXT", help="Divide each line into key and value at this text.")
@click.option("--json", "is_json", is_flag=True, help="Each line is a JSON object, as `wirekafka consume --json` prints it.")
@click.option("--whole", "is_whole", is_flag=True, help="Each FILE is one record.")
@click.option("--key", "-k", metavar="TEXT", help="The key of all records.")
@click.option("--value", metavar="TEXT", help="Write one record with this value, and read no input.")
@click.option("--tombstone", "is_tombstone", is_flag=True, help="Write one record with --key and without a value; read no input.")
@click.option("--partition", "-p", type=click.IntRange(min=0), help="The partition; otherwise the key chooses it, as in Java.")
@click.option(
    "--header", "-H", "headers", metavar="NAME=VALUE", multiple=True, callback=parsed_settings, help="A header of all records."
)
@click.option("--null", metavar="TEXT", help="A key or a value in a line that is this text is null.")
@click.option(
    "--bytes",
    "style",
    type=click.Choice(["text", "hex", "base64"]),
    default="text",
    show_default=True,
    help="How bytes are written.",
)
@click.option("--quiet", "-q", is_flag=True, help="Do not print what was written.")
@connection_options
def produce(connection: Connection, topic: str, quiet: bool, **source: Any) -> None:
    r"""Writes records to a topic: one for each line of the FILEs, or of the standard input.

    A JSON line has key, value, headers, partition and timestamp (ms), all optional. A value that is no string is written as JSON,
    and null is a tombstone.

    Example: wirekafka produce orders -b localhost:9092 --key a --value 'a first order'
    """
    from wirekafka.cli.client.sending import Sender

    records = _records(_checked(Input(**source)))
    sender = Sender(connection, topic)
    sender.find_topic(connection)
    failure, is_interrupted = None, False
    try:
        sender.send_all(records)
    except ClientCommandError as error:
        failure = str(error)
    except KeyboardInterrupt:  # what was read before is sent
        is_interrupted = True
    if not quiet:
        click.echo(_summary(topic, sender))
    if failure is not None:
        print_error(failure)
        sys.exit(FAILED)
    if is_interrupted:
        sys.exit(INTERRUPTED)


def _checked(source: Input) -> Input:
    is_single = source.value is not None or source.is_tombstone
    if source.value is not None and source.is_tombstone:
        raise click.UsageError("--value and --tombstone exclude each other.")
    if source.is_tombstone and source.key is None:
        raise click.UsageError("--tombstone needs --key.")
    if is_single and (source.files or source.is_json or source.is_whole or source.key_separator is not None):
        raise click.UsageError("--value and --tombstone read no input: leave out FILE, --json, --whole and --key-separator.")
    if sum((source.is_json, source.is_whole, source.key_separator is not None)) > 1:
        raise click.UsageError("--json, --whole and --key-separator exclude each other.")
    if source.key_separator == "":
        raise click.UsageError("--key-separator: accepted is at least one character.")
    return source


def _records(source: Input) -> Iterator[NewRecord]:
    """Returns the records with what the options give to all of them.

    Raises:
        click.UsageError: --key or --value is no text of the style.
    """
    from wirekafka.cli.client.input_records import decoded
    from wirekafka.inspection.text import BytesStyle

    style = BytesStyle(source.style)
    try:
        key = None if source.key is None else decoded(source.key, style)
        value = None if source.value is None else decoded(source.value, style)
    except ValueError as error:
        raise click.UsageError(f"--key or --value is not in {source.style}: {error}") from None
    return _completed(source, key, value)


def _completed(source: Input, key: bytes | None, value: bytes | None) -> Iterator[NewRecord]:
    from wirekafka.cli.client.input_records import NewRecord

    is_single = value is not None or source.is_tombstone
    for record in [NewRecord(value=value)] if is_single else _read(source):
        if key is not None:
            record.key = key
        if source.partition is not None:
            record.partition = source.partition
        record.headers += [(name, text.encode()) for name, text in source.headers]
        yield record


def _read(source: Input) -> Iterator[NewRecord]:
    from wirekafka.cli.client.input_records import LineFormat, NewRecord, read_lines
    from wirekafka.inspection.text import BytesStyle

    separator = None if source.key_separator is None else source.key_separator.encode()
    null = None if source.null is None else source.null.encode()
    form = LineFormat(separator, null, BytesStyle(source.style))
    for file in source.files or ("-",):
        if source.is_whole:
            yield NewRecord(value=_standard_input().read() if file == "-" else Path(file).read_bytes())
        elif file == "-":
            yield from read_lines("standard input", _standard_input(), form, is_json=source.is_json)
        else:
            with open(file, "rb") as lines:
                yield from read_lines(file, lines, form, is_json=source.is_json)


def _standard_input() -> BinaryIO:
    stream: TextIO | None = sys.stdin
    if stream is None:
        raise ClientCommandError("the standard input is closed: name a FILE")
    return stream.buffer


def _summary(topic: str, sender: Sender) -> str:
    count = f"{sender.count} record{'' if sender.count == 1 else 's'} written to {topic}"
    if len(sender.offsets) > MOST_PARTITIONS:
        return f"{count}, to {len(sender.offsets)} partitions"
    ranges = [
        f"partition {partition} offset {first}" if first == last else f"partition {partition} offsets {first} to {last}"
        for partition, (first, last) in sorted(sender.offsets.items())
    ]
    return f"{count}: {', '.join(ranges)}" if ranges else count
