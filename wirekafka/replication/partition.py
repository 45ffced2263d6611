"""One partition: its log, its replicas, how far it is committed, and everything that waits for its records.

Theory of operation: a record has two moments. It is appended once it is in the leader's log: then the replicas that fetch from
the leader hear of it. It is committed once all in-sync replicas have it: then the high watermark passes it, and consumers,
Produce requests with acks=all and the coordinators hear of it. A partition with one replica commits inside `append`.

Rules of this file:
    Invariant: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset.
    Invariant: the high watermark of a sole replica is the log end offset whenever `append` returns.
    Invariant: `_commit_waits` is ordered by offset, and every offset in it is greater than the high watermark.
    A watcher decides in O(1) and never raises. It may remove itself, and others may be added, while watchers are called. They are
    called in the order in which they were added.

Source: kafka.cluster.Partition, kafka.server.ReplicaManager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.producer_state import Ending
from wirekafka.log.validation import Batch, Origin
from wirekafka.names import TopicPartition
from wirekafka.wire.control import END_MARKER_BYTES, EndMarker

if TYPE_CHECKING:
    from wirekafka.config import LogConfig
    from wirekafka.log.context import AppendInfo
    from wirekafka.log.log import Log
    from wirekafka.log.manager import LogManager
    from wirekafka.log.storage import FileRegion

OnCommit = Callable[[ErrorCode | None], object]
"""Told None once records are committed, or the error because of which nobody can say any more whether they are."""


class Watcher(Protocol):
    """A fetch, or a fetch session, that waits for committed records of a partition."""

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> object:
        """More can be read than before, or the log start offset has moved (0 bytes).

        Args:
            size_bytes: the bytes that the high watermark has passed.
            stable_bytes: the bytes that the last stable offset has passed, for consumers that read committed transactions only:
                none while a transaction is open, and everything after its beginning once it ends.
        """

    def on_gone(self, partition: Partition) -> object:
        """The partition was closed, deleted or taken offline; the watcher is not called again."""


class ReplicaWatcher(Protocol):
    """A fetch of another replica that waits for records, committed or not."""

    def on_append(self, partition: Partition, size_bytes: int) -> object:
        """So many bytes were appended."""

    def on_gone(self, partition: Partition) -> object:
        """The partition was closed, deleted or taken offline; the watcher is not called again."""


class CommitWait:
    """One callback that waits for a commit; see `Partition.on_commit`."""

    __slots__ = ("callback", "offset")

    def __init__(self, offset: int, callback: OnCommit) -> None:
        self.offset = offset
        self.callback: OnCommit | None = callback

    def cancel(self) -> None:
        """The callback is not called any more."""
        self.callback = None

    def end(self, error: ErrorCode | None) -> None:
        """Calls back, unless cancelled or called before."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback(error)


class Partition:
    """One partition that this broker leads.

    Attributes:
        topic, topic_id, index: its name.
        log: its records.
        leader: the node id of its leader.
        leader_epoch: how often leadership has changed; written into each batch.
        replicas: the node ids of all replicas.
        in_sync_replicas: the node ids of the replicas that have all committed records, the leader among them.
        is_sole_replica: the leader is the only in-sync replica, so an append is committed at once.
        watchers: told of each commit; a dict for its order.
        replica_watchers: told of each append; a dict for its order.
        is_gone: closed or deleted; its holders must look the topic up again.
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
    )

    def __init__(self, topic: str, topic_id: bytes, index: int, log: Log, *, leader: int, leader_epoch: int = 0) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.leader = leader
        # A log from a cluster has seen higher epochs, and epochs never go back.
        self.leader_epoch = max(leader_epoch, log.epochs.latest or 0)
        self.replicas: tuple[int, ...] = (leader,)
        self.in_sync_replicas: tuple[int, ...] = (leader,)
        self.is_sole_replica = True
        self.watchers: dict[Watcher, None] = {}
        self.replica_watchers: dict[ReplicaWatcher, None] = {}
        self.is_gone = False
        self._commit_waits: deque[CommitWait] = deque()
        log.advance_high_watermark(log.log_end_offset)

    @classmethod
    def open(
        cls, logs: LogManager, topic: str, index: int, *, topic_id: bytes, config: LogConfig, leader: int, is_new: bool = True
    ) -> Partition:
        """The partition over its log, which is created if there is none yet.

        Args:
            is_new: it cannot have had a log before.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, if its folder cannot be made.
        """
        name = TopicPartition(topic, index)
        log = logs.get(name) or logs.create(name, topic_id, config, is_new=is_new)
        return cls(topic, topic_id, index, log, leader=leader)

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index}>"

    @property
    def topic_partition(self) -> TopicPartition:
        """Its name."""
        return TopicPartition(self.topic, self.index)

    @property
    def is_offline(self) -> bool:
        """Its directory has failed, or its log is damaged: nobody leads it until the broker starts again."""
        return self.log.offline_reason is not None

    def check_online(self) -> None:
        """Raises unless its log can be used.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.

        Source: ReplicaManager.getPartitionOrError, HostedPartition.Offline.
        """
        if self.log.offline_reason is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition} is offline: {self.log.offline_reason}")

    def set_replicas(self, replicas: Sequence[int], in_sync_replicas: Sequence[int]) -> None:
        """Takes over which brokers hold the partition, and which of them are in sync.

        If the leader is left as the only one in sync, all records are committed.

        Args:
            in_sync_replicas: some of `replicas`, the leader among them.
        """
        assert self.leader in in_sync_replicas and set(in_sync_replicas) <= set(replicas)
        self.replicas = tuple(replicas)
        self.in_sync_replicas = tuple(in_sync_replicas)
        self.is_sole_replica = len(self.in_sync_replicas) == 1
        if self.is_sole_replica:
            self.advance_high_watermark(self.log.log_end_offset)

    @property
    def has_enough_in_sync_replicas(self) -> bool:
        """As many as `min.insync.replicas` asks for; a partition that has fewer replicas than that needs all it has.

        Source: Partition.effectiveMinIsr.
        """
        count = len(self.in_sync_replicas)
        return count == len(self.replicas) or count >= self.log.config.min_insync_replicas

    def append(self, records: memoryview | Batch, *, now_ms: int, origin: Origin = Origin.CLIENT) -> AppendInfo:
        """Appends batches. A sole replica commits them, and so wakes the fetches that wait for them.

        Args:
            records: a whole batch in a writable buffer, into which offsets are written; or one that was validated before.
            now_ms: the broker's wall clock.
            origin: which part of the broker or which client sends them, and so what they may hold.

        Raises:
            HeavyBatchError: the batch has to be validated in a thread first; nothing was appended then.
            KafkaError: as `Log.append` says; nothing was appended then.

        Durability: as `Log.append` says.
        """
        log = self.log
        info = log.append(records, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin)
        if not self.is_sole_replica:
            self._tell_replicas(len(records))
        elif log.high_watermark != log.log_end_offset:
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
            transaction_version: the version of the feature `transaction.version` that the transaction goes by; with 2, the
                marker's epoch is the producer's next one (KIP-890).

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR; nothing was appended.

        Durability: as `Log.append` says.
        """
        log = self.log
        ending = Ending(EndMarker(is_commit, coordinator_epoch), transaction_version)
        info = log.append_marker(producer_id, producer_epoch, ending, leader_epoch=self.leader_epoch, now_ms=now_ms)
        if self.is_sole_replica:
            self.advance_high_watermark(log.log_end_offset)
        else:
            self._tell_replicas(END_MARKER_BYTES)
        return info

    def _tell_replicas(self, size_bytes: int) -> None:
        for watcher in tuple(self.replica_watchers):
            watcher.on_append(self, size_bytes)

    def advance_high_watermark(self, offset: int) -> None:
        """All in-sync replicas have the records before `offset`: tells everything that waits for their commit.

        Does nothing if the high watermark is there already; it never moves back.
        """
        log = self.log
        former_offset = log.high_watermark
        if offset <= former_offset:
            return
        assert offset <= log.log_end_offset, "no record beyond the log's end is committed"
        stable_offset = log.last_stable_offset
        log.advance_high_watermark(offset)
        if self.watchers:
            size_bytes = log.size_between(former_offset, offset)
            self._tell_watchers(size_bytes, log.size_between(stable_offset, log.last_stable_offset))
        if self._commit_waits:
            self._end_committed_waits()

    def _end_committed_waits(self) -> None:
        waits = self._commit_waits
        while waits and waits[0].offset <= self.log.high_watermark:
            waits.popleft().end(None)

    def on_commit(self, offset: int, callback: OnCommit) -> CommitWait:
        """Calls back once all records before `offset` are committed; at once if they are.

        The callback is called at most once: with None, or with NOT_LEADER_OR_FOLLOWER if the partition is closed before that, or
        KAFKA_STORAGE_ERROR if it goes offline. It costs no task, and usually O(1): requests wait in the order of their appends.
        """
        wait = CommitWait(offset, callback)
        if offset <= self.log.high_watermark:
            wait.end(None)
        elif self.is_gone or self.is_offline:
            wait.end(self._lost_error)
        else:
            self._enter(wait)
        return wait

    @property
    def _lost_error(self) -> ErrorCode:
        return ErrorCode.KAFKA_STORAGE_ERROR if self.is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _enter(self, wait: CommitWait) -> None:
        waits = self._commit_waits
        while waits and waits[0].callback is None:
            # Requests that timed out leave from the front, lest they pile up while the high watermark stands still.
            waits.popleft()
        later: list[CommitWait] = []
        while waits and waits[-1].offset > wait.offset:
            later.append(waits.pop())
        waits.append(wait)
        waits.extend(reversed(later))

    def _tell_watchers(self, size_bytes: int, stable_bytes: int) -> None:
        for watcher in tuple(self.watchers):
            watcher.on_committed(self, size_bytes, stable_bytes)

    def read(self, offset: int, *, max_bytes: int, min_one_batch: bool, only_stable: bool = False) -> FileRegion | bytes:
        """Committed batches from the one that holds `offset`; empty at the high watermark.

        Args:
            only_stable: none from the last stable offset on, for who reads committed transactions only.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
        """
        log = self.log
        end_offset = log.last_stable_offset if only_stable else log.high_watermark
        return log.read(offset, max_bytes=max_bytes, end_offset=end_offset, min_one_batch=min_one_batch)

    def aborted_in_read(self, offset: int, size_bytes: int) -> list[tuple[int, int]]:
        """What a reader of committed records has to leave out of a read from `offset` that gave so many bytes.

        Returns:
            The producer id and the first offset of each aborted transaction; its records end with its marker.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        if not size_bytes:
            return []
        found = self.log.aborted_in_read(offset, size_bytes, self.log.last_stable_offset)
        return [(aborted.producer_id, aborted.first_offset) for aborted in found]

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Checks the epoch that a client believes in; -1 means it believes nothing.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH if it is behind, UNKNOWN_LEADER_EPOCH if it is ahead.

        Source: KIP-320; Partition.checkCurrentLeaderEpoch.
        """
        if current_leader_epoch == self.leader_epoch or current_leader_epoch < 0:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    @property
    def earliest_epoch(self) -> int | None:
        """The leader epoch of the first record, or of the one to come; None if the log does not know."""
        earliest = self.log.epochs.earliest
        if earliest is None:
            return self.leader_epoch
        return earliest.epoch if earliest.start_offset <= self.log.log_start_offset else None

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int] | None:
        """The greatest epoch up to `leader_epoch`, and one past its last record; None if it is newer than all, or too old.

        The current epoch ends at the log end offset, with or without records: a consumer may have the epoch from ListOffsets of
        an empty partition, and takes an unknown epoch for data loss. It does not end at the high watermark, which on a new leader
        may be less than the position of a consumer: that consumer would take committed records for lost ones.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.

        Source: UnifiedLog.endOffsetForEpoch; UnifiedLog.maybeAssignEpochStartOffset.
        """
        self.check_online()
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.log.log_end_offset
        return self.log.end_offset_for_epoch(leader_epoch)

    def find_divergence(self, leader_epoch: int, offset: int) -> tuple[int, int] | None:
        """Where a reader's history leaves this log's: the greatest common epoch and its end, if that is before `offset`.

        Args:
            leader_epoch: of the last record that the reader has.
            offset: the next one that it wants.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, the epoch is not known or the log starts later; KAFKA_STORAGE_ERROR.

        Source: KIP-595; Partition.readRecords.
        """
        end = self.end_offset_for_epoch(leader_epoch)
        if end is None or offset < self.log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        epoch, end_offset = end
        return end if epoch < leader_epoch or end_offset < offset else None

    def delete_records(self, before_offset: int) -> int:
        """Makes the log start at `before_offset`, -1 for the high watermark; returns where it starts now.

        Raises:
            KafkaError: POLICY_VIOLATION on a topic that is compacted only, OFFSET_OUT_OF_RANGE beyond the high watermark,
                KAFKA_STORAGE_ERROR.

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
            log.delete_records(before_offset)
            self._tell_watchers(0, 0)
        return log.log_start_offset

    def close(self) -> None:
        """Tells everything that waits that this broker does not lead the partition any more; the log stays as it is."""
        self.is_gone = True
        self.wake_watchers()

    def wake_watchers(self) -> None:
        """Tells everything that waits that nothing more is appended or committed: the partition is closed, or offline."""
        watchers, self.watchers = self.watchers, {}
        replica_watchers, self.replica_watchers = self.replica_watchers, {}
        waits, self._commit_waits = self._commit_waits, deque()
        for wait in waits:
            wait.end(self._lost_error)
        for watcher in watchers:
            watcher.on_gone(self)
        for replica_watcher in replica_watchers:
            replica_watcher.on_gone(self)

    def delete(self, logs: LogManager) -> None:
        """Closes it and frees its name; its files go as `LogManager.delete` says."""
        self.close()
        logs.delete(self.topic_partition)
