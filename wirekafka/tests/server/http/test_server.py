"""The HTTP server, and its hostile clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from wirekafka.server.http.messages import Request, Response
from wirekafka.server.http.server import HttpServer, Limits
from wirekafka.tests.server.http.exchanges import exchange, received

LIMITS = Limits(connections=3, seconds=5.0, head_bytes=2000, body_bytes=100)


class Stage:
    """A running server.

    Attributes:
        requests: what it was asked.
    """

    def __init__(self, port: int, clock: trio.testing.MockClock, requests: list[Request]) -> None:
        self.port = port
        self.clock = clock
        self.requests = requests

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """Returns the first line of the response, and its body."""
        return await exchange(await self.connect(), request)


def run(
    act: Callable[[Stage], Awaitable[None]],
    answer: Callable[[Request], Awaitable[Response]] | None = None,
    now: Callable[[], float] = trio.current_time,
) -> None:
    clock = trio.testing.MockClock()

    async def main() -> None:
        requests: list[Request] = []

        async def note(request: Request) -> Response:
            requests.append(request)
            return Response.of_text(200, "yes\n") if answer is None else await answer(request)

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(HttpServer(note, LIMITS, now).serve, listeners)
            await act(Stage(listeners[0].socket.getsockname()[1], clock, requests))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def test_request_arrives_with_its_path_query_and_body() -> None:
    async def act(stage: Stage) -> None:
        sent = b"POST /a%2Fb/c?x=%20&x=2&y HTTP/1.1\r\nHost: me\r\nContent-Length: 3\r\n\r\nxyz"
        assert await stage.ask(sent) == (b"HTTP/1.1 200 OK", b"yes\n")
        [request] = stage.requests
        assert (request.method, request.segments, request.query()) == ("POST", ("a/b", "c"), {"x": "2", "y": ""})
        assert (request.headers["host"], request.body) == ("me", b"xyz")

    run(act)


def test_body_in_chunks_is_joined() -> None:
    async def act(stage: Stage) -> None:
        await stage.ask(b"POST / HTTP/1.1\r\nHost: me\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
        assert [each.body for each in stage.requests] == [b"abc"]

    run(act)


def test_client_that_waits_for_permission_is_told_to_send_its_body() -> None:
    async def act(stage: Stage) -> None:
        async with await stage.connect() as stream:
            await stream.send_all(b"POST / HTTP/1.1\r\nHost: me\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
            assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 100")
            await stream.send_all(b"x")
            assert (await received(stream)).startswith(b"HTTP/1.1 200")

    run(act)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x00\x00\x00\x10\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # without Host
        (b"GET http://other/ HTTP/1.1\r\nHost: me\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: me\r\nX: " + b"y" * 3000, b"431"),
        (b"POST / HTTP/1.1\r\nHost: me\r\nContent-Length: 101\r\n\r\n" + b"x" * 101, b"413"),
        (b"POST / HTTP/1.1\r\nHost: me\r\nContent-Length: " + b"9" * 1500 + b"\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: me\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: me\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + b"x" * 101 + b"\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nHost: me\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
    ],
)
def test_request_that_is_none_gets_a_status_and_is_not_handled(request_: bytes, status: bytes) -> None:
    async def act(stage: Stage) -> None:
        line, body = await stage.ask(request_)
        assert line.split(b" ")[1] == status
        assert body.endswith(b"\n")
        assert stage.requests == []

    run(act)


def test_body_that_is_declared_too_large_is_refused_before_it_is_sent() -> None:
    async def act(stage: Stage) -> None:
        async with await stage.connect() as stream:
            await stream.send_all(b"POST / HTTP/1.1\r\nHost: me\r\nContent-Length: 101\r\nExpect: 100-continue\r\n\r\n")
            assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 413")

    run(act)


def test_request_without_an_end_gets_a_status() -> None:
    async def act(stage: Stage) -> None:
        async with await stage.connect() as stream:
            await stream.send_all(b"GET / HT")
            await stream.send_eof()
            assert (await received(stream)).startswith(b"HTTP/1.1 400")

    run(act)


def test_exception_is_logged_and_answered(logged_faults: list[str]) -> None:
    async def fail(request: Request) -> Response:
        raise ValueError(request.path)

    async def act(stage: Stage) -> None:
        assert (await stage.ask(b"GET /x HTTP/1.0\r\n\r\n"))[0] == b"HTTP/1.1 500 Internal Server Error"

    run(act, fail)
    assert len(logged_faults) == 1
    logged_faults.clear()


def test_connections_that_are_answered_are_not_closed_for_new_ones() -> None:
    release = trio.Event()

    async def wait(request: Request) -> Response:
        await release.wait()
        return Response.of_text(200, "late\n")

    async def act(stage: Stage) -> None:
        waiting = [await stage.connect() for _ in range(LIMITS.connections)]
        for stream in waiting:
            await stream.send_all(b"GET / HTTP/1.0\r\n\r\n")
        while len(stage.requests) < LIMITS.connections:
            await trio.lowlevel.checkpoint()
        async with await stage.connect() as stream:
            assert await received(stream) == b""
        release.set()
        for stream in waiting:
            assert (await received(stream)).endswith(b"late\n")
            await stream.aclose()

    run(act, wait)


def test_answer_learns_that_its_client_has_gone() -> None:
    gone = trio.Event()

    async def wait(request: Request) -> Response:
        await request.until_gone()
        gone.set()
        return Response.of_text(200, "")

    async def act(stage: Stage) -> None:
        async with await stage.connect() as stream:
            await stream.send_all(b"GET / HTTP/1.0\r\n\r\n")
            while not stage.requests:
                await trio.lowlevel.checkpoint()
        await gone.wait()

    run(act, wait)


def test_clock_that_a_test_moves_ends_no_request() -> None:
    async def act(stage: Stage) -> None:
        async with await stage.connect() as stream:
            await stream.send_all(b"GET / ")
            await trio.testing.wait_all_tasks_blocked()
            stage.clock.jump(3600)
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(b"HTTP/1.0\r\n\r\n")
            assert (await received(stream)).startswith(b"HTTP/1.1 200")

    run(act, now=lambda: 0.0)
