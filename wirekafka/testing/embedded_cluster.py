"""A cluster inside a Python program or test: several brokers and a ZooKeeper in one thread.

with EmbeddedCluster(3) as cluster:
producer = Producer({"bootstrap.servers": cluster.bootstrap})
cluster.stop_broker(2)
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any

from wirekafka.testing.async_broker import AsyncEmbeddedBroker, kafka_settings, make_root
from wirekafka.testing.cluster import TestCluster, open_cluster
from wirekafka.testing.faults import ActiveFault, FaultSpec
from wirekafka.testing.library_log import use_logging
from wirekafka.testing.loop_thread import LoopThread


class EmbeddedCluster:
    """A cluster that runs while the with-block lasts. When the block begins, all brokers serve and know each other.

    Args:
        broker_count: the number of brokers; their ids begin with 1.
        storage: "disk", a temporary directory; or "memory", one in the file system in memory.
        control_port: the port of 127.0.0.1 on which tests in other languages control the cluster over HTTP; 0 lets the kernel
            choose, and None serves no such port.
        settings: settings of all brokers, with `_` for each dot; see `open_cluster` for those that differ from the defaults.
    """

    def __init__(
        self, broker_count: int = 3, *, storage: str = "disk", control_port: int | None = None, **settings: object
    ) -> None:
        self._control_port = control_port
        self._control_url: str | None = None
        self._loop = LoopThread("cluster", lambda: self._open(broker_count, storage, settings))

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

    @asynccontextmanager
    async def _open(self, broker_count: int, storage: str, settings: dict[str, object]) -> AsyncIterator[TestCluster]:
        root = make_root(storage)
        try:
            async with open_cluster(broker_count, root, kafka_settings(settings)) as cluster:
                if self._control_port is None:
                    yield cluster
                    return
                from wirekafka.testing.control.port import open_cluster_control

                async with open_cluster_control(cluster, self._control_port) as self._control_url:
                    yield cluster
        finally:
            shutil.rmtree(root, ignore_errors=True)

    @property
    def control_url(self) -> str:
        """The URL of the control port, such as "http://127.0.0.1:40002"; `docs/control.md` has what it serves.

        Raises:
            ValueError: the cluster was made without `control_port`.
        """
        if self._control_url is None:
            raise ValueError("this cluster has no control port: EmbeddedCluster(control_port=0) has one")
        return self._control_url

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

    @contextmanager
    def fault(self, broker_id: int, **fields: Any) -> Iterator[ActiveFault]:
        """Orders a fault at one broker for as long as the block lasts, or until the broker stops.

        Args:
            fields: which requests are hit, and what happens to them, as in `FaultSpec`.

        Raises:
            KeyError: there is no such broker, or it does not run.
            ValueError: there is no such fault, or no such field; the text names the fields.
        """
        broker, fault = self._loop.call(_add_fault, broker_id, FaultSpec.of(fields))
        try:
            yield fault
        finally:
            self._loop.call(_remove_fault, broker, fault)


async def _add_fault(cluster: TestCluster, broker_id: int, spec: FaultSpec) -> tuple[AsyncEmbeddedBroker, ActiveFault]:
    broker = cluster.embedded(broker_id)
    return broker, await broker.add_fault(spec)


async def _remove_fault(cluster: TestCluster, broker: AsyncEmbeddedBroker, fault: ActiveFault) -> None:
    await broker.remove_fault(fault)


async def _bootstrap(cluster: TestCluster) -> str:
    return cluster.bootstrap


async def _broker_ids(cluster: TestCluster) -> list[int]:
    return sorted(cluster.brokers)


async def _expire_session(cluster: TestCluster, broker_id: int) -> None:
    cluster.expire_session(broker_id)
