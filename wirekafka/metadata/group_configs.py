"""The settings that groups set themselves: stored in the journal of the topics, or in ZooKeeper, and resolved with the broker's.

Source: org.apache.kafka.coordinator.group.GroupConfigManager.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from wirekafka.config import BrokerConfig
from wirekafka.config.definition import ConfigError
from wirekafka.config.group_table import GroupConfig, check_group
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.store import GroupConfigStore

log = structlog.get_logger(__name__)


class GroupConfigs:
    """The settings that groups set themselves; a group with settings need not exist."""

    def __init__(self, config: BrokerConfig, store: GroupConfigStore) -> None:
        self._config = config
        self._store = store
        self._default = GroupConfig(config, {})
        self._resolved: dict[str, GroupConfig] = {}

    @property
    def group_ids(self) -> list[str]:
        """The ids of the groups that have settings of their own."""
        return list(self._store.group_configs)

    def own(self, group_id: str) -> dict[str, str]:
        """Returns the own settings of a group."""
        return dict(self._store.group_configs.get(group_id, {}))

    def resolve(self, group_id: str) -> GroupConfig:
        """Returns all settings of a group."""
        config = self._resolved.get(group_id)
        if config is None:
            overrides = self._store.group_configs.get(group_id)
            if overrides is None:
                return self._default
            config = self._resolved[group_id] = GroupConfig(self._config, overrides)
        return config

    def check(self, configs: Mapping[str, str]) -> None:
        """Raises unless `alter` accepts these settings.

        Raises:
            KafkaError: INVALID_CONFIG.
        """
        try:
            check_group(self._config, configs)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def follow(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replaces the own settings of a group by valid ones, which in a cluster were read from ZooKeeper.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if the journal cannot be written. The settings are unchanged then.
        """
        self._store.put_group_configs(group_id, dict(configs))
        self._resolved.pop(group_id, None)

    def alter(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replaces the own settings of a group.

        Raises:
            KafkaError: INVALID_CONFIG; KAFKA_STORAGE_ERROR if the journal cannot be written. The settings are unchanged then.
        """
        self.check(configs)
        self.follow(group_id, configs)
        log.info("Changed a group's settings", group=group_id, settings=dict(configs))
