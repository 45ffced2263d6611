"""Whatever happens to connections and sessions, a client of the model keeps the promises of the port.

A seed decides what each client submits, in which order messages of different clients move, and what fails.
"""

from __future__ import annotations

from random import Random

import pytest

from wirekafka.tests.zookeeper.model_stage import ModelStage
from wirekafka.zookeeper.model.client import Fault, ModelClient
from wirekafka.zookeeper.session import (
    Create,
    Data,
    GetData,
    SessionState,
    SetData,
    Stat,
    WatchEvent,
    WatchEventType,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

STEPS = 3_000
SEEDS = range(20)
TIMEOUT_MS = 6_000


class Submitted:
    """One operation of a client: its number, what it wrote (None for a read), and whether the client was connected."""

    def __init__(self, number: int, value: bytes | None, was_connected: bool) -> None:
        self.number = number
        self.value = value
        self.was_connected = was_connected


class World(ModelStage):
    """A model with clients, whose messages move in random order, and fail at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        super().__init__()
        self.clients = [self.new_client(timeout_ms=TIMEOUT_MS) for _ in range(3)]
        self.logs: list[list[object]] = [[] for _ in self.clients]
        self.submitted: list[list[Submitted]] = [[] for _ in self.clients]
        self.run()
        for client, log in zip(self.clients, self.logs, strict=True):
            client.add_state_listener(log.append)
            client.add_watch_listener(log.append)
            client.choose_fault = lambda operation: self.random.choice([*Fault]) if self.random.random() < 0.03 else None
        self.clients[0].submit(Create("/x", b"first"), lambda result: None)
        self.run()

    def run_one(self) -> None:
        self._steps.rotate(-self.random.randrange(len(self._steps)))
        super().run_one()

    def submit(self, index: int) -> None:
        client, log, number = self.clients[index], self.logs[index], len(self.submitted[index])
        value = b"%d:%d" % (index, number) if self.random.random() < 0.4 else None
        mine = Submitted(number, value, client.state is SessionState.CONNECTED)
        self.submitted[index].append(mine)
        if value is None:
            client.submit(GetData("/x", watch=True), lambda result: log.append((mine, result)))
        else:
            client.submit(SetData("/x", value), lambda result: log.append((mine, result)))

    def break_something(self) -> None:
        client = self.random.choice(self.clients)
        match self.random.randrange(5):
            case 0:
                client.lose_connection()
            case 1:
                client.cut(requests=self.random.random() < 0.7, replies=self.random.random() < 0.7)
            case 2:
                client.heal()
            case 3 | 4:
                self.pass_time(client)

    def pass_time(self, but: ModelClient | None = None) -> None:
        """A second passes; one client is paused and does nothing in it."""
        self.now_ms += 1_000
        for client in self.clients:
            if client is not but:
                client.tick()
        self.server.expire_sessions()

    def play(self) -> None:
        for _ in range(STEPS):
            chance = self.random.random()
            if chance < 0.25:
                self.submit(self.random.randrange(3))
            elif chance < 0.28:
                self.break_something()
            elif self._steps:
                self.run_one()
        for client in self.clients:
            client.choose_fault = lambda operation: None
            client.heal()
        for _ in range(2 * TIMEOUT_MS // 1_000):
            self.run()
            self.pass_time()
        self.run()
        for index in range(3):
            self.submit(index)
        self.run()


def played(seed: int) -> World:
    world = World(seed)
    world.play()
    return world


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return [played(seed) for seed in SEEDS]


def answers(log: list[object]) -> list[tuple[Submitted, object]]:
    return [each for each in log if isinstance(each, tuple)]


def test_every_operation_completes_once_and_in_order(worlds: list[World]) -> None:
    for world in worlds:
        for log, submitted in zip(world.logs, world.submitted, strict=True):
            assert [mine.number for mine, _ in answers(log)] == list(range(len(submitted)))


def test_after_the_faults_every_client_is_connected_and_reads_the_same(worlds: list[World]) -> None:
    for world in worlds:
        assert [client.state for client in world.clients] == [SessionState.CONNECTED] * 3
        assert all(isinstance(answers(log)[-1][1], (Data, Stat)) for log in world.logs)


def test_every_transaction_has_one_value_and_reads_never_go_back(worlds: list[World]) -> None:
    for world in worlds:
        values: dict[int, bytes] = {}
        for log in world.logs:
            last = 0
            for mine, result in answers(log):
                if isinstance(result, Stat):
                    assert mine.value is not None
                    zxid, value = result.mzxid, mine.value
                elif isinstance(result, Data):
                    zxid, value = result.stat.mzxid, result.data
                else:
                    continue
                assert zxid >= last
                assert values.setdefault(zxid, value) == value
                last = zxid


def test_operation_that_was_submitted_without_a_connection_is_never_applied(worlds: list[World]) -> None:
    for world in worlds:
        seen = {result.data for log in world.logs for _, result in answers(log) if isinstance(result, Data)}
        refused = {mine.value for submitted in world.submitted for mine in submitted if not mine.was_connected}
        assert not seen & refused


def test_change_is_read_after_the_event_of_the_watch_while_the_connection_lasts(worlds: list[World]) -> None:
    for world in worlds:
        for log in world.logs:
            watched: int | None = None
            for each in log:
                match each:
                    case SessionState() | WatchEvent():
                        watched = None
                    case (_, Data(stat=stat)):
                        assert watched in (None, stat.mzxid), "the change was read before its event"
                        watched = stat.mzxid


def test_the_faults_reach_every_outcome(worlds: list[World]) -> None:
    lost = ZooKeeperError(ZooKeeperErrorCode.CONNECTION_LOSS)
    expired = ZooKeeperError(ZooKeeperErrorCode.SESSION_EXPIRED)
    results = [(mine, result) for world in worlds for log in world.logs for mine, result in answers(log)]
    seen = {result.data for _, result in results if isinstance(result, Data)}
    uncertain = [mine.value for mine, result in results if result == lost and mine.was_connected and mine.value is not None]
    assert any(value in seen for value in uncertain)
    assert any(value not in seen for value in uncertain)
    assert any(result == expired for _, result in results)
    everything = [each for world in worlds for log in world.logs for each in log]
    assert {*SessionState} - {SessionState.CONNECTING, SessionState.CLOSED} <= {
        each for each in everything if isinstance(each, SessionState)
    }
    assert WatchEvent(WatchEventType.NODE_DATA_CHANGED, "/x") in everything
