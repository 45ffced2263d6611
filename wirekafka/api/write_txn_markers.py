"""WriteTxnMarkers: ends transactions in the partitions that they wrote to.

Behaviour:
    Brokers use this request in a cluster. Here tools use it to end a transaction that no coordinator knows (KIP-664:
    `kafka-transactions.sh abort`). A marker is written to each partition by itself, even if the producer has no open transaction
    there. The group coordinator writes the markers of `__consumer_offsets`, and commits or drops the pending offsets. An epoch
    below the producer's gets INVALID_PRODUCER_EPOCH, a coordinator epoch below that of the last marker gets
    TRANSACTION_COORDINATOR_FENCED, a partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION. The response is sent when all
    markers are committed; those that are not after 30 seconds get REQUEST_TIMED_OUT.
    A marker with producer id -1 or epoch -1 gets UNKNOWN_SERVER_ERROR. Markers of one producer are answered together.
    A marker that a defect of this broker prevents gets KAFKA_STORAGE_ERROR, after which coordinators send the marker again.

Versions:
    0: as described (KIP-98). 1: flexible. 2: `transaction_version`; with transaction version 2 the marker's epoch is above the
    epoch of the transaction's records (KIP-890).

Differs from Apache Kafka:
    Version 0, which Apache Kafka 4 dropped, is served.
    A partition whose directory has failed gets KAFKA_STORAGE_ERROR; Apache Kafka answers UNKNOWN_TOPIC_OR_PARTITION.
    An unexpected exception gets KAFKA_STORAGE_ERROR; Apache Kafka answers UNKNOWN_SERVER_ERROR, after which its coordinator
    sends no more markers of the transaction.

Source: KafkaApis.handleWriteTxnMarkersRequest, WriteTxnMarkersResponse, TransactionMarkerRequestCompletionHandler.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves_type
from wirekafka.coordinator.transactions.endings import MARKERS_AT_ONCE, PAUSE_MS, SLICE_MS
from wirekafka.coordinator.transactions.requests import Marker
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.names import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from wirekafka.pending import Pending, Work
from wirekafka.wire.messages.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.clock import Timer
    from wirekafka.replication.partition import CommitWait


Results = dict[int, dict[str, dict[int, int]]]
"""Error codes by producer id, topic and partition."""


@serves_type(WRITE_TXN_MARKERS)
def write_txn_markers(broker: Broker, call: Call[WriteTxnMarkersRequest]) -> WriteTxnMarkersResponse | Pending[Any]:
    """Writes each marker to each of its partitions."""
    writing = _Writing(broker, call)
    writing.go_on()
    return writing.response or writing.pending


class _Writing:
    """One request. Its markers are written a few at a time. It is answered when all are committed or have failed."""

    def __init__(self, broker: Broker, call: Call[WriteTxnMarkersRequest]) -> None:
        self._broker = broker
        self._call = call
        self._results: Results = {}
        self._unwritten = self._each()
        # The request itself counts until all its markers were read.
        self._waiting_count = 1
        self.response: WriteTxnMarkersResponse | None = None
        self.pending: Pending[Any] = Pending(on_abandon=self._abandon)
        self._waits: list[CommitWait] = []
        self._timer: Timer | None = None
        self._is_abandoned = False

    def _each(self) -> Iterator[tuple[WritableTxnMarker, TopicPartition]]:
        """Yields the markers with their partitions. The results get all producers and topics in the order of the request."""
        for asked in self._call.request.markers:
            by_topic = self._results.setdefault(asked.producer_id, {})
            for topic in asked.topics:
                by_topic.setdefault(topic.name, {})
                for index in topic.partition_indexes:
                    yield asked, TopicPartition(topic.name, index)

    def go_on(self) -> None:
        """Writes the next markers, for a few milliseconds."""
        clock = self._broker.clock
        stop_ms = clock.monotonic_ms() + SLICE_MS
        self._broker.purgatory.hold()
        try:
            for written_count, (asked, partition) in enumerate(self._unwritten, 1):
                self._waiting_count += 1
                self._write(asked, partition)
                if written_count == MARKERS_AT_ONCE or clock.monotonic_ms() >= stop_ms:
                    clock.call_later(PAUSE_MS, self.go_on)
                    return
        finally:
            self._broker.purgatory.release()
        if self._is_abandoned:
            return
        self._end_one()
        if self._waiting_count:
            timeout_ms = self._broker.config.integer("request.timeout.ms")
            self._timer = clock.call_later(timeout_ms, self._end_waits)

    def _end_waits(self) -> None:
        """Answers, because the commit takes too long. The markers stay in the logs; the coordinator writes them again."""
        for wait in self._waits:
            wait.end(ErrorCode.REQUEST_TIMED_OUT)

    def _abandon(self) -> None:
        """Writes no more markers, because the connection was closed: a coordinator writes them again."""
        self._is_abandoned = True
        self._unwritten = iter(())
        for wait in self._waits:
            wait.cancel()
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _write(self, asked: WritableTxnMarker, partition: TopicPartition) -> None:
        note = partial(self._note, asked.producer_id, partition)
        marker = Marker(partition, asked.producer_id, asked.producer_epoch, asked.transaction_result, asked.transaction_version)
        if marker.producer_id == NO_PRODUCER_ID or marker.producer_epoch == NO_PRODUCER_EPOCH:
            note(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        try:
            if not self._call.is_authorized(Operation.ALTER, CLUSTER):
                self._call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
        except KafkaError as error:
            note(error.code)
            return
        with isolate("A marker cannot be written", partition=str(partition)) as fault:
            wait = self._broker.markers.write(
                marker, coordinator_epoch=asked.coordinator_epoch, now_ms=self._call.now_ms, on_written=note
            )
            if wait is not None:
                self._waits.append(wait)
        if fault.error is not None:
            note(ErrorCode.KAFKA_STORAGE_ERROR)

    def _note(self, producer_id: int, partition: TopicPartition, error: ErrorCode | None) -> None:
        self._results[producer_id][partition.topic][partition.partition] = error or ErrorCode.NONE
        self._end_one()

    def _end_one(self) -> None:
        self._waiting_count -= 1
        if not self._waiting_count:
            self._stop_timer()
            answer = self._broker.slices.run(_response(self._results))
            if isinstance(answer, WriteTxnMarkersResponse):
                self.response = answer
            self.pending.complete_with(answer)


def _response(results: Results) -> Work[WriteTxnMarkersResponse]:
    response = WriteTxnMarkersResponse(markers=[])
    for producer_id, by_topic in results.items():
        response.markers.append(_result(producer_id, by_topic))
        yield
    return response


def _result(producer_id: int, by_topic: dict[str, dict[int, int]]) -> WritableTxnMarkerResult:
    topics = []
    for name, by_partition in by_topic.items():
        partitions = [
            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code) for index, code in by_partition.items()
        ]
        topics.append(WritableTxnMarkerTopicResult(name=name, partitions=partitions))
    return WritableTxnMarkerResult(producer_id=producer_id, topics=topics)
