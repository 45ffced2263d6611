"""The stored state of share partitions: Kafka's share coordinator, without its log.

How it works: each change of a share partition becomes a record. Most records are updates with the change. After a number
of updates the record is a snapshot of the whole state, so that older records can be deleted from the log. Only `replay(record)`
changes the state, both in operation and at the start. A cold share partition, which has no changes, gets a snapshot from time to
time, because its old snapshot would keep the log from being pruned.

Rules of this file: no I/O, no clock, no randomness.
    Invariant: the batches of a state are in order, do not overlap, and begin at its start offset or later.

Source: ShareCoordinatorShard, ShareGroupOffset, PersisterStateBatchCombiner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wirekafka.coordinator.share_state.batches import StateBatch, StateChange, add_state
from wirekafka.coordinator.share_state.records import (
    NO_COUNT,
    NO_OFFSET,
    ShareKey,
    ShareSnapshotValue,
    ShareStateRecord,
    ShareUpdateValue,
    from_values,
    to_values,
)
from wirekafka.pending import Work

EXAMINED_AT_ONCE = 5000
"""The share partitions that one step of long work examines: 1 to 2 ms."""


@dataclass(slots=True)
class ShareState:
    """The stored state of a share partition.

    Attributes:
        snapshot_epoch: The number of the newest snapshot.
        state_epoch: The group epoch at which the start offset was set.
        start_offset: The first offset that is not in a final state; None until the first fetch decides it.
        delivery_complete_count: How many records from the start offset on are in a final state; None without a start offset.
        batches: The states of the records from the start offset on.
        create_timestamp_ms: The wall-clock time of the newest snapshot, excluding cold snapshots.
        write_timestamp_ms: The wall-clock time of the newest snapshot, including cold snapshots.
        update_count: The number of updates since the newest snapshot.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int | None
    delivery_complete_count: int | None
    batches: list[StateBatch]
    create_timestamp_ms: int
    write_timestamp_ms: int
    update_count: int = 0


@dataclass(slots=True)
class ShareStates:
    """The states of all share partitions.

    Attributes:
        updates_per_snapshot: How many updates precede a snapshot (share.coordinator.snapshot.update.records.per.snapshot).
    """

    updates_per_snapshot: int = 500
    by_key: dict[ShareKey, ShareState] = field(default_factory=dict)

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int | None, now_ms: int) -> ShareStateRecord:
        """Returns the snapshot that initializes a share partition, or resets its start offset."""
        former = self.by_key.get(key)
        value = ShareSnapshotValue(
            snapshot_epoch=0 if former is None else former.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=0,
            start_offset=NO_OFFSET if start_offset is None else start_offset,
            delivery_complete_count=NO_COUNT if start_offset is None else 0,
            create_timestamp=now_ms,
            write_timestamp=now_ms,
        )
        return ShareStateRecord(key, value)

    def write(self, key: ShareKey, change: StateChange, leader_epoch: int, now_ms: int) -> ShareStateRecord:
        """Returns the record that stores a change: an update, or a snapshot after `updates_per_snapshot` updates."""
        state = self.by_key[key]
        if state.update_count < self.updates_per_snapshot:
            update = ShareUpdateValue(
                snapshot_epoch=state.snapshot_epoch,
                leader_epoch=leader_epoch,
                start_offset=change.start_offset,
                delivery_complete_count=change.delivery_complete_count,
                state_batches=to_values(change.batches),
            )
            return ShareStateRecord(key, update)
        snapshot = ShareSnapshotValue(
            snapshot_epoch=state.snapshot_epoch + 1,
            state_epoch=state.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.delivery_complete_count,
            create_timestamp=now_ms,
            write_timestamp=now_ms,
            state_batches=to_values(combine(state.batches, change.batches, change.start_offset)),
        )
        return ShareStateRecord(key, snapshot)

    def cold_keys(self, interval_ms: int, now_ms: int) -> Work[list[ShareKey]]:
        """Returns the share partitions that had no snapshot for `interval_ms`, in steps of `EXAMINED_AT_ONCE` share partitions.

        Returns none if the newest snapshot of every share partition is a cold snapshot.
        """
        cold = []
        are_all_cold = True
        for number, (key, state) in enumerate([*self.by_key.items()], 1):
            are_all_cold &= state.create_timestamp_ms != state.write_timestamp_ms
            if now_ms - state.write_timestamp_ms >= interval_ms:
                cold.append(key)
            if number % EXAMINED_AT_ONCE == 0:
                yield
        return [] if are_all_cold else cold

    def cold_snapshot(self, key: ShareKey, now_ms: int) -> ShareStateRecord:
        """Returns a snapshot of a share partition without changes."""
        state = self.by_key[key]
        value = ShareSnapshotValue(
            snapshot_epoch=state.snapshot_epoch + 1,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=NO_OFFSET if state.start_offset is None else state.start_offset,
            delivery_complete_count=NO_COUNT if state.delivery_complete_count is None else state.delivery_complete_count,
            create_timestamp=state.create_timestamp_ms,
            write_timestamp=now_ms,
            state_batches=to_values(state.batches),
        )
        return ShareStateRecord(key, value)

    def replay(self, record: ShareStateRecord) -> None:
        """Applies a record.

        Raises:
            ProtocolError: The record has an unknown state.
        """
        match record.value:
            case None:
                self.by_key.pop(record.key, None)
            case ShareSnapshotValue() as value:
                self.by_key[record.key] = ShareState(
                    snapshot_epoch=value.snapshot_epoch,
                    state_epoch=value.state_epoch,
                    leader_epoch=value.leader_epoch,
                    start_offset=None if value.start_offset == NO_OFFSET else value.start_offset,
                    delivery_complete_count=_count(value.delivery_complete_count),
                    batches=combine([], from_values(value.state_batches), value.start_offset),
                    create_timestamp_ms=value.create_timestamp,
                    write_timestamp_ms=value.write_timestamp,
                )
            case ShareUpdateValue() as value:
                self._update(record.key, value)

    def _update(self, key: ShareKey, value: ShareUpdateValue) -> None:
        state = self.by_key.get(key)
        if state is None:
            state = self.by_key[key] = ShareState(value.snapshot_epoch, 0, value.leader_epoch, None, None, [], 0, 0)
        if value.start_offset != NO_OFFSET:
            state.start_offset = value.start_offset
        if value.leader_epoch >= 0:
            state.leader_epoch = value.leader_epoch
        state.delivery_complete_count = _count(value.delivery_complete_count)
        start_offset = NO_OFFSET if state.start_offset is None else state.start_offset
        state.batches = combine(state.batches, from_values(value.state_batches), start_offset)
        state.update_count += 1


def _count(value: int) -> int | None:
    return None if value == NO_COUNT else value


def combine(batches: Iterable[StateBatch], newer: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Returns the states of the records from the start offset on. Where both overlap, `newer` replaces `batches`.

    Args:
        batches, newer: Each in order, without overlaps.
    """
    new = list(newer)
    pieces = list(new)
    at = 0
    for old in batches:
        first_offset = old.first_offset
        while at < len(new) and new[at].last_offset < first_offset:
            at += 1
        covering = at
        while first_offset <= old.last_offset:
            if covering == len(new) or new[covering].first_offset > old.last_offset:
                pieces.append(old._replace(first_offset=first_offset))
                break
            if new[covering].first_offset > first_offset:
                pieces.append(old._replace(first_offset=first_offset, last_offset=new[covering].first_offset - 1))
            first_offset = new[covering].last_offset + 1
            covering += 1
    pieces.sort()
    combined: list[StateBatch] = []
    for piece in pieces:
        if piece.last_offset >= start_offset:
            add_state(combined, piece._replace(first_offset=max(piece.first_offset, start_offset)))
    return combined
