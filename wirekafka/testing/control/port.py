"""Serves the control port of a broker or of a cluster.

Rules of this file: the port listens on 127.0.0.1. A client can neither hold nor grow the broker, as `server/http` says.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog
import trio

from wirekafka.server.http.messages import Answer
from wirekafka.server.http.server import HttpServer, Limits
from wirekafka.server.listener import Address, ListenError
from wirekafka.server.running import only_cause
from wirekafka.testing.async_broker import AsyncEmbeddedBroker
from wirekafka.testing.cluster import TestCluster
from wirekafka.testing.control.answers import answer
from wirekafka.testing.control.cluster_routes import CLUSTER_ROUTES, ClusterControl
from wirekafka.testing.control.routes import ROUTES, Control

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
    async with _serve(port, lambda nursery: partial(answer, Control(broker, nursery, open_control), ROUTES)) as url:
        yield url


@asynccontextmanager
async def open_cluster_control(cluster: TestCluster, port: int = 0) -> AsyncIterator[str]:
    """Serves the control port of a cluster for as long as the block lasts; the value of the block is its URL.

    Args:
        port: 0 lets the kernel choose.

    Raises:
        ListenError: the port is taken.
    """
    async with _serve(
        port, lambda nursery: partial(answer, ClusterControl(cluster, nursery, open_control), CLUSTER_ROUTES)
    ) as url:
        yield url


@asynccontextmanager
async def _serve(port: int, make_answer: Callable[[trio.Nursery], Answer]) -> AsyncIterator[str]:
    """Serves a port; the value of the block is its URL.

    Args:
        make_answer: makes what answers the requests; its nursery ends with the block.

    Raises:
        ListenError: the port is taken.
    """
    try:
        listeners = await trio.open_tcp_listeners(port, host=HOST)
    except OSError as error:
        raise ListenError(f"Cannot listen on {HOST}:{port} (the control port): {error.strerror or error}") from None
    url = f"http://{Address(HOST, listeners[0].socket.getsockname()[1])}"
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            # The time of the machine: a test moves that of trio.
            nursery.start_soon(HttpServer(make_answer(nursery), LIMITS, time.monotonic).serve, listeners)
            log.info("The control port is served", address=url)
            yield url
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        failure = only_cause(group)
    if failure is not None:
        raise failure
