"""Markers: the records that end a transaction in each of its partitions.

Rules of this file: a marker for __consumer_offsets goes to the group coordinator, which commits or drops the pending offsets.
Every other marker goes to its partition.

Source: KIP-98; KafkaApis.handleWriteTxnMarkersRequest, TransactionMarkerRequestCompletionHandler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from wirekafka.coordinator.transactions.requests import Marker
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import GROUP_METADATA_TOPIC

if TYPE_CHECKING:
    from wirekafka.coordinator.groups.runtime import GroupRuntime
    from wirekafka.replication.partition import CommitWait, Partition
    from wirekafka.replication.replica_manager import HostedTopics

NOT_LOADED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class MarkerWriter:
    """Writes markers to the partitions of one broker."""

    def __init__(self, topics: HostedTopics, groups: GroupRuntime, node_id: int) -> None:
        self._topics = topics
        self._groups = groups
        self._node_id = node_id

    def write(
        self,
        marker: Marker,
        *,
        coordinator_epoch: int,
        now_ms: int,
        on_written: Callable[[ErrorCode | None], object],
    ) -> CommitWait | None:
        """Writes one marker.

        Args:
            coordinator_epoch: The epoch of the coordinator that decided; a partition refuses epochs lower than its last one.
            on_written: Called with None once the marker is committed, or with an error of `Partition.write_marker` or
                `GroupRuntime.complete_transaction`, NOT_LEADER_OR_FOLLOWER or NOT_ENOUGH_REPLICAS; nothing was appended then,
                unless the partition was lost after the append.

        Returns:
            The wait for the commit; None if `on_written` was called.
        """
        topic_name, index = marker.topic_partition
        try:
            partition = self._topics.find_partition(topic_name, index)
            end_offset = self._append(partition, marker, coordinator_epoch, now_ms)
        except KafkaError as error:
            on_written(error.code)
            return None
        if end_offset <= partition.log.high_watermark:
            on_written(None)
            return None
        return partition.on_commit(end_offset, on_written)

    def is_needed(self, marker: Marker) -> bool:
        """Whether the transaction of a marker is still open in the marker's partition.

        The marker must not end a transaction of a later epoch. If this broker has no replica of the partition, or cannot use it,
        the transaction may be open elsewhere.
        """
        try:
            producer = self._topics.find_partition(*marker.topic_partition).log.producers.find(marker.producer_id)
        except KafkaError as error:
            return error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return producer is not None and producer.transaction_first_offset is not None and producer.epoch <= marker.producer_epoch

    def _append(self, partition: Partition, marker: Marker, coordinator_epoch: int, now_ms: int) -> int:
        """Appends a marker; returns the offset after it.

        Raises:
            KafkaError: The errors of `Partition.write_marker` and `GroupRuntime.complete_transaction`; NOT_LEADER_OR_FOLLOWER if
                another broker leads the partition, or its groups are not loaded; NOT_ENOUGH_REPLICAS.

        Source: KafkaApis.handleWriteTxnMarkersRequest.
        """
        if partition.leader != self._node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not partition.is_sole_replica and not partition.has_enough_in_sync_replicas:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        if partition.topic == GROUP_METADATA_TOPIC:
            return self._complete_for_groups(partition.index, marker, coordinator_epoch)
        info = partition.write_marker(
            marker.producer_id,
            marker.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=marker.is_commit,
            now_ms=now_ms,
            transaction_version=marker.transaction_version,
        )
        return info.last_offset + 1

    def _complete_for_groups(self, index: int, marker: Marker, coordinator_epoch: int) -> int:
        try:
            return self._groups.complete_transaction(
                index,
                marker.producer_id,
                marker.producer_epoch,
                coordinator_epoch=coordinator_epoch,
                is_commit=marker.is_commit,
                transaction_version=marker.transaction_version,
            )
        except KafkaError as error:
            if error.code in NOT_LOADED:
                # Transaction coordinators know no errors of groups.
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER) from error
            raise
