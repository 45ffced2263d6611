"""A runtime of groups over a topic in memory, with a clock that jumps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.groups.requests import CommitRequest, JoinRequest, JoinResult, PartitionCommit, SyncRequest
from wirekafka.coordinator.groups.runtime import GroupRuntime
from wirekafka.coordinator.reply_gate import ReplyGate
from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending, Work
from wirekafka.replication.purgatory import Purgatory
from wirekafka.replication.replica_manager import HostedTopics
from wirekafka.testing.memory_topics import MemoryTopics
from wirekafka.tests.coordinator.held_work import HeldWork

WALL_SECONDS = 1_700_000_000


class Stage:
    """Opens a runtime over a topic in memory, whose wall clock follows trio's."""

    def __init__(self, topics: MemoryTopics | None = None, **settings: Any) -> None:
        self.topics = topics or with_topic_of_clients()
        self.work = HeldWork()
        self.clock = Clock(wall=lambda: WALL_SECONDS + trio.current_time())
        overrides = {"group.initial.rebalance.delay.ms": "0", **settings}
        self.purgatory = Purgatory(self.clock)
        gate = ReplyGate(self.purgatory)
        self.runtime = GroupRuntime(BrokerConfig(overrides), self.clock, cast(HostedTopics, self.topics), gate, self.work.submit)
        self.runtime.load()

    def join(self, group: str = "g", member: str = "", instance: str | None = None) -> Pending[JoinResult]:
        request = JoinRequest(group, member, "client", "/host", 10_000, 20_000, "consumer", [("range", b"m")], instance)
        request.is_member_id_required = False
        return self.runtime.join(request)

    async def join_alone(self, group: str = "g") -> JoinResult:
        """Adds a member that leads a stable group."""
        result = await wait_for(self.join(group))
        await wait_for(self.runtime.sync(SyncRequest(group, result.member_id, result.generation_id)))
        return result

    def commit(self, offset: int, group: str = "g") -> list[ErrorCode]:
        return self.runtime.commit_offsets(CommitRequest(group, [PartitionCommit("t", 0, offset)]))

    def offsets(self, group: str = "g") -> dict[str, dict[int, int]]:
        committed = self.runtime.fetch_offsets(group)
        return {topic: {index: offset.offset for index, offset in found.items()} for topic, found in committed.items()}

    def state(self, group: str = "g") -> str | None:
        described = self.runtime.describe(group)
        return None if described is None else described.state

    def restarted(self) -> Stage:
        return Stage(self.topics)


def with_topic_of_clients() -> MemoryTopics:
    """Topics in memory, one of which is `t`, to which the tests commit offsets."""
    topics = MemoryTopics()
    topics.create("t", 1)
    return topics


def run_work(work: Work[None]) -> None:
    """Runs all submitted work."""
    for _ in work:
        pass


async def wait_for(pending: Pending[Any]) -> Any:
    done = trio.Event()
    found: list[Any] = []
    pending.then(lambda result: (found.append(result), done.set()))
    with trio.fail_after(1_000_000):
        await done.wait()
    return found[0]


def run(play: Callable[..., Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        stage = Stage(**settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.clock.run)
            await play(stage)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
