"""The server of the model, spoken to in frames over streams in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from wirekafka.tests.zookeeper.model_stage import NOW_MS
from wirekafka.zookeeper import jute
from wirekafka.zookeeper import server as module
from wirekafka.zookeeper.jute import OpCode, Reader, Record
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.server import serve_client
from wirekafka.zookeeper.session import WatchEventType, ZooKeeperErrorCode

SESSION_TIMEOUTS_MS = 4_000, 40_000
ACL = (jute.OPEN_ACL,)
Stage = Callable[["Server"], Awaitable[None]]


class Server:
    """A model that serves streams in memory."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.model = ModelServer(lambda: NOW_MS + round(trio.current_time() * 1000))
        self._nursery = nursery

    async def open(self, *, lockstep: bool = False) -> Client:
        """Returns a client that has sent nothing yet. In lockstep, the server sends nothing that the client does not receive."""
        to_server, requests = trio.testing.memory_stream_one_way_pair()
        if lockstep:
            responses, from_server = trio.testing.lockstep_stream_one_way_pair()
        else:
            responses, from_server = trio.testing.memory_stream_one_way_pair()
        self._nursery.start_soon(serve_client, self.model, trio.StapledStream(responses, requests), SESSION_TIMEOUTS_MS)
        return Client(trio.StapledStream(to_server, from_server))

    async def connect(self, timeout_ms: int = 10_000) -> Client:
        """Returns a client with a session."""
        client = await self.open()
        await client.connect(timeout_ms=timeout_ms)
        return client


class Client:
    """A client that says what a test tells it to."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._frames = jute.Frames()
        self._bodies: list[bytes] = []
        self._xid = 0

    async def connect(
        self, *, timeout_ms: int = 10_000, last_zxid_seen: int = 0, session_id: int = 0, password: bytes = bytes(16)
    ) -> jute.ConnectResponse:
        request = jute.ConnectRequest(0, last_zxid_seen, timeout_ms, session_id, password, False)
        await self.stream.send_all(jute.frame_of(request))
        return jute.ConnectResponse.read(Reader(await self.receive()))

    async def send(self, op_code: int, record: Record | None = None) -> None:
        self._xid += 1
        header = jute.RequestHeader(self._xid, op_code)
        await self.stream.send_all(jute.frame_of(header) if record is None else jute.frame_of(header, record))

    async def receive(self) -> bytes:
        while not self._bodies:
            data = await self.stream.receive_some()
            if not data:
                raise trio.EndOfChannel
            self._bodies.extend(self._frames.receive(data))
        return self._bodies.pop(0)

    async def reply(self) -> tuple[jute.ReplyHeader, Reader]:
        reader = Reader(await self.receive())
        return jute.ReplyHeader.read(reader), reader

    async def ask(self, op_code: int, record: Record | None = None) -> tuple[jute.ReplyHeader, Reader]:
        """Returns the response to a request."""
        await self.send(op_code, record)
        return await self.reply()

    async def error(self, op_code: int, record: Record | None = None) -> ZooKeeperErrorCode:
        return ZooKeeperErrorCode((await self.ask(op_code, record))[0].error)

    async def create(self, path: str, flags: int = 0) -> None:
        assert await self.error(OpCode.CREATE, jute.CreateRequest(path, b"", ACL, flags)) == 0

    async def exists(self, path: str) -> bool:
        return await self.error(OpCode.EXISTS, jute.ReadRequest(path, False)) == 0

    async def event(self) -> tuple[int, str]:
        header, reader = await self.reply()
        assert header == jute.ReplyHeader(-1, -1, 0)
        event = jute.WatcherEvent.read(reader)
        assert event.state == 3
        return event.type, event.path

    async def is_closed(self) -> bool:
        """Reads to the end of the connection; whether nothing but the end came."""
        try:
            await self.receive()
        except (trio.EndOfChannel, trio.BrokenResourceError):
            return True
        return False


def played(test: Stage) -> None:
    """Runs a test with a server, in virtual time."""

    async def play() -> None:
        async with trio.open_nursery() as nursery:
            await test(Server(nursery))
            nursery.cancel_scope.cancel()

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("asked_ms", "given_ms"), [(0, 4_000), (10_000, 10_000), (2**31 - 1, 40_000), (-1, 4_000)])
def test_session_timeout_outside_of_the_limits_is_changed(asked_ms: int, given_ms: int) -> None:
    async def test(server: Server) -> None:
        client = await server.open()
        response = await client.connect(timeout_ms=asked_ms)
        assert (response.timeout_ms, len(response.password or b"")) == (given_ms, 16)
        assert server.model.has_session(response.session_id)

    played(test)


def test_request_is_answered_with_its_xid_and_the_last_zxid() -> None:
    async def test(server: Server) -> None:
        client = await server.connect()
        await client.create("/a")
        header, reader = await client.ask(OpCode.GET_DATA, jute.ReadRequest("/a", False))
        assert header == jute.ReplyHeader(2, server.model.last_zxid, 0)
        assert jute.GetDataResponse.read(reader).stat.czxid == server.model.last_zxid

    played(test)


def test_silent_client_loses_its_session_and_its_connection() -> None:
    async def test(server: Server) -> None:
        other, client = await server.connect(40_000), await server.connect(4_000)
        await client.create("/e", jute.CreateFlag.EPHEMERAL)
        await trio.sleep(3.9)
        assert server.model.expire_sessions() == []
        assert await other.exists("/e")
        await trio.sleep(0.2)
        assert len(server.model.expire_sessions()) == 1
        assert await client.is_closed()
        assert not await other.exists("/e")

    played(test)


def test_sessions_expire_by_themselves() -> None:
    async def test() -> None:
        model = ModelServer(lambda: NOW_MS + round(trio.current_time() * 1000))
        model.connect(Deaf(), 4_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(module._expire_sessions, model)
            await trio.sleep(5)
            assert model.next_expiry_ms() is None
            nursery.cancel_scope.cancel()

    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


class Deaf:
    """The listener of a session whose client is gone."""

    def on_watch_event(self, event: object) -> None: ...

    def on_disconnect(self) -> None: ...


def test_ping_keeps_the_session() -> None:
    async def test(server: Server) -> None:
        client = await server.connect(4_000)
        for _ in range(3):
            await trio.sleep(3)
            await client.stream.send_all(jute.frame_of(jute.RequestHeader(-2, OpCode.PING)))
            assert (await client.reply())[0].xid == -2
            assert server.model.expire_sessions() == []

    played(test)


def test_reconnect_with_the_password_keeps_the_session_and_ends_the_former_connection() -> None:
    async def test(server: Server) -> None:
        former, client = await server.open(), await server.open()
        first = await former.connect()
        await former.create("/e", jute.CreateFlag.EPHEMERAL)
        second = await client.connect(session_id=first.session_id, password=first.password or b"")
        assert second == first
        assert await former.is_closed()
        await trio.testing.wait_all_tasks_blocked()
        assert await client.exists("/e")

    played(test)


def test_reconnect_with_another_password_is_told_that_the_session_has_expired() -> None:
    async def test(server: Server) -> None:
        first, client = await server.open(), await server.open()
        session = await first.connect()
        response = await client.connect(session_id=session.session_id, password=b"x" * 16)
        assert response == jute.ConnectResponse(0, 0, 0, bytes(16), False)
        assert await client.is_closed()
        assert not await first.exists("/e")
        assert server.model.has_session(session.session_id)

    played(test)


def test_client_that_has_seen_a_later_state_is_disconnected() -> None:
    async def test(server: Server) -> None:
        client = await server.open()
        request = jute.ConnectRequest(0, 99, 10_000, 0, bytes(16), False)
        await client.stream.send_all(jute.frame_of(request))
        assert await client.is_closed()

    played(test)


def test_close_session_is_answered_and_then_the_connection_ends() -> None:
    async def test(server: Server) -> None:
        other, client = await server.connect(), await server.connect()
        await client.create("/e", jute.CreateFlag.EPHEMERAL)
        header, _ = await client.ask(OpCode.CLOSE_SESSION)
        assert header == jute.ReplyHeader(2, server.model.last_zxid, 0)
        assert await client.is_closed()
        assert not await other.exists("/e")

    played(test)


def test_lost_connection_keeps_the_session_and_drops_the_watches() -> None:
    async def test(server: Server) -> None:
        other, client = await server.connect(), await server.open()
        session = await client.connect()
        await client.create("/a")
        await client.ask(OpCode.GET_DATA, jute.ReadRequest("/a", True))
        await client.stream.aclose()
        again = await server.open()
        await again.connect(session_id=session.session_id, password=session.password or b"")
        await other.ask(OpCode.SET_DATA, jute.SetDataRequest("/a", b"", -1))
        assert await again.exists("/a")

    played(test)


DELETED, CREATED = WatchEventType.NODE_DELETED, WatchEventType.NODE_CREATED
CHANGED, CHILDREN_CHANGED = WatchEventType.NODE_DATA_CHANGED, WatchEventType.NODE_CHILDREN_CHANGED


@pytest.mark.parametrize("is_second_form", [False, True])
def test_watches_of_a_former_connection_are_left_again_or_fire(is_second_form: bool) -> None:
    missed = {
        ("data", "/gone"): DELETED,
        ("data", "/changed"): CHANGED,
        ("exist", "/new"): CREATED,
        ("child", "/gone"): DELETED,
        ("child", "/parent"): CHILDREN_CHANGED,
    }
    kept = {("data", "/same"): CHANGED, ("exist", "/missing"): CREATED, ("child", "/calm"): CHILDREN_CHANGED}

    async def test(server: Server) -> None:
        other, client = await server.connect(), await server.connect()
        for path in ("/same", "/calm", "/changed", "/parent"):
            await other.create(path)
        seen = server.model.last_zxid
        await other.ask(OpCode.SET_DATA, jute.SetDataRequest("/changed", b"", -1))
        await other.create("/parent/child")
        await other.create("/new")
        left = [*missed, *kept]
        data, exist, child = (tuple(path for kind, path in left if kind == each) for each in ("data", "exist", "child"))
        request = (
            jute.SetWatches2(seen, data, exist, child, (), ()) if is_second_form else jute.SetWatches(seen, data, exist, child)
        )
        await client.send(OpCode.SET_WATCHES2 if is_second_form else OpCode.SET_WATCHES, request)
        events = [await client.event() for _ in missed]
        assert sorted(events) == sorted((type_, path) for (_, path), type_ in missed.items())
        assert (await client.reply())[0].error == 0
        await other.ask(OpCode.SET_DATA, jute.SetDataRequest("/same", b"", -1))
        await other.create("/missing")
        await other.create("/calm/child")
        assert [await client.event() for _ in kept] == [(type_, path) for (_, path), type_ in kept.items()]

    played(test)


def test_persistent_watches_are_refused() -> None:
    async def test(server: Server) -> None:
        client = await server.connect()
        request = jute.SetWatches2(0, (), (), (), ("/a",), ())
        assert await client.error(OpCode.SET_WATCHES2, request) is ZooKeeperErrorCode.UNIMPLEMENTED

    played(test)


def test_refused_multi_has_an_error_for_each_operation() -> None:
    async def test(server: Server) -> None:
        client = await server.connect()
        parts = [
            jute.MultiPart(OpCode.CREATE, jute.CreateRequest("/a", b"", ACL, 0)),
            jute.MultiPart(OpCode.CHECK, jute.VersionRequest("/a", 7)),
            jute.MultiPart(OpCode.DELETE, jute.VersionRequest("/a", -1)),
        ]
        header, reader = await client.ask(OpCode.MULTI, jute.MultiRequest(tuple(parts)))
        codes = [part.record for part in jute.MultiResponse.read(reader).parts]
        assert header.error == 0
        assert codes == [jute.ErrorResponse(0), jute.ErrorResponse(-103), jute.ErrorResponse(-2)]
        assert not await client.exists("/a")

    played(test)


@pytest.mark.parametrize(
    ("acl", "flags", "code"),
    [
        ((), 0, ZooKeeperErrorCode.INVALID_ACL),
        ((jute.Acl(31, jute.Id("digest", "me:hash")),), 0, ZooKeeperErrorCode.UNIMPLEMENTED),
        (ACL, 4, ZooKeeperErrorCode.UNIMPLEMENTED),
    ],
)
def test_znode_that_the_server_cannot_have_is_refused(acl: tuple[jute.Acl, ...], flags: int, code: ZooKeeperErrorCode) -> None:
    async def test(server: Server) -> None:
        client = await server.connect()
        assert await client.error(OpCode.CREATE2, jute.CreateRequest("/a", b"", acl, flags)) is code
        assert not await client.exists("/a")

    played(test)


def test_acl_of_every_znode_is_open() -> None:
    async def test(server: Server) -> None:
        client = await server.connect()
        _, reader = await client.ask(OpCode.GET_ACL, jute.PathRequest("/"))
        assert jute.GetAclResponse.read(reader).acl == ACL
        assert await client.error(OpCode.GET_ACL, jute.PathRequest("/a")) is ZooKeeperErrorCode.NO_NODE

    played(test)


def test_credentials_of_an_unknown_scheme_end_the_connection() -> None:
    async def test(server: Server) -> None:
        client = await server.connect()
        assert await client.error(OpCode.AUTH, jute.AuthPacket(0, "digest", b"me:secret")) == 0
        assert await client.error(OpCode.AUTH, jute.AuthPacket(0, "sasl", b"")) is ZooKeeperErrorCode.AUTH_FAILED
        assert await client.is_closed()

    played(test)


def test_unknown_operation_is_unimplemented_and_the_connection_goes_on() -> None:
    async def test(server: Server) -> None:
        client = await server.connect()
        for op_code in (7, 13, 16, 21, 107, 999, -10):
            assert await client.error(op_code, jute.PathRequest("/a")) is ZooKeeperErrorCode.UNIMPLEMENTED
        assert not await client.exists("/a")

    played(test)


def test_record_that_cannot_be_read_is_answered_and_the_connection_goes_on() -> None:
    async def test(server: Server) -> None:
        client = await server.connect()
        assert await client.error(OpCode.CREATE, jute.PathRequest("/a")) is ZooKeeperErrorCode.MARSHALLING_ERROR
        assert not await client.exists("/a")

    played(test)


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, jute.frame_of(jute.PathRequest("/a")), b"\x00\x10\x00\x00"],
    ids=["http", "negative", "not a connect request", "too long"],
)
def test_client_of_another_protocol_is_disconnected(sent: bytes) -> None:
    async def test(server: Server) -> None:
        other, client = await server.connect(), await server.open()
        await client.stream.send_all(sent)
        assert await client.is_closed()
        assert not await other.exists("/a")

    played(test)


@pytest.mark.parametrize(("word", "answer"), [(b"ruok\n", b"imok"), (b"envi", b"Environment:\nzookeeper.version=3.8.4\n")])
def test_four_letter_word_is_answered(word: bytes, answer: bytes) -> None:
    async def test(server: Server) -> None:
        client = await server.open()
        await client.stream.send_all(word)
        assert await client.stream.receive_some() == answer
        assert await client.stream.receive_some() == b""

    played(test)


@given(st.lists(st.tuples(st.integers(-20, 110), st.binary(max_size=30)), max_size=8), st.binary(max_size=40))
@settings(max_examples=50)
def test_no_bytes_of_a_client_stop_the_server(requests: list[tuple[int, bytes]], end: bytes) -> None:
    async def test(server: Server) -> None:
        other, client = await server.connect(), await server.connect()
        heads = [jute.frame_of(jute.RequestHeader(1, op_code))[4:] for op_code, _ in requests]
        frames = [head + body for head, (_, body) in zip(heads, requests, strict=True)]
        await client.stream.send_all(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames) + end)
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
        await other.create("/after")

    played(test)


def test_requests_of_a_client_that_does_not_read_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNSENT_BYTES", 10_000)

    async def test(server: Server) -> None:
        other, client = await server.connect(40_000), await server.open(lockstep=True)
        await client.connect()
        assert await client.error(OpCode.CREATE, jute.CreateRequest("/large", bytes(4_000), ACL, 0)) == 0
        for _ in range(6):
            await client.send(OpCode.GET_DATA, jute.ReadRequest("/large", False))
        await client.send(OpCode.CREATE, jute.CreateRequest("/late", b"", ACL, 0))
        await trio.testing.wait_all_tasks_blocked()
        assert not await other.exists("/late")
        replies = [await client.reply() for _ in range(7)]
        assert [header.xid for header, _ in replies] == [2, 3, 4, 5, 6, 7, 8]
        assert await other.exists("/late")

    played(test)


def test_events_for_a_client_that_does_not_read_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNSENT_EVENT_BYTES", 100)

    async def test(server: Server) -> None:
        other, client = await server.connect(40_000), await server.open(lockstep=True)
        await client.connect()
        for number in range(6):
            await client.ask(OpCode.EXISTS, jute.ReadRequest(f"/{number}", True))
        for number in range(6):
            await other.create(f"/{number}")
        await trio.sleep(2)
        with pytest.raises(trio.BrokenResourceError):
            await client.send(OpCode.PING)

    played(test)
