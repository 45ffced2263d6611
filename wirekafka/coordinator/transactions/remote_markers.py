"""Sends the markers for partitions that other brokers lead to these brokers, by WriteTxnMarkers.

How it works: the image has the leader of each partition. Markers for one broker wait in a queue. A request has many markers, and
one request is in flight at a time. If a marker fails, `endings` looks the leader up and sends the marker again.

Rule of this file: `on_written` is called once for each marker, unless this broker leaves the cluster.

Differs from Apache Kafka:
    A marker that fails is sent again after half a second. Apache Kafka sends the marker to a new leader at once.
    If a leader refuses a marker because of a newer producer or coordinator, the transaction is completed when its other markers
    are written. In Apache Kafka the transaction stays prepared until its coordinator loads it again.

Source: kafka.coordinator.transaction.{TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from wirekafka.coordinator.cluster import CoordinatorCluster, PeerQueue, by_topic
from wirekafka.coordinator.transactions.requests import Marker
from wirekafka.coordinator.transactions.transaction import TRANSACTIONS_V2
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.names import TopicPartition
from wirekafka.wire.messages.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from wirekafka.coordinator.transactions.endings import Markers, OnWritten
    from wirekafka.replication.replica_fetcher import Channel, Timers

MARKERS_VERSION = 1
"""The version of WriteTxnMarkers that all brokers from 2.8 on have (MetadataVersion.writeTxnMarkersRequestVersion)."""

MARKERS_VERSION_WITH_TRANSACTIONS_V2 = 2
"""The version with the transaction version of each marker, which all brokers have once transactions of version 2 are on."""

MARKERS_IN_REQUEST = 500
"""The most markers in one request. Each answer may complete a transaction, which takes some 30 us."""

MOVED = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER})
"""The errors of a broker that does not lead the partition, or does not know the partition yet."""


class _Entry(NamedTuple):
    """A marker for another broker."""

    marker: Marker
    coordinator_epoch: int
    on_written: OnWritten


class _End(NamedTuple):
    """The fields that all markers of one transaction share."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int


MarkerQueue = PeerQueue[_Entry, WriteTxnMarkersRequest, WriteTxnMarkersResponse]


class ClusterMarkers:
    """Writes markers to all partitions of a cluster; `endings.Markers`.

    Args:
        own: writes the markers to the partitions that this broker leads.
        transaction_version: returns the finalized level of transaction.version.
    """

    def __init__(self, own: Markers, cluster: CoordinatorCluster, timers: Timers, transaction_version: Callable[[], int]) -> None:
        self._own = own
        self._cluster = cluster
        self._timers = timers
        self._transaction_version = transaction_version
        self._queues = cluster.open_queues("txn-markers", self._make_queue)

    def write(
        self,
        marker: Marker,
        *,
        coordinator_epoch: int,
        now_ms: int,
        on_written: Callable[[ErrorCode | None], object],
    ) -> None:
        """Writes one marker, here or on the leader of its partition.

        Args:
            on_written: Called with None once the marker is committed, or with an error: those of `MarkerWriter.write`;
                LEADER_NOT_AVAILABLE; NETWORK_EXCEPTION, the leader has not answered; UNKNOWN_TOPIC_OR_PARTITION, the partition
                was deleted.
        """
        try:
            leader_id = self._cluster.leader_of(marker.topic_partition)
        except KafkaError as error:
            on_written(error.code)
            return
        if leader_id == self._cluster.node_id:
            self._own.write(marker, coordinator_epoch=coordinator_epoch, now_ms=now_ms, on_written=on_written)
        else:
            self._queues.put(leader_id, _Entry(marker, coordinator_epoch, on_written))

    def is_needed(self, marker: Marker) -> bool:
        """Whether the transaction of a marker that was refused may still be open in the marker's partition.

        A leader elsewhere refuses a marker only if a newer producer or a newer coordinator has written to the partition.
        """
        try:
            leader_id = self._cluster.leader_of(marker.topic_partition)
        except KafkaError as error:
            return error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return leader_id == self._cluster.node_id and self._own.is_needed(marker)

    def _version(self) -> int:
        """Returns the version of the next request. A broker that does not know it yet closes the connection, as brokers follow
        features one after the other; the markers are sent again then.
        """
        has_version_2 = self._transaction_version() >= TRANSACTIONS_V2
        return MARKERS_VERSION_WITH_TRANSACTIONS_V2 if has_version_2 else MARKERS_VERSION

    def _make_queue(self, channel: Channel) -> MarkerQueue:
        return PeerQueue(
            channel,
            self._timers,
            WRITE_TXN_MARKERS,
            self._version,
            most_items=MARKERS_IN_REQUEST,
            build=_request,
            take=_end,
        )


def _request(entries: list[_Entry]) -> WriteTxnMarkersRequest:
    partitions: dict[_End, list[TopicPartition]] = {}
    for marker, coordinator_epoch, _ in entries:
        end = _End(marker.producer_id, marker.producer_epoch, marker.is_commit, coordinator_epoch, marker.transaction_version)
        partitions.setdefault(end, []).append(marker.topic_partition)
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=end.producer_id,
                producer_epoch=end.producer_epoch,
                transaction_result=end.is_commit,
                coordinator_epoch=end.coordinator_epoch,
                transaction_version=end.transaction_version,
                topics=[
                    WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in by_topic(of_end).items()
                ],
            )
            for end, of_end in partitions.items()
        ]
    )


def _end(entries: list[_Entry], response: WriteTxnMarkersResponse | None) -> None:
    """Calls `on_written` of each marker of a request."""
    codes: dict[tuple[int, TopicPartition], int] = {}
    for result in [] if response is None else response.markers:
        for topic in result.topics:
            for each in topic.partitions:
                codes[result.producer_id, TopicPartition(topic.name, each.partition_index)] = each.error_code
    unanswered = ErrorCode.NETWORK_EXCEPTION if response is None else ErrorCode.UNKNOWN_SERVER_ERROR
    for marker, _, on_written in entries:
        code = codes.get((marker.producer_id, marker.topic_partition), unanswered)
        with isolate("The answer to a marker could not be handled", partition=str(marker.topic_partition)):
            on_written(_outcome_of(code))


def _outcome_of(code: int) -> ErrorCode | None:
    """Returns the outcome of a marker: None if it is written, or an error after which `endings` sends it again.

    A broker that does not know a partition may lack the newest metadata. Only the image says that the partition was deleted.
    """
    if not code:
        return None
    try:
        error = ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error in MOVED else error
