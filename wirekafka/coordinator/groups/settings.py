"""The settings of the group coordinator, read once from the broker configuration.

Source: GroupCoordinatorConfig.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long the first JoinGroup of a member may wait. The client has no member id yet, so it cannot send heartbeats."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of all groups. Names and defaults are those of Kafka's documentation."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 0x7FFFFFFF
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000

    @classmethod
    def of(cls, config: BrokerConfig) -> GroupSettings:
        """Returns the settings of a broker."""
        return cls(
            initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
            min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
            max_size=config.integer("group.max.size"),
            offset_metadata_max_bytes=config.integer("offset.metadata.max.bytes"),
            offsets_retention_ms=config.integer("offsets.retention.minutes") * 60 * 1000,
        )
