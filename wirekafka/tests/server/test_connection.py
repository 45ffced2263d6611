from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.errors import ProtocolError
from wirekafka.pending import Pending
from wirekafka.server import connection as module
from wirekafka.server.connection import (
    FRAMES_PER_TURN,
    LEAST_BUFFER_BYTES,
    SHARED_BYTES,
    Connection,
    ReceiveBuffers,
    RepeatedError,
)
from wirekafka.tests.server.frames import EchoDispatcher, client, frame


class Wire:
    """A connection, and a driver of it that is told what arrives."""

    def __init__(self, max_request_bytes: int = 1 << 20) -> None:
        self.dispatcher = EchoDispatcher(max_request_bytes)
        self.buffers = ReceiveBuffers()
        self.answered = 0
        self.connection = Connection(client(), self.dispatcher, self.buffers, self._on_answer)  # type: ignore[arg-type]

    def _on_answer(self, connection: Connection) -> None:
        self.answered += 1

    def arrive(self, data: bytes) -> None:
        """Hands over all of the data, as much at a time as there is space for."""
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
        (-1, "too short"),
        (-(2**31), "too short"),
        (0, "too short"),
        (9, "too short"),
        ((1 << 20) + 1, "larger than socket.request.max.bytes=1048576"),
        (2**31 - 1, "larger than socket.request.max.bytes=1048576"),
        (0x47455420, "the client speaks HTTP"),
        (0x50524920, "the client speaks HTTP"),
        (0x16030100, "the client speaks TLS, and this listener is PLAINTEXT"),
    ],
)
def test_frame_of_impossible_size_ends_the_connection_with_one_line(size: int, reason: str) -> None:
    wire = Wire()
    with structlog.testing.capture_logs() as lines:
        wire.arrive(frame(b"a good request") + struct.pack(">i", size) + b"whatever")
    assert wire.connection.is_closing
    assert wire.sent() == frame(b"A GOOD REQUEST")
    assert len(lines) == 1
    assert lines[0]["client"] == "192.0.2.7:40000"
    assert reason in lines[0]["reason"]
    assert wire.connection.held_bytes == 0


@pytest.mark.parametrize(("error", "level"), [(ProtocolError, "warning"), (RepeatedError, "debug")])
def test_greeting_of_another_protocol_is_told_as_the_dispatcher_says(
    monkeypatch: pytest.MonkeyPatch, error: type[ProtocolError], level: str
) -> None:
    wire = Wire()
    monkeypatch.setattr(wire.dispatcher, "refusal", lambda client, reason: error(reason))
    with structlog.testing.capture_logs() as lines:
        wire.arrive(b"GET / HTTP/1.1")
    assert [line["log_level"] for line in lines] == [level]


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
    assert wire.answered == 1
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
    assert wire.answered == 0


def test_pending_reply_that_cannot_be_encoded_ends_the_connection() -> None:
    wire = Wire()
    wire.arrive(frame(b"wait for it"))
    with structlog.testing.capture_logs() as lines:
        wire.dispatcher.pendings[0].complete(ProtocolError("no place for it"))
    assert [line["reason"] for line in lines] == ["no place for it"]
    assert wire.connection.is_closing
    assert wire.answered == 1


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
