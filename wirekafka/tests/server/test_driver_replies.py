"""Replies that come later: their order, and what becomes of them when their client or their connection ends."""

from __future__ import annotations

import pytest
import structlog
import trio
import trio.lowlevel
import trio.testing

from wirekafka.api.registry import Client
from wirekafka.errors import ProtocolError
from wirekafka.faults import forget_logged
from wirekafka.pending import Pending
from wirekafka.tests.server.driver_bench import Bench, is_at_end, receive, run
from wirekafka.tests.server.frames import frame, produce


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
