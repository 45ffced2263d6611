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
    from wirekafka.replication.partition import Partition
    from wirekafka.replication.replica_manager import HostedTopics


class MarkerWriter:
    """Writes markers to the partitions of one broker."""

    def __init__(self, topics: HostedTopics, groups: GroupRuntime) -> None:
        self._topics = topics
        self._groups = groups

    def write(
        self,
        marker: Marker,
        *,
        coordinator_epoch: int,
        now_ms: int,
        on_written: Callable[[ErrorCode | None], object],
    ) -> None:
        """Writes one marker.

        Args:
            coordinator_epoch: The epoch of the coordinator that decided; a partition refuses epochs lower than its last one.
            on_written: Called with None once the marker is committed, or with an error of `Partition.write_marker` or
                `GroupRuntime.complete_transaction`; nothing was appended then, unless the partition was lost after the append.
        """
        topic_name, index = marker.topic_partition
        try:
            partition = self._topics.find_partition(topic_name, index)
            end_offset = self._append(partition, marker, coordinator_epoch, now_ms)
        except KafkaError as error:
            on_written(error.code)
            return
        if end_offset <= partition.log.high_watermark:
            on_written(None)
        else:
            partition.on_commit(end_offset, on_written)

    def is_needed(self, marker: Marker) -> bool:
        """Whether the transaction of a marker is still open in the marker's partition.

        The marker must not end a transaction of a later epoch.
        """
        try:
            partition = self._topics.find_partition(*marker.topic_partition)
        except KafkaError:
            return False
        producer = partition.log.producers.find(marker.producer_id)
        return producer is not None and producer.transaction_first_offset is not None and producer.epoch <= marker.producer_epoch

    def _append(self, partition: Partition, marker: Marker, coordinator_epoch: int, now_ms: int) -> int:
        """Appends a marker; returns the offset after it.

        Raises:
            KafkaError: The errors of `Partition.write_marker` and `GroupRuntime.complete_transaction`.
        """
        if partition.topic == GROUP_METADATA_TOPIC:
            return self._groups.complete_transaction(
                partition.index,
                marker.producer_id,
                marker.producer_epoch,
                coordinator_epoch=coordinator_epoch,
                is_commit=marker.is_commit,
                transaction_version=marker.transaction_version,
            )
        info = partition.write_marker(
            marker.producer_id,
            marker.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=marker.is_commit,
            now_ms=now_ms,
            transaction_version=marker.transaction_version,
        )
        return info.last_offset + 1
