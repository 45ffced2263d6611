"""A cluster inside a Python program or test: several brokers and a ZooKeeper in one thread.

with EmbeddedCluster(3) as cluster:
producer = Producer({"bootstrap.servers": cluster.bootstrap})
cluster.stop_broker(2)
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from wirekafka.testing.async_broker import kafka_settings, make_root
from wirekafka.testing.cluster import TestCluster, open_cluster
from wirekafka.testing.library_log import use_logging
from wirekafka.testing.loop_thread import LoopThread


class EmbeddedCluster:
    """A cluster that runs while the with-block lasts. When the block begins, all brokers serve and know each other.

    Args:
        broker_count: the number of brokers; their ids begin with 1.
        storage: "disk", a temporary directory; or "memory", one in the file system in memory.
        settings: settings of all brokers, with `_` for each dot; see `open_cluster` for those that differ from the defaults.
    """

    def __init__(self, broker_count: int = 3, *, storage: str = "disk", **settings: object) -> None:
        self._loop = LoopThread("cluster", lambda: _open(broker_count, storage, settings))

    def __enter__(self) -> EmbeddedCluster:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the cluster, as the with-statement does; `stop` ends it.

        Raises:
            ValueError: there is no such storage here, or the cluster runs already.
            ConfigError, TooSlowError, OSError: as `open_cluster`, in an exception group.
        """
        use_logging()
        self._loop.start()

    def stop(self) -> None:
        """Stops the brokers in order and removes their data; does nothing if they do not run."""
        self._loop.stop()

    @property
    def bootstrap(self) -> str:
        """The addresses of the brokers that run, as in `bootstrap.servers`."""
        return self._loop.call(_bootstrap)

    @property
    def broker_ids(self) -> list[int]:
        """The ids of the brokers that run."""
        return self._loop.call(_broker_ids)

    def stop_broker(self, broker_id: int) -> None:
        """Stops a broker in order; its partitions get other leaders.

        Raises:
            KeyError: there is no such broker.
        """
        self._loop.call(TestCluster.stop, broker_id)

    def start_broker(self, broker_id: int) -> None:
        """Starts a broker that was stopped, on its former port, or a new one; returns once it serves.

        Raises:
            ValueError: it runs.
            KafkaError, OSError: as `open_broker`.
        """
        if broker_id in self.broker_ids:
            raise ValueError(f"broker {broker_id} runs already")
        self._loop.call(TestCluster.start, broker_id)

    def expire_session(self, broker_id: int) -> None:
        """Ends the session of a broker with ZooKeeper: the other brokers take it for dead until it registers again.

        Raises:
            KeyError: there is no such broker.
        """
        self._loop.call(_expire_session, broker_id)


@asynccontextmanager
async def _open(broker_count: int, storage: str, settings: dict[str, object]) -> AsyncIterator[TestCluster]:
    root = make_root(storage)
    try:
        async with open_cluster(broker_count, root, kafka_settings(settings)) as cluster:
            yield cluster
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def _bootstrap(cluster: TestCluster) -> str:
    return cluster.bootstrap


async def _broker_ids(cluster: TestCluster) -> list[int]:
    return sorted(cluster.brokers)


async def _expire_session(cluster: TestCluster, broker_id: int) -> None:
    cluster.expire_session(broker_id)
