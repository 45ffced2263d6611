"""Outbound connections to other brokers, served by the same epoll as the connections of clients.

How it works: a `PeerConnection` is one connection to one broker for one purpose, for example for one fetcher. It connects in a
task of trio when a request is sent. The connected socket is in the epoll of the `EpollDriver`, and needs no task. A request is
sent at once, and the answers come in the order of the requests. A failure ends all requests without an answer, and the next
request connects again, after a back-off.

Rules of this file:
    Every request ends once: with its response, or with None. Its callback never runs inside `send`.
    A peer is not trusted: an answer that is too large, that no request has asked for, or that is no response ends the connection,
    and nothing else.
    Memory: the frame of a response of up to `KEPT_BYTES` takes its memory once its size has arrived. A larger frame takes memory
    for the bytes that have arrived. A connection keeps `KEPT_BYTES` at most while it is idle. At most `MOST_REQUESTS` requests
    wait or are in flight.
    A turn of the driver reads at most `READ_BYTES` of one connection. The epoll reports the socket again (it is level-triggered).
    A large request is encoded in slices. The requests after it wait.
    Answers are decoded and handled in slices. While further slices are due, the socket is not watched, so at most `READ_BYTES`
    and one frame wait, and no request is overdue.
    The receiver may keep views of a frame. The memory of a frame is used again only when no view of it exists.

Differs from Apache Kafka: a failed attempt to connect ends the requests that wait for it. The threads of Apache Kafka wait until
the time-out.

Source: kafka.server.BrokerBlockingSender, org.apache.kafka.clients.NetworkClient.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog
import trio

from wirekafka.clock import Clock, Timer
from wirekafka.errors import ProtocolError
from wirekafka.faults import isolate, log_once
from wirekafka.pending import Pending, Work
from wirekafka.slices import Slices
from wirekafka.wire.codec import LargeMessageError
from wirekafka.wire.requests import RequestType, read_correlation_id
from wirekafka.wire.types import Message

log = structlog.get_logger(__name__)

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

MOST_REQUESTS = 100
"""The requests of one connection that wait or are in flight. One more ends without an answer."""

READ_BYTES = 1 << 20
MAPPED_BYTES = 1 << 20
"""A larger frame is received into a mapping, in which the kernel gives memory to the pages that are written."""

KEPT_BYTES = 1 << 23
"""Each connection keeps the memory of a frame of up to this size for its next frames. New memory costs a page fault for each 4
KiB: to receive a frame of 3 MB takes 480 us of CPU instead of 2,030, and one of 200 kB takes 29 us instead of 46 (2026-11)."""

BUFFER_BYTES = 1 << 16
"""Small frames, and the beginning of large ones, are received into a buffer of this size and copied."""

SMALL_FRAME_BYTES = 2_000
"""The elements of a frame up to this size are decoded at once, in 1 ms at most."""

LEAST_FRAME_BYTES = 4
SIZE_BYTES = 4
MOST_CORRELATION_ID = 0x7FFFFFFF

Address = Callable[[], "tuple[str, int] | None"]
"""Returns the host and the port of a broker, which may change; None while it is unknown."""


class Watcher(Protocol):
    """Serves descriptors beside its own connections, as `EpollDriver` does."""

    def watch(self, fd: int, events: int, on_event: Callable[[int], object]) -> None:
        """Calls back with the epoll's events of a descriptor from now on."""

    def change(self, fd: int, events: int) -> None:
        """Changes the events of a watched descriptor."""

    def unwatch(self, fd: int) -> None:
        """Ends the calls for a descriptor, which is still open."""


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How a broker talks to others.

    Attributes:
        client_id: the client id of the requests; Kafka's is `broker-<id>-fetcher-<number>` for a fetcher.
        timeout_ms: how long a request and a connection attempt may take; `replica.socket.timeout.ms` for a fetcher.
        back_off_ms, most_back_off_ms: the pause after a failed connection; it doubles with each failure in a row.
        most_response_bytes: the largest response. A fetcher must allow for one batch that is larger than its
            `replica.fetch.response.max.bytes`, up to the `socket.request.max.bytes` of the broker that took it.
    """

    client_id: str
    timeout_ms: int = 30_000
    back_off_ms: int = 50
    most_back_off_ms: int = 1_000
    most_response_bytes: int = (10 << 20) + (100 << 20)


@dataclass(slots=True)
class _Request:
    """A request without an answer.

    Attributes:
        on_end: called with the response, or with None.
        due_ms: when the request fails.
    """

    kind: RequestType[Any, Any]
    version: int
    correlation_id: int
    on_end: Callable[[Any], object]
    due_ms: int


@dataclass(frozen=True, slots=True)
class _Unwritten:
    """A request that is not encoded yet."""

    kind: RequestType[Any, Any]
    request: Message
    version: int
    correlation_id: int


class PeerConnection:
    """One connection to another broker, for one purpose. It is a `replication.replica_fetcher.Channel`.

    Args:
        address: where the broker is, asked for at each attempt.
        slices: encodes large requests, and decodes and handles the answers.
        nursery: runs the attempts to connect.
    """

    def __init__(
        self, address: Address, settings: PeerSettings, driver: Watcher, clock: Clock, slices: Slices, nursery: trio.Nursery
    ) -> None:
        self._address = address
        self._settings = settings
        self._driver = driver
        self._clock = clock
        self._slices = slices
        self._nursery = nursery
        self._requests: deque[_Request] = deque()
        """Oldest first, which is the order of the answers."""
        self._output: deque[bytes | memoryview] = deque()
        self._unwritten: deque[_Unwritten] = deque()
        """A large request that is being encoded, and those after it. Each connection has its own."""
        self._socket: socket.socket | None = None
        self._attempt: trio.CancelScope | None = None
        self._frames = Frames(settings.most_response_bytes)
        self._answers: deque[memoryview] = deque()
        """The complete frames that are not handled. Each connected socket has its own."""
        self._is_answering = False
        """Whether answers are handled in slices to come; then the socket is not watched."""
        self._is_blocked = False
        self._last_correlation_id = -1
        self._failure_count = 0
        self._retry_at_ms = 0
        self._timer: Timer | None = None
        self._retry_timer: Timer | None = None
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """Whether requests are sent at once."""
        return self._socket is not None

    def send(self, kind: RequestType[Q, A], request: Q, version: int, on_end: Callable[[A | None], object]) -> None:
        """Sends a request, or lets it wait for the connection.

        Args:
            on_end: called once, later: with the response, or with None after a failure. It is not called after `close`.
        """
        assert not self._is_closed, "the connection is closed"
        if len(self._requests) >= MOST_REQUESTS:
            self._clock.call_later(0, partial(self._end, on_end, None))
            return
        correlation_id = self._last_correlation_id = (self._last_correlation_id + 1) & MOST_CORRELATION_ID
        due_ms = self._clock.monotonic_ms() + self._settings.timeout_ms
        self._write(_Unwritten(kind, request, version, correlation_id))
        self._requests.append(_Request(kind, version, correlation_id, on_end, due_ms))
        if self._timer is None:
            self._timer = self._clock.call_later(self._settings.timeout_ms, self._check_time)
        if self._socket is None:
            self._connect_when_due()
        elif not self._is_blocked:
            self._send_now()

    def _write(self, unwritten: _Unwritten) -> None:
        """Encodes a request, in slices if it is large or waits for a large one."""
        if self._unwritten:
            self._unwritten.append(unwritten)
            return
        try:
            frame = unwritten.kind.frame_of_few(
                unwritten.request,
                unwritten.version,
                correlation_id=unwritten.correlation_id,
                client_id=self._settings.client_id,
            )
        except LargeMessageError:
            self._write_large(unwritten)
        else:
            self._output.append(frame)

    def _write_large(self, unwritten: _Unwritten) -> None:
        queue = self._unwritten = deque([unwritten])
        try:
            writing = self._slices.run(self._write_in_steps(queue))
        except Exception:
            queue.clear()
            raise
        if isinstance(writing, Pending):
            writing.then(partial(self._note_written, queue))

    def _write_in_steps(self, queue: deque[_Unwritten]) -> Work[None]:
        while self._unwritten is queue and queue:
            first = queue[0]
            frame = yield from first.kind.frame_in_steps(
                first.request, first.version, correlation_id=first.correlation_id, client_id=self._settings.client_id
            )
            if self._unwritten is queue:
                queue.popleft()
                self._output.append(frame)
                if self._socket is not None and not self._is_blocked:
                    self._send_now()

    def _note_written(self, queue: deque[_Unwritten], result: object) -> None:
        """Ends the connection if a request could not be encoded."""
        if isinstance(result, Exception) and self._unwritten is queue:
            log_once(result, "A request to another broker could not be written", connection=self._settings.client_id)
            self._fail(str(result))

    def close(self) -> None:
        """Ends the connection; the requests end without a call of their callbacks."""
        self._is_closed = True
        self._requests.clear()
        self._disconnect()
        for timer in (self._timer, self._retry_timer):
            if timer is not None:
                timer.cancel()

    def _connect_when_due(self) -> None:
        if self._attempt is not None or self._retry_timer is not None or not self._requests:
            return
        delay_ms = self._retry_at_ms - self._clock.monotonic_ms()
        if delay_ms > 0:
            self._retry_timer = self._clock.call_later(delay_ms, self._retry)
            return
        self._attempt = trio.CancelScope()
        self._nursery.start_soon(self._connect, self._attempt)

    def _retry(self) -> None:
        self._retry_timer = None
        self._connect_when_due()

    async def _connect(self, attempt: trio.CancelScope) -> None:
        """Connects, by all addresses of the host.

        Cancellation: nothing is left. `close` and the time-out of a request cancel the attempt.
        """
        address = self._address()
        failure, fd = "the address of the broker is unknown", None
        with attempt:
            if address is not None:
                try:
                    stream = await trio.open_tcp_stream(*address)
                    fd = stream.socket.detach()
                except (OSError, UnicodeError, OverflowError) as error:  # the last two: no host or port at all
                    failure = str(error)
        if self._attempt is not attempt:
            if fd is not None:
                os.close(fd)
            return
        self._attempt = None
        if fd is None:
            self._fail(failure)
        else:
            self._begin(socket.socket(fileno=fd))

    def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._driver.watch(sock.fileno(), self._events(), self._on_event)
        self._send_now()

    def _events(self) -> int:
        return select.EPOLLIN | (select.EPOLLOUT if self._is_blocked else 0)

    def _send_now(self) -> None:
        """Sends until everything is sent or the socket accepts no more.

        A failure is left to the next event of the socket, because the callbacks of the requests must not run inside `send`.
        """
        sock, output = self._socket, self._output
        assert sock is not None
        try:
            while output:
                data = output.popleft()
                sent = sock.send(data)
                if sent < len(data):
                    output.appendleft(memoryview(data)[sent:])
        except BlockingIOError:
            output.appendleft(data)
        except OSError:
            output.clear()
        self._set_blocked(bool(output))

    def _set_blocked(self, is_blocked: bool) -> None:
        if is_blocked != self._is_blocked and self._socket is not None:
            self._is_blocked = is_blocked
            if not self._is_answering:
                self._driver.change(self._socket.fileno(), self._events())

    def _on_event(self, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT and self._output:
                self._send_now()
            if mask & ~select.EPOLLOUT:
                self._receive()
        except (OSError, ProtocolError) as error:
            if self._socket is not None:  # otherwise a callback has closed the connection
                self._fail(str(error))

    def _receive(self) -> None:
        """Receives what one turn may, and takes the complete answers.

        Raises:
            OSError: the connection is lost.
            ProtocolError: the bytes are not the answers to the requests.
        """
        try:
            self._receive_frames()
        finally:
            self._answer()

    def _receive_frames(self) -> None:
        sock, left_bytes = self._socket, READ_BYTES
        assert sock is not None
        while left_bytes > 0:
            space = self._frames.space()
            try:
                received = sock.recv_into(space)
            except BlockingIOError:
                return
            if not received:
                raise ConnectionResetError("the broker has closed the connection")
            for frame in self._frames.take(received):
                self._answers.append(frame)
            left_bytes -= received
            if received < len(space):
                return

    def _answer(self) -> None:
        """Handles the answers, as far as one slice goes, and lets the socket rest if they are more.

        Raises:
            ProtocolError: a frame is not the answer to its request.
        """
        if not self._answers:
            return
        answers = self._answers
        answering = self._slices.run(self._answer_in_steps(answers))
        if isinstance(answering, Pending) and self._answers is answers and self._socket is not None:
            self._is_answering = True
            self._driver.unwatch(self._socket.fileno())
            answering.then(partial(self._go_on, answers))

    def _answer_in_steps(self, answers: deque[memoryview]) -> Work[None]:
        while self._answers is answers and answers:
            frame = answers.popleft()
            if not self._requests:
                raise ProtocolError("an answer without a request")
            request, correlation_id = self._requests[0], read_correlation_id(frame)
            if correlation_id != request.correlation_id:
                raise ProtocolError(f"the answer to request {correlation_id} instead of {request.correlation_id}")
            if len(frame) <= SMALL_FRAME_BYTES:
                response = request.kind.read_response(frame, request.version)
            else:
                response = yield from request.kind.read_response_in_steps(frame, request.version)
            if self._answers is answers:
                self._requests.popleft()
                self._failure_count = 0
                self._end(request.on_end, response)
                yield

    def _go_on(self, answers: deque[memoryview], result: object) -> None:
        """Watches the socket again, after the last slice, unless the connection has ended."""
        if self._answers is not answers or self._socket is None:
            return
        self._is_answering = False
        self._driver.watch(self._socket.fileno(), self._events(), self._on_event)
        if isinstance(result, Exception):
            if not isinstance(result, ProtocolError):
                log_once(result, "The answer of another broker could not be read", connection=self._settings.client_id)
            self._fail(str(result))
        elif self._timer is None:
            self._check_time()

    def _end(self, on_end: Callable[[Any], object], response: Message | None) -> None:
        if not self._is_closed:
            with isolate("The answer of another broker could not be handled", connection=self._settings.client_id):
                on_end(response)

    def _check_time(self) -> None:
        """Ends the connection if the oldest request is due; otherwise waits for the oldest one.

        While answers are handled, nothing is due, because the answer may have arrived.
        """
        self._timer = None
        if not self._requests or self._is_answering:
            return
        left_ms = self._requests[0].due_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            self._fail(f"no answer in {self._settings.timeout_ms} ms")
        else:
            self._timer = self._clock.call_later(left_ms, self._check_time)

    def _fail(self, reason: str) -> None:
        """Ends the connection and all requests; the next request connects again after a back-off."""
        address = self._address()
        log.info(
            "Connection to a broker lost; the next request connects again",
            broker=None if address is None else f"{address[0]}:{address[1]}",
            connection=self._settings.client_id,
            reason=reason,
        )
        self._disconnect()
        back_off_ms = min(self._settings.back_off_ms << min(self._failure_count, 10), self._settings.most_back_off_ms)
        self._failure_count += 1
        self._retry_at_ms = self._clock.monotonic_ms() + back_off_ms
        ended, self._requests = self._requests, deque()
        for request in ended:
            self._end(request.on_end, None)

    def _disconnect(self) -> None:
        attempt, self._attempt = self._attempt, None
        sock, self._socket = self._socket, None
        self._output.clear()
        self._unwritten = deque()
        self._frames = Frames(self._settings.most_response_bytes)
        self._answers = deque()
        is_watched, self._is_answering = not self._is_answering, False
        self._is_blocked = False
        if attempt is not None:
            attempt.cancel()
        if sock is not None:
            if is_watched:
                self._driver.unwatch(sock.fileno())
            sock.close()


class PeerConnections:
    """Opens connections to other brokers for the parts of one broker.

    Args:
        slices: encodes large requests, and decodes and handles the answers.
        nursery: runs the attempts to connect.
    """

    def __init__(self, driver: Watcher, clock: Clock, slices: Slices, nursery: trio.Nursery) -> None:
        self._driver = driver
        self._clock = clock
        self._slices = slices
        self._nursery = nursery

    def open(self, address: Address, client_id: str, timeout_ms: int, most_response_bytes: int) -> PeerConnection:
        """Returns a connection, which connects when a request is sent.

        Args:
            address: where the broker is, asked for at each attempt.
            timeout_ms: how long a request and a connection attempt may take.
            most_response_bytes: the largest response.
        """
        settings = PeerSettings(client_id=client_id, timeout_ms=timeout_ms, most_response_bytes=most_response_bytes)
        return PeerConnection(address, settings, self._driver, self._clock, self._slices, self._nursery)


class Frames:
    """Cuts what one socket has received into frames, none of which shares memory with another one that is in use.

    How it works: bytes are received into a small buffer. A frame that is not complete there gets its own memory, into which the
    rest of it is received. A frame of up to `KEPT_BYTES` takes its memory when its size is known, a larger one as it arrives.
    """

    __slots__ = ("_buffer", "_filled", "_frame", "_kept", "_most_bytes")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept = bytearray()
        """The memory of the last large frame."""
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._frame: memoryview | None = None
        self._filled = 0
        """The bytes in `_frame`, or in `_buffer` if there is no frame."""

    def space(self) -> memoryview:
        """Returns the memory for the next bytes; it is not empty."""
        return (self._buffer if self._frame is None else self._frame)[self._filled :]

    def take(self, received: int) -> Iterator[memoryview]:
        """Takes bytes that were received into `space`; yields the frames that are complete, without their sizes.

        Raises:
            ProtocolError: the size of a frame is not allowed.
        """
        self._filled += received
        if self._frame is not None:
            if self._filled == len(self._frame):
                frame, self._frame, self._filled = self._frame, None, 0
                yield frame
            return
        start, end, buffer = 0, self._filled, self._buffer
        while end - start >= SIZE_BYTES:
            size = int.from_bytes(buffer[start : start + SIZE_BYTES], "big", signed=True)
            if not LEAST_FRAME_BYTES <= size <= self._most_bytes:
                raise ProtocolError(f"a response of {size} bytes")
            body = start + SIZE_BYTES
            frame = self._memory(size)
            have = min(size, end - body)
            frame[:have] = buffer[body : body + have]
            start = body + have
            if have < size:
                self._frame, self._filled = frame, have
                return
            yield frame
        self._filled = end - start
        buffer[: self._filled] = bytes(buffer[start:end])

    def _memory(self, size: int) -> memoryview:
        """Returns the memory for a frame: that of a former frame if nobody has a view of it."""
        if not BUFFER_BYTES < size <= KEPT_BYTES:
            return new_frame(size)
        if len(self._kept) < size or has_views(self._kept):
            self._kept = bytearray(size)
        return memoryview(self._kept)[:size]


def has_views(memory: bytearray) -> bool:
    """Returns whether a memoryview of the memory exists. Python refuses to change the length of such a bytearray."""
    try:
        memory.append(0)
    except BufferError:
        return True
    memory.pop()
    return False


def new_frame(size: int) -> memoryview:
    """Returns the memory for a frame, in which large frames take memory only as they arrive."""
    if size <= MAPPED_BYTES:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
