"""One partition: its log, its replicas, its high watermark, and the requests that wait for its records.

How it works: a record is first appended and then committed. It is appended once it is in the leader's log; then the
replicas that fetch from the leader are notified. It is committed once all in-sync replicas have it; then the high watermark
passes it, and consumers, Produce requests with acks=all and the coordinators are notified. A partition with one replica commits
inside `append`.

A broker among others leads a partition, follows its leader, or has no replica of it. An object has one role. When the role of
the broker changes, and when a follower gets another leader epoch, another object takes the place of the partition in the table
of topics, and the old one `is_gone`. A leader that is elected again keeps its object, and the requests that wait keep waiting.

Rules of this file:
    Invariant: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset.
    Invariant: the high watermark of a sole replica is the log end offset whenever `append` returns.
    Invariant: `_commit_waits` is ordered by offset, and every offset in it is greater than the high watermark.
    A watcher decides in O(1). An exception of a watcher is logged, and does not affect the append and other watchers. A watcher
    may remove itself, and other watchers may be added, while watchers are called. Watchers are called in the order in which they
    were added.

Source: kafka.cluster.Partition, kafka.server.ReplicaManager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate, log_once
from wirekafka.log.producer_state import Ending
from wirekafka.log.validation import CLIENT, Batch, Origin
from wirekafka.names import NO_LEADER_EPOCH, NO_LEADER_ID, TopicPartition
from wirekafka.replication.absent_log import ABSENT_LOG
from wirekafka.wire.control import END_MARKER_BYTES, EndMarker

if TYPE_CHECKING:
    from wirekafka.config import LogConfig
    from wirekafka.log.context import AppendInfo
    from wirekafka.log.log import Log
    from wirekafka.log.manager import LogManager
    from wirekafka.log.storage import FileRegion

CACHED_ENDINGS = 64
"""How many endings are kept: those of one coordinator differ in two ways only."""

OnCommit = Callable[[ErrorCode | None], object]
"""Called with None once records are committed, or with an error if this broker can no longer know whether they are."""


class Watcher(Protocol):
    """A fetch, or a fetch session, that waits for committed records of a partition."""

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> object:
        """Is called when the high watermark or the last stable offset has moved, or the log start offset (with 0 bytes).

        Args:
            size_bytes: The bytes that the high watermark has passed.
            stable_bytes: The bytes that the last stable offset has passed, for consumers that read committed transactions only:
                none while a transaction is open, and all bytes from its first record on once it ends.
        """

    def on_gone(self, partition: Partition) -> object:
        """Is called when the partition is closed, deleted or taken offline; the watcher is not called again."""


class ReplicaWatcher(Protocol):
    """A fetch of another replica that waits for records, committed or not."""

    def on_append(self, partition: Partition, size_bytes: int) -> object:
        """Is called after an append of `size_bytes` bytes, or with 0 if the in-sync replicas may have changed."""

    def on_gone(self, partition: Partition) -> object:
        """Is called when the partition is closed, deleted or taken offline; the watcher is not called again."""


class CommitWait:
    """One callback that waits for a commit; see `Partition.on_commit`."""

    __slots__ = ("callback", "offset")

    def __init__(self, offset: int, callback: OnCommit) -> None:
        self.offset = offset
        self.callback: OnCommit | None = callback

    def cancel(self) -> None:
        """Ends the wait without a call of the callback."""
        self.callback = None

    def end(self, error: ErrorCode | None) -> None:
        """Calls the callback, unless the wait was cancelled or has ended. An exception of the callback is logged."""
        callback, self.callback = self.callback, None
        if callback is None:
            return
        try:
            callback(error)
        except Exception as failure:  # noqa: BLE001 - the other waits of the partition must end too
            log_once(failure, "A request that waited for a commit could not continue")


class Partition:
    """One partition.

    Attributes:
        topic, topic_id, index: The name of the partition.
        log: What others may read of the log; only this partition changes the log.
        writable_log: The log, for appends and deletions.
        leader: The node id of the leader; -1 if there is none, or this object does not know it.
        leader_epoch: The number of leader changes, which is written into each batch.
        replicas: The node ids of all replicas.
        in_sync_replicas: The node ids of the replicas that have all committed records, including the leader. Empty unless this
            broker leads.
        is_sole_replica: Whether an append is committed at once, because the leader is the only in-sync replica, and no
            `LeaderReplica` decides about commits.
        watchers: The watchers that are called after each commit; a dict because it keeps their order.
        replica_watchers: The watchers that are called after each append; a dict because it keeps their order.
        is_gone: Whether the partition is closed or deleted, or the role of this broker has changed. Holders of the object must
            then look the topic up again.
    """

    __slots__ = (
        "_commit_waits",
        "in_sync_replicas",
        "index",
        "is_gone",
        "is_sole_replica",
        "leader",
        "leader_epoch",
        "log",
        "replica_watchers",
        "replicas",
        "topic",
        "topic_id",
        "watchers",
        "writable_log",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: Log,
        *,
        leader: int,
        leader_epoch: int = 0,
        is_sole_replica: bool = True,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.writable_log = log
        self.log = log.reader
        self.leader = leader
        # The log may come from a cluster and have higher leader epochs. Leader epochs never decrease.
        self.leader_epoch = max(leader_epoch, self.log.epochs.latest or 0)
        self.replicas: tuple[int, ...] = (leader,)
        self.in_sync_replicas: tuple[int, ...] = (leader,)
        self.is_sole_replica = is_sole_replica
        self.watchers: dict[Watcher, None] = {}
        self.replica_watchers: dict[ReplicaWatcher, None] = {}
        self.is_gone = False
        self._commit_waits: deque[CommitWait] = deque()
        if is_sole_replica:
            self.log.advance_high_watermark(self.log.log_end_offset)

    @classmethod
    def open(
        cls, logs: LogManager, topic: str, index: int, *, topic_id: bytes, config: LogConfig, leader: int, is_new: bool = True
    ) -> Partition:
        """Returns the partition with its log, which is created if it does not exist.

        Args:
            is_new: Whether the partition is new, so that it cannot have a log.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if the folder of the log cannot be created.
        """
        name = TopicPartition(topic, index)
        log = logs.get(name) or logs.create(name, topic_id, config, is_new=is_new)
        return cls(topic, topic_id, index, log, leader=leader)

    @classmethod
    def absent(cls, topic: str, topic_id: bytes, index: int) -> Partition:
        """Returns a partition of which this broker has no replica.

        Its leader is -1 here: who leads it is in the metadata. Every use of its log raises NOT_LEADER_OR_FOLLOWER, except that
        the log is not offline.

        Source: HostedPartition.None.
        """
        log: Any = ABSENT_LOG
        partition = cls.__new__(cls)
        partition.topic, partition.topic_id, partition.index = topic, topic_id, index
        partition.log = partition.writable_log = log
        partition.leader, partition.leader_epoch = NO_LEADER_ID, NO_LEADER_EPOCH
        partition.replicas = partition.in_sync_replicas = ()
        partition.is_sole_replica = partition.is_gone = False
        partition.watchers, partition.replica_watchers, partition._commit_waits = {}, {}, deque()
        return partition

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index}>"

    @property
    def is_hosted(self) -> bool:
        """Whether this broker has a replica of the partition."""
        log: object = self.log
        return log is not ABSENT_LOG

    @property
    def topic_partition(self) -> TopicPartition:
        """The name of the partition."""
        return TopicPartition(self.topic, self.index)

    @property
    def is_offline(self) -> bool:
        """Whether the log directory has failed or the log is damaged. The partition has no leader until the broker restarts."""
        return self.log.offline_reason is not None

    def check_online(self) -> None:
        """Raises unless the log can be used.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.

        Source: ReplicaManager.getPartitionOrError, HostedPartition.Offline.
        """
        if self.log.offline_reason is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is offline: {self.log.offline_reason}")

    def set_replicas(self, replicas: Sequence[int], in_sync_replicas: Sequence[int]) -> None:
        """Sets the replicas and the in-sync replicas.

        If the leader is the only in-sync replica, all records are committed.

        Args:
            in_sync_replicas: A subset of `replicas` that includes the leader.
        """
        assert self.leader in in_sync_replicas and set(in_sync_replicas) <= set(replicas)
        self.replicas = tuple(replicas)
        self.in_sync_replicas = tuple(in_sync_replicas)
        self.is_sole_replica = len(self.in_sync_replicas) == 1
        if self.is_sole_replica:
            self.advance_high_watermark(self.log.log_end_offset)

    def take_state(self, *, leader_epoch: int, replicas: Sequence[int], in_sync_replicas: Sequence[int]) -> None:
        """Sets what the controller has decided about a partition whose commits `LeaderReplica` decides."""
        self.leader_epoch = leader_epoch
        self.replicas = tuple(replicas)
        self.in_sync_replicas = tuple(in_sync_replicas)
        self.is_sole_replica = False

    @property
    def has_enough_in_sync_replicas(self) -> bool:
        """Whether the in-sync replicas reach `min.insync.replicas`, or are all replicas if the partition has fewer.

        Source: Partition.effectiveMinIsr.
        """
        count = len(self.in_sync_replicas)
        return count == len(self.replicas) or count >= self.log.config.min_insync_replicas

    def append(self, records: memoryview | Batch, *, now_ms: int, origin: Origin = CLIENT) -> AppendInfo:
        """Appends a batch. A sole replica commits it at once, which wakes the fetches that wait for it.

        Args:
            records: A whole batch in a writable buffer, into which offsets are written; or a batch that is already validated.
            now_ms: The wall-clock time of the broker.
            origin: The sender of the batch, a client or a part of the broker, which decides what the batch may contain.

        Raises:
            HeavyBatchError: The batch must be validated in a thread first; nothing was appended.
            KafkaError: The errors of `Log.append`; nothing was appended.

        Durability: as `Log.append` says.
        """
        log = self.log
        info = self.writable_log.append(records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin)
        if not self.is_sole_replica:
            self.tell_replicas(len(records))
        elif log.high_watermark != info.base_offset or info.is_duplicate:
            # An earlier append may have failed in its flush, so that its records are in the log and not committed.
            self.advance_high_watermark(log.log_end_offset)
        else:
            log.high_watermark = log.log_end_offset
            if self.watchers:
                size_bytes = len(records)
                is_stable = log.producers.first_unstable_offset is None
                self._tell_watchers(size_bytes, size_bytes if is_stable else 0)
        return info

    def write_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        coordinator_epoch: int,
        is_commit: bool,
        now_ms: int,
        transaction_version: int,
    ) -> AppendInfo:
        """Ends the transaction of a producer in this partition. A sole replica commits the marker, as `append` does.

        A producer without a transaction gets its marker too, so a coordinator may write one again.

        Args:
            transaction_version: The level of the feature `transaction.version` of the transaction; at level 2 the epoch of the
                marker is the producer's next epoch (KIP-890).

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR; nothing was appended.

        Durability: as `Log.append` says.
        """
        ending = _ending(is_commit, coordinator_epoch, transaction_version)
        info = self.writable_log.append_marker(producer_id, producer_epoch, ending, leader_epoch=self.leader_epoch, now_ms=now_ms)
        if self.is_sole_replica:
            self.advance_high_watermark(self.log.log_end_offset)
        else:
            self.tell_replicas(END_MARKER_BYTES)
        return info

    def tell_replicas(self, size_bytes: int) -> None:
        """Calls the watchers of appends."""
        for watcher in tuple(self.replica_watchers):
            try:
                watcher.on_append(self, size_bytes)
            except Exception as error:  # noqa: BLE001 - the records are appended, and the other replicas must get them
                log_once(error, "A replica's watcher failed on an append", partition=str(self.topic_partition))

    def advance_high_watermark(self, offset: int) -> None:
        """Commits the records before `offset`, which all in-sync replicas have, and notifies all that waits for the commit.

        Does nothing unless `offset` is greater than the high watermark, which never decreases.
        """
        log = self.log
        former_offset = log.high_watermark
        if offset <= former_offset:
            return
        assert offset <= log.log_end_offset, "no record beyond the log's end is committed"
        if not self.watchers:
            log.advance_high_watermark(offset)
        else:
            stable_offset = log.last_stable_offset
            log.advance_high_watermark(offset)
            size_bytes = log.size_between(former_offset, offset)
            self._tell_watchers(size_bytes, log.size_between(stable_offset, log.last_stable_offset))
        if self._commit_waits:
            self._end_committed_waits()

    def _end_committed_waits(self) -> None:
        waits = self._commit_waits
        while waits and waits[0].offset <= self.log.high_watermark:
            waits.popleft().end(None)

    def on_commit(self, offset: int, callback: OnCommit) -> CommitWait:
        """Calls the callback once all records before `offset` are committed; at once if they are already committed.

        The callback is called at most once: with None, with NOT_LEADER_OR_FOLLOWER if the partition is closed before the commit
        or before this call, or with KAFKA_STORAGE_ERROR if the partition goes offline. The wait needs no task and usually costs
        O(1), because requests wait in the order of their appends.
        """
        wait = CommitWait(offset, callback)
        if self.is_gone:
            # The next role of the broker may have truncated the records, and the high watermark may count other records.
            wait.end(self.lost_error)
        elif offset <= self.log.high_watermark:
            wait.end(None)
        elif self.is_offline:
            wait.end(self.lost_error)
        else:
            self._enter(wait)
        return wait

    @property
    def lost_error(self) -> ErrorCode:
        """The error for requests whose waits end because the partition is closed or offline."""
        return ErrorCode.KAFKA_STORAGE_ERROR if self.is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _enter(self, wait: CommitWait) -> None:
        waits = self._commit_waits
        while waits and waits[0].callback is None:
            # Cancelled waits are removed from the front, so that they do not pile up while the high watermark does not move.
            waits.popleft()
        later: list[CommitWait] = []
        while waits and waits[-1].offset > wait.offset:
            later.append(waits.pop())
        waits.append(wait)
        waits.extend(reversed(later))

    def _tell_watchers(self, size_bytes: int, stable_bytes: int) -> None:
        for watcher in tuple(self.watchers):
            try:
                watcher.on_committed(self, size_bytes, stable_bytes)
            except Exception as error:  # noqa: BLE001 - the records are appended, and the other fetches must be completed
                log_once(error, "A waiting fetch failed on a commit", partition=str(self.topic_partition))

    def read(self, offset: int, *, max_bytes: int, min_one_batch: bool, only_stable: bool = False) -> FileRegion | bytes:
        """Reads committed batches, from the batch that holds `offset` on; returns no bytes at the high watermark.

        Args:
            only_stable: Whether to read only up to the last stable offset, for consumers that read committed transactions only.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
        """
        log = self.log
        end_offset = log.last_stable_offset if only_stable else log.high_watermark
        return log.read(offset, max_bytes=max_bytes, end_offset=end_offset, min_one_batch=min_one_batch)

    def read_for_replica(self, offset: int, *, max_bytes: int, min_one_batch: bool) -> FileRegion | bytes:
        """Reads batches, committed or not, from the batch that holds `offset` on; returns no bytes at the log end offset.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
        """
        log = self.log
        return log.read(offset, max_bytes=max_bytes, end_offset=log.log_end_offset, min_one_batch=min_one_batch)

    def aborted_in_read(self, offset: int, size_bytes: int) -> list[tuple[int, int]]:
        """Returns the aborted transactions in a read of `size_bytes` bytes from `offset`, for consumers that must skip them.

        Returns:
            The producer id and the first offset of each aborted transaction, whose records end with its marker.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        if not size_bytes:
            return []
        found = self.log.aborted_in_read(offset, size_bytes, self.log.last_stable_offset)
        return [(aborted.producer_id, aborted.first_offset) for aborted in found]

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Raises unless the leader epoch of a request is the current one, or -1, which means that the request has none.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH if the epoch is lower, UNKNOWN_LEADER_EPOCH if it is higher.

        Source: KIP-320; Partition.checkCurrentLeaderEpoch.
        """
        if current_leader_epoch == self.leader_epoch or current_leader_epoch < 0:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    @property
    def earliest_epoch(self) -> int | None:
        """The leader epoch of the first record, or of the next record if the log is empty; None if it is unknown."""
        earliest = self.log.epochs.earliest
        if earliest is None:
            return self.leader_epoch
        return earliest.epoch if earliest.start_offset <= self.log.log_start_offset else None

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int] | None:
        """Returns the greatest epoch up to `leader_epoch` and its end offset; None if the epoch is unknown: too new or too old.

        The current epoch ends at the log end offset, with or without records: a consumer may have the epoch from ListOffsets of
        an empty partition, and treats an unknown epoch as data loss. The current epoch does not end at the high watermark, which
        on a new leader may be less than the position of a consumer: that consumer would treat committed records as lost.

        A follower knows the end of an epoch once it has records of it: what it lacks is not lost.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.

        Source: UnifiedLog.endOffsetForEpoch; UnifiedLog.maybeAssignEpochStartOffset.
        """
        self.check_online()
        if leader_epoch == self.leader_epoch and self.in_sync_replicas:
            return leader_epoch, self.log.log_end_offset
        return self.log.end_offset_for_epoch(leader_epoch)

    def find_divergence(self, leader_epoch: int, offset: int) -> tuple[int, int] | None:
        """Returns the point where a reader's log diverges from this log; None if it does not.

        Args:
            leader_epoch: The leader epoch of the reader's last record.
            offset: The fetch offset of the reader.

        Returns:
            The greatest common epoch and its end offset.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE if the epoch is unknown or the log starts after `offset`; KAFKA_STORAGE_ERROR.

        Source: KIP-595; Partition.readRecords.
        """
        end = self.end_offset_for_epoch(leader_epoch)
        if end is None or offset < self.log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        epoch, end_offset = end
        return end if epoch < leader_epoch or end_offset < offset else None

    def delete_records(self, before_offset: int) -> int:
        """Deletes the records before `before_offset`, or before the high watermark if it is -1; returns the log start offset.

        Raises:
            KafkaError: POLICY_VIOLATION for a topic whose only cleanup policy is compaction; OFFSET_OUT_OF_RANGE for an offset
                above the high watermark; KAFKA_STORAGE_ERROR.

        Source: KIP-107; Partition.deleteRecordsOnLeader, UnifiedLog.maybeIncrementLogStartOffset.
        """
        self.check_online()
        log = self.log
        if log.config.cleanup_policy == {"compact"}:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"records of {self.topic_partition} go by compaction only")
        if before_offset == -1:
            before_offset = log.high_watermark
        if not 0 <= before_offset <= log.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if before_offset > log.log_start_offset:
            self.writable_log.retention.delete_records(before_offset)
            self._tell_watchers(0, 0)
        return log.log_start_offset

    def close(self) -> None:
        """Ends all waits, because this broker no longer leads the partition; does not change the log."""
        self.is_gone = True
        self.wake_watchers()

    def give_way(self) -> None:
        """Ends the use of this object, because another one takes its place: ends all waits, and refuses appends and deletions.

        The next role of the broker writes the same log, so this object must not write it any more. Reads end at the high
        watermark as before.

        Source: ReplicaManager.makeFollowers (completeDelayedFetchOrProduceRequests).
        """
        log: Any = ABSENT_LOG
        self.close()
        self.writable_log = log

    def wake_watchers(self) -> None:
        """Ends all waits, because the partition is closed or offline, so nothing more is appended or committed."""
        watchers, self.watchers = self.watchers, {}
        replica_watchers, self.replica_watchers = self.replica_watchers, {}
        waits, self._commit_waits = self._commit_waits, deque()
        for wait in waits:
            wait.end(self.lost_error)
        waiting: list[Watcher | ReplicaWatcher] = [*watchers, *replica_watchers]
        for watcher in waiting:
            with isolate("A waiting fetch failed when its partition was closed", partition=str(self.topic_partition)):
                watcher.on_gone(self)

    def delete(self, logs: LogManager) -> None:
        """Closes the partition and frees its name; the files are deleted as `LogManager.delete` says."""
        self.close()
        logs.delete(self.topic_partition)


@lru_cache(CACHED_ENDINGS)
def _ending(is_commit: bool, coordinator_epoch: int, transaction_version: int) -> Ending:
    return Ending(EndMarker(is_commit, coordinator_epoch), transaction_version)
