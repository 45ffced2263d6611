from __future__ import annotations

import struct
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.api.registry import Client
from wirekafka.errors import ProtocolError, RepeatedError
from wirekafka.pending import Pending
from wirekafka.server import connection as module
from wirekafka.server import receive_buffers
from wirekafka.server.connection import (
    FRAMES_PER_TURN,
    LEAST_BUFFER_BYTES,
    MAX_OUTSTANDING,
    MOST_OBJECT_BYTES,
    RECEIVE_BYTES,
    WAITING_FACTOR,
    Connection,
)
from wirekafka.server.receive_buffers import MAPPED_AFTER_BYTES, SHARED_BYTES, SPARE_BYTES, ReceiveBuffers, is_mapped
from wirekafka.tests.server.frames import EchoDispatcher, client, frame, produce


class Wire:
    """A connection, and its driver, which the test controls."""

    def __init__(self, max_request_bytes: int = 1 << 20) -> None:
        self.dispatcher = EchoDispatcher(max_request_bytes)
        self.buffers = ReceiveBuffers()
        self.progressed = 0
        self.connection = Connection(client(), self.dispatcher, self.buffers, self._on_progress)

    def _on_progress(self, connection: Connection) -> None:
        self.progressed += 1

    def arrive(self, data: bytes) -> None:
        """Hands over all of the data, in pieces of the free space."""
        while data:
            space = self.connection.space()
            chunk, data = data[: len(space)], data[len(space) :]
            space[: len(chunk)] = chunk
            self.connection.received(len(chunk))
            self.connection.handle_frames()
            assert not data or not self.connection.has_frames

    def sent(self) -> bytes:
        """Takes the output."""
        data = b"".join(self.connection.output)
        self.connection.output.clear()
        return data


def payloads(count: int) -> list[bytes]:
    return [b"payload number %d" % number for number in range(count)]


def test_frames_arriving_byte_by_byte_are_each_answered_once() -> None:
    wire = Wire()
    for byte in b"".join(map(frame, payloads(3))):
        wire.arrive(bytes([byte]))
    assert wire.dispatcher.frames == payloads(3)
    assert wire.sent() == b"".join(frame(payload.upper()) for payload in payloads(3))


def test_frames_arriving_at_once_are_answered_in_order() -> None:
    wire = Wire()
    wire.arrive(b"".join(map(frame, payloads(20))))
    assert wire.dispatcher.frames == payloads(20)
    assert wire.connection.held_bytes == 0


@given(
    sizes=st.lists(st.one_of(st.integers(10, 40), st.integers(4_000, 9_000)), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 60_000), max_size=12),
)
def test_frames_cut_anywhere_are_the_same_frames(sizes: list[int], cuts: list[int]) -> None:
    wire = Wire()
    expected = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(map(frame, expected))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, stop in pairwise(edges):
        wire.arrive(stream[start:stop])
    assert wire.dispatcher.frames == expected
    assert wire.connection.held_bytes == 0


def test_large_frame_in_pieces_arrives_whole_in_a_writable_buffer() -> None:
    wire = Wire(1 << 24)
    seen: list[bool] = []
    real = wire.dispatcher.handle

    def handle(payload: memoryview, client: Any, now_ms: int) -> Any:
        seen.append(payload.readonly)
        return real(payload, client, now_ms)

    wire.dispatcher.handle = handle  # type: ignore[method-assign]
    payload = bytes(range(256)) * 12_000
    stream = frame(payload) * 3
    for start in range(0, len(stream), 70_000):
        wire.arrive(stream[start : start + 70_000])
    assert wire.dispatcher.frames == [payload] * 3
    assert seen == [False] * 3
    assert wire.connection.held_bytes == 0


def test_behind_a_large_frame_only_the_head_of_the_next_one_goes_into_the_shared_buffer() -> None:
    wire = Wire(1 << 24)
    assert len(wire.connection.space()) == SHARED_BYTES
    wire.arrive(frame(bytes(2 * SHARED_BYTES)))
    assert len(wire.connection.space()) == LEAST_BUFFER_BYTES
    wire.arrive(frame(b"a small payload"))
    assert len(wire.connection.space()) == SHARED_BYTES
    for byte in frame(b"in pieces, in a buffer of its own"):
        wire.arrive(bytes([byte]))
    assert len(wire.connection.space()) == SHARED_BYTES


def test_memory_grows_with_what_arrived_not_with_what_is_announced() -> None:
    wire = Wire(1 << 30)
    wire.arrive(struct.pack(">i", 1 << 29))
    assert wire.connection.held_bytes <= 4096
    arrived = 4
    for _ in range(40):
        wire.arrive(bytes(50_000))
        arrived += 50_000
        assert wire.connection.held_bytes <= max(2 * arrived, SHARED_BYTES)


def test_spare_buffer_is_used_again_and_let_go() -> None:
    buffers = ReceiveBuffers()
    large = buffers.take(1 << 20, 1 << 20)
    buffers.give_back(large)
    assert buffers.take(5, 1 << 20) is large
    buffers.give_back(large)
    buffers.shrink()
    assert len(buffers.take(5, 1 << 20)) == 5


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (-1, "shorter than"),
        (-(2**31), "shorter than"),
        (0, "shorter than"),
        (9, "shorter than"),
        ((1 << 20) + 1, "larger than socket.request.max.bytes=1048576"),
        (2**31 - 1, "larger than socket.request.max.bytes=1048576"),
        (0x47455420, "the client speaks HTTP"),
        (0x50524920, "the client speaks HTTP"),
        (0x44454C45, "the client speaks HTTP"),
        (0x16030100, "the client speaks TLS, and this listener is PLAINTEXT"),
        (0x72756F6B, "the client speaks ZooKeeper's protocol"),
    ],
)
def test_frame_of_impossible_size_ends_the_connection_with_one_line(size: int, reason: str) -> None:
    wire = Wire()
    with structlog.testing.capture_logs() as lines:
        wire.arrive(frame(b"a good request") + struct.pack(">i", size) + b"whatever")
    assert wire.connection.is_closing
    good, _, rest = wire.sent().partition(frame(b"A GOOD REQUEST"))
    assert (good, rest.startswith(b"HTTP/1.1 400 ")) == (b"", "HTTP" in reason)
    assert len(lines) == 1
    assert lines[0]["client"] == "192.0.2.7:40000"
    assert reason in lines[0]["reason"]
    assert wire.connection.held_bytes == 0


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_http_request_gets_an_answer_that_a_person_can_read(method: str) -> None:
    wire = Wire()
    wire.arrive(f"{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head, _, text = wire.sent().decode().partition("\r\n\r\n")
    status, *fields = head.split("\r\n")
    assert status == "HTTP/1.1 400 Bad Request"
    assert ("This is the port of a Kafka broker" in text, "https://" in text) == (method != "HEAD", method != "HEAD")
    if method != "HEAD":
        assert f"Content-Length: {len(text)}" in fields
    assert wire.connection.is_closing


def test_http_bytes_after_a_request_that_waits_get_no_answer() -> None:
    wire = Wire()
    wire.arrive(frame(bytes(2) + b"commit a batch") + b"GET / HTTP/1.1\r\n\r\n")
    wire.dispatcher.complete()
    assert b"HTTP" not in wire.sent()


@pytest.mark.parametrize(("error", "level"), [(ProtocolError, "warning"), (RepeatedError, "debug")])
def test_greeting_of_another_protocol_is_told_as_the_dispatcher_says(
    monkeypatch: pytest.MonkeyPatch, error: type[ProtocolError], level: str
) -> None:
    wire = Wire()
    monkeypatch.setattr(wire.dispatcher, "refusal", lambda client, reason: error(reason))
    with structlog.testing.capture_logs() as lines:
        wire.arrive(b"GET / HTTP/1.1")
    assert [line["log_level"] for line in lines] == [level]


def test_frame_of_the_largest_size_is_handled() -> None:
    wire = Wire(max_request_bytes=100)
    wire.arrive(frame(bytes(100)))
    assert wire.sent() == frame(bytes(100))
    wire.arrive(frame(bytes(101)))
    assert wire.connection.is_closing


def test_receive_buffers_keep_no_spare_beyond_the_bound() -> None:
    buffers = ReceiveBuffers()
    largest, too_large = memoryview(bytearray(SPARE_BYTES)), memoryview(bytearray(SPARE_BYTES + 1))
    buffers.give_back(too_large)
    assert buffers.take(10, 10) is not too_large
    buffers.give_back(largest)
    assert buffers.take(10, 10) is largest


def test_protocol_error_ends_the_connection_after_the_answers_before_it() -> None:
    wire = Wire()

    def answer(payload: bytes) -> bytes:
        if payload.startswith(b"bad"):
            raise ProtocolError("it is bad")
        return frame(payload.upper())

    wire.dispatcher.answer = answer
    with structlog.testing.capture_logs() as lines:
        wire.arrive(frame(b"good request") + frame(b"bad request") + frame(b"never handled"))
    assert [line["reason"] for line in lines] == ["it is bad"]
    assert wire.sent() == frame(b"GOOD REQUEST")
    assert wire.connection.is_closing
    assert not wire.connection.has_frames


def test_pending_reply_holds_back_the_requests_behind_it() -> None:
    wire = Wire()
    wire.arrive(frame(b"first request") + frame(b"wait for it") + frame(b"last request"))
    assert wire.sent() == frame(b"FIRST REQUEST")
    assert wire.connection.is_waiting
    assert wire.connection.has_frames
    wire.dispatcher.complete()
    assert wire.progressed == 1
    assert not wire.connection.is_waiting
    assert wire.sent() == frame(b"REPLY TO A WAITING ONE")
    wire.connection.handle_frames()
    assert wire.sent() == frame(b"LAST REQUEST")


def test_reply_that_is_there_at_once_holds_nothing_back() -> None:
    wire = Wire()

    def answer(payload: bytes) -> Any:
        pending: Pending[bytes] = Pending()
        pending.complete(frame(payload.upper()))
        return pending

    wire.dispatcher.answer = answer
    wire.arrive(frame(b"first request") + frame(b"last request"))
    assert wire.sent() == frame(b"FIRST REQUEST") + frame(b"LAST REQUEST")
    assert wire.progressed == 0


def test_pending_reply_that_cannot_be_encoded_ends_the_connection() -> None:
    wire = Wire()
    wire.arrive(frame(b"wait for it"))
    with structlog.testing.capture_logs() as lines:
        wire.dispatcher.pendings[0].complete(ProtocolError("no place for it"))
    assert [line["reason"] for line in lines] == ["no place for it"]
    assert wire.connection.is_closing
    assert wire.progressed == 1


def test_abandoned_connection_abandons_its_pending_reply() -> None:
    wire = Wire()
    wire.arrive(frame(b"wait for it") + frame(b"behind it"))
    wire.connection.abandon()
    assert wire.dispatcher.abandoned == 1
    assert not wire.dispatcher.pendings[0].complete(frame(b"too late, nobody waits"))
    assert not wire.connection.output
    assert wire.connection.held_bytes == 0


def test_request_without_answer_produces_no_output() -> None:
    wire = Wire()
    wire.dispatcher.answer = lambda payload: None
    wire.arrive(frame(b"acks of zero"))
    assert wire.dispatcher.frames == [b"acks of zero"]
    assert wire.sent() == b""


def test_answer_in_pieces_is_output_in_pieces() -> None:
    wire = Wire()
    wire.dispatcher.answer = lambda payload: [b"one", b"two"]
    wire.arrive(frame(b"some request"))
    assert list(wire.connection.output) == [b"one", b"two"]


def test_many_frames_give_others_their_turn() -> None:
    wire = Wire()
    wire.arrive(b"".join(map(frame, payloads(FRAMES_PER_TURN + 5))))
    assert len(wire.dispatcher.frames) == FRAMES_PER_TURN
    assert wire.connection.has_frames
    wire.sent()
    wire.connection.handle_frames()
    assert wire.dispatcher.frames == payloads(FRAMES_PER_TURN + 5)
    assert not wire.connection.has_frames
    assert wire.connection.held_bytes == 0


def test_large_output_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OUTPUT_PER_TURN_BYTES", 40)
    wire = Wire()
    wire.arrive(b"".join(map(frame, payloads(10))))
    assert len(wire.dispatcher.frames) == 3
    assert wire.connection.has_frames


def commits(count: int) -> list[bytes]:
    return [b"commit number %d" % number for number in range(count)]


def reply_to(wire: Wire, index: int, text: bytes) -> None:
    wire.dispatcher.pendings[index].complete(frame(text))


def test_produce_requests_are_handled_while_released_replies_are_outstanding_up_to_five() -> None:
    wire = Wire()
    wire.arrive(b"".join(map(produce, commits(MAX_OUTSTANDING - 1))))
    assert wire.connection.is_waiting
    assert not wire.connection.is_blocked
    wire.arrive(produce(b"commit the fifth") + produce(b"commit the sixth"))
    assert len(wire.dispatcher.frames) == MAX_OUTSTANDING == 5
    assert wire.connection.is_blocked
    wire.dispatcher.complete()
    assert not wire.connection.is_blocked
    wire.connection.handle_frames()
    assert wire.dispatcher.frames[-1] == bytes(2) + b"commit the sixth"
    assert wire.connection.is_waiting


def test_outstanding_replies_leave_in_the_order_of_their_requests() -> None:
    wire = Wire()
    wire.arrive(b"".join(map(produce, commits(3))))
    reply_to(wire, 2, b"the third")
    reply_to(wire, 1, b"the second")
    assert wire.sent() == b""
    assert wire.progressed == 0
    reply_to(wire, 0, b"the first")
    assert wire.sent() == frame(b"the first") + frame(b"the second") + frame(b"the third")
    assert wire.progressed == 1
    assert not wire.connection.is_waiting


def test_produce_answered_at_once_leaves_after_the_replies_that_are_outstanding() -> None:
    wire = Wire()
    wire.arrive(produce(b"commit it") + produce(b"fails at once"))
    assert len(wire.dispatcher.frames) == 2
    assert wire.sent() == b""
    reply_to(wire, 0, b"the first")
    assert wire.sent() == frame(b"the first") + produce(b"FAILS AT ONCE")


def test_answer_in_pieces_leaves_after_the_replies_that_are_outstanding() -> None:
    wire = Wire()
    wire.dispatcher.answer = lambda payload: [b"one", b"two"]
    wire.arrive(produce(b"commit it") + produce(b"at once, in pieces"))
    reply_to(wire, 0, b"the first")
    assert list(wire.connection.output) == [frame(b"the first"), b"one", b"two"]


def test_request_without_answer_does_not_pass_the_replies_that_are_outstanding() -> None:
    wire = Wire()
    wire.dispatcher.answer = lambda payload: None
    wire.arrive(produce(b"commit it") + produce(b"acks of zero") + produce(b"commit it too"))
    reply_to(wire, 1, b"the third")
    reply_to(wire, 0, b"the first")
    assert wire.sent() == frame(b"the first") + frame(b"the third")


def test_other_api_waits_for_all_replies_that_are_outstanding() -> None:
    wire = Wire()
    wire.arrive(produce(b"commit it") + produce(b"commit it too") + frame(b"something else") + produce(b"commit the last"))
    assert len(wire.dispatcher.frames) == 2
    assert wire.connection.is_blocked
    wire.dispatcher.complete()
    wire.connection.handle_frames()
    assert len(wire.dispatcher.frames) == 2
    wire.dispatcher.complete()
    wire.connection.handle_frames()
    assert wire.dispatcher.frames[2:] == [b"something else", bytes(2) + b"commit the last"]


def test_produce_that_holds_the_connection_lets_the_next_one_be_handled_once_it_releases_it() -> None:
    wire = Wire()
    wire.arrive(produce(b"commit it") + produce(b"wait for validation") + produce(b"commit the last"))
    assert len(wire.dispatcher.frames) == 2
    assert wire.connection.is_blocked
    wire.dispatcher.pendings[1].release_connection()
    assert not wire.connection.is_blocked
    assert wire.progressed == 1
    wire.connection.handle_frames()
    assert len(wire.dispatcher.frames) == 3


def test_first_reply_leaves_while_a_later_one_holds_the_connection() -> None:
    wire = Wire()
    wire.arrive(produce(b"commit it") + produce(b"wait for validation") + produce(b"commit the last"))
    wire.dispatcher.complete()
    assert wire.sent() == frame(b"REPLY TO A WAITING ONE")
    wire.connection.handle_frames()
    assert wire.connection.is_blocked
    assert len(wire.dispatcher.frames) == 2


def test_broken_request_ends_the_connection_after_the_replies_that_are_outstanding() -> None:
    wire = Wire()

    def refuse(payload: bytes) -> bytes:
        raise ProtocolError("it is bad")

    wire.dispatcher.answer = refuse
    with structlog.testing.capture_logs() as lines:
        wire.arrive(produce(b"commit it") + produce(b"commit it too") + produce(b"bad request") + produce(b"never handled"))
        assert not wire.connection.is_closing
        wire.dispatcher.complete()
        wire.connection.handle_frames()
        assert not wire.connection.is_closing
        assert not lines
        wire.dispatcher.complete()
    assert wire.connection.is_closing
    assert not wire.connection.is_blocked
    assert [line["reason"] for line in lines] == ["it is bad"]
    assert wire.sent() == 2 * frame(b"REPLY TO A WAITING ONE")
    assert len(wire.dispatcher.frames) == 3
    assert wire.connection.held_bytes == 0


def test_frame_of_impossible_size_ends_the_connection_after_the_replies_that_are_outstanding() -> None:
    wire = Wire()
    with structlog.testing.capture_logs() as lines:
        wire.arrive(produce(b"commit it") + struct.pack(">i", -1) + b"whatever")
        wire.dispatcher.complete()
    assert len(lines) == 1
    assert wire.connection.is_closing
    assert wire.sent() == frame(b"REPLY TO A WAITING ONE")


def test_reply_of_a_connection_that_is_closing_is_not_sent() -> None:
    wire = Wire()
    with structlog.testing.capture_logs():
        wire.arrive(produce(b"commit it") + produce(b"commit it too"))
        wire.dispatcher.pendings[0].complete(ProtocolError("no place for it"))
    reply_to(wire, 1, b"the second")
    assert wire.connection.is_closing
    assert wire.sent() == b""


def test_abandoned_connection_abandons_all_outstanding_replies_and_tells_its_client() -> None:
    wire = Wire()
    closed: list[str] = []
    wire.connection.client.on_close = {"test": lambda: closed.append("closed")}
    wire.arrive(produce(b"commit it") + produce(b"commit it too") + produce(b"at once"))
    wire.connection.abandon()
    assert wire.dispatcher.abandoned == 2
    assert closed == ["closed"]
    assert not wire.connection.is_waiting


@given(data=st.data())
def test_replies_in_any_order_leave_in_the_order_of_their_requests(data: st.DataObject) -> None:
    wire = Wire()
    outstanding: list[tuple[Pending[Any], bytes]] = []

    def answer(payload: bytes) -> Any:
        if payload.startswith(bytes(2) + b"at once"):
            return frame(payload)
        pending: Pending[Any] = Pending()
        if payload.startswith(bytes(2) + b"released"):
            pending.release_connection()
        outstanding.append((pending, payload))
        return pending

    wire.dispatcher.answer = answer
    kinds = data.draw(st.lists(st.sampled_from([b"released", b"holds it", b"at once "]), min_size=1, max_size=20))
    stream = b"".join(produce(kind + b" %d" % number) for number, kind in enumerate(kinds))
    wire.arrive(stream)
    while wire.connection.has_frames or outstanding:
        must_wait = wire.connection.is_blocked or not wire.connection.has_frames
        if outstanding and (must_wait or data.draw(st.booleans())):
            index = data.draw(st.integers(0, len(outstanding) - 1))
            pending, payload = outstanding[index]
            if pending.holds_connection and data.draw(st.booleans()):
                pending.release_connection()
            else:
                del outstanding[index]
                pending.complete(frame(payload))
        if not wire.connection.is_blocked:
            wire.connection.handle_frames()
        assert len(outstanding) <= MAX_OUTSTANDING
        assert all(not pending.holds_connection for pending, _ in outstanding[:-1])
    assert wire.sent() == stream


def test_buffers_are_short_while_connections_hold_more_than_they_may() -> None:
    buffers = ReceiveBuffers(10_000)
    buffers.hold(10_000)
    assert not buffers.is_short
    buffers.hold(1)
    assert buffers.is_short
    buffers.hold(-5_000)
    assert not buffers.is_short


def test_spare_buffer_is_charged_with_its_whole_size() -> None:
    wire = Wire()
    wire.buffers.give_back(memoryview(bytearray(100_000)))
    wire.arrive(frame(bytes(90_000))[:10])
    assert wire.connection.held_bytes == 100_000


def test_large_frame_is_received_without_copies_and_takes_the_memory_that_has_arrived() -> None:
    size = 3 * SPARE_BYTES
    wire = Wire(4 * SPARE_BYTES)
    data = frame(b"large frame " * (size // 12))
    wire.arrive(data[: MAPPED_AFTER_BYTES * 2])
    space = wire.connection.space()
    assert is_mapped(space)
    arrived = MAPPED_AFTER_BYTES * 2
    while arrived < len(data) - 1:
        assert wire.buffers._held_bytes == wire.connection.held_bytes == arrived
        chunk = data[arrived : min(arrived + 1_000_000, len(data) - 1)]
        wire.arrive(chunk)
        arrived += len(chunk)
        assert wire.connection.space().obj is space.obj
        assert len(wire.connection.space()) <= RECEIVE_BYTES
    wire.arrive(data[-1:])
    assert wire.sent() == data[:4] + data[4:].upper()
    assert wire.buffers._held_bytes == 0
    assert wire.connection.space().obj is wire.buffers.shared.obj


def test_request_may_keep_a_mapped_frame() -> None:
    kept: list[memoryview] = []
    wire = Wire(4 * SPARE_BYTES)

    def keep(payload: memoryview, client: Client, now_ms: int) -> bytes:
        kept.append(payload)
        return frame(b"thank you for it")

    wire.dispatcher.handle = keep  # type: ignore[method-assign]
    first, second = bytes([1]) * (SPARE_BYTES + 1), bytes([2]) * (SPARE_BYTES + 1)
    wire.arrive(frame(first))
    wire.arrive(frame(second))
    wire.connection.abandon()
    assert [is_mapped(payload) for payload in kept] == [True, True]
    assert kept == [first, second]


def test_large_frame_is_received_if_it_cannot_be_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(receive_buffers, "mmap", SimpleNamespace(mmap=fail, MAP_PRIVATE=2, MAP_ANONYMOUS=32))
    monkeypatch.setattr(module, "is_mapped", lambda buffer: False)
    wire = Wire(4 * SPARE_BYTES)
    data = frame(b"large frame " * (SPARE_BYTES // 8))
    wire.arrive(data)
    assert wire.sent() == data[:4] + data[4:].upper()


def test_connection_without_a_buffer_receives_little_while_buffers_are_short() -> None:
    wire = Wire()
    wire.buffers.is_short = True
    assert len(wire.connection.space()) == LEAST_BUFFER_BYTES
    wire.arrive(frame(b"a small payload"))
    assert wire.sent() == frame(b"A SMALL PAYLOAD")


def test_buffers_of_a_connection_are_counted_until_its_frames_are_handled() -> None:
    wire = Wire(1 << 24)
    wire.arrive(frame(bytes(3 * SHARED_BYTES))[:-1])
    assert wire.buffers._held_bytes == wire.connection.held_bytes >= 3 * SHARED_BYTES
    wire.arrive(b"\0")
    assert wire.buffers._held_bytes == wire.connection.held_bytes == 0


@pytest.mark.parametrize("end", ["complete", "abandon"])
def test_requests_that_wait_are_charged_until_they_end(end: str) -> None:
    wire = Wire()
    wire.arrive(produce(b"commit it" + bytes(989)) + produce(b"commit it" + bytes(1989)) + produce(b"answered at once"))
    assert wire.buffers.owed_bytes == wire.connection.owed_bytes == WAITING_FACTOR * 3000
    if end == "complete":
        wire.dispatcher.complete(1)
        assert wire.buffers.owed_bytes == wire.connection.owed_bytes == WAITING_FACTOR * 1000
        wire.dispatcher.complete(0)
    else:
        wire.connection.abandon()
    assert wire.buffers.owed_bytes == wire.connection.owed_bytes == 0


def test_large_request_that_waits_is_charged_with_its_frame_and_a_bounded_number_of_objects() -> None:
    wire = Wire(1 << 25)
    size = 3 * MOST_OBJECT_BYTES // 2
    wire.arrive(frame(b"wait" + bytes(size - 4)))
    assert wire.buffers.owed_bytes == wire.connection.owed_bytes == size + MOST_OBJECT_BYTES
