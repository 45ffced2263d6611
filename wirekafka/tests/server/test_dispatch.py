from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import structlog

from wirekafka.api.index import INDEX, Entry
from wirekafka.api.registry import APIS, Api, Call
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.log.storage import FileHandle, FileRegion
from wirekafka.pending import Pending
from wirekafka.server.connection import RepeatedError
from wirekafka.server.dispatch import Dispatcher
from wirekafka.tests.server.frames import client, request
from wirekafka.wire.types import Int16, Message, NullableString, Records, String, nullable, since

KEY = 999
API_VERSIONS = 18


class SayRequest(Message):
    text: String = ""


class SayResponse(Message):
    error_code: Annotated[Int16, since(1)] = 0
    error_message: Annotated[NullableString, since(2), nullable(2)] = None
    text: String = ""


class TakeResponse(Message):
    records: Records = b""


class Server:
    """A dispatcher with one API more, whose handler the test replaces."""

    def __init__(self) -> None:
        self.calls: list[Call[Any]] = []
        self.handler: Any = lambda call: SayResponse(text=call.request.text.upper())
        APIS[KEY] = Api(KEY, "Say", SayRequest, SayResponse, range(3), 2, self.handle, "")
        INDEX[KEY] = Entry("Say", "", 0, 2)
        broker: Any = SimpleNamespace(config=BrokerConfig(), clock=Clock(lambda: 1_700_000_000.5))
        self.dispatcher = Dispatcher(broker)
        self.client = client()

    def handle(self, broker: Any, call: Call[Any]) -> Any:
        self.calls.append(call)
        return self.handler(call)

    def ask(self, framed: bytes) -> Any:
        """What the dispatcher answers to a frame."""
        return self.dispatcher.handle(memoryview(bytearray(framed))[4:], self.client, 1_700_000_000_500)


@pytest.fixture
def server() -> Iterator[Server]:
    yield Server()
    del APIS[KEY], INDEX[KEY]


def string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def answer(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def test_request_reaches_its_handler_with_all_that_is_known(server: Server) -> None:
    assert server.ask(request(KEY, 0, 7, string(b"hello"))) == answer(7, string(b"HELLO"))
    (call,) = server.calls
    assert (call.request.text, call.version, call.client_id, call.now_ms) == ("hello", 0, "test", 1_700_000_000_500)
    assert call.client is server.client


def test_request_without_client_id_is_served(server: Server) -> None:
    server.ask(request(KEY, 0, 7, string(b"hello"), client_id=None))
    assert server.calls[0].client_id is None


def test_flexible_version_has_tagged_headers_on_both_ways(server: Server) -> None:
    body = b"\x06hello\x00"
    response = b"\x00" + struct.pack(">h", 0) + b"\x00" + b"\x06HELLO\x00"
    assert server.ask(request(KEY, 2, 7, b"\x00" + body)) == answer(7, response)
    unknown_tag = b"\x01\x63\x03abc"
    assert server.ask(request(KEY, 2, 8, unknown_tag + body)) == answer(8, response)


def test_bytes_behind_the_body_are_ignored(server: Server) -> None:
    assert server.ask(request(KEY, 0, 7, string(b"hello") + b"more")) == answer(7, string(b"HELLO"))


@pytest.mark.parametrize("body", [b"", b"\x00", string(b"hello")[:-1], struct.pack(">h", -1), string(b"\xff\xfe")])
def test_broken_body_ends_the_connection(server: Server, body: bytes) -> None:
    with pytest.raises(ProtocolError, match="a broken Say 0 request"):
        server.ask(request(KEY, 0, 7, body))
    assert not server.calls


def test_client_id_longer_than_its_request_ends_the_connection(server: Server) -> None:
    framed = bytearray(request(KEY, 0, 7, string(b"hello")))
    framed[12:14] = struct.pack(">h", 1000)
    with pytest.raises(ProtocolError, match="client id"):
        server.ask(bytes(framed))


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (-1, "API -1 is not served"),
        (4, "API 4 is not served"),
        (0x7FFF, "API 32767 is not served"),
        (17, "SaslHandshake (API 17) is not served"),
    ],
)
def test_unknown_api_ends_the_connection(server: Server, key: int, reason: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(f"{reason} (client id 'test')")):
        server.ask(request(key, 0))


@pytest.mark.parametrize("version", [-1, 3, 0x7FFF])
def test_unknown_version_ends_the_connection_and_says_what_is_served(server: Server, version: int) -> None:
    with pytest.raises(ProtocolError, match=rf"Say {version} is not served, only 0 to 2 \(client id 'test'\)"):
        server.ask(request(KEY, version))


def test_refusal_is_told_once_for_each_client_and_reason(server: Server) -> None:
    def refusal(version: int) -> ProtocolError:
        with pytest.raises(ProtocolError) as caught:
            server.ask(request(KEY, version))
        return caught.value

    assert not isinstance(refusal(3), RepeatedError)
    assert isinstance(refusal(3), RepeatedError)
    assert not isinstance(refusal(4), RepeatedError)
    server.client = client("192.0.2.8")
    assert not isinstance(refusal(3), RepeatedError)


@pytest.mark.parametrize("version", [5, 99, -3])
def test_api_versions_of_unknown_version_is_answered_in_version_0(server: Server, version: int) -> None:
    entry = INDEX[API_VERSIONS]
    versions = range(entry.first, entry.last + 1)
    body = struct.pack(">hihhh", ErrorCode.UNSUPPORTED_VERSION, 1, API_VERSIONS, versions[0], versions[-1])
    with structlog.testing.capture_logs() as lines:
        for correlation_id in (7, 8):
            assert server.ask(request(API_VERSIONS, version, correlation_id, b"who knows what")) == answer(correlation_id, body)
    assert len(lines) == 1
    assert f"ApiVersions {version} is not served" in lines[0]["reason"]


def test_handler_that_raises_a_kafka_error_is_answered_with_its_code(server: Server) -> None:
    def refuse(call: Call[Any]) -> None:
        raise KafkaError(ErrorCode.NOT_COORDINATOR, "ask another")

    server.handler = refuse
    with structlog.testing.capture_logs() as lines:
        told = server.ask(request(KEY, 1, 7, string(b"hello")))
        told_with_message = server.ask(request(KEY, 2, 8, b"\x00\x06hello\x00"))
    assert told == answer(7, struct.pack(">h", ErrorCode.NOT_COORDINATOR) + string(b""))
    assert told_with_message == answer(8, b"\x00" + struct.pack(">h", 16) + b"\x0cask another" + b"\x01\x00")
    assert not lines


def test_handler_that_fails_is_answered_with_unknown_server_error_and_logged_once(server: Server) -> None:
    def fail(call: Call[Any]) -> None:
        raise ZeroDivisionError

    server.handler = fail
    with structlog.testing.capture_logs() as lines:
        for correlation_id in (7, 8):
            told = server.ask(request(KEY, 1, correlation_id, string(b"hello")))
            assert told == answer(correlation_id, struct.pack(">h", -1) + string(b""))
    assert [line["request"] for line in lines] == ["Say 1", "Say 1"]
    assert isinstance(lines[0]["exc_info"], ZeroDivisionError)
    assert lines[1]["exc_info"] is None


@pytest.mark.parametrize("error", [KafkaError(ErrorCode.NOT_COORDINATOR), ZeroDivisionError(), ProtocolError("broken inside")])
def test_failure_that_the_response_cannot_say_ends_the_connection(
    server: Server, logged_faults: list[str], error: Exception
) -> None:
    def fail(call: Call[Any]) -> None:
        raise error

    server.handler = fail
    with pytest.raises(ProtocolError):
        server.ask(request(KEY, 0, 7, string(b"hello")))
    if isinstance(error, ZeroDivisionError):
        assert "ZeroDivisionError" in logged_faults.pop()


def test_response_that_cannot_be_encoded_is_unknown_server_error(server: Server, logged_faults: list[str]) -> None:
    server.handler = lambda call: SayResponse(text=5)  # type: ignore[arg-type]
    assert server.ask(request(KEY, 1, 7, string(b"hello"))) == answer(7, struct.pack(">h", -1) + string(b""))
    assert "AttributeError" in logged_faults.pop()


def test_none_is_no_answer(server: Server) -> None:
    server.handler = lambda call: None
    assert server.ask(request(KEY, 0, 7, string(b"hello"))) is None


def test_pending_response_is_encoded_when_it_comes(server: Server) -> None:
    pending: Pending[SayResponse] = Pending()
    server.handler = lambda call: pending
    waiting = server.ask(request(KEY, 0, 7, string(b"hello")))
    answers: list[Any] = []
    waiting.then(answers.append)
    assert not answers
    pending.complete(SayResponse(text="late"))
    assert answers == [answer(7, string(b"late"))]


def test_pending_response_that_cannot_be_encoded_becomes_a_refusal(server: Server, logged_faults: list[str]) -> None:
    pending: Pending[SayResponse] = Pending()
    server.handler = lambda call: pending
    answers: list[Any] = []
    server.ask(request(KEY, 0, 7, string(b"hello"))).then(answers.append)
    pending.complete(SayResponse(text=5))  # type: ignore[arg-type]
    assert isinstance(answers[0], ProtocolError)
    assert "AttributeError" in logged_faults.pop()


def test_region_of_a_file_stays_a_region(server: Server, tmp_path: Any) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    region = FileRegion(FileHandle(os.open(path, os.O_RDONLY)), 2, 5)
    APIS[KEY] = Api(KEY, "Take", SayRequest, TakeResponse, range(1), None, server.handle, "")
    server.handler = lambda call: TakeResponse(records=region)
    pieces = server.ask(request(KEY, 0, 7, string(b"")))
    assert pieces[-1] is region
    assert b"".join(pieces[:-1]) == struct.pack(">iii", 4 + 4 + 5, 7, 5)
