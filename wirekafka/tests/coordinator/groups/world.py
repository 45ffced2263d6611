"""A world for the pure coordinator: time that is told, timers in a dict, a log that is a list of bytes, a disk that can fill.

It does what `runtime` does, in the same order, and writes down what it was asked for. `test_runtime`, `test_timers` and
`test_loading` hold the real one to it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, cast

from wirekafka.coordinator.effects import Effects, SetTimer, TimerEvent, TimerKey
from wirekafka.coordinator.groups.classic.group import ClassicGroup, classic_group
from wirekafka.coordinator.groups.coordinator import GroupCoordinator
from wirekafka.coordinator.groups.loading import Loader
from wirekafka.coordinator.groups.records import CoordinatorRecord, GroupRecord, OffsetRecord, encode
from wirekafka.coordinator.groups.requests import JoinRequest, JoinResult, LeavingMember, SyncRequest, SyncResult
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending
from wirekafka.tests.coordinator.memory_topics import MemoryLog
from wirekafka.wire.batch import Record, build_batch

START_MS = 1_000_000


class World:
    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings()
        self.now_ms = START_MS
        self.timers: dict[TimerKey, tuple[int, TimerEvent]] = {}
        self.log = MemoryLog()
        self.disk_error: ErrorCode | None = None
        self.story: list[str] = []
        self._numbers = count(1)
        self.coordinator = self._new_coordinator()

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.settings, lambda group_id: 0, lambda: str(next(self._numbers)))

    def run(self, effects: Effects) -> ErrorCode | None:
        for change in effects.timers:
            if isinstance(change, SetTimer) and change.is_first and change.key in self.timers:
                continue
            if isinstance(change, SetTimer):
                self.timers[change.key] = (self.now_ms + change.delay_ms, change.event)
                self.story.append(f"timer {_name(change.key)} in {change.delay_ms} ms")
            elif self.timers.pop(change, None) is not None:
                self.story.append(f"cancel {_name(change)}")
        error = self.disk_error if effects.records else None
        verb = "append" if error is None else "append fails"
        if effects.producer is not None:
            verb += f" for producer {effects.producer.producer_id}"
        for record in effects.records:
            self.story.append(f"{verb}: {self.describe_record(record)}")
        if effects.records and error is None:
            self._append(effects)
        if effects.then is not None:
            self.run(effects.then(error, self.now_ms))
        for pending, result in effects.replies:
            pending.complete(result)
        return error

    def describe_record(self, record: CoordinatorRecord) -> str:
        return describe_record(record)

    def _append(self, effects: Effects) -> None:
        records = [Record(*encode(record), (), self.now_ms) for record in effects.records]
        producer_id = None
        if effects.producer is None:
            batch = build_batch(records)
        else:
            producer_id, epoch = effects.producer
            batch = build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=0, is_transactional=True)
        info = self.log.append(batch)
        if effects.is_replayed:
            for offset, record in enumerate(effects.records, info.base_offset):
                self.coordinator.replay(record, offset, producer_id)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """What the marker of a transaction does."""
        self.log.append_marker(producer_id, 0, is_commit=is_commit)
        self.coordinator.offsets.complete_transaction(0, producer_id, is_commit=is_commit)

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
        """Fires what is due, each at its own time."""
        end_ms = self.now_ms + ms
        while self.timers:
            key = min(self.timers, key=lambda key: self.timers[key][0])
            due_ms, event = self.timers[key]
            if due_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            del self.timers[key]
            self.story.append(f"at {self.now_ms - START_MS} ms {_name(key)} is due")
            _, effects = self.coordinator.on_timer(event, self.now_ms)
            self.run(effects)
        self.now_ms = end_ms

    def expire(self) -> None:
        for _, effects in self.coordinator.expire(self.now_ms):
            self.run(effects)

    def reload(self) -> None:
        """The broker dies and comes back: what is not in the log is gone, and who was parked never hears of it."""
        self.timers.clear()
        self.coordinator = self._new_coordinator()
        Loader(self.coordinator).load(cast(Any, self.log))
        for _, effects in self.coordinator.on_loaded(self.now_ms):
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
        """Returns the group, which is a classic one."""
        group = self.group(group_id)
        assert group is not None
        return group

    def group_state(self, group_id: str) -> object:
        """What of a group must outlive the broker."""
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
    """What stands for metadata or an assignment in most tests is a word; those of real consumers are not shown."""
    return metadata.decode() if metadata.isascii() and metadata.decode().isprintable() else "..."


def describe_sync(result: SyncResult) -> str:
    return f"{result.error.name} {_text(result.assignment)}".rstrip()
