"""Fault isolation: an unexpected exception in background work is logged, and costs only what the work was for.

How it works: a task or a timer that works for many partitions, groups or connections wraps the work for each one of them
in `isolate`. An unexpected exception ends that piece of work. The log gets its traceback and the remedy, and the task continues
with the next piece.

Rules of this file:
    The code that does the work handles expected errors (`OSError` of a disk, `KafkaError`).
    `Cancelled`, `KeyboardInterrupt` and `SystemExit` are not `Exception`s, and pass.
    Nothing here raises, whatever the log's sink does.
    An exception is logged in a few ms, whatever it holds: long values, such as the bytes of a UnicodeDecodeError, are cut before
    they are formatted, and only the last frames and a short chain of causes are.
    The first failure of a kind is logged with its traceback. Later failures of the kind are counted, and logged in one line
    at each power of ten. Memory: the counts of at most `MOST_REMEMBERED` kinds.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from threading import Lock
from types import TracebackType

import structlog

log = structlog.get_logger(__name__)

MOST_REMEMBERED = 1024
"""The most kinds of failures that are counted. One more replaces the oldest kind, which is then logged in full again."""

MOST_FRAMES = 50
MOST_CHAINED = 10
"""An exception with more causes and grouped exceptions is logged without these."""

MOST_ARGUMENT_SIZE = 1_000
"""Longer strings, bytes and collections in the arguments of an exception are cut."""

REPORT = "This is a defect of wirekafka: report it with this traceback. All other work continues"

_counts: dict[tuple[object, ...], int] = {}
_lock = Lock()


def log_once(error: BaseException, event: str, *, remedy: str = REPORT, **subject: object) -> None:
    """Logs an unexpected exception: the first of its kind with the traceback, then the 10th, 100th and so on as one line.

    It may be called in any thread, and never raises.

    Args:
        event: what failed; a constant, such as "Retention of a partition failed".
        remedy: what the operator can do.
        subject: what the work was for, such as `partition="orders-0"`. Exceptions of one type that are raised in one line for
            one subject are of one kind.
    """
    with suppress(Exception):
        count = _count((event, *map(str, subject.values()), type(error), *_place_of(error)))
        if count == 1:
            # The default of structlog formats the local variables of all frames, which may take seconds.
            trace = {"exc_info": error} if structlog.is_configured() else {"exception": traceback_of(error)}
            log.error(event, **subject, error=short_repr(error), remedy=remedy, **trace)
        elif str(count).strip("0") == "1":
            log.error(event, **subject, error=short_repr(error), times=count)


def traceback_of(error: BaseException) -> str:
    """Returns the traceback of an exception, with the tracebacks of its causes, within the limits of this file."""
    related = [*islice(_related(error), MOST_CHAINED + 1)]
    if len(related) <= MOST_CHAINED and all(map(_is_short, related)):
        lines = traceback.format_exception(error, limit=-MOST_FRAMES)
    else:
        frames = traceback.format_tb(error.__traceback__, limit=-MOST_FRAMES)
        lines = ["Traceback (most recent call last):\n", *frames, short_repr(error)]
    return "".join(lines).rstrip("\n")


def short_repr(error: BaseException) -> str:
    """Returns `repr` of an exception; long arguments are cut."""
    if _is_short(error):
        return repr(error)
    return f"{type(error).__name__}({', '.join(map(_short, error.args))})"


def _related(error: BaseException) -> Iterator[BaseException]:
    """Yields the exception, its causes, and the exceptions of groups, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions


def _is_short(error: BaseException) -> bool:
    return all(_is_short_value(argument) for argument in error.args)


def _is_short_value(value: object) -> bool:
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return len(value) <= MOST_FRAMES and all(not hasattr(each, "__len__") or len(each) <= MOST_FRAMES for each in value)
    return not isinstance(value, (str, bytes, bytearray)) or len(value) <= MOST_ARGUMENT_SIZE


def _short(value: object) -> str:
    if _is_short_value(value):
        return repr(value)
    if isinstance(value, (str, bytes, bytearray)):
        half = MOST_ARGUMENT_SIZE // 2
        return f"{value[:half]!r}...{value[-half:]!r}"
    return f"<{type(value).__name__}>"


def forget_logged() -> None:
    """Makes `log_once` log everything in full again."""
    with _lock:
        _counts.clear()


class isolate:  # noqa: N801 - it reads as a statement: `with isolate(...)`
    """A context that logs an unexpected exception as `log_once` does, and continues after the block.

    Attributes:
        error: the exception that ended the block; None if there was none.
    """

    __slots__ = ("_event", "_remedy", "_subject", "error")

    def __init__(self, event: str, *, remedy: str = REPORT, **subject: object) -> None:
        self.error: Exception | None = None
        self._event = event
        self._remedy = remedy
        self._subject = subject

    def __enter__(self) -> isolate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        log_once(error, self._event, remedy=self._remedy, **self._subject)
        return True


def _count(kind: tuple[object, ...]) -> int:
    with _lock:
        count = _counts.pop(kind, 0) + 1
        if len(_counts) >= MOST_REMEMBERED:
            del _counts[next(iter(_counts))]
        _counts[kind] = count
        return count


def _place_of(error: BaseException) -> tuple[str, int]:
    """Returns the file and the line that raised."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return "", 0
    frame, line = frames[-1]
    return frame.f_code.co_filename, line
