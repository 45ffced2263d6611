"""Several brokers and a ZooKeeper in one process, for tests. It needs no JVM and no other program.

    async with open_cluster(3, path) as cluster:
        client = Producer({"bootstrap.servers": cluster.bootstrap})

The brokers listen on ports of the loopback interface that the kernel chooses. They are real brokers: they register in a ZooKeeper
model on a socket, one of them is the controller, and they replicate. A client that blocks runs in another thread, because the
brokers share the loop of the caller.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from wirekafka.config import BrokerConfig
from wirekafka.server.running import RunningBroker, open_broker
from wirekafka.testing.async_broker import AsyncEmbeddedBroker
from wirekafka.testing.fillable_storage import FillableStorage
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.server import serve_model

SESSION_TIMEOUT_MS = 6_000
READY_TIMEOUT_S = 60.0

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "controlled.shutdown.retry.backoff.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
}
"""The settings of the brokers that a test need not know."""


@dataclass(slots=True)
class _Life:
    """The run of one broker.

    Attributes:
        scope: its cancellation stops the broker.
        has_ended: is set once the broker is closed.
    """

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    has_ended: trio.Event = field(default_factory=trio.Event)


class TestCluster:
    """A cluster whose brokers a test stops and starts.

    Attributes:
        zookeeper: the znodes and sessions.
        connect: the address of ZooKeeper, as in `zookeeper.connect`.
        brokers: the brokers that run, by id; the first id is 1.
    """

    __test__ = False  # for pytest, which collects classes by their names

    def __init__(
        self, zookeeper: ModelServer, connect: str, path: Path, settings: Mapping[str, str], nursery: trio.Nursery
    ) -> None:
        self.zookeeper = zookeeper
        self.connect = connect
        self.brokers: dict[int, RunningBroker] = {}
        self._path = path
        self._settings = settings
        self._nursery = nursery
        self._lives: dict[int, _Life] = {}
        self._embedded: dict[int, AsyncEmbeddedBroker] = {}
        self._listeners: dict[int, str] = {}

    @property
    def bootstrap(self) -> str:
        """The addresses of the brokers that run, as in `bootstrap.servers`."""
        return ",".join(str(running.addresses[0]) for _, running in sorted(self.brokers.items()))

    @property
    def broker_ids(self) -> list[int]:
        """The ids of the brokers that were started, whether or not they run."""
        return sorted(self._lives)

    def embedded(self, broker_id: int) -> AsyncEmbeddedBroker:
        """Returns a broker that runs, for faults at it and to look at what it has. Its faults end when it stops.

        Raises:
            KeyError: there is no such broker, or it does not run.
        """
        if broker_id not in self._embedded:
            self._embedded[broker_id] = AsyncEmbeddedBroker.around(self.brokers[broker_id], None)
        return self._embedded[broker_id]

    def config_of(self, broker_id: int) -> BrokerConfig:
        """Returns the settings of a broker. A broker that was started before keeps its port."""
        own = {
            "broker.id": str(broker_id),
            "zookeeper.connect": self.connect,
            "log.dirs": str(self._path / f"broker-{broker_id}"),
        }
        listeners = {"listeners": self._listeners[broker_id]} if broker_id in self._listeners else {}
        return BrokerConfig.load(None, SETTINGS | own | dict(self._settings) | listeners)

    async def start(self, broker_id: int) -> RunningBroker:
        """Starts a broker, new or stopped, and waits until it serves.

        Raises:
            KafkaError, OSError: as `open_broker`, in an exception group from `open_cluster`.
        """
        assert broker_id not in self.brokers, "the broker runs"
        return await self._nursery.start(self._run, broker_id)  # type: ignore[no-any-return]

    async def stop(self, broker_id: int) -> None:
        """Stops a broker in order, and waits for its end.

        Raises:
            KeyError: no broker with this id was started.
        """
        if broker_id not in self._lives:
            raise KeyError(f"there is no broker {broker_id}; these run: {sorted(self.brokers)}")
        life = self._lives[broker_id]
        life.scope.cancel()
        await life.has_ended.wait()

    def expire_session(self, broker_id: int) -> None:
        """Ends the session of a broker with ZooKeeper: the others take it for dead until it registers again.

        Raises:
            KeyError: the broker is not registered.
        """
        chroot = self.connect[self.connect.index("/") :]
        registered = self.zookeeper.tree.find(chroot + paths.broker(broker_id))
        if registered is None:
            raise KeyError(f"broker {broker_id} is not registered; these run: {sorted(self.brokers)}")
        self.zookeeper.expire_session(registered.ephemeral_owner)

    async def _run(self, broker_id: int, task_status: trio.TaskStatus[RunningBroker]) -> None:
        life = self._lives[broker_id] = _Life()
        try:
            with life.scope:
                async with open_broker(self.config_of(broker_id), storage=FillableStorage()) as running:
                    self.brokers[broker_id] = running
                    self._listeners[broker_id] = f"PLAINTEXT://{running.addresses[0]}"
                    task_status.started(running)
                    try:
                        await trio.sleep_forever()
                    finally:
                        del self.brokers[broker_id]
                        self._embedded.pop(broker_id, None)
        finally:
            life.has_ended.set()

    async def _stop_all(self) -> None:
        """Stops the brokers one after the other, so that each has others for its partitions but the last."""
        for broker_id in sorted(self.brokers):
            await self.stop(broker_id)


@asynccontextmanager
async def open_cluster(
    broker_count: int, path: str | Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[TestCluster]:
    """Runs a cluster for as long as the with-block lasts. When the block begins, all brokers serve and know each other.

    Args:
        path: a directory for the data; each broker has a folder in it.
        settings: settings of all brokers, which override those of this module. Topics have as many replicas as there are
            brokers, at most three, unless a client says how many.

    Raises:
        ConfigError: a setting is wrong, in an exception group.
        TooSlowError: the brokers do not find a controller.

    Cancellation: the brokers are stopped in order.
    """
    replicas = str(min(3, broker_count))
    factors = {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": str(min(2, broker_count)),
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": str(min(2, broker_count)),
    }
    model = ModelServer(lambda: round(time.time() * 1000))
    async with serve_model(model, session_timeouts_ms=(1_000, 60_000)) as address, trio.open_nursery() as nursery:
        cluster = TestCluster(model, f"{address}/kafka", Path(path), factors | dict(settings or {}), nursery)
        with trio.fail_after(READY_TIMEOUT_S):
            async with trio.open_nursery() as starting:
                for broker_id in range(1, broker_count + 1):
                    starting.start_soon(cluster.start, broker_id)
            await _until_all_know_all(cluster)
        try:
            yield cluster
        finally:
            with trio.CancelScope(shield=True):
                await cluster._stop_all()
        nursery.cancel_scope.cancel()


async def _until_all_know_all(cluster: TestCluster) -> None:
    wanted = cluster.brokers.keys()
    while not all(_known_by(running) == wanted for running in cluster.brokers.values()):  # noqa: ASYNC110 - images tell their changes
        await trio.sleep(0.01)


def _known_by(running: RunningBroker) -> Set[int]:
    """Returns the ids of the brokers that a broker knows."""
    member = running.broker.member
    assert member is not None, "the brokers have zookeeper.connect"
    return member.image.brokers.keys()
