"""Opens a broker, accepts connections, and closes the broker in order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from wirekafka import __version__
from wirekafka.api.registry import served_versions
from wirekafka.api.releases import releases_of
from wirekafka.broker import Broker, is_loopback
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.config.endpoints import parse_listeners
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import Storage
from wirekafka.pending import Pending
from wirekafka.server.dispatch import Dispatcher
from wirekafka.server.drivers import EpollDriver
from wirekafka.server.health import Health
from wirekafka.server.listener import Address, BoundListener, ConnectionQuotas, Published
from wirekafka.server.logging import is_logged
from wirekafka.server.loop_lag import LoopLag
from wirekafka.server.receive_buffers import MOST_HELD_BYTES

if TYPE_CHECKING:
    from wirekafka.server.first_topics import FirstTopic
    from wirekafka.server.metrics.request_meter import RequestMeter

log = structlog.get_logger(__name__)

CLOSE_SECONDS = 1.5
"""The time that closing may take. After it, recovery restores the data that is not on disk; operators wait two seconds."""

CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman put into every container."""


@dataclass(slots=True)
class RunningBroker:
    """A broker that answers requests.

    Attributes:
        broker: the parts of the broker.
        addresses: the addresses of `listeners`, in their order, with the real ports.
        lag: measures how long the loop was held.
        driver: serves the connections of clients, and those to other brokers.
        dispatcher: handles the requests; a test may replace its `handle`.
        listen: lets a spare broker accept connections; any other broker does so already.
        stop_listening: accepts no more connections, before the broker is closed.
        health: whether clients can use the broker.
        metrics_address: where the metrics are served; None if they are not.
    """

    broker: Broker
    addresses: list[Address]
    lag: LoopLag
    driver: EpollDriver
    dispatcher: Dispatcher
    listen: Callable[[], None]
    stop_listening: Callable[[], None]
    health: Health
    metrics_address: Address | None = None


@asynccontextmanager
async def open_broker(
    config: BrokerConfig,
    clock: Clock | None = None,
    *,
    published: Published | None = None,
    is_spare: bool = False,
    first_topics: Sequence[FirstTopic] = (),
    storage: Storage | None = None,
) -> AsyncIterator[RunningBroker]:
    """Runs a broker for as long as the with-block lasts; when the block begins, the broker answers requests.

    At the end the broker accepts no more connections, closes its connections and abandons their requests, flushes its logs, and
    marks them as closed cleanly.

    An exception of the block reaches the caller without an exception group around it.

    Args:
        published: the address that clients use if they connect through a published port of this container.
        is_spare: the broker accepts no connection before `RunningBroker.listen` is called. It may have the port of another spare
            that runs, so that it replaces that one without a moment in which nobody listens. Not for a member of a cluster.
        storage: the file system of a broker without other brokers; None for the real one.

    Raises:
        ConfigError: settings contradict each other, or name an API that does not exist.
        ListenError: an address cannot be listened on.
        DirectoryLockedError: another broker holds a data directory.
        KafkaError: KAFKA_STORAGE_ERROR, if the data cannot be read; or at the end of the block, which is cancelled then, if all
            data directories have failed; as `create_first_topics`.
        OSError: a data directory cannot be created or read.
    """
    served_versions(config)
    releases_of(config)
    clock = clock or Clock()
    failure: BaseException | None = None
    try:
        if config.is_member:
            assert not is_spare, "a member of a cluster listens once it is registered"
            assert not first_topics, "the controller creates the topics of a cluster"
            async with _running_member(config, clock, published) as running:
                yield running
        else:
            broker = await Broker.open(config, clock, storage)
            assert not (is_spare and first_topics), "a spare broker is empty, or a copy"
            take_part = _spare if is_spare else partial(_alone, first_topics)
            async with _running(broker, published, take_part, shares_ports=is_spare) as running:
                yield running
    except BaseExceptionGroup as group:
        failure = only_cause(group)
    if failure is not None:
        raise failure


@asynccontextmanager
async def _running_member(config: BrokerConfig, clock: Clock, published: Published | None) -> AsyncIterator[RunningBroker]:
    """Runs a member of a cluster; see `open_broker`."""
    from wirekafka.server.membership import enter_cluster, take_part

    async with enter_cluster(config, clock) as cluster:
        broker = await cluster.open_broker(config, clock)
        async with _running(broker, published, partial(take_part, cluster)) as running:
            yield running


Listen = Callable[[], None]
"""Accepts connections from now on."""

TakePart = Callable[[Broker, EpollDriver, trio.Nursery, list[BoundListener], Listen], AbstractAsyncContextManager[None]]
"""Opens the block in which a broker is a part of its cluster; it lets the broker listen."""


@asynccontextmanager
async def _alone(
    first_topics: Sequence[FirstTopic],
    broker: Broker,
    driver: EpollDriver,
    nursery: trio.Nursery,
    listeners: list[BoundListener],
    listen: Listen,
) -> AsyncIterator[None]:
    """The block of a broker without other brokers, which is the whole cluster."""
    if first_topics:
        from wirekafka.server.first_topics import create_first_topics

        create_first_topics(broker, first_topics)
    listen()
    yield


@asynccontextmanager
async def _spare(
    broker: Broker, driver: EpollDriver, nursery: trio.Nursery, listeners: list[BoundListener], listen: Listen
) -> AsyncIterator[None]:
    """The block of a broker without other brokers that listens later."""
    yield


@asynccontextmanager
async def _running(
    broker: Broker, published: Published | None, take_part: TakePart, *, shares_ports: bool = False
) -> AsyncIterator[RunningBroker]:
    """Serves clients, and closes the broker at the end."""
    config = broker.config
    health = Health()
    try:
        with _bound(config, published, shares_ports=shares_ports) as listeners, trio.CancelScope() as whole:
            addresses = [listener.address for listener in listeners]
            broker.logs.announce(", ".join(map(str, addresses)))
            async with (
                _background(outlives_cancellation=config.is_member) as background,
                _serving(broker, listeners, health) as (lag, driver, dispatcher, listen, meter),
            ):
                broker.start(background)
                metrics_address = None if meter is None else await _serve_metrics(broker, driver, lag, meter, health, background)
                background.start_soon(_stop_without_directories, broker, whole)
                async with take_part(broker, driver, background, listeners, listen):
                    log.info(
                        "Started",
                        version=__version__,
                        node_id=broker.node_id,
                        cluster_id=broker.cluster_id,
                        listeners=[str(address) for address in addresses],
                        log_dirs=config.log_dirs,
                    )

                    def stop_listening() -> None:
                        for listener in listeners:
                            listener.stop()

                    try:
                        yield RunningBroker(
                            broker, addresses, lag, driver, dispatcher, listen, stop_listening, health, metrics_address
                        )
                    finally:
                        health.reason = "the broker stops"
        if broker.logs.all_failed.is_set():
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "all data directories have failed")
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS) as scope:
            await broker.close()
        if scope.cancelled_caught:
            log.warning("Closing took too long: the logs will be recovered at the next start")


async def _serve_metrics(
    broker: Broker, driver: EpollDriver, lag: LoopLag, meter: RequestMeter, health: Health, nursery: trio.Nursery
) -> Address:
    """Begins to serve the metrics; returns their address.

    Raises:
        ListenError: the address cannot be listened on.
    """
    from wirekafka.server.metrics.broker_metrics import BrokerMetrics
    from wirekafka.server.metrics.endpoint import SETTING, serve_metrics

    metrics = BrokerMetrics(broker, driver, lag, meter)

    def read() -> str | Pending[str]:
        return broker.slices.run(metrics.read())

    address: Address = await nursery.start(serve_metrics, broker.config.text(SETTING), read, health)
    return address


@asynccontextmanager
async def _background(*, outlives_cancellation: bool) -> AsyncIterator[trio.Nursery]:
    """Opens a nursery whose tasks end with the block.

    Args:
        outlives_cancellation: a cancellation from outside reaches the block only. The tasks go on until the block has ended, so
            that it can say farewell to other brokers.
    """
    async with trio.open_nursery() as nursery:
        tasks = await nursery.start(_run_shielded) if outlives_cancellation else nursery
        try:
            yield tasks
        finally:
            tasks.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def _run_shielded(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as tasks:
            task_status.started(tasks)
            await trio.sleep_forever()


def only_cause(error: BaseException) -> BaseException:
    """Returns the exception inside nested groups of one exception each; a group of several exceptions is returned as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _stop_without_directories(broker: Broker, scope: trio.CancelScope) -> None:
    """Ends a broker that has no data directory left.

    Source: LogManager.handleLogDirFailure.
    """
    await broker.logs.all_failed.wait()
    scope.cancel()


@contextmanager
def _bound(config: BrokerConfig, published: Published | None, *, shares_ports: bool) -> Iterator[list[BoundListener]]:
    """Binds the sockets of the listeners, which do not listen yet, and closes them at the end."""
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(closing(BoundListener(listener, config, published, shares_port=shares_ports)))
            for listener in config.listeners
        ]
        _say_what_clients_see(config, published)
        yield listeners


def most_held_bytes(config: BrokerConfig) -> int:
    """Returns the most bytes of memory for partly received requests: `queued.max.request.bytes` or its default."""
    queued = config.integer("queued.max.request.bytes")
    return queued if queued > 0 else MOST_HELD_BYTES


@asynccontextmanager
async def _serving(
    broker: Broker, listeners: list[BoundListener], health: Health
) -> AsyncIterator[tuple[LoopLag, EpollDriver, Dispatcher, Listen, RequestMeter | None]]:
    """Serves connections once the block lets the broker listen, and measures the loop; at the end it closes the connections."""
    lag = LoopLag()
    config = broker.config
    quotas = ConnectionQuotas(config)
    max_idle_ms = config.integer("connections.max.idle.ms")
    meter = _meter_of(config)
    dispatcher = Dispatcher(broker, logs_requests=is_logged("debug"), meter=meter)
    driver = EpollDriver(
        dispatcher,
        max_idle_ms=max_idle_ms if max_idle_ms >= 0 else None,
        on_close=quotas.leave,
        lag=lag,
        most_held_bytes=most_held_bytes(config),
    )
    async with _background(outlives_cancellation=config.is_member) as nursery:
        nursery.start_soon(driver.run)

        def listen() -> None:
            for listener in listeners:
                listener.listen(config.integer("socket.listen.backlog.size"))
                nursery.start_soon(listener.accept, driver, quotas)
            health.reason = None

        trio.lowlevel.add_instrument(lag)
        try:
            with lag.collections.measured():
                yield lag, driver, dispatcher, listen, meter
        finally:
            trio.lowlevel.remove_instrument(lag)


def _meter_of(config: BrokerConfig) -> RequestMeter | None:
    """Returns what counts the requests; None if no metrics are served."""
    if not config.get("wirekafka.metrics.listener"):
        return None
    from wirekafka.server.metrics.request_meter import RequestMeter

    return RequestMeter()


def _say_what_clients_see(config: BrokerConfig, published: Published | None) -> None:
    """Logs the parts of `listeners` that are ignored, and advertised addresses that clients may be unable to use."""
    opened = config.listeners
    skipped = [str(each) for each in parse_listeners("listeners", config.items("listeners")) if each not in opened]
    if skipped:
        log.info("Listeners for controllers are not opened: this broker has no separate controller", listeners=skipped)
    is_reachable = not all(is_loopback(listener.host) for listener in opened)
    is_told = published is not None or config.advertised_listeners
    if is_reachable and not is_told and any(os.path.exists(path) for path in CONTAINER_MARKS):
        log.info(
            "Clients are told the address of this container; if they reach it by another one, such as a published port, "
            "set that one by --published, --advertise or advertised.listeners"
        )
