"""A broker without sockets answers as one with them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import trio

from wirekafka.api.metadata import MetadataRequest
from wirekafka.api.registry import find_api
from wirekafka.config import BrokerConfig
from wirekafka.server.running import open_broker
from wirekafka.testing.data_plane import open_caller
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.messages.api_versions import ApiVersionsRequest
from wirekafka.wire.types import Message


async def ask_by_socket(address: tuple[str, int], key: int, version: int, request: Message) -> object:
    api = find_api(key)
    assert api is not None
    is_flexible = api.is_flexible(version)
    payload = struct.pack(">hhih", key, version, 1, -1) + b"\0" * is_flexible + encode(request, version, is_flexible)
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(struct.pack(">i", len(payload)) + payload)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
            received = await stream.receive_some()
            assert received
            answer += received
    return decode(api.response, version, is_flexible, answer[8 + api.has_flexible_response_header(version) :])


@pytest.mark.parametrize(
    ("key", "version", "request_"),
    [(18, 3, ApiVersionsRequest(client_software_name="a", client_software_version="1")), (3, 9, MetadataRequest(topics=[]))],
    ids=["ApiVersions", "Metadata"],
)
def test_caller_gets_the_response_that_a_client_gets(tmp_path: Path, key: int, version: int, request_: Message) -> None:
    async def main() -> None:
        config = BrokerConfig({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})
        async with open_broker(config) as running:
            port = running.addresses[0].port
            by_socket = await ask_by_socket(("127.0.0.1", port), key, version, request_)
        async with open_caller(tmp_path, listeners=f"PLAINTEXT://127.0.0.1:{port}") as caller:
            caller.client.local_port = port
            without = caller.ask(request_, version)
        assert without == by_socket

    trio.run(main)
