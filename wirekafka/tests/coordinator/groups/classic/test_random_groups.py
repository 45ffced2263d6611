"""Random members, crashes, delays and full disks against the coordinator, and the invariants that must hold in any case.

Each client here is an honest consumer: it follows the protocol, but takes each step at a random time, or never.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wirekafka.coordinator.effects import Effects, WritingProducer, join_timer, session_timer, sync_timer
from wirekafka.coordinator.groups.classic.group import ClassicGroup, GroupState
from wirekafka.coordinator.groups.requests import (
    NO_GENERATION,
    UNKNOWN_MEMBER_ID,
    CommitRequest,
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    PartitionCommit,
    SyncRequest,
    SyncResult,
)
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import Pending
from wirekafka.tests.coordinator.groups.world import World

GROUP = "g"
PARTITIONS = 4
SETTINGS = GroupSettings(initial_rebalance_delay_ms=3000, max_size=3, offsets_retention_ms=10**15)
PROTOCOLS = ([("range", b"r")], [("sticky", b"s"), ("range", b"r")], [("range", b"r"), ("sticky", b"s")])
FORGET_ME = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION}


@dataclass(eq=False)
class Client:
    name: str
    instance: str | None
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION
    members: list[str] = field(default_factory=list)
    owned: set[int] = field(default_factory=set)
    must_join: bool = True
    must_sync: bool = False
    waits_for: Pending[Any] | None = None

    def forget(self) -> None:
        self.member_id, self.generation, self.owned = UNKNOWN_MEMBER_ID, NO_GENERATION, set()
        self.must_join, self.must_sync = True, False


CLIENTS = st.integers(0, 4)


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(SETTINGS)
        self.clients = [Client(f"c{number}", "i" if number >= 3 else None) for number in range(5)]
        self.committed: dict[int, int] = {}
        self.pending: dict[int, dict[int, int]] = {}
        self.next_offset = 0
        self.has_lost_an_append = self.world.disk_error is not None

    def free(self, number: int) -> Client | None:
        client = self.clients[number]
        return client if client.waits_for is None else None

    @rule(number=CLIENTS, protocols=st.sampled_from(PROTOCOLS), version=st.sampled_from([3, 9]))
    def join(self, number: int, protocols: list[tuple[str, bytes]], version: int) -> None:
        client = self.free(number)
        if client is None:
            return
        client.owned, client.must_sync = set(), False
        request = JoinRequest(
            GROUP, client.member_id, client.name, "/::1", 10_000, 20_000, "consumer", protocols, client.instance
        )
        request.is_member_id_required = version >= 4
        pending = self.world.join(request, lambda result: self.joined(client, result))
        client.waits_for = None if pending.is_done else pending

    def joined(self, client: Client, result: JoinResult) -> None:
        client.waits_for = None
        if result.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = result.member_id
        elif result.error is not ErrorCode.NONE:
            client.forget()
        else:
            client.member_id, client.generation = result.member_id, result.generation_id
            client.members = [] if result.is_assignment_skipped else [member.member_id for member in result.members]
            client.must_join, client.must_sync = False, True

    @rule(number=CLIENTS)
    def sync(self, number: int) -> None:
        client = self.free(number)
        if client is None or not client.must_sync:
            return
        assignments = {
            member: bytes(partition for partition in range(PARTITIONS) if partition % len(client.members) == index)
            for index, member in enumerate(client.members)
        }
        request = SyncRequest(GROUP, client.member_id, client.generation, client.instance, assignments=assignments)
        pending = self.world.sync(request, lambda result: self.synced(client, result))
        client.waits_for = None if pending.is_done else pending

    def synced(self, client: Client, result: SyncResult) -> None:
        client.waits_for, client.must_sync = None, False
        if result.error is ErrorCode.NONE:
            client.owned = set(result.assignment)
        else:
            client.must_join = True
            if result.error in FORGET_ME:
                client.forget()

    @rule(number=CLIENTS)
    def heartbeat(self, number: int) -> None:
        client = self.free(number)
        if client is None or client.generation == NO_GENERATION:
            return
        beat = HeartbeatRequest(GROUP, client.member_id, client.generation, client.instance)
        error, effects = self.world.coordinator.membership.heartbeat(beat, self.world.now_ms)
        self.world.run(effects)
        if error in FORGET_ME:
            client.forget()
        elif error is ErrorCode.REBALANCE_IN_PROGRESS:
            client.must_join = True

    @rule(who=st.sets(CLIENTS, min_size=1, max_size=3), rounds=st.integers(1, 5), ms=st.sampled_from([0, 3000]))
    def go_on(self, who: set[int], rounds: int, ms: int) -> None:
        """Lets some clients take their next steps for a while, so that groups become stable."""
        for _ in range(rounds):
            for number in sorted(who):
                client = self.clients[number]
                if client.must_join:
                    self.join(number, PROTOCOLS[0], 9)
                elif client.must_sync:
                    self.sync(number)
                else:
                    self.heartbeat(number)
            self.world.pass_time(ms)

    @rule(number=CLIENTS, partition=st.integers(0, PARTITIONS - 1), is_member=st.booleans())
    def commit(self, number: int, partition: int, is_member: bool) -> None:
        client = self.clients[number]
        self.next_offset += 1
        request = CommitRequest(GROUP, [PartitionCommit("t", partition, self.next_offset)])
        if is_member:
            request.member_id, request.generation_id = client.member_id, client.generation
            request.group_instance_id = client.instance
        try:
            _, effects = self.world.coordinator.offsets.commit(request, self.world.now_ms)
        except KafkaError:
            return
        if self.world.run(effects) is None:
            self.committed[partition] = self.next_offset

    @rule(number=CLIENTS, partition=st.integers(0, PARTITIONS - 1), producer=st.integers(1, 2), is_member=st.booleans())
    def commit_in_transaction(self, number: int, partition: int, producer: int, is_member: bool) -> None:
        client = self.clients[number]
        self.next_offset += 1
        request = CommitRequest(GROUP, [PartitionCommit("t", partition, self.next_offset)])
        if is_member:
            request.member_id, request.generation_id = client.member_id, client.generation
            request.group_instance_id = client.instance
        try:
            _, effects = self.world.coordinator.offsets.commit_in_transaction(
                request, WritingProducer(producer, 0), self.world.now_ms
            )
        except KafkaError:
            return
        if self.world.run(effects) is None:
            self.pending.setdefault(producer, {})[partition] = self.next_offset

    @precondition(lambda self: self.world.disk_error is None)
    @rule(producer=st.integers(1, 2), is_commit=st.booleans())
    def end_transaction(self, producer: int, is_commit: bool) -> None:
        """Offsets only grow here, so the later of two commits is the greater."""
        self.world.end_transaction(producer, is_commit=is_commit)
        for partition, offset in self.pending.pop(producer, {}).items():
            if is_commit:
                self.committed[partition] = max(offset, self.committed.get(partition, 0))

    @rule(number=CLIENTS)
    def leave(self, number: int) -> None:
        client = self.free(number)
        if client is not None and client.member_id:
            self.world.leave(GROUP, LeavingMember(client.member_id))
            client.forget()

    @rule()
    def leave_by_instance(self) -> None:
        """An administrator removes the static member, whichever client has its name."""
        self.world.leave(GROUP, LeavingMember(UNKNOWN_MEMBER_ID, "i"))

    @rule(partition=st.integers(0, PARTITIONS - 1), how=st.sampled_from(["offset", "topic", "group"]))
    def delete(self, partition: int, how: str) -> None:
        coordinator = self.world.coordinator
        try:
            match how:
                case "offset":
                    errors, effects = coordinator.offsets.delete(GROUP, [("t", partition)])
                    gone = [partition] if errors == [ErrorCode.NONE] else []
                case "topic":
                    (effects,) = [effects for _, effects in coordinator.forget_topic("t")] or [Effects()]
                    gone = list(range(PARTITIONS))
                case _:
                    [effects] = coordinator.delete_group(GROUP)
                    gone = list(range(PARTITIONS))
        except KafkaError:
            return
        if self.world.run(effects) is None:
            for offsets in (self.committed, *self.pending.values()):
                for index in gone:
                    offsets.pop(index, None)
            self.pending = {producer: offsets for producer, offsets in self.pending.items() if offsets}

    @rule(number=CLIENTS)
    def crash_of_client(self, number: int) -> None:
        """Restarts the client, which loses its state; no client reads the response that it waited for."""
        old = self.clients[number]
        self.clients[number] = Client(old.name, old.instance)

    @rule(ms=st.sampled_from([0, 1, 2999, 3000, 9999, 10_000, 20_000, 300_000]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule()
    def crash_of_broker(self) -> None:
        self.world.reload()
        for client in self.clients:
            if client.waits_for is not None:
                client.waits_for, client.must_join = None, True
        self.has_lost_an_append = self.world.disk_error is not None

    @rule()
    def expire(self) -> None:
        group = self.group
        if group is not None and (self.committed or self.pending or group.state is not GroupState.EMPTY):
            self.world.expire()

    @rule()
    def fill_disk(self) -> None:
        self.world.disk_error = ErrorCode.KAFKA_STORAGE_ERROR
        self.has_lost_an_append = True

    @precondition(lambda self: self.world.disk_error is not None)
    @rule()
    def free_disk(self) -> None:
        self.world.disk_error = None

    @property
    def group(self) -> ClassicGroup | None:
        return self.world.group(GROUP)

    @invariant()
    def every_partition_has_one_owner_at_most(self) -> None:
        group = self.group
        if group is None:
            return
        owners = [client for client in self.clients if self.is_current(group, client)]
        owned = [partition for client in owners for partition in client.owned]
        assert len(owned) == len(set(owned))

    def is_current(self, group: ClassicGroup, client: Client) -> bool:
        """Returns whether the coordinator has the client as a member of the present generation."""
        try:
            group.check_member(client.member_id, client.instance)
        except KafkaError:
            return False
        return client.generation == group.generation_id

    @invariant()
    def no_committed_offset_is_lost(self) -> None:
        offsets = self.world.coordinator.offsets.of_group(GROUP).get("t", {})
        assert {partition: offset.offset for partition, offset in offsets.items()} == self.committed
        unstable = {partition for pending in self.pending.values() for partition in pending}
        assert {partition for _, partition in self.world.coordinator.offsets.pending.of_group(GROUP)} == unstable

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        copy = World(SETTINGS)
        copy.log.appended = list(self.world.log.appended)
        copy.now_ms = self.world.now_ms
        copy.reload()
        assert copy.coordinator.offsets.of_group(GROUP) == self.world.coordinator.offsets.of_group(GROUP)
        copied, pending = (set(world.coordinator.offsets.pending.of_group(GROUP)) for world in (copy, self.world))
        assert copied == pending
        live, replayed = self.group, copy.group_state(GROUP)
        if live is None or self.has_lost_an_append or live.state not in (GroupState.STABLE, GroupState.EMPTY):
            return
        if live.protocol_type is None and not self.committed and not self.pending and replayed is None:
            # The group was created by offsets that were deleted, or by a transaction that was aborted: it is empty, and the next
            # expiry deletes it.
            return
        assert replayed == self.world.group_state(GROUP)

    @invariant()
    def counts_are_right(self) -> None:
        group = self.group
        if group is None:
            return
        members = group.members.values()
        assert group.awaiting_join_count == sum(member.awaiting_join is not None for member in members)
        assert group.static_members == {m.group_instance_id: m.member_id for m in members if m.group_instance_id is not None}
        assert not group.pending_members & group.members.keys()
        assert group.pending_sync_members.keys() <= group.members.keys()
        assert (group.leader in group.members) if group.members else group.leader is None
        assert (group.state is GroupState.EMPTY) <= (not group.members)

    @invariant()
    def nobody_waits_without_a_timer(self) -> None:
        group = self.group
        if group is None:
            return
        timers = self.world.timers
        assert (group.state is GroupState.PREPARING_REBALANCE) <= (join_timer(GROUP) in timers)
        assert (group.state is GroupState.COMPLETING_REBALANCE) <= (sync_timer(GROUP) in timers)
        for member in group.members.values():
            is_parked = member.awaiting_join is not None or member.awaiting_sync is not None
            assert is_parked or session_timer(GROUP, member.member_id) in timers
        for member_id in group.pending_members:
            assert session_timer(GROUP, member_id) in timers

    def teardown(self) -> None:
        self.world.disk_error = None
        self.world.pass_time(3_600_000)
        assert all(client.waits_for is None for client in self.clients)
        group = self.group
        assert group is None or group.state is GroupState.EMPTY


Groups.TestCase.settings = settings(max_examples=100, stateful_step_count=60, derandomize=True)
TestRandomGroups = Groups.TestCase
