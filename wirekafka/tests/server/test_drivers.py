"""Tests of both drivers, and tests of the epoll driver alone."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
import trio.lowlevel
import trio.testing

from wirekafka.api.registry import Client
from wirekafka.errors import ProtocolError
from wirekafka.faults import forget_logged
from wirekafka.log.storage import FileHandle, FileRegion
from wirekafka.pending import Pending
from wirekafka.server import connection, drivers
from wirekafka.server.connection import FRAMES_PER_TURN, HELD_SECONDS, LARGE_FRAME_BYTES
from wirekafka.server.drivers import SEND_PER_TURN_BYTES, SENDFILE_BYTES, EpollDriver
from wirekafka.server.loop_lag import LoopLag
from wirekafka.server.receive_buffers import SHARED_BYTES
from wirekafka.tests.server.driver_bench import Bench, bench, is_at_end, leave_waiting, receive, run
from wirekafka.tests.server.frames import frame, produce


@pytest.fixture(params=["epoll", "stream"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_request_is_answered(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        for number in range(3):
            await stream.send_all(frame(b"request number %d" % number))
            expected = frame(b"REQUEST NUMBER %d" % number)
            assert await receive(stream, len(expected)) == expected

    run(kind, test)


def test_requests_byte_by_byte_are_answered(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        for byte in frame(b"first request") + frame(b"second request"):
            await stream.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        expected = frame(b"FIRST REQUEST") + frame(b"SECOND REQUEST")
        assert await receive(stream, len(expected)) == expected

    run(kind, test)


def test_many_requests_at_once_are_answered_in_order(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        payloads = [b"request number %d" % number for number in range(5 * FRAMES_PER_TURN + 3)]
        await stream.send_all(b"".join(map(frame, payloads)))
        expected = b"".join(frame(payload.upper()) for payload in payloads)
        assert await receive(stream, len(expected)) == expected

    run(kind, test)


def test_large_request_is_answered(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        payload = b"abcdefgh" * 100_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, frame(payload))
            assert await receive(stream, len(payload) + 4) == frame(payload.upper())

    run(kind, test)


def test_client_that_leaves_in_mid_frame_is_forgotten(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        await stream.send_all(frame(b"never sent whole")[:-3])
        await stream.aclose()
        await bench.until(lambda: bench.closed)
        assert not bench.dispatcher.frames
        other = await bench.connect()
        await other.send_all(frame(b"is anyone there"))
        assert await receive(other, 19) == frame(b"IS ANYONE THERE")

    run(kind, test)


def test_half_closed_client_gets_its_answers(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        await stream.send_all(frame(b"my last words"))
        await stream.send_eof()
        assert await receive(stream, 17) == frame(b"MY LAST WORDS")
        assert await is_at_end(stream)

    run(kind, test)


def test_garbage_closes_its_own_connection_alone(kind: str) -> None:
    async def test(bench: Bench) -> None:
        good, bad = await bench.connect(), await bench.connect()
        with structlog.testing.capture_logs() as lines:
            await bad.send_all(frame(b"a good request") + b"GET / HTTP/1.1\r\n\r\n")
            assert await receive(bad, 18) == frame(b"A GOOD REQUEST")
            assert await is_at_end(bad)
        assert [line["event"] for line in lines if line["log_level"] != "debug"] == ["Connection closed"]
        await good.send_all(frame(b"still alive?"))
        assert await receive(good, 16) == frame(b"STILL ALIVE?")

    run(kind, test)


def test_bug_in_a_handler_closes_its_own_connection_alone(kind: str) -> None:
    async def test(bench: Bench) -> None:
        def answer(payload: bytes) -> bytes:
            raise ProtocolError("this one") if payload.startswith(b"bad") else ZeroDivisionError

        bench.dispatcher.answer = answer
        stream = await bench.connect()
        with structlog.testing.capture_logs() as lines:
            await stream.send_all(frame(b"some request"))
            assert await is_at_end(stream)
        assert [line["event"] for line in lines] == ["A connection failed"]
        other = await bench.connect()
        bench.dispatcher.answer = lambda payload: frame(payload)
        await other.send_all(frame(b"still alive?"))
        assert await receive(other, 16) == frame(b"still alive?")

    run(kind, test)


def test_pending_reply_comes_before_those_behind_it(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        await stream.send_all(frame(b"wait for it"))
        await bench.until(lambda: bench.dispatcher.pendings)
        await stream.send_all(frame(b"behind the other"))
        await trio.testing.wait_all_tasks_blocked()
        assert bench.dispatcher.frames == [b"wait for it"]
        bench.dispatcher.complete()
        expected = frame(b"REPLY TO A WAITING ONE") + frame(b"BEHIND THE OTHER")
        assert await receive(stream, len(expected)) == expected

    run(kind, test)


def test_pending_reply_completed_by_another_client_is_sent(kind: str) -> None:
    async def test(bench: Bench) -> None:
        def answer(payload: bytes) -> bytes:
            bench.dispatcher.complete()
            return frame(payload.upper())

        bench.dispatcher.answer = answer
        waiting, other = await bench.connect(), await bench.connect()
        await waiting.send_all(frame(b"wait for it"))
        await bench.until(lambda: bench.dispatcher.pendings)
        await other.send_all(frame(b"here you are"))
        assert await receive(waiting, 26) == frame(b"REPLY TO A WAITING ONE")
        assert await receive(other, 16) == frame(b"HERE YOU ARE")

    run(kind, test)


def test_pending_reply_is_abandoned_when_its_client_hangs_up(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        await stream.send_all(frame(b"wait for it") + frame(b"behind the other"))
        await bench.until(lambda: bench.dispatcher.pendings)
        await stream.aclose()
        await bench.until(lambda: bench.closed)
        assert bench.dispatcher.abandoned == 1
        assert bench.dispatcher.frames == [b"wait for it"]

    run(kind, test)


def test_released_reply_lets_further_produce_requests_be_received_and_handled(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        for number in range(1, 4):
            await stream.send_all(produce(b"commit it"))
            await bench.until(lambda number=number: len(bench.dispatcher.pendings) == number)
        bench.dispatcher.complete(1)
        await trio.testing.wait_all_tasks_blocked()
        bench.dispatcher.complete(0)
        expected = frame(b"REPLY TO A WAITING ONE")
        assert await receive(stream, 2 * len(expected)) == 2 * expected
        bench.dispatcher.complete(0)
        assert await receive(stream, len(expected)) == expected

    run(kind, test)


def test_frame_that_waits_for_outstanding_replies_is_handled_after_the_last(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        await stream.send_all(produce(b"commit it") + produce(b"wait for validation") + frame(b"something else"))
        await bench.until(lambda: len(bench.dispatcher.pendings) == 2)
        bench.dispatcher.pendings[1].release_connection()
        bench.dispatcher.complete(1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.dispatcher.frames) == 2
        bench.dispatcher.complete(0)
        expected = 2 * frame(b"REPLY TO A WAITING ONE") + frame(b"SOMETHING ELSE")
        assert await receive(stream, len(expected)) == expected

    run(kind, test)


@pytest.mark.parametrize("last", [b"GET / HTTP/1.1\r\n\r\n", frame(b"something else")])
def test_reply_that_is_an_error_ends_the_connection_and_abandons_the_later_replies(kind: str, last: bytes) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        await stream.send_all(produce(b"commit it") + produce(b"commit it too") + last)
        await bench.until(lambda: len(bench.dispatcher.pendings) == 2)
        bench.dispatcher.pendings[0].complete(ProtocolError("no place for it"))
        assert await is_at_end(stream)
        await bench.until(lambda: bench.closed)
        assert bench.dispatcher.abandoned == 1

    run(kind, test)


def test_reply_that_is_an_error_lets_the_replies_before_it_leave(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        await stream.send_all(produce(b"commit it") + produce(b"commit it") + produce(b"commit it"))
        await bench.until(lambda: len(bench.dispatcher.pendings) == 3)
        bench.dispatcher.pendings[1].complete(ProtocolError("no place for it"))
        bench.dispatcher.pendings[2].complete(frame(b"NEVER SENT"))
        await trio.testing.wait_all_tasks_blocked()
        bench.dispatcher.complete(0)
        assert await receive(stream, 26) == frame(b"REPLY TO A WAITING ONE")
        assert await is_at_end(stream)

    run(kind, test)


def test_outstanding_replies_are_abandoned_when_the_client_hangs_up(kind: str) -> None:
    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        await stream.send_all(produce(b"commit it") + produce(b"commit it too") + produce(b"not all of it")[:-2])
        await bench.until(lambda: len(bench.dispatcher.pendings) == 2)
        await stream.aclose()
        await bench.until(lambda: bench.closed)
        assert bench.dispatcher.abandoned == 2

    run(kind, test)


def test_slow_reader_is_not_served_ahead(kind: str) -> None:
    async def test(bench: Bench) -> None:
        answer = frame(b"x" * 100_000)
        bench.dispatcher.answer = lambda payload: answer
        stream = await bench.connect(is_narrow=True)
        count = 500
        sent = trio.Event()

        async def send() -> None:
            await stream.send_all(frame(b"more, please") * count)
            sent.set()

        bench.nursery.start_soon(send)
        for _ in range(10):
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(bench.dispatcher.frames) < count // 2
        for _ in range(count):
            assert await receive(stream, len(answer)) == answer
        await sent.wait()
        assert len(bench.dispatcher.frames) == count

    run(kind, test)


@pytest.mark.parametrize("size", [10, SENDFILE_BYTES - 1, SENDFILE_BYTES, 5_000_000])
def test_region_of_a_file_is_sent_among_bytes(kind: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    content = os.urandom(size + 100)
    path.write_bytes(content)

    async def test(bench: Bench) -> None:
        file = FileHandle(os.open(path, os.O_RDONLY))
        bench.dispatcher.answer = lambda payload: [b"begin", FileRegion(file, 50, size), b"end", FileRegion(file, 0, 3)]
        stream = await bench.connect()
        expected = b"begin" + content[50 : 50 + size] + b"end" + content[:3]
        for _ in range(2):
            await stream.send_all(frame(b"some request"))
            assert await receive(stream, len(expected)) == expected

    run(kind, test)


def test_turn_sends_so_much_of_a_region_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"")
    size, most_at_once = 5 * SEND_PER_TURN_BYTES // 2, SEND_PER_TURN_BYTES * 3 // 4
    asked = []

    def take(_: int, __: int, position: int, count: int) -> int:
        asked.append((position, count))
        return min(count, most_at_once)

    monkeypatch.setattr(os, "sendfile", take)

    async def test(bench: Bench) -> None:
        file = FileHandle(os.open(path, os.O_RDONLY))
        bench.dispatcher.answer = lambda payload: [FileRegion(file, 50, size), b"end"]
        stream = await bench.connect()
        await stream.send_all(frame(b"some request"))
        assert await receive(stream, 3) == b"end"
        turns = [SEND_PER_TURN_BYTES, SEND_PER_TURN_BYTES, size - 2 * SEND_PER_TURN_BYTES]
        expected, position = [], 50
        for turn in turns:
            while turn:
                expected.append((position, turn))
                sent = min(turn, most_at_once)
                position += sent
                turn -= sent
        assert asked == expected

    run("epoll", test)


@pytest.mark.parametrize("size", [100, 100_000])
def test_region_of_a_file_that_was_cut_ends_the_connection(kind: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(50))

    async def test(bench: Bench) -> None:
        file = FileHandle(os.open(path, os.O_RDONLY))
        bench.dispatcher.answer = lambda payload: [FileRegion(file, 0, size)]
        stream = await bench.connect()
        await stream.send_all(frame(b"some request"))
        while await stream.receive_some():
            pass

    run(kind, test)


def test_cancelled_driver_closes_connections_and_abandons_replies(kind: str) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            it = Bench(kind, nursery)
            streams = await leave_waiting(it)
            nursery.cancel_scope.cancel()
        assert it.dispatcher.abandoned == 1
        assert len(it.closed) == 3
        for stream in streams:
            assert await is_at_end(stream)
        await it.close()

    trio.run(main)


def test_epoll_greedy_client_does_not_starve_a_modest_one() -> None:
    async def test(bench: Bench) -> None:
        greedy, modest = await bench.connect(), await bench.connect()
        await greedy.send_all(frame(b"greedy request") * 4000)
        await bench.until(lambda: bench.dispatcher.frames)
        before = len(bench.dispatcher.frames)
        await modest.send_all(frame(b"modest request"))
        await bench.until(lambda: b"modest request" in bench.dispatcher.frames)
        assert bench.dispatcher.frames.index(b"modest request") - before <= 40 * FRAMES_PER_TURN

    run("epoll", test)


def test_epoll_idle_connection_is_closed_and_a_waiting_one_is_not() -> None:
    async def main() -> None:
        async with bench("epoll", max_idle_ms=60_000) as it:
            start = trio.current_time()
            idle, waiting = await it.connect(), await it.connect()
            await waiting.send_all(frame(b"wait for it"))
            assert await is_at_end(idle)
            assert 60 <= trio.current_time() - start <= 75
            await trio.sleep(100)
            assert len(it.closed) == 1
            it.dispatcher.complete()
            assert await receive(waiting, 26) == frame(b"REPLY TO A WAITING ONE")
            assert await is_at_end(waiting)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.02))


def test_epoll_buffer_that_a_burst_needed_is_freed_at_the_next_sweep() -> None:
    async def main() -> None:
        async with bench("epoll") as it:
            stream, large = await it.connect(), frame(bytes(2 * SHARED_BYTES))
            await stream.send_all(large)
            assert await receive(stream, len(large)) == large
            assert it.epoll is not None
            assert it.epoll._buffers._spare is not None
            await trio.sleep(drivers.SWEEP_MS / 1000 + 1)
            assert it.epoll._buffers._spare is None

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.02))


def test_epoll_driver_lets_other_tasks_run_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "YIELD_SECONDS", 0)

    async def test(bench: Bench) -> None:
        stream = await bench.connect()
        await stream.send_all(frame(b"some request") * 2000)
        turns = 0
        while len(bench.dispatcher.frames) < 2000:
            await trio.lowlevel.checkpoint()
            turns += 1
        assert turns > 2000 // FRAMES_PER_TURN // 2

    run("epoll", test)


def test_callback_that_fails_when_a_connection_ends_costs_nobody_else(kind: str) -> None:
    async def test(bench: Bench) -> None:
        forget_logged()
        told: list[str] = []

        def fail() -> None:
            raise ZeroDivisionError

        def answer(payload: bytes, client: Client) -> bytes:
            client.on_close = {"bad": fail, "good": lambda: told.append("good")}
            return frame(payload.upper())

        bench.dispatcher.answer_client = answer
        leaving, other = await bench.connect(), await bench.connect()
        await leaving.send_all(frame(b"some request"))
        assert await receive(leaving, 16) == frame(b"SOME REQUEST")
        with structlog.testing.capture_logs() as lines:
            await leaving.aclose()
            await bench.until(lambda: bench.closed)
        assert told == ["good"]
        assert [line["event"] for line in lines if line["log_level"] == "error"] == [
            "A callback for the end of a connection failed"
        ]
        await other.send_all(frame(b"still alive?"))
        assert await receive(other, 16) == frame(b"STILL ALIVE?")

    run(kind, test)


def test_reply_that_cannot_be_abandoned_costs_nobody_else(kind: str) -> None:
    async def test(bench: Bench) -> None:
        forget_logged()

        def fail() -> None:
            raise ZeroDivisionError

        bench.dispatcher.answer = lambda payload: Pending(fail) if payload.startswith(b"some") else frame(payload.upper())
        leaving, other = await bench.connect(), await bench.connect()
        with structlog.testing.capture_logs() as lines:
            await leaving.send_all(frame(b"some request"))
            await bench.until(lambda: bench.dispatcher.frames)
            await leaving.aclose()
            await bench.until(lambda: bench.closed)
        assert ["abandoned" in line["event"] for line in lines if line["log_level"] == "error"] == [True]
        await other.send_all(frame(b"still alive?"))
        assert await receive(other, 16) == frame(b"STILL ALIVE?")

    run(kind, test)


def test_epoll_connection_that_was_closed_leaves_no_garbage_to_collect() -> None:
    async def test(bench: Bench) -> None:
        for number in range(2):
            stream = await bench.connect()
            await ask_politely(bench, stream)
            await stream.aclose()
            await bench.until(lambda number=number: len(bench.closed) == number + 1)
        left = [each for each in gc.get_objects() if isinstance(each, connection.Connection)]
        assert left == []

    gc.collect()
    gc.disable()
    try:
        run("epoll", test)
    finally:
        gc.enable()


def test_epoll_driver_goes_on_if_the_end_of_a_connection_cannot_be_told() -> None:
    async def main() -> None:
        forget_logged()
        async with bench("epoll", on_close=lambda client: 1 // 0) as it:
            leaving, other = await it.connect(), await it.connect()
            with structlog.testing.capture_logs() as lines:
                await leaving.aclose()
                await it.until(lambda: lines)
            await other.send_all(frame(b"still alive?"))
            assert await receive(other, 16) == frame(b"STILL ALIVE?")

    trio.run(main)


class Clock:
    """The clock of the driver and its connections; handlers move it, and each reading moves it by a microsecond.

    Attributes:
        now: the time, in seconds.
        paused: the part of the time in which the thread had no processor.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.paused = 0.0
        monkeypatch.setattr(drivers, "time", SimpleNamespace(perf_counter=self._look, thread_time=self._look_at_cpu))
        monkeypatch.setattr(connection, "perf_counter", self._look)

    def _look(self) -> float:
        self.now += 1e-6
        return self.now

    def _look_at_cpu(self) -> float:
        return self._look() - self.paused

    def pause(self, seconds: float) -> None:
        """Lets time pass in which the thread has no processor."""
        self.now += seconds
        self.paused += seconds

    def slow(self, payload: bytes) -> bytes:
        """Answers a frame; a greedy frame takes 3 ms, any other frame no time."""
        if payload.startswith(b"greedy"):
            self.now += 0.003
        return frame(payload.upper())


@pytest.mark.parametrize("count", [1, 64])
def test_epoll_greedy_connections_let_a_polite_one_pass_after_one_turn(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    clock = Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        bench.dispatcher.answer = clock.slow
        handled = bench.dispatcher.frames
        greedy = [await bench.connect() for _ in range(count)]
        polite = await bench.connect()
        for stream in greedy:
            await stream.send_all(frame(b"greedy request") * (6400 // count))
        await bench.until(lambda: len(handled) >= 3 * count)  # all of them are known to be greedy
        for _ in range(20):
            clock.now += 0.001
            begun, before = clock.now, len(handled)
            await polite.send_all(frame(b"polite request"))
            assert await receive(polite, 18) == frame(b"POLITE REQUEST")
            assert clock.now - begun <= 0.02
            assert len(handled) > before, "the greedy ones are served as well"
        assert len(handled) < 6400, "they were greedy all the time"

    run("epoll", test)


def test_epoll_greedy_connections_are_served_while_others_are_never_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        bench.dispatcher.answer = clock.slow
        greedy = await bench.connect()
        await greedy.send_all(frame(b"greedy request") * 200)
        await bench.until(lambda: len(bench.dispatcher.frames) >= 10)
        polite = [await bench.connect() for _ in range(3)]
        for _ in range(200):
            for stream in polite:
                await stream.send_all(frame(b"polite request"))
            for stream in polite:
                await receive(stream, 18)
        assert bench.dispatcher.frames.count(b"greedy request") == 200

    run("epoll", test)


def test_epoll_connection_is_greedy_for_a_multiple_of_the_time_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        assert bench.epoll is not None
        bench.dispatcher.answer = clock.slow
        stream = await bench.connect()
        [link] = bench.epoll._links.values()
        await stream.send_all(frame(b"polite request"))
        await receive(stream, 18)
        assert link.greedy_until == 0
        await stream.send_all(frame(b"greedy request"))
        await receive(stream, 18)
        assert link.greedy_until == pytest.approx(clock.now + 0.003 * drivers.GREEDY_FACTOR, abs=0.01)
        bench.dispatcher.answer = lambda payload: setattr(clock, "now", clock.now + 60) or frame(payload)
        await stream.send_all(frame(b"the worst request"))
        await receive(stream, 21)
        assert link.greedy_until == pytest.approx(clock.now + drivers.MOST_GREEDY_SECONDS, abs=0.01)

    run("epoll", test)


def send_at_once(stream: trio.abc.HalfCloseableStream, data: bytes) -> None:
    """Sends without letting the driver run in between."""
    assert isinstance(stream, trio.SocketStream)
    assert os.write(stream.socket.fileno(), data) == len(data)


async def ask_politely(bench: Bench, stream: trio.abc.HalfCloseableStream) -> None:
    await stream.send_all(frame(b"polite request"))
    assert await receive(stream, 18) == frame(b"POLITE REQUEST")


@pytest.mark.parametrize(("count", "is_known"), [(120, False), (60, True)])
def test_epoll_connections_that_become_greedy_all_at_once_let_a_polite_one_pass(
    monkeypatch: pytest.MonkeyPatch, count: int, is_known: bool
) -> None:
    clock = Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        bench.dispatcher.answer = clock.slow
        handled = bench.dispatcher.frames
        polite = await bench.connect()
        await ask_politely(bench, polite)
        greedy = [await bench.connect() for _ in range(count)]
        if is_known:
            for stream in greedy:
                await ask_politely(bench, stream)
        handled.clear()
        for stream in greedy:
            send_at_once(stream, frame(b"greedy request"))
        await bench.until(lambda: handled)
        begun = clock.now
        await ask_politely(bench, polite)
        assert clock.now - begun <= 0.02
        assert handled.count(b"greedy request") < 20
        for stream in greedy:
            assert await receive(stream, 18) == frame(b"GREEDY REQUEST")

    run("epoll", test)


@pytest.mark.parametrize("cause", ["pause", "collection"])
def test_epoll_connection_is_not_greedy_because_the_broker_paused(monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    clock, lag = Clock(monkeypatch), LoopLag()

    async def test(bench: Bench) -> None:
        def answer(payload: bytes) -> bytes:
            if cause == "pause":
                clock.pause(0.3)
            else:
                clock.now += 0.3
                lag.collections.seconds += 0.3
            return frame(payload.upper())

        assert bench.epoll is not None
        bench.dispatcher.answer = answer
        stream = await bench.connect()
        [link] = bench.epoll._links.values()
        await ask_politely(bench, stream)
        assert link.greedy_until == 0
        bench.dispatcher.answer = clock.slow
        await stream.send_all(frame(b"greedy request"))
        await receive(stream, 18)
        assert link.greedy_until == pytest.approx(clock.now + 0.003 * drivers.GREEDY_FACTOR, abs=0.01)

    run("epoll", test, lag=lag)


def test_epoll_connection_is_proven_by_a_short_request_and_not_by_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        assert bench.epoll is not None
        stream = await bench.connect()
        [link] = bench.epoll._links.values()
        await stream.send_all(frame(b"polite request")[:5])
        for _ in range(5):
            await trio.testing.wait_all_tasks_blocked()
        assert link.queue is bench.epoll._unproven
        await stream.send_all(frame(b"polite request")[5:])
        await receive(stream, 18)
        assert link.queue is bench.epoll._ready

    run("epoll", test)


@pytest.mark.parametrize(("seconds", "is_unproven"), [(0.0005, False), (0.003, True)])
def test_epoll_connection_that_took_long_is_unproven_until_a_short_request(
    monkeypatch: pytest.MonkeyPatch, seconds: float, is_unproven: bool
) -> None:
    clock = Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        def answer(payload: bytes) -> bytes:
            clock.now += seconds
            return frame(payload.upper())

        assert bench.epoll is not None
        stream = await bench.connect()
        [link] = bench.epoll._links.values()
        await ask_politely(bench, stream)
        bench.dispatcher.answer = answer
        await ask_politely(bench, stream)
        assert link.greedy_until > clock.now
        clock.now = link.greedy_until + 1
        assert (link.queue is bench.epoll._unproven) == is_unproven
        bench.dispatcher.answer = clock.slow
        await ask_politely(bench, stream)
        assert link.queue is bench.epoll._ready

    run("epoll", test)


def test_epoll_connection_that_took_little_is_served_before_greedier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        def answer(payload: bytes) -> bytes:
            clock.now += 0.0005 if payload.startswith(b"polite") else 0.003
            return frame(payload.upper())

        bench.dispatcher.answer = answer
        handled = bench.dispatcher.frames
        greedy = [await bench.connect() for _ in range(40)]
        polite = await bench.connect()
        for stream in greedy:
            await stream.send_all(frame(b"greedy request") * 50)
        await ask_politely(bench, polite)
        await bench.until(lambda: len(handled) >= 3 * len(greedy))
        for _ in range(10):
            before = handled.count(b"greedy request")
            await ask_politely(bench, polite)
            assert handled.count(b"greedy request") - before < 10

    run("epoll", test)


def test_epoll_large_frame_waits_while_the_dispatcher_is_busy_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        handled = bench.dispatcher.frames
        bench.dispatcher.is_busy = True
        large, small, producer = await bench.connect(), await bench.connect(), await bench.connect()
        payload = b"large request" * (LARGE_FRAME_BYTES // 10)
        batches = produce(b"batch" * (LARGE_FRAME_BYTES // 5))
        await large.send_all(frame(payload) + frame(b"the next request"))
        await ask_politely(bench, small)
        await producer.send_all(batches)
        assert await receive(producer, len(batches)) == batches[:4] + batches[4:].upper()
        assert len(handled) == 2
        assert bench.epoll is not None
        assert len(bench.epoll._held) == 1
        bench.dispatcher.is_busy = False
        expected = frame(payload.upper()) + frame(b"THE NEXT REQUEST")
        assert await receive(large, len(expected)) == expected

    run("epoll", test)


def test_epoll_large_frames_begin_one_by_one_while_the_dispatcher_stays_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        assert bench.epoll is not None
        bench.dispatcher.is_busy = True
        handled = bench.dispatcher.frames
        payloads = [bytes([letter]) * (LARGE_FRAME_BYTES + 1) for letter in b"xyz"]
        streams = [await bench.connect() for _ in payloads]
        for number, (stream, payload) in enumerate(zip(streams, payloads, strict=True), 1):
            await stream.send_all(frame(payload) * 2)
            await bench.until(lambda number=number: len(bench.epoll._held) == number)
        other = await bench.connect()
        for expected in [*payloads, *payloads]:
            await ask_politely(bench, other)
            assert handled[-1] != expected, "it is not yet time"
            clock.now += HELD_SECONDS
            await bench.until(lambda expected=expected: handled[-1] == expected)
        assert not bench.epoll._held
        for stream, payload in zip(streams, payloads, strict=True):
            assert await receive(stream, 2 * len(frame(payload))) == frame(payload.upper()) * 2

    run("epoll", test)


def test_epoll_connection_with_a_held_frame_is_forgotten_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        assert bench.epoll is not None
        bench.dispatcher.is_busy = True
        leaving = await bench.connect()
        await leaving.send_all(frame(b"x" * (LARGE_FRAME_BYTES + 1)))
        await bench.until(lambda: bench.epoll is not None and bench.epoll._held)
        [link] = bench.epoll._links.values()
        bench.epoll._close(link)
        assert not bench.epoll._held

    run("epoll", test)


def test_stream_large_frame_waits_while_the_dispatcher_is_busy_and_others_do_not() -> None:
    async def main() -> None:
        async with bench("stream") as it:
            it.dispatcher.is_busy = True
            large, small = await it.connect(), await it.connect()
            payload = b"large request" * (LARGE_FRAME_BYTES // 10)
            await large.send_all(frame(payload))
            await ask_politely(it, small)
            assert len(it.dispatcher.frames) == 1
            assert await receive(large, len(payload) + 4) == frame(payload.upper())

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_epoll_connection_that_is_served_twice_in_a_turn_and_refused_is_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        def answer(payload: bytes) -> bytes:
            if payload.startswith(b"complete"):
                bench.dispatcher.complete()
            return frame(payload.upper())

        def handle(payload: memoryview, client: Client, now_ms: int) -> Any:
            clock.now += 0.002 if bytes(payload).startswith(b"wait") else 0
            return original(payload, client, now_ms)

        original = bench.dispatcher.handle
        monkeypatch.setattr(bench.dispatcher, "handle", handle)
        bench.dispatcher.answer = answer
        refused, other = await bench.connect(), await bench.connect()
        await ask_politely(bench, refused)
        await ask_politely(bench, other)
        for stream, data in (refused, frame(b"wait for the other") + bytes(8)), (other, frame(b"complete it")):
            assert isinstance(stream, trio.SocketStream)
            os.write(stream.socket.fileno(), data)  # without a checkpoint, so that one turn serves both
        assert await receive(other, 15) == frame(b"COMPLETE IT")
        assert await receive(refused, 26) == frame(b"REPLY TO A WAITING ONE")
        assert await is_at_end(refused)
        await ask_politely(bench, other)
        assert len(bench.closed) == 1

    run("epoll", test)


def test_epoll_frames_of_a_connection_end_with_its_share_of_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    handled: list[int] = []

    async def test(bench: Bench) -> None:
        def answer(payload: bytes) -> bytes:
            clock.now += 0.0008
            return frame(payload.upper())

        bench.dispatcher.answer = answer
        turn = EpollDriver._turn

        def count(driver: EpollDriver, events: list[tuple[int, int]]) -> None:
            before = len(bench.dispatcher.frames)
            turn(driver, events)
            handled.append(len(bench.dispatcher.frames) - before)

        monkeypatch.setattr(EpollDriver, "_turn", count)
        stream = await bench.connect()
        await stream.send_all(frame(b"some request") * 12)
        await receive(stream, 16 * 12)

    run("epoll", test)
    assert max(handled) == 3, "2 ms are over during the third"
    assert sum(handled) == 12


async def begin_large_frames(bench: Bench, count: int, size: int, go_on: trio.Event) -> list[trio.abc.HalfCloseableStream]:
    """Makes connections that send three quarters of a frame each, and the rest when they may; some have been parked."""
    streams = [await bench.connect() for _ in range(count)]

    async def send(stream: trio.abc.HalfCloseableStream) -> None:
        data = frame(b"x" * size)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(data[: size * 3 // 4])
            await go_on.wait()
            await stream.send_all(data[size * 3 // 4 :])

    for stream in streams:
        bench.nursery.start_soon(send, stream)
    await bench.until(lambda: bench.epoll is not None and bench.epoll._parked)
    return streams


def test_epoll_parts_of_large_frames_take_bounded_memory_and_arrive_one_after_the_other() -> None:
    size, most = 400_000, 500_000

    async def test(bench: Bench) -> None:
        assert bench.epoll is not None
        go_on = trio.Event()
        streams = await begin_large_frames(bench, 8, size, go_on)
        assert bench.epoll._buffers._held_bytes <= most + 8 * (2 * SHARED_BYTES)
        other = await bench.connect()
        await other.send_all(frame(b"still alive?"))
        assert await receive(other, 16) == frame(b"STILL ALIVE?")
        go_on.set()
        for stream in streams:
            assert await receive(stream, size + 4) == frame(b"X" * size)
        assert not bench.closed
        assert bench.epoll._buffers._held_bytes == 0

    run("epoll", test, most_held_bytes=most)


def test_epoll_large_frame_that_does_not_arrive_makes_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        assert bench.epoll is not None
        size = 400_000
        bench.epoll._buffers._most_bytes = 0
        with structlog.testing.capture_logs() as lines:
            await begin_large_frames(bench, 2, size, trio.Event())
            clock.now += drivers.LARGE_FRAME_SECONDS - 1
            await ask_and_receive(bench)
            assert not bench.closed
            clock.now += 2
            await ask_and_receive(bench)
            await bench.until(lambda: bench.closed)
        assert [line["reason"] for line in lines] == ["its request arrives too slowly while memory is short"]
        assert len(bench.closed) == 1

    async def ask_and_receive(bench: Bench) -> None:
        other = await bench.connect()
        await other.send_all(frame(b"still alive?"))
        assert await receive(other, 16) == frame(b"STILL ALIVE?")

    run("epoll", test)


def test_epoll_frame_that_was_favoured_while_memory_was_short_once_is_not_timed_since_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)

    async def test(bench: Bench) -> None:
        assert bench.epoll is not None
        size, buffers = 400_000, bench.epoll._buffers
        buffers._most_bytes = 0
        first, second = await bench.connect(), await bench.connect()
        await first.send_all(frame(b"x" * size)[: size // 2])
        await bench.until(lambda: bench.epoll is not None and bench.epoll._favoured)
        buffers._most_bytes = 1 << 30
        await first.send_all(frame(b"x" * size)[size // 2 :])
        assert await receive(first, size + 4) == frame(b"X" * size)
        clock.now += drivers.LARGE_FRAME_SECONDS + 1
        await first.send_all(frame(b"x" * size)[: size // 2])
        await second.send_all(frame(b"y" * size)[: size // 2])
        await bench.until(lambda: buffers._held_bytes >= size)
        buffers._most_bytes = 0
        buffers.hold(0)
        for stream, letter in (second, b"y"), (first, b"x"):
            await stream.send_all(frame(letter * size)[size // 2 :])
        for stream, letter in (first, b"X"), (second, b"Y"):
            assert await receive(stream, size + 4) == frame(letter * size)
        assert not bench.closed

    run("epoll", test)


def test_epoll_connection_with_most_unread_responses_is_closed_when_they_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "MOST_OWED_BYTES", 30_000_000)

    async def test(bench: Bench) -> None:
        assert bench.epoll is not None
        bench.dispatcher.answer = lambda payload: frame(bytes(int(payload.split()[1])))
        small, large = await bench.connect(), await bench.connect()
        with structlog.testing.capture_logs() as lines:
            await small.send_all(frame(b"answer 12000000"))
            await bench.until(lambda: bench.epoll is not None and bench.epoll._unread_bytes)
            await large.send_all(frame(b"answer 60000000"))
            await bench.until(lambda: bench.closed)
        assert len(bench.closed) == 1
        assert ["are not read" in line["reason"] for line in lines] == [True]
        assert len(await receive(small, 12_000_004)) == 12_000_004
        await bench.until(lambda: bench.epoll is not None and not bench.epoll._unread_bytes)

    run("epoll", test)


def test_epoll_connection_with_the_largest_waiting_request_is_closed_when_they_take_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drivers, "MOST_OWED_BYTES", 2_000_000)

    async def test(bench: Bench) -> None:
        small, large = await bench.connect(), await bench.connect()
        with structlog.testing.capture_logs() as lines:
            await small.send_all(frame(b"wait" + bytes(50_000)))
            await bench.until(lambda: len(bench.dispatcher.pendings) == 1)
            await large.send_all(frame(b"wait" + bytes(100_000)))
            await bench.until(lambda: bench.closed)
        assert len(lines) == 1
        bench.dispatcher.complete(0)
        assert await receive(small, 26) == frame(b"REPLY TO A WAITING ONE")

    run("epoll", test)
