"""A broker inside a Python program or test, in its own thread.

    with EmbeddedBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        ...
        assert [record.value for record in broker.wait_for_records("orders", 2)] == [b"one", b"two"]

Everything is real but the process: clients of any language connect to a port of the loopback interface that the kernel chooses,
and the data is in Kafka's files. Methods that wait block the calling thread; in asyncio, call them by `asyncio.to_thread`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from wirekafka.broker import Broker
from wirekafka.testing.advancing_clock import AdvancingClock
from wirekafka.testing.async_broker import TIMEOUT_SECONDS, AsyncEmbeddedBroker, Snapshot, open_embedded, settings_of_fork
from wirekafka.testing.faults import ActiveFault, FaultSpec
from wirekafka.testing.groups import GroupView
from wirekafka.testing.library_log import use_logging
from wirekafka.testing.loop_thread import LoopThread
from wirekafka.testing.stored_records import StoredRecord

T = TypeVar("T")


class EmbeddedClock:
    """The time of an embedded broker."""

    def __init__(self, embedded: EmbeddedBroker) -> None:
        self._embedded = embedded

    def now_ms(self) -> int:
        """Returns the milliseconds since 1970, as the broker sees them."""
        return self._embedded.call(_now_ms)

    def advance(self, seconds: float) -> None:
        """Moves the time forward: sessions and transactions time out, segments are deleted. Nobody waits for it.

        Clients keep their own time. `reset` and `restore` set the broker's time to that of the machine.

        Raises:
            ValueError: the seconds are negative, or not finite.
        """
        self._embedded.call(AsyncEmbeddedBroker.advance, seconds)


async def _now_ms(broker: AsyncEmbeddedBroker) -> int:
    return broker.broker.clock.now_ms()


class EmbeddedBroker:
    """A broker that runs while the with-block lasts; it listens when the block begins. Its data is removed at the end.

    Attributes:
        clock: the broker's time.

    Args:
        storage: "disk", a temporary directory; or "memory", one in the file system in memory, whose syncs cost nothing.
        data: what it has at the beginning; the snapshot stays as it is.
        control_port: the port of 127.0.0.1 on which tests in other languages control the broker over HTTP; 0 lets the kernel
            choose, and None serves no such port.
        release: the release as which the broker behaves, such as "2.8" or "redpanda-24.3"; None for all versions that it knows.
        settings: any settings of a broker, with `_` for each dot: `EmbeddedBroker(num_partitions=3)`. Those that differ from
            a broker's defaults are `listeners`, and `group.initial.rebalance.delay.ms`, which is 0.
    """

    def __init__(
        self,
        *,
        storage: str = "disk",
        data: Snapshot | None = None,
        control_port: int | None = None,
        release: str | None = None,
        **settings: object,
    ) -> None:
        self.clock = EmbeddedClock(self)
        self._storage = storage
        self._settings = settings if release is None else settings | {"wirekafka_api_release": release}
        self._control_port = control_port
        self._control_url: str | None = None
        self._loop = LoopThread("broker", partial(self._open, data), AdvancingClock())

    def __enter__(self) -> EmbeddedBroker:
        if not self._loop.is_running:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the broker, as the with-statement does; `stop` ends it.

        Raises:
            ValueError: there is no such storage here, or the broker runs already.
            SnapshotIsClosedError: the data that it has at the beginning was removed; that of a fork is there for its first start.
            ConfigError, KafkaError, ListenError, OSError: as `open_broker`; ListenError also if the control port is taken.
        """
        use_logging()
        self._loop.start()

    def stop(self) -> None:
        """Stops the broker and removes its data; does nothing if it does not run.

        Raises:
            Exception: what has ended the broker before, such as a failed disk.
        """
        self._loop.stop()

    def call(self, method: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Calls an async function in the broker's loop, with the `AsyncEmbeddedBroker` as its first argument; returns its result.

        Raises:
            ValueError: the broker does not run.
            Exception: what the function raises.
        """
        return self._loop.call(method, *args)

    @asynccontextmanager
    async def _open(self, data: Snapshot | None) -> AsyncIterator[AsyncEmbeddedBroker]:
        async with open_embedded(storage=self._storage, data=data, published=None, **self._settings) as broker:
            if self._control_port is None:
                yield broker
                return
            from wirekafka.testing.control.port import open_control

            async with open_control(broker, self._control_port) as self._control_url:
                yield broker

    @property
    def control_url(self) -> str:
        """The URL of the control port, such as "http://127.0.0.1:40002"; `docs/control.md` has what it serves.

        Raises:
            ValueError: the broker was made without `control_port`.
        """
        if self._control_url is None:
            raise ValueError("this broker has no control port: EmbeddedBroker(control_port=0) has one")
        return self._control_url

    @property
    def bootstrap(self) -> str:
        """What clients take as `bootstrap.servers`, such as "127.0.0.1:40001". It does not change."""
        return self.call(_bootstrap)

    @property
    def path(self) -> Path:
        """The data directory. `reset` and `restore` replace it."""
        return self.call(_path)

    def on_loop(self, look: Callable[[Broker], T]) -> T:
        """Calls a function with the parts of the broker in the broker's loop, and returns its result."""

        async def run(broker: AsyncEmbeddedBroker) -> T:
            return look(broker.broker)

        return self.call(run)

    # Copies

    def reset(self) -> None:
        """Replaces the broker by an empty one on the same port: no topics, groups, transactions or settings, and the time is now.

        Connections end, and clients connect again. Faults end. The next empty broker is opened meanwhile, so that a reset takes
        about 1 ms.

        Raises:
            FixedPortError: `wirekafka.metrics.listener` has another port than 0.
        """
        self.call(AsyncEmbeddedBroker.reset)

    def snapshot(self) -> Snapshot:
        """Returns a copy of all data, in milliseconds whatever the size: sealed segments are hard links.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
            OSError: the copy cannot be made.
        """
        return self.call(AsyncEmbeddedBroker.snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        """Replaces the broker by one with the data of a snapshot, which can be restored again.

        Connections end, and clients connect again. Faults go on.

        Raises:
            FixedPortError: `wirekafka.metrics.listener` has another port than 0.
            SnapshotIsClosedError: the data of the snapshot was removed.
            OSError: the copy cannot be made.
        """
        self.call(AsyncEmbeddedBroker.restore, snapshot)

    def fork(self) -> EmbeddedBroker:
        """Starts another broker with a copy of all data, on another port. The caller stops it, or uses it in a with-block.

        The fork has no faults, and a time of its own, which begins at that of the machine.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
            OSError: the copy cannot be made.
        """
        snapshot = self.snapshot()
        try:
            port = None if self._control_port is None else 0
            settings = settings_of_fork(self._settings)
            made = EmbeddedBroker(storage=self._storage, data=snapshot, release=None, control_port=port, **settings)
            made.start()
        finally:
            snapshot.close()
        return made

    # Topics and records

    def create_topic(self, name: str, partitions: int = 1, **settings: object) -> None:
        """Creates a topic.

        Args:
            settings: the settings of the topic, with `_` for each dot.

        Raises:
            KafkaError: as CreateTopics answers, such as TOPIC_ALREADY_EXISTS.
        """

        async def create(broker: AsyncEmbeddedBroker) -> None:
            await broker.create_topic(name, partitions, **settings)

        self.call(create)

    def records(self, topic: str, partition: int | None = None) -> list[StoredRecord]:
        """Returns all that a topic has, by partition and offset: aborted records and markers of transactions too.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION; KAFKA_STORAGE_ERROR.
        """
        return self.call(AsyncEmbeddedBroker.records, topic, partition)

    def wait_for_records(
        self, topic: str, count: int, *, partition: int | None = None, timeout_s: float = TIMEOUT_SECONDS
    ) -> list[StoredRecord]:
        """Waits until a topic has at least so many records that a `read_committed` consumer gets; returns these.

        Raises:
            TimeoutError: it has fewer; the message says what it has.
        """
        wait = partial(AsyncEmbeddedBroker.wait_for_records, partition=partition, timeout_s=timeout_s)
        return self.call(wait, topic, count)

    # Groups

    def group(self, group_id: str) -> GroupView:
        """Returns a group of any type; one that is "Dead" if there is no such group."""
        return self.call(AsyncEmbeddedBroker.group, group_id)

    def groups(self) -> list[GroupView]:
        """Returns all groups, by name."""
        return self.call(AsyncEmbeddedBroker.groups)

    def wait_for_group_stable(
        self, group_id: str, *, members: int | None = None, timeout_s: float = TIMEOUT_SECONDS
    ) -> GroupView:
        """Waits until a group has members and all of them have their partitions; returns the group.

        Args:
            members: it has exactly so many members.

        Raises:
            TimeoutError: it is not; the message says what it is.
        """
        wait = partial(AsyncEmbeddedBroker.wait_for_group_stable, members=members, timeout_s=timeout_s)
        return self.call(wait, group_id)

    def wait_for_committed(
        self, group_id: str, topic: str, offset: int, *, partition: int = 0, timeout_s: float = TIMEOUT_SECONDS
    ) -> int:
        """Waits until a group has committed an offset of a partition, or a later one; returns the committed offset.

        Raises:
            TimeoutError: it has not; the message says what it has committed.
        """
        wait = partial(AsyncEmbeddedBroker.wait_for_committed, partition=partition, timeout_s=timeout_s)
        return self.call(wait, group_id, topic, offset)

    # Faults

    @contextmanager
    def fault(self, **fields: Any) -> Iterator[ActiveFault]:
        """Orders a fault for as long as the block lasts: `with broker.fault(api="Produce", lose="reply", times=1) as fault:`.

        Args:
            fields: which requests are hit, and what happens to them, as in `FaultSpec`.

        Raises:
            ValueError: there is no such fault, or no such field; the text names the fields.
        """
        fault = self.call(AsyncEmbeddedBroker.add_fault, FaultSpec.of(fields))
        try:
            yield fault
        finally:
            # A test may have stopped the broker, which has ended the fault.
            if self._loop.is_running:
                self.call(AsyncEmbeddedBroker.remove_fault, fault)

    def describe(self) -> str:
        """Returns the topics and groups in one paragraph, for the report of a failed test."""
        return self.call(AsyncEmbeddedBroker.describe)


async def _bootstrap(broker: AsyncEmbeddedBroker) -> str:
    return broker.bootstrap


async def _path(broker: AsyncEmbeddedBroker) -> Path:
    return broker.path
