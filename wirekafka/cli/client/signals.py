"""Ends a command at SIGINT or SIGTERM after the step that it is in."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopSignal:
    """Notes signals for as long as a with-block lasts.

    Attributes:
        is_set: whether a signal has come.
    """

    def __init__(self) -> None:
        self.is_set = False

    def __enter__(self) -> StopSignal:
        self._former = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
