"""The requests of the control port: one table, which is served, described and documented.

Rules of this file:
    A change of the broker is made even if its client has gone; a wait ends with its client.
    Changes of the data are made one after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import trio

from wirekafka import __version__
from wirekafka.testing.async_broker import AsyncEmbeddedBroker, Snapshot
from wirekafka.testing.control.forms import (
    LISTED_HITS,
    MOST_RECORD_BYTES,
    Advance,
    BrokerForm,
    ClockForm,
    CommittedOffset,
    CommitWait,
    FaultForm,
    ForkForm,
    GroupForm,
    GroupWait,
    HealthReport,
    Liveness,
    NewFork,
    NewTopic,
    RecordsForm,
    RecordsQuery,
    RecordsWait,
    SnapshotForm,
    TopicForm,
    Version,
    topic_forms,
)
from wirekafka.testing.faults import ActiveFault, FaultSpec
from wirekafka.testing.stored_records import CommittedRecords, iterate_stored_records

MOST_KEPT = 1000
"""The most faults, snapshots and forks at a time, of each."""

MOST_RECORDS = 10_000
"""A request reads no more from a log, which it would hold the loop for."""

MOST_WAIT_SECONDS = 600.0

MOST_WAITS = 48
"""The most waits at a time. They leave connections of the port for other requests, such as those of probes."""


class Waiter(Protocol):
    """What a port controls.

    Attributes:
        waits: lends a token to each wait that a client has asked for.
    """

    waits: trio.CapacityLimiter


C = TypeVar("C", bound=Waiter)
"""What a port controls: `Control`, or `ClusterControl`."""

OpenPort = Callable[[AsyncEmbeddedBroker], AbstractAsyncContextManager[str]]
"""Opens the control port of a fork: an async context with its URL."""


class NotFoundError(Exception):
    """There is no such thing. The text says what there is not."""


class TooManyError(Exception):
    """The client may ask again when others have ended. The text says what there is too much of."""


class ConflictError(Exception):
    """The request cannot be served now. The text says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that has passed the checks.

    Attributes:
        names: the parts of the path that are in braces in the table, in their order.
        form: what the request holds, if its route takes something.
        until_gone: returns once the client has closed the connection.
    """

    names: tuple[str, ...]
    form: Any
    until_gone: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Fork:
    """A fork that runs.

    Attributes:
        form: what its client was told.
        scope: its cancellation stops the fork.
        has_ended: the fork is closed.
    """

    form: ForkForm
    scope: trio.CancelScope
    has_ended: trio.Event = field(default_factory=trio.Event)


class Control:
    """One broker and what was ordered through its control port.

    Attributes:
        broker: the broker.
        faults: those that were ordered here, by id.
        waits: as in `Waiter`.

    Args:
        broker: the broker.
        nursery: has the forks.
        open_port: opens the control port of a fork.
    """

    def __init__(self, broker: AsyncEmbeddedBroker, nursery: trio.Nursery, open_port: OpenPort) -> None:
        self.broker = broker
        self.waits = trio.CapacityLimiter(MOST_WAITS)
        self._nursery = nursery
        self._open_port = open_port
        self._last_id = 0
        self.faults: dict[int, ActiveFault] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._forks: dict[int, _Fork] = {}
        self._changes = trio.Lock()

    def _new_id(self, kept: dict[int, Any], what: str) -> int:
        if len(kept) >= MOST_KEPT:
            raise ConflictError(f"there are {MOST_KEPT} {what} already")
        self._last_id += 1
        return self._last_id

    # The broker

    async def health(self, call: Call) -> HealthReport:
        """Returns whether clients can use the broker."""
        health = self.broker.running.health
        return HealthReport(True, health.is_ready, health.reason)

    async def live(self, call: Call) -> Liveness:
        """Returns that the loop turns."""
        return Liveness(True)

    async def version(self, call: Call) -> Version:
        """Returns the release."""
        return Version("wirekafka", __version__)

    async def show_broker(self, call: Call) -> BrokerForm:
        """Returns the broker."""
        parts = self.broker.broker
        return BrokerForm(self.broker.bootstrap, parts.node_id, parts.cluster_id, self.broker.keeps_data, self.broker.can_advance)

    # Faults

    async def add_fault(self, call: Call) -> FaultForm:
        """Orders a fault."""
        number = self._new_id(self._known_faults(), "faults")
        fault = self.faults[number] = await self.broker.add_fault(call.form)
        return FaultForm.of(number, fault)

    async def list_faults(self, call: Call) -> list[FaultForm]:
        """Returns the faults, in the order in which they were ordered, with few of their hits."""
        return [FaultForm.of(number, fault, LISTED_HITS) for number, fault in self._known_faults().items()]

    async def show_fault(self, call: Call) -> FaultForm:
        """Returns one fault."""
        number = _find(self._known_faults(), call, "fault")
        return FaultForm.of(number, self.faults[number])

    async def end_fault(self, call: Call) -> FaultForm:
        """Ends one fault."""
        number = _find(self._known_faults(), call, "fault")
        fault = self.faults.pop(number)
        await self.broker.remove_fault(fault)
        return FaultForm.of(number, fault)

    async def end_faults(self, call: Call) -> list[FaultForm]:
        """Ends all faults."""
        ended = await self.list_faults(call)
        for fault in self.faults.values():
            await self.broker.remove_fault(fault)
        self.faults.clear()
        return ended

    def _known_faults(self) -> dict[int, ActiveFault]:
        """Returns the faults by id, without those that a reset has ended."""
        for number in [number for number, fault in self.faults.items() if not self.broker.has_fault(fault)]:
            del self.faults[number]
        return self.faults

    # Time

    async def clock(self, call: Call) -> ClockForm:
        """Returns the broker's time."""
        return ClockForm(self.broker.broker.clock.now_ms())

    async def advance(self, call: Call) -> ClockForm:
        """Moves the broker's time forward."""
        if not self.broker.can_advance:
            raise ConflictError("a member of a cluster follows the time of the machine")
        async with self._changes:
            await self.broker.advance(call.form.seconds)
        return await self.clock(call)

    # Copies

    async def reset(self, call: Call) -> BrokerForm:
        """Empties the broker."""
        async with self._changes:
            await self.broker.reset()
        return await self.show_broker(call)

    async def add_snapshot(self, call: Call) -> SnapshotForm:
        """Copies the data."""
        number = self._new_id(self._snapshots, "snapshots")
        async with self._changes:
            self._snapshots[number] = await self.broker.snapshot()
        return SnapshotForm(number)

    async def list_snapshots(self, call: Call) -> list[SnapshotForm]:
        """Returns the copies."""
        return [SnapshotForm(number) for number in self._snapshots]

    async def restore(self, call: Call) -> BrokerForm:
        """Gives the broker the data of a copy."""
        async with self._changes:
            await self.broker.restore(self._snapshots[_find(self._snapshots, call, "snapshot")])
        return await self.show_broker(call)

    async def remove_snapshot(self, call: Call) -> SnapshotForm:
        """Removes a copy."""
        async with self._changes:
            number = _find(self._snapshots, call, "snapshot")
            self._snapshots.pop(number).close()
        return SnapshotForm(number)

    async def add_fork(self, call: Call) -> ForkForm:
        """Starts another broker."""
        number = self._new_id(self._forks, "forks")
        async with self._changes:
            snapshot = call.form.snapshot
            if snapshot is not None and snapshot not in self._snapshots:
                raise NotFoundError(f"there is no snapshot {snapshot}")
            data = None if snapshot is None else self._snapshots[snapshot]
            made = await self._nursery.start(self._run_fork, number, data)
        if isinstance(made, Exception):
            raise made
        assert isinstance(made, ForkForm), "a task reports a fork or an error"
        return made

    async def list_forks(self, call: Call) -> list[ForkForm]:
        """Returns the other brokers."""
        return [each.form for each in self._forks.values()]

    async def stop_fork(self, call: Call) -> ForkForm:
        """Stops another broker, and returns once it has ended."""
        fork = self._forks.pop(_find(self._forks, call, "fork"))
        fork.scope.cancel()
        await fork.has_ended.wait()
        return fork.form

    async def _run_fork(self, number: int, data: Snapshot | None, task_status: trio.TaskStatus[ForkForm | Exception]) -> None:
        started: _Fork | None = None
        try:
            with trio.CancelScope() as scope:
                async with self.broker.fork(data) as broker, self._open_port(broker) as url:
                    started = self._forks[number] = _Fork(ForkForm(number, broker.bootstrap, url), scope)
                    task_status.started(started.form)
                    await trio.sleep_forever()
        except Exception as error:
            if started is not None:
                raise
            task_status.started(error)
        finally:
            if started is not None:
                self._forks.pop(number, None)
                started.has_ended.set()

    # Topics and groups

    async def list_topics(self, call: Call) -> list[TopicForm]:
        """Returns the topics."""
        return topic_forms(self.broker.broker)

    async def add_topic(self, call: Call) -> TopicForm:
        """Creates a topic."""
        new: NewTopic = call.form
        if not new.settings.keys().isdisjoint(("self", "name", "partitions")):
            raise ValueError("settings has Kafka's names, such as retention.ms")
        await self.broker.create_topic(new.name, new.partitions, **new.settings)
        # A member of a cluster may hear of its partitions later.
        return next((each for each in topic_forms(self.broker.broker) if each.name == new.name), TopicForm(new.name, []))

    async def records(self, call: Call) -> RecordsForm:
        """Returns the records of a topic."""
        query: RecordsQuery = call.form
        if not 0 <= query.limit <= MOST_RECORDS:
            raise ValueError(f"limit is between 0 and {MOST_RECORDS}")
        records = iterate_stored_records(self.broker.broker, call.names[0], query.partition)
        return RecordsForm.of(records, query.limit)

    async def wait_for_records(self, call: Call) -> RecordsForm:
        """Waits for records."""
        wait: RecordsWait = call.form
        found = CommittedRecords(call.names[0], wait.partition, MOST_RECORDS, MOST_RECORD_BYTES)
        await self.broker.wait_for_count(found, wait.count, timeout_s=_timeout(wait.timeout_s))
        return RecordsForm.of(found.kept(), MOST_RECORDS)

    async def list_groups(self, call: Call) -> list[GroupForm]:
        """Returns the groups."""
        return [GroupForm.of(each) for each in await self.broker.groups()]

    async def group(self, call: Call) -> GroupForm:
        """Returns a group."""
        return GroupForm.of(await self.broker.group(call.names[0]))

    async def wait_for_group(self, call: Call) -> GroupForm:
        """Waits until a group is stable."""
        wait: GroupWait = call.form
        found = await self.broker.wait_for_group_stable(call.names[0], members=wait.members, timeout_s=_timeout(wait.timeout_s))
        return GroupForm.of(found)

    async def wait_for_commit(self, call: Call) -> CommittedOffset:
        """Waits until a group has committed an offset."""
        wait: CommitWait = call.form
        offset = await self.broker.wait_for_committed(
            call.names[0], wait.topic, wait.offset, partition=wait.partition, timeout_s=_timeout(wait.timeout_s)
        )
        return CommittedOffset(wait.topic, wait.partition, offset)


def _find(kept: dict[int, Any], call: Call, what: str) -> int:
    """Returns the id in the path.

    Raises:
        NotFoundError: there is none with this id.
    """
    text = call.names[0]
    if not (text.isdecimal() and len(text) < 10 and int(text) in kept):
        raise NotFoundError(f"there is no {what} {text[:100]}")
    return int(text)


def _timeout(seconds: float) -> float:
    if not 0 <= seconds <= MOST_WAIT_SECONDS:
        raise ValueError(f"timeout_s is between 0 and {MOST_WAIT_SECONDS:g}")
    return seconds


@dataclass(frozen=True, slots=True)
class Route(Generic[C]):
    """One kind of request.

    Attributes:
        method, path: of the request; parts of the path in braces are names.
        summary: what it does, for the documentation.
        handle: the method of what the port controls.
        gives: the type of the response.
        body, query: the form that the request holds in its body or in its URL.
        status: of the response.
        is_wait: it ends with its client, and may time out.
    """

    method: str
    path: str
    summary: str
    handle: Callable[[C, Call], Awaitable[Any]]
    gives: Any
    body: type[Any] | None = None
    query: type[Any] | None = None
    status: int = 200
    is_wait: bool = False

    def match(self, segments: tuple[str, ...]) -> tuple[str, ...] | None:
        """Returns the names in a path; None if the path is of another route."""
        own = self.path.split("/")[1:]
        if len(own) != len(segments):
            return None
        pairs = list(zip(own, segments, strict=True))
        if any(not part.startswith("{") and part != segment for part, segment in pairs):
            return None
        return tuple(segment for part, segment in pairs if part.startswith("{"))


ROUTES: tuple[Route[Control], ...] = (
    Route("GET", "/health", "Whether clients can use the broker: 200 or 503", Control.health, HealthReport),
    Route("GET", "/health/live", "Whether the broker's loop turns", Control.live, Liveness),
    Route("GET", "/version", "The release of wirekafka", Control.version, Version),
    Route("GET", "/broker", "The address of the broker, and what it can do", Control.show_broker, BrokerForm),
    Route("POST", "/faults", "Orders a fault", Control.add_fault, FaultForm, body=FaultSpec, status=201),
    Route(
        "GET",
        "/faults",
        "All faults, with the numbers of their hits and the first of these",
        Control.list_faults,
        list[FaultForm],
    ),
    Route("DELETE", "/faults", "Ends all faults, and lists them", Control.end_faults, list[FaultForm]),
    Route("GET", "/faults/{id}", "A fault, with the requests that it has hit", Control.show_fault, FaultForm),
    Route("DELETE", "/faults/{id}", "Ends a fault", Control.end_fault, FaultForm),
    Route("GET", "/clock", "The broker's time", Control.clock, ClockForm),
    Route("POST", "/clock/advance", "Moves the broker's time forward", Control.advance, ClockForm, body=Advance),
    Route("POST", "/reset", "Empties the broker, which keeps its port; ends all faults", Control.reset, BrokerForm),
    Route("POST", "/snapshots", "Copies all data", Control.add_snapshot, SnapshotForm, status=201),
    Route("GET", "/snapshots", "All copies", Control.list_snapshots, list[SnapshotForm]),
    Route("POST", "/snapshots/{id}/restore", "Gives the broker the data of a copy", Control.restore, BrokerForm),
    Route("DELETE", "/snapshots/{id}", "Removes a copy", Control.remove_snapshot, SnapshotForm),
    Route(
        "POST", "/forks", "Starts another broker with a copy of the data", Control.add_fork, ForkForm, body=NewFork, status=201
    ),
    Route("GET", "/forks", "All other brokers that were started here", Control.list_forks, list[ForkForm]),
    Route("DELETE", "/forks/{id}", "Stops another broker", Control.stop_fork, ForkForm),
    Route("GET", "/topics", "All topics and their offsets", Control.list_topics, list[TopicForm]),
    Route("POST", "/topics", "Creates a topic", Control.add_topic, TopicForm, body=NewTopic, status=201),
    Route(
        "GET",
        "/topics/{topic}/records",
        "What a topic has, aborted records and markers of transactions too",
        Control.records,
        RecordsForm,
        query=RecordsQuery,
    ),
    Route(
        "GET",
        "/topics/{topic}/records/wait",
        "Waits until a topic has so many committed records, and returns them",
        Control.wait_for_records,
        RecordsForm,
        query=RecordsWait,
        is_wait=True,
    ),
    Route("GET", "/groups", "All groups, with their members and committed offsets", Control.list_groups, list[GroupForm]),
    Route("GET", "/groups/{group}", "A group, of any type", Control.group, GroupForm),
    Route(
        "GET",
        "/groups/{group}/stable/wait",
        "Waits until a group has members and all of them have their partitions",
        Control.wait_for_group,
        GroupForm,
        query=GroupWait,
        is_wait=True,
    ),
    Route(
        "GET",
        "/groups/{group}/committed/wait",
        "Waits until a group has committed an offset",
        Control.wait_for_commit,
        CommittedOffset,
        query=CommitWait,
        is_wait=True,
    ),
)
