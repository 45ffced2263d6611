"""A broker inside a trio program, which a test empties, copies, inspects, and waits for.

    async with open_embedded(num_partitions=3) as broker:
        ...                                      # clients connect to broker.bootstrap
        await broker.wait_for_records("orders", 5)
        await broker.reset()

`EmbeddedBroker` is the same broker for programs that do not run on trio; it calls these methods from its own thread.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from wirekafka.api.metadata import MetadataRequest
from wirekafka.broker import Broker
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.server.listener import Published
from wirekafka.server.running import RunningBroker, only_cause
from wirekafka.testing.advancing_clock import AdvancingClock
from wirekafka.testing.faults import STALE_METADATA_VERSION, ActiveFault, FaultInjector, FaultSpec
from wirekafka.testing.fillable_storage import disk_of
from wirekafka.testing.generations import Generation, Generations
from wirekafka.testing.groups import GroupView, read_group, read_groups
from wirekafka.testing.local_client import LocalClient
from wirekafka.testing.snapshots import copy_closed, copy_data
from wirekafka.testing.stored_records import CommittedRecords, StoredRecord, stored_records
from wirekafka.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

MEMORY = "/dev/shm"  # noqa: S108
"""The file system in memory that Linux mounts."""

MOST_PARTITIONS = (1 << 31) - 1
"""The greatest number of the field in a request."""

POLL_SECONDS = 0.005
DEFAULT_REPLICAS = -1
"""In CreateTopics: as `default.replication.factor` (KIP-464)."""

TIMEOUT_SECONDS = 10.0
LOOKS_SHARE = 4
"""A wait sleeps this many times as long as its last look took."""

OWN_PORT = {"listeners": "PLAINTEXT://127.0.0.1:0"}

METRICS_LISTENER = "wirekafka.metrics.listener"

OF_ONE_BROKER = ("advertised.listeners", METRICS_LISTENER)
"""Addresses that a fork does not take over: its clients would reach the other broker, whose metrics have the port."""

SETTINGS = OWN_PORT | {"group.initial.rebalance.delay.ms": "0"}
"""The settings that differ from those of a broker that `wirekafka serve` starts."""

DIRECTORIES = ("log.dirs", "log.dir")
"""The settings that name data directories, of which a broker for a test has none."""

KEPT = "this broker keeps its data: only a broker with temporary data can be emptied and copied (wirekafka serve --temporary)"


class CannotReplaceError(RuntimeError):
    """Another broker cannot take the place of the one that runs. The text says why."""


class DataIsKeptError(CannotReplaceError):
    """The data of the broker is not that of a test."""

    def __init__(self) -> None:
        super().__init__(KEPT)


class FixedPortError(CannotReplaceError):
    """The broker serves its metrics on a port that the next broker would need while this one still runs."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{METRICS_LISTENER}={address} has a fixed port, which two brokers cannot have for a moment: "
            "set port 0, or leave it out, to use reset and restore"
        )


class SnapshotIsClosedError(ValueError):
    """The data of a snapshot was removed."""

    def __init__(self) -> None:
        super().__init__(
            "the snapshot was closed, or the broker that made it has stopped: call snapshot() again. "
            "A fork that was stopped does not start again: call fork() again"
        )


class Snapshot:
    """The data of a broker at one moment. It lasts as long as the broker that made it, if it is not closed before.

    Attributes:
        path: a data directory that no broker has opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def copy_to(self, path: str) -> None:
        """Copies the data to a new directory.

        Raises:
            SnapshotIsClosedError: it was removed.
            OSError: the copy cannot be made.
        """
        if not os.path.isdir(self.path):
            raise SnapshotIsClosedError
        copy_closed(self.path, path)

    def close(self) -> None:
        """Removes the data."""
        shutil.rmtree(self.path, ignore_errors=True)


class AsyncEmbeddedBroker:
    """A running broker.

    Attributes:
        settings: its settings, with Kafka's names.
    """

    def __init__(
        self, settings: Mapping[str, str], root: str, generations: Generations | None, clock: AdvancingClock | None
    ) -> None:
        self.settings = dict(settings)
        self._root = root
        self._opener = generations
        self._clock = clock
        self._current: Generation | None = None
        self._spares: list[Generation] = []
        self._is_preparing = False
        self._faults: list[ActiveFault] = []
        self._injector: FaultInjector | None = None
        self._count = 0

    @classmethod
    def around(cls, running: RunningBroker, clock: AdvancingClock | None) -> AsyncEmbeddedBroker:
        """Returns a broker that was opened by `open_broker`, and whose data a test neither empties nor copies.

        Args:
            clock: the time of the loop and of the broker; None if they follow another clock.
        """
        made = cls({}, "", None, clock)
        made._serve(Generation(running, running.broker.config.log_dirs[0], trio.CancelScope()))
        return made

    # The broker

    @property
    def running(self) -> RunningBroker:
        """The broker that serves. `reset` and `restore` replace it."""
        return self._serving.running

    @property
    def broker(self) -> Broker:
        """The parts of the broker, for what this class does not offer. `reset` and `restore` replace it."""
        return self._serving.running.broker

    @property
    def bootstrap(self) -> str:
        """What clients take as `bootstrap.servers`. It does not change."""
        return str(self._serving.running.addresses[0])

    @property
    def path(self) -> Path:
        """The data directory. `reset` and `restore` replace it."""
        return Path(self._serving.path)

    @property
    def _serving(self) -> Generation:
        assert self._current is not None, "the broker is open"
        return self._current

    @property
    def keeps_data(self) -> bool:
        """Whether the data is not that of a test, and is neither emptied nor copied."""
        return self._opener is None

    @property
    def can_advance(self) -> bool:
        """Whether its time can be moved: the loop and the broker follow an `AdvancingClock`."""
        return self._clock is not None

    @property
    def _generations(self) -> Generations:
        if self._opener is None:
            raise DataIsKeptError
        return self._opener

    async def start(self, path: str | None = None) -> None:
        """Serves a data directory, the broker's first one.

        Raises:
            ConfigError, KafkaError, ListenError, DirectoryLockedError, OSError: as `open_broker`.
        """
        await self._switch_to(await self._generations.open(path or self._new_path()))

    async def reset(self) -> None:
        """Replaces the broker by an empty one on the same port: no topics, groups, transactions or settings, and the time is now.

        Connections end, and clients connect again. Faults end.

        Raises:
            DataIsKeptError: it was opened by `around`.
            FixedPortError: `wirekafka.metrics.listener` has another port than 0.
        """
        generations = self._generations
        self._refuse_fixed_port()
        self._faults.clear()
        await self._switch_to(self._spares.pop() if self._spares else await self._open_empty())
        if not self._is_preparing:
            self._is_preparing = True
            generations.open_soon(self._new_path(), self._keep_spare)

    def _refuse_fixed_port(self) -> None:
        address = self.settings.get(METRICS_LISTENER, "")
        if address and not address.endswith(":0"):
            raise FixedPortError(address)

    def _keep_spare(self, spare: Generation) -> None:
        """Keeps the broker to which the next `reset` switches, which then takes about a millisecond."""
        self._is_preparing = False
        self._spares.append(spare)

    async def _open_empty(self) -> Generation:
        return await self._generations.open(self._new_path())

    async def _switch_to(self, new: Generation) -> None:
        old = self._current
        self._serve(new)
        self._generations.switch(old, new)
        # One turn of the loop ends the connections of the old broker.
        await trio.lowlevel.checkpoint()

    def _serve(self, new: Generation) -> None:
        self._current = new
        self._injector = FaultInjector(new.running, self._faults)
        if self._faults:
            self._injector.begin()

    def _new_path(self) -> str:
        self._count += 1
        return f"{self._root}/{self._count}"

    # Copies

    async def snapshot(self) -> Snapshot:
        """Returns a copy of all data, in milliseconds whatever the size: sealed segments are hard links.

        Raises:
            DataIsKeptError: it was opened by `around`.
            KafkaError: KAFKA_STORAGE_ERROR.
            OSError: the copy cannot be made.
        """
        if self.keeps_data:
            raise DataIsKeptError
        made = Snapshot(self._new_path())
        copy_data(self.broker.logs, made.path)
        return made

    async def restore(self, snapshot: Snapshot) -> None:
        """Replaces the broker by one with the data of a snapshot, which can be restored again.

        Connections end, and clients connect again. Faults go on.

        Raises:
            DataIsKeptError: it was opened by `around`.
            FixedPortError: `wirekafka.metrics.listener` has another port than 0.
            SnapshotIsClosedError: the data of the snapshot was removed.
            OSError: the copy cannot be made.
        """
        generations, path = self._generations, self._new_path()
        self._refuse_fixed_port()
        snapshot.copy_to(path)
        await self._switch_to(await generations.open(path))

    @asynccontextmanager
    async def fork(self, snapshot: Snapshot | None = None) -> AsyncIterator[AsyncEmbeddedBroker]:
        """Runs another broker for as long as the block lasts, on another port, with a copy of the data. Both share the time.

        Args:
            snapshot: the data that is copied; that of this moment if it is None.

        Raises:
            DataIsKeptError: it was opened by `around`.
            SnapshotIsClosedError: the data of the snapshot was removed.
            KafkaError: KAFKA_STORAGE_ERROR.
            OSError: the copy cannot be made.
        """
        copied = await self.snapshot() if snapshot is None else snapshot
        try:
            storage = "memory" if self._root.startswith(f"{MEMORY}/") else "disk"
            async with open_embedded(storage=storage, data=copied, published=None, **settings_of_fork(self.settings)) as made:
                yield made
        finally:
            if snapshot is None:
                copied.close()

    # Topics and records

    async def create_topic(self, name: str, partitions: int = 1, **settings: object) -> None:
        """Creates a topic. In a cluster it has `default.replication.factor` replicas.

        Args:
            settings: the settings of the topic, with `_` for each dot.

        Raises:
            KafkaError: as CreateTopics answers, such as TOPIC_ALREADY_EXISTS.
            ValueError: no request can hold so many partitions.
        """
        if not -MOST_PARTITIONS <= partitions <= MOST_PARTITIONS:
            raise ValueError(f"partitions={partitions} is not between 1 and {MOST_PARTITIONS}")
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in kafka_settings(settings).items()]
        replicas = DEFAULT_REPLICAS if self.broker.config.is_member else 1
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=configs)
        [result] = (await LocalClient(self.broker).ask(CreateTopicsRequest(topics=[topic]), 7)).topics
        if result.error_code:
            raise KafkaError(ErrorCode(result.error_code), result.error_message or "")

    async def records(self, topic: str, partition: int | None = None) -> list[StoredRecord]:
        """Returns all that a topic has, by partition and offset: aborted records and markers of transactions too.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION; KAFKA_STORAGE_ERROR.
        """
        return stored_records(self.broker, topic, partition)

    async def wait_for_records(
        self, topic: str, count: int, *, partition: int | None = None, timeout_s: float = TIMEOUT_SECONDS
    ) -> list[StoredRecord]:
        """Waits until a topic has at least so many records that a `read_committed` consumer gets; returns these.

        Raises:
            TimeoutError: it has fewer; the message says what it has.
        """
        found = CommittedRecords(topic, partition)
        await self.wait_for_count(found, count, timeout_s=timeout_s)
        return found.kept()

    async def wait_for_count(self, found: CommittedRecords, count: int, *, timeout_s: float = TIMEOUT_SECONDS) -> None:
        """Reads a topic until it has at least so many committed records. Other tasks run in between.

        Args:
            found: reads them, and keeps as many as it was told to keep.

        Raises:
            TimeoutError: it has fewer; the message says what it has.
        """

        async def look() -> bool:
            # Each slice asks for the broker: a reset may have replaced it.
            while not (found.is_full and found.count >= count) and found.read_slice(self.broker):
                await trio.lowlevel.checkpoint()
            return found.count >= count

        await _wait(look, lambda: self._describe_records(found), f"{count} records in {found.topic}", timeout_s)

    def _describe_records(self, found: CommittedRecords) -> str:
        if self.broker.topics.find(found.topic) is None:
            names = sorted(each.name for each in self.broker.topics)
            return f"there is no topic {found.topic}; there are {', '.join(names) or 'none'}"
        hidden = found.hidden_count
        values = ", ".join(repr(each.value) for each in found.kept()[-3:])
        return (
            f"{found.topic} has {found.count} committed records"
            + (f", the last are {values}" if values else "")
            + (f", and {hidden} records that are aborted or in an open transaction" if hidden else "")
        )

    # Groups

    async def group(self, group_id: str) -> GroupView:
        """Returns a group of any type; one that is "Dead" if there is no such group."""
        return await read_group(LocalClient(self.broker), group_id)

    async def groups(self) -> list[GroupView]:
        """Returns all groups, by name."""
        return await read_groups(LocalClient(self.broker))

    async def wait_for_group_stable(
        self, group_id: str, *, members: int | None = None, timeout_s: float = TIMEOUT_SECONDS
    ) -> GroupView:
        """Waits until a group has members and all of them have their partitions; returns the group.

        Args:
            members: it has exactly so many members.

        Raises:
            TimeoutError: it is not; the message says what it is.
        """
        wanted = f"{group_id} to be stable" + ("" if members is None else f" with {members} members")
        return await self._wait_for_group(
            group_id, lambda group: group.is_stable and members in (None, len(group.members)), wanted, timeout_s
        )

    async def wait_for_committed(
        self, group_id: str, topic: str, offset: int, *, partition: int = 0, timeout_s: float = TIMEOUT_SECONDS
    ) -> int:
        """Waits until a group has committed an offset of a partition, or a later one; returns the committed offset.

        Raises:
            TimeoutError: it has not; the message says what it has committed.
        """
        place = topic, partition
        wanted = f"{group_id} to commit offset {offset} of {topic}-{partition}"
        group = await self._wait_for_group(group_id, lambda group: group.committed.get(place, -1) >= offset, wanted, timeout_s)
        return group.committed[place]

    async def _wait_for_group(
        self, group_id: str, is_wanted: Callable[[GroupView], bool], what: str, timeout_s: float
    ) -> GroupView:
        last: list[GroupView] = []

        async def look() -> bool:
            last[:] = [await self.group(group_id)]
            return is_wanted(last[0])

        await _wait(look, lambda: _describe(last[0]), what, timeout_s)
        return last[0]

    async def describe(self) -> str:
        """Returns the topics and groups in one paragraph, for the report of a failed test."""
        topics = [
            f"{topic.name} ({', '.join(str(each.log.log_end_offset - each.log.log_start_offset) for each in topic.partitions)})"
            for topic in self.broker.topics
        ]
        groups = [_describe(group) for group in await self.groups()]
        return (
            f"The broker at {self.bootstrap} has "
            + (f"these topics, with the records of each partition: {', '.join(sorted(topics))}. " if topics else "no topics. ")
            + (f"Groups: {'. '.join(groups)}." if groups else "It has no groups.")
        )

    # Faults

    async def add_fault(self, spec: FaultSpec) -> ActiveFault:
        """Orders a fault, after those that were ordered before.

        Raises:
            ValueError: there is no such fault.
        """
        spec.check()
        if spec.full_disk:
            disk_of(self.broker)
        fault = ActiveFault(spec)
        if spec.stale_metadata:
            fault.metadata = await LocalClient(self.broker).ask(MetadataRequest(topics=None), STALE_METADATA_VERSION)
        self._faults.append(fault)
        if self._injector is not None:
            self._injector.begin()
        return fault

    def has_fault(self, fault: ActiveFault) -> bool:
        """Whether a fault was ordered, and neither `remove_fault` nor `reset` has ended it."""
        return fault in self._faults

    async def remove_fault(self, fault: ActiveFault) -> None:
        """Ends a fault; does nothing if it has ended."""
        if fault in self._faults:
            self._faults.remove(fault)
        if not self._faults and self._injector is not None:
            self._injector.end()

    @asynccontextmanager
    async def fault(self, **fields: Any) -> AsyncIterator[ActiveFault]:
        """Orders a fault for as long as the block lasts.

        Args:
            fields: as `FaultSpec`.

        Raises:
            ValueError: there is no such fault, or no such field; the text names the fields.
        """
        fault = await self.add_fault(FaultSpec.of(fields))
        try:
            yield fault
        finally:
            await self.remove_fault(fault)

    # Time

    async def advance(self, seconds: float) -> None:
        """Moves the broker's time forward: sessions and transactions time out, segments are deleted. Nobody waits for it.

        Raises:
            RuntimeError: the loop does not run on an `AdvancingClock`.
            ValueError: the seconds are negative, or not finite.
        """
        if self._clock is None:
            raise RuntimeError("the time can be advanced only in trio.run(..., clock=AdvancingClock())")
        if self._opener is not None:
            await self._opener.until_old_ones_have_ended()
        await self._clock.advance(seconds)


@asynccontextmanager
async def open_embedded(
    *, storage: str = "disk", data: Snapshot | None = None, published: Published | None = None, **settings: object
) -> AsyncIterator[AsyncEmbeddedBroker]:
    """Runs a broker for as long as the block lasts; it listens when the block begins. Its data is removed at the end.

    Args:
        storage: "disk", a temporary directory; or "memory", one in the file system in memory, whose syncs cost nothing.
        data: what it has at the beginning; the snapshot stays as it is.
        published: as `open_broker`.
        settings: the settings of a broker, with `_` for each dot.

    Raises:
        ValueError: there is no such storage here, or a setting names a data directory.
        SnapshotIsClosedError: `data` was removed.
        ConfigError, KafkaError, ListenError, OSError: as `open_broker`.

    Cancellation: the broker is closed, and its data removed.
    """
    failure: BaseException | None = None
    given = SETTINGS | kafka_settings(settings)
    _refuse_directories(given)
    root = make_root(storage)
    found = trio.lowlevel.current_clock()
    clock = found if isinstance(found, AdvancingClock) else None
    try:
        async with trio.open_nursery() as nursery:
            broker = AsyncEmbeddedBroker(given, root, Generations(given, clock, nursery, published), clock)
            path = None
            if data is not None:
                path = f"{root}/0"
                data.copy_to(path)
            await broker.start(path)
            try:
                yield broker
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        failure = only_cause(group)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if failure is not None:
        raise failure


def _refuse_directories(settings: Mapping[str, str]) -> None:
    for name in DIRECTORIES:
        if name in settings:
            raise ValueError(f"{name} cannot be set: the data is in a temporary directory, whose name is in `path`")


def make_root(storage: str) -> str:
    """Returns a new temporary directory.

    Raises:
        ValueError: there is no such storage here.
    """
    if storage not in ("disk", "memory"):
        raise ValueError(f"storage is 'disk' or 'memory', not {storage!r}")
    if storage == "memory" and not has_memory():
        raise ValueError(f"storage='memory' needs a file system in memory at {MEMORY}; use storage='disk'")
    return tempfile.mkdtemp(prefix="wirekafka-", dir=MEMORY if storage == "memory" else None)


def has_memory(least_bytes: int = 0) -> bool:
    """Whether there is a file system in memory, with so much free."""
    return os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= least_bytes


def kafka_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Returns settings with Kafka's names and texts: `log_retention_ms=5` is `log.retention.ms` with the text "5"."""
    return {name.replace("_", "."): _text(value) for name, value in settings.items()}


def settings_of_fork(settings: Mapping[str, object]) -> dict[str, str]:
    """Returns the settings of a fork of a broker with these settings: its own port, and no address of that broker."""
    return {name: text for name, text in kafka_settings(settings).items() if name not in OF_ONE_BROKER} | OWN_PORT


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(str, value))
    return str(value)


def _describe(group: GroupView) -> str:
    if not group.type:
        return f"there is no group {group.group_id}"
    members = "; ".join(
        f"{each.client_id} has {', '.join(f'{topic}-{index}' for topic, index in sorted(each.partitions)) or 'no partitions'}"
        for each in group.members
    )
    committed = ", ".join(f"{topic}-{index} at {offset}" for (topic, index), offset in sorted(group.committed.items()))
    return (
        f"{group.group_id} is {group.state} with {len(group.members)} members"
        + (f" ({members})" if members else "")
        + (f", and has committed {committed}" if committed else ", and has committed nothing")
    )


async def _wait(look: Callable[[], Awaitable[bool]], found: Callable[[], str], what: str, timeout_s: float) -> None:
    """Looks again and again until something is there. The seconds are those of the machine, which no test advances.

    Raises:
        TimeoutError: it was not there in time.
        ValueError: the time is negative or not a number.
    """
    if not timeout_s >= 0:
        raise ValueError(f"a wait takes 0 seconds or more, not {timeout_s}")
    end = time.monotonic() + timeout_s
    while True:
        begun = time.monotonic()
        if await look():
            return
        now = time.monotonic()
        if now >= end:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}, but {found()}")
        # A look at many records takes long, and the broker has other work.
        await trio.sleep(max(POLL_SECONDS, LOOKS_SHARE * (now - begun)))
