"""The broker's log: one line for each event on stderr, as text or as JSON.

Rules of this file:
    Logging never raises and never waits: `log_sink` writes the lines, and a line that cannot be rendered is replaced by an error.
    Strings of clients cannot forge lines or send control sequences to a terminal: characters that are not printable are
    escaped, and the lines of a traceback are indented.
    A value is cut at `MOST_VALUE_CHARS`, a traceback at `MOST_TRACEBACK_CHARS`.
    An event is logged for a client (its address without the port) at most `CLIENT_BURST` times at once, and then at most once
    in `CLIENT_SECONDS`; the next line has the number of suppressed lines. Greater limits of the same kind apply to all clients
    together, and to events without a client. Lines of level debug are not limited.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from math import isfinite
from threading import Lock
from typing import Any

import structlog

from wirekafka.faults import traceback_of
from wirekafka.server.log_sink import LogSink

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

FORMATS = ("text", "json")

MOST_VALUE_CHARS = 500
MOST_TRACEBACK_CHARS = 20_000

CLIENT_BURST, CLIENT_SECONDS = 50, 5.0
CLIENTS_BURST, CLIENTS_SECONDS = 200, 0.05
EVENT_BURST, EVENT_SECONDS = 1000, 0.05
MOST_LIMITED = 1024
"""The number of pairs of event and client whose limits are kept; the pair that was logged longest ago is removed first."""

FLUSH_SECONDS = 1.0
"""The time that the end of the process waits for lines that are not written yet."""

EventDict = MutableMapping[str, Any]

_EVENT_WIDTH = 30
_RESET, _DIM, _BRIGHT, _KEY, _VALUE = "\x1b[0m", "\x1b[2m", "\x1b[1m", "\x1b[36m", "\x1b[35m"
_LEVEL_COLOURS = {"debug": "\x1b[32m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m"}

_sink: LogSink | None = None
_level = logging.CRITICAL


def configure_logging(level: str, log_format: str = "text") -> None:
    """Writes the lines of `level` (a key of `LEVELS`) and above to stderr.

    Args:
        log_format: one of `FORMATS`. Text is coloured if stderr is a terminal, unless NO_COLOR is set or TERM is dumb.
    """
    global _sink, _level
    render = JsonRenderer() if log_format == "json" else TextRenderer(has_colours=_has_colours())
    sink = LogSink(_stderr_fd(), lambda count, reason: render.line("warning", "Log lines were lost", count=count, reason=reason))
    structlog.configure(
        processors=[RateLimit(), render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: _SinkLogger(sink),
        cache_logger_on_first_use=True,
    )
    _sink, _level = sink, LEVELS[level]
    atexit.register(flush_log)


def flush_log() -> None:
    """Waits until the logged lines are written, for at most `FLUSH_SECONDS`."""
    if _sink is not None:
        _sink.flush(FLUSH_SECONDS)


def is_logged(level: str) -> bool:
    """Whether lines of this level are written, for callers that would compute the values of a line in vain."""
    return _level <= LEVELS[level]


def _stderr_fd() -> int | None:
    """Returns the descriptor of stderr; None if stderr was closed at start, because another file may have the descriptor."""
    try:
        return None if sys.stderr is None else sys.stderr.fileno()
    except (OSError, ValueError):
        return None


def _has_colours() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _SinkLogger:
    """The object to which structlog writes rendered lines."""

    def __init__(self, sink: LogSink) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = self.exception = sink.write


class _Bucket:
    """The number of lines that may be logged now: `burst` at first, and one more after each `seconds`."""

    __slots__ = ("_burst", "_room", "_seconds", "_since", "suppressed_count")

    def __init__(self, burst: int, seconds: float, now: float) -> None:
        self._burst = self._room = float(burst)
        self._seconds = seconds
        self._since = now
        self.suppressed_count = 0

    def take(self, now: float) -> bool:
        """Takes the place of one line; returns False if none is left."""
        self._room = min(self._burst, self._room + (now - self._since) / self._seconds)
        self._since = now
        if self._room < 1:
            return False
        self._room -= 1
        return True


class RateLimit:
    """A structlog processor that drops lines that are too frequent.

    Args:
        clock: returns seconds that never decrease.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str | None], _Bucket] = {}
        self._lock = Lock()

    def __call__(self, logger: object, level: str, line: EventDict) -> EventDict:
        """Returns the line, with the number of lines that were suppressed before it, if any.

        Raises:
            structlog.DropEvent: the line is suppressed.
        """
        if level == "debug":
            return line
        with self._lock:
            now = self._clock()
            first, *others = self._buckets_of(str(line.get("event")), line.get("client"), now)
            if not (first.take(now) and all(bucket.take(now) for bucket in others)):
                first.suppressed_count += 1
                raise structlog.DropEvent
            if first.suppressed_count:
                line["suppressed"], first.suppressed_count = first.suppressed_count, 0
        return line

    def _buckets_of(self, event: str, client: object, now: float) -> list[_Bucket]:
        if client is None:
            return [self._bucket(event, None, EVENT_BURST, EVENT_SECONDS, now)]
        address = str(client)[:MOST_VALUE_CHARS]
        return [
            self._bucket(event, address.rpartition(":")[0] or address, CLIENT_BURST, CLIENT_SECONDS, now),
            self._bucket(event, "", CLIENTS_BURST, CLIENTS_SECONDS, now),
        ]

    def _bucket(self, event: str, host: str | None, burst: int, seconds: float, now: float) -> _Bucket:
        bucket = self._buckets.pop((event, host), None)
        if bucket is None:
            if len(self._buckets) >= MOST_LIMITED:
                del self._buckets[next(iter(self._buckets))]
            bucket = _Bucket(burst, seconds, now)
        self._buckets[event, host] = bucket
        return bucket


class _Renderer:
    """A structlog processor that renders the line of an event, whatever values the event has."""

    def __call__(self, logger: object, level: str, line: EventDict) -> str:
        """Returns the line, and the traceback's lines if the event has one."""
        try:
            trace = _traceback_of(line.pop("exc_info", None))
            return self._render("error" if level == "exception" else level, str(line.pop("event", "")), line, trace)
        except Exception as error:  # noqa: BLE001 - a line that cannot be rendered must not raise where it is logged
            return self.line("error", "A log line could not be rendered", error=type(error).__name__)

    def line(self, level: str, event: str, **values: object) -> str:
        """Returns the line of an event."""
        return self._render(level, event, values, "")

    def _render(self, level: str, event: str, values: Mapping[str, Any], trace: str) -> str:
        raise NotImplementedError


class TextRenderer(_Renderer):
    """Renders lines for people: time, level, event and values.

    Args:
        has_colours: whether the terminal shows colours.
    """

    def __init__(self, *, has_colours: bool) -> None:
        self._has_colours = has_colours

    def _render(self, level: str, event: str, values: Mapping[str, Any], trace: str) -> str:
        padding = " " * max(0, _EVENT_WIDTH - len(event)) if values else ""
        level = self._in(_LEVEL_COLOURS.get(level, ""), f"{level:<9}")
        parts = [f"{self._in(_DIM, _local_time())} [{level}] {self._in(_BRIGHT, _escape(event))}{padding}"]
        parts += [f"{self._in(_KEY, _escape(key))}={self._in(_VALUE, _text_of(value))}" for key, value in values.items()]
        return " ".join(parts) + "\n" + "".join(f"    {_escape(row)}\n" for row in trace.split("\n") if row)

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._has_colours else text


class JsonRenderer(_Renderer):
    """Renders lines for programs: an object with `time`, `level`, `event`, the values, and `exception` for a traceback."""

    def _render(self, level: str, event: str, values: Mapping[str, Any], trace: str) -> str:
        line: dict[str, object] = {"time": _utc_time(), "level": level, "event": _cut(event)}
        line |= {_cut(str(key)): _json_value(value) for key, value in values.items()}
        if trace:
            line["exception"] = trace
        return json.dumps(line) + "\n"


def _local_time() -> str:
    return datetime.now(UTC).astimezone().isoformat(timespec="milliseconds")


def _utc_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _escape(text: str) -> str:
    """Returns the text with characters that are not printable escaped, and cut."""
    text = _cut(text)
    return text if text.isprintable() else repr(text)[1:-1]


def _cut(text: str) -> str:
    if len(text) <= MOST_VALUE_CHARS:
        return text
    return f"{text[:MOST_VALUE_CHARS]}... ({len(text)} characters)"


def _text_of(value: object) -> str:
    """Returns a value as text, in quotes if the text would look like several values."""
    if not isinstance(value, str):
        return _escape(_repr_of(value))
    value = _cut(value)
    return repr(value) if not value.isprintable() or not value or set(value) & set(" =\"'") else value


def _json_value(value: object) -> object:
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, (list, tuple)):
        return [_json_value(each) for each in value[:MOST_VALUE_CHARS]]
    return _cut(value if isinstance(value, str) else _repr_of(value))


def _repr_of(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - any class may have such a repr
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _traceback_of(exc_info: object) -> str:
    """Returns the traceback of an exception, of an `exc_info` triple, or of the exception that is being handled (True)."""
    if not exc_info:
        return ""
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
    if error is None:
        return ""
    text = traceback_of(error)
    half = MOST_TRACEBACK_CHARS // 2
    return text if len(text) <= MOST_TRACEBACK_CHARS else f"{text[:half]}\n...\n{text[-half:]}"
