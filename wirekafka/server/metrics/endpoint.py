"""The HTTP endpoint of `wirekafka.metrics.listener`: `GET /metrics` for Prometheus, and `GET /health` for probes.

Rules of this file: metrics are read at most once in `FRESH_SECONDS`, whoever asks. `server/http` limits the clients.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from wirekafka.config.endpoints import parse_listeners
from wirekafka.faults import log_once
from wirekafka.pending import Pending
from wirekafka.server.health import Health
from wirekafka.server.http import probes
from wirekafka.server.http.messages import Request, Response
from wirekafka.server.http.server import HttpServer, Limits
from wirekafka.server.listener import Address, ListenError
from wirekafka.server.metrics.text import CONTENT_TYPE

log = structlog.get_logger(__name__)

SETTING = "wirekafka.metrics.listener"
LIMITS = Limits()
FRESH_SECONDS = 1.0

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


async def serve_metrics(listener: str, read: Read, health: Health, *, task_status: trio.TaskStatus[Address]) -> None:
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

    async def answer(request: Request) -> Response:
        return await _answer(request, metrics, health)

    address = Address(wanted.host, bound[0].socket.getsockname()[1])
    log.info("Metrics are served", address=f"http://{address}/metrics")
    task_status.started(address)
    await HttpServer(answer, LIMITS).serve(bound)


async def _answer(request: Request, metrics: CachedMetrics, health: Health) -> Response:
    if request.method not in ("GET", "HEAD"):
        return Response.of_text(405, "only GET is served\n")
    if request.path in probes.PATHS:
        return probes.answer_probe(request.path, health)
    if request.path != "/metrics":
        return Response.of_text(404, "only /metrics and /health are served\n")
    try:
        return Response(200, (await metrics.get()).encode(), CONTENT_TYPE)
    except Exception as error:  # noqa: BLE001 - a fault costs the answer, not the broker
        log_once(error, "Metrics could not be read")
        return Response.of_text(500, "the metrics could not be read; the log of the broker says why\n")
