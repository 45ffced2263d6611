"""The endpoint of the metrics, and its hostile clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from wirekafka.pending import Pending
from wirekafka.server.health import Health
from wirekafka.server.listener import Address, ListenError
from wirekafka.server.metrics import endpoint
from wirekafka.server.metrics.endpoint import CachedMetrics, serve_metrics
from wirekafka.tests.server.http.exchanges import exchange, received

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n"


class Stage:
    """A running endpoint; `jump` lets time pass."""

    def __init__(self, address: Address, clock: trio.testing.MockClock) -> None:
        self.address = address
        self.clock = clock

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(self.address.host, self.address.port)

    async def ask(self, request: bytes = REQUEST) -> tuple[bytes, bytes]:
        """Returns the first line of the response, and its body."""
        return await exchange(await self.connect(), request)


def run(
    act: Callable[[Stage], Awaitable[None]], read: Callable[[], Any] = lambda: "up 1\n", health: Health | None = None
) -> None:
    clock = trio.testing.MockClock()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve_metrics, "127.0.0.1:0", read, health or Health())
            await act(Stage(address, clock))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def test_metrics_are_served_and_the_connection_ends() -> None:
    async def act(stage: Stage) -> None:
        async with await stage.connect() as stream:
            await stream.send_all(REQUEST)
            assert (await received(stream)).decode().split("\r\n") == [
                "HTTP/1.1 200 OK",
                "Content-Type: text/plain; version=0.0.4; charset=utf-8",
                "Content-Length: 5",
                "Connection: close",
                "",
                "up 1\n",
            ]

    run(act)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET / HTTP/1.0\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.0\r\n\r\n", b"405 Method Not Allowed"),
    ],
)
def test_request_gets_its_status(request_: bytes, status: bytes) -> None:
    async def act(stage: Stage) -> None:
        line, _ = await stage.ask(request_)
        assert line == b"HTTP/1.1 " + status

    run(act)


def test_head_gets_no_body() -> None:
    async def act(stage: Stage) -> None:
        assert await stage.ask(b"HEAD /metrics HTTP/1.0\r\n\r\n") == (b"HTTP/1.1 200 OK", b"")

    run(act)


def test_request_that_arrives_a_byte_at_a_time_is_answered() -> None:
    async def act(stage: Stage) -> None:
        async with await stage.connect() as stream:
            for byte in REQUEST:
                await stream.send_all(bytes([byte]))
            assert (await received(stream)).endswith(b"up 1\n")

    run(act)


def test_connection_without_a_request_ends_after_its_time() -> None:
    async def act(stage: Stage) -> None:
        async with await stage.connect() as stream:
            await stream.send_all(b"GET /met")
            while not await until_read(stage):
                pass
            stage.clock.jump(endpoint.LIMITS.seconds + 0.1)
            assert await received(stream) == b""

    run(act)


async def until_read(stage: Stage) -> bool:
    """Returns True after the endpoint has accepted and read what was sent before: another request has been answered."""
    return (await stage.ask())[0] == b"HTTP/1.1 200 OK"


def test_oldest_of_too_many_connections_is_closed_for_a_new_one() -> None:
    async def act(stage: Stage) -> None:
        idle = [await stage.connect() for _ in range(endpoint.LIMITS.connections)]
        assert await stage.ask() == (b"HTTP/1.1 200 OK", b"up 1\n")
        assert await received(idle[0]) == b""
        await idle[-1].send_all(REQUEST)
        assert (await received(idle[-1])).endswith(b"up 1\n")
        for stream in idle:
            await stream.aclose()

    run(act)


def test_client_that_does_not_read_is_cut_off_after_its_time() -> None:
    async def act(stage: Stage) -> None:
        async with await stage.connect() as stream:
            await stream.send_all(REQUEST)
            assert (await stream.receive_some(10)).startswith(b"HTTP/1.1")
            stage.clock.jump(endpoint.LIMITS.seconds + 0.1)
            assert len(await received(stream)) < 50_000_000

    run(act, lambda: "x" * 50_000_000)


def test_metrics_are_read_once_for_all_requests_of_a_second() -> None:
    count = 0

    def read() -> str:
        nonlocal count
        count += 1
        return f"{count}\n"

    async def act(stage: Stage) -> None:
        assert [(await stage.ask())[1] for _ in range(3)] == [b"1\n"] * 3
        stage.clock.jump(endpoint.FRESH_SECONDS)
        assert (await stage.ask())[1] == b"2\n"

    run(act, read)


def test_requests_that_come_while_metrics_are_read_share_the_reading() -> None:
    readings: list[Pending[str]] = []

    async def main() -> None:
        def read() -> Pending[str]:
            readings.append(Pending())
            return readings[-1]

        metrics, found = CachedMetrics(read), []

        async def get() -> None:
            found.append(await metrics.get())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(get)
            await trio.testing.wait_all_tasks_blocked()
            [reading] = readings
            reading.complete("late\n")
        assert found == ["late\n"] * 3

    trio.run(main)


def test_reading_that_fails_costs_the_answer_only(logged_faults: list[str]) -> None:
    late: Pending[Any] = Pending()
    late.complete(ValueError("broken"))
    results = iter([late, "up 1\n"])

    async def act(stage: Stage) -> None:
        assert (await stage.ask())[0] == b"HTTP/1.1 500 Internal Server Error"
        stage.clock.jump(endpoint.FRESH_SECONDS)
        assert await stage.ask() == (b"HTTP/1.1 200 OK", b"up 1\n")

    run(act, lambda: next(results))
    assert len(logged_faults) == 1
    logged_faults.clear()


def test_address_that_is_taken_is_an_error_with_the_setting() -> None:
    async def act(stage: Stage) -> None:
        with pytest.raises(ListenError, match=r"wirekafka\.metrics\.listener"):
            await serve_metrics(str(stage.address), lambda: "", Health(), task_status=trio.TASK_STATUS_IGNORED)

    run(act)


def test_probes_are_told_whether_clients_can_use_the_broker() -> None:
    health = Health()

    async def act(stage: Stage) -> None:
        for path, status, body in (
            (b"/health/live", b"200 OK", b'{"live":true}\n'),
            (b"/health", b"503 Service Unavailable", b'{"live":true,"ready":false,"reason":"the broker starts"}\n'),
        ):
            assert await stage.ask(b"GET %b HTTP/1.0\r\n\r\n" % path) == (b"HTTP/1.1 " + status, body)
        health.reason = None
        assert await stage.ask(b"GET /health HTTP/1.0\r\n\r\n") == (b"HTTP/1.1 200 OK", b'{"live":true,"ready":true}\n')

    run(act, health=health)
