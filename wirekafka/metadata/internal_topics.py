"""The topics in which coordinators keep their state: their partition counts and settings.

Source: GroupCoordinatorService.groupMetadataTopicConfigs, TransactionStateManager.transactionTopicConfigs,
ShareCoordinatorService.shareGroupStateTopicConfigs.
"""

from __future__ import annotations

from typing import NamedTuple

from wirekafka.config import BrokerConfig
from wirekafka.names import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC

_LEAST_SEGMENT_BYTES = 1024**2


class InternalTopic(NamedTuple):
    """A topic of coordinators: the names of the broker's settings for it, and the topic settings that are fixed."""

    partition_count: str
    segment_bytes: str
    overrides: dict[str, str]
    min_in_sync_replicas: str | None = None

    def topic_settings(self, config: BrokerConfig) -> dict[str, str]:
        """Returns the settings with which the topic is created."""
        segment_bytes = config.integer(self.segment_bytes)
        setting = "segment.bytes" if segment_bytes >= _LEAST_SEGMENT_BYTES else "internal.segment.bytes"
        settings = {**self.overrides, setting: str(segment_bytes)}
        if self.min_in_sync_replicas is not None:
            settings["min.insync.replicas"] = str(config.integer(self.min_in_sync_replicas))
        return settings


INTERNAL = {
    GROUP_METADATA_TOPIC: InternalTopic(
        "offsets.topic.num.partitions",
        "offsets.topic.segment.bytes",
        {"cleanup.policy": "compact", "compression.type": "producer"},
    ),
    TRANSACTION_STATE_TOPIC: InternalTopic(
        "transaction.state.log.num.partitions",
        "transaction.state.log.segment.bytes",
        {"cleanup.policy": "compact", "compression.type": "uncompressed", "unclean.leader.election.enable": "false"},
        "transaction.state.log.min.isr",
    ),
    # The coordinator deletes the records before the oldest snapshot that it needs.
    SHARE_STATE_TOPIC: InternalTopic(
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.segment.bytes",
        {"cleanup.policy": "delete", "retention.ms": "-1", "compression.type": "producer"},
        "share.coordinator.state.topic.min.isr",
    ),
}
