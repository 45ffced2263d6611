"""Fault isolation: an unexpected exception in background work is logged, and costs only what the work was for.

How it works: a task or a timer that works for many partitions, groups or connections wraps the work for each one of them
in `isolate`. An unexpected exception ends that piece of work. The log gets its traceback and the remedy, and the task continues
with the next piece.

Rules of this file:
    The code that does the work handles expected errors (`OSError` of a disk, `KafkaError`).
    `Cancelled`, `KeyboardInterrupt` and `SystemExit` are not `Exception`s, and pass.
    Nothing here raises, whatever the log's sink does.
    The first failure of a kind is logged with its traceback. Later failures of the kind are counted, and logged in one line
    at each power of ten. Memory: the counts of at most `MOST_REMEMBERED` kinds.
"""

from __future__ import annotations

import traceback
from contextlib import suppress
from threading import Lock
from types import TracebackType

import structlog

log = structlog.get_logger(__name__)

MOST_REMEMBERED = 1024
"""The most kinds of failures that are counted. One more replaces the oldest kind, which is then logged in full again."""

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
            log.error(event, **subject, error=repr(error), remedy=remedy, exc_info=error)
        elif str(count).strip("0") == "1":
            log.error(event, **subject, error=repr(error), times=count)


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
