"""The parts of the client by kazoo that need no ZooKeeper; `compat_tests/zookeeper` has the tests with one."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from typing import Any, cast

import pytest
import trio

from wirekafka.zookeeper.kazoo_session import _WakeUp, connect_timeout, open_kazoo_session
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.server import serve_client
from wirekafka.zookeeper.session import Check, SessionState


class Queue:
    """The queue of kazoo, with the wake-up of its thread."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.wake_up = _WakeUp(lambda: bool(self.requests))

    def is_readable(self) -> bool:
        return bool(select.select([self.wake_up], [], [], 0)[0])

    def add(self) -> None:
        self.requests.append(0)
        self.wake_up.send(b"\0")

    def take(self) -> None:
        self.requests.pop()
        self.wake_up.recv(1)


def test_wake_up_is_readable_while_requests_wait() -> None:
    queue = Queue()
    assert not queue.is_readable()
    for _ in range(3):
        queue.add()
    readable = []
    for _ in range(3):
        readable.append(queue.is_readable())
        queue.take()
    assert readable == [True] * 3
    assert not queue.is_readable()
    queue.wake_up.close()


def test_wake_up_takes_any_number_of_requests() -> None:
    queue = Queue()
    for _ in range(10_000):
        queue.add()
    for _ in range(9_999):
        queue.take()
    assert queue.is_readable()
    queue.take()
    assert not queue.is_readable()
    queue.wake_up.close()


def test_wake_up_keeps_a_request_that_comes_while_the_bytes_are_read() -> None:
    answers = iter([False, True])
    wake_up = _WakeUp(lambda: next(answers))
    wake_up.send(b"\0")
    wake_up.recv(1)
    assert select.select([wake_up], [], [], 0)[0] == [wake_up]
    wake_up.close()


def test_broker_without_zookeeper_imports_nothing_of_it() -> None:
    source = (
        "import sys, wirekafka.cli, wirekafka.broker, wirekafka.server.running\n"
        "sys.exit(any(name.startswith(('kazoo', 'wirekafka.zookeeper')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", source], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("session_timeout_s", "host_count", "has_session", "expected_s"),
    [(18, 1, True, 6), (18, 3, True, 2), (4, 3, True, 1), (1.5, 3, True, 0.5), (18, 1, False, 18), (18, 3, False, 6)],
)
def test_connect_timeout_leaves_time_for_further_attempts_if_there_is_a_session(
    *, session_timeout_s: float, host_count: int, has_session: bool, expected_s: float
) -> None:
    assert connect_timeout(session_timeout_s, host_count, has_session=has_session) == expected_s


def test_operation_that_cannot_be_sent_raises_and_completes_never() -> None:
    async def main() -> None:
        model = ModelServer(lambda: 0)

        async def serve(stream: trio.SocketStream) -> None:
            await serve_client(model, stream, (200, 40_000))

        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            connect = "{}:{}".format(*listener.socket.getsockname())
            results: list[object] = []
            async with open_kazoo_session(connect) as session:
                with pytest.raises(AssertionError, match="no operation"):
                    session.submit(cast(Any, Check("/", 0)), results.append)
            nursery.cancel_scope.cancel()
        assert results == []

    trio.run(main)


class _SwallowingServer:
    """A ZooKeeper that accepts its second connection and never answers it, as one that restarts does."""

    def __init__(self) -> None:
        self.model = ModelServer(lambda: round(time.time() * 1000))
        self.first = trio.CancelScope()
        self._count = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serves one connection; the first one until its scope is cancelled."""
        self._count += 1
        with self.first if self._count == 1 else trio.CancelScope():
            if self._count == 2:
                await trio.sleep_forever()
            await serve_client(self.model, stream, (200, 40_000))

    async def expire_sessions(self) -> None:
        """Ends sessions that the client has not renewed."""
        while True:
            await trio.sleep(0.1)
            self.model.expire_sessions()


def test_session_is_kept_if_a_server_that_restarts_swallows_a_connection() -> None:
    async def main() -> None:
        server = _SwallowingServer()
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.expire_sessions)
            nursery.start_soon(trio.serve_listeners, server.serve, [listener])
            connect = "{}:{}".format(*listener.socket.getsockname())
            with trio.fail_after(30):
                async with open_kazoo_session(connect, session_timeout_ms=6_000) as session:
                    session_id, states = session.session_id, [session.state]
                    is_connected = trio.Event()

                    def note(state: SessionState) -> None:
                        states.append(state)
                        if state is SessionState.CONNECTED:
                            is_connected.set()

                    session.add_state_listener(note)
                    server.first.cancel()
                    await is_connected.wait()
                    assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]
                    assert session.session_id == session_id
            nursery.cancel_scope.cancel()

    trio.run(main)
