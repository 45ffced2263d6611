"""An unexpected exception is logged once, with the remedy, and costs only the piece of work that raised it."""

from __future__ import annotations

import time
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from wirekafka import faults
from wirekafka.faults import MOST_FRAMES, MOST_REMEMBERED, isolate, log_once, traceback_of
from wirekafka.server.logging import TextRenderer


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


HUGE = 10_000_000


def recurse(depth: int) -> None:
    if depth:
        recurse(depth - 1)
    fail("at the end")


def fail_with_huge_locals() -> None:
    values: Any = {number: [number] * 10 for number in range(20_000)}
    text = "x" * HUGE
    fail(f"{len(values)} {len(text)}")


def fail_in_a_long_chain() -> None:
    error: BaseException = RuntimeError("first")
    for number in range(1_000):
        later = RuntimeError(number)
        later.__context__ = error
        error = later
    raise error


def decode_bytes() -> None:
    (b"\xff" * HUGE).decode()


def look_up_bytes() -> None:
    raise KeyError(b"\0" * HUGE)


def fail_with_a_long_text() -> None:
    fail("x" * HUGE)


@pytest.mark.parametrize(
    "work",
    [
        fail_with_huge_locals,
        lambda: recurse(900),
        fail_in_a_long_chain,
        decode_bytes,
        look_up_bytes,
        fail_with_a_long_text,
    ],
    ids=["huge locals", "many frames", "a long chain", "huge bytes", "a huge key", "a long text"],
)
@pytest.mark.parametrize("is_configured", [True, False], ids=["configured", "not configured"])
def test_log_once_whatever_the_exception_holds_it_is_logged_in_a_short_time(
    work: Any, is_configured: bool, logged_faults: list[str]
) -> None:
    lines: list[str] = []

    def note(_logger: object, _method: str, line: Any) -> Any:
        lines.append(str(line))
        return line

    former = structlog.get_config()
    error = None
    try:
        work()
    except Exception as raised:  # noqa: BLE001 - any exception is logged
        error = raised
    assert error is not None
    traceback_of(error)  # reads the lines of the source
    try:
        if is_configured:
            structlog.configure(processors=[TextRenderer(has_colours=False), note])
        else:
            structlog.reset_defaults()
        began = time.thread_time()
        log_once(error, "Work failed")
        seconds = time.thread_time() - began
    finally:
        structlog.configure(**former)
    assert seconds < 0.05
    name = type(error).__name__
    del error  # its traceback holds this frame
    assert not is_configured or (name in lines[0] and len(lines[0]) < 30_000)


def test_traceback_has_the_last_frames_and_the_cause() -> None:
    try:
        try:
            recurse(2 * MOST_FRAMES)
        except RuntimeError as error:
            raise ValueError("second") from error
    except ValueError as raised:
        text = traceback_of(raised)
    assert "RuntimeError: at the end" in text and "direct cause" in text and text.endswith("ValueError: second")
    assert text.count("File ") < 2 * MOST_FRAMES
