"""The pass over the partitions of a Fetch, which reads them within the limits of the request.

Source: kafka.server.ReplicaManager.readFromLog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import structlog

from wirekafka.api.current_leader import current_leader
from wirekafka.api.fetch.conversion import FIRST_VERSION_WITH_WHOLE_BATCH
from wirekafka.api.fetch.one_partition import Reply
from wirekafka.api.told_errors import tell_offset_out_of_range
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import Operation
from wirekafka.replication.purgatory import DelayedFetch
from wirekafka.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from wirekafka.wire.types import constructor

if TYPE_CHECKING:
    from wirekafka.api.registry import Call
    from wirekafka.broker import Broker
    from wirekafka.membership.member import Member
    from wirekafka.replication.fetch_sessions import Asked, FetchSession
    from wirekafka.replication.partition import Partition
    from wirekafka.wire.messages.fetch import FetchRequest

log = structlog.get_logger(__name__)

FIRST_VERSION_WITH_STORAGE_ERROR = 6
FIRST_VERSION_WITH_ZSTD = 10
FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_LEADERS = 16

READ_COMMITTED = 1

ERRORS_WITH_LEADER = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER})
"""The errors after which the response names the leader (KafkaApis.handleFetchRequest)."""

READ = Operation.READ
"""The operation that a Fetch needs permission for. A name of the module, because a lookup in the enumeration takes 0.1 us."""

PARTITIONS_AT_ONCE = 500
"""The partitions of the largest fetch that is not read in slices. The loop reads them in about 2 ms (2026-11)."""

PARTITIONS_A_STEP = 50
"""The partitions that a fetch in slices reads between two yields."""


def partition_count(topics: list[FetchTopic]) -> int:
    """Returns the number of partitions that a request names."""
    count = 0
    for topic in topics:
        count += len(topic.partitions)
    return count


def failure_of(index: int, code: ErrorCode) -> PartitionData:
    """Returns the answer for a partition that cannot be read."""
    return PartitionData(partition_index=index, error_code=code, high_watermark=-1, records=b"")


# These functions replace calls of the classes, which take three times as long.
fetch_response = constructor(FetchResponse, "session_id", "responses", "node_endpoints")
topic_response = constructor(FetchableTopicResponse, "topic", "topic_id", "partitions")
partition_data = constructor(
    PartitionData,
    "partition_index",
    "high_watermark",
    "last_stable_offset",
    "log_start_offset",
    "aborted_transactions",
    "records",
)


class FetchPass:
    """One pass over the partitions of a fetch: the remaining limits, and the results.

    The first partition with records gets at least one batch, whatever the limits (KIP-74), so that a consumer can read a batch
    that is larger than the limits. Versions up to 2 do not have this rule: each partition gets as many bytes as its limit allows,
    and the last message may be cut off, so that the client fetches more bytes.

    Attributes:
        left_bytes: the most bytes that may still be read, except for a first batch.
        min_bytes: the fetch waits if it has found fewer bytes.
        only_leader: only the leader of a partition reads it; otherwise any replica does (FetchParams.fetchOnlyLeader).
        only_stable: records of open transactions are not read.
        found_bytes: the bytes of each partition with records.
        must_give_a_batch: the next partition with records gets at least one batch.
        must_answer: the fetch must not wait, because of an error or a diverging epoch.
        node_endpoints: the addresses of the leaders that the response names (KIP-951).

    Class attributes:
        after_wait: the type of the pass that reads again after a wait.
        delayed_type: the wait.
    """

    __slots__ = (
        "_broker", "_call", "_sum_bytes",
        "found_bytes", "left_bytes", "min_bytes", "must_answer", "must_give_a_batch", "node_endpoints", "only_leader",
        "only_stable",
    )  # fmt: skip

    after_wait: ClassVar[type[FetchPass]]
    delayed_type: ClassVar[type[DelayedFetch]] = DelayedFetch

    def __init__(self, broker: Broker, call: Call[FetchRequest]) -> None:
        request = call.request
        self._broker = broker
        self._call = call
        self.only_leader = True
        # An if instead of `min`, which takes 0.08 us.
        left_bytes, most_bytes = request.max_bytes, broker.config.integer("fetch.max.bytes")
        if left_bytes > most_bytes:
            left_bytes = most_bytes
        self.left_bytes = left_bytes
        min_bytes = request.min_bytes
        self.min_bytes = left_bytes if min_bytes > left_bytes else min_bytes
        self.must_give_a_batch = True
        self.only_stable = request.isolation_level == READ_COMMITTED
        self._sum_bytes = 0
        self.found_bytes: dict[Partition, int] = {}
        self.must_answer = False
        self.node_endpoints: list[NodeEndpoint] = []

    @property
    def is_enough(self) -> bool:
        """Whether the fetch is answered at once."""
        return self._sum_bytes >= self.min_bytes or self.must_answer or self._call.request.max_wait_ms <= 0

    def delay(self, answer: Callable[[], Reply], on_end: Callable[[], object] = lambda: None) -> DelayedFetch:
        """Returns the delayed fetch, for when this pass has found too few bytes.

        Args:
            on_end: called once when the fetch no longer waits, because it was answered or abandoned.
        """

        def answer_whatever_happens() -> Reply:
            try:
                return answer()
            except Exception:
                log.exception("a delayed fetch failed", client=self._call.client.host)
                return FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)

        return self.delayed_type(
            self._broker.purgatory,
            max_wait_ms=self._call.request.max_wait_ms,
            missing_bytes=self.min_bytes - self._sum_bytes,
            counted_bytes=self.found_bytes,
            answer=answer_whatever_happens,
            only_stable=self.only_stable,
            on_end=on_end,
        )

    def read(self, partition: Partition, asked: Asked) -> PartitionData:
        """Reads one partition within the remaining limits."""
        log = partition.log
        records: Any = b""
        diverging_epoch = aborted = None
        try:
            if self.only_leader:
                self._broker.check_leads(partition, asked.current_leader_epoch)
            else:
                self._broker.check_hosts(partition, asked.current_leader_epoch)
            if asked.last_fetched_epoch >= 0:
                diverging_epoch = partition.find_divergence(asked.last_fetched_epoch, asked.fetch_offset)
            if diverging_epoch is not None:
                self.must_answer = True
            elif asked.fetch_offset != log.high_watermark:
                records = self._take(partition, asked)
            if self.only_stable:
                aborted = [
                    AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                    for producer_id, first_offset in partition.aborted_in_read(asked.fetch_offset, len(records))
                ]
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                tell_offset_out_of_range(self._broker, self._call, partition, asked.fetch_offset)
            return self.refuse(asked.partition, error.code, partition)
        data = partition_data(asked.partition, log.high_watermark, log.last_stable_offset, log.log_start_offset, aborted, records)
        if diverging_epoch is not None:
            data.diverging_epoch = EpochEndOffset(epoch=diverging_epoch[0], end_offset=diverging_epoch[1])
        return data

    def open_session(self, partition_count: int, *, uses_topic_ids: bool) -> FetchSession | None:
        """Returns a new session for the client; None if there is no room for it."""
        sessions = self._broker.fetch_sessions
        return sessions.create(partition_count, uses_topic_ids=uses_topic_ids, now_ms=self._call.now_ms)

    def _take(self, partition: Partition, asked: Asked) -> Any:
        """Reads records, and subtracts their bytes from the limits.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR, UNSUPPORTED_COMPRESSION_TYPE.
        """
        version = self._call.version
        if version < FIRST_VERSION_WITH_ZSTD and partition.log.config.compression_type == "zstd":
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        max_bytes, left_bytes = asked.partition_max_bytes, self.left_bytes
        if max_bytes > left_bytes:
            max_bytes = left_bytes
        if max_bytes < 0:
            max_bytes = 0
        records = partition.read(
            asked.fetch_offset,
            max_bytes=max_bytes,
            min_one_batch=self.must_give_a_batch,
            only_stable=self.only_stable,
        )
        size_bytes = len(records)
        if size_bytes:
            self.must_give_a_batch = version < FIRST_VERSION_WITH_WHOLE_BATCH
            self.left_bytes = left_bytes - size_bytes if left_bytes > size_bytes else 0
            self._sum_bytes += size_bytes
            self.found_bytes[partition] = size_bytes
        return records

    def refuse(self, index: int, code: ErrorCode, partition: Partition | None = None) -> PartitionData:
        """Returns the answer for a partition that cannot be read; the fetch then does not wait."""
        self.must_answer = True
        version = self._call.version
        if code is ErrorCode.KAFKA_STORAGE_ERROR and version < FIRST_VERSION_WITH_STORAGE_ERROR:
            # A client that does not know the error would not retry (KafkaApis.maybeDownConvertStorageError).
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        data = failure_of(index, code)
        if code in ERRORS_WITH_LEADER and partition is not None and version >= FIRST_VERSION_WITH_LEADERS:
            member = self._broker.member
            if member is not None:
                self._name_leader(member, partition, data)
                return data
            data.current_leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
            if not self.node_endpoints and partition.leader == self._broker.node_id:
                host, port = self._broker.advertised_address(self._call.client)
                self.node_endpoints = [NodeEndpoint(node_id=self._broker.node_id, host=host, port=port)]
        return data

    def _name_leader(self, member: Member, partition: Partition, data: PartitionData) -> None:
        """Names the leader of a partition in a cluster, with its address if the client can reach it."""
        found = current_leader(self._broker, member, self._call.client.listener, partition.topic, partition.index)
        data.current_leader = LeaderIdAndEpoch(leader_id=found.leader_id, leader_epoch=found.leader_epoch)
        node = found.node
        if node is not None and all(each.node_id != node.broker_id for each in self.node_endpoints):
            self.node_endpoints.append(NodeEndpoint(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack))


FetchPass.after_wait = FetchPass


class ReadEnds:
    """The ends of partitions at the time when a fetch in slices read them.

    Between that time and the end of its last slice the fetch watches nothing, so it compares the ends before it waits.
    """

    def __init__(self) -> None:
        self._ends: list[tuple[Partition, tuple[int, int, int]]] = []

    def note(self, partitions: Iterable[Partition]) -> None:
        """Stores the ends of partitions that were just read."""
        for partition in partitions:
            self._ends.append((partition, _ends_of(partition)))

    @property
    def have_moved(self) -> bool:
        """Whether a partition has more records now, or was closed."""
        return any(partition.is_gone or _ends_of(partition) != ends for partition, ends in self._ends)


def _ends_of(partition: Partition) -> tuple[int, int, int]:
    if not partition.is_hosted:
        return -1, -1, -1
    log = partition.log
    return log.log_end_offset, log.high_watermark, log.last_stable_offset
