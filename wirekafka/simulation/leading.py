"""A partition that a broker leads: Produce, markers, and the fetches of followers and consumers.

The real `Partition`, `LeaderReplica` and `Log` do the work. This module does what the handlers of a real broker do with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.context import AppendInfo
from wirekafka.log.storage import FileRegion
from wirekafka.replication.leader_replica import LeaderReplica, ReplicaFetch, ReplicaRead
from wirekafka.replication.partition import Partition
from wirekafka.simulation.events import MS, Process, Timer
from wirekafka.simulation.node import Node
from wirekafka.wire.messages.fetch import FetchPartition
from wirekafka.wire.messages.write_txn_markers import WritableTxnMarker

Answer = Callable[[ErrorCode, int], None]
"""Takes the outcome of a Produce: an error or NONE, and the base offset."""


@dataclass(frozen=True, slots=True)
class ConsumerRead:
    """The answer to a consumer's fetch.

    Attributes:
        aborted: the producer id and the first offset of each aborted transaction in the records.
    """

    records: FileRegion | bytes
    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]]


class Leading:
    """What a broker does with a partition that it leads at this moment."""

    def __init__(self, broker: Node, leader: LeaderReplica) -> None:
        self._broker = broker
        self._leader = leader
        self.partition = leader.partition

    def produce(self, records: memoryview, acks: int, timeout_ms: int, answer: Answer) -> None:
        """Appends a batch, and answers when it is committed, with acks=all, or at once.

        Source: kafka.cluster.Partition.appendRecordsToLeader; kafka.server.DelayedProduce.
        """
        try:
            if acks == -1:
                self._leader.leadership.check_enough_in_sync_replicas()
            info = self.partition.append(records, now_ms=self._broker.clock_ms())
        except KafkaError as error:
            answer(ErrorCode(error.code), -1)
            return
        if acks == -1:
            self._answer_on_commit(info, timeout_ms, answer)
        else:
            answer(ErrorCode.NONE, info.base_offset)

    def write_marker(self, marker: WritableTxnMarker, timeout_ms: int, answer: Answer) -> None:
        """Ends a transaction, and answers when its marker is committed.

        Source: kafka.server.KafkaApis.handleWriteTxnMarkersRequest.
        """
        try:
            self._leader.leadership.check_enough_in_sync_replicas()
            info = self.partition.write_marker(
                marker.producer_id,
                marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                is_commit=marker.transaction_result,
                now_ms=self._broker.clock_ms(),
                transaction_version=1,
            )
        except KafkaError as error:
            answer(ErrorCode(error.code), -1)
        else:
            self._answer_on_commit(info, timeout_ms, answer)

    def _answer_on_commit(self, info: AppendInfo, timeout_ms: int, answer: Answer) -> None:
        timer: Timer | None = None
        leadership = self._leader.leadership

        def commit(error: ErrorCode | None) -> None:
            if timer is not None:
                timer.cancel()
            answer(error or leadership.commit_error() or ErrorCode.NONE, info.base_offset)

        wait = self.partition.on_commit(info.last_offset + 1, commit)

        def time_out() -> None:
            wait.cancel()
            answer(ErrorCode.REQUEST_TIMED_OUT, -1)

        if wait.callback is not None:
            timer = self._broker.process.call_later(timeout_ms * MS, time_out)

    def fetch_for_replica(self, fetch: ReplicaFetch, max_bytes: int, *, is_noted: bool) -> ReplicaRead | ErrorCode:
        """Reads for a follower.

        Args:
            is_noted: the same fetch was read before it waited.
        """
        try:
            return self._leader.fetch(fetch, max_bytes=max_bytes, min_one_batch=True, is_noted=is_noted)
        except KafkaError as error:
            return ErrorCode(error.code)

    def fetch_for_consumer(self, asked: FetchPartition, *, is_read_committed: bool) -> ConsumerRead | ErrorCode:
        """Reads for a consumer: up to the high watermark, or up to the last stable offset."""
        partition, offset = self.partition, asked.fetch_offset
        try:
            records = partition.read(
                offset, max_bytes=asked.partition_max_bytes, min_one_batch=True, only_stable=is_read_committed
            )
            aborted = partition.aborted_in_read(offset, len(records)) if is_read_committed else []
        except KafkaError as error:
            return ErrorCode(error.code)
        return ConsumerRead(records, partition.log.high_watermark, partition.log.last_stable_offset, aborted)

    def end_offset(self, *, is_read_committed: bool) -> int:
        """Returns the end of what consumers may read.

        Raises:
            KafkaError: OFFSET_NOT_AVAILABLE, the high watermark may be older than what former leaders committed (KIP-207).

        Source: kafka.cluster.Partition.fetchOffsetForTimestamp.
        """
        log = self.partition.log
        if log.high_watermark < self._leader.leadership.epoch_start_offset:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return log.last_stable_offset if is_read_committed else log.high_watermark


class WaitingFetch:
    """A follower's fetch that waits until one of its partitions has records.

    Source: kafka.server.DelayedFetch.
    """

    __slots__ = ("_answer", "_partitions", "_timer")

    def __init__(self, partitions: Iterable[Partition], process: Process, wait_ms: int, answer: Callable[[], None]) -> None:
        self._partitions = [*partitions]
        self._answer: Callable[[], None] | None = answer
        self._timer = process.call_later(wait_ms * MS, self._finish)
        for partition in self._partitions:
            partition.replica_watchers[self] = None

    def on_append(self, partition: Partition, size_bytes: int) -> None:
        """Ends the wait."""
        self._finish()

    def on_gone(self, partition: Partition) -> None:
        """Ends the wait."""
        self._finish()

    def _finish(self) -> None:
        answer, self._answer = self._answer, None
        self._timer.cancel()
        for partition in self._partitions:
            partition.replica_watchers.pop(self, None)
        if answer is not None:
            answer()
