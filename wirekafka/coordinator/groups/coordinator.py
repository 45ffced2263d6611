"""The group coordinator: the groups of all types, their offsets, and the steps that change them.

How it works: every entry point is one step. It gets the time, decides, and returns `Effects`, which the runtime carries
out. `replay` applies records, of live steps and of the log at the start alike. Only the record of a classic group is not replayed
in a live step, because the group has more than its record: parked requests and pending members.

Classic groups are handled here, and groups of other types by a `GroupType`.

Rules of this file: no I/O, no clock, no randomness: the caller passes the time as `now_ms`, and a function returns random ids.
    Invariant: replaying the log gives the same groups, generations, assignments and offsets as the live coordinator has,
    except for a rebalance in progress: the generation before it is then the current one.

Source: GroupCoordinatorShard, GroupMetadataManager, OffsetMetadataManager.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from wirekafka.coordinator.effects import (
    Effects,
    InitialJoinExpired,
    JoinExpired,
    SessionExpired,
    SyncExpired,
    TimerEvent,
    join_timer,
    session_timer,
    sync_timer,
)
from wirekafka.coordinator.groups.classic.group import ClassicGroup, GroupState, classic_group
from wirekafka.coordinator.groups.classic.membership import Membership
from wirekafka.coordinator.groups.classic.rebalance import Rebalancer
from wirekafka.coordinator.groups.offsets import EXAMINED_AT_ONCE, Offsets
from wirekafka.coordinator.groups.pending_offsets import OpenTransaction
from wirekafka.coordinator.groups.records import DECODERS, CoordinatorRecord, Decoder, GroupRecord, OffsetRecord
from wirekafka.coordinator.groups.requests import DescribedGroup, DescribedMember, JoinResult, ListedGroup, SyncResult
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.coordinator.groups.types import SHARE, Group, GroupType
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.pending import Work

Piece = tuple[int, Effects]
"""A part of long work that holds the loop for a few milliseconds: a partition of __consumer_offsets, and the effects for it."""


class GroupCoordinator:
    """All groups of one broker.

    Args:
        partition_of: returns the partition of __consumer_offsets that holds a group.
        new_uuid: returns a new random UUID in its usual form.

    Attributes:
        groups: the groups of all types, by id.
        kinds: the types of groups other than the classic type.
        decoders: the decoders of records, by the version of their key.
        membership: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.
        rebalancer: drives the rebalances of classic groups.
        offsets: the committed offsets of the groups.
    """

    def __init__(self, settings: GroupSettings, partition_of: Callable[[str], int], new_uuid: Callable[[], str]) -> None:
        self.groups: dict[str, Group] = {}
        self.kinds: dict[str, GroupType] = {}
        self.decoders: dict[int, Decoder] = dict(DECODERS)
        self._replayers: dict[type[Any], Callable[[Any], None]] = {}
        self._settings = settings
        self.partition_of = partition_of
        self.rebalancer = Rebalancer(self.groups, settings)
        self.membership = Membership(self.groups, settings, self.rebalancer, self._create, new_uuid)
        self.offsets = Offsets(self.groups, settings, self.rebalancer)
        self._on_timer: dict[type[Any], Callable[[Any, int, Effects], None]] = {
            SessionExpired: self.rebalancer.on_session_expired,
            InitialJoinExpired: self.rebalancer.on_initial_join_expired,
            JoinExpired: self.rebalancer.on_join_expired,
            SyncExpired: self.rebalancer.on_sync_expired,
        }

    def add_kind(self, kind: GroupType) -> None:
        """Adds a type of groups."""
        self.kinds[kind.group_type] = kind
        self.decoders.update(kind.decoders)
        self._replayers.update(kind.replayers)
        self._on_timer.update(kind.timers)

    def replay(self, record: CoordinatorRecord, offset: int, producer_id: int | None = None) -> None:
        """Applies a record of the log.

        Args:
            offset: the offset of the record in its partition.
            producer_id: the producer to whose open transaction the record belongs; None for a record without a transaction.

        Raises:
            ProtocolError: the record contradicts the groups.
        """
        group_id = record.group_id
        match record:
            case OffsetRecord():
                if record.value is not None and group_id not in self.groups:
                    self._create(group_id, None)
                if producer_id is None or record.value is None:
                    self.offsets.replay(record, offset)
                else:
                    transaction = OpenTransaction(self.partition_of(group_id), producer_id)
                    self.offsets.replay_in_transaction(record, offset, transaction)
            case GroupRecord(value=None):
                if classic_group(self.groups, group_id) is not None:
                    self.forget(group_id)
            case GroupRecord(value=value):
                assert value is not None
                self.groups[group_id] = ClassicGroup.of_record(group_id, self.partition_of(group_id), value)
            case _:
                self._replayers[type(record)](record)

    def forget(self, group_id: str) -> None:
        """Removes a group whose tombstone is in the log; it stays as a simple group while it has offsets."""
        self.groups.pop(group_id, None)
        if self.offsets.of_group(group_id) or self.offsets.pending.has_group(group_id):
            self._create(group_id, None)

    def on_loaded(self, now_ms: Callable[[], int], partition: int) -> Iterator[Piece]:
        """Starts the sessions of the members in the log; rebalances groups that now exceed `group.max.size`.

        Args:
            now_ms: returns the time.
            partition: the partition that was loaded.

        Returns:
            A step for each group. The caller executes each step before it requests the next one, and may do other work between.
        """
        for group in self._groups_in(partition):
            effects = Effects()
            if self.groups.get(group.group_id) is not group:
                continue
            with isolate("A group cannot be restored after its load", group=group.group_id):
                if isinstance(group, ClassicGroup):
                    self._on_loaded_classic(group, now_ms(), effects)
                else:
                    self.kinds[group.group_type].on_loaded(group, now_ms(), effects)
            yield partition, effects

    def _on_loaded_classic(self, group: ClassicGroup, now_ms: int, effects: Effects) -> None:
        for member in group.members.values():
            self.rebalancer.renew_session(group, member, effects)
        if len(group.members) > self._settings.max_size:
            reason = f"{len(group.members)} members are more than group.max.size"
            self.rebalancer.prepare(group, reason, now_ms, effects)

    def on_timer(self, event: TimerEvent, now_ms: int) -> tuple[int, Effects]:
        """Handles a timer that is due; returns the partition of its group, and the step.

        After an unexpected exception the step is empty: the group loses this timer, and other groups are not affected.
        """
        effects = Effects()
        with isolate("A timer of a group failed", group=event.group_id, timer=type(event).__name__) as failure:
            self._on_timer[type(event)](event, now_ms, effects)
        return self.partition_of(event.group_id), Effects() if failure.error else effects

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> Work[list[ListedGroup]]:
        """Returns the groups in any of the states and of any of the types, in upper or lower case; without names, all groups.

        The work is done in steps of `EXAMINED_AT_ONCE` groups. Groups that appear between two steps are left out.
        """
        wanted_states = {state.strip().lower() for state in states}
        wanted_types = {group_type.lower() for group_type in types}
        listed = []
        for number, group in enumerate([*self.groups.values()], 1):
            is_wanted = not wanted_types or group.group_type in wanted_types
            if is_wanted and (not wanted_states or group.state_name.lower() in wanted_states):
                listed.append(ListedGroup(group.group_id, group.listed_protocol_type, group.state_name, group.group_type))
            if number % EXAMINED_AT_ONCE == 0:
                yield
        return listed

    def describe(self, group_id: str) -> DescribedGroup | None:
        """Returns a description of a classic group and its members; None if there is no such group."""
        group = classic_group(self.groups, group_id)
        if group is None:
            return None
        is_stable = group.state is GroupState.STABLE
        return DescribedGroup(
            group_id=group_id,
            state=group.state_name,
            protocol_type=group.listed_protocol_type,
            protocol_name=group.protocol_name or "" if is_stable else "",
            members=[
                DescribedMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(group.protocol_name) if is_stable else b"",
                    assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        )

    def delete_group(self, group_id: str) -> Iterator[Effects]:
        """Deletes a group without members, and its offsets, in steps of at most `EXAMINED_AT_ONCE` offsets.

        Returns:
            The steps. The caller executes each step before it requests the next one, and may do other work in between.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; between two steps too, in which case the group has fewer offsets.
        """
        group = self._deletable_group(group_id)
        count = self.offsets.count_of_group(group_id)
        for _ in range((count - 1) // EXAMINED_AT_ONCE):
            yield Effects(records=[*islice(self.offsets.tombstones(group_id), EXAMINED_AT_ONCE)], is_atomic=False)
            group = self._deletable_group(group_id)
        yield Effects(records=[*self.offsets.tombstones(group_id), *group.tombstones()], is_atomic=False)

    def _deletable_group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_delete()
        return group

    def expire(self, now_ms: int) -> Iterator[Piece]:
        """Deletes offsets that are past their retention, and groups that have neither offsets nor members.

        Share groups stay until they are deleted, because their positions are not stored as offsets.

        Returns:
            The pieces of the work. The caller executes each piece before it requests the next one, and may do other work
            between two pieces.

        Source: GroupCoordinatorShard.cleanupGroupMetadata.
        """
        for index, group_ids in self._by_partition(self.groups):
            effects, examined = Effects(is_atomic=False), 0
            for group_id in group_ids:
                count = self.offsets.count_of_group(group_id)
                if examined + count > EXAMINED_AT_ONCE:
                    yield index, effects
                    effects, examined = Effects(is_atomic=False), 0
                examined += count + 1
                with isolate("Offsets of a group cannot be expired", group=group_id):
                    if count > EXAMINED_AT_ONCE:
                        yield from self._expire_large(index, group_id, now_ms)
                    else:
                        self._expire_group(group_id, now_ms, effects)
            yield index, effects

    def _expire_group(self, group_id: str, now_ms: int, effects: Effects) -> None:
        group = self.groups.get(group_id)
        if group is None:
            return
        tombstones = [*chain.from_iterable(self.offsets.expired(group, now_ms))]
        is_last = len(tombstones) == self.offsets.count_of_group(group_id) and not self.offsets.pending.has_group(group_id)
        group_tombstones = group.tombstones() if is_last and _is_forgettable(group) else []
        effects.records += tombstones
        effects.records += group_tombstones

    def _expire_large(self, index: int, group_id: str, now_ms: int) -> Iterator[Piece]:
        """Does what `_expire_group` does, in several pieces; deletes the group itself if the last piece leaves no offsets."""
        group = self.groups.get(group_id)
        if group is None:
            return
        for tombstones in self.offsets.expired(group, now_ms):
            yield index, Effects(records=[*tombstones], is_atomic=False)
            if self.groups.get(group_id) is not group:
                return
        if not self.offsets.has_offsets(group_id) and _is_forgettable(group):
            yield index, Effects(records=group.tombstones())

    def forget_topic(self, topic: str) -> Iterator[Piece]:
        """Deletes the offsets of all groups in a deleted topic, so that no group uses them in a later topic of the same name.

        This call decides what is deleted: offsets that are committed between two pieces stay.

        Returns:
            The pieces of the work, as `expire` returns them.

        Source: OffsetMetadataManager.onPartitionsDeleted.
        """
        return self._forget_topic(topic, self.offsets.groups_of_topic(topic), self.offsets.last_offsets())

    def _forget_topic(self, topic: str, group_ids: list[str], last_offsets: dict[int, int]) -> Iterator[Piece]:
        for index, of_partition in self._by_partition(group_ids):
            effects = Effects(is_atomic=False)
            for group_id in of_partition:
                effects.records += self.offsets.tombstones_of_topic(group_id, topic, last_offsets.get(index, -1))
                if len(effects.records) >= EXAMINED_AT_ONCE:
                    yield index, effects
                    effects = Effects(is_atomic=False)
            yield index, effects

    def _by_partition(self, group_ids: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        """Returns the groups that exist, by their partition of __consumer_offsets; at most `EXAMINED_AT_ONCE` at once."""
        rest = iter([*group_ids])
        while some := [*islice(rest, EXAMINED_AT_ONCE)]:
            by_partition: defaultdict[int, list[str]] = defaultdict(list)
            for group_id in some:
                group = self.groups.get(group_id)
                if group is not None:
                    by_partition[group.partition].append(group_id)
            yield from by_partition.items()

    def unload(self, partition: int) -> Iterator[Effects]:
        """Removes the groups of a partition that this broker has lost; parked requests get NOT_COORDINATOR.

        Returns:
            A step for each group. The caller executes each step before it requests the next one, and may do other work between.

        Source: GroupMetadataManager.onUnloaded.
        """
        for group in self._groups_in(partition):
            if self.groups.get(group.group_id) is not group:
                continue
            effects = Effects()
            with isolate("The waiting requests of a group that was lost cannot be ended", group=group.group_id):
                if isinstance(group, ClassicGroup):
                    self._on_unload_classic(group, effects)
                else:
                    self.kinds[group.group_type].on_unload(group, effects)
            del self.groups[group.group_id]
            self.offsets.forget_group(group.group_id)
            yield effects
        self.offsets.forget_partition(partition)

    def _groups_in(self, partition: int) -> list[Group]:
        return [group for group in self.groups.values() if group.partition == partition]

    def _on_unload_classic(self, group: ClassicGroup, effects: Effects) -> None:
        effects.cancel_timer(join_timer(group.group_id))
        effects.cancel_timer(sync_timer(group.group_id))
        for member_id in [*group.members, *group.pending_members]:
            effects.cancel_timer(session_timer(group.group_id, member_id))
        for member in group.members.values():
            self.rebalancer.answer_join(group, member, JoinResult(ErrorCode.NOT_COORDINATOR, member.member_id), effects)
            self.rebalancer.answer_sync(member, SyncResult(ErrorCode.NOT_COORDINATOR), effects)

    def _create(self, group_id: str, now_ms: int | None) -> ClassicGroup:
        group = self.groups[group_id] = ClassicGroup(group_id, self.partition_of(group_id), state_timestamp_ms=now_ms)
        return group


def _is_forgettable(group: Group) -> bool:
    """Whether the group has nothing but offsets."""
    return group.is_empty and group.group_type != SHARE
