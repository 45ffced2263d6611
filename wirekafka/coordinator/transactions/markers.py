"""Markers: the records that end a transaction in each partition that it wrote to.

Rules of this file: a marker for a group's offsets goes by way of the group coordinator, which takes the offsets over or drops
them; every other goes to its partition.

Source: KIP-98; KafkaApis.handleWriteTxnMarkersRequest, TransactionMarkerRequestCompletionHandler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.coordinator.transactions.requests import Marker
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import GROUP_METADATA_TOPIC

if TYPE_CHECKING:
    from wirekafka.coordinator.groups.runtime import GroupRuntime
    from wirekafka.metadata.topics import Topics


class MarkerWriter:
    """Writes markers to the partitions of one broker."""

    def __init__(self, topics: Topics, groups: GroupRuntime) -> None:
        self._topics = topics
        self._groups = groups

    def write(self, marker: Marker, *, coordinator_epoch: int, now_ms: int) -> None:
        """Writes one marker.

        Args:
            coordinator_epoch: of the coordinator that decided it; a partition refuses lower ones than it has seen.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION; and what `Partition.write_marker` and `GroupRuntime.complete_transaction`
                raise.
        """
        topic_name, index = marker.topic_partition
        topic = self._topics.find(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic_name == GROUP_METADATA_TOPIC:
            self._groups.complete_transaction(
                index,
                marker.producer_id,
                marker.producer_epoch,
                coordinator_epoch=coordinator_epoch,
                is_commit=marker.is_commit,
                transaction_version=marker.transaction_version,
            )
            return
        topic.partitions[index].write_marker(
            marker.producer_id,
            marker.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=marker.is_commit,
            now_ms=now_ms,
            transaction_version=marker.transaction_version,
        )
