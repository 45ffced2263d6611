"""The settings of consumer groups, read once from the broker configuration.

Source: GroupCoordinatorConfig, ConsumerGroupMigrationPolicy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from wirekafka.config.consumer_table import assignor_names
from wirekafka.coordinator.groups.modern.assignors import ASSIGNORS

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig
    from wirekafka.config.group_table import GroupConfig


class MigrationPolicy(Enum):
    """The protocol changes that a group with members may make (`group.consumer.migration.policy`)."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def can_upgrade(self) -> bool:
        """Whether a classic group becomes a consumer group when a consumer member joins."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def can_downgrade(self) -> bool:
        """Whether a consumer group becomes a classic group when its last consumer member leaves."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


class GroupTimes(NamedTuple):
    """The settings that a group can override. Names and defaults are those of Kafka's documentation."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000

    @classmethod
    def of(cls, config: GroupConfig) -> GroupTimes:
        """Returns the settings of a group."""
        return cls(
            config.integer("consumer.session.timeout.ms"),
            config.integer("consumer.heartbeat.interval.ms"),
            config.integer("consumer.assignment.interval.ms"),
        )


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of all consumer groups. Names and defaults are those of Kafka's documentation.

    Attributes:
        assignors: The assignors that members may choose; the first one is the default.
        classic_max_size: The largest number of members with which a consumer group may become a classic group.
    """

    max_size: int = 0x7FFFFFFF
    classic_max_size: int = 0x7FFFFFFF
    assignors: tuple[str, ...] = tuple(ASSIGNORS)
    regex_refresh_interval_ms: int = 600_000
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL

    @classmethod
    def of(cls, config: BrokerConfig) -> ConsumerSettings:
        """Returns the settings of a broker."""
        return cls(
            max_size=config.integer("group.consumer.max.size"),
            classic_max_size=config.integer("group.max.size"),
            assignors=assignor_names(config.items("group.consumer.assignors")),
            regex_refresh_interval_ms=config.integer("group.consumer.regex.refresh.interval.ms"),
            migration_policy=MigrationPolicy(config.text("group.consumer.migration.policy").lower()),
        )
