"""Writes log lines to a descriptor that may be full, closed, or a pipe that no process reads.

How it works: `write` adds a line to a bounded queue, and a thread writes the queue to the descriptor. So a descriptor that blocks
delays the thread and never the broker's loop. If the queue is full, the line is dropped. If the descriptor fails (a full disk, a
closed pipe), the line is lost. Both are counted, and a line with the count precedes the next line that is written.

Rules of this file:
    `write` never raises and never waits.
    Memory: at most `MOST_LINES` lines of `MOST_BYTES` characters together are queued.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

MOST_LINES = 10_000
MOST_BYTES = 1 << 22

NOT_READ = "lines came faster than they could be written"


class LogSink:
    """Writes lines to a descriptor, in a thread of its own that begins with the first line.

    Args:
        fd: the descriptor; None if the process has none, in which case lines are dropped.
        describe_loss: returns the line about lost lines, from their number and the reason.
    """

    def __init__(self, fd: int | None, describe_loss: Callable[[int, str], str]) -> None:
        self._fd = fd
        self._describe_loss = describe_loss
        self._changed = threading.Condition()
        self._lines: deque[str] = deque()
        self._queued_bytes = 0
        self._lost_count = 0
        self._lost_reason = ""
        self._is_writing = False
        self._is_within_line = False
        """Whether the descriptor took only a part of the last line."""
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Queues a line, which ends with a line feed; any thread may call this."""
        if self._fd is None:
            return
        with suppress(Exception), self._changed:
            if len(self._lines) >= MOST_LINES or self._queued_bytes + len(line) > MOST_BYTES:
                self._note_lost(1, NOT_READ)
                return
            self._lines.append(line)
            self._queued_bytes += len(line)
            if self._thread is None:
                self._start()
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits until all lines are written or lost, for at most so many seconds; returns False if the time was too short."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._lines or self._is_writing), seconds)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="log", daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                self._is_writing = True
                lines, lost, reason = self._lines, self._lost_count, self._lost_reason
                self._lines, self._queued_bytes, self._lost_count = deque(), 0, 0
            if lost:
                lines.append(self._describe_loss(lost, reason))
            try:
                self._write_all("".join(lines).encode("utf-8", "backslashreplace"))
            except Exception as error:  # noqa: BLE001 - the sink never raises
                with self._changed:
                    self._note_lost(lost + len(lines) - bool(lost), getattr(error, "strerror", None) or repr(error))

    def _note_lost(self, count: int, reason: str) -> None:
        self._lost_count += count
        self._lost_reason = reason

    def _write_all(self, data: bytes) -> None:
        """Writes the bytes, and waits for the descriptor as long as necessary.

        Raises:
            OSError: the descriptor fails.
        """
        assert self._fd is not None
        rest = memoryview(b"\n" + data if self._is_within_line else data)
        while rest:
            try:
                count = os.write(self._fd, rest)
            except BlockingIOError:  # another process made the shared descriptor non-blocking
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
                continue
            self._is_within_line = rest[count - 1] != ord("\n")
            rest = rest[count:]
