"""The client by kazoo, with ZooKeeper and with the model on a socket: connections, sessions, and a loop that hangs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import structlog
import trio

from compat_tests.harness.waiting import wait_until
from compat_tests.harness.zookeeper import ZooKeeper
from compat_tests.zookeeper.stage import SocketStage, open_stream, play
from wirekafka.tests.zookeeper.contract import Desk
from wirekafka.zookeeper import kazoo_session
from wirekafka.zookeeper.kazoo_session import KazooSession, ZooKeeperUnreachableError, open_kazoo_session
from wirekafka.zookeeper.session import (
    Create,
    Created,
    Exists,
    GetChildren,
    GetData,
    SessionState,
    SetData,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

LOSS = ZooKeeperError(ZooKeeperErrorCode.CONNECTION_LOSS)


class DirectStage(SocketStage):
    """A stage whose clients connect without a relay, because the test blocks the loop that would run the relay."""

    def __init__(self, stage: SocketStage, session_timeout_ms: int) -> None:
        super().__init__(stage.address, stage.model, stage._nursery, stage._clients)
        self._session_timeout_ms = session_timeout_ms

    async def open(self, chroot: str = "") -> KazooSession:
        opening = open_kazoo_session(self.address + self.root + chroot, session_timeout_ms=self._session_timeout_ms)
        return await self._clients.enter_async_context(opening)


def play_direct(test: Callable[[DirectStage], Awaitable[None]], address: str | None, session_timeout_ms: int = 6_000) -> None:
    """Runs a test on a stage without relays."""

    async def on_direct_stage(stage: SocketStage) -> None:
        await test(DirectStage(stage, session_timeout_ms))

    play(on_direct_stage, address)


def states(desk: Desk) -> list[SessionState]:
    return [each for each in desk.log if isinstance(each, SessionState)]


def break_socket(desk: Desk) -> None:
    """Breaks the connection at once, without the loop."""
    desk.client._client._connection._socket._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]


def test_chroot_that_is_missing_is_created(server_address: str | None) -> None:
    async def test(stage: SocketStage) -> None:
        inner = await Desk.open(stage, "/clusters/one")
        await inner.make("/a")
        outer = await Desk.open(stage)
        assert (await outer.ask(GetChildren("/clusters/one"))).names == ("a",)
        again = await Desk.open(stage, "/clusters/one")
        assert (await again.ask(GetChildren("/"))).names == ("a",)

    play(test, server_address)


def test_one_thread_serves_a_session(server_address: str | None) -> None:
    async def test(stage: SocketStage) -> None:
        before = set(threading.enumerate())  # threads of earlier tests may be among them, and end during this one
        desk = await Desk.open(stage)
        await desk.make("/a")
        started = set(threading.enumerate()) - before
        assert [thread.name for thread in started].count("kazoo") == 1
        assert len(started) <= 2  # kazoo's, and trio's for the name of the host

    play(test, server_address)


def test_missing_zookeeper_is_an_error_that_says_what_to_do() -> None:
    async def run() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(ZooKeeperUnreachableError) as caught:
                async with open_kazoo_session(address, connection_timeout_ms=500):
                    raise AssertionError("there is no ZooKeeper")
        text = str(caught.value)
        assert text.startswith(f"No ZooKeeper at {address} has opened a session within 0.5 s (")
        assert "Connection refused" in text
        assert "Start ZooKeeper, or correct zookeeper.connect" in text

    with trio_limit(10):
        trio.run(run)


def test_silent_server_is_an_error_too() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ZooKeeperUnreachableError):
            async with open_kazoo_session(f"127.0.0.1:{silent.getsockname()[1]}", connection_timeout_ms=500):
                raise AssertionError("there is no ZooKeeper")

    with trio_limit(10):
        trio.run(run)


class trio_limit:  # noqa: N801 - it reads as a statement
    """Fails if the block takes longer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *error: object) -> None:
        assert time.monotonic() - self._start < self._seconds


def test_idle_session_lives_longer_than_its_timeout(server_address: str | None) -> None:
    async def test(stage: DirectStage) -> None:
        desk = await Desk.open(stage)
        await trio.sleep(4)
        assert states(desk) == []

    play_direct(test, server_address, session_timeout_ms=2_500)


@pytest.mark.java
def test_loop_that_hangs_loses_its_session(shared_zookeeper: ZooKeeper) -> None:
    async def test(stage: DirectStage) -> None:
        desk = await Desk.open(stage)
        await desk.ask(Create("/e", b"", ephemeral=True))
        time.sleep(3)  # noqa: ASYNC251 - the loop hangs
        assert states(desk) == []
        await desk.until(SessionState.LOST, SessionState.CONNECTED)
        assert states(desk) == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
        assert await desk.ask(Exists("/e")) is None

    play_direct(test, shared_zookeeper.address, session_timeout_ms=1_500)


@pytest.mark.java
def test_request_from_before_suspended_is_not_sent_after_the_next_connected(shared_zookeeper: ZooKeeper) -> None:
    async def test(stage: DirectStage) -> None:
        desk = await Desk.open(stage)
        client = desk.client
        assert isinstance(client, KazooSession)
        changes = client._connection_number
        break_socket(desk)
        # The loop hangs. kazoo's thread loses the connection and connects again meanwhile, and the loop does not know.
        wait_until(lambda: client._connection_number == changes + 2, timeout_s=60, what="kazoo is connected again")
        desk.submit(Create("/late", b""))
        await desk.until(SessionState.CONNECTED)
        assert desk.log == [LOSS, SessionState.SUSPENDED, SessionState.CONNECTED]
        assert await desk.ask(Exists("/late")) is None

    play_direct(test, shared_zookeeper.address)


def test_operations_of_a_suspended_client_fail_at_once(server_address: str | None) -> None:
    async def test(stage: DirectStage) -> None:
        desk = await Desk.open(stage)
        other = await Desk.open(stage)
        submitted: list[object] = []

        def submit(state: SessionState) -> None:
            if state is SessionState.SUSPENDED:
                desk.client.submit(Create("/late", b""), submitted.append)

        desk.client.add_state_listener(submit)
        break_socket(desk)
        await desk.until(SessionState.CONNECTED)
        assert submitted == [LOSS]
        assert await other.ask(Exists("/late")) is None

    play_direct(test, server_address)


def test_end_of_kazoos_thread_costs_no_session(server_address: str | None) -> None:
    async def test(stage: DirectStage) -> None:
        desk = await Desk.open(stage)
        await desk.ask(Create("/e", b"", ephemeral=True))
        session = desk.client.session_id
        desk.log.clear()
        with structlog.testing.capture_logs() as logs:
            desk.submit(Exists("/\ud800"))  # kazoo cannot write it
            desk.submit(Exists("/e"))
            await desk.until(SessionState.CONNECTED)
        assert desk.log == [LOSS, LOSS, SessionState.SUSPENDED, SessionState.CONNECTED]
        assert desk.client.session_id == session
        assert await desk.ask(Exists("/e")) is not None
        assert [line["event"] for line in logs if line["log_level"] == "error"] == [
            "The thread of ZooKeeper's client has failed; a new thread continues the session"
        ]

    play_direct(test, server_address)


def test_callback_that_raises_disturbs_no_other(server_address: str | None) -> None:
    async def test(stage: DirectStage) -> None:
        desk = await Desk.open(stage)

        def fail(argument: object) -> None:
            raise RuntimeError("a defect")

        desk.client.add_state_listener(fail)
        with structlog.testing.capture_logs() as logs:
            desk.client.submit(Exists("/a"), fail)
            await desk.ask(Create("/a", b""))
            break_socket(desk)
            await desk.until(SessionState.CONNECTED)
        assert {line["event"] for line in logs if line["log_level"] == "error"} == {
            "A callback for a result of ZooKeeper failed",
            "A listener to the states of ZooKeeper failed",
        }

    play_direct(test, server_address)


@pytest.mark.java
def test_session_survives_a_crash_of_zookeeper(own_zookeeper: ZooKeeper) -> None:
    async def test(stage: DirectStage) -> None:
        desk = await Desk.open(stage)
        await desk.ask(Create("/e", b"1", ephemeral=True))
        session = desk.client.session_id
        own_zookeeper.kill()
        await desk.until(SessionState.SUSPENDED)
        desk.submit(SetData("/e", b"2"))
        await trio.to_thread.run_sync(own_zookeeper.start)
        await desk.until(SessionState.CONNECTED)
        assert states(desk) == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert LOSS in desk.log
        assert desk.client.session_id == session
        data = await desk.ask(GetData("/e"))
        assert (data.data, data.stat.ephemeral_owner) == (b"1", session)

    play_direct(test, own_zookeeper.address, session_timeout_ms=20_000)


@pytest.mark.java
def test_silent_zookeeper_suspends_the_session_and_loses_operations(own_zookeeper: ZooKeeper) -> None:
    async def test(stage: DirectStage) -> None:
        desk = await Desk.open(stage)
        created = await desk.ask(Create("/a", b"1"))
        assert isinstance(created, Created)
        desk.log.clear()
        own_zookeeper.pause()
        desk.submit(SetData("/a", b"2"))
        await desk.until(SessionState.SUSPENDED)
        assert desk.log == [LOSS, SessionState.SUSPENDED]
        own_zookeeper.resume()
        await desk.until(SessionState.CONNECTED)
        assert (await desk.ask(GetData("/a"))).data in (b"1", b"2")

    play_direct(test, own_zookeeper.address, session_timeout_ms=3_000)


@pytest.mark.java
def test_submit_never_waits_for_kazoos_thread(own_zookeeper: ZooKeeper) -> None:
    async def test(stage: DirectStage) -> None:
        desk = await Desk.open(stage)
        await desk.make("/a")
        desk.log.clear()
        own_zookeeper.pause()
        with trio_limit(3):
            for _ in range(100):
                desk.submit(SetData("/a", bytes(200_000)))  # more than the socket takes, so kazoo's thread waits
            for _ in range(2_000):
                desk.submit(Exists("/a"))
        own_zookeeper.resume()
        await stage.until(lambda: len(desk.log) >= 2_100)

    play_direct(test, own_zookeeper.address, session_timeout_ms=12_000)


@pytest.mark.java
def test_close_gives_up_if_zookeeper_is_silent(own_zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kazoo_session, "CLOSE_TIMEOUT_S", 0.5)

    async def test(stage: DirectStage) -> None:
        async with open_kazoo_session(own_zookeeper.address, session_timeout_ms=30_000) as client:
            told: list[SessionState] = []
            client.add_state_listener(told.append)
            own_zookeeper.pause()
        assert told == [SessionState.CLOSED]

    with trio_limit(15):
        play_direct(test, own_zookeeper.address)


def test_server_that_speaks_another_protocol_is_not_believed() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, answer, listeners)
            address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            with pytest.raises(ZooKeeperUnreachableError):
                async with open_kazoo_session(address, connection_timeout_ms=1_000, session_timeout_ms=1_000):
                    raise AssertionError("this is no ZooKeeper")
            nursery.cancel_scope.cancel()

    trio.run(run)


def test_client_that_vanishes_costs_the_server_nothing() -> None:
    async def test(stage: SocketStage) -> None:
        desk = await Desk.open(stage)
        for _ in range(20):
            stream = await open_stream(stage.address)
            await stream.send_all(b"\x00\x00\x00")
            await stream.aclose()
        await desk.make("/a")

    play(test, None)
