"""`wirekafka log`: shows and checks the files of a data directory. Files are only read; a broker may be running or not.

Exit codes: 0 no damage, 1 something is damaged or cannot be read, 2 wrong arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from wirekafka.cli.rows import RowWriter
    from wirekafka.inspection.dump import Selection
    from wirekafka.inspection.files import Advance
    from wirekafka.inspection.verification import Checked

DAMAGED = 1
LONG_WORK_BYTES = 64 << 20
"""Work on fewer bytes ends before a progress bar would be useful."""


@click.group()
def log() -> None:
    """Shows and checks data directories.

    The directory may be one of wirekafka or of Apache Kafka, and a broker may be running on it. Nothing is written.
    """


@log.command()
@click.argument("path", metavar="FILE|DIR", type=click.Path(exists=True))
@click.option("--records", is_flag=True, help="Show the records too; a table shows records instead of batches.")
@click.option(
    "--format",
    "output",
    type=click.Choice(["table", "jsonl"]),
    default="table",
    show_default=True,
    help="A table, or one JSON object a line.",
)
@click.option(
    "--bytes",
    "bytes_style",
    type=click.Choice(["text", "hex", "base64"]),
    default="text",
    show_default=True,
    help="How keys, values and headers are shown. A table cuts long values; JSON lines do not.",
)
@click.option(
    "--from", "from_offset", type=click.IntRange(min=0), default=0, metavar="OFFSET", help="Show this offset and later."
)
@click.option("--until", "until_offset", type=click.IntRange(min=0), metavar="OFFSET", help="Show earlier offsets than this one.")
@click.option(
    "--raw",
    is_flag=True,
    help="Show records of __consumer_offsets, __transaction_state and __share_group_state as bytes, not decoded.",
)
def dump(path: str, records: bool, output: str, bytes_style: str, from_offset: int, until_offset: int | None, raw: bool) -> None:
    """Shows the content of data files.

    A FILE is a log with its batches and records, an index, a snapshot of producers, or a checkpoint. If DIR is the folder of a
    partition or a data directory, all its files are shown.
    """
    from wirekafka.cli.rows import writer_of
    from wirekafka.inspection.dump import Selection, files_to_dump
    from wirekafka.inspection.files import kind_of
    from wirekafka.inspection.text import BytesStyle

    files = files_to_dump(path)
    if not files or any(kind_of(file) is None for file in files):
        raise click.UsageError(f"{path} is, or contains, no log, index, snapshot or checkpoint, by its name.")
    selection = Selection(
        has_batches=output == "jsonl" or not records,
        has_records=records,
        from_offset=from_offset,
        until_offset=until_offset,
        bytes_style=BytesStyle(bytes_style),
        has_meanings=not raw,
    )
    with _reading():
        sys.exit(_dump(files, selection, writer_of(output)))


def _dump(files: list[str], selection: Selection, writer: RowWriter) -> int:
    from wirekafka.inspection.dump import dump_file
    from wirekafka.inspection.files import DamageError, Kind, kind_of, size_of
    from wirekafka.inspection.verification import has_broker

    status = 0
    total = sum(size_of(file) for file in files if kind_of(file) == Kind.LOG)
    # A progress bar would disturb rows on the same terminal.
    with _progress(total, "Reading", is_wanted=not sys.stdout.isatty()) as advance:
        for file in files:
            try:
                for row in dump_file(file, selection, advance):
                    writer.write(file, row)
            except DamageError as damage:
                writer.flush()
                click.echo(f"wirekafka: {damage}", err=True)
                if not (damage.is_torn and has_broker(os.path.dirname(os.path.abspath(file)))):
                    status = DAMAGED
            except FileNotFoundError:
                if not has_broker(os.path.dirname(os.path.abspath(file))):
                    raise
            writer.flush()
    return status


@log.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option("--records", "reads_records", is_flag=True, help="Read each record and check its offset; slow.")
@click.option("--keep-going", is_flag=True, help="Continue with the next partition, and name the first damage of each one.")
def verify(directory: str, reads_records: bool, keep_going: bool) -> None:
    """Checks a data directory for damage.

    DIR is a data directory or the folder of one partition. Every batch, index, snapshot and checkpoint is checked. If something
    is damaged, the exit code is 1, and the first damage is named with file, position and offset.
    """
    from wirekafka.inspection.files import holds_data
    from wirekafka.inspection.verification import log_bytes_in, verify

    with _reading():
        if not holds_data(directory):
            raise click.UsageError(f"{directory} is neither a data directory nor the folder of a partition.")
        damages = []
        with _progress(log_bytes_in(directory), "Checking", is_wanted=True) as advance:
            verification = verify(directory, advance=advance, reads_records=reads_records)
            for damage in verification.damages():
                damages.append(damage)
                if not keep_going:
                    break
    for note in verification.notes:
        click.echo(f"note: {note}")
    for damage in damages:
        click.echo(f"damaged: {damage}")
    result = "no damage" if not damages else "stopped at the first damage" if not keep_going else f"{len(damages)} damaged"
    click.echo(f"{_summary(verification.checked)}: {result}")
    sys.exit(DAMAGED if damages else 0)


def _summary(checked: Checked) -> str:
    counts = {
        "partitions": checked.partitions,
        "segments": checked.segments,
        "batches": checked.batches,
        "records": checked.records,
        "bytes": checked.log_bytes,
        "index entries": checked.index_entries,
        "other files": checked.other_files,
    }
    return "checked " + ", ".join(f"{count:,} {name}" for name, count in counts.items())


@contextmanager
def _reading() -> Iterator[None]:
    """Ends the command with one line if a file cannot be read. An OSError without a file name concerns stdout, see `output`."""
    try:
        yield
    except OSError as error:
        if not error.filename:
            raise
        _fail(f"cannot read {error.filename}: {error.strerror}")


def _fail(message: str) -> NoReturn:
    click.echo(f"wirekafka: {message}", err=True)
    sys.exit(DAMAGED)


@contextmanager
def _progress(total_bytes: int, what: str, *, is_wanted: bool) -> Iterator[Advance]:
    """Shows a progress bar on stderr, if stderr is a terminal and the work is long."""
    if not (is_wanted and sys.stderr.isatty() and total_bytes > LONG_WORK_BYTES):
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total_bytes)
        waiting = 0

        def advance(size: int) -> None:
            nonlocal waiting
            waiting += size
            if waiting >= 1 << 20:
                progress.advance(task, waiting)
                waiting = 0

        yield advance
