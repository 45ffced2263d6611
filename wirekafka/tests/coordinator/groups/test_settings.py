"""The names of the settings that coordinators read from the broker configuration."""

from typing import Any

import pytest

from wirekafka.config import BrokerConfig
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings, MigrationPolicy
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.coordinator.transactions.settings import TransactionSettings


@pytest.mark.parametrize(
    ("kind", "name", "text", "field", "value"),
    [
        (GroupSettings, "group.initial.rebalance.delay.ms", "5", "initial_rebalance_delay_ms", 5),
        (GroupSettings, "group.min.session.timeout.ms", "5", "min_session_timeout_ms", 5),
        (GroupSettings, "group.max.session.timeout.ms", "7000", "max_session_timeout_ms", 7000),
        (GroupSettings, "group.max.size", "5", "max_size", 5),
        (GroupSettings, "offset.metadata.max.bytes", "5", "offset_metadata_max_bytes", 5),
        (GroupSettings, "offsets.retention.minutes", "5", "offsets_retention_ms", 300_000),
        (ConsumerSettings, "group.consumer.max.size", "5", "max_size", 5),
        (ConsumerSettings, "group.max.size", "5", "classic_max_size", 5),
        (ConsumerSettings, "group.consumer.assignors", "range,uniform", "assignors", ("range", "uniform")),
        (ConsumerSettings, "group.consumer.regex.refresh.interval.ms", "10001", "regex_refresh_interval_ms", 10001),
        (ConsumerSettings, "group.consumer.migration.policy", "Upgrade", "migration_policy", MigrationPolicy.UPGRADE),
        (TransactionSettings, "transaction.max.timeout.ms", "5", "max_timeout_ms", 5),
        (TransactionSettings, "transactional.id.expiration.ms", "5", "transactional_id_expiration_ms", 5),
        (TransactionSettings, "transaction.two.phase.commit.enable", "true", "is_two_phase_commit_enabled", True),
    ],
)
def test_coordinator_has_the_brokers_setting_and_no_other(kind: Any, name: str, text: str, field: str, value: object) -> None:
    default = kind.of(BrokerConfig())
    assert default == kind()
    changed = kind.of(BrokerConfig({name: text}))
    differing = [each for each in kind.__dataclass_fields__ if getattr(changed, each) != getattr(default, each)]
    assert differing == [field]
    assert getattr(changed, field) == value
