"""A driver that serves clients of a test, over an epoll or over streams."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from wirekafka.api.registry import Client
from wirekafka.server import connection, drivers
from wirekafka.server.drivers import EpollDriver, serve_stream
from wirekafka.server.receive_buffers import ReceiveBuffers
from wirekafka.tests.server.frames import EchoDispatcher, client, frame

Test = Callable[["Bench"], Awaitable[None]]


class Bench:
    """A driver that serves, and the clients of a test.

    Attributes:
        closed: the clients whose connections the driver has closed.
    """

    def __init__(self, kind: str, nursery: trio.Nursery, **options: Any) -> None:
        self.dispatcher = EchoDispatcher()
        self.closed: list[Client] = []
        self.nursery = nursery
        self._buffers = ReceiveBuffers()
        self._streams: list[trio.abc.HalfCloseableStream] = []
        self.epoll: EpollDriver | None = None
        if kind == "epoll":
            options = {"max_idle_ms": None, "on_close": self.closed.append} | options
            self.epoll = EpollDriver(self.dispatcher, **options)
            nursery.start_soon(self.epoll.run)

    async def connect(self, *, is_narrow: bool = False) -> trio.abc.HalfCloseableStream:
        """Returns a new client's end of a connection; a narrow connection blocks a send until the other end receives."""
        stream = self._connect(is_narrow)
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        """Closes the clients' ends."""
        for stream in self._streams:
            await stream.aclose()

    def _connect(self, is_narrow: bool) -> trio.abc.HalfCloseableStream:
        who = client()
        if self.epoll is None:
            pair = trio.testing.lockstep_stream_pair if is_narrow else trio.testing.memory_stream_pair
            near, far = pair()
            self.nursery.start_soon(self._serve, far, who)
            return near
        with socket.create_server(("127.0.0.1", 0)) as server:
            near_socket = socket.create_connection(server.getsockname())
            far_socket, _ = server.accept()
        far_socket.setblocking(False)
        self.epoll.add(far_socket, who)
        near_socket.setblocking(False)
        return trio.SocketStream(trio.socket.from_stdlib_socket(near_socket))

    async def _serve(self, stream: trio.abc.Stream, who: Client) -> None:
        try:
            await serve_stream(stream, who, self.dispatcher, self._buffers)
        finally:
            self.closed.append(who)

    async def until(self, condition: Callable[[], object]) -> None:
        """Lets all tasks run until the condition holds."""
        with trio.fail_after(5):
            while not condition():
                await trio.lowlevel.checkpoint()


@asynccontextmanager
async def bench(kind: str, **options: Any) -> AsyncIterator[Bench]:
    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            it = Bench(kind, nursery, **options)
            yield it
            nursery.cancel_scope.cancel()
        await it.close()


async def leave_waiting(it: Bench) -> list[trio.abc.HalfCloseableStream]:
    """Three clients: one has sent nothing, one waits for a reply, one has sent half a request."""
    streams = [await it.connect() for _ in range(3)]
    await streams[1].send_all(frame(b"wait for it"))
    await streams[2].send_all(frame(b"not all of it")[:9])
    await it.until(lambda: it.dispatcher.pendings)
    return streams


async def receive(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    """Receives exactly `size` bytes."""
    data = b""
    while len(data) < size:
        chunk = await stream.receive_some(size - len(data))
        assert chunk, f"the connection ended after {len(data)} of {size} bytes"
        data += chunk
    return data


async def is_at_end(stream: trio.abc.ReceiveStream) -> bool:
    """Returns whether the broker has closed the connection."""
    try:
        return await stream.receive_some(1) == b""
    except trio.BrokenResourceError:
        return True


def run(kind: str, test: Test, **options: Any) -> None:
    """Runs the test on a bench."""

    async def main() -> None:
        async with bench(kind, **options) as it:
            await test(it)

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


def send_at_once(stream: trio.abc.HalfCloseableStream, data: bytes) -> None:
    """Sends without letting the driver run in between."""
    assert isinstance(stream, trio.SocketStream)
    assert os.write(stream.socket.fileno(), data) == len(data)


async def ask_politely(bench: Bench, stream: trio.abc.HalfCloseableStream) -> None:
    await stream.send_all(frame(b"polite request"))
    assert await receive(stream, 18) == frame(b"POLITE REQUEST")
