"""Connections to other brokers, by the epoll of the driver, with sockets of loopback and a broker that a test plays."""

from __future__ import annotations

import gc
import itertools
import resource
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.server import peers
from wirekafka.server.drivers import EpollDriver
from wirekafka.server.peers import BUFFER_BYTES, KEPT_BYTES, MOST_REQUESTS, Frames, PeerConnection, PeerSettings
from wirekafka.slices import Slices
from wirekafka.tests.api.longest_step import LIMIT_MS, measuring
from wirekafka.tests.server.frames import EchoDispatcher
from wirekafka.wire.codec import MOST_ELEMENTS_OF_A_BROKER, encode
from wirekafka.wire.messages.alter_partition import (
    ALTER_PARTITION,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopicResponse,
)
from wirekafka.wire.messages.fetch import FETCH, FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from wirekafka.wire.messages.offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest
from wirekafka.wire.messages.update_metadata import (
    UPDATE_METADATA,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

VERSION = 11
TIMEOUT_MS, BACK_OFF_MS = 5_000, 50
Act = Callable[["Bench"], Awaitable[None]]


class Bench:
    """A connection with its driver, and the broker at its other end.

    Attributes:
        ended: what the callbacks of the requests got, in their order.
    """

    def __init__(
        self, listener: trio.SocketListener, connection: PeerConnection, clock: trio.testing.MockClock, slices: Slices
    ) -> None:
        self.slices = slices
        self.listener = listener
        self.connection = connection
        self.clock = clock
        self.ended: list[FetchResponse | None] = []
        self._streams: list[trio.SocketStream] = []

    def send(self, **fields: Any) -> None:
        self.connection.send(FETCH, FetchRequest(**fields), VERSION, self.ended.append)

    async def accept(self) -> trio.SocketStream:
        stream = await self.listener.accept()
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        self.connection.close()
        for stream in self._streams:
            await stream.aclose()

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(100_000):
            if condition():
                return
            await trio.lowlevel.checkpoint()
        raise AssertionError("it does not happen")

    async def until_ended(self, count: int) -> None:
        await self.until(lambda: len(self.ended) >= count)

    async def pass_time(self, milliseconds: int) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self.clock.jump(milliseconds / 1000)
        await trio.testing.wait_all_tasks_blocked()


def run(
    act: Act, *, host: str = "127.0.0.1", has_short_slices: bool = False, has_real_time: bool = False, **options: Any
) -> None:
    mock_clock = trio.testing.MockClock()

    async def main() -> None:
        settings = PeerSettings(client_id="broker-3-fetcher-0", timeout_ms=TIMEOUT_MS, back_off_ms=BACK_OFF_MS, **options)
        driver = EpollDriver(EchoDispatcher(), max_idle_ms=None, on_close=lambda client: None)
        clock = Clock()
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(driver.run)
            nursery.start_soon(clock.run)
            port = listener.socket.getsockname()[1]
            slices = Slices(clock, itertools.count().__next__) if has_short_slices else Slices(clock)
            connection = PeerConnection(lambda: (host, port), settings, driver, clock, slices, nursery)
            bench = Bench(listener, connection, mock_clock, slices)
            await act(bench)
            await bench.close()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=None if has_real_time else mock_clock)


async def receive_exactly(stream: trio.SocketStream, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = await stream.receive_some(size - len(received))
        assert more, "the connection has ended"
        received += more
    return received


async def receive_request(stream: trio.SocketStream) -> int:
    """Receives one request, and returns its correlation id."""
    size = int.from_bytes(await receive_exactly(stream, 4), "big")
    correlation_id: int = struct.unpack_from(">hhi", await receive_exactly(stream, size))[2]
    return correlation_id


def response(correlation_id: int, records: bytes = b"", session_id: int = 0) -> bytes:
    topics = [FetchableTopicResponse(topic="a", partitions=[PartitionData(records=records)])] if records else []
    body = encode(FetchResponse(session_id=session_id, responses=topics), VERSION, False)
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def records_of(answer: FetchResponse | None) -> bytes:
    assert answer is not None
    return bytes(answer.responses[0].partitions[0].records)


def test_requests_are_answered_in_their_order() -> None:
    async def act(bench: Bench) -> None:
        for number in range(3):
            bench.send(max_wait_ms=number)
        stream = await bench.accept()
        ids = [await receive_request(stream) for _ in range(3)]
        await stream.send_all(b"".join(response(each, session_id=10 + each) for each in ids))
        await bench.until_ended(3)
        assert [answer and answer.session_id for answer in bench.ended] == [10, 11, 12]
        bench.send()
        await stream.send_all(response(await receive_request(stream), session_id=20))
        await bench.until_ended(4)
        assert bench.ended[3] is not None and bench.ended[3].session_id == 20

    run(act)


def test_host_name_is_resolved() -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await stream.send_all(response(await receive_request(stream)))
        await bench.until_ended(1)
        assert bench.ended[0] is not None

    run(act, host="localhost")


def test_answer_byte_by_byte_is_taken() -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        bench.send()
        stream = await bench.accept()
        ids = [await receive_request(stream) for _ in range(2)]
        for byte in response(ids[0], b"first") + response(ids[1], b"second"):
            await stream.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        assert [records_of(answer) for answer in bench.ended] == [b"first", b"second"]

    run(act)


@pytest.mark.parametrize("size", [BUFFER_BYTES, KEPT_BYTES], ids=["more than the buffer", "mapped"])
def test_records_of_an_answer_stay_as_they_are_when_others_come(size: int) -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        bench.send()
        stream = await bench.accept()
        ids = [await receive_request(stream) for _ in range(2)]
        await stream.send_all(response(ids[0], b"x" * size) + response(ids[1], b"y" * size))
        await bench.until_ended(2)
        assert [records_of(answer) for answer in bench.ended] == [b"x" * size, b"y" * size]

    run(act)


def take_frame(frames: Frames, body: bytes) -> memoryview:
    """Passes a whole frame to `Frames` in the pieces that it has space for; returns the frame."""
    left, found = memoryview(len(body).to_bytes(4, "big") + body), list[memoryview]()
    while left:
        space = frames.space()
        size = min(len(space), len(left))
        space[:size] = left[:size]
        found += frames.take(size)
        left = left[size:]
    (frame,) = found
    return frame


def test_memory_of_a_frame_is_used_again_when_no_view_of_it_exists() -> None:
    frames = Frames(KEPT_BYTES)
    first = take_frame(frames, b"x" * 3 * BUFFER_BYTES)
    memory = first.obj
    first.release()
    second = take_frame(frames, b"y" * 2 * BUFFER_BYTES)
    assert second.obj is memory
    assert bytes(second) == b"y" * 2 * BUFFER_BYTES


def test_memory_of_a_frame_is_not_used_again_while_a_view_of_a_part_exists() -> None:
    frames = Frames(KEPT_BYTES)
    first = take_frame(frames, b"x" * 3 * BUFFER_BYTES)
    part = first[10:20]
    first.release()
    take_frame(frames, b"y" * 3 * BUFFER_BYTES)
    assert bytes(part) == b"x" * 10


def test_requests_wait_while_the_socket_accepts_no_more() -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await receive_request(stream)
        count = MOST_REQUESTS - 1
        for _ in range(count):
            bench.send(rack_id="r" * 30_000)
        await trio.testing.wait_all_tasks_blocked()
        assert bench.connection._output, "the test sends more than the socket takes"
        ids = [await receive_request(stream) for _ in range(count)]
        assert ids == list(range(1, count + 1))
        await stream.send_all(b"".join(map(response, range(count + 1))))
        await bench.until_ended(count + 1)
        assert None not in bench.ended

    run(act)


def test_more_requests_than_may_wait_end_without_an_answer() -> None:
    async def act(bench: Bench) -> None:
        for _ in range(MOST_REQUESTS + 1):
            bench.send()
        assert bench.ended == [], "no callback runs inside send"
        await bench.until_ended(1)
        assert bench.ended == [None]

    run(act)


def test_broker_that_closes_the_connection_ends_the_requests_and_the_next_one_connects_again() -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await receive_request(stream)
        await stream.aclose()
        await bench.until_ended(1)
        assert bench.ended == [None]
        bench.send()
        await bench.pass_time(BACK_OFF_MS)
        stream = await bench.accept()
        await stream.send_all(response(await receive_request(stream)))
        await bench.until_ended(2)
        assert bench.ended[1] is not None

    run(act)


def test_back_off_doubles_until_an_answer_comes() -> None:
    async def act(bench: Bench) -> None:
        pauses = []
        for number in range(3):
            bench.send()
            (await bench.accept()).socket.close()
            await bench.until_ended(number + 1)
            pauses.append(bench.connection._retry_at_ms - bench.connection._clock.monotonic_ms())
            await bench.pass_time(pauses[-1])
        assert pauses == [BACK_OFF_MS, 2 * BACK_OFF_MS, 4 * BACK_OFF_MS]
        bench.send()
        stream = await bench.accept()
        await stream.send_all(response(await receive_request(stream)))
        await bench.until_ended(4)
        await stream.aclose()
        await bench.until(lambda: not bench.connection.is_connected)
        assert bench.connection._retry_at_ms - bench.connection._clock.monotonic_ms() == BACK_OFF_MS

    run(act)


def test_broker_that_does_not_listen_ends_the_requests() -> None:
    async def act(bench: Bench) -> None:
        await bench.listener.aclose()
        bench.send()
        bench.send()
        await bench.until_ended(2)
        assert bench.ended == [None, None]

    run(act)


def test_address_that_is_unknown_ends_the_requests() -> None:
    async def act(bench: Bench) -> None:
        bench.connection._address = lambda: None
        bench.send()
        await bench.until_ended(1)
        assert bench.ended == [None]

    run(act)


def test_broker_that_does_not_answer_in_time_ends_the_connection() -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await receive_request(stream)
        await bench.pass_time(TIMEOUT_MS // 2)
        bench.send()
        await receive_request(stream)
        await stream.send_all(response(0))
        await bench.until_ended(1)
        await bench.pass_time(TIMEOUT_MS - TIMEOUT_MS // 2)
        assert len(bench.ended) == 1, "the second request has some time left"
        await bench.pass_time(TIMEOUT_MS // 2)
        assert bench.ended[1:] == [None]
        assert not await stream.receive_some()

    run(act)


HOSTILE = {
    "another correlation id": response(1),
    "an answer too many": response(0) + response(1),
    "not a response": struct.pack(">ii", 8, 0) + b"rubb",
    "bytes after the response": struct.pack(">ii", 4 + 21, 0) + bytes(21),
    "too short": struct.pack(">ih", 2, 0),
    "a size below 0": struct.pack(">ii", -1, 0),
    "too large": struct.pack(">ii", 1_001, 0),
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an array that cannot be there": struct.pack(">iiihii", 18, 0, 0, 0, 0, 0x7FFFFFFF),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=list(HOSTILE))
def test_answer_that_is_none_ends_the_connection_and_nothing_else(answer: bytes, logged_faults: list[str]) -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await receive_request(stream)
        await stream.send_all(answer)
        await bench.until(lambda: not bench.connection.is_connected)
        assert len(bench.ended) == 1
        bench.send()
        await bench.pass_time(BACK_OFF_MS)
        stream = await bench.accept()
        await stream.send_all(response(await receive_request(stream), session_id=3))
        await bench.until_ended(2)
        assert bench.ended[1] is not None

    run(act, most_response_bytes=1_000)
    assert logged_faults == []


def test_callback_that_fails_does_not_end_the_connection(logged_faults: list[str]) -> None:
    def fail(answer: object) -> None:
        raise RuntimeError("a defect")

    async def act(bench: Bench) -> None:
        bench.connection.send(OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest(), 3, fail)
        bench.send()
        stream = await bench.accept()
        await receive_request(stream)
        await receive_request(stream)
        await stream.send_all(struct.pack(">iiii", 12, 0, 0, 0) + response(1))
        await bench.until_ended(1)
        assert bench.ended[0] is not None

    run(act)
    assert len(logged_faults) == 1
    logged_faults.clear()


def test_connection_that_is_closed_calls_nobody_back() -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        bench.connection.close()
        await bench.pass_time(2 * TIMEOUT_MS)
        assert bench.ended == []

    run(act)


@pytest.mark.parametrize("has_short_slices", [False, True])
def test_callback_may_close_the_connection(has_short_slices: bool, logged_faults: list[str]) -> None:
    async def act(bench: Bench) -> None:
        bench.connection.send(FETCH, FetchRequest(), VERSION, lambda answer: bench.connection.close())
        bench.send()
        stream = await bench.accept()
        await stream.send_all(response(0) + response(1))
        await bench.until(lambda: bench.connection._is_closed)
        await trio.testing.wait_all_tasks_blocked()
        assert bench.ended == []

    run(act, has_short_slices=has_short_slices)
    assert logged_faults == []


def test_long_answer_takes_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "READ_BYTES", BUFFER_BYTES)
    records = bytes(range(256)) * 4_096

    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await stream.send_all(response(await receive_request(stream), records))
        await bench.until_ended(1)
        assert records_of(bench.ended[0]) == records

    run(act)


def fetch_answer(partition_count: int) -> FetchResponse:
    partitions = [PartitionData(partition_index=index, records=b"batch") for index in range(partition_count)]
    return FetchResponse(responses=[FetchableTopicResponse(topic="a", partitions=partitions)])


def alter_partition_answer(partition_count: int) -> AlterPartitionResponse:
    partitions = [AlterPartitionPartitionResponse(partition_index=index, isr=[1, 2, 3]) for index in range(partition_count)]
    return AlterPartitionResponse(topics=[AlterPartitionTopicResponse(topic_name="a", partitions=partitions)])


def framed(answer: Message, version: int, correlation_id: int = 0) -> bytes:
    body = encode(answer, version, False)
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


@pytest.mark.parametrize(
    ("kind", "version", "request_", "answer"),
    [
        (FETCH, VERSION, FetchRequest(), fetch_answer(100_000)),
        (ALTER_PARTITION, 0, AlterPartitionRequest(), alter_partition_answer(50_000)),
    ],
    ids=["Fetch", "AlterPartition"],
)
def test_answer_of_many_elements_does_not_hold_the_loop(
    kind: RequestType[Any, Any], version: int, request_: Message, answer: Message
) -> None:
    kind = RequestType(kind.key, kind.request, kind.response, kind.versions, None)
    frame = framed(answer, version)
    answers: list[Any] = []

    async def act(bench: Bench) -> None:
        bench.connection.send(kind, request_, version, answers.append)
        stream = await bench.accept()
        await receive_request(stream)
        with measuring() as steps:
            gc.disable()  # the time of a collection depends on the objects of all tests
            await stream.send_all(frame)
            await bench.until(lambda: answers)
            gc.enable()
        assert answers == [answer]
        assert steps.longest_ms < LIMIT_MS

    run(act, has_real_time=True)


def update_metadata(partition_count: int) -> UpdateMetadataRequest:
    states = [UpdateMetadataPartitionState(partition_index=index, isr=[1, 2, 3]) for index in range(partition_count)]
    return UpdateMetadataRequest(topic_states=[UpdateMetadataTopicState(topic_name="a", partition_states=states)])


async def receive_frame(stream: trio.SocketStream) -> bytes:
    """Receives one request, with its size."""
    size = await receive_exactly(stream, 4)
    return size + await receive_exactly(stream, int.from_bytes(size, "big"))


def test_request_of_many_elements_does_not_hold_the_loop() -> None:
    request, answers = update_metadata(50_000), list[Any]()
    frame = UPDATE_METADATA.frame(request, 5, correlation_id=0, client_id="broker-3-fetcher-0")

    async def act(bench: Bench) -> None:
        with measuring() as steps:
            gc.disable()  # the time of a collection depends on the objects of all tests
            bench.connection.send(UPDATE_METADATA, request, 5, answers.append)
            stream = await bench.accept()
            assert await receive_frame(stream) == frame
            gc.enable()
        assert steps.longest_ms < LIMIT_MS

    run(act, has_real_time=True)


def test_requests_keep_their_order_while_a_long_one_is_written() -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        bench.connection.send(UPDATE_METADATA, update_metadata(3_000), 5, lambda answer: None)
        bench.send()
        stream = await bench.accept()
        assert [await receive_request(stream) for _ in range(3)] == [0, 1, 2]
        bench.send()
        assert await receive_request(stream) == 3

    run(act, has_short_slices=True, has_real_time=True)


def test_connection_that_is_lost_while_a_request_is_written_ends_it() -> None:
    ended: list[Any] = []

    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await receive_request(stream)
        bench.connection.send(UPDATE_METADATA, update_metadata(3_000), 5, ended.append)
        await stream.aclose()
        await bench.until_ended(1)
        assert ended == [None]
        bench.send()
        assert await receive_request(await bench.accept()) == 2

    run(act, has_short_slices=True, has_real_time=True)


def test_long_request_that_cannot_be_written_ends_the_connection(logged_faults: list[str]) -> None:
    request, ended = update_metadata(3_000), list[Any]()
    request.topic_states[0].partition_states[-1].leader = 1 << 40

    async def act(bench: Bench) -> None:
        bench.connection.send(UPDATE_METADATA, request, 5, ended.append)
        await bench.until(lambda: ended)
        assert ended == [None]
        assert "could not be written" in logged_faults.pop()

    run(act, has_short_slices=True, has_real_time=True)


def test_answers_keep_their_order_while_a_long_one_is_read() -> None:
    async def act(bench: Bench) -> None:
        for _ in range(3):
            bench.send()
        stream = await bench.accept()
        for _ in range(3):
            await receive_request(stream)
        long = framed(fetch_answer(1_000), VERSION, 1)
        await stream.send_all(response(0, session_id=10) + long + response(2, session_id=12))
        await bench.until_ended(3)
        first, second, third = bench.ended
        assert first is not None and third is not None
        assert (first.session_id, second, third.session_id) == (10, fetch_answer(1_000), 12)
        bench.send()
        await stream.send_all(response(await receive_request(stream)))
        await bench.until_ended(4)
        assert bench.ended[3] is not None

    run(act, has_short_slices=True, has_real_time=True)


def test_requests_are_not_overdue_while_an_answer_is_read() -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await receive_request(stream)
        await stream.send_all(framed(fetch_answer(1_000), VERSION))
        await bench.until(lambda: bench.connection._is_answering)
        bench.connection._requests[0].due_ms = 0
        bench.connection._check_time()
        await bench.until_ended(1)
        assert bench.ended == [fetch_answer(1_000)]

    run(act, has_short_slices=True, has_real_time=True)


def test_connection_that_is_closed_while_an_answer_is_read_calls_nobody_back(logged_faults: list[str]) -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await receive_request(stream)
        await stream.send_all(framed(fetch_answer(1_000), VERSION))
        await bench.until(lambda: bench.connection._is_answering)
        bench.connection.close()
        await bench.until(lambda: not bench.slices._waiting)
        assert bench.ended == []

    run(act, has_short_slices=True, has_real_time=True)
    assert logged_faults == []


@pytest.mark.parametrize("count", [1_000, MOST_ELEMENTS_OF_A_BROKER], ids=["it does not end", "too many elements"])
def test_long_answer_that_is_none_ends_the_connection_and_nothing_else(count: int, logged_faults: list[str]) -> None:
    frame = framed(fetch_answer(count), VERSION)
    broken = struct.pack(">i", len(frame) - 5) + frame[4:-1] if count == 1_000 else frame

    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await receive_request(stream)
        await stream.send_all(broken)
        await bench.until_ended(1)
        assert bench.ended == [None]
        bench.send()
        await bench.pass_time(BACK_OFF_MS)
        stream = await bench.accept()
        await stream.send_all(response(await receive_request(stream)))
        await bench.until_ended(2)
        assert bench.ended[1] is not None

    run(act, has_short_slices=count == 1_000)
    assert logged_faults == []


def test_answer_takes_memory_as_it_arrives_and_not_as_it_is_announced() -> None:
    async def act(bench: Bench) -> None:
        bench.send()
        stream = await bench.accept()
        await receive_request(stream)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await stream.send_all(struct.pack(">ii", 0x7FFFFFFF, 0) + bytes(BUFFER_BYTES))
        await trio.testing.wait_all_tasks_blocked()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 64_000
        assert bench.connection.is_connected

    run(act, most_response_bytes=0x7FFFFFFF)
