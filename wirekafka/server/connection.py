"""One client's connection without its socket: bytes in, frames handled in place, pieces of output out.

Theory of operation: a driver receives into `space()`, reports with `received()` how much came, and calls `handle_frames()`.
Complete frames are handled where they lie. Bytes that remain in the loop's shared buffer, usually the first part of a frame,
move into a buffer of the connection's own, which is given back as soon as it is empty; so an idle connection holds no buffer.
After a large frame only the first bytes of the next frame go into the shared buffer, so that a producer's large batches are
received where they will be handled.
Responses are added to `output`, and the driver sends them.

A reply that is pending holds its connection: no further frame is handled before it is there. A pending reply to a Produce may
release the connection; then further Produce frames are handled, with at most `MAX_OUTSTANDING` replies outstanding.

Rules of this file:
    Invariant: responses leave in the order of their requests.
    No frame is handled while output waits for the peer to read it.
    Memory grows with what has arrived, at most to twice as much, never with what a size prefix announces.
    A failure is logged in one line and closes this connection alone.

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
from wirekafka.errors import ProtocolError
from wirekafka.faults import isolate
from wirekafka.pending import Pending
from wirekafka.wire.codec import Piece

log = structlog.get_logger(__name__)

Answer = bytes | list[Piece] | None
"""A framed response, whole or in pieces among which are regions of files; None where the client wants no response."""

FRAMES_PER_TURN = 32
"""After this many frames a connection's turn ends, and other connections are served."""

OUTPUT_PER_TURN_BYTES = 1 << 20
"""After this much output a turn ends, so that the output is sent before more is made."""

MAX_OUTSTANDING = 5
"""How many Produce requests of a connection may be outstanding: as many as an idempotent producer sends."""

SHARED_BYTES = 1 << 18
"""The receive buffer that all connections of a loop share."""

SPARE_BYTES = 1 << 22
"""The largest buffer that is kept for the next large frame."""

LEAST_BUFFER_BYTES = 1 << 12

MOST_HELD_BYTES = 1 << 27
"""The default of `queued.max.request.bytes`: the memory that the parts of frames that have arrived may take, of all connections
together. Beyond it, the driver receives of one large frame at a time."""

WAITING_FACTOR = 16
"""A request whose reply is pending takes up to so many times the memory of its frame: a Fetch of many partitions does."""

LEAST_FRAME_BYTES = 10
"""API key, version, correlation id and a client id that is null: the shortest header."""

PRODUCE_KEY = bytes(2)
"""The API key of Produce, the first two bytes of its frames."""

TLS_HANDSHAKE = 0x1603
"""The first bytes of a TLS connection, read as the upper half of a size (RFC 8446, 5.1)."""

HTTP_METHODS = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"PRI "})
"""The last is the beginning of HTTP/2 (RFC 9113, 3.4)."""

_SIZE = struct.Struct(">i")
_read_size = _SIZE.unpack_from


class RepeatedError(ProtocolError):
    """Bytes that cannot be answered, for a reason that the log has given for this client before."""


class FrameHandler(Protocol):
    """What a connection needs of the dispatcher.

    Attributes:
        max_request_bytes: the largest frame that is read.
    """

    max_request_bytes: int

    @property
    def now_ms(self) -> Callable[[], int]:
        """The broker's wall clock."""

    @property
    def handle(self) -> Callable[[memoryview, Client, int], Answer | Pending[Any]]:
        """Handles one request, given its frame, which is valid only until this returns, the client and the time.

        Raises:
            ProtocolError: the request cannot be answered; its connection ends.
        """

    def refusal(self, client: Client, reason: str) -> ProtocolError:
        """The error that ends a connection, a `RepeatedError` if the log has given this reason for this client before."""


class ReceiveBuffers:
    """The receive buffers of one loop: one that all its connections share, and one spare for frames that do not fit.

    With the spare, a producer of large batches does not grow a new buffer for each batch.

    Attributes:
        is_short: the connections' own buffers have more than `most_bytes` together.
        owed_bytes: estimate of the memory of the requests of all connections whose replies are pending.
    """

    __slots__ = ("_held_bytes", "_most_bytes", "_spare", "is_short", "owed_bytes", "shared")

    def __init__(self, most_bytes: int = MOST_HELD_BYTES) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        self.is_short = False
        self.owed_bytes = 0
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._spare: memoryview | None = None

    def take(self, size: int, announced: int) -> memoryview:
        """A buffer of at least `size` bytes: the spare if `announced` bytes fit into it, else a new one of `size` bytes."""
        spare = self._spare
        if spare is not None and max(size, announced) <= len(spare):
            self._spare = None
            buffer = spare
        else:
            buffer = memoryview(bytearray(size))
        self._hold(len(buffer))
        return buffer

    def give_back(self, buffer: memoryview) -> None:
        """Takes back a buffer that is no longer used; the largest of at most `SPARE_BYTES` becomes the spare."""
        self._hold(-len(buffer))
        if len(buffer) <= SPARE_BYTES and (self._spare is None or len(buffer) > len(self._spare)):
            self._spare = buffer

    def _hold(self, count: int) -> None:
        self._held_bytes += count
        self.is_short = self._held_bytes > self._most_bytes

    def shrink(self) -> None:
        """Frees the spare buffer; the driver calls this when it sweeps."""
        self._spare = None


class _Reply:
    """The reply to one request, in the order of the requests.

    Attributes:
        pending: where the reply comes from; None once it is there.
        answer: the reply, once it is there.
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
        """No further frame may be handled yet."""
        return isinstance(self.answer, ProtocolError) if self.pending is None else self.pending.holds_connection

    def take(self, answer: Answer | ProtocolError) -> None:
        """The pending reply is there."""
        self.pending, self.answer = None, answer
        self._connection.settle(self)
        self._connection.send_replies()


class Connection:
    """One client's connection, as its driver sees it.

    Attributes:
        client: the client at the other end.
        output: the bytes and the regions of files to send, in order. The driver takes them from the left.
        has_frames: a complete frame has been received and not been handled.
        is_blocked: no frame is handled before a reply has come; the driver receives nothing meanwhile.
        is_closing: nothing is received or handled any more; the driver closes the connection once the output is sent.
        quiet_sweeps: how often the driver has looked for idle connections since it last received or sent something.

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
        "_max_request_bytes",
        "_on_progress",
        "_pos",
        "_replies",
        "client",
        "has_frames",
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
        self._pos = 0
        """The position of the first byte that is not handled."""
        self._end = 0
        """One past the last byte received."""
        self._frame_end = 0
        """One past the frame that begins at `_pos`, as announced; 0 while its size has not arrived."""
        self._expects_large = False
        """The last frame did not fit into the shared buffer, so the next one may not."""

    @property
    def is_waiting(self) -> bool:
        """A reply is outstanding."""
        return bool(self._replies)

    @property
    def held_bytes(self) -> int:
        """The size of the connection's own receive buffer."""
        return 0 if self._buffer is None else len(self._buffer)

    @property
    def owed_bytes(self) -> int:
        """Estimate of the memory of the requests whose replies are pending."""
        return sum(reply.owed_bytes for reply in self._replies)

    def settle(self, reply: _Reply) -> None:
        """The reply's request is no longer held."""
        self._buffers.owed_bytes -= reply.owed_bytes
        reply.owed_bytes = 0

    def space(self) -> memoryview:
        """Returns the memory for the next bytes: the shared buffer, or the rest of the first frame's place in the own one."""
        buffer = self._buffer
        if buffer is None:
            shared = self._buffers.shared
            return shared[:LEAST_BUFFER_BYTES] if self._expects_large or self._buffers.is_short else shared
        if self._pos:
            self._move_to_front(buffer)
        if self._end == len(buffer):
            buffer = self._grow(buffer)
        # Not beyond a large frame: the bytes of its successor would have to be moved. For small frames one call receives many.
        return buffer[self._end : max(self._frame_end, LEAST_BUFFER_BYTES)]

    def received(self, count: int) -> None:
        """Records that `count` bytes have been received into `space()`; `handle_frames` is called next."""
        self._end += count
        self.quiet_sweeps = 0

    def handle_frames(self, until: float = inf) -> None:
        """Handles complete frames, until one must wait, or the turn ends.

        Args:
            until: when the turn ends, by `time.perf_counter`; the first frame is handled in any case.
        """
        if self.is_blocked:
            return
        own = self._buffer
        buffer = self._buffers.shared if own is None else own
        try:
            self._handle_frames_of(buffer, until)
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

    def _handle_frames_of(self, buffer: memoryview, until: float) -> None:
        dispatcher, end = self._dispatcher, self._end
        handle, now_ms = dispatcher.handle, dispatcher.now_ms()
        client, output, replies = self.client, self.output, self._replies
        self.has_frames = False
        pos = self._pos
        frame_count = produced_bytes = 0
        while end - pos >= 4:
            (size,) = _read_size(buffer, pos)
            if not LEAST_FRAME_BYTES <= size <= self._max_request_bytes:
                raise dispatcher.refusal(client, self._refusal_of(size))
            stop = pos + 4 + size
            if stop > end:
                self._frame_end = stop
                break
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
        """The next frame, of this API, must wait for an outstanding reply."""
        replies = self._replies
        return len(replies) == MAX_OUTSTANDING or replies[-1].holds_connection or api_key != PRODUCE_KEY

    def _await(self, answer: Answer | Pending[Any], frame_bytes: int) -> None:
        """Takes a reply that is still to come, or that leaves after one that is.

        Args:
            frame_bytes: the size of the request's frame.

        Raises:
            ProtocolError: the reply is there, and is this error.
        """
        if isinstance(answer, Pending):
            reply = _Reply(self, answer)
            answer.then(reply.take, self._unblock)
        else:
            reply = _Reply(self, None, answer)
        if reply.pending is not None or self._replies:
            if reply.pending is not None:
                reply.owed_bytes = WAITING_FACTOR * frame_bytes
                self._buffers.owed_bytes += reply.owed_bytes
            self._replies.append(reply)
            self.is_blocked = reply.holds_connection
        elif isinstance(reply.answer, ProtocolError):
            raise reply.answer
        else:
            self._add_output(reply.answer)

    def send_replies(self) -> None:
        """Moves the replies that have come to `output`, up to the first that has not."""
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
        """Further frames may be handled, unless the last one is refused once the replies before it have left."""
        self.is_blocked = bool(self._replies) and isinstance(self._replies[-1].answer, ProtocolError)
        self._on_progress(self)

    def _refuse(self, error: ProtocolError) -> None:
        """Ends the connection: what is in `output` is still sent, no further frame is handled."""
        write = log.debug if isinstance(error, RepeatedError) else log.warning
        write("Connection closed", client=f"{self.client.host}:{self.client.port}", reason=str(error))
        self.is_closing = True
        self.has_frames = self.is_blocked = False
        self._release_buffer()

    def abandon(self) -> None:
        """Drops output and outstanding replies: the connection has ended."""
        self.is_closing = True
        self.has_frames = self.is_blocked = False
        self.output.clear()
        self._release_buffer()
        replies, self._replies = self._replies, []
        for reply in replies:
            self.settle(reply)
            if reply.pending is not None:
                with isolate("A reply that is no longer awaited could not be abandoned", client=self.client.host):
                    reply.pending.abandon()
        self.client.closed()

    def _refusal_of(self, size: int) -> str:
        if size >> 16 == TLS_HANDSHAKE:
            return "the client speaks TLS, and this listener is PLAINTEXT"
        if _SIZE.pack(size) in HTTP_METHODS:
            return "the client speaks HTTP, not Kafka's protocol"
        if size > self._max_request_bytes:
            return f"a request of {size} bytes is larger than socket.request.max.bytes={self._max_request_bytes}"
        return f"a request of {size} bytes is too short to be one"

    def _keep_rest_of(self, shared: memoryview) -> None:
        rest = shared[self._pos : self._end]
        size = len(rest)
        announced = max(self._frame_end - self._pos, LEAST_BUFFER_BYTES)
        buffer = self._buffers.take(max(size, min(announced, max(2 * size, LEAST_BUFFER_BYTES))), announced)
        buffer[:size] = rest
        self._frame_end = max(self._frame_end - self._pos, 0)
        self._buffer, self._pos, self._end = buffer, 0, size

    def _move_to_front(self, buffer: memoryview) -> None:
        size = self._end - self._pos
        buffer[:size] = buffer[self._pos : self._end]
        self._frame_end = max(self._frame_end - self._pos, 0)
        self._pos, self._end = 0, size

    def _grow(self, full: memoryview) -> memoryview:
        size = len(full)
        buffer = self._buffers.take(min(self._frame_end, 2 * size), self._frame_end)
        buffer[:size] = full
        self._buffers.give_back(full)
        self._buffer = buffer
        return buffer

    def _release_buffer(self) -> None:
        if self._buffer is not None:
            self._buffers.give_back(self._buffer)
            self._buffer = None
        self._pos = self._end = self._frame_end = 0
