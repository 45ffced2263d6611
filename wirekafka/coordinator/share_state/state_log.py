"""The stored state of share partitions and its topic, __share_group_state.

How it works: a change of a share partition is one record, which is appended to the partition of the topic that its key
belongs to, and is replayed (`StateTopic`). The topic is not compacted. A snapshot makes all older records of its share partition
redundant. From time to time, the broker takes the newest snapshot of each share partition and deletes the records before the
oldest of these snapshots. Share partitions without changes get new snapshots, so that this makes progress.

Rules of this file:
    Invariant: `_snapshot_offsets[index]` has the offset of the newest snapshot of each share partition in that partition.
    Records are deleted only while the newest snapshot and the newest deletion are committed: an election may take both back.

Source: ShareCoordinatorService, ShareCoordinatorOffsetsManager, SharePartitionKey.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from wirekafka.coordinator.effects import append_error
from wirekafka.coordinator.share_state.batches import StateChange
from wirekafka.coordinator.share_state.records import ShareKey, ShareSnapshotValue, ShareStateRecord, decode, encode
from wirekafka.coordinator.share_state.state import EXAMINED_AT_ONCE, ShareState, ShareStates
from wirekafka.coordinator.state_topic import StateTopic
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.names import SHARE_STATE_TOPIC
from wirekafka.pending import Work
from wirekafka.wire.compression import Compression

if TYPE_CHECKING:
    from wirekafka.clock import Clock
    from wirekafka.config import BrokerConfig
    from wirekafka.coordinator.cluster import CoordinatorCluster
    from wirekafka.coordinator.reply_gate import ReplyGate
    from wirekafka.replication.partition import Partition
    from wirekafka.replication.replica_manager import HostedTopic, HostedTopics

log = structlog.get_logger(__name__)

CHANGED_AT_ONCE = 200
"""The share partitions whose state one step of long work changes: 2 to 5 ms."""


class ShareStateLog:
    """The stored state of the share partitions of one broker.

    Args:
        run_in_slices: runs long work a few milliseconds at a time, as `Slices.run` does.

    Attributes:
        state: the partitions of __share_group_state.
        on_unload: called with the share partitions whose state this broker no longer has.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        topics: HostedTopics,
        gate: ReplyGate,
        run_in_slices: Callable[[Work[None]], object],
    ) -> None:
        self.on_unload: list[Callable[[list[ShareKey]], object]] = []
        self._clock = clock
        self._topics = topics
        self._is_in_cluster = False
        self._run_in_slices = run_in_slices
        self._prune_interval_ms = config.integer("share.coordinator.state.topic.prune.interval.ms")
        self._cold_interval_ms = config.integer("share.coordinator.cold.partition.snapshot.interval.ms")
        self._states = ShareStates(config.integer("share.coordinator.snapshot.update.records.per.snapshot"))
        self._snapshot_offsets: defaultdict[int, dict[ShareKey, int]] = defaultdict(dict)
        self._deletion_offsets: dict[int, int] = {}
        """The offset of the newest deletion in each partition that has one."""
        self.state: StateTopic[ShareStateRecord] = StateTopic(
            SHARE_STATE_TOPIC,
            "share groups",
            self,
            clock,
            topics,
            gate,
            partition_count=config.integer("share.coordinator.state.topic.num.partitions"),
            compression=Compression(config.integer("share.coordinator.state.topic.compression.codec")),
            is_keyed=False,
        )

    def load(self) -> None:
        """Loads all states. The broker calls it once, on the loop, before it listens."""
        self.state.load_all()
        if self._states.by_key:
            log.info("Loaded the state of share groups", share_partitions=len(self._states.by_key))
        self._begin_background_work()

    def _begin_background_work(self) -> None:
        self._topics.on_delete.append(self._on_topic_deleted)
        self._clock.call_later(self._prune_interval_ms, self._prune)
        self._clock.call_later(self._cold_interval_ms, self._snapshot_cold)

    def join_cluster(self, cluster: CoordinatorCluster) -> None:
        """Prepares for a cluster; the broker calls it instead of `load`. States are served once their partition is loaded."""
        self._is_in_cluster = True
        self.state.join_cluster(partial(cluster.partition_count, SHARE_STATE_TOPIC))
        self._topics.on_change.append(lambda _: self.state.refresh_partition_count())
        self._begin_background_work()

    def load_partition(self, partition: Partition) -> None:
        """Loads the states of a partition that this broker leads now, in slices.

        Source: ShareCoordinatorService.onElection.
        """
        self.state.elect(partition, partition.leader_epoch)

    def unload_partition(self, index: int, leader_epoch: int | None) -> None:
        """Removes the states of a partition that this broker no longer leads, in slices.

        Args:
            leader_epoch: the epoch of the new leader; None if the partition is deleted.

        Source: ShareCoordinatorService.onResignation.
        """
        self.state.resign(index, leader_epoch)

    # The interface for the executor (`StateMachine`)

    def encode(self, record: ShareStateRecord) -> tuple[bytes, bytes | None]:
        """See `StateMachine.encode`."""
        return encode(record)

    def decode(self, key: bytes | None, value: bytes | None) -> ShareStateRecord | None:
        """See `StateMachine.decode`."""
        return decode(key, value)

    def replay(self, index: int, record: ShareStateRecord, offset: int, producer_id: int | None) -> None:
        """See `StateMachine.replay`."""
        self._states.replay(record)
        if record.value is None:
            self._snapshot_offsets[index].pop(record.key, None)
            self._deletion_offsets[index] = offset
        elif isinstance(record.value, ShareSnapshotValue):
            self._snapshot_offsets[index][record.key] = offset

    def on_loaded(self, index: int) -> Iterator[None]:
        """See `StateMachine.on_loaded`: deletes the state of topics that no longer exist.

        A broker of a cluster may not know all topics yet, so it deletes the state of a topic only when it is told of the
        deletion.
        """
        if self._is_in_cluster:
            return iter(())
        self._run_in_slices(
            self._deletion_where([*self._snapshot_offsets[index]], lambda key: self._topics.find_by_id(key.topic_id) is None)
        )
        return iter(())

    def unload(self, index: int) -> Iterator[None]:
        """See `StateMachine.unload`."""
        lost = [key for key in self._states.by_key if self.partition_of(key) == index]
        for key in lost:
            del self._states.by_key[key]
        self._snapshot_offsets.pop(index, None)
        self._deletion_offsets.pop(index, None)
        for callback in self.on_unload:
            callback(lost)
        return iter(())

    def enter(self, key: ShareKey) -> None:
        """Raises unless this broker is the coordinator of a share partition and has loaded its state.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE.
        """
        self.state.enter(self.partition_of(key), is_known=key in self._states.by_key)

    def get(self, key: ShareKey) -> ShareState | None:
        """Returns the state of a share partition; None if it was never initialized. The caller must not change it."""
        return self._states.by_key.get(key)

    def forget(self, key: ShareKey) -> None:
        """Does nothing when a share partition is unloaded, because its state stays here."""

    def partition_of(self, key: ShareKey) -> int:
        """Returns the partition of __share_group_state that holds a share partition."""
        return self.state.partition_of(str(key))

    def is_active(self, key: ShareKey) -> bool:
        """Whether the state of a share partition is loaded, so that a state that `get` does not return does not exist."""
        return self.state.is_active(self.partition_of(key))

    def is_available(self, key: ShareKey) -> bool:
        """Whether FindCoordinator should name this broker as the coordinator of a share partition."""
        return self.state.is_available(self.partition_of(key))

    def initialize(self, start_offsets: dict[ShareKey, int | None], state_epoch: int, *, is_reset: bool = True) -> Work[None]:
        """Initializes share partitions with their start offsets; with None, the first fetch decides the start offset.

        The work is done in steps of `CHANGED_AT_ONCE` share partitions.

        Args:
            is_reset: Whether share partitions that have state get a new one.

        Raises:
            KafkaError: The error of an append; some share partitions may be initialized then.
        """
        for keys in _chunks([*start_offsets]):
            now_ms = self._clock.now_ms()
            self._append(
                self._states.initialize(key, state_epoch, start_offsets[key], now_ms)
                for key in keys
                if is_reset or key not in self._states.by_key
            )
            yield

    def write(self, key: ShareKey, change: StateChange, leader_epoch: int) -> None:
        """Stores a change of an initialized share partition.

        Raises:
            KafkaError: The errors of `enter`; UNKNOWN_SERVER_ERROR if the share partition is not initialized; the error of the
                append. Nothing is stored then.
        """
        if key not in self._states.by_key:
            self.enter(key)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{key} is not initialized")
        self._append([self._states.write(key, change, leader_epoch, self._clock.now_ms())])

    def delete(self, keys: Iterable[ShareKey]) -> Work[None]:
        """Deletes the state of share partitions, in steps of `CHANGED_AT_ONCE` share partitions.

        Raises:
            KafkaError: The error of an append; some states may be deleted then.
        """
        for some in _chunks([*keys]):
            self._append([ShareStateRecord(key, None) for key in some if key in self._states.by_key])
            yield

    def _append(self, records: Iterable[ShareStateRecord]) -> None:
        """Appends each record to its partition. A failed partition does not stop the appends to the other partitions.

        Raises:
            KafkaError: The first error.
        """
        by_partition: defaultdict[int, list[ShareStateRecord]] = defaultdict(list)
        for record in records:
            by_partition[self.partition_of(record.key)].append(record)
        failure: KafkaError | None = None
        for index, of_partition in by_partition.items():
            try:
                self.state.enter(index)
                self.state.append(index, of_partition, is_atomic=False)
            except KafkaError as error:
                failure = failure or KafkaError(append_error(error.code), error.message)
        if failure is not None:
            raise failure

    def _prune(self) -> None:
        """Deletes the records that newer snapshots have made redundant."""
        self._clock.call_later(self._prune_interval_ms, self._prune)
        self._run_in_slices(self._pruning())

    def _pruning(self) -> Work[None]:
        """Prunes one partition of __share_group_state in each step."""
        topic = self._topics.find(SHARE_STATE_TOPIC)
        for partition in tuple(topic.partitions) if topic is not None else ():
            with isolate("Cannot delete old state of share groups", partition=str(partition.topic_partition)):
                if self.state.is_active(partition.index) and not partition.is_gone:
                    self._prune_partition(partition)
            yield

    def _prune_partition(self, partition: Partition) -> None:
        high_watermark = partition.log.high_watermark
        newest_snapshot = max(self._snapshot_offsets[partition.index].values(), default=-1)
        if max(newest_snapshot, self._deletion_offsets.get(partition.index, -1)) >= high_watermark:
            # A snapshot or a deletion may still be lost by an election, and the snapshot before it is needed then.
            return
        redundant = min(high_watermark, min(self._snapshot_offsets[partition.index].values(), default=high_watermark))
        if redundant > partition.log.log_start_offset and not partition.is_offline:
            try:
                partition.delete_records(redundant)
            except KafkaError as error:
                log.error("Cannot delete old state of share groups", partition=partition.index, error=str(error))

    def _snapshot_cold(self) -> None:
        """Writes snapshots of the cold share partitions."""
        self._clock.call_later(self._cold_interval_ms, self._snapshot_cold)
        self._run_in_slices(self._cold_snapshots(self._clock.now_ms()))

    def _cold_snapshots(self, now_ms: int) -> Work[None]:
        with isolate("Cannot write snapshots of cold share partitions"), suppress(KafkaError):
            # A failed append is repeated at the next interval; the executor has logged its error.
            for keys in _chunks((yield from self._states.cold_keys(self._cold_interval_ms, now_ms))):
                # A share partition with changes after `cold_keys` is not cold, and its later state is as good.
                self._append(self._states.cold_snapshot(key, now_ms) for key in keys if key in self._states.by_key)
                yield

    def _on_topic_deleted(self, topic: HostedTopic) -> None:
        if topic.name == SHARE_STATE_TOPIC:
            log.warning("The topic with the state of share groups was deleted, so the state is lost")
            self.state.forget_topic()
            return
        self._run_in_slices(self._deletion_where([*self._states.by_key], lambda key: key.topic_id == topic.topic_id))

    def _deletion_where(self, keys: list[ShareKey], is_deleted: Callable[[ShareKey], bool]) -> Work[None]:
        """Deletes the state of deleted topics; examines `EXAMINED_AT_ONCE` share partitions in each step."""
        deleted = []
        for number, key in enumerate(keys, 1):
            if is_deleted(key):
                deleted.append(key)
            if number % EXAMINED_AT_ONCE == 0:
                yield
        yield from self._deletion(deleted)

    def _deletion(self, keys: list[ShareKey]) -> Work[None]:
        """Deletes the state of deleted topics. A failure is harmless."""
        with isolate("Cannot delete the state of a deleted topic"), suppress(KafkaError):
            # The executor has logged the error. A topic id is never used again, so the state is never read.
            yield from self.delete(keys)


def _chunks(keys: list[ShareKey]) -> Iterator[list[ShareKey]]:
    """Yields the keys, so many at a time that a change of their state takes a few milliseconds."""
    for first in range(0, len(keys), CHANGED_AT_ONCE):
        yield keys[first : first + CHANGED_AT_ONCE]
