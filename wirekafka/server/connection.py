"""One client's connection without its socket: bytes in, frames handled in place, pieces of output out.

Theory of operation: a driver receives into `space()`, reports with `received()` how much came, and calls `handle_frames()`.
Complete frames are handled where they lie. What is left over of the loop's shared buffer, as a rule the torn tail of a frame,
moves into a buffer of the connection's own, which goes back as soon as it is empty; so an idle connection holds no buffer.
Behind a large frame no more than the next one's head goes into the shared buffer, so that a producer's large batches are
received where they will be handled.
Responses come out in `output`, and the driver sends them.

Rules of this file:
    Invariant: responses leave in the order of their requests; while a reply is pending no further frame is handled.
    No frame is handled while output waits for the peer to read it.
    Memory grows with what has arrived, at most to twice as much, never with what a size prefix announces.
    Whatever breaks is said in one log line and closes this connection alone.

Source: org.apache.kafka.common.network.NetworkReceive (sizes); kafka.network.SocketServer (muted while a request is pending).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from wirekafka.errors import ProtocolError
from wirekafka.pending import Pending

if TYPE_CHECKING:
    from wirekafka.api.registry import Client
    from wirekafka.server.dispatch import Answer, Dispatcher
    from wirekafka.wire.codec import Piece

log = structlog.get_logger(__name__)

FRAMES_PER_TURN = 32
"""After so many frames a connection lets the others have their turn."""

OUTPUT_PER_TURN_BYTES = 1 << 20
"""With so much output a turn ends, so that it is sent before more is made."""

SHARED_BYTES = 1 << 18
"""The receive buffer that all connections of a loop share."""

SPARE_BYTES = 1 << 22
"""The largest buffer that is kept for the next large frame."""

LEAST_BUFFER_BYTES = 1 << 12

LEAST_FRAME_BYTES = 10
"""API key, version, correlation id and a client id that is null: the shortest header there is."""

TLS_HANDSHAKE = 0x1603
"""How a TLS client begins, read as the upper half of a size (RFC 8446, 5.1)."""

HTTP_METHODS = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"PRI "})
"""The last is how HTTP/2 begins (RFC 9113, 3.4)."""

_SIZE = struct.Struct(">i")


class RepeatedError(ProtocolError):
    """Bytes that cannot be answered, for a reason that the log has given for this client before."""


class ReceiveBuffers:
    """The receive buffers of one loop: one that all its connections share, and one spare for frames that do not fit.

    The spare saves the producer of large batches from growing a buffer anew for each of them.
    """

    __slots__ = ("_spare", "shared")

    def __init__(self) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        self._spare: memoryview | None = None

    def take(self, size: int, announced: int) -> memoryview:
        """A buffer of at least `size` bytes: the spare one if all that is announced fits, else a new one of just this size."""
        spare = self._spare
        if spare is not None and max(size, announced) <= len(spare):
            self._spare = None
            return spare
        return memoryview(bytearray(size))

    def give_back(self, buffer: memoryview) -> None:
        """Takes a buffer that nobody uses any more, and keeps the largest within bounds."""
        if len(buffer) <= SPARE_BYTES and (self._spare is None or len(buffer) > len(self._spare)):
            self._spare = buffer

    def shrink(self) -> None:
        """Lets go of the spare buffer; the driver calls this when it sweeps."""
        self._spare = None


class Connection:
    """One client's connection, as its driver sees it.

    Attributes:
        client: who is at the other end.
        output: what is to be sent, in order: bytes and regions of files. The driver takes it from the left.
        has_frames: a complete frame waits to be handled.
        is_closing: nothing is received or handled any more; the driver closes it once the output is sent.
        quiet_sweeps: how often the driver has looked for idle connections since something was received.

    Args:
        on_answer: called when a pending reply has come and its response is in `output`.
    """

    __slots__ = (
        "_buffer",
        "_buffers",
        "_dispatcher",
        "_end",
        "_expects_large",
        "_frame_end",
        "_max_request_bytes",
        "_on_answer",
        "_pending",
        "_pos",
        "client",
        "has_frames",
        "is_closing",
        "output",
        "quiet_sweeps",
    )

    def __init__(
        self, client: Client, dispatcher: Dispatcher, buffers: ReceiveBuffers, on_answer: Callable[[Connection], object]
    ) -> None:
        self.client = client
        self.output: deque[Piece] = deque()
        self.has_frames = False
        self.is_closing = False
        self.quiet_sweeps = 0
        self._dispatcher = dispatcher
        self._max_request_bytes = dispatcher.max_request_bytes
        self._buffers = buffers
        self._on_answer = on_answer
        self._pending: Pending[Answer] | None = None
        self._buffer: memoryview | None = None
        """The connection's own buffer; None while nothing is left over."""
        self._pos = 0
        """Where the first byte lies that is not handled."""
        self._end = 0
        """One past the last byte received."""
        self._frame_end = 0
        """One past the frame that begins at `_pos`, as announced; 0 while its size has not arrived."""
        self._expects_large = False
        """The last frame did not fit into the shared buffer, so the next one may not."""

    @property
    def is_waiting(self) -> bool:
        """A reply is pending."""
        return self._pending is not None

    @property
    def held_bytes(self) -> int:
        """The size of the connection's own receive buffer."""
        return 0 if self._buffer is None else len(self._buffer)

    def space(self) -> memoryview:
        """Where the next bytes go: into the shared buffer, or into the rest of the first frame's place in the own one."""
        buffer = self._buffer
        if buffer is None:
            shared = self._buffers.shared
            return shared[:LEAST_BUFFER_BYTES] if self._expects_large else shared
        if self._pos:
            self._move_to_front(buffer)
        if self._end == len(buffer):
            buffer = self._grow(buffer)
        # Not beyond a large frame: its successor would have to be moved. Small ones are worth one call for many.
        return buffer[self._end : max(self._frame_end, LEAST_BUFFER_BYTES)]

    def received(self, count: int) -> None:
        """Says that `count` bytes have come into `space()`; `handle_frames` is called next."""
        self._end += count
        self.quiet_sweeps = 0

    def handle_frames(self) -> None:
        """Handles complete frames until one must wait, there is much to send, or the others should have their turn."""
        own = self._buffer
        buffer = self._buffers.shared if own is None else own
        try:
            self._handle_frames_of(buffer)
        except ProtocolError as error:
            self.refuse(str(error), is_repeated=isinstance(error, RepeatedError))
            return
        if self._pos < self._end:
            if own is None:
                self._keep_rest_of(buffer)
        elif own is None:
            self._pos = self._end = 0
            self._expects_large = False
        else:
            self._expects_large = self._end > SHARED_BYTES
            self._let_go()

    def _handle_frames_of(self, buffer: memoryview) -> None:
        handle, now_ms = self._dispatcher.handle, self._dispatcher.now_ms()
        client, output, end = self.client, self.output, self._end
        self.has_frames = False
        pos = self._pos
        frame_count = produced_bytes = 0
        while True:
            if end - pos < 4:
                self._frame_end = 0
                break
            (size,) = _SIZE.unpack_from(buffer, pos)
            if not LEAST_FRAME_BYTES <= size <= self._max_request_bytes:
                raise self._dispatcher.refusal(client, self._refusal_of(size))
            stop = pos + 4 + size
            if stop > end:
                self._frame_end = stop
                break
            if frame_count == FRAMES_PER_TURN or produced_bytes > OUTPUT_PER_TURN_BYTES or self._pending is not None:
                self.has_frames = True
                break
            answer = handle(buffer[pos + 4 : stop], client, now_ms)
            self._pos = pos = stop
            frame_count += 1
            if isinstance(answer, bytes):
                output.append(answer)
                produced_bytes += len(answer)
            elif answer is not None:
                produced_bytes += self._take(answer)

    def _take(self, answer: list[Piece] | Pending[Any]) -> int:
        """Takes an answer of several pieces, or one that is still to come; returns how many bytes are to be sent now."""
        if isinstance(answer, Pending):
            answer.then(self._answered)
            if not answer.is_done:
                self._pending = answer
            return 0
        self.output.extend(answer)
        return sum(map(len, answer))

    def _answered(self, answer: Answer | ProtocolError) -> None:
        """The reply that was pending has come."""
        if isinstance(answer, ProtocolError):
            if self._pending is None:
                raise answer  # it was there at once: `handle_frames` is on the stack
            self.refuse(str(answer))
        elif isinstance(answer, bytes):
            self.output.append(answer)
        elif answer is not None:
            self.output.extend(answer)
        if self._pending is not None:
            self._pending = None
            self._on_answer(self)

    def refuse(self, reason: str, *, is_repeated: bool = False) -> None:
        """Ends the connection: what is in `output` is still sent, nothing more is handled.

        Args:
            reason: what the peer did wrong, for the log.
            is_repeated: the log has said so before.
        """
        write = log.debug if is_repeated else log.warning
        write("Connection closed", client=f"{self.client.host}:{self.client.port}", reason=reason)
        self.is_closing = True
        self.has_frames = False
        self._let_go()

    def abandon(self) -> None:
        """The connection is gone: nobody waits for a reply any more, and nothing is left to send."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.abandon()
        self.is_closing = True
        self.has_frames = False
        self.output.clear()
        self._let_go()
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

    def _let_go(self) -> None:
        if self._buffer is not None:
            self._buffers.give_back(self._buffer)
            self._buffer = None
        self._pos = self._end = self._frame_end = 0
