"""The turns of the epoll driver: greedy connections let the others pass."""

from __future__ import annotations

import os
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from wirekafka.api.registry import Client
from wirekafka.server import drivers
from wirekafka.server.connection import FRAMES_PER_TURN
from wirekafka.server.drivers import EpollDriver
from wirekafka.server.loop_lag import LoopLag
from wirekafka.tests.server.driver_bench import Bench, Clock, ask_politely, is_at_end, receive, run, send_at_once
from wirekafka.tests.server.frames import frame


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
