"""What every `ZooKeeperClient` does: the same scenarios run against the model and against ZooKeeper itself.

How it works: a scenario is an async function of a `Stage`, which opens clients and waits. Each stage has an empty root of its own
(a chroot), so that the stages of one ZooKeeper do not meet. A `Desk` submits operations, and notes everything that arrives in one
list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from wirekafka.zookeeper.session import (
    Check,
    Children,
    Create,
    Created,
    Data,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Operation,
    R,
    SessionState,
    SetData,
    Stat,
    Sync,
    WatchEvent,
    WatchEventType,
    Write,
    ZooKeeperClient,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

OK, FAILED_BEFORE = ZooKeeperErrorCode.OK, ZooKeeperErrorCode.RUNTIME_INCONSISTENCY


class Stage(Protocol):
    """A ZooKeeper, and what a scenario does to it."""

    async def open(self, chroot: str = "") -> ZooKeeperClient:
        """Returns a client whose state is CONNECTED. Its chroot is the root of the stage, with `chroot` after it."""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when the condition is true. It fails after some seconds."""

    async def break_connection(self, client: ZooKeeperClient) -> None:
        """Breaks the connection of the client, which connects again by itself. Returns while it may still be disconnected."""

    async def expire(self, client: ZooKeeperClient) -> None:
        """Ends the session of the client, as if it had expired."""


class Desk:
    """Submits operations over one client.

    Attributes:
        log: everything that has arrived: results, errors, watch events and states, in order.
    """

    def __init__(self, stage: Stage, client: ZooKeeperClient) -> None:
        self.client = client
        self.log: list[object] = []
        self._stage = stage
        client.add_state_listener(self.log.append)
        client.add_watch_listener(self.log.append)

    @classmethod
    async def open(cls, stage: Stage, chroot: str = "") -> Desk:
        """Returns a desk with a connected client."""
        return cls(stage, await stage.open(chroot))

    def submit(self, operation: Operation[Any]) -> None:
        """Submits an operation whose result goes to the log."""
        self.client.submit(operation, self.log.append)

    async def ask(self, operation: Operation[R]) -> R:
        """Returns the result of an operation; it goes to the log too.

        Raises:
            ZooKeeperError: the operation failed.
        """
        answers: list[R | ZooKeeperError] = []

        def take(answer: R | ZooKeeperError) -> None:
            self.log.append(answer)
            answers.append(answer)

        self.client.submit(operation, take)
        await self._stage.until(lambda: bool(answers))
        if isinstance(answers[0], ZooKeeperError):
            raise answers[0]
        return answers[0]

    async def refusal(self, operation: Operation[Any]) -> ZooKeeperError:
        """Returns the error with which an operation fails."""
        try:
            result = await self.ask(operation)
        except ZooKeeperError as error:
            return error
        raise AssertionError(f"{operation} succeeded with {result}")

    async def make(self, *paths: str) -> None:
        """Creates persistent znodes without data."""
        for path in paths:
            await self.ask(Create(path, None))

    async def until(self, *arrived: object) -> None:
        """Waits until all of these are in the log."""
        await self._stage.until(lambda: all(each in self.log for each in arrived))

    async def events(self) -> list[WatchEvent]:
        """Returns the watch events so far. An event that was fired before the call is in the list."""
        await self.ask(Sync("/"))
        return [each for each in self.log if isinstance(each, WatchEvent)]


Scenario = Callable[[Stage], Awaitable[None]]
SCENARIOS: list[Scenario] = []
"""All scenarios, in the order of this file."""

S = TypeVar("S", bound=Scenario)


def scenario(function: S) -> S:
    """Adds a scenario to the contract."""
    SCENARIOS.append(function)
    return function


def created(path: str) -> WatchEvent:
    return WatchEvent(WatchEventType.NODE_CREATED, path)


def deleted(path: str) -> WatchEvent:
    return WatchEvent(WatchEventType.NODE_DELETED, path)


def data_changed(path: str) -> WatchEvent:
    return WatchEvent(WatchEventType.NODE_DATA_CHANGED, path)


def children_changed(path: str) -> WatchEvent:
    return WatchEvent(WatchEventType.NODE_CHILDREN_CHANGED, path)


# Znodes and their stats.


@scenario
async def create_returns_the_path_and_the_stat(stage: Stage) -> None:
    desk = await Desk.open(stage)
    result = await desk.ask(Create("/a", b"one"))
    assert result.path == "/a"
    assert result.stat is not None
    stat = result.stat
    assert stat.czxid == stat.mzxid == stat.pzxid > 0
    assert stat.ctime_ms == stat.mtime_ms
    assert (stat.version, stat.cversion, stat.aversion) == (0, 0, 0)
    assert (stat.ephemeral_owner, stat.data_length, stat.num_children) == (0, 3, 0)
    assert await desk.ask(GetData("/a")) == Data(b"one", stat)


@scenario
async def create_without_data_is_read_as_empty(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.ask(Create("/none", None))
    await desk.ask(Create("/empty", b""))
    assert [(await desk.ask(GetData(path))).data for path in ("/none", "/empty")] == [b"", b""]


@scenario
async def create_of_a_znode_that_exists_is_refused(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.ask(Create("/a", b"1"))
    assert await desk.refusal(Create("/a", b"2")) == ZooKeeperError(ZooKeeperErrorCode.NODE_EXISTS, "/a")
    assert (await desk.ask(GetData("/a"))).data == b"1"


@scenario
async def create_without_a_parent_is_refused(stage: Stage) -> None:
    desk = await Desk.open(stage)
    assert await desk.refusal(Create("/a/b", b"")) == ZooKeeperError(ZooKeeperErrorCode.NO_NODE, "/a/b")


@scenario
async def create_below_an_ephemeral_znode_is_refused(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.ask(Create("/e", b"", ephemeral=True))
    assert (await desk.refusal(Create("/e/a", b""))).code is ZooKeeperErrorCode.NO_CHILDREN_FOR_EPHEMERALS


@scenario
async def set_data_counts_the_version_and_keeps_the_creation(stage: Stage) -> None:
    desk = await Desk.open(stage)
    first = (await desk.ask(Create("/a", b"1"))).stat
    second = await desk.ask(SetData("/a", b"two", 0))
    third = await desk.ask(SetData("/a", b"3"))
    assert first is not None
    assert (second.version, second.data_length, third.version) == (1, 3, 2)
    assert first.czxid == third.czxid < second.mzxid < third.mzxid
    assert third.pzxid == first.pzxid
    assert await desk.ask(GetData("/a")) == Data(b"3", third)


@scenario
async def set_data_of_another_version_is_refused(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.ask(Create("/a", b"1"))
    await desk.ask(SetData("/a", b"2"))
    for version in (0, 2):
        assert await desk.refusal(SetData("/a", b"3", version)) == ZooKeeperError(ZooKeeperErrorCode.BAD_VERSION, "/a")
    assert (await desk.ask(GetData("/a"))).data == b"2"


@scenario
async def operations_on_a_missing_znode_are_refused(stage: Stage) -> None:
    desk = await Desk.open(stage)
    operations: list[Operation[Any]] = [SetData("/a", b""), Delete("/a"), GetData("/a"), GetChildren("/a")]
    assert [await desk.refusal(each) for each in operations] == [ZooKeeperError(ZooKeeperErrorCode.NO_NODE, "/a")] * 4
    assert await desk.ask(Exists("/a")) is None


@scenario
async def delete_checks_the_version_and_then_the_children(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/a", "/a/b")
    assert (await desk.refusal(Delete("/a", 1))).code is ZooKeeperErrorCode.BAD_VERSION
    assert (await desk.refusal(Delete("/a", 0))).code is ZooKeeperErrorCode.NOT_EMPTY
    assert await desk.ask(Delete("/a/b")) is None
    assert await desk.ask(Delete("/a", 0)) is None
    assert await desk.ask(Exists("/a")) is None


@scenario
async def children_change_the_stat_of_the_parent(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/p", "/p/b", "/p/a")
    before = await desk.ask(GetChildren("/p"))
    assert before.names == ("a", "b")
    last = (await desk.ask(GetData("/p/a"))).stat.czxid
    assert (before.stat.cversion, before.stat.num_children, before.stat.pzxid) == (2, 2, last)
    await desk.ask(Delete("/p/a"))
    after = await desk.ask(GetChildren("/p"))
    assert (after.names, after.stat.cversion, after.stat.num_children) == (("b",), 3, 1)
    assert after.stat.pzxid > last
    assert (after.stat.version, after.stat.mzxid) == (0, before.stat.mzxid)


@scenario
async def sequential_znodes_are_numbered_by_the_children_that_were_ever_created(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/p", "/p/x", "/p/y")
    await desk.ask(Delete("/p/x"))
    paths = [(await desk.ask(Create("/p/n_", b"", sequential=True))).path for _ in range(2)]
    assert paths == ["/p/n_0000000002", "/p/n_0000000003"]
    await desk.ask(Delete(paths[1]))
    assert (await desk.ask(Create("/p/", b"", sequential=True))).path == "/p/0000000004"


@scenario
async def refused_writes_leave_the_numbers_of_sequential_znodes(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/p", "/p/x")
    await desk.refusal(Create("/p/x", b""))
    await desk.refusal(Multi((Create("/p/y", b""), Delete("/p/z"))))
    assert (await desk.ask(Create("/p/", b"", sequential=True))).path == "/p/0000000001"


@scenario
async def writes_have_growing_zxids(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/a")
    zxids = [(await desk.ask(SetData("/a", b""))).mzxid for _ in range(3)]
    assert zxids == sorted(set(zxids))


# Several operations in one transaction.


@scenario
async def multi_applies_all_with_one_zxid(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/a", "/b")
    operations = Check("/a", 0), Create("/c", b"c"), SetData("/a", b"1", 0), Create("/c/d", b"", ephemeral=True), Delete("/b")
    results = await desk.ask(Multi(operations))
    stat = results[2]
    assert isinstance(stat, Stat)
    assert results == (None, Created("/c", None), stat, Created("/c/d", None), None)
    assert (await desk.ask(GetData("/c"))).stat.czxid == stat.mzxid
    children = await desk.ask(GetChildren("/c"))
    assert (children.names, children.stat.pzxid, children.stat.cversion) == (("d",), stat.mzxid, 1)
    assert (await desk.ask(GetData("/c/d"))).stat.ephemeral_owner == desk.client.session_id


@scenario
async def multi_of_nothing_returns_nothing(stage: Stage) -> None:
    desk = await Desk.open(stage)
    assert await desk.ask(Multi(())) == ()


@scenario
async def multi_sees_its_own_changes(stage: Stage) -> None:
    desk = await Desk.open(stage)
    operations = (
        Create("/a", b""),
        SetData("/a", b"1", 0),
        Check("/a", 1),
        SetData("/a", b"2", 1),
        Create("/a/s", b"", sequential=True),
        Create("/a/s", b"", sequential=True),
        Delete("/a/s0000000000"),
        Create("/b", b""),
        Delete("/b", 0),
    )
    results = await desk.ask(Multi(operations))
    assert [each.path for each in results if isinstance(each, Created)] == ["/a", "/a/s0000000000", "/a/s0000000001", "/b"]
    assert (await desk.ask(GetData("/a"))).data == b"2"
    assert (await desk.ask(GetChildren("/a"))).names == ("s0000000001",)
    assert await desk.ask(Exists("/b")) is None


@scenario
async def multi_that_fails_changes_nothing_and_says_which_operation_failed(stage: Stage) -> None:
    failures: list[tuple[Write, ZooKeeperErrorCode]] = [
        (Check("/a", 7), ZooKeeperErrorCode.BAD_VERSION),
        (Check("/x"), ZooKeeperErrorCode.NO_NODE),
        (Create("/a", b""), ZooKeeperErrorCode.NODE_EXISTS),
        (Create("/x/y", b""), ZooKeeperErrorCode.NO_NODE),
        (SetData("/a", b"", 5), ZooKeeperErrorCode.BAD_VERSION),
        (Delete("/p"), ZooKeeperErrorCode.NOT_EMPTY),
        (Create("/e/f", b""), ZooKeeperErrorCode.NO_CHILDREN_FOR_EPHEMERALS),
    ]
    desk = await Desk.open(stage)
    await desk.make("/a", "/p", "/p/c", "/gone")
    await desk.ask(Create("/e", b"", ephemeral=True))
    paths = ("/", "/a", "/p", "/p/c", "/gone", "/e")
    before = [await desk.ask(Exists(path)) for path in paths]
    for write, code in failures:
        good = Create("/p/new", b"", ephemeral=True), SetData("/a", b"new"), Delete("/gone")
        error = await desk.refusal(Multi((*good, write, Create("/p/next", b""), SetData("/x", b""))))
        assert error == ZooKeeperError(code, write.path, (OK, OK, OK, code, FAILED_BEFORE, FAILED_BEFORE))
        assert [await desk.ask(Exists(path)) for path in paths] == before
        assert (await desk.ask(GetChildren("/p"))).names == ("c",)


# The end of a session.


@scenario
async def close_deletes_the_ephemeral_znodes(stage: Stage) -> None:
    desk, other = await Desk.open(stage), await Desk.open(stage)
    await other.make("/p")
    stat = (await desk.ask(Create("/p/e", b"", ephemeral=True))).stat
    assert stat is not None
    assert stat.ephemeral_owner == desk.client.session_id
    await other.ask(Exists("/p/e", watch=True))
    await other.ask(GetChildren("/p", watch=True))
    desk.client.close()
    await desk.until(SessionState.CLOSED)
    await other.until(deleted("/p/e"), children_changed("/p"))
    assert (await other.ask(GetChildren("/p"))).names == ()


@scenario
async def close_comes_after_the_operations_before_it(stage: Stage) -> None:
    desk, other = await Desk.open(stage), await Desk.open(stage)
    desk.submit(Create("/a", b""))
    desk.client.close()
    desk.submit(Create("/b", b""))
    await desk.until(SessionState.CLOSED, ZooKeeperError(ZooKeeperErrorCode.SESSION_EXPIRED))
    assert not isinstance(desk.log[0], SessionState)
    assert desk.client.state is SessionState.CLOSED
    await other.ask(Sync("/"))
    exists = await other.ask(Exists("/a")) is not None
    assert exists or desk.log[0] == ZooKeeperError(ZooKeeperErrorCode.CONNECTION_LOSS)
    assert await other.ask(Exists("/b")) is None


@scenario
async def expiry_begins_a_new_session_without_the_ephemeral_znodes(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.ask(Create("/e", b"", ephemeral=True))
    await desk.ask(Create("/p", b""))
    former = desk.client.session_id
    await stage.expire(desk.client)
    await desk.until(SessionState.LOST, SessionState.CONNECTED)
    states = [each for each in desk.log if isinstance(each, SessionState)]
    assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    assert desk.client.session_id not in (None, former)
    assert await desk.ask(Exists("/e")) is None
    assert await desk.ask(Exists("/p")) is not None


@scenario
async def ephemeral_znodes_belong_to_the_session_that_created_them(stage: Stage) -> None:
    desk, other = await Desk.open(stage), await Desk.open(stage)
    await desk.ask(Create("/e", b"", ephemeral=True))
    await other.ask(SetData("/e", b"x"))
    other.client.close()
    await other.until(SessionState.CLOSED)
    stat = await desk.ask(Exists("/e"))
    assert stat is not None
    assert stat.ephemeral_owner == desk.client.session_id


# Connections.


@scenario
async def a_lost_connection_keeps_the_session_and_drops_the_watches(stage: Stage) -> None:
    desk, other = await Desk.open(stage), await Desk.open(stage)
    await desk.ask(Create("/e", b"", ephemeral=True))
    await desk.ask(GetData("/e", watch=True))
    former = desk.client.session_id
    await stage.break_connection(desk.client)
    await desk.until(SessionState.SUSPENDED, SessionState.CONNECTED)
    assert desk.client.session_id == former
    await other.ask(SetData("/e", b"x"))
    assert (await desk.ask(GetData("/e"))).data == b"x"
    assert await desk.events() == []


@scenario
async def a_lost_connection_completes_every_operation_once_and_in_order(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/p")
    desk.log.clear()
    for number in range(20):
        desk.submit(Create(f"/p/{number}", b""))
    await stage.break_connection(desk.client)
    desk.submit(GetChildren("/"))
    await desk.until(SessionState.SUSPENDED, SessionState.CONNECTED)
    states = [each for each in desk.log if isinstance(each, SessionState)]
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
    answers = desk.log[: desk.log.index(SessionState.SUSPENDED)][:20]
    names = (await desk.ask(GetChildren("/p"))).names
    paths = [each.path for each in answers if isinstance(each, Created)]
    assert paths == [f"/p/{number}" for number in range(len(paths))]
    assert answers[len(paths) :] == [ZooKeeperError(ZooKeeperErrorCode.CONNECTION_LOSS)] * (20 - len(paths))
    assert sorted(names, key=int) == [str(number) for number in range(len(names))]
    assert len(names) >= len(paths)


@scenario
async def callbacks_never_run_inside_submit(stage: Stage) -> None:
    desk = await Desk.open(stage)
    desk.submit(Exists("/a"))
    assert desk.log == []
    await desk.until(None)


# One order.


@scenario
async def completions_come_in_the_order_of_the_operations(stage: Stage) -> None:
    desk = await Desk.open(stage)
    desk.submit(Create("/a", b"1"))
    desk.submit(GetData("/b"))
    desk.submit(Exists("/b"))
    desk.submit(SetData("/a", b"2"))
    desk.submit(GetChildren("/"))
    await stage.until(lambda: len(desk.log) == 5)
    kinds = [type(each) for each in desk.log]
    assert kinds == [Created, ZooKeeperError, type(None), Stat, Children]


@scenario
async def a_watch_event_arrives_before_the_read_that_shows_the_change(stage: Stage) -> None:
    desk, other = await Desk.open(stage), await Desk.open(stage)
    await desk.ask(Create("/a", b""))
    for number in range(10):
        await desk.ask(GetData("/a", watch=True))
        desk.log.clear()
        other.log.clear()
        other.submit(SetData("/a", b"%d" % number))
        desk.submit(SetData("/a", b"own"))
        desk.submit(GetData("/a"))
        await stage.until(lambda: any(isinstance(each, Data) for each in desk.log))
        await stage.until(lambda: bool(other.log))  # otherwise its change could fire the next watch
        assert data_changed("/a") in desk.log
        last_read = next(index for index, each in enumerate(desk.log) if isinstance(each, Data))
        assert desk.log.index(data_changed("/a")) < last_read


# When watches fire.


@scenario
async def a_data_watch_fires_once(stage: Stage) -> None:
    desk, other = await Desk.open(stage), await Desk.open(stage)
    await desk.make("/a")
    await desk.ask(GetData("/a", watch=True))
    await other.ask(SetData("/a", b"1"))
    await other.ask(SetData("/a", b"2"))
    await other.ask(Delete("/a"))
    assert await desk.events() == [data_changed("/a")]


@scenario
async def a_data_watch_ignores_children(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/a")
    await desk.ask(GetData("/a", watch=True))
    await desk.make("/a/b")
    await desk.ask(Delete("/a/b"))
    assert await desk.events() == []
    await desk.ask(Delete("/a"))
    assert await desk.events() == [deleted("/a")]


@scenario
async def a_child_watch_fires_for_each_way_in_which_the_children_change(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/p", "/p/b")
    writes: list[Operation[Any]] = [
        Create("/p/a", b""),
        Delete("/p/a"),
        Create("/p/e", b"", sequential=True),
        Delete("/p/e0000000002"),
    ]
    for count, write in enumerate(writes, 1):
        await desk.ask(GetChildren("/p", watch=True))
        await desk.ask(SetData("/p", b""))
        await desk.ask(SetData("/p/b", b""))
        await desk.make("/p/b/c")
        await desk.ask(Delete("/p/b/c"))
        assert len(await desk.events()) == count - 1
        await desk.ask(write)
        assert await desk.events() == [children_changed("/p")] * count


@scenario
async def a_child_watch_fires_when_the_znode_is_deleted(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/p")
    await desk.ask(GetChildren("/p", watch=True))
    await desk.ask(Delete("/p"))
    assert await desk.events() == [deleted("/p")]


@scenario
async def an_exists_watch_fires_when_the_znode_is_created(stage: Stage) -> None:
    desk, other = await Desk.open(stage), await Desk.open(stage)
    assert await desk.ask(Exists("/a", watch=True)) is None
    await other.make("/a")
    await other.ask(SetData("/a", b""))
    assert await desk.events() == [created("/a")]


@scenario
async def an_exists_watch_fires_like_a_data_watch_if_the_znode_exists(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/a", "/b")
    for path in ("/a", "/b"):
        assert await desk.ask(Exists(path, watch=True)) is not None
    await desk.make("/a/c")
    await desk.ask(SetData("/a", b""))
    await desk.ask(Delete("/b"))
    assert await desk.events() == [data_changed("/a"), deleted("/b")]


@scenario
async def the_watches_of_a_znode_fire_before_those_of_its_parent(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/p")
    await desk.ask(Exists("/p/a", watch=True))
    await desk.ask(GetChildren("/p", watch=True))
    await desk.make("/p/a")
    assert await desk.events() == [created("/p/a"), children_changed("/p")]
    await desk.ask(GetChildren("/p", watch=True))
    await desk.ask(GetChildren("/p/a", watch=True))
    await desk.ask(Delete("/p/a"))
    assert await desk.events() == [created("/p/a"), children_changed("/p"), deleted("/p/a"), children_changed("/p")]


@scenario
async def a_read_that_is_refused_leaves_no_watch(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.refusal(GetData("/a", watch=True))
    await desk.refusal(GetChildren("/a", watch=True))
    await desk.make("/a")
    await desk.ask(SetData("/a", b""))
    await desk.make("/a/b")
    await desk.ask(Delete("/a/b"))
    await desk.ask(Delete("/a"))
    assert await desk.events() == []


@scenario
async def several_watches_of_one_client_fire_once_for_one_change(stage: Stage) -> None:
    desk, other = await Desk.open(stage), await Desk.open(stage)
    await desk.make("/a")
    reads: list[Operation[Any]] = [GetData("/a", watch=True), Exists("/a", watch=True), GetChildren("/a", watch=True)]
    for read in (*reads, *reads):
        await desk.ask(read)
    await other.ask(GetData("/a", watch=True))
    await other.ask(Delete("/a"))
    assert await desk.events() == [deleted("/a")]
    assert await other.events() == [deleted("/a")]


@scenario
async def data_and_child_watches_end_separately(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/a")
    await desk.ask(GetData("/a", watch=True))
    await desk.ask(GetChildren("/a", watch=True))
    await desk.ask(SetData("/a", b""))
    assert await desk.events() == [data_changed("/a")]
    await desk.make("/a/b")
    assert await desk.events() == [data_changed("/a"), children_changed("/a")]


@scenario
async def multi_fires_the_watches_of_each_operation_in_order(stage: Stage) -> None:
    desk, other = await Desk.open(stage), await Desk.open(stage)
    await desk.make("/a", "/b", "/p", "/p/x")
    for path in ("/b", "/a", "/c"):
        await desk.ask(Exists(path, watch=True))
    await desk.ask(GetChildren("/p", watch=True))
    await other.ask(
        Multi((SetData("/a", b""), Create("/p/y", b""), Delete("/p/x"), Create("/c", b""), Check("/a"), Delete("/b")))
    )
    assert await desk.events() == [data_changed("/a"), children_changed("/p"), created("/c"), deleted("/b")]


@scenario
async def multi_that_creates_and_deletes_fires_the_first_event(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.ask(Exists("/a", watch=True))
    await desk.ask(Multi((Create("/a", b""), SetData("/a", b""), Delete("/a"))))
    assert await desk.events() == [created("/a")]


@scenario
async def refused_writes_fire_no_watches(stage: Stage) -> None:
    desk = await Desk.open(stage)
    await desk.make("/a", "/p")
    await desk.ask(GetData("/a", watch=True))
    await desk.ask(GetChildren("/p", watch=True))
    await desk.refusal(SetData("/a", b"", 9))
    await desk.refusal(Multi((SetData("/a", b""), Create("/p/x", b""), Check("/a", 9))))
    assert await desk.events() == []


@scenario
async def a_watch_that_is_left_by_a_callback_sees_the_next_change(stage: Stage) -> None:
    desk, other = await Desk.open(stage), await Desk.open(stage)
    await desk.make("/a")
    read = GetData("/a", watch=True)
    desk.client.add_watch_listener(lambda event: desk.submit(read))
    await desk.ask(read)
    await other.ask(SetData("/a", b"1"))
    await stage.until(lambda: any(isinstance(each, Data) and each.data == b"1" for each in desk.log))
    await other.ask(SetData("/a", b"2"))
    await stage.until(lambda: any(isinstance(each, Data) and each.data == b"2" for each in desk.log))
    assert await desk.events() == [data_changed("/a")] * 2


# Chroots.


@scenario
async def a_chroot_is_invisible_to_its_client(stage: Stage) -> None:
    outer = await Desk.open(stage)
    await outer.make("/kafka")
    inner = await Desk.open(stage, "/kafka")
    await inner.ask(GetChildren("/", watch=True))
    await inner.ask(Exists("/", watch=True))
    assert (await inner.ask(Create("/a", b"1"))).path == "/a"
    assert (await inner.ask(Multi((Create("/b", b"", sequential=True),)))) == (Created("/b0000000001", None),)
    await inner.ask(GetData("/a", watch=True))
    await outer.ask(SetData("/kafka/a", b"2"))
    await outer.ask(SetData("/kafka", b""))
    assert await inner.events() == [children_changed("/"), data_changed("/a"), data_changed("/")]
    assert await inner.refusal(Delete("/kafka")) == ZooKeeperError(ZooKeeperErrorCode.NO_NODE, "/kafka")
    assert (await inner.refusal(Multi((Check("/a", 5),)))).path == "/a"
    assert (await outer.ask(GetChildren("/kafka"))).names == ("a", "b0000000001")
