"""ZooKeeper fails at every single request of a member's life: the member ends up registered and correct, and loses no setting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog.testing
import trio

from wirekafka.membership.cluster_id import join_cluster
from wirekafka.membership.controller_watch import ControllerWatch
from wirekafka.membership.directory_failures import DirectoryFailures
from wirekafka.membership.registration import Registration
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.membership.supervision import keep
from wirekafka.tests.membership.test_configs import TOPIC, Member, set_
from wirekafka.tests.membership.test_registration import endpoint
from wirekafka.tests.membership.zookeeper import NOW_MS, Stage, play, until
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.configs import EntityConfigs, write_config_change
from wirekafka.zookeeper.layout.membership import ControllerRegistration, write_cluster_id
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import Create, Exists, GetChildren, GetData, SetData

MOST_REQUESTS = 85
FAULTS = ("request lost", "reply lost", "request late", "expired before", "expired after", "two replies lost")


class Life:
    """A member from its entry to its end, and another broker that acts meanwhile."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.other = RetryingClient(stage.connect())
        self.member = Member(stage)
        self.registration = Registration(
            stage.zookeeper, 3, (endpoint(),), None, cluster_id="ours", former_session_ms=18_000, now_ms=lambda: NOW_MS
        )
        self.controllers: list[int | None] = []
        self.on_offline: list[object] = []

    async def live(self) -> None:
        """Everything for which a member uses ZooKeeper."""
        zookeeper = self.stage.zookeeper
        cluster_id = await join_cluster(zookeeper, lambda: "ours")
        assert (await self.other.ask(GetData(paths.CLUSTER_ID))).data == write_cluster_id(cluster_id)
        await self._store("topics/old", {"retention.ms": "1"})
        await self.member.configs.load()
        assert self.member.topics.overrides == {"old": {"retention.ms": "1"}}
        await self.registration.register()
        failures = DirectoryFailures(zookeeper, self.on_offline, node_id=3)  # type: ignore[arg-type]
        watch = ControllerWatch(zookeeper, self.controllers.append)
        async with trio.open_nursery() as nursery:
            for run in (self.registration.run, self.member.configs.run, watch.run, failures.run):
                nursery.start_soon(keep, run)
            await trio.sleep(1)
            await self._change_settings()
            await self._change_controller()
            self.on_offline[0](["a log"])  # type: ignore[operator]
            await self._until_left(paths.LOG_DIR_EVENTS)
            await self._check_registration()
            nursery.cancel_scope.cancel()
        self.stage.client.close()

    async def _change_settings(self) -> None:
        overrides = self.member.topics.overrides
        assert await self.member.alter(TOPIC, "old", set_("segment.ms", "5")) is None
        await self._store("topics/old", {"retention.ms": "2", "segment.ms": "5"})
        assert await self.member.alter(TOPIC, "old", set_("cleanup.policy", "compact")) is None
        stored = {"retention.ms": "2", "segment.ms": "5", "cleanup.policy": "compact"}
        assert await self.member.stored("topics/old") == stored
        await self._store("topics/new", {"retention.ms": "3"})
        with trio.fail_after(60):
            await until(lambda: overrides == {"old": stored, "new": {"retention.ms": "3"}})

    async def _change_controller(self) -> None:
        await self.other.ask(Create(paths.CONTROLLER, ControllerRegistration(1, 1).write()))
        await until(lambda: self.controllers[-1] == 1)
        await self.other.ask(SetData(paths.CONTROLLER, ControllerRegistration(2, 1).write()))
        await until(lambda: self.controllers[-1] == 2)

    async def _check_registration(self) -> None:
        await trio.sleep(60)
        found = await self.other.ask(Exists(paths.broker(3)))
        assert found is not None
        assert (found.czxid, found.ephemeral_owner) == (self.registration.broker_epoch, self.stage.client.session_id)

    async def _store(self, entity: str, configs: dict[str, str]) -> None:
        """Changes settings as another broker does, whose connection does not fail."""
        path = f"{paths.CONFIG}/{entity}"
        content = EntityConfigs(configs).write()
        if not await self.other.create_persistent(path, content):
            await self.other.ask(SetData(path, content))
        await self.other.create_sequential(paths.CONFIG_CHANGE_PREFIX, write_config_change(entity))

    async def _until_left(self, path: str) -> None:
        with trio.fail_after(60):
            hint = self.other.hint(path)
            while not (await self.other.ask(GetChildren(path, watch=True))).names:
                await hint.wait()


class Faults:
    """Fails one request of a client.

    Attributes:
        count: the requests so far.
    """

    def __init__(self, stage: Stage, number: int, fault: str) -> None:
        self.count = 0
        self._stage = stage
        self._number = number
        self._fault = fault

    def choose(self, operation: object) -> Fault | None:
        """Is `ModelClient.choose_fault`."""
        self.count += 1
        if self._fault == "two replies lost" and self.count == self._number + 1:
            return Fault.REPLY_LOST
        if self.count != self._number:
            return None
        match self._fault:
            case "expired before":
                self._stage.expire()
                return None
            case "expired after":
                trio.lowlevel.current_trio_token().run_sync_soon(self._stage.expire)
                return Fault.REPLY_LOST
            case "two replies lost":
                return Fault.REPLY_LOST
        return Fault(self._fault)


@contextmanager
def without_defects() -> Iterator[None]:
    """Fails if the log reports an unexpected exception."""
    with structlog.testing.capture_logs() as logs:
        yield
    assert [line for line in logs if line["log_level"] == "error"] == []


def live(number: int, fault: str) -> int:
    """Lives with one fault; returns the number of requests."""
    counts = []

    async def act(stage: Stage) -> None:
        faults = Faults(stage, number, fault)
        stage.client.choose_fault = faults.choose
        with without_defects(), trio.fail_after(600):
            await Life(stage).live()
        counts.append(faults.count)

    play(act)
    return counts[0]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("number", range(1, MOST_REQUESTS + 1))
def test_member_is_registered_and_correct_after_zookeeper_fails_at_any_request(number: int, fault: str) -> None:
    live(number, fault)


def test_every_request_of_the_life_is_among_those_that_fail() -> None:
    assert MOST_REQUESTS - 15 <= live(0, "reply lost") <= MOST_REQUESTS
