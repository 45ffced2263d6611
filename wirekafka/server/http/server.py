"""The server of HTTP/1.1: one request a connection, parsed by h11.

Rules of this file: a client can neither hold nor grow the broker. The sizes of a request are limited. A request arrives in
`Limits.seconds`, and the client reads the response in the same time. At `Limits.connections`, the oldest connection that is not
being answered is closed for a new one; if all are being answered, the new one is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import h11
import trio

from wirekafka.faults import isolate, log_once
from wirekafka.server.http.messages import STATUS, Answer, Request, Response

T = TypeVar("T")

PAUSE_SECONDS = 0.1
"""The pause after a connection could not be accepted, for example because descriptors are exhausted."""

RECEIVED_BYTES = 8192
"""The most bytes that are received at once."""

MOST_DISCARDED_BYTES = 1 << 20
DISCARD_SECONDS = 1.0
"""What a client still sends after it was refused is read so far and so long: it would lose the response if it got a reset."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may use.

    Attributes:
        connections: the most connections at a time.
        seconds: in which a request arrives, and in which its response is read.
        head_bytes: of the first line and the headers.
        body_bytes: of the body of a request.
    """

    connections: int = 16
    seconds: float = 5.0
    head_bytes: int = 8192
    body_bytes: int = 0


class _TooSlowError(Exception):
    """The client has not sent or read in its time."""


class _RefusedError(Exception):
    """The request is answered without being handled."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = Response.of_text(status, f"{text}\n")


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection and its end.

    Attributes:
        scope: its cancellation closes the connection.
        is_answered: the request has arrived, and its response is being made.
    """

    stream: trio.SocketStream
    parser: h11.Connection
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_answered: bool = False


class HttpServer:
    """Serves HTTP on listening sockets.

    Args:
        answer: answers each request.
        limits: of the clients.
        now: returns the seconds by which clients are measured; trio's clock, or that of the machine where a test moves trio's.
    """

    def __init__(self, answer: Answer, limits: Limits, now: Callable[[], float] = trio.current_time) -> None:
        self._answer = answer
        self._limits = limits
        self._now = now
        self._connections: dict[_Connection, None] = {}

    async def serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serves until cancelled, and closes the sockets."""
        async with trio.open_nursery() as nursery:
            for each in listeners:
                nursery.start_soon(self._accept, each, nursery)

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError:
                    await trio.sleep(PAUSE_SECONDS)
                    continue
                if not self._has_room():
                    stream.socket.close()
                    continue
                parser = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
                connection = _Connection(stream, parser)
                self._connections[connection] = None
                nursery.start_soon(self._serve, connection)

    def _has_room(self) -> bool:
        """Makes room for a connection; returns False if there is none."""
        while len(self._connections) >= self._limits.connections:
            oldest = next((each for each in self._connections if not each.is_answered), None)
            if oldest is None:
                return False
            del self._connections[oldest]
            oldest.scope.cancel()
        return True

    async def _serve(self, connection: _Connection) -> None:
        gone = (trio.BrokenResourceError, OSError, _TooSlowError)
        try:
            with connection.scope, isolate("A connection of HTTP failed"), suppress(*gone):
                await self._exchange(connection)
        finally:
            self._connections.pop(connection, None)
            connection.stream.socket.close()

    async def _exchange(self, connection: _Connection) -> None:
        method = ""
        try:
            request = await self._receive(connection)
            if request is None:
                return
            method = request.method
            connection.is_answered = True
            response = await self._answered(request)
        except _RefusedError as error:
            response = error.response
        except h11.RemoteProtocolError as error:
            response = Response.of_text(error.error_status_hint, f"{error}\n")
        connection.is_answered = False
        await self._send(connection, response, has_body=method != "HEAD")
        if connection.parser.their_state is not h11.DONE:
            await self._discard(connection)

    async def _answered(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except Exception as error:  # noqa: BLE001 - a fault costs the answer, not the broker
            log_once(error, "A request of HTTP failed", method=request.method, path=request.path[:100])
            return Response.of_text(500, "the request failed; the log of the broker says why\n")

    # Receive

    async def _receive(self, connection: _Connection) -> Request | None:
        """Receives a request; returns None if the client has closed the connection before it has sent any.

        Raises:
            _RefusedError, h11.RemoteProtocolError: it is not a request that is served.
            _TooSlowError: it has not arrived in its time.
        """
        end = self._now() + self._limits.seconds
        head = await self._next_event(connection, end)
        if not isinstance(head, h11.Request):
            return None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        length = headers.get("content-length", "0")
        if int(length) > self._limits.body_bytes:
            raise _RefusedError(413, f"a body may have {self._limits.body_bytes} bytes")
        target = head.target.decode("ascii")
        if not target.startswith("/"):
            raise _RefusedError(400, "the target of a request is a path")
        if connection.parser.they_are_waiting_for_100_continue:
            go_on = connection.parser.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            await self._send_all(connection, go_on or b"", end)
        body = await self._receive_body(connection, end)

        async def until_gone() -> None:
            await _until_closed(connection.stream)

        return Request(head.method.decode("ascii"), target, headers, body, until_gone)

    async def _receive_body(self, connection: _Connection, end: float) -> bytes:
        body = bytearray()
        while True:
            event = await self._next_event(connection, end)
            if not isinstance(event, h11.Data):
                return bytes(body)
            body += event.data
            if len(body) > self._limits.body_bytes:
                raise _RefusedError(413, f"a body may have {self._limits.body_bytes} bytes")

    async def _next_event(self, connection: _Connection, end: float) -> object:
        while True:
            event: object = connection.parser.next_event()
            if event is not h11.NEED_DATA:
                return event
            data = await self._in_time(end, lambda: connection.stream.receive_some(RECEIVED_BYTES))
            connection.parser.receive_data(bytes(data))

    # Send

    async def _send(self, connection: _Connection, response: Response, *, has_body: bool) -> None:
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Connection", "close"),
        ]
        head = h11.Response(status_code=response.status, headers=headers, reason=STATUS[response.status].encode())
        data = connection.parser.send(head) or b""
        if has_body:
            data += connection.parser.send(h11.Data(data=response.body)) or b""
        await self._send_all(connection, data, self._now() + self._limits.seconds)
        await connection.stream.send_eof()

    async def _send_all(self, connection: _Connection, data: bytes, end: float) -> None:
        view = memoryview(data)
        while view:
            sent = await self._in_time(end, lambda left=view: connection.stream.socket.send(left))  # type: ignore[misc]
            view = view[sent:]

    async def _discard(self, connection: _Connection) -> None:
        """Reads on until the client has read why it was refused."""
        end = self._now() + DISCARD_SECONDS
        left = MOST_DISCARDED_BYTES
        while left > 0:
            data = await self._in_time(end, lambda: connection.stream.receive_some(RECEIVED_BYTES))
            if not data:
                return
            left -= len(data)

    async def _in_time(self, end: float, act: Callable[[], Awaitable[T]]) -> T:
        """Returns what `act` does, which a cancellation does not leave half done.

        Raises:
            _TooSlowError: it takes until the end. If a test moves trio's clock, it is begun again.
        """
        while (left := end - self._now()) > 0:
            with trio.move_on_after(left):
                return await act()
        raise _TooSlowError


async def _until_closed(stream: trio.SocketStream) -> None:
    """Returns once the client has closed the connection. What it sends is dropped; a client that sends much is closed too."""
    left = MOST_DISCARDED_BYTES
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while left > 0:
            data = await stream.receive_some(RECEIVED_BYTES)
            if not data:
                return
            left -= len(data)
