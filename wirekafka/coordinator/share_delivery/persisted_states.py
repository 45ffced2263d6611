"""The state of share partitions in a cluster, for the broker that leads the partitions with the records.

How it works: before a share partition is loaded, `read` gets its state from the share coordinator, which fences the leaders
before this one. A change is in effect here at once, and is written in the order of the changes; while a write is on its way,
later changes of the share partition wait, and then go together. The reply to a request that has made a change is held until the
change is stored (`ReplyGate`).

Rules of this file:
    Invariant: a share partition has at most one write on its way, so that a repeated write hides no later one.
    A write that fails for good ends the use of the share partition: its state here is dropped, and the next fetch reads what is
    stored. Records may be delivered once more then; none is lost.
    A state is read only when no write is on its way.

Source: kafka.server.share.SharePartition (maybeInitialize, writeShareGroupState) of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from wirekafka.coordinator.share_state.batches import StateChange
from wirekafka.coordinator.share_state.coordinator import ReadState
from wirekafka.coordinator.share_state.operations import READ, WRITE
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.coordinator.share_state.state import ShareState, combine
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.pending import Pending

if TYPE_CHECKING:
    from wirekafka.coordinator.reply_gate import ReplyGate
    from wirekafka.coordinator.share_state.persister import SharePersister

log = structlog.get_logger(__name__)

READ_TIMEOUT_MS = 5_000
"""How long a fetch waits for the state; then its client gets NOT_LEADER_OR_FOLLOWER, and fetches again."""

WRITE_TIMEOUT_MS = 30_000
"""How long a change is tried to be stored: longer than a broker needs to take over from one that was killed."""

MOST_FAILED = 1_000
"""The share partitions that failed last, of which late requests are told."""

OnStored = Callable[[ErrorCode | None], object]


@dataclass(slots=True)
class _Entry:
    """A share partition whose state was read.

    Attributes:
        number: stands for the share partition in `ReplyGate`.
        state: the state that was read; None if there is none.
        refusal: why the state could not be read; None if it was read.
        unsent: the changes that wait, each with the leader epoch in which it was made.
        made_count, stored_count: how many changes were made, and stored.
        is_writing: whether a write is on its way.
        waiters: the replies that wait, each with the number of changes that must be stored.
        on_idle: called once no write is on its way and no change waits.
        is_forgotten: the share partition is not in use any more, and its state is dropped once the changes are stored.
    """

    key: ShareKey
    number: int
    state: ShareState | None = None
    refusal: KafkaError | None = None
    state_epoch: int = 0
    unsent: list[tuple[StateChange, int]] = field(default_factory=list)
    made_count: int = 0
    stored_count: int = 0
    is_writing: bool = False
    waiters: list[tuple[int, OnStored]] = field(default_factory=list)
    on_idle: list[Callable[[], object]] = field(default_factory=list)
    is_forgotten: bool = False


class PersistedStates:
    """The states of the share partitions in use on one broker of a cluster; it takes the place of `ShareStateLog` there.

    Attributes:
        on_unload: called with the share partitions whose state is no longer the stored one.
    """

    def __init__(self, persister: SharePersister, gate: ReplyGate) -> None:
        self.on_unload: list[Callable[[list[ShareKey]], object]] = []
        self._persister = persister
        self._gate = gate
        self._entries: dict[ShareKey, _Entry] = {}
        self._by_number: dict[int, _Entry] = {}
        self._free_numbers: list[int] = []
        self._failed_numbers: deque[int] = deque()
        """The numbers of the last share partitions whose changes could not be stored, for requests that ask late."""

    def read(self, leader_epochs: Mapping[ShareKey, int]) -> Pending[None]:
        """Reads the states of share partitions that are not loaded, for the leaders in these epochs.

        Returns:
            A Pending that is complete once `load` knows the state of each, or why it cannot be read.
        """
        done: Pending[None] = Pending()
        left = len(leader_epochs)

        def note() -> None:
            nonlocal left
            left -= 1
            if not left:
                done.complete(None)

        if not leader_epochs:
            done.complete(None)
        for key, leader_epoch in leader_epochs.items():
            begin = partial(self._read, key, leader_epoch, note)
            entry = self._entries.get(key)
            if entry is not None and entry.is_writing:
                entry.on_idle.append(begin)
            else:
                begin()
        return done

    def _read(self, key: ShareKey, leader_epoch: int, note: Callable[[], object]) -> None:
        def take(outcome: ReadState | KafkaError) -> None:
            known = self._entries.get(key)
            if known is None or not known.is_writing:  # another fetch may have loaded the share partition meanwhile
                self._put(key, outcome)
            note()

        self._persister.submit(READ, key, timeout_ms=READ_TIMEOUT_MS, leader_epoch=leader_epoch).then(take)

    def _put(self, key: ShareKey, outcome: ReadState | KafkaError) -> None:
        known = self._entries.get(key)
        if known is not None:
            self._remove(known)
        entry = self._entries[key] = _Entry(key, self._take_number())
        self._by_number[entry.number] = entry
        if isinstance(outcome, ReadState):
            entry.state_epoch = outcome.state_epoch
            entry.state = ShareState(0, outcome.state_epoch, 0, outcome.start_offset, None, outcome.batches, 0, 0)
        elif outcome.code is not ErrorCode.INVALID_REQUEST:  # which says that there is no state
            log.info("The state of a share partition cannot be read", share_partition=str(key), reason=str(outcome))
            # Share consumers know few errors of partitions; this one lets them look up the leader, and fetch again.
            entry.refusal = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, outcome.message)

    def _take_number(self) -> int:
        """Returns a number that is not in use. Numbers are used again, because `ReplyGate` may remember them for long."""
        return self._free_numbers.pop() if self._free_numbers else len(self._by_number) + len(self._failed_numbers)

    def enter(self, key: ShareKey) -> None:
        """Raises unless the state of a share partition was read.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER, after which clients fetch again.
        """
        entry = self._find(key)
        if entry is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The state of the share partition is not read yet.")
        if entry.refusal is not None:
            raise entry.refusal

    def get(self, key: ShareKey) -> ShareState | None:
        """Returns the state that was read; None if there is none, or if it was not read."""
        entry = self._find(key)
        return None if entry is None else entry.state

    def _find(self, key: ShareKey) -> _Entry | None:
        entry = self._entries.get(key)
        return None if entry is None or entry.is_forgotten else entry

    def write(self, key: ShareKey, change: StateChange, leader_epoch: int) -> None:
        """Begins to store a change. The reply to the current request is held until it is stored.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS if the request has waited for too long; NOT_LEADER_OR_FOLLOWER if the state
                was dropped. Nothing is stored then.
        """
        self.enter(key)
        entry = self._entries[key]
        self._gate.note(self, entry.number)
        entry.made_count += 1
        entry.unsent.append((change, leader_epoch))
        if not entry.is_writing:
            self._send(entry)

    def forget(self, key: ShareKey) -> None:
        """Drops the state of a share partition that is not in use any more, once its changes are stored."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.is_forgotten = True
            if not entry.is_writing:
                self._remove(entry)

    # The interface for `ReplyGate` (`StatePartitions`)

    def is_committed(self, index: int) -> bool:
        """Whether all changes of the share partition with this number are stored."""
        entry = self._by_number.get(index)
        return index not in self._failed_numbers if entry is None else entry.stored_count == entry.made_count

    def await_commit(self, index: int, callback: OnStored) -> None:
        """Calls back once all present changes of the share partition are stored, or with NOT_COORDINATOR if one cannot be."""
        entry = self._by_number.get(index)
        if entry is None:
            callback(ErrorCode.NOT_COORDINATOR if index in self._failed_numbers else None)
        elif entry.stored_count == entry.made_count:
            callback(None)
        else:
            entry.waiters.append((entry.made_count, callback))

    # Writing

    def _send(self, entry: _Entry) -> None:
        """Writes the changes that wait, as one change."""
        entry.is_writing = True
        change, leader_epoch = _merged(entry.unsent)
        entry.unsent = []
        stored_count = entry.made_count
        pending = self._persister.submit(
            WRITE,
            entry.key,
            timeout_ms=WRITE_TIMEOUT_MS,
            state_epoch=entry.state_epoch,
            leader_epoch=leader_epoch,
            change=change,
        )
        pending.then(partial(self._written, entry, stored_count))

    def _written(self, entry: _Entry, stored_count: int, error: KafkaError | None) -> None:
        if error is not None:
            self._fail(entry, error)
            return
        entry.stored_count = stored_count
        if entry.unsent:
            self._send(entry)
        else:
            entry.is_writing = False
            if entry.is_forgotten:
                self._remove(entry)
        stored = [callback for needed, callback in entry.waiters if needed <= stored_count]
        entry.waiters = [each for each in entry.waiters if each[0] > stored_count]
        _call(partial(callback, None) for callback in stored)
        if not entry.is_writing:
            self._become_idle(entry)

    def _fail(self, entry: _Entry, error: KafkaError) -> None:
        """Drops the state of a share partition whose change cannot be stored."""
        log.warning(
            "A change of a share group cannot be stored; its records may be delivered once more",
            share_partition=str(entry.key),
            error=str(error),
        )
        entry.is_writing = False
        entry.unsent = []
        waiters, entry.waiters = entry.waiters, []
        self._remove(entry, is_failed=True)
        _call(partial(callback, [entry.key]) for callback in self.on_unload)
        _call(partial(callback, ErrorCode.NOT_COORDINATOR) for _, callback in waiters)
        self._become_idle(entry)

    @staticmethod
    def _become_idle(entry: _Entry) -> None:
        callbacks, entry.on_idle = entry.on_idle, []
        _call(callbacks)

    def _remove(self, entry: _Entry, *, is_failed: bool = False) -> None:
        if self._by_number.pop(entry.number, None) is not None:
            (self._failed_numbers if is_failed else self._free_numbers).append(entry.number)
            if len(self._failed_numbers) > MOST_FAILED:
                self._free_numbers.append(self._failed_numbers.popleft())
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]


def _merged(changes: list[tuple[StateChange, int]]) -> tuple[StateChange, int]:
    """Returns several changes of a share partition as one, and the newest leader epoch."""
    (merged, leader_epoch), *later = changes
    for change, epoch in later:
        leader_epoch = epoch
        batches = combine(merged.batches, change.batches, change.start_offset)
        merged = StateChange(change.start_offset, change.delivery_complete_count, batches)
    return merged, leader_epoch


def _call(callbacks: Iterable[Callable[[], object]]) -> None:
    for callback in callbacks:
        with isolate("The end of a write of a share group could not be handled"):
            callback()
