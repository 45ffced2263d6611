"""Brokers that a test plays, with sockets of loopback, and a member's connections to them."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.membership.controller_requests import ControllerRequests
from wirekafka.membership.peers import Peers
from wirekafka.metadata.image import ClusterImage, Endpoint, LiveBroker
from wirekafka.server.drivers import EpollDriver
from wirekafka.server.peers import PeerConnections
from wirekafka.slices import Slices
from wirekafka.tests.server.frames import EchoDispatcher
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.frames import read_request_header
from wirekafka.wire.messages.allocate_producer_ids import ALLOCATE_PRODUCER_IDS
from wirekafka.wire.messages.alter_partition import ALTER_PARTITION
from wirekafka.wire.messages.api_versions import API_VERSIONS, ApiVersion, ApiVersionsResponse
from wirekafka.wire.messages.controlled_shutdown import CONTROLLED_SHUTDOWN
from wirekafka.wire.messages.create_topics import CREATE_TOPICS
from wirekafka.wire.types import Message

NODE_ID = 9
LISTENER = "INTERNAL"
KINDS = {kind.key: kind for kind in (ALTER_PARTITION, ALLOCATE_PRODUCER_IDS, CONTROLLED_SHUTDOWN, CREATE_TOPICS, API_VERSIONS)}
Act = Callable[["Stage"], Awaitable[None]]


class HangUp(Exception):
    """Is raised instead of an answer: the played broker closes the connection."""


class Silence(Exception):
    """Is raised instead of an answer: the played broker never answers."""


class PlayedBroker:
    """A broker that answers as the test says.

    Attributes:
        versions: the newest version of each API that it serves, by key; all that are declared if it is not there.
        api_versions: answers ApiVersions in place of `versions`.
        asked: the requests, without those for ApiVersions, with their versions.
        client_ids: the client ids of all requests.
        answer: answers a request of a version.
    """

    def __init__(self, answer: Callable[[Message, int], Message]) -> None:
        self.answer = answer
        self.versions: dict[int, int] = {}
        self.api_versions: ApiVersionsResponse | None = None
        self.asked: list[tuple[Message, int]] = []
        self.client_ids: list[str | None] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serves one connection."""
        with suppress(trio.BrokenResourceError):
            await self._serve(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        buffer = b""
        while more := await stream.receive_some():
            buffer += more
            while len(buffer) >= 4 and len(buffer) >= 4 + (size := int.from_bytes(buffer[:4], "big")):
                frame, buffer = buffer[4 : 4 + size], buffer[4 + size :]
                try:
                    await stream.send_all(self._answer(frame))
                except HangUp:
                    return
                except Silence:
                    await trio.sleep_forever()

    def _answer(self, frame: bytes) -> bytes:
        header = read_request_header(frame)
        kind, version = KINDS[header.api_key], header.api_version
        flexible = kind.is_flexible(version)
        request = decode(kind.request, version, flexible, memoryview(frame)[header.body_offset + flexible :])
        self.client_ids.append(header.client_id)
        if kind is API_VERSIONS:
            response: Message = self.api_versions or self._api_versions()
        else:
            self.asked.append((request, version))
            response = self.answer(request, version)
        body = (b"\0" if flexible else b"") + encode(response, version, flexible)
        return struct.pack(">ii", 4 + len(body), header.correlation_id) + body

    def _api_versions(self) -> ApiVersionsResponse:
        ranges = {key: (kind.versions[0], self.versions.get(key, kind.versions[-1])) for key, kind in KINDS.items()}
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=first, max_version=last) for key, (first, last) in ranges.items() if last >= 0
            ]
        )


class Stage:
    """A member's connections, and the brokers that a test plays."""

    def __init__(
        self,
        settings: dict[str, str],
        nursery: trio.Nursery,
        clock: Clock,
        driver: EpollDriver,
        mock_clock: trio.testing.MockClock,
    ) -> None:
        self.image = ClusterImage()
        self.broker_epoch = 77
        self.config = BrokerConfig(
            {"zookeeper.connect": "127.0.0.1:1", "broker.id": str(NODE_ID), "listeners": "PLAINTEXT://127.0.0.1:0", **settings}
        )
        self.clock = clock
        self.mock_clock = mock_clock
        connections = PeerConnections(driver, clock, Slices(clock), nursery)
        self.peers = Peers(NODE_ID, self.image, connections.open, listener_name=LISTENER)
        self.controller = ControllerRequests(
            self.config, self.image, self.peers, clock, node_id=NODE_ID, broker_epoch=lambda: self.broker_epoch
        )
        self._nursery = nursery

    async def play(self, broker_id: int, answer: Callable[[Message, int], Message]) -> PlayedBroker:
        """Plays a broker that listens, and is in the image."""
        broker = PlayedBroker(answer)
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self._nursery.start_soon(trio.serve_listeners, broker.serve, [listener])
        port = listener.socket.getsockname()[1]
        self.add_broker(broker_id, {LISTENER: port, "CLIENTS": 1})
        return broker

    def add_broker(self, broker_id: int, ports: dict[str, int]) -> None:
        """Adds a broker with these listeners to the image."""
        endpoints = {listener: Endpoint("127.0.0.1", port, "PLAINTEXT") for listener, port in ports.items()}
        self.image.brokers[broker_id] = LiveBroker(broker_id, endpoints, None)

    def tell_controller(self, broker_id: int) -> None:
        """Changes the controller in the image."""
        self.image.controller_id = broker_id
        for on_change in self.image.on_brokers_change:
            on_change()

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition, while the time of the timers passes faster than that of the sockets."""
        for turn in range(50_000):
            if condition():
                return
            await trio.lowlevel.checkpoint()
            if turn % 20 == 19:
                self.mock_clock.jump(0.01)
        raise AssertionError("it does not happen")

    async def breathe(self) -> None:
        """Lets the sockets of loopback work, while no time passes."""
        for _ in range(30):
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()

    async def pass_time(self, milliseconds: int) -> None:
        """Lets time pass in short steps, so that each timer fires at its time."""
        await self.breathe()
        for _ in range(milliseconds // 50):
            await trio.testing.wait_all_tasks_blocked()
            self.mock_clock.jump(0.05)
        await self.breathe()


@asynccontextmanager
async def _open_stage(mock_clock: trio.testing.MockClock, settings: dict[str, str]) -> AsyncIterator[Stage]:
    clock = Clock()
    driver = EpollDriver(EchoDispatcher(), max_idle_ms=None, on_close=lambda client: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driver.run)
        nursery.start_soon(clock.run)
        stage = Stage(settings, nursery, clock, driver, mock_clock)
        yield stage
        stage.controller.close()
        nursery.cancel_scope.cancel()


def run(act: Act, settings: dict[str, str] | None = None) -> None:
    """Runs a test with a member, which has these settings, and the brokers that the test plays."""
    mock_clock = trio.testing.MockClock()

    async def main() -> None:
        async with _open_stage(mock_clock, settings or {}) as stage:
            await act(stage)

    trio.run(main, clock=mock_clock)
