"""Connections of both drivers, and of the epoll driver alone."""

from __future__ import annotations

import gc

import pytest
import structlog
import trio
import trio.lowlevel
import trio.testing

from wirekafka.errors import ProtocolError
from wirekafka.faults import forget_logged
from wirekafka.server import connection, drivers
from wirekafka.server.connection import FRAMES_PER_TURN
from wirekafka.server.receive_buffers import SHARED_BYTES
from wirekafka.tests.server.driver_bench import (
    Bench,
    ask_politely,
    bench,
    is_at_end,
    leave_waiting,
    receive,
    run,
)
from wirekafka.tests.server.frames import frame


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
            await bad.send_all(frame(b"a good request") + b"SSH-2.0-client\r\n")
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


def test_epoll_connection_that_was_closed_leaves_no_garbage_to_collect() -> None:
    async def test(bench: Bench) -> None:
        for number in range(2):
            stream = await bench.connect()
            await ask_politely(bench, stream)
            await stream.aclose()
            await bench.until(lambda number=number: len(bench.closed) == number + 1)
        left = [each for each in connections() if each not in of_other_tests]
        assert left == []

    def connections() -> list[connection.Connection]:
        return [each for each in gc.get_objects() if isinstance(each, connection.Connection)]

    gc.collect()
    of_other_tests = connections()
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
