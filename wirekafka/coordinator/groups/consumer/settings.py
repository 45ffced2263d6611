"""The settings of consumer groups, read once from the broker's.

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
    """Between which protocols a group with members may change (`group.consumer.migration.policy`)."""

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
    """What a group may set itself, see the settings of the same names in Kafka's documentation; the defaults are Kafka's."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000

    @classmethod
    def of(cls, config: GroupConfig) -> GroupTimes:
        """What holds for a group."""
        return cls(
            config.integer("consumer.session.timeout.ms"),
            config.integer("consumer.heartbeat.interval.ms"),
            config.integer("consumer.assignment.interval.ms"),
        )


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """See the settings of the same names in Kafka's documentation; the defaults are Kafka's.

    Attributes:
        assignors: that members may ask for, the default one first.
        classic_max_size: the most members with which a group becomes a classic one.
    """

    max_size: int = 0x7FFFFFFF
    classic_max_size: int = 0x7FFFFFFF
    assignors: tuple[str, ...] = tuple(ASSIGNORS)
    regex_refresh_interval_ms: int = 600_000
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL

    @classmethod
    def of(cls, config: BrokerConfig) -> ConsumerSettings:
        """What a broker is configured to."""
        return cls(
            max_size=config.integer("group.consumer.max.size"),
            classic_max_size=config.integer("group.max.size"),
            assignors=assignor_names(config.items("group.consumer.assignors")),
            regex_refresh_interval_ms=config.integer("group.consumer.regex.refresh.interval.ms"),
            migration_policy=MigrationPolicy(config.text("group.consumer.migration.policy").lower()),
        )
