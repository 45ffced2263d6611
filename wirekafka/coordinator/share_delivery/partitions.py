"""The share partitions in use. The first fetch loads a share partition; it is unloaded when its group has no share session.

How it works: a loaded share partition consists of the pure `SharePartition`, the partition that holds its records, the
fetches that wait for records, and one timer for the lock that expires first. A change is applied, and then written to
__share_group_state; if the write fails, the change is undone. The first load of a share partition decides the start offset and
stores it at once, so that the group misses no record that is appended later.

Rules of this file:
    Invariant: `timer` is due no later than the first lock expires.

Source: kafka.server.share.SharePartitionManager, SharePartitionCache, SharePartition (maybeInitialize).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import structlog

from wirekafka.config.group_table import BY_DURATION, duration_ms
from wirekafka.coordinator.share_delivery.acquisition import Limits
from wirekafka.coordinator.share_delivery.share_partition import Acknowledgement, AcknowledgeType, SharePartition
from wirekafka.coordinator.share_state.batches import StateChange
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from wirekafka.clock import Clock, Timer
    from wirekafka.config import GroupConfig
    from wirekafka.coordinator.share_state.batches import StateBatch
    from wirekafka.coordinator.share_state.state import ShareState
    from wirekafka.pending import Work
    from wirekafka.replication.partition import Partition
    from wirekafka.replication.replica_manager import HostedTopics

log = structlog.get_logger(__name__)


class Waiting(Protocol):
    """A fetch that waits for records of a share partition."""

    def on_available(self) -> None:
        """Is called when records may have become available."""


class StoredStates(Protocol):
    """The stored states of share partitions: a `ShareStateLog`, or in a cluster the `PersistedStates`."""

    on_unload: list[Callable[[list[ShareKey]], object]]

    def enter(self, key: ShareKey) -> None:
        """Raises unless the state of a share partition is known.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER.
        """

    def get(self, key: ShareKey) -> ShareState | None:
        """Returns the state of a share partition; None if it was never initialized."""

    def write(self, key: ShareKey, change: StateChange, leader_epoch: int) -> None:
        """Stores a change of an initialized share partition.

        Raises:
            KafkaError: nothing is stored then.
        """

    def forget(self, key: ShareKey) -> None:
        """Is called when a share partition is no longer in use."""


class LoadedPartition:
    """A share partition in use.

    Attributes:
        partition: The partition that holds the records.
        share: The states of the records.
        waiting: The fetches that wait for records; a dict because it keeps their order.
        timer: The timer that releases records whose lock has expired; None if no record is locked.
        is_unloaded: Whether the share partition was unloaded; the next fetch loads it again.
    """

    __slots__ = ("is_unloaded", "key", "partition", "share", "timer", "waiting")

    def __init__(self, key: ShareKey, partition: Partition, share: SharePartition) -> None:
        self.key = key
        self.partition = partition
        self.share = share
        self.waiting: dict[Waiting, None] = {}
        self.timer: Timer | None = None
        self.is_unloaded = False

    @property
    def has_records(self) -> bool:
        """Whether the log may have records that no consumer of the group has acquired."""
        return self.share.fetch_offset() < self.partition.log.high_watermark

    def wake(self) -> None:
        """Wakes the waiting fetches, because records may have become available."""
        for waiting in tuple(self.waiting):
            waiting.on_available()


class SharePartitionManager:
    """The share partitions in use on one broker."""

    def __init__(self, clock: Clock, topics: HostedTopics, states: StoredStates) -> None:
        self._clock = clock
        self._topics = topics
        self._states = states
        self._node_id: int | None = None
        """The id of this broker in a cluster; None if this broker leads all partitions."""
        self._by_group: defaultdict[str, dict[ShareKey, LoadedPartition]] = defaultdict(dict)
        states.on_unload.append(self._unload_keys)

    def join_cluster(self, states: StoredStates, node_id: int) -> None:
        """Uses the states of a cluster, and only the partitions that this broker leads."""
        self._states.on_unload.remove(self._unload_keys)
        self._states = states
        states.on_unload.append(self._unload_keys)
        self._node_id = node_id

    def unread(self, keys: Iterable[ShareKey]) -> dict[ShareKey, int]:
        """Returns those share partitions that this broker leads and has not loaded, with their leader epochs."""
        unread = {}
        for key in keys:
            loaded = self.find(key)
            if loaded is None or loaded.partition.is_gone:
                with suppress(KafkaError):
                    unread[key] = self._partition_of(key).leader_epoch
        return unread

    def forget_unused(self, keys: Iterable[ShareKey]) -> None:
        """Drops the states that were read for share partitions that could not be loaded."""
        for key in keys:
            if self.find(key) is None:
                self._states.forget(key)

    def limits(self, group_id: str) -> Limits:
        """Returns the limits of a group, from its settings."""
        config = self._topics.group_configs.resolve(group_id)
        return Limits(
            max_delivery_count=config.integer("share.delivery.count.limit"),
            lock_duration_ms=config.integer("share.record.lock.duration.ms"),
            max_in_flight=config.integer("share.partition.max.record.locks"),
            can_renew=config.boolean("share.renew.acknowledge.enable"),
        )

    def reads_committed(self, group_id: str) -> bool:
        """Whether a group gets only records of committed transactions (share.isolation.level)."""
        return self._topics.group_configs.resolve(group_id).text("share.isolation.level") == "read_committed"

    def find(self, key: ShareKey) -> LoadedPartition | None:
        """Returns a loaded share partition; None if it is not loaded."""
        return self._by_group[key.group_id].get(key) if key.group_id in self._by_group else None

    def time_to_search(self, key: ShareKey) -> tuple[Partition, int] | None:
        """Returns a partition and the time in ms at whose first record the group begins (share.auto.offset.reset by_duration).

        Returns:
            None if `load` needs no search.
        """
        topic = self._topics.find_by_id(key.topic_id)
        state = self._states.get(key)
        if self.find(key) is not None or topic is None or state is None or state.start_offset is not None:
            return None
        reset = self._topics.group_configs.resolve(key.group_id).text("share.auto.offset.reset")
        if not reset.startswith(BY_DURATION):
            return None
        ago_ms = duration_ms(reset.removeprefix(BY_DURATION))
        assert ago_ms is not None, "the setting was checked"
        return topic.partitions[key.partition], max(0, self._clock.now_ms() - ago_ms)

    def load_all(self, keys: Iterable[ShareKey], found: Mapping[ShareKey, int]) -> Work[None]:
        """Loads share partitions, one in each step. One that cannot be loaded is skipped; `load` raises its error.

        Args:
            found: The start offsets that searches have found, for share partitions without a start offset.
        """
        for key in keys:
            with suppress(KafkaError):
                self.load(key, found.get(key))
            yield

    def load(self, key: ShareKey, found_offset: int | None = None) -> LoadedPartition:
        """Returns a share partition, and loads it if it is not loaded.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION; NOT_LEADER_OR_FOLLOWER while the broker closes, if another broker leads the
                partition, or if its state is not read in a cluster; KAFKA_STORAGE_ERROR;
                COORDINATOR_NOT_AVAILABLE if its state is in a partition that is offline; UNKNOWN_SERVER_ERROR if the group was
                never assigned the partition; OFFSET_NOT_AVAILABLE if the start offset is that of a time and `found_offset` is
                None; the error of the append, if the start offset cannot be stored.
        """
        loaded = self.find(key)
        if loaded is not None and not loaded.partition.is_gone:
            return loaded
        if loaded is not None:
            self.unload(loaded)
        partition = self._partition_of(key)
        partition.check_online()
        self._states.enter(key)
        state = self._states.get(key)
        if state is None:
            # Kafka responds with this error too: its broker does not pass on the INVALID_REQUEST of the share coordinator.
            message = "Read operation on uninitialized share partition not allowed."
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message)
        start_offset = state.start_offset
        if start_offset is None:
            config = self._topics.group_configs.resolve(key.group_id)
            start_offset = _first_offset(partition, config) if found_offset is None else found_offset
            self._states.write(key, StateChange(start_offset, 0, []), partition.leader_epoch)
        end_offset = partition.log.log_end_offset
        share = SharePartition(
            min(start_offset, end_offset), state.state_epoch, _within(state.batches, end_offset, partition, key)
        )
        loaded = self._by_group[key.group_id][key] = LoadedPartition(key, partition, share)
        self.follow_log(loaded)
        return loaded

    def _partition_of(self, key: ShareKey) -> Partition:
        """Returns the partition with the records of a share partition, which this broker leads.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER.
        """
        topic = self._topics.find_by_id(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topic.partitions[key.partition]
        if partition.is_gone:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The broker is closing.")
        if self._node_id not in (None, partition.leader):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "Another broker leads the partition.")
        return partition

    def follow_log(self, loaded: LoadedPartition) -> None:
        """Drops the records before the log start offset."""
        change = loaded.share.move_start(loaded.partition.log.log_start_offset)
        if change is not None:
            self.write_if_possible(loaded, change)

    def acknowledge(self, key: ShareKey, member_id: str, acknowledgements: Sequence[Acknowledgement]) -> None:
        """Applies and stores the acknowledgements of a consumer.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION if the share partition is not loaded; the errors of
                `SharePartition.acknowledge`; the error of the append: the consumer then keeps the records.
        """
        loaded = self.find(key)
        if loaded is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        share = loaded.share
        limits = self.limits(key.group_id)
        mark = share.mark()
        change = share.acknowledge(member_id, acknowledgements, limits, self._clock.monotonic_ms())
        if change is not None:
            try:
                self._states.write(key, change, loaded.partition.leader_epoch)
            except KafkaError:
                share.restore(mark)
                raise
            loaded.wake()
        if any(AcknowledgeType.RENEW in each.types for each in acknowledgements):
            self.acquired(loaded, limits.lock_duration_ms)

    def release(self, key: ShareKey, member_id: str) -> None:
        """Releases all records of a consumer whose session has ended."""
        loaded = self.find(key)
        if loaded is not None:
            change = loaded.share.release(member_id, self.limits(key.group_id))
            if change is not None:
                self.write_if_possible(loaded, change)
                loaded.wake()

    def acquired(self, loaded: LoadedPartition, lock_duration_ms: int) -> None:
        """Sets the timer after an acquisition or a renewal. The new lock expires first if the lock duration was lowered."""
        if loaded.timer is not None and loaded.timer.is_due_later:
            if loaded.timer.due * 1000 <= self._clock.monotonic_ms() + lock_duration_ms + 1:
                return
            loaded.timer.cancel()
        loaded.timer = self._clock.expire_later(lock_duration_ms, lambda: self._expire_locks(loaded))

    def write_if_possible(self, loaded: LoadedPartition, change: StateChange) -> None:
        """Writes a change that is not undone if the write fails: then a restart may deliver some records once more."""
        try:
            self._states.write(loaded.key, change, loaded.partition.leader_epoch)
        except KafkaError as error:
            log.error("What became of records was not stored", share_partition=str(loaded.key), error=str(error))

    def unload_group(self, group_id: str) -> None:
        """Unloads the share partitions of a group that has no session, or whose stored state was reset."""
        for loaded in tuple(self._by_group.get(group_id, {}).values()):
            self.unload(loaded)

    def unload_topic(self, topic_id: bytes) -> None:
        """Unloads the share partitions of a deleted topic."""
        for loaded in [each for of_group in self._by_group.values() for each in of_group.values()]:
            if loaded.key.topic_id == topic_id:
                self.unload(loaded)

    def unload_partition(self, topic_id: bytes, index: int) -> None:
        """Unloads the share partitions of a partition that this broker no longer leads; their locks end."""
        for group_id in tuple(self._by_group):
            loaded = self.find(ShareKey(group_id, topic_id, index))
            if loaded is not None:
                self.unload(loaded)

    def _unload_keys(self, keys: Iterable[ShareKey]) -> None:
        """Unloads share partitions whose state is lost: changes that were not committed must be forgotten with the state."""
        for key in keys:
            loaded = self.find(key)
            if loaded is not None:
                self.unload(loaded)

    def unload(self, loaded: LoadedPartition) -> None:
        """Unloads a share partition, and wakes the fetches that wait for its records."""
        of_group = self._by_group[loaded.key.group_id]
        of_group.pop(loaded.key, None)
        if not of_group:
            del self._by_group[loaded.key.group_id]
        loaded.is_unloaded = True
        if loaded.timer is not None:
            loaded.timer.cancel()
        self._states.forget(loaded.key)
        loaded.wake()

    def _expire_locks(self, loaded: LoadedPartition) -> None:
        now_ms = self._clock.monotonic_ms()
        change = loaded.share.expire_locks(self.limits(loaded.key.group_id), now_ms)
        deadline_ms = loaded.share.next_deadline_ms
        if deadline_ms is not None:
            delay_ms = max(deadline_ms - now_ms, 1)
            loaded.timer = self._clock.expire_later(delay_ms, lambda: self._expire_locks(loaded))
        if change is not None:
            log.info("Took records back from consumers that had them for too long", share_partition=str(loaded.key))
            self.write_if_possible(loaded, change)
            loaded.wake()


def _first_offset(partition: Partition, config: GroupConfig) -> int:
    """Returns the first start offset of a group in a partition (share.auto.offset.reset).

    Raises:
        KafkaError: OFFSET_NOT_AVAILABLE if the offset is that of a time, which a search must find first.

    Source: SharePartition.startOffsetDuringInitialization.
    """
    reset = config.text("share.auto.offset.reset")
    if reset.startswith(BY_DURATION):
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "The start offset of the group is not found yet.")
    return partition.log.log_start_offset if reset == "earliest" else partition.log.high_watermark


def _within(batches: list[StateBatch], end_offset: int, partition: Partition, key: ShareKey) -> list[StateBatch]:
    """Returns the batches below the log end offset; the log may have lost records at its end in a crash of the machine."""
    if not batches or batches[-1].last_offset < end_offset:
        return batches
    log.warning(
        "A share group has state of records that the log has lost",
        share_partition=str(key),
        partition=str(partition.topic_partition),
    )
    kept = [batch for batch in batches if batch.first_offset < end_offset]
    if kept:
        kept[-1] = kept[-1]._replace(last_offset=min(kept[-1].last_offset, end_offset - 1))
    return kept
