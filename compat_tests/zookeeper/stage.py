"""Stages of the contract on which kazoo speaks to a server over a socket."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import trio

from wirekafka.zookeeper import jute
from wirekafka.zookeeper.jute import OpCode, Reader
from wirekafka.zookeeper.kazoo_session import KazooSession, open_kazoo_session
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.server import serve_model
from wirekafka.zookeeper.session import ZooKeeperClient

SESSION_TIMEOUT_MS = 3_000
WAIT_S = 20


class Relay:
    """Forwards connections to a server, and cuts them.

    Attributes:
        connection_count: how many connections there were.
    """

    def __init__(self, upstream: str) -> None:
        self.connection_count = 0
        self._upstream = upstream
        self._links: list[trio.CancelScope] = []

    async def run(self, task_status: trio.TaskStatus[str]) -> None:
        """Forwards until it is cancelled; tells the address at which it listens."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")
        await trio.serve_listeners(self._forward, listeners)

    def cut(self) -> None:
        """Ends every connection."""
        for link in self._links:
            link.cancel()

    async def _forward(self, client: trio.SocketStream) -> None:
        self.connection_count += 1
        link = trio.CancelScope()
        self._links.append(link)
        with link, suppress(OSError):
            server = await open_stream(self._upstream)
            async with client, server, trio.open_nursery() as nursery:
                nursery.start_soon(copy, client, server, link)
                nursery.start_soon(copy, server, client, link)
        self._links.remove(link)


async def copy(source: trio.SocketStream, target: trio.SocketStream, link: trio.CancelScope) -> None:
    with suppress(trio.BrokenResourceError):
        async for data in source:
            await target.send_all(data)
    link.cancel()


async def open_stream(address: str) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


class SocketStage:
    """A `Stage` of the contract: clients by kazoo, each over a relay of its own.

    Attributes:
        address: of the server.
        model: what the server serves; None for ZooKeeper.
        root: the chroot of the stage.
    """

    def __init__(self, address: str, model: ModelServer | None, nursery: trio.Nursery, clients: AsyncExitStack) -> None:
        self.address = address
        self.model = model
        self.root = f"/stage-{uuid.uuid4().hex}"
        self._nursery = nursery
        self._clients = clients
        self._relays: dict[ZooKeeperClient, Relay] = {}

    async def relayed(self) -> tuple[str, Relay]:
        """Returns the address of a new relay to the server, and the relay."""
        relay = Relay(self.address)
        return await self._nursery.start(relay.run), relay

    async def open(self, chroot: str = "") -> KazooSession:
        address, relay = await self.relayed()
        opening = open_kazoo_session(address + self.root + chroot, session_timeout_ms=SESSION_TIMEOUT_MS)
        client = await self._clients.enter_async_context(opening)
        self._relays[client] = relay
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(WAIT_S):
            while not condition():  # noqa: ASYNC110 - the conditions of the contract are plain functions
                await trio.sleep(0.002)

    async def break_connection(self, client: ZooKeeperClient) -> None:
        self._relays[client].cut()

    async def expire(self, client: ZooKeeperClient) -> None:
        """Takes the session over, and ends it."""
        assert isinstance(client, KazooSession)
        assert client._client_id is not None
        await end_session(self.address, *client._client_id)


async def end_session(address: str, session_id: int, password: bytes) -> None:
    """Ends a session of another client."""
    async with await open_stream(address) as stream:
        await stream.send_all(jute.frame_of(jute.ConnectRequest(0, 0, SESSION_TIMEOUT_MS, session_id, password, False)))
        frames = jute.Frames()
        async for data in stream:
            for body in frames.receive(data):
                assert jute.ConnectResponse.read(Reader(body)).session_id == session_id
                await stream.send_all(jute.frame_of(jute.RequestHeader(1, OpCode.CLOSE_SESSION)))
                await stream.receive_some()
                return


@asynccontextmanager
async def stage_at(address: str, model: ModelServer | None) -> AsyncIterator[SocketStage]:
    """Yields a stage; closes its clients at the end."""
    async with trio.open_nursery() as nursery:
        async with AsyncExitStack() as clients:
            yield SocketStage(address, model, nursery, clients)
        nursery.cancel_scope.cancel()


def play(test: Callable[[SocketStage], Awaitable[None]], address: str | None) -> None:
    """Runs a test with a stage at a server, or at a model on a socket if there is no address."""

    async def on_model() -> None:
        model = ModelServer(lambda: round(time.time() * 1000))
        async with serve_model(model, session_timeouts_ms=(200, 40_000)) as served, stage_at(served, model) as stage:
            await test(stage)

    async def on_server(at: str) -> None:
        async with stage_at(at, None) as stage:
            await test(stage)

    if address is None:
        trio.run(on_model)
    else:
        trio.run(on_server, address)
