"""Virtual time: a heap of events, the processes that they belong to, and the transcript of a run.

Rules of this file:
    Events of one time happen in the order in which they were scheduled.
    The events of a process that has ended do not happen. The events of a process that pauses happen after the pause, in order.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable

Act = Callable[[], object]

MS = 1_000
"""Microseconds."""


class Timer:
    """An event that has not happened yet."""

    __slots__ = ("act",)

    def __init__(self, act: Act) -> None:
        self.act: Act | None = act

    def cancel(self) -> None:
        """Cancels the event; does nothing if it has happened."""
        self.act = None


class Transcript:
    """The lines that describe a run, as a digest, and as text if `read` is given.

    Args:
        read: receives each line; None for no text.
    """

    __slots__ = ("_digest", "_read", "line_count")

    def __init__(self, read: Callable[[str], object] | None = None) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._read = read
        self.line_count = 0

    def add(self, line: str) -> None:
        """Adds a line."""
        self.line_count += 1
        self._digest.update(line.encode())
        self._digest.update(b"\n")
        if self._read is not None:
            self._read(line)

    def digest(self) -> str:
        """Returns the digest of all lines so far."""
        return self._digest.hexdigest()


class Events:
    """The heap of future events.

    Attributes:
        now_us: the virtual time, in microseconds since the beginning of the run.
        transcript: what has happened.
    """

    __slots__ = ("_heap", "_number", "now_us", "transcript")

    def __init__(self, transcript: Transcript | None = None) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._number = 0
        self.now_us = 0
        self.transcript = transcript or Transcript()

    @property
    def now_ms(self) -> int:
        """The virtual time in milliseconds."""
        return self.now_us // MS

    def call_at(self, when_us: int, act: Act) -> Timer:
        """Schedules an event; one in the past is due now."""
        timer = Timer(act)
        self._number += 1
        heapq.heappush(self._heap, (max(when_us, self.now_us), self._number, timer))
        return timer

    def call_later(self, delay_us: int, act: Act) -> Timer:
        """Schedules an event."""
        return self.call_at(self.now_us + delay_us, act)

    def note(self, who: str, what: str) -> None:
        """Adds a line to the transcript."""
        self.transcript.add(f"{self.now_us / MS:.3f} {who}: {what}")

    def run_until(self, end_us: int) -> None:
        """Executes all events up to this time."""
        heap = self._heap
        while heap and heap[0][0] <= end_us:
            self.now_us, _, timer = heapq.heappop(heap)
            act, timer.act = timer.act, None
            if act is not None:
                act()
        self.now_us = max(self.now_us, end_us)


class Process:
    """One run of a broker or a client, from its start to its end.

    Attributes:
        name: the name in the transcript.
        is_alive: False once the process has ended; nothing happens in it any more.
        paused_until_us: when the present or the last pause ends.
    """

    __slots__ = ("events", "is_alive", "name", "paused_until_us")

    def __init__(self, events: Events, name: str) -> None:
        self.events = events
        self.name = name
        self.is_alive = True
        self.paused_until_us = 0

    @property
    def is_paused(self) -> bool:
        """Whether nothing happens in the process now."""
        return self.events.now_us < self.paused_until_us

    def call_later(self, delay_us: int, act: Act) -> Timer:
        """Schedules an event in this process."""
        timer = Timer(act)
        self.events.call_later(delay_us, lambda: self._run(timer))
        return timer

    def repeat(self, interval_us: int, act: Act) -> None:
        """Schedules an event repeatedly in this process."""

        def again() -> None:
            self.call_later(interval_us, again)
            act()

        self.call_later(interval_us, again)

    def _run(self, timer: Timer) -> None:
        if not self.is_alive or timer.act is None:
            return
        if self.is_paused:
            self.events.call_at(self.paused_until_us, lambda: self._run(timer))
            return
        act, timer.act = timer.act, None
        act()

    def pause(self, duration_us: int) -> None:
        """Pauses the process, as SIGSTOP or a busy machine does."""
        self.paused_until_us = max(self.paused_until_us, self.events.now_us + duration_us)

    def end(self) -> None:
        """Ends the process at once, as SIGKILL does."""
        self.is_alive = False

    def note(self, what: str) -> None:
        """Adds a line to the transcript."""
        self.events.note(self.name, what)
