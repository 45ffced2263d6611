"""The settings of a topic, a broker or a group as they are in ZooKeeper, and the rules for what may replace them.

Rules of this file: pure. A setting of Apache Kafka 3.9 that wirekafka does not honour may be stored, because other brokers of the
cluster honour it: tiered storage, for example.

Source: kafka.server.DynamicBrokerConfig.validate, kafka.server.DynamicConfig.Broker, kafka.zk.AdminZkClient.validateTopicConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wirekafka.config import BrokerConfig, ConfigError, LogConfig
from wirekafka.config.definition import Setting
from wirekafka.config.group_table import GROUP_SETTINGS, check_group
from wirekafka.config.topic_table import TOPIC_SETTINGS, WITHOUT_FEATURE
from wirekafka.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class StoredConfigs:
    """The settings of one entity.

    Attributes:
        settings: the settings that such an entity can have, by name.
        own: those that are in ZooKeeper, as text.
        check: raises KafkaError unless these settings may be stored.
    """

    settings: Mapping[str, Setting]
    own: dict[str, str]
    check: Callable[[Mapping[str, str]], None]


def stored_topic(config: BrokerConfig, own: dict[str, str]) -> StoredConfigs:
    """Returns the settings of a topic; `check` raises INVALID_CONFIG."""

    def check(configs: Mapping[str, str]) -> None:
        honoured = {name: text for name, text in configs.items() if name not in WITHOUT_FEATURE}
        try:
            LogConfig.of(config, honoured).check()
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    return StoredConfigs(TOPIC_SETTINGS, own, check)


def stored_group(config: BrokerConfig, own: dict[str, str]) -> StoredConfigs:
    """Returns the settings of a group; `check` raises INVALID_CONFIG."""

    def check(configs: Mapping[str, str]) -> None:
        try:
            check_group(config, configs)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    return StoredConfigs(GROUP_SETTINGS, own, check)


def stored_broker(config: BrokerConfig, own: dict[str, str], *, is_default: bool) -> StoredConfigs:
    """Returns the settings of this broker, or of all brokers; `check` raises INVALID_REQUEST."""

    def check(configs: Mapping[str, str]) -> None:
        known = {name: text for name, text in configs.items() if name in config.settings}
        fixed = [name for name in known if not config.settings[name].is_dynamic]
        if fixed:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {', '.join(fixed)}")
        try:
            config.check_dynamic(*((known, {}) if is_default else ({}, known)))
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    return StoredConfigs(config.settings, own, check)
