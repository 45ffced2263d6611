"""Large frames wait while the dispatcher is busy, and take bounded memory."""

from __future__ import annotations

from contextlib import suppress

import pytest
import structlog
import trio
import trio.lowlevel
import trio.testing

from wirekafka.server import drivers
from wirekafka.server.connection import HELD_SECONDS, LARGE_FRAME_BYTES
from wirekafka.server.receive_buffers import SHARED_BYTES
from wirekafka.tests.server.driver_bench import Bench, Clock, ask_politely, bench, receive, run
from wirekafka.tests.server.frames import frame, produce


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
