"""Serves the control port.

Rules of this file: the port listens on 127.0.0.1. A client can neither hold nor grow the broker, as `server/http` says.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import structlog
import trio

from wirekafka.server.http.server import HttpServer, Limits
from wirekafka.server.listener import Address, ListenError
from wirekafka.server.running import only_cause
from wirekafka.testing.async_broker import AsyncEmbeddedBroker
from wirekafka.testing.control.answers import answer
from wirekafka.testing.control.routes import Control

log = structlog.get_logger(__name__)

HOST = "127.0.0.1"
LIMITS = Limits(connections=64, seconds=10.0, head_bytes=16384, body_bytes=1 << 20)


@asynccontextmanager
async def open_control(broker: AsyncEmbeddedBroker, port: int = 0) -> AsyncIterator[str]:
    """Serves the control port of a broker for as long as the block lasts; the value of the block is its URL.

    Args:
        port: 0 lets the kernel choose.

    Raises:
        ListenError: the port is taken.

    Cancellation: forks that were started through the port end too.
    """
    try:
        listeners = await trio.open_tcp_listeners(port, host=HOST)
    except OSError as error:
        raise ListenError(f"Cannot listen on {HOST}:{port} (the control port): {error.strerror or error}") from None
    url = f"http://{Address(HOST, listeners[0].socket.getsockname()[1])}"
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            control = Control(broker, nursery, open_control)
            # The time of the machine: a test moves that of trio.
            nursery.start_soon(HttpServer(partial(answer, control), LIMITS, time.monotonic).serve, listeners)
            log.info("The control port is served", address=url)
            yield url
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        failure = only_cause(group)
    if failure is not None:
        raise failure
