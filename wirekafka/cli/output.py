"""A command whose output cannot be written ends with one line on stderr and exit code 1, without a traceback.

Python writes the last part of stdout when the process ends, after all error handlers. So stdout is flushed before that.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

COULD_NOT_WRITE = 1


class SafeOutputGroup(click.Group):
    """A group of commands that reports in one line that stdout cannot be written."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Runs the command, and flushes its output."""
        try:
            super().main(*args, **extra)
        except SystemExit:
            self._flush()
            raise
        except OSError as error:
            if error.filename:
                raise
            _fail(error)

    def _flush(self) -> None:
        try:
            sys.stdout.flush()
        except OSError as error:
            _fail(error)


def printable(text: str) -> str:
    """Returns the text with escapes for the characters that a terminal would interpret."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _fail(error: OSError) -> NoReturn:
    # Python would write the rest again when it ends, and print a traceback.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if not isinstance(error, BrokenPipeError):
        click.echo(f"wirekafka: cannot write the output: {error.strerror}", err=True)
    sys.exit(COULD_NOT_WRITE)
