"""The edge of the group coordinator: its log, its timers, its replies.

Theory of operation: a request becomes one step of `GroupCoordinator`, and `_run` carries its effects out: timers are set,
records appended to the group's partition of __consumer_offsets and replayed, replies released. All of it happens inside the
call, on the broker's one loop: what is appended to a partition without followers is committed. A reply may let its
connection go on with the next request, which comes back here while `_run` is still at it; by then the state is whole.

Rules of this file: nothing else of the coordinator does I/O or asks for the time.
    Invariant: `_timers` holds a key for each timer that is set, and nothing else.

Source: org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime, CoordinatorLoaderImpl, GroupCoordinatorService.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import NamedTuple

import structlog

from wirekafka.clock import Clock, Timer
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.effects import (
    Effects,
    InitialJoinExpired,
    SetTimer,
    TimerEvent,
    TimerKey,
    WritingProducer,
    append_error,
)
from wirekafka.coordinator.groups.coordinator import GroupCoordinator, Piece
from wirekafka.coordinator.groups.loading import Loader
from wirekafka.coordinator.groups.records import CoordinatorRecord
from wirekafka.coordinator.groups.requests import (
    CommitRequest,
    DescribedGroup,
    GroupOffsets,
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    SyncRequest,
    SyncResult,
)
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.log.validation import Origin
from wirekafka.metadata.topics import Topic, Topics
from wirekafka.names import GROUP_METADATA_TOPIC
from wirekafka.pending import Pending
from wirekafka.replication.partition import Partition
from wirekafka.wire.batch import build_keyed_batch
from wirekafka.wire.compression import Compression

log = structlog.get_logger(__name__)

SLICE_MS = 5
"""How long work on many groups holds the loop in one turn."""

RECORDS_IN_BATCH = 1000
"""How many records go into one batch where they need not stay together."""

NOT_THE_DISKS_FAULT = frozenset(
    {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_TXN_STATE}
)
"""What an append ends with because of the records themselves."""


class _Armed(NamedTuple):
    timer: Timer
    event: TimerEvent


class GroupRuntime:
    """The groups of one broker.

    Args:
        new_uuid: a random UUID in its usual form, different each time.

    Attributes:
        coordinator: the groups themselves; steps that it returns are for `run`.
    """

    def __init__(
        self, config: BrokerConfig, clock: Clock, topics: Topics, new_uuid: Callable[[], str] = lambda: str(uuid.uuid4())
    ) -> None:
        self._clock = clock
        self._topics = topics
        self._check_interval_ms = config.integer("offsets.retention.check.interval.ms")
        self._compression = Compression(config.integer("offsets.topic.compression.codec"))
        self._configured_partition_count = config.integer("offsets.topic.num.partitions")
        self._partition_count = self._configured_partition_count
        self.coordinator = GroupCoordinator(GroupSettings.of(config), self.partition_of, new_uuid)
        self._timers: dict[TimerKey, _Armed] = {}
        self._has_failed = False

    def load(self) -> None:
        """Brings all groups and offsets back from the log; to be called once, on the loop, before the broker listens.

        Raises:
            KafkaError: the log cannot be read.
        """
        topic = self._topics.find(GROUP_METADATA_TOPIC)
        if topic is not None:
            self._partition_count = len(topic.partitions)
            loader = Loader(self.coordinator)
            for partition_ in topic.partitions:
                self._load_partition(loader, partition_)
            groups = self.coordinator.groups.values()
            offsets = self.coordinator.offsets.count()
            if groups:
                log.info("Loaded groups", groups=len(groups), committed_offsets=offsets)
        self._run_all(self.coordinator.on_loaded(self._clock.now_ms()))
        self._topics.on_delete.append(self._on_topic_deleted)
        self._expire_later()

    def partition_of(self, group_id: str) -> int:
        """The partition of __consumer_offsets that holds a group.

        Source: GroupCoordinatorService.partitionFor, Utils.abs.
        """
        number = java_string_hash(group_id)
        return (0 if number == -0x80000000 else abs(number)) % self._partition_count

    def _load_partition(self, loader: Loader, partition: Partition) -> None:
        """Brings the groups of one partition back; those of one that is offline are not available."""
        try:
            partition.check_online()
            loader.load(partition.log)
        except KafkaError:
            if not partition.is_offline:
                raise
            log.error("Groups are not available: their partition is offline", partition=str(partition.topic_partition))

    def is_available(self, group_id: str) -> bool:
        """Whether what is known of a group is all there is: the partition that holds it is not offline."""
        topic = self._topics.find(GROUP_METADATA_TOPIC)
        return topic is None or not topic.partitions[self.partition_of(group_id)].is_offline

    def join(self, request: JoinRequest) -> Pending[JoinResult]:
        """JoinGroup: see `Membership.join`."""
        pending: Pending[JoinResult] = Pending()
        effects = self.coordinator.membership.join(request, pending, self._clock.now_ms())
        self.run(request.group_id, effects)
        return pending

    def sync(self, request: SyncRequest) -> Pending[SyncResult]:
        """SyncGroup: see `Membership.sync`."""
        pending: Pending[SyncResult] = Pending()
        effects = self.coordinator.membership.sync(request, pending, self._clock.now_ms())
        self.run(request.group_id, effects)
        return pending

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """Heartbeat: see `Membership.heartbeat`."""
        error, effects = self.coordinator.membership.heartbeat(request, self._clock.now_ms())
        self._apply_timers(effects)
        return error

    def leave(self, group_id: str, leaving: list[LeavingMember]) -> LeaveResult:
        """LeaveGroup: see `Membership.leave`. Whoever left has left, even if that could not be written down."""
        result, effects = self.coordinator.membership.leave(group_id, leaving, self._clock.now_ms())
        error = self.run(group_id, effects)
        return result if error is None else LeaveResult(append_error(error))

    def commit_offsets(self, request: CommitRequest) -> list[ErrorCode]:
        """Commits offsets; each gets an error or NONE, in the order of the request.

        Raises:
            KafkaError: for all of them, as `Offsets.commit`; or what an append ended with: nothing is committed then.
        """
        errors, effects = self.coordinator.offsets.commit(request, self._clock.now_ms())
        self._run_or_raise(request.group_id, effects)
        return errors

    def commit_offsets_in_transaction(self, request: CommitRequest, producer: WritingProducer) -> list[ErrorCode]:
        """Commits offsets as part of a producer's transaction, which must know of `partition_of(request.group_id)`.

        Raises:
            KafkaError: for all of them, as `Offsets.commit_in_transaction`; INVALID_PRODUCER_EPOCH; or what an append ended
                with: nothing is pending then.
        """
        errors, effects = self.coordinator.offsets.commit_in_transaction(request, producer, self._clock.now_ms())
        self._run_or_raise(request.group_id, effects)
        return errors

    def complete_transaction(
        self,
        partition_index: int,
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int,
        is_commit: bool,
        transaction_version: int,
    ) -> None:
        """Ends a producer's transaction in a partition of __consumer_offsets: its offsets count from now on, or never will.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, or as `Partition.write_marker`; the transaction is still open then.

        Source: CoordinatorRuntime.scheduleTransactionCompletion.
        """
        topic = self._topics.find(GROUP_METADATA_TOPIC)
        if topic is None or not 0 <= partition_index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topic.partitions[partition_index].write_marker(
            producer_id,
            producer_epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=is_commit,
            now_ms=self._clock.now_ms(),
            transaction_version=transaction_version,
        )
        self.coordinator.offsets.complete_transaction(partition_index, producer_id, is_commit=is_commit)

    def has_open_transaction(self, group_id: str, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer's transaction is open where the group's offsets are."""
        topic = self._topics.find(GROUP_METADATA_TOPIC)
        if topic is None:
            return False
        return topic.partitions[self.partition_of(group_id)].log.has_open_transaction(producer_id, producer_epoch)

    def fetch_offsets(self, group_id: str, member_id: str | None = None, member_epoch: int = -1) -> GroupOffsets:
        """What a group has committed, empty if there is no such group, or none of a type that has any. Not to be changed.

        Raises:
            KafkaError: what the group says to such a member.
        """
        return self.coordinator.offsets.fetch(group_id, member_id, member_epoch)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction is about to change an offset (KIP-447)."""
        return self.coordinator.offsets.pending.has((group_id, topic, partition))

    def delete_offsets(self, group_id: str, partitions: list[tuple[str, int]]) -> list[ErrorCode]:
        """Forgets offsets; each gets an error or NONE.

        Raises:
            KafkaError: for all of them, as `Offsets.delete`; or what an append ended with: nothing is forgotten then.
        """
        errors, effects = self.coordinator.offsets.delete(group_id, partitions)
        self._run_or_raise(group_id, effects)
        return errors

    def delete_group(self, group_id: str) -> None:
        """Deletes a group and its offsets.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; or what an append ended with: the group is still there then.
        """
        self._run_or_raise(group_id, self.coordinator.delete_group(group_id))
        log.info("Deleted a group", group=group_id)

    def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ListedGroup]:
        """The groups in any of the states and of any of the types."""
        return self.coordinator.list_groups(states, types)

    def describe(self, group_id: str) -> DescribedGroup | None:
        """A classic group and its members; None if there is no such group."""
        return self.coordinator.describe(group_id)

    def has_group(self, group_id: str) -> bool:
        """Whether there is a group of that id, of any type."""
        return group_id in self.coordinator.groups

    def run(self, group_id: str, effects: Effects) -> ErrorCode | None:
        """Carries out a step of a group's; returns what its append ended with, None if all is well."""
        return self._run(self._partition_index(group_id), effects)

    def _partition_index(self, group_id: str) -> int:
        group = self.coordinator.groups.get(group_id)
        return self.partition_of(group_id) if group is None else group.partition

    def _run_or_raise(self, group_id: str, effects: Effects) -> None:
        error = self.run(group_id, effects)
        if error is not None:
            raise KafkaError(append_error(error))

    def _run_all(self, steps: list[tuple[int, Effects]]) -> None:
        for index, effects in steps:
            self._run(index, effects)

    def _run(self, index: int, effects: Effects) -> ErrorCode | None:
        """Carries a step out; returns what its append ended with, None if all is well."""
        self._apply_timers(effects)
        error = self._append(index, effects) if effects.records else None
        if effects.then is not None:
            self._run(index, effects.then(error, self._clock.now_ms()))
        for pending, result in effects.replies:
            pending.complete(result)
        return error

    def _apply_timers(self, effects: Effects) -> None:
        for change in effects.timers:
            if isinstance(change, SetTimer):
                self._set_timer(change)
            else:
                armed = self._timers.pop(change, None)
                if armed is not None:
                    armed.timer.cancel()

    def _set_timer(self, change: SetTimer) -> None:
        armed = self._timers.get(change.key)
        if armed is not None:
            if change.is_first:
                return
            if (armed.event is change.event or armed.event == change.event) and self._clock.postpone(
                armed.timer, change.delay_ms
            ):
                return
            armed.timer.cancel()
        # Nobody can come too late for the first wait of a new group; whatever else is due takes something from a client.
        is_wait = isinstance(change.event, InitialJoinExpired)
        set_timer = self._clock.call_later if is_wait else self._clock.expire_later
        timer = set_timer(change.delay_ms, partial(self._on_timer, change.key, change.event))
        self._timers[change.key] = _Armed(timer, change.event)

    def _on_timer(self, key: TimerKey, event: TimerEvent) -> None:
        del self._timers[key]
        self._run(*self.coordinator.on_timer(event, self._clock.now_ms()))

    def _append(self, index: int, effects: Effects) -> ErrorCode | None:
        now_ms = self._clock.now_ms()
        records = effects.records
        try:
            if effects.is_atomic or len(records) <= RECORDS_IN_BATCH:
                self._append_batch(index, records, effects, now_ms)
            else:
                for start in range(0, len(records), RECORDS_IN_BATCH):
                    self._append_batch(index, records[start : start + RECORDS_IN_BATCH], effects, now_ms)
        except KafkaError as error:
            if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                return error.code
            if error.code in NOT_THE_DISKS_FAULT:
                log.warning("A group's records are refused", partition=index, error=str(error))
                return error.code
            if not self._has_failed:
                log.error("Groups and offsets cannot be stored", partition=index, error=str(error))
            self._has_failed = True
            return error.code
        if self._has_failed:
            log.info("Groups and offsets can be stored again")
            self._has_failed = False
        return None

    def _append_batch(self, index: int, records: list[CoordinatorRecord], effects: Effects, now_ms: int) -> None:
        producer = effects.producer
        try:
            pairs = [record.encode() for record in records]
        except struct.error as error:
            # A name or an id is longer than a record's string can be: 32,767 bytes.
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"a record cannot be written: {error}") from error
        if producer is None:
            batch = build_keyed_batch(pairs, timestamp=now_ms, compression=self._compression)
        else:
            # Sequence numbers are a client's affair; Kafka's coordinator begins each of its batches with 0.
            batch = build_keyed_batch(
                pairs,
                timestamp=now_ms,
                compression=self._compression,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
            )
        info = self._partition(index).append(memoryview(batch), now_ms=now_ms, origin=Origin.COORDINATOR)
        if effects.is_replayed:
            producer_id = None if producer is None else producer.producer_id
            for offset, record in enumerate(records, info.base_offset):
                self.coordinator.replay(record, offset, producer_id)

    def _partition(self, index: int) -> Partition:
        topic = self._topics.find(GROUP_METADATA_TOPIC) or self._topics.create_internal(GROUP_METADATA_TOPIC)
        return topic.partitions[index]

    def _expire(self) -> None:
        event = "Deleted expired offsets, or groups without offsets"
        pieces: Iterator[Piece] = iter(())
        with isolate("Offsets cannot be expired"):
            pieces = self.coordinator.expire(self._clock.now_ms())
        self._run_in_slices(pieces, event, self._expire_later)

    def _expire_later(self) -> None:
        self._clock.call_later(self._check_interval_ms, self._expire)

    def _run_in_slices(self, pieces: Iterator[Piece], event: str, on_end: Callable[[], object] = lambda: None) -> None:
        """Carries long work out, a few milliseconds in each turn of the loop. A piece that fails costs only its own partition.

        Args:
            event: what the log says of each piece.
            on_end: called after the last piece.
        """
        stop_ms = self._clock.monotonic_ms() + SLICE_MS
        while self._clock.monotonic_ms() < stop_ms:
            piece = None
            with isolate("Work on groups ends before it is complete"):
                piece = next(pieces, None)
            if piece is None:
                on_end()
                return
            index, effects = piece
            with isolate("Work on the groups of a partition failed", partition=index):
                if effects.records and self._run(index, effects) is None:
                    log.info(event, partition=index, tombstones=len(effects.records))
        self._clock.call_later(0, lambda: self._run_in_slices(pieces, event, on_end))

    def _on_topic_deleted(self, topic: Topic) -> None:
        if topic.name != GROUP_METADATA_TOPIC:
            self._run_in_slices(self.coordinator.forget_topic(topic.name), "Deleted offsets of a deleted topic")
            return
        log.warning("The topic of groups and offsets was deleted, and they with it")
        effects = self.coordinator.unload()
        self._partition_count = self._configured_partition_count
        self._run(0, effects)


@lru_cache(maxsize=1024)
def java_string_hash(text: str) -> int:
    """What `String.hashCode` of Java gives: over UTF-16 code units, in 32 bits with a sign.

    Remembered, for the same few ids come again and again: it was a twentieth of a transaction (2026-11).
    """
    units = text.encode("utf-16-be")
    number = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) & 0xFFFFFFFF
    return number - 0x100000000 if number & 0x80000000 else number
