"""The log's sink with descriptors that work, block and fail; the sink's own thread writes, so each test waits in `flush`."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest

from wirekafka.server import log_sink
from wirekafka.server.log_sink import NOT_READ, LogSink

DEADLINE_SECONDS = 30.0


class Pipe:
    """A pipe, and a sink that writes to it."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.sink = LogSink(self.writer, lambda count, reason: f"lost {count}: {reason}\n")

    def read_all(self) -> str:
        """Closes the writing end and returns what was written."""
        assert self.sink.flush(DEADLINE_SECONDS)
        os.close(self.writer)
        with os.fdopen(self.reader, "rb") as reader:
            return reader.read().decode()

    def close(self) -> None:
        for fd in (self.reader, self.writer):
            with suppress(OSError):
                os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


class FailingWrites:
    """`os.write` with a list of results: an error, None for a whole write, or a number of bytes for a partial write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plan: list[OSError | int | None]) -> None:
        self.written = b""
        self._plan = plan
        monkeypatch.setattr(log_sink, "os", SimpleNamespace(write=self._write))

    def _write(self, fd: int, data: memoryview) -> int:
        step = self._plan.pop(0) if self._plan else None
        if isinstance(step, OSError):
            raise step
        taken = bytes(data[:step])
        self.written += taken
        return len(taken)


def write_all(sink: LogSink, *lines: str) -> None:
    """Writes each line by itself."""
    for line in lines:
        sink.write(line)
        assert sink.flush(DEADLINE_SECONDS)


def test_lines_are_written_in_their_order(pipe: Pipe) -> None:
    for number in range(100):
        pipe.sink.write(f"line {number}\n")
    assert pipe.read_all().splitlines() == [f"line {number}" for number in range(100)]


def test_pipe_that_is_not_read_holds_nobody_and_what_does_not_fit_is_counted(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sink, "MOST_BYTES", 1000)
    os.set_blocking(pipe.reader, False)
    long_line = "x" * 199 + "\n"
    total = 3000
    for _ in range(total):
        pipe.sink.write(long_line)
    assert not pipe.sink.flush(0)
    told = b""
    written = lost = 0
    while written + lost < total:
        with suppress(BlockingIOError):
            told += os.read(pipe.reader, 1 << 20)
        lines = told.decode().splitlines(keepends=True)
        written = lines.count(long_line)
        lost = sum(int(count) for count in re.findall(rf"lost (\d+): {NOT_READ}\n", told.decode()))
        if pipe.sink.flush(0.001) and pipe.sink._lost_count:
            pipe.sink.write(long_line)
            total += 1
    assert written + lost == total
    assert lost


def test_so_many_lines_and_no_more_are_queued(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sink, "MOST_LINES", 3)
    monkeypatch.setattr(pipe.sink, "_start", lambda: None)
    for number in range(5):
        pipe.sink.write(f"line {number}\n")
    assert list(pipe.sink._lines) == ["line 0\n", "line 1\n", "line 2\n"]
    assert pipe.sink._lost_count == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EBADF])
def test_lines_that_the_descriptor_refuses_are_counted_and_told_later(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    error = OSError(number, os.strerror(number))
    writes = FailingWrites(monkeypatch, [error, error])
    sink = LogSink(2, lambda count, reason: f"lost {count}: {reason}\n")
    write_all(sink, "first\n", "second\n", "third\n", "fourth\n")
    assert writes.written.decode() == f"third\nlost 2: {os.strerror(number)}\nfourth\n"


def test_line_that_was_cut_by_a_full_disk_does_not_swallow_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = FailingWrites(monkeypatch, [4, OSError(errno.ENOSPC, "full")])
    sink = LogSink(2, lambda count, reason: "lost\n")
    write_all(sink, "first\n", "second\n")
    assert writes.written == b"firs\nsecond\nlost\n"


def test_full_device_and_closed_pipe_raise_nothing(pipe: Pipe) -> None:
    os.close(pipe.reader)
    write_all(pipe.sink, "to a pipe that is closed\n", "again\n")
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        write_all(LogSink(full, lambda count, reason: "lost\n"), "to a disk that is full\n", "again\n")
    finally:
        os.close(full)


def test_process_without_stderr_drops_its_lines() -> None:
    sink = LogSink(None, lambda count, reason: "lost\n")
    sink.write("a line\n")
    assert sink.flush(0)


def test_descriptor_that_another_process_made_non_blocking_gets_every_line(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)
    lines = [f"{number:0199}\n" for number in range(2000)]
    for line in lines:
        pipe.sink.write(line)
    told = b""
    while len(told) < 200 * len(lines):
        told += os.read(pipe.reader, 1 << 20)
    assert told.decode() == "".join(lines)


def test_thread_that_cannot_start_loses_the_line_and_raises_nothing(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pipe.sink, "_start", fail)
    pipe.sink.write("one\n")
    monkeypatch.undo()
    pipe.sink.write("two\n")
    assert pipe.read_all() == "one\ntwo\n"
