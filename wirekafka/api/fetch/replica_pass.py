"""The pass over the partitions of a follower's Fetch: up to the end of the log, by the leader of each partition.

Source: kafka.cluster.Partition.fetchRecords, kafka.server.ReplicaManager.readFromLog, kafka.server.DelayedFetch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from wirekafka.api.fetch.conversion import FIRST_VERSION_WITH_WHOLE_BATCH
from wirekafka.api.fetch.fetch_pass import FetchPass, partition_data
from wirekafka.api.fetch.one_partition import Reply
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.replication.leader_replica import LeaderReplica, ReplicaFetch
from wirekafka.replication.purgatory import DelayedFetch, DelayedReplicaFetch
from wirekafka.replication.replica_sessions import ReplicaSession
from wirekafka.replication.throttle import ReplicationThrottle
from wirekafka.wire.messages.fetch import EpochEndOffset, FetchRequest, PartitionData

if TYPE_CHECKING:
    from wirekafka.api.registry import Call
    from wirekafka.broker import Broker
    from wirekafka.replication.fetch_sessions import Asked, FetchSession
    from wirekafka.replication.partition import Partition


class ReplicaFetchPass(FetchPass):
    """One pass over the partitions of a follower's fetch.

    Class attributes:
        is_noted: the leaders know the offsets of this fetch, because it reads again after a wait.
    """

    __slots__ = ("_broker_epoch", "_held_back", "_replica_id", "_throttle")

    is_noted: ClassVar[bool] = False
    delayed_type: ClassVar[type[DelayedFetch]] = DelayedReplicaFetch

    def __init__(self, broker: Broker, call: Call[FetchRequest]) -> None:
        super().__init__(broker, call)
        request = call.request
        self.only_stable = False
        state = request.replica_state
        self._replica_id = request.replica_id if state is None else state.replica_id
        member = broker.member
        self._throttle = None if member is None else member.leader_throttle
        self._held_back: set[Partition] = set()
        self._broker_epoch = None if state is None or state.replica_epoch < 0 else state.replica_epoch

    def read(self, partition: Partition, asked: Asked) -> PartitionData:
        """Reads one partition within the remaining limits, and tells its leader what the follower has."""
        try:
            self._broker.check_leads(partition)
            leader = self._broker.leader_replicas.get(partition)
            if leader is None:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.topic_partition} has no other replica")
            is_held_back = self._throttle is not None and self._holds_back(self._throttle, leader)
            read = leader.fetch(
                self._fetch_of(asked),
                max_bytes=0 if is_held_back else max(0, min(asked.partition_max_bytes, self.left_bytes)),
                min_one_batch=self.must_give_a_batch and not is_held_back,
                is_noted=self.is_noted,
            )
        except KafkaError as error:
            return self.refuse(asked.partition, error.code, partition)
        if len(read.records):
            self._count(partition, len(read.records))
        data = partition_data(
            asked.partition, read.high_watermark, partition.log.last_stable_offset, read.log_start_offset, None, read.records
        )
        if read.diverging_epoch is not None:
            self.must_answer = True
            epoch, end_offset = read.diverging_epoch
            data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        return data

    def _count(self, partition: Partition, size_bytes: int) -> None:
        """Subtracts the bytes that were read from the limits, and counts them for the throttle."""
        self.must_give_a_batch = self._call.version < FIRST_VERSION_WITH_WHOLE_BATCH
        self.left_bytes = max(0, self.left_bytes - size_bytes)
        self._sum_bytes += size_bytes
        self.found_bytes[partition] = size_bytes
        self._record(partition, size_bytes)

    def delay(self, answer: Callable[[], Reply], on_end: Callable[[], object] = lambda: None) -> DelayedFetch:
        """Returns the delayed fetch. It reads again, so that what this pass has read is not sent, and does not count."""
        delayed = super().delay(answer, on_end)
        assert isinstance(delayed, DelayedReplicaFetch)
        delayed.held_back = frozenset(self._held_back)
        for partition, size_bytes in self.found_bytes.items():
            self._record(partition, -size_bytes)
        return delayed

    def _holds_back(self, throttle: ReplicationThrottle, leader: LeaderReplica) -> bool:
        """Whether a partition is left out because the follower is not in sync and the throttle is exceeded.

        Source: ReplicaManager.shouldLeaderThrottle.
        """
        partition, now_ms = leader.partition, self._broker.clock.monotonic_ms()
        is_in_sync = self._replica_id in leader.leadership.committed_isr
        if not throttle.holds_back(partition.topic, partition.index, now_ms, is_in_sync=is_in_sync):
            return False
        self._held_back.add(partition)
        return True

    def _record(self, partition: Partition, size_bytes: int) -> None:
        if self._throttle is not None:
            self._throttle.record(partition.topic, partition.index, size_bytes, self._broker.clock.monotonic_ms())

    def _fetch_of(self, asked: Asked) -> ReplicaFetch:
        return ReplicaFetch(
            self._replica_id,
            None if asked.current_leader_epoch < 0 else asked.current_leader_epoch,
            asked.fetch_offset,
            None if asked.last_fetched_epoch < 0 else asked.last_fetched_epoch,
            asked.log_start_offset,
            self._broker_epoch,
        )

    def open_session(self, partition_count: int, *, uses_topic_ids: bool) -> FetchSession | None:
        """Returns a new session for the follower; None if there is no room for it."""
        broker = self._broker
        make = partial(
            ReplicaSession,
            replica_id=self._replica_id,
            leaders=broker.leader_replicas,
            monotonic_ms=broker.clock.monotonic_ms,
        )
        now_ms = self._call.now_ms
        return broker.fetch_sessions.create(partition_count, uses_topic_ids=uses_topic_ids, now_ms=now_ms, make=make)


class SecondReplicaFetchPass(ReplicaFetchPass):
    """The pass of a follower's fetch that has waited.

    The offsets were noted by the first pass. Compared with the log end of now, the follower would seem to lag.
    """

    __slots__ = ()

    is_noted: ClassVar[bool] = True


ReplicaFetchPass.after_wait = SecondReplicaFetchPass
