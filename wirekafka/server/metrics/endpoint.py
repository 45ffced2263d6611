"""The HTTP endpoint of `wirekafka.metrics.listener`: `GET /metrics`, one request a connection.

Rules of this file: a client can neither hold nor grow the broker. A connection lives `CONNECTION_SECONDS` at most, its request
has `MOST_HEAD_BYTES` at most, and when there are `MOST_CONNECTIONS`, the oldest one is closed for a new one. Metrics are read at
most once in `FRESH_SECONDS`, whoever asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog
import trio

from wirekafka.config.endpoints import parse_listeners
from wirekafka.faults import isolate, log_once
from wirekafka.pending import Pending
from wirekafka.server.listener import Address, ListenError
from wirekafka.server.metrics.text import CONTENT_TYPE

log = structlog.get_logger(__name__)

SETTING = "wirekafka.metrics.listener"
CONNECTION_SECONDS = 5.0
MOST_CONNECTIONS = 16
MOST_HEAD_BYTES = 8192
FRESH_SECONDS = 1.0
PAUSE_SECONDS = 0.1
"""The pause after a connection could not be accepted, for example because descriptors are exhausted."""

END_OF_HEAD = b"\r\n\r\n"
STATUS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}

Read = Callable[[], "str | Pending[str]"]
"""Reads the metrics, now or in slices."""


class CachedMetrics:
    """The newest metrics, which all requests of `FRESH_SECONDS` share, and those that come while they are read."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._result: str | Exception = ""
        self._read_at = float("-inf")
        self._reading: trio.Event | None = None

    async def get(self) -> str:
        """Returns the metrics.

        Cancellation: the reading goes on for other requests.

        Raises:
            Exception: the metrics could not be read.
        """
        if trio.current_time() - self._read_at >= FRESH_SECONDS:
            await self._renew()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    async def _renew(self) -> None:
        if self._reading is not None:
            await self._reading.wait()
            return
        result = self._read()
        if not isinstance(result, Pending):
            self._take(result)
            return
        self._reading = done = trio.Event()
        result.then(self._take_late)
        await done.wait()

    def _take(self, result: str | Exception) -> None:
        self._result, self._read_at = result, trio.current_time()

    def _take_late(self, result: str | Exception) -> None:
        self._take(result)
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.set()


async def serve_metrics(listener: str, read: Read, *, task_status: trio.TaskStatus[Address]) -> None:
    """Serves the metrics until cancelled.

    Args:
        listener: HOST:PORT.
        task_status: receives the address, with the real port.

    Raises:
        ListenError: the address cannot be listened on.
    """
    [wanted] = parse_listeners(SETTING, [f"METRICS://{listener}"])
    try:
        bound = await trio.open_tcp_listeners(wanted.port, host=wanted.host or None)
    except OSError as error:
        raise ListenError(f"Cannot listen on {wanted.host}:{wanted.port} ({SETTING}): {error.strerror or error}") from None
    metrics = CachedMetrics(read)
    open_scopes: dict[trio.CancelScope, None] = {}
    async with trio.open_nursery() as nursery:
        for each in bound:
            nursery.start_soon(_accept, each, nursery, open_scopes, metrics.get)
        address = Address(wanted.host, bound[0].socket.getsockname()[1])
        log.info("Metrics are served", address=f"http://{address}/metrics")
        task_status.started(address)


async def _accept(
    listener: trio.SocketListener,
    nursery: trio.Nursery,
    open_scopes: dict[trio.CancelScope, None],
    get: Callable[[], Awaitable[str]],
) -> None:
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError:
                await trio.sleep(PAUSE_SECONDS)
                continue
            while len(open_scopes) >= MOST_CONNECTIONS:
                oldest = next(iter(open_scopes))
                del open_scopes[oldest]
                oldest.cancel()
            scope = trio.CancelScope(deadline=trio.current_time() + CONNECTION_SECONDS)
            open_scopes[scope] = None
            nursery.start_soon(_serve, stream, scope, open_scopes, get)


async def _serve(
    stream: trio.SocketStream,
    scope: trio.CancelScope,
    open_scopes: dict[trio.CancelScope, None],
    get: Callable[[], Awaitable[str]],
) -> None:
    try:
        with scope, isolate("A request for metrics failed"), suppress(trio.BrokenResourceError):
            status, body, has_body = await _answer(stream, get)
            await stream.send_all(_response(status, body, has_body=has_body))
            await stream.send_eof()
    finally:
        open_scopes.pop(scope, None)
        stream.socket.close()


async def _answer(stream: trio.SocketStream, get: Callable[[], Awaitable[str]]) -> tuple[int, str, bool]:
    """Receives the request; returns the status, the body, and whether the body is sent."""
    head = b""
    while END_OF_HEAD not in head:
        received = await stream.receive_some(MOST_HEAD_BYTES)
        head += received
        if len(head) > MOST_HEAD_BYTES:
            return 431, f"a request may have {MOST_HEAD_BYTES} bytes\n", True
        if not received:
            return 400, "the request has no end\n", True
    words = head.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return 400, "this is HTTP/1.1: ask for /metrics\n", True
    method, path = words[0], words[1].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        return 405, "only GET is served\n", True
    if path != b"/metrics":
        return 404, "only /metrics is served\n", method == b"GET"
    try:
        return 200, await get(), method == b"GET"
    except Exception as error:  # noqa: BLE001 - a fault costs the answer, not the broker
        log_once(error, "Metrics could not be read")
        return 500, "the metrics could not be read; the log of the broker says why\n", True


def _response(status: int, body: str, *, has_body: bool) -> bytes:
    content = body.encode()
    lines = (
        f"HTTP/1.1 {status} {STATUS[status]}",
        f"Content-Type: {CONTENT_TYPE}",
        f"Content-Length: {len(content)}",
        "Connection: close",
    )
    head = "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"
    return head + content if has_body else head
