"""One client's connection without its socket: it takes received bytes, handles complete frames in place, and holds the output.

How it works: a driver receives into `space()`, reports the number of received bytes with `received()`, and calls
`handle_frames()`.
Complete frames are handled without a copy. Bytes that remain in the loop's shared buffer, usually the first part of a frame, move
into a buffer of the connection, which is given back as soon as it is empty. So an idle connection holds no buffer.
After a large frame only the first bytes of the next frame go into the shared buffer, so a producer's large batches are received
into the buffer in which they are handled.
Responses are added to `output`, and the driver sends them.

A pending reply holds its connection: no further frame is handled before the reply is complete. A pending reply to a Produce may
release the connection. Then further Produce frames are handled, with at most `MAX_OUTSTANDING` replies outstanding.

Rules of this file:
    Invariant: responses leave in the order of their requests.
    No frame is handled while output waits for the client to read it.
    The memory of received bytes is at most twice their number. It never depends on the size that a frame announces.
    A failure is logged in one line and closes this connection only.

Source: org.apache.kafka.common.network.NetworkReceive (sizes); kafka.network.SocketServer (a channel is muted while a request
is pending). Kafka keeps one request of a connection at a time; the producer's own limit is five
(max.in.flight.requests.per.connection).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any, Protocol

import structlog

from wirekafka.api.registry import Client
from wirekafka.errors import ProtocolError, RepeatedError
from wirekafka.faults import isolate
from wirekafka.pending import Pending
from wirekafka.server.other_protocols import http_answer, is_http, refusal_of
from wirekafka.server.receive_buffers import SHARED_BYTES, ReceiveBuffers, is_mapped
from wirekafka.wire.codec import Piece

log = structlog.get_logger(__name__)

Answer = bytes | list[Piece] | None
"""A framed response, in one piece or in several, some of which are regions of files; None if the client wants no response."""

LARGE_FRAME_BYTES = 1 << 16
"""While the dispatcher is busy, larger frames wait, except for those of Produce."""

HELD_SECONDS = 0.1
"""While the dispatcher is busy, a driver begins one of the large frames that wait every 0.1 s. Without this rule, 16
connections whose small requests always kept the dispatcher busy let no large frame of another client begin (2026-11)."""

FRAMES_PER_TURN = 32
"""A connection's part of a turn ends after this many frames, and other connections are served."""

OUTPUT_PER_TURN_BYTES = 1 << 20
"""A connection's part of a turn ends after this much output, so that the output is sent before more is created."""

MAX_OUTSTANDING = 5
"""The most outstanding Produce requests of a connection: as many as an idempotent producer sends."""

LEAST_BUFFER_BYTES = 1 << 12

RECEIVE_BYTES = 1 << 20
"""The most bytes of one receive: the kernel copies them in 0.3 ms (2026-11)."""

WAITING_FACTOR = 16
"""The most memory that a request with a pending reply takes, as a multiple of its frame: a Fetch of many partitions reaches
it."""

MOST_OBJECT_BYTES = 1 << 24
"""The most memory of such a request beside its frame. The number of elements in a request is bounded, and a partition of a Fetch
takes 0.5 KiB, so a larger frame has long strings or records."""

LEAST_FRAME_BYTES = 10
"""The shortest request header: API key, version, correlation id, and a client id that is null."""

PRODUCE_KEY = bytes(2)
"""The API key of Produce: the first two bytes of its frames."""


_SIZE = struct.Struct(">i")
_read_size = _SIZE.unpack_from


class FrameHandler(Protocol):
    """The part of the dispatcher that a connection uses.

    Attributes:
        max_request_bytes: the largest frame that is read.
    """

    max_request_bytes: int

    @property
    def is_busy(self) -> bool:
        """So many requests are handled in slices that no further large request begins, except for a Produce."""

    @property
    def now_ms(self) -> Callable[[], int]:
        """The broker's wall clock."""

    @property
    def handle(self) -> Callable[[memoryview, Client, int], Answer | Pending[Any]]:
        """Handles one request, from its frame, the client and the time.

        The frame is valid only until the call returns, unless it `is_mapped`.

        Raises:
            ProtocolError: the request cannot be answered; its connection ends.
        """

    def refusal(self, client: Client, reason: str) -> ProtocolError:
        """Returns the error that ends a connection; a `RepeatedError` if the log has this reason for this client already."""


class _Reply:
    """The reply to one request, in the order of the requests.

    Attributes:
        pending: the Pending of the reply; None once the reply is complete.
        answer: the reply, once it is complete.
        owed_bytes: estimate of the memory of the request while its reply is pending.
    """

    __slots__ = ("_connection", "answer", "owed_bytes", "pending")

    def __init__(self, connection: Connection, pending: Pending[Answer | ProtocolError] | None, answer: Any = None) -> None:
        self._connection = connection
        self.pending = pending
        self.answer: Answer | ProtocolError = answer
        self.owed_bytes = 0

    @property
    def holds_connection(self) -> bool:
        """Whether no further frame may be handled before this reply."""
        return isinstance(self.answer, ProtocolError) if self.pending is None else self.pending.holds_connection

    def take(self, answer: Answer | ProtocolError) -> None:
        """Takes the reply when it is complete."""
        self.pending, self.answer = None, answer
        self._connection.settle(self)
        self._connection.send_replies()


class Connection:
    """One client's connection, without the socket.

    Attributes:
        client: the client of the connection.
        output: the bytes and the regions of files to send, in order. The driver takes them from the left.
        has_frames: a complete frame was received and is not handled yet.
        has_held_frame: the next complete frame is large, and waits until the dispatcher is no longer busy, or until the driver
            begins the frame nevertheless.
        is_blocked: no frame is handled before a reply is complete; the driver receives nothing meanwhile.
        is_closing: nothing more is received or handled; the driver closes the connection once the output is sent.
        quiet_sweeps: the number of the driver's checks for idle connections since bytes were last received or sent.

    Args:
        on_progress: called when a pending reply has been added to `output`, or when further frames may be handled.
    """

    __slots__ = (
        "_buffer",
        "_buffers",
        "_dispatcher",
        "_end",
        "_expects_large",
        "_frame_end",
        "_held_bytes",
        "_max_request_bytes",
        "_on_progress",
        "_pos",
        "_replies",
        "client",
        "has_frames",
        "has_held_frame",
        "is_blocked",
        "is_closing",
        "output",
        "quiet_sweeps",
    )

    def __init__(
        self, client: Client, dispatcher: FrameHandler, buffers: ReceiveBuffers, on_progress: Callable[[Connection], object]
    ) -> None:
        self.client = client
        self.output: deque[Piece] = deque()
        self.has_frames = False
        self.has_held_frame = False
        self.is_blocked = False
        self.is_closing = False
        self.quiet_sweeps = 0
        self._dispatcher = dispatcher
        self._max_request_bytes = dispatcher.max_request_bytes
        self._buffers = buffers
        self._on_progress = on_progress
        self._replies: list[_Reply] = []
        """The outstanding replies, in the order of their requests.

        Invariant: the first is pending.
        """
        self._buffer: memoryview | None = None
        """The connection's own buffer; None while it is empty."""
        self._held_bytes = 0
        """The memory that the own buffer takes; of a mapping, the part that has been received."""
        self._pos = 0
        """The position of the first byte that is not handled."""
        self._end = 0
        """One past the last byte received."""
        self._frame_end = 0
        """One past the frame that begins at `_pos`, by its announced size; 0 until the size is received."""
        self._expects_large = False
        """The last frame did not fit into the shared buffer, so the next one may not."""

    @property
    def is_waiting(self) -> bool:
        """Whether a reply is outstanding."""
        return bool(self._replies)

    @property
    def held_bytes(self) -> int:
        """The memory that the connection's own receive buffer takes."""
        return self._held_bytes

    @property
    def owed_bytes(self) -> int:
        """Estimate of the memory of the requests whose replies are pending."""
        return sum(reply.owed_bytes for reply in self._replies)

    def settle(self, reply: _Reply) -> None:
        """Subtracts the memory of a request that is no longer held."""
        self._buffers.owed_bytes -= reply.owed_bytes
        reply.owed_bytes = 0

    def space(self) -> memoryview:
        """Returns the memory for the next bytes: the shared buffer, or the rest of the first frame in the connection's buffer."""
        buffer = self._buffer
        if buffer is None:
            shared = self._buffers.shared
            return shared[:LEAST_BUFFER_BYTES] if self._expects_large or self._buffers.is_short else shared
        if self._pos:
            self._move_to_front(buffer)
        if self._end == len(buffer):
            buffer = self._grow(buffer)
        if is_mapped(buffer):
            self._hold(self._end)
        # Not beyond a large frame, because the bytes of the next frame would have to move. One call receives many small frames.
        return buffer[self._end : min(max(self._frame_end, LEAST_BUFFER_BYTES), self._end + RECEIVE_BYTES)]

    def received(self, count: int) -> None:
        """Records that `count` bytes were received into `space()`; the driver calls `handle_frames` next."""
        self._end += count
        self.quiet_sweeps = 0

    def handle_frames(self, until: float = inf, begins_large: bool = False) -> None:
        """Handles complete frames until a frame must wait, or the turn ends.

        Args:
            until: when the turn ends, by `time.perf_counter`; the first frame is handled in any case.
            begins_large: one large frame is handled although the dispatcher is busy.
        """
        if self.is_blocked:
            return
        own = self._buffer
        buffer = self._buffers.shared if own is None else own
        try:
            self._handle_frames_of(buffer, until, begins_large)
        except ProtocolError as error:
            if not self._replies:
                self._refuse(error)
                return
            self._replies.append(_Reply(self, None, error))
            self.is_blocked = True
        if self._pos < self._end:
            if own is None:
                self._keep_rest_of(buffer)
        elif own is None:
            self._pos = self._end = 0
            self._expects_large = False
        else:
            self._expects_large = self._end > SHARED_BYTES
            self._release_buffer()

    def _handle_frames_of(self, buffer: memoryview, until: float, begins_large: bool) -> None:
        dispatcher, end = self._dispatcher, self._end
        handle, now_ms = dispatcher.handle, dispatcher.now_ms()
        client, output, replies = self.client, self.output, self._replies
        self.has_frames = self.has_held_frame = False
        pos = self._pos
        frame_count = produced_bytes = 0
        while end - pos >= 4:
            (size,) = _read_size(buffer, pos)
            if not LEAST_FRAME_BYTES <= size <= self._max_request_bytes:
                raise self._refuse_size(size)
            stop = pos + 4 + size
            if stop > end:
                self._frame_end = stop
                break
            if size > LARGE_FRAME_BYTES:
                if dispatcher.is_busy and not begins_large and buffer[pos + 4 : pos + 6] != PRODUCE_KEY:
                    self.has_frames = self.has_held_frame = True
                    break
                begins_large = False
            if frame_count and (
                frame_count == FRAMES_PER_TURN or produced_bytes > OUTPUT_PER_TURN_BYTES or perf_counter() > until
            ):
                self.has_frames = True
                break
            if replies and self._must_wait(buffer[pos + 4 : pos + 6]):
                self.has_frames = self.is_blocked = True
                break
            answer = handle(buffer[pos + 4 : stop], client, now_ms)
            self._pos = pos = stop
            frame_count += 1
            if replies:
                self._await(answer, size)
            elif isinstance(answer, bytes):
                output.append(answer)
                produced_bytes += len(answer)
            elif isinstance(answer, Pending):
                self._await(answer, size)
            elif answer is not None:
                output.extend(answer)
                produced_bytes += sum(map(len, answer))
        else:
            self._frame_end = 0

    def _must_wait(self, api_key: memoryview) -> bool:
        """Whether the next frame, of this API, must wait for an outstanding reply."""
        replies = self._replies
        return len(replies) == MAX_OUTSTANDING or replies[-1].holds_connection or api_key != PRODUCE_KEY

    def _await(self, answer: Answer | Pending[Any], frame_bytes: int) -> None:
        """Takes a reply that is pending, or that must leave after a pending one.

        Args:
            frame_bytes: the size of the request's frame.

        Raises:
            ProtocolError: the reply is complete, and is this error.
        """
        if isinstance(answer, Pending):
            reply = _Reply(self, answer)
            answer.then(reply.take, self._unblock)
        else:
            reply = _Reply(self, None, answer)
        if reply.pending is not None or self._replies:
            if reply.pending is not None:
                reply.owed_bytes = frame_bytes + min((WAITING_FACTOR - 1) * frame_bytes, MOST_OBJECT_BYTES)
                self._buffers.owed_bytes += reply.owed_bytes
            self._replies.append(reply)
            self.is_blocked = reply.holds_connection
        elif isinstance(reply.answer, ProtocolError):
            raise reply.answer
        else:
            self._add_output(reply.answer)

    def send_replies(self) -> None:
        """Moves the complete replies to `output`, up to the first pending one."""
        replies = self._replies
        if self.is_closing or not replies or replies[0].pending is not None:
            return
        while replies and replies[0].pending is None:
            answer = replies.pop(0).answer
            if isinstance(answer, ProtocolError):
                self._refuse(answer)
                break
            self._add_output(answer)
        self._unblock()

    def _add_output(self, answer: Answer) -> None:
        if isinstance(answer, bytes):
            self.output.append(answer)
        elif answer is not None:
            self.output.extend(answer)

    def _unblock(self) -> None:
        """Allows further frames, unless the connection is refused once its earlier replies are sent."""
        self.is_blocked = bool(self._replies) and isinstance(self._replies[-1].answer, ProtocolError)
        self._on_progress(self)

    def _refuse(self, error: ProtocolError) -> None:
        """Ends the connection: `output` is still sent, but no further frame is handled, and no later reply is sent."""
        write = log.debug if isinstance(error, RepeatedError) else log.warning
        write("Connection closed", client=f"{self.client.host}:{self.client.port}", reason=str(error))
        self.is_closing = True
        self.has_frames = self.is_blocked = False
        self._release_buffer()
        self._abandon_replies()

    def abandon(self) -> None:
        """Drops the output and the outstanding replies, because the connection has ended."""
        self.is_closing = True
        self.has_frames = self.is_blocked = False
        self.output.clear()
        self._release_buffer()
        self._abandon_replies()
        self._on_progress = _ignore  # The driver's callback refers back to this connection, and only the collector frees a cycle.
        self.client.closed()

    def _abandon_replies(self) -> None:
        replies, self._replies = self._replies, []
        for reply in replies:
            self.settle(reply)
            if reply.pending is not None:
                with isolate("A reply that is no longer awaited could not be abandoned", client=self.client.host):
                    reply.pending.abandon()

    def _refuse_size(self, size: int) -> ProtocolError:
        """Returns why no request has this size. An HTTP client gets an answer that its user can read."""
        if is_http(size) and not self._replies:
            self.output.append(http_answer(size))
        return self._dispatcher.refusal(self.client, refusal_of(size, self._max_request_bytes))

    def _keep_rest_of(self, shared: memoryview) -> None:
        rest = shared[self._pos : self._end]
        size = len(rest)
        announced = max(self._frame_end - self._pos, LEAST_BUFFER_BYTES)
        buffer = self._buffers.take(max(size, min(announced, max(2 * size, LEAST_BUFFER_BYTES))), announced)
        buffer[:size] = rest
        self._hold(len(buffer))
        self._frame_end = max(self._frame_end - self._pos, 0)
        self._buffer, self._pos, self._end = buffer, 0, size

    def _move_to_front(self, buffer: memoryview) -> None:
        size = self._end - self._pos
        buffer[:size] = buffer[self._pos : self._end]
        self._frame_end = max(self._frame_end - self._pos, 0)
        self._pos, self._end = 0, size

    def _grow(self, full: memoryview) -> memoryview:
        size = len(full)
        buffer = self._buffers.grow(full, self._frame_end)
        buffer[:size] = full
        self._buffers.give_back(full)
        self._buffer = buffer
        self._hold(size if is_mapped(buffer) else len(buffer))
        return buffer

    def _hold(self, count: int) -> None:
        """Notes that the connection's own buffer takes `count` bytes of memory now."""
        self._buffers.hold(count - self._held_bytes)
        self._held_bytes = count

    def _release_buffer(self) -> None:
        if self._buffer is not None:
            self._buffers.give_back(self._buffer)
            self._buffer = None
            self._hold(0)
        self._pos = self._end = self._frame_end = 0


def _ignore(connection: Connection) -> None:
    """Takes the progress of a connection that has ended."""
