"""A partition as a share group consumes it: the records in flight, their owners, and the next offset to acquire.

How it works: `start_offset` is the first offset that is not in a final state (Kafka's SPSO), and `next_offset` is one past
the last offset that was ever acquired. Every record in between is in flight and has a state of `in_flight`. The group acquires
records from `next_offset` on as it fetches batches of the log. Records that were released, or whose lock expired, are delivered
again, until their delivery count reaches the limit. Final records at the front are removed, and `start_offset` moves.

A step that changes the persistent state returns a `StateChange`, which the caller stores. If the caller cannot store the change,
the caller restores the `Mark` that it took before the step. An acquisition is not stored: after a restart, the acquired records
are available again.

Rules of this file: no I/O, no clock, no randomness; `now_ms` is the time of a monotonic clock.
    Invariant: start_offset <= first offset in flight, last offset in flight < next_offset.
    Invariant: the first record in flight is not final.
    Invariant: no record is delivered more than `max_delivery_count` times.

Differs from Apache Kafka:
    The start offset moves with the acknowledgement that allows it, and is stored with that acknowledgement. Kafka stores the
    start offset with the next acknowledgement.
    Gaps in the stored state (records that were acquired when the broker stopped) become available at once. Kafka fills the gaps
    as they are fetched.

Source: kafka.server.share.SharePartition; KIP-932, KIP-1206 (record limit), KIP-1222 (renewal).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from wirekafka.coordinator.share_delivery.acquisition import (
    Acquired,
    AcquireMode,
    AcquireRequest,
    Limits,
    LogBatch,
    ThrottledBatch,
    bounds_of,
    end_of_batch,
    in_lots,
    without,
)
from wirekafka.coordinator.share_delivery.in_flight import (
    InFlightBatch,
    Range,
    Run,
    all_runs,
    overlapping,
    rewrite,
    starting_at,
    without_final,
)
from wirekafka.coordinator.share_state.batches import RecordState, StateBatch, StateChange, add_state
from wirekafka.errors import ErrorCode, KafkaError


class AcknowledgeType(IntEnum):
    """The acknowledgement of a record, by the protocol's numbers. GAP: the offset has no record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acknowledgement(NamedTuple):
    """The acknowledgement of a range of offsets, with one type for all offsets or one type for each offset."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class Mark(NamedTuple):
    """The state of a share partition at one point, for `SharePartition.restore`."""

    batches: list[InFlightBatch]
    start_offset: int
    next_offset: int
    may_have_available: bool


class SharePartition:
    """A partition as a share group consumes it. See the module.

    Args:
        start_offset: The first offset that is not in a final state.
        state_epoch: The epoch of the group that set the start offset; it changes when an administrator resets the offset.
        written: The stored states of the records from `start_offset` on, in order.
    """

    __slots__ = ("_batches", "_may_have_available", "next_offset", "start_offset", "state_epoch")

    def __init__(self, start_offset: int, state_epoch: int = 0, written: Iterable[StateBatch] = ()) -> None:
        self.start_offset = start_offset
        self.state_epoch = state_epoch
        self.next_offset = start_offset
        self._batches: list[InFlightBatch] = []
        for first_offset, last_offset, state, delivery_count in written:
            if first_offset > self.next_offset:
                self._batches.append(InFlightBatch.of(Run(self.next_offset, first_offset - 1, RecordState.AVAILABLE, 0)))
            self._batches.append(InFlightBatch.of(Run(first_offset, last_offset, state, delivery_count)))
            self.next_offset = last_offset + 1
        self._may_have_available = bool(self._batches)
        self._advance()

    @property
    def in_flight(self) -> list[InFlightBatch]:
        """The batches in flight, in order. The caller must not change them."""
        return self._batches

    @property
    def delivery_complete_count(self) -> int:
        """The number of records in flight that are in a final state."""
        return sum(run.record_count for run in all_runs(self._batches) if run.is_final)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which the next lock expires; None if no record is acquired."""
        deadlines = (run.lock_deadline_ms for run in all_runs(self._batches) if run.state is RecordState.ACQUIRED)
        return min(deadlines, default=None)

    def mark(self) -> Mark:
        """Returns the current state, for `restore`."""
        return Mark(self._batches, self.start_offset, self.next_offset, self._may_have_available)

    def restore(self, mark: Mark) -> None:
        """Restores the state of the mark."""
        self._batches, self.start_offset, self.next_offset, self._may_have_available = mark

    def fetch_offset(self) -> int:
        """Returns the offset of the next read: the first available record in flight, or else the first new record."""
        if self._may_have_available:
            for run in all_runs(self._batches):
                if run.state is RecordState.AVAILABLE:
                    return run.first_offset
            self._may_have_available = False
        return self.next_offset

    def can_acquire(self, limits: Limits) -> bool:
        """Whether records could be acquired, if the log has them."""
        return self.fetch_offset() != self.next_offset or self._record_count < limits.max_in_flight

    @property
    def _record_count(self) -> int:
        """The number of offsets in flight. Gaps and final records count too, because the start offset has not passed them."""
        return self.next_offset - self.start_offset if self._batches else 0

    def acquire(
        self,
        wish: AcquireRequest,
        fetch_offset: int,
        log_batches: Sequence[LogBatch],
        limits: Limits,
        now_ms: int,
        aborted: Sequence[LogBatch] = (),
    ) -> tuple[list[Acquired], StateChange | None]:
        """Acquires records for a consumer.

        Args:
            fetch_offset: The offset of the read, as `fetch_offset()` returned it.
            log_batches: The batches that were read, whole and in order.
            aborted: Those of the batches that an aborted transaction wrote; empty if the group reads uncommitted records.

        Returns:
            The acquired records, and the change to store: records that no longer exist or were aborted are archived.
        """
        max_records, last_offset = self._room(wish.max_records, fetch_offset, log_batches, limits)
        if max_records <= 0:
            return [], None
        changes: list[StateBatch] = []
        base_offset = max(log_batches[0].base_offset, self.start_offset)
        if fetch_offset < base_offset:
            self._archive([Range(fetch_offset, base_offset - 1)], RecordState.AVAILABLE, changes)
        self._archive_exhausted(base_offset, last_offset, limits, changes)
        deadline_ms = now_ms + limits.lock_duration_ms
        acquired, has_room = self._acquire_again(wish, base_offset, last_offset, max_records, limits, deadline_ms)
        count = sum(each.record_count for each in acquired)
        first_new_offset = max(base_offset, self.next_offset)
        if has_room and count < max_records and first_new_offset <= last_offset:
            room = max_records - count
            acquired += self._acquire_new(wish, first_new_offset, last_offset, room, log_batches, deadline_ms)
        if aborted:
            gone = [Range(*batch) for batch in aborted]
            self._archive(gone, RecordState.ACQUIRED, changes)
            acquired = list(without(acquired, gone))
        return acquired, self._change(changes)

    def acknowledge(
        self, member_id: str, acknowledgements: Iterable[Acknowledgement], limits: Limits, now_ms: int
    ) -> StateChange | None:
        """Applies the acknowledgements of a consumer, all of them or none.

        Returns:
            The change to store; None if there is none, for instance if the consumer only renewed locks.

        Raises:
            KafkaError: INVALID_RECORD_STATE for records that the consumer has not acquired; INVALID_REQUEST for records that were
                never acquired.
        """
        ranges: list[Range] = []
        for acknowledgement in acknowledgements:
            for said in self._ranges_of(acknowledgement):
                if ranges and said.first_offset <= ranges[-1].last_offset:
                    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "An offset is acknowledged twice.")
                ranges.append(said)
        if not ranges:
            return None
        changes: list[StateBatch] = []

        def apply_acknowledgement(run: Run, what: int) -> Run:
            if run.state is not RecordState.ACQUIRED:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "The record cannot be acknowledged. It is not acquired.")
            if run.member_id != member_id:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "Member is not the owner of the record")
            if what == AcknowledgeType.RENEW:
                if not limits.can_renew:
                    message = "Renewing acquisition locks is not enabled for the group."
                    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, message)
                return run._replace(lock_deadline_ms=now_ms + limits.lock_duration_ms)
            if what == AcknowledgeType.RELEASE:
                return _released(run, limits, changes)
            state = RecordState.ACKNOWLEDGED if what == AcknowledgeType.ACCEPT else RecordState.ARCHIVED
            return _settled(run, state, changes)

        self._batches = rewrite(self._batches, ranges, apply_acknowledgement)
        return self._change(changes)

    def release(self, member_id: str, limits: Limits) -> StateChange | None:
        """Releases all records of a consumer whose session has ended."""
        return self._release(limits, lambda run: run.member_id == member_id)

    def expire_locks(self, limits: Limits, now_ms: int) -> StateChange | None:
        """Releases the records whose locks have expired."""
        return self._release(limits, lambda run: run.lock_deadline_ms <= now_ms)

    def move_start(self, log_start_offset: int) -> StateChange | None:
        """Drops the records before the log start offset, acquired ones too, and moves the start offset to it."""
        if log_start_offset <= self.start_offset:
            return None
        self._batches = starting_at(self._batches, log_start_offset)
        self.start_offset = log_start_offset
        self.next_offset = max(self.next_offset, log_start_offset)
        self._advance()
        return StateChange(self.start_offset, self.delivery_complete_count, [])

    def _room(self, max_records: int, fetch_offset: int, log_batches: Sequence[LogBatch], limits: Limits) -> tuple[int, int]:
        """Returns how many records may be acquired, and the last offset that may be acquired.

        A group at the limit of records in flight gets available records in flight, but no new records.
        """
        if not log_batches or log_batches[-1].last_offset < self.start_offset:
            return 0, 0
        last_offset = log_batches[-1].last_offset
        room = limits.max_in_flight - self._record_count
        if room > 0:
            return min(max_records, room), last_offset
        return min(max_records, self.next_offset - fetch_offset), min(last_offset, self.next_offset - 1)

    def _acquire_again(
        self, wish: AcquireRequest, base_offset: int, last_offset: int, max_records: int, limits: Limits, deadline_ms: int
    ) -> tuple[list[Acquired], bool]:
        """Acquires available records in flight. Returns them, and False if the consumer must not get further records."""
        takings: list[list[Range]] = []
        count = 0
        has_room = True
        for batch in overlapping(self._batches, base_offset, last_offset):
            lot = ThrottledBatch(batch, base_offset, last_offset, limits)
            if count >= max_records or (lot.is_throttled and count):
                has_room = False
                break
            taken = lot.take(max_records - count if wish.mode is AcquireMode.RECORD_LIMIT else None)
            if taken:
                takings.append(taken)
                count += sum(last_offset - first_offset + 1 for first_offset, last_offset, _ in taken)
                if lot.is_throttled:
                    has_room = False
                    break
        if takings:
            # One rewrite for all batches: a rewrite for each batch would copy the whole list each time.
            ranges = [each for taken in takings for each in taken]
            self._batches = rewrite(self._batches, ranges, lambda run, _: run.acquired(wish.member_id, deadline_ms))
        return [each for taken in takings for each in in_lots(self._batches, taken)], has_room

    def _acquire_new(
        self,
        wish: AcquireRequest,
        first_offset: int,
        last_offset: int,
        max_records: int,
        log_batches: Sequence[LogBatch],
        deadline_ms: int,
    ) -> list[Acquired]:
        """Acquires new records, in batches that end at the end of a log batch."""
        if max_records <= last_offset - first_offset:
            last_offset = min(end_of_batch(log_batches, first_offset + max_records - 1), last_offset)
        if not self._batches:
            self.start_offset = first_offset
        self.next_offset = last_offset + 1
        if wish.mode is AcquireMode.RECORD_LIMIT:
            stop = min(last_offset, first_offset + max_records - 1)
            run = Run(first_offset, stop, RecordState.ACQUIRED, 1, wish.member_id, deadline_ms)
            rest = [Run(stop + 1, last_offset, RecordState.AVAILABLE, 0)] if stop < last_offset else []
            self._batches = [*self._batches, InFlightBatch.of(run, *rest)]
            self._may_have_available |= bool(rest)
            return [Acquired(first_offset, stop, 1)]
        bounds = list(bounds_of(first_offset, last_offset, log_batches, wish.batch_size))
        new = [InFlightBatch.of(Run(first, last, RecordState.ACQUIRED, 1, wish.member_id, deadline_ms)) for first, last in bounds]
        self._batches = [*self._batches, *new]
        return [Acquired(first, last, 1) for first, last in bounds]

    def _ranges_of(self, acknowledgement: Acknowledgement) -> Iterator[Range]:
        """Yields the ranges of an acknowledgement that are still in flight, each with its type.

        Raises:
            KafkaError: INVALID_REQUEST, INVALID_RECORD_STATE; see `acknowledge`.
        """
        first_offset, last_offset, types = acknowledgement
        if last_offset < self.start_offset:
            return
        batches = self._batches
        if not batches or (batches[0].first_offset > first_offset >= self.start_offset):
            message = "Batch record not found. The request batch offsets are not found in the cache."
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, message)
        touched = overlapping(batches, first_offset, last_offset)
        if not touched or touched[-1].last_offset < last_offset:
            which = "last" if touched else "first"
            message = f"Batch record not found. The {which} offset in request is past acquired records."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if len(types) == 1:
            yield Range(max(first_offset, self.start_offset), last_offset, types[0])
            return
        offset = first_offset
        for what, alike in groupby(types):
            stop = offset + sum(1 for _ in alike)
            if stop > self.start_offset:
                yield Range(max(offset, self.start_offset), stop - 1, what)
            offset = stop

    def _release(self, limits: Limits, is_meant: Callable[[Run], bool]) -> StateChange | None:
        changes: list[StateBatch] = []

        def take_back(run: Run, _: int) -> Run:
            if run.state is RecordState.ACQUIRED and is_meant(run):
                return _released(run, limits, changes)
            return run

        if self._batches:
            everything = [Range(self._batches[0].first_offset, self._batches[-1].last_offset)]
            self._batches = rewrite(self._batches, everything, take_back)
        return self._change(changes)

    def _archive(self, ranges: list[Range], state: RecordState, changes: list[StateBatch]) -> None:
        """Archives the records of the ranges that are in this state: they are not in the log, or must not be delivered."""

        def give_up(run: Run, _: int) -> Run:
            return _settled(run, RecordState.ARCHIVED, changes) if run.state is state else run

        self._batches = rewrite(self._batches, ranges, give_up)

    def _archive_exhausted(self, first_offset: int, last_offset: int, limits: Limits, changes: list[StateBatch]) -> None:
        """Archives available records at the delivery limit. They exist if the limit was lowered after their release."""

        def is_exhausted(run: Run) -> bool:
            return run.state is RecordState.AVAILABLE and run.delivery_count >= limits.max_delivery_count

        def give_up(run: Run, _: int) -> Run:
            return _settled(run, RecordState.ARCHIVED, changes) if is_exhausted(run) else run

        if self._may_have_available and any(map(is_exhausted, all_runs(self._batches))):
            self._batches = rewrite(self._batches, [Range(first_offset, last_offset)], give_up)

    def _change(self, changes: list[StateBatch]) -> StateChange | None:
        if not changes:
            return None
        changes.sort()
        self._may_have_available |= any(change.state is RecordState.AVAILABLE for change in changes)
        self._advance()
        kept = [change for change in changes if change.last_offset >= self.start_offset]
        if kept and kept[0].first_offset < self.start_offset:
            kept[0] = kept[0]._replace(first_offset=self.start_offset)
        return StateChange(self.start_offset, self.delivery_complete_count, kept)

    def _advance(self) -> None:
        """Removes the final records at the front, and moves the start offset."""
        batches = self._batches
        if not batches or not batches[0].runs[0].is_final:
            return
        self._batches = without_final(batches)
        self.start_offset = self._batches[0].first_offset if self._batches else self.next_offset


def _released(run: Run, limits: Limits, changes: list[StateBatch]) -> Run:
    """Returns the run as available, or as archived if it has reached the delivery limit."""
    is_exhausted = run.delivery_count >= limits.max_delivery_count
    return _settled(run, RecordState.ARCHIVED if is_exhausted else RecordState.AVAILABLE, changes)


def _settled(run: Run, state: RecordState, changes: list[StateBatch]) -> Run:
    add_state(changes, StateBatch(run.first_offset, run.last_offset, state, run.delivery_count))
    return run.left(state)
