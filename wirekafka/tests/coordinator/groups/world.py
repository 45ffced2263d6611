"""A world for groups: the real runtime and executor, over a topic in memory, with a clock that the test moves.

The world records the timers, records and replies of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, cast

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.effects import Effects, SetTimer, TimerEvent, TimerKey
from wirekafka.coordinator.groups.classic.group import ClassicGroup, classic_group
from wirekafka.coordinator.groups.coordinator import GroupCoordinator
from wirekafka.coordinator.groups.records import CoordinatorRecord, GroupRecord, OffsetRecord
from wirekafka.coordinator.groups.requests import JoinRequest, JoinResult, LeavingMember, SyncRequest, SyncResult
from wirekafka.coordinator.groups.runtime import GroupRuntime
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.coordinator.groups.timers import GroupTimers
from wirekafka.coordinator.reply_gate import ReplyGate
from wirekafka.errors import ErrorCode
from wirekafka.names import GROUP_METADATA_TOPIC
from wirekafka.pending import Pending
from wirekafka.replication.partition import Partition
from wirekafka.replication.purgatory import Purgatory
from wirekafka.replication.replica_manager import HostedTopics
from wirekafka.testing.memory_topics import BatchLog, MemoryTopics
from wirekafka.tests.coordinator.held_work import HeldWork
from wirekafka.tests.coordinator.manual_clock import ManualClock

START_MS = 1_000_000


class StoryTimers(GroupTimers):
    """Timers that are recorded."""

    def __init__(self, clock: ManualClock, on_timer: Callable[[TimerEvent], object], story: list[str]) -> None:
        super().__init__(cast(Clock, clock), on_timer)
        self._story = story

    def apply(self, changes: Iterable[SetTimer | TimerKey]) -> None:
        for change in changes:
            is_set = isinstance(change, SetTimer)
            key = change.key if isinstance(change, SetTimer) else change
            is_known = key in self._armed
            super().apply([change])
            if isinstance(change, SetTimer) and not (change.is_first and is_known):
                self._story.append(f"timer {_name(key)} in {change.delay_ms} ms")
            elif not is_set and is_known:
                self._story.append(f"cancel {_name(key)}")

    def _fire(self, key: TimerKey, event: TimerEvent) -> None:
        self._story.append(f"at {self._clock.now_ms() - START_MS} ms {_name(key)} is due")
        super()._fire(key, event)

    def items(self) -> dict[TimerKey, tuple[int, TimerEvent]]:
        """The due time and the action of each timer."""
        return {key: (int(cast(Any, armed.timer).due_ms), armed.event) for key, armed in self._armed.items()}


class StoryRuntime(GroupRuntime):
    """A runtime whose appends are recorded."""

    def __init__(self, world: World) -> None:
        gate = ReplyGate(Purgatory(cast(Clock, world.clock)))
        topics = cast(HostedTopics, world.topics)
        super().__init__(BrokerConfig({}), cast(Clock, world.clock), topics, gate, world.work.submit)
        self._world = world
        self._timers: StoryTimers = StoryTimers(world.clock, self._on_timer, world.story)

    def _append(self, index: int, effects: Effects) -> ErrorCode | None:
        at = len(self._world.story)
        error = super()._append(index, effects)
        verb = "append" if error is None else "append fails"
        if effects.producer is not None:
            verb += f" for producer {effects.producer.producer_id}"
        self._world.story[at:at] = [f"{verb}: {self._world.describe_record(record)}" for record in effects.records]
        return error

    @property
    def armed(self) -> dict[TimerKey, tuple[int, TimerEvent]]:
        return self._timers.items()


class World:
    """Attributes:
    topics: the internal topic of groups, with one partition; a test may make its disk fail, or its partitions replicated.
    work: the runtime's work off the loop; it runs when the test calls it.
    """

    def __init__(self, settings: GroupSettings | None = None, topics: MemoryTopics | None = None) -> None:
        self.settings = settings or GroupSettings()
        self.clock = ManualClock(START_MS)
        self.topics = topics or MemoryTopics(1)
        if self.topics.topic is None:
            self.topics.create_internal(GROUP_METADATA_TOPIC)
        self.story: list[str] = []
        self.work = HeldWork()
        self._numbers = count(1)
        self._start()

    def _start(self) -> None:
        self.runtime = StoryRuntime(self)
        self.coordinator = self.runtime.coordinator = self._new_coordinator()

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.settings, lambda group_id: 0, lambda: str(next(self._numbers)))

    @property
    def now_ms(self) -> int:
        return self.clock.time_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.clock.time_ms = now_ms

    @property
    def partition(self) -> Partition:
        assert self.topics.topic is not None
        return cast(Partition, self.topics.topic.partitions[0])

    @property
    def log(self) -> BatchLog:
        return cast(BatchLog, self.partition.log)

    @property
    def disk_error(self) -> ErrorCode | None:
        return self.topics.error

    @disk_error.setter
    def disk_error(self, error: ErrorCode | None) -> None:
        self.topics.error = error

    @property
    def timers(self) -> dict[TimerKey, tuple[int, TimerEvent]]:
        return self.runtime.armed

    def run(self, effects: Effects) -> ErrorCode | None:
        return self.runtime.run("", effects)

    def describe_record(self, record: CoordinatorRecord) -> str:
        return describe_record(record)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Applies the marker of a transaction."""
        self.runtime.complete_transaction(0, producer_id, 0, coordinator_epoch=0, is_commit=is_commit, transaction_version=2)

    def join(self, request: JoinRequest, on_reply: Callable[[JoinResult], object] | None = None) -> Pending[JoinResult]:
        pending = self._told("join", describe_join, on_reply)
        self.run(self.coordinator.membership.join(request, pending, self.now_ms))
        return pending

    def sync(self, request: SyncRequest, on_reply: Callable[[SyncResult], object] | None = None) -> Pending[SyncResult]:
        pending = self._told(f"sync {request.member_id}", describe_sync, on_reply)
        self.run(self.coordinator.membership.sync(request, pending, self.now_ms))
        return pending

    def leave(self, group_id: str, *members: LeavingMember) -> list[ErrorCode]:
        result, effects = self.coordinator.membership.leave(group_id, list(members), self.now_ms)
        self.run(effects)
        return result.members

    def pass_time(self, ms: int) -> None:
        """Fires the timers that are due, each at its own time."""
        self.clock.pass_time(ms)

    def expire(self) -> None:
        for _, effects in self.coordinator.expire(self.now_ms):
            self.run(effects)

    def reload(self) -> None:
        """Restarts the broker after a crash: state that is not in the log is lost, and waiting requests are never answered."""
        self.clock.drop_timers()
        self._start()
        self.runtime.state.load_all()

    def unload(self) -> None:
        """Loses the partition."""
        for effects in self.coordinator.unload(0):
            self.run(effects)

    def _told(self, who: str, describe: Callable[[Any], str], on_reply: Callable[[Any], object] | None) -> Pending[Any]:
        pending: Pending[Any] = Pending()

        def told(result: Any) -> None:
            self.story.append(f"reply to {who}: {describe(result)}")
            if on_reply is not None:
                on_reply(result)

        pending.then(told)
        return pending

    def group(self, group_id: str) -> ClassicGroup | None:
        return classic_group(self.coordinator.groups, group_id)

    def existing_group(self, group_id: str) -> ClassicGroup:
        """Returns the group; it must be a classic one."""
        group = self.group(group_id)
        assert group is not None
        return group

    def group_state(self, group_id: str) -> object:
        """Returns the state of a group that must survive a restart of the broker."""
        group = self.group(group_id)
        if group is None:
            return None
        members = {member.member_id: member.assignment for member in group.members.values()}
        return group.state, group.generation_id, group.protocol_name, group.leader, members, group.static_members

    def states(self) -> list[str]:
        return [self.state_of(group_id) for group_id in self.coordinator.groups]

    def state_of(self, group_id: str) -> str:
        group = self.group(group_id)
        assert group is not None
        members = ", ".join(
            member.member_id + ("*" if member.member_id == group.leader else "") + _parked(member)
            for member in group.members.values()
        )
        offsets = [
            f"{topic}-{partition}={offset.offset}"
            for topic, partitions in self.coordinator.offsets.of_group(group_id).items()
            for partition, offset in partitions.items()
        ]
        pieces = [f"{group_id} is {group.state.value}, generation {group.generation_id}"]
        pieces += [f"members {members}"] if members else []
        pieces += [f"pending {', '.join(sorted(group.pending_members))}"] if group.pending_members else []
        pieces += [f"offsets {', '.join(sorted(offsets))}"] if offsets else []
        unstable = [f"{topic}-{partition}" for topic, partition in self.coordinator.offsets.pending.of_group(group_id)]
        pieces += [f"unstable {', '.join(sorted(unstable))}"] if unstable else []
        return "; ".join(pieces)


def _parked(member: Any) -> str:
    return " (in join)" if member.awaiting_join else " (in sync)" if member.awaiting_sync else ""


def _name(key: TimerKey) -> str:
    return " ".join(part for part in key if part)


def describe_record(record: CoordinatorRecord) -> str:
    match record:
        case OffsetRecord(value=None):
            return f"offset of {record.group_id} in {record.topic}-{record.partition} is gone"
        case OffsetRecord(value=value):
            assert value is not None
            return f"offset of {record.group_id} in {record.topic}-{record.partition} is {value.offset}"
        case GroupRecord(value=None):
            return f"group {record.group_id} is gone"
        case GroupRecord(value=value):
            assert value is not None
            members = ", ".join(f"{member.member_id}={member.assignment.decode()}" for member in value.members)
            return f"group {record.group_id}, generation {value.generation}, {value.protocol}, members {members or 'none'}"
    raise AssertionError(f"a record that no test writes: {record}")


def describe_join(result: JoinResult) -> str:
    if result.error is not ErrorCode.NONE:
        return f"{result.error.name} {result.member_id}".rstrip()
    text = f"{result.member_id} is in generation {result.generation_id}, {result.protocol_name}, leader {result.leader}"
    if result.members:
        text += ", of " + " ".join(f"{member.member_id}:{_text(member.metadata)}" for member in result.members)
    return text + (", skip the assignment" if result.is_assignment_skipped else "")


def _text(metadata: bytes) -> str:
    """Formats metadata or an assignment: most tests use a word; the bytes of real consumers are left out."""
    return metadata.decode() if metadata.isascii() and metadata.decode().isprintable() else "..."


def describe_sync(result: SyncResult) -> str:
    return f"{result.error.name} {_text(result.assignment)}".rstrip()
