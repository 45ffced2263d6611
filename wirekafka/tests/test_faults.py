"""An unexpected exception is logged once, with the remedy, and costs only the piece of work that raised it."""

from __future__ import annotations

import pytest
import trio
from structlog.testing import capture_logs

from wirekafka import faults
from wirekafka.faults import MOST_REMEMBERED, isolate, log_once


def fail(text: str = "no such thing") -> None:
    raise RuntimeError(text)


def test_isolate_unexpected_exception_is_logged_with_traceback_and_remedy() -> None:
    with capture_logs() as lines, isolate("Work failed", remedy="do this", partition="orders-0") as fault:
        fail()
    assert isinstance(fault.error, RuntimeError)
    (line,) = lines
    assert (line["event"], line["partition"], line["remedy"], line["log_level"]) == (
        "Work failed",
        "orders-0",
        "do this",
        "error",
    )
    assert line["exc_info"] is fault.error


def test_isolate_without_exception_logs_nothing() -> None:
    with capture_logs() as lines, isolate("Work failed") as fault:
        pass
    assert fault.error is None
    assert lines == []


def test_isolate_cancellation_passes() -> None:
    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            with isolate("Work failed"):
                await trio.sleep_forever()
        assert scope.cancelled_caught

    trio.run(main)


def test_log_once_same_failure_again_is_logged_at_powers_of_ten() -> None:
    with capture_logs() as lines:
        for _ in range(105):
            with isolate("Work failed", partition="orders-0"):
                fail()
    assert [line.get("times", 1) for line in lines] == [1, 10, 100]
    assert ["exc_info" in line for line in lines] == [True, False, False]


def test_log_once_other_subject_is_logged_in_full() -> None:
    with capture_logs() as lines:
        for name in ("orders-0", "orders-1", "orders-0"):
            with isolate("Work failed", partition=name):
                fail()
    assert [line["partition"] for line in lines] == ["orders-0", "orders-1"]


def test_log_once_many_subjects_remembers_no_more_than_the_limit() -> None:
    with capture_logs():
        for number in range(MOST_REMEMBERED + 10):
            log_once(RuntimeError(), "Work failed", partition=number)
    assert len(faults._counts) == MOST_REMEMBERED


def test_log_once_failing_sink_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk:
        def error(self, *args: object, **fields: object) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(faults, "log", FullDisk())
    log_once(RuntimeError(), "Work failed")
