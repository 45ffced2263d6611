from __future__ import annotations

import errno
import mmap
import os
import re
import struct
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Annotated, Any, cast

import pytest
import structlog
import trio
import trio.testing

from wirekafka.api.cluster_versions import CLUSTER_VERSIONS, FEATURE_VERSIONS
from wirekafka.api.index import INDEX, Entry
from wirekafka.api.registry import APIS, Api, Call, find_api
from wirekafka.broker import Broker
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError, RepeatedError
from wirekafka.faults import forget_logged
from wirekafka.log.storage import FileHandle, FileRegion
from wirekafka.metadata.cluster_features import ClusterFeatures
from wirekafka.pending import Pending, finish
from wirekafka.server import dispatch
from wirekafka.server.dispatch import Dispatcher, Route
from wirekafka.slices import SLICE_SECONDS, Slices
from wirekafka.testing.data_plane import wait_for
from wirekafka.tests.server.frames import client, request
from wirekafka.troubles import MOST_OF_A_KIND, ClientTroubles
from wirekafka.wire.codec import MOST_ELEMENTS, unsigned_varint, writer
from wirekafka.wire.messages.fetch import FETCH, FetchPartition, FetchRequest, FetchTopic
from wirekafka.wire.messages.leader_and_isr import (
    LEADER_AND_ISR,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from wirekafka.wire.types import Int16, Message, NullableString, Records, String, nullable, since

KEY = 999
API_VERSIONS = 18


class SayRequest(Message):
    text: String = ""


class ListRequest(Message):
    texts: list[String] = []


class ListResponse(Message):
    texts: list[String] = []


class Texts(list[str]):
    """A list with a given length that makes its elements on demand."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return 400_000

    def __iter__(self) -> Iterator[str]:
        return self._texts


class SayResponse(Message):
    error_code: Annotated[Int16, since(1)] = 0
    error_message: Annotated[NullableString, since(2), nullable(2)] = None
    text: String = ""


class TakeResponse(Message):
    records: Records = b""


class Server:
    """A dispatcher with one more API, whose handler the test replaces."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.calls: list[Call[Any]] = []
        self.handler: Any = lambda call: SayResponse(text=call.request.text.upper())
        APIS[KEY] = Api(KEY, "Say", SayRequest, SayResponse, range(3), 2, self.handle, "")
        INDEX[KEY] = Entry("Say", "", 0, 2)
        clock = Clock(lambda: 1_700_000_000.5)
        config = BrokerConfig() if config is None else config
        self.features = ClusterFeatures(config)
        topics = SimpleNamespace(features=self.features)
        broker: Any = SimpleNamespace(  # the parts that a dispatcher needs
            config=config, clock=clock, slices=Slices(clock, seconds=lambda: 0.0), topics=topics, troubles=ClientTroubles()
        )
        self.broker: Broker = broker
        self.dispatcher = Dispatcher(self.broker)
        self.client = client()

    def handle(self, broker: Any, call: Call[Any]) -> Any:
        self.calls.append(call)
        return self.handler(call)

    def ask(self, framed: bytes) -> Any:
        """Returns the dispatcher's answer to a frame."""
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
        (-1, "API -1 version 1 is not served"),
        (0x7FFF, "API 32767 version 1 is not served"),
        (4, "LeaderAndIsr (API 4) version 1 is not served"),
        (17, "SaslHandshake (API 17) version 1 is not served"),
    ],
)
def test_unknown_api_ends_the_connection(server: Server, key: int, reason: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(f"{reason} (client id 'test')")):
        server.ask(request(key, 1))


@pytest.mark.parametrize("version", [-1, 3, 0x7FFF])
def test_unknown_version_ends_the_connection_and_says_what_is_served(server: Server, version: int) -> None:
    with pytest.raises(ProtocolError, match=rf"Say version {version} is not served, only versions 0 to 2 \(client id 'test'\)"):
        server.ask(request(KEY, version))


def test_member_serves_a_version_while_the_feature_that_needs_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INDEX, KEY, Entry("Say", "", 0, 2))
    monkeypatch.setitem(APIS, KEY, cast(Any, None))
    monkeypatch.setitem(CLUSTER_VERSIONS, KEY, 0)
    monkeypatch.setitem(FEATURE_VERSIONS, "transaction.version", {2: {KEY: 1}})
    server = Server(BrokerConfig.load(None, {"zookeeper.connect": "localhost:2181", "broker.id": "1"}))
    for level in (0, 2, 1, 2):
        server.features.follow({"transaction.version": level}, 1)
        if level == 2:
            assert b"HELLO" in server.ask(request(KEY, 1, 7, string(b"hello")))
        else:
            with pytest.raises(ProtocolError, match="Say version 1 is not served, only versions 0 to 0"):
                server.ask(request(KEY, 1, 7, string(b"hello")))


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
    assert f"ApiVersions version {version} is not served" in lines[0]["reason"]


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


def test_refusals_of_one_host_are_told_for_so_many_client_ids(server: Server) -> None:
    kinds = []
    for number in range(MOST_OF_A_KIND + 2):
        with pytest.raises(ProtocolError) as caught:
            server.ask(request(KEY, 7, client_id=b"client %d" % number + b"x" * 30_000))
        assert len(str(caught.value)) < 300
        kinds.append(type(caught.value))
    assert kinds == [ProtocolError] * MOST_OF_A_KIND + [RepeatedError, RepeatedError]


@pytest.mark.parametrize(
    ("key", "version", "remedy"),
    [
        (17, 1, "set security.protocol=PLAINTEXT in the client"),
        (4, 1, "only members of a cluster serve it"),
        (88, 0, "wirekafka does not have this API"),
        (KEY, 7, "Use another release of the client"),
    ],
)
def test_refusal_of_a_version_says_what_to_do(server: Server, key: int, version: int, remedy: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(remedy)):
        server.ask(request(key, version))


def test_code_of_an_api_that_cannot_be_imported_is_an_error_in_the_log_and_is_tried_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(key: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    forget_logged()
    monkeypatch.setattr(dispatch, "find_api", fail)
    with (
        structlog.testing.capture_logs() as lines,
        pytest.raises(ProtocolError, match=f"the code of API {KEY} cannot be imported"),
    ):
        server.ask(request(KEY, 0, 7, string(b"hello")))
    assert [(line["event"], line["log_level"]) for line in lines] == [("The code of an API cannot be imported", "error")]
    assert "Too many open files" in lines[0]["error"]
    monkeypatch.undo()
    assert server.ask(request(KEY, 0, 7, string(b"hello"))) == answer(7, string(b"HELLO"))


def test_request_for_which_there_is_no_memory_ends_its_connection(server: Server) -> None:
    def read(*_: object) -> Any:
        raise MemoryError

    server.ask(request(KEY, 0, 7, string(b"hello")))
    server.dispatcher._routes[KEY << 16].read = read
    with pytest.raises(ProtocolError, match="a Say 0 request of 21 bytes needs more memory than there is"):
        server.ask(request(KEY, 0, 7, string(b"hello")))


def test_large_request_with_too_many_elements_ends_its_connection(server: Server) -> None:
    APIS[KEY] = Api(KEY, "List", ListRequest, SayResponse, range(3), 2, server.handle, "")
    server.handler = lambda call: SayResponse(text=str(len(call.request.texts)))

    def ask(count: int, version: int) -> Any:
        head = struct.pack(">i", count) if version < 2 else b"\x00" + unsigned_varint(count + 1)
        tail = b"" if version < 2 else b"\x00"
        return server.ask(request(KEY, version, 7, head + (b"\x01" if version == 2 else string(b"")) * count + tail))

    for version in (0, 2):
        assert str(MOST_ELEMENTS).encode() in ask(MOST_ELEMENTS, version)
        with pytest.raises(ProtocolError, match=f"a broken List {version} request: more than {MOST_ELEMENTS} elements"):
            ask(MOST_ELEMENTS + 1, version)


def in_slices(server: Server) -> None:
    """Cuts the work of requests into slices of ten steps."""
    numbers = count()
    broker: Any = server.broker
    broker.slices = Slices(broker.clock, seconds=lambda: next(numbers) * SLICE_SECONDS / 10)


def late_answer(server: Server, framed: bytes) -> Any:
    """Returns the response to a request that must not be answered at once."""

    async def main() -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.broker.clock.run)
            pending = server.ask(framed)
            assert isinstance(pending, Pending)
            answer = await wait_for(pending)
            nursery.cancel_scope.cancel()
        return b"".join(answer) if isinstance(answer, list) else answer

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def many_texts(number: int) -> bytes:
    return struct.pack(">i", number) + string(b"name") * number


@pytest.fixture
def list_server(server: Server) -> Server:
    """A server whose API has an array in the request and in the response; the response has as many elements as the request."""
    APIS[KEY] = Api(KEY, "List", ListRequest, ListResponse, range(3), 2, server.handle, "")
    server.handler = lambda call: ListResponse(texts=call.request.texts)
    return server


def test_request_and_response_of_many_elements_are_decoded_and_encoded_in_slices(list_server: Server) -> None:
    body = many_texts(5000)
    at_once = list_server.ask(request(KEY, 0, 7, body))
    assert b"".join(at_once) == answer(7, body)
    in_slices(list_server)
    assert late_answer(list_server, request(KEY, 0, 7, body)) == answer(7, body)


def test_large_request_in_slices_has_its_own_copy_of_the_frame(list_server: Server) -> None:
    in_slices(list_server)
    body = many_texts(5000)
    frame = memoryview(bytearray(request(KEY, 0, 7, body)))[4:]

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(list_server.broker.clock.run)
            pending: Any = list_server.dispatcher.handle(frame, list_server.client, 0)
            frame[:] = bytes(len(frame))
            assert b"".join(await wait_for(pending)) == answer(7, body)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_large_request_in_slices_is_read_from_a_mapped_frame_without_a_copy(list_server: Server) -> None:
    in_slices(list_server)
    body = many_texts(5000)
    framed = request(KEY, 0, 7, body)
    with mmap.mmap(-1, len(framed)) as mapping, memoryview(mapping) as frame:
        frame[:] = framed

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(list_server.broker.clock.run)
                with frame[4:] as payload:
                    pending: Any = list_server.dispatcher.handle(payload, list_server.client, 0)
                    frame[:] = frame[:-1].tobytes() + b"!"
                    assert b"".join(await wait_for(pending)) == answer(7, body[:-1] + b"!")
                nursery.cancel_scope.cancel()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_large_request_that_is_broken_at_its_end_ends_its_connection_later(list_server: Server) -> None:
    in_slices(list_server)
    refused = late_answer(list_server, request(KEY, 0, 7, many_texts(5000)[:-1]))
    assert isinstance(refused, ProtocolError)
    assert str(refused).startswith("a broken List 0 request")
    assert not list_server.calls


def test_large_request_whose_handler_fails_is_told_so_later(server: Server) -> None:
    APIS[KEY] = Api(KEY, "List", ListRequest, SayResponse, range(3), 2, server.handle, "")

    def fail(call: Call[Any]) -> None:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)

    server.handler = fail
    in_slices(server)
    told = late_answer(server, request(KEY, 1, 7, many_texts(5000)))
    assert told == answer(7, struct.pack(">h", ErrorCode.INVALID_GROUP_ID) + string(b""))


def test_response_of_many_elements_that_is_too_large_is_refused_while_it_is_encoded(
    list_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MOST_RESPONSE_BYTES", 100_000)
    written: list[int] = []

    def texts() -> Iterator[str]:
        for number in range(400_000):
            written.append(number)
            yield "name"

    list_server.handler = lambda call: ListResponse(texts=Texts(texts()))
    in_slices(list_server)
    refused = late_answer(list_server, request(KEY, 0, 7, many_texts(0)))
    assert isinstance(refused, ProtocolError)
    assert "the response would have more than 100000 bytes" in str(refused)
    assert len(written) < 50_000


def test_shortcut_of_no_use_to_many_elements_is_not_asked_for(list_server: Server) -> None:
    asked: list[Any] = []
    list_server.ask(request(KEY, 0, 7, many_texts(1)))
    APIS[KEY].make_shortcut = lambda *arguments: asked.append(arguments)
    list_server.ask(request(KEY, 1, 7, many_texts(5000)))
    assert not asked


def test_handler_without_memory_is_answered_with_unknown_server_error(server: Server) -> None:
    def fail(call: Call[Any]) -> None:
        raise MemoryError

    server.handler = fail
    with structlog.testing.capture_logs():
        told = server.ask(request(KEY, 1, 7, string(b"hello")))
    assert told == answer(7, struct.pack(">h", ErrorCode.UNKNOWN_SERVER_ERROR) + string(b""))


def test_response_that_is_too_large_is_invalid_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_RESPONSE_BYTES", 100)
    server.handler = lambda call: SayResponse(text="x" * 96)
    assert len(server.ask(request(KEY, 1, 7, string(b"")))) == 8 + 100
    server.handler = lambda call: SayResponse(text="x" * 97)
    assert server.ask(request(KEY, 1, 7, string(b""))) == answer(7, struct.pack(">h", ErrorCode.INVALID_REQUEST) + string(b""))
    with pytest.raises(ProtocolError, match="the response would have more than 100 bytes"):
        server.handler = lambda call: SayResponse(text="x" * 99)
        server.ask(request(KEY, 0, 7, string(b"")))


def test_regions_of_files_do_not_count_towards_the_largest_response(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(dispatch, "MOST_RESPONSE_BYTES", 100)
    path = tmp_path / "log"
    path.write_bytes(bytes(1000))
    region = FileRegion(FileHandle(os.open(path, os.O_RDONLY)), 0, 1000)
    APIS[KEY] = Api(KEY, "Take", SayRequest, TakeResponse, range(1), None, server.handle, "")
    server.handler = lambda call: TakeResponse(records=region)
    assert server.ask(request(KEY, 0, 7, string(b"")))[-1] is region


def test_requests_are_followed_at_debug_level(server: Server) -> None:
    server.dispatcher = Dispatcher(server.broker, logs_requests=True)
    pending: Pending[SayResponse] = Pending()
    with structlog.testing.capture_logs() as lines:
        server.ask(request(KEY, 0, 7, string(b"hello")))
        server.handler = lambda call: pending
        waiting = server.ask(request(KEY, 1, 8, string(b"hello"), client_id=None))
        waiting.then(lambda answer: None)
        assert len(lines) == 1
        pending.complete(SayResponse(text="late"))
        with pytest.raises(ProtocolError):
            server.ask(request(17, 1, 9))
    told = [(line["api"], line["version"], line["client_id"], line["correlation_id"], "error" in line) for line in lines]
    assert told == [(str(KEY), 0, "test", 7, False), (str(KEY), 1, None, 8, False), ("SaslHandshake", 1, "test", 9, True)]
    assert all(line["log_level"] == "debug" and line["ms"] >= 0 and line["client"] == "192.0.2.7:40000" for line in lines)


def test_requests_are_not_followed_above_debug_level(server: Server) -> None:
    with structlog.testing.capture_logs() as lines:
        server.ask(request(KEY, 0, 7, string(b"hello")))
    assert not lines


def test_request_of_a_controller_may_name_10_000_partitions() -> None:
    states = [LeaderAndIsrPartitionState(partition_index=index, isr=[1, 2, 3], replicas=[1, 2, 3]) for index in range(10_000)]
    asked = LeaderAndIsrRequest(topic_states=[LeaderAndIsrTopicState(topic_name="flights", partition_states=states)])
    api = find_api(LEADER_AND_ISR.key)
    assert api is not None
    pieces: list[bytes] = []
    writer(LeaderAndIsrRequest, 7, True)(pieces.append, asked)
    found = finish(Route(api, 7, api.handler).read_in_steps(memoryview(b"".join(pieces)), 0))
    assert found == asked


@pytest.mark.parametrize("is_member", [True, False])
def test_fetch_of_a_follower_may_name_all_partitions_of_a_member(is_member: bool) -> None:
    topics = [FetchTopic(topic_id=index.to_bytes(16, "big"), partitions=[FetchPartition()]) for index in range(12_000)]
    asked = FetchRequest(topics=topics)
    api = find_api(FETCH.key)
    assert api is not None
    pieces: list[bytes] = []
    writer(FetchRequest, 17, True)(pieces.append, asked)
    route = Route(api, 17, api.handler, is_member=is_member)
    reading = route.read_in_steps(memoryview(b"".join(pieces)), 0)
    if is_member:
        assert finish(reading) == asked
    else:
        with pytest.raises(ProtocolError, match=f"more than {MOST_ELEMENTS} elements"):
            finish(reading)
