"""A whole broker in this process, with clients on its sockets."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.lowlevel

from wirekafka.api.cluster_versions import MEMBERS_ONLY
from wirekafka.api.registry import Client, all_apis
from wirekafka.config import BrokerConfig
from wirekafka.log.directory import DirectoryLockedError
from wirekafka.server.listener import ListenError
from wirekafka.server.receive_buffers import MOST_HELD_BYTES
from wirekafka.server.running import RunningBroker, most_held_bytes, open_broker
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wirekafka.wire.types import Message

API_VERSIONS, METADATA, FETCH, CREATE_TOPICS = 18, 3, 1, 19
APIS = {api.key: api for api in all_apis()}


def config(folder: Path, **settings: str) -> BrokerConfig:
    defaults = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder)}
    return BrokerConfig.load(None, defaults | {name.replace("_", "."): value for name, value in settings.items()})


class Caller:
    """A client that sends one version of each API."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._correlation_id = 0

    async def send(self, key: int, version: int, request: Message) -> None:
        api = APIS[key]
        self._correlation_id += 1
        header = struct.pack(">hhih", key, version, self._correlation_id, -1) + b"\0" * api.is_flexible(version)
        body = encode(request, version, api.is_flexible(version))
        await self.stream.send_all(struct.pack(">i", len(header) + len(body)) + header + body)

    async def receive(self, key: int, version: int) -> Any:
        api = APIS[key]
        size, correlation_id = struct.unpack(">ii", await self._exactly(8))
        assert correlation_id == self._correlation_id
        body = await self._exactly(size - 4)
        if api.has_flexible_response_header(version):
            body = body[1:]
        return decode(api.response, version, api.is_flexible(version), body)

    async def ask(self, key: int, version: int, request: Message) -> Any:
        await self.send(key, version, request)
        return await self.receive(key, version)

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = await self.stream.receive_some(size - len(data))
            assert chunk
            data += chunk
        return data


@asynccontextmanager
async def calling(running: RunningBroker, index: int = 0) -> AsyncIterator[Caller]:
    address = running.addresses[index]
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        yield Caller(stream)


async def create(caller: Caller, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    response = await caller.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    assert response.topics[0].error_code == 0


def message(key: int, **fields: Any) -> Message:
    """Makes the request of an API."""
    request: Any = APIS[key].request
    return request(**fields)


def metadata_request() -> Message:
    return message(METADATA, topics=None)


def test_broker_answers_as_soon_as_it_is_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_broker(config(tmp_path)) as running, calling(running) as caller:
            listed = await caller.ask(
                API_VERSIONS, 3, message(API_VERSIONS, client_software_name="a", client_software_version="1")
            )
            assert {api.api_key: range(api.min_version, api.max_version + 1) for api in listed.api_keys} == {
                api.key: api.versions for api in all_apis() if api.key not in MEMBERS_ONLY
            }
            metadata = await caller.ask(METADATA, 9, metadata_request())
            assert [(broker.host, broker.port) for broker in metadata.brokers] == [("127.0.0.1", running.addresses[0].port)]
            assert metadata.cluster_id == running.broker.cluster_id

    trio.run(main)


def test_topics_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_broker(config(tmp_path)) as running, calling(running) as caller:
            await create(caller, "kept")
            first_cluster_id = running.broker.cluster_id
        async with open_broker(config(tmp_path)) as running, calling(running) as caller:
            metadata = await caller.ask(METADATA, 9, metadata_request())
            assert [topic.name for topic in metadata.topics] == ["kept"]
            assert running.broker.cluster_id == first_cluster_id

    trio.run(main)


def test_closing_takes_no_time_with_a_fetch_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topic = FetchTopic(topic="waited_for", partitions=[partition])
        fetch = FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1000, topics=[topic])
        async with open_broker(config(tmp_path)) as running:
            stream = await trio.open_tcp_stream("127.0.0.1", running.addresses[0].port)
            caller = Caller(stream)
            await create(caller, "waited_for")
            await caller.send(FETCH, 4, fetch)
            topic_table = running.broker.topics.find("waited_for")
            assert topic_table is not None
            while not topic_table.partitions[0].watchers:
                await trio.lowlevel.checkpoint()
            start = trio.current_time()
        assert trio.current_time() - start < 2
        assert await stream.receive_some() == b""
        await stream.aclose()

    trio.run(main)


def test_data_directory_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_broker(config(tmp_path)) as running:
            with pytest.raises(DirectoryLockedError, match=str(running.addresses[0])):
                async with open_broker(config(tmp_path)):
                    pass
            async with calling(running) as caller:
                await create(caller, "still_works")

    trio.run(main)


def test_address_in_use_leaves_nothing_locked(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_broker(config(tmp_path / "a")) as running:
            taken = f"PLAINTEXT://127.0.0.1:0,OTHER://{running.addresses[0]}"
            settings = {"listeners": taken, "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"}
            with pytest.raises(ListenError, match=str(running.addresses[0])):
                async with open_broker(config(tmp_path / "b", **settings)):
                    pass
        async with open_broker(config(tmp_path / "b")):
            pass

    trio.run(main)


def test_each_listener_tells_its_clients_its_own_address(tmp_path: Path) -> None:
    settings = {
        "listeners": "LAN://127.0.0.1:0,WAN://127.0.0.1:0",
        "listener_security_protocol_map": "LAN:PLAINTEXT,WAN:PLAINTEXT",
        "advertised_listeners": "WAN://kafka.example:1234",
    }

    async def main() -> None:
        async with open_broker(config(tmp_path, **settings)) as running:
            told = []
            for index in range(2):
                async with calling(running, index) as caller:
                    (broker,) = (await caller.ask(METADATA, 9, metadata_request())).brokers
                    told.append((broker.host, broker.port))
            assert told == [("127.0.0.1", running.addresses[0].port), ("kafka.example", 1234)]

    trio.run(main)


def test_advertised_port_0_is_the_port_that_the_client_reached(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_broker(config(tmp_path, advertised_listeners="PLAINTEXT://kafka.example:0")) as running:
            client = Client("192.0.2.7", 40000, "PLAINTEXT", "127.0.0.1", running.addresses[0].port)
            assert running.broker.advertised_address(client) == ("kafka.example", running.addresses[0].port)

    trio.run(main)


def test_loopback_told_to_a_client_elsewhere_is_logged_once_for_each(tmp_path: Path) -> None:
    def client(host: str) -> Client:
        return Client(host, 40000, "PLAINTEXT", "192.0.2.1", 9092)

    async def main() -> None:
        async with open_broker(config(tmp_path, advertised_listeners="PLAINTEXT://localhost:9092")) as running:
            with structlog.testing.capture_logs() as lines:
                for host in ("127.0.0.1", "::1", "192.0.2.7", "192.0.2.7", "192.0.2.8"):
                    assert running.broker.advertised_address(client(host)) == ("localhost", 9092)
        assert [line["client"] for line in lines] == ["192.0.2.7", "192.0.2.8"]

    trio.run(main)


def test_listener_of_a_controller_is_not_opened_and_is_logged(tmp_path: Path) -> None:
    listeners = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093"
    settings = config(tmp_path, listeners=listeners, controller_listener_names="CONTROLLER")

    async def main() -> None:
        with structlog.testing.capture_logs() as lines:
            async with open_broker(settings) as running:
                assert len(running.addresses) == 1
        assert [line["listeners"] for line in lines if "controllers" in line["event"]] == [["CONTROLLER://127.0.0.1:9093"]]

    trio.run(main)


def test_listeners_for_clients_alone_log_nothing_about_controllers(tmp_path: Path) -> None:
    async def main() -> None:
        with structlog.testing.capture_logs() as lines:
            async with open_broker(config(tmp_path)):
                pass
        assert not [line for line in lines if "controllers" in line["event"]]

    trio.run(main)


@pytest.mark.parametrize(("value", "expected"), [("-1", MOST_HELD_BYTES), ("0", MOST_HELD_BYTES), ("200000000", 200_000_000)])
def test_queued_max_request_bytes_bounds_the_parts_of_requests(tmp_path: Path, value: str, expected: int) -> None:
    assert most_held_bytes(config(tmp_path, queued_max_request_bytes=value)) == expected


def test_failure_in_the_block_reaches_the_caller_as_it_is(tmp_path: Path) -> None:
    failure = LookupError("what a test found")

    async def main() -> None:
        async with open_broker(config(tmp_path)):
            raise failure from ValueError("its cause")

    with pytest.raises(LookupError) as caught:
        trio.run(main)
    assert caught.value is failure
    assert isinstance(failure.__cause__, ValueError)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_cancelled_at_any_time_the_broker_lets_go_of_everything(tmp_path: Path) -> None:
    """Cancelled after each number of scheduler passes of the start; the next broker opens the same directory."""

    class Countdown(trio.abc.Instrument):
        def __init__(self, scope: trio.CancelScope, passes: int) -> None:
            self.scope, self.passes = scope, passes

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.passes -= 1
            if self.passes == 0:
                self.scope.cancel()

    async def open_and_cancel(passes: int) -> bool:
        with trio.CancelScope() as scope:
            countdown = Countdown(scope, passes)
            trio.lowlevel.add_instrument(countdown)
            try:
                async with open_broker(config(tmp_path)):
                    return countdown.passes > 0
            finally:
                trio.lowlevel.remove_instrument(countdown)
        return False

    async def main() -> None:
        passes = 1
        while not await open_and_cancel(passes):
            passes += 1
        assert passes > 1

    trio.run(main)
