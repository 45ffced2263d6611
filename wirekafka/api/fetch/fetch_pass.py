"""What a Fetch is answered with, and the pass over its partitions that finds it within its limits.

Source: kafka.server.ReplicaManager.readFromLog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from wirekafka.api.fetch.conversion import FIRST_VERSION_WITH_WHOLE_BATCH
from wirekafka.api.fetch.messages import (
    AbortedTransaction,
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.replication.purgatory import DelayedFetch

if TYPE_CHECKING:
    from wirekafka.api.fetch.messages import FetchRequest
    from wirekafka.api.registry import Call
    from wirekafka.broker import Broker
    from wirekafka.replication.fetch_sessions import Asked
    from wirekafka.replication.partition import Partition

log = structlog.get_logger(__name__)

FIRST_VERSION_WITH_STORAGE_ERROR = 6
FIRST_VERSION_WITH_ZSTD = 10
FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_LEADERS = 16

READ_COMMITTED = 1


def failure_of(index: int, code: ErrorCode) -> PartitionData:
    """The answer for a partition that cannot be read."""
    return PartitionData(partition_index=index, error_code=code, high_watermark=-1, records=b"")


class FetchPass:
    """One pass over the partitions of a fetch: what its limits leave, and what it has found.

    The first partition that has records gives at least one batch, whatever the limits say (KIP-74), so that a consumer gets
    past a batch that is larger than they are. Up to version 2 there was no such rule: each partition gives as many bytes
    as it may, the last message cut off if need be, from which a client sees that it must ask for more.

    Attributes:
        left_bytes: the most that may still be read, but for a first batch.
        min_bytes: with fewer the fetch waits.
        only_stable: nothing is read of transactions that are open.
        found_bytes: the bytes of each partition that has some.
        watched: the partitions that were read, in case the fetch must wait.
        must_answer: an error or a diverging epoch, with which there is no waiting.
        node_endpoints: where the leaders are that the answer names (KIP-951).
    """

    __slots__ = (
        "_broker", "_call", "_must_give_a_batch", "_sum_bytes",
        "found_bytes", "left_bytes", "min_bytes", "must_answer", "node_endpoints", "only_stable", "watched",
    )  # fmt: skip

    def __init__(self, broker: Broker, call: Call[FetchRequest]) -> None:
        request = call.request
        self._broker = broker
        self._call = call
        self.left_bytes = min(request.max_bytes, broker.config.integer("fetch.max.bytes"))
        self.min_bytes = min(request.min_bytes, self.left_bytes)
        self._must_give_a_batch = call.version >= FIRST_VERSION_WITH_WHOLE_BATCH
        self.only_stable = request.isolation_level == READ_COMMITTED
        self._sum_bytes = 0
        self.found_bytes: dict[Partition, int] = {}
        self.watched: list[tuple[Partition, Asked]] = []
        self.must_answer = False
        self.node_endpoints: list[NodeEndpoint] = []

    @property
    def is_enough(self) -> bool:
        """Whether the fetch is answered at once."""
        return self.must_answer or self._sum_bytes >= self.min_bytes or self._call.request.max_wait_ms <= 0

    def delay(self, answer: Callable[[], FetchResponse], on_end: Callable[[], object] = lambda: None) -> DelayedFetch:
        """Returns the fetch that waits for what this pass did not find.

        Args:
            on_end: called once when the fetch waits no more, answered or abandoned.
        """

        def answer_whatever_happens() -> FetchResponse:
            try:
                return answer()
            except Exception:
                log.exception("a delayed fetch failed", client=self._call.client.host)
                return FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)

        return DelayedFetch(
            self._broker.purgatory,
            max_wait_ms=self._call.request.max_wait_ms,
            missing_bytes=self.min_bytes - self._sum_bytes,
            counted_bytes=self.found_bytes,
            answer=answer_whatever_happens,
            only_stable=self.only_stable,
            on_end=on_end,
        )

    def read(self, partition: Partition, asked: Asked) -> PartitionData:
        """What one partition has for this fetch, within what the limits leave."""
        try:
            self._broker.check_leads(partition, asked.current_leader_epoch)
            source = partition.log
            diverging_epoch = None
            if asked.last_fetched_epoch >= 0:
                diverging_epoch = partition.find_divergence(asked.last_fetched_epoch, asked.fetch_offset)
            records: Any = b""
            if diverging_epoch is not None:
                self.must_answer = True
            elif asked.fetch_offset != source.high_watermark:
                records = self._take(partition, asked)
            aborted = partition.aborted_in_read(asked.fetch_offset, len(records)) if self.only_stable else None
        except KafkaError as error:
            return self.refuse(asked.partition, error.code, partition)
        self.watched.append((partition, asked))
        data = PartitionData(
            partition_index=asked.partition,
            high_watermark=source.high_watermark,
            last_stable_offset=source.last_stable_offset,
            log_start_offset=source.log_start_offset,
            aborted_transactions=None,
            records=records,
        )
        if aborted is not None:
            data.aborted_transactions = [AbortedTransaction(producer_id=each, first_offset=first) for each, first in aborted]
        if diverging_epoch is not None:
            data.diverging_epoch = EpochEndOffset(epoch=diverging_epoch[0], end_offset=diverging_epoch[1])
        return data

    def _take(self, partition: Partition, asked: Asked) -> Any:
        """Takes records off the limits.

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
        must_give_a_batch = self._must_give_a_batch or version < FIRST_VERSION_WITH_WHOLE_BATCH
        records = partition.read(
            asked.fetch_offset,
            max_bytes=max_bytes,
            min_one_batch=must_give_a_batch,
            only_stable=self.only_stable,
        )
        size_bytes = len(records)
        if size_bytes:
            self._must_give_a_batch = False
            self.left_bytes = left_bytes - size_bytes if left_bytes > size_bytes else 0
            self._sum_bytes += size_bytes
            self.found_bytes[partition] = size_bytes
        return records

    def refuse(self, index: int, code: ErrorCode, partition: Partition | None = None) -> PartitionData:
        """What a partition that cannot be read gives; the fetch does not wait then."""
        self.must_answer = True
        version = self._call.version
        if code is ErrorCode.KAFKA_STORAGE_ERROR and version < FIRST_VERSION_WITH_STORAGE_ERROR:
            # A client that does not know the error would not retry (KafkaApis.maybeDownConvertStorageError).
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        data = failure_of(index, code)
        if code is ErrorCode.FENCED_LEADER_EPOCH and partition is not None and version >= FIRST_VERSION_WITH_LEADERS:
            data.current_leader = LeaderIdAndEpoch(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
            if not self.node_endpoints:
                host, port = self._broker.advertised_address(self._call.client)
                self.node_endpoints = [NodeEndpoint(node_id=self._broker.node_id, host=host, port=port)]
        return data
