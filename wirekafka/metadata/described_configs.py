"""Settings as DescribeConfigs shows them: the effective value, the source of the value, and the values that it hides.

Source: kafka.server.ConfigHelper (createTopicConfigEntry, createBrokerConfigEntry, configSynonyms).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import dropwhile
from typing import NamedTuple

from wirekafka.config import BrokerConfig, ConfigSource
from wirekafka.config.definition import Setting, Type
from wirekafka.config.group_table import GROUP_BOUNDS, GROUP_SETTINGS
from wirekafka.config.log import topic_values
from wirekafka.config.topic_table import TOPIC_SETTINGS, TOPIC_SYNONYMS

# Debezium and kafkajs look this setting up before they create topics, and fail without an answer. A value in server.properties
# has no effect, so the true number is shown.
_REPLICATION = Setting(
    "default.replication.factor", Type.INT, 1, "The number of replicas of a new topic: always 1, because there is one broker."
)


class ShownSynonym(NamedTuple):
    """The value that one source gives; None for a secret."""

    name: str
    value: str | None
    source: ConfigSource


class DescribedSetting(NamedTuple):
    """One setting of one topic, group or broker.

    Attributes:
        value: the effective value as text; None for no value and for a secret.
        source: where the value comes from.
        synonyms: the value of every source; the effective one comes first.
    """

    setting: Setting
    value: str | None
    source: ConfigSource
    synonyms: list[ShownSynonym]
    is_read_only: bool


def describe_topic_settings(config: BrokerConfig, overrides: Mapping[str, str]) -> list[DescribedSetting]:
    """Returns every setting of a topic with these overrides, by name."""
    values = topic_values(config, overrides)
    described = []
    for name, setting in TOPIC_SETTINGS.items():
        if setting.is_internal and name not in overrides:
            continue
        value = setting.show(values[name])
        # A broker without other brokers has no settings of the controller.
        names = [each.name for each in TOPIC_SYNONYMS.get(name, ()) if each.name in config.settings]
        synonyms = _synonyms(config, names[0]) if names else []
        if name in overrides:
            synonyms.insert(0, ShownSynonym(name, value, ConfigSource.TOPIC_CONFIG))
        described.append(DescribedSetting(setting, value, _source(synonyms), synonyms, is_read_only=False))
    return described


def describe_group_settings(config: BrokerConfig, overrides: Mapping[str, str]) -> list[DescribedSetting]:
    """Returns every setting of a group with these overrides, by name."""
    described = []
    for name, setting in GROUP_SETTINGS.items():
        bounds = GROUP_BOUNDS.get(name)
        if bounds is None:
            synonyms = [ShownSynonym(name, setting.show(setting.default), ConfigSource.DEFAULT_CONFIG)]
        else:
            synonyms = _synonyms(config, bounds.synonym)
        if name in overrides:
            own = setting.show(setting.parse(overrides[name]))
            synonyms.insert(0, ShownSynonym(name, own, ConfigSource.GROUP_CONFIG))
        described.append(DescribedSetting(setting, synonyms[0].value, _source(synonyms), synonyms, is_read_only=False))
    return described


def describe_broker_settings(config: BrokerConfig) -> list[DescribedSetting]:
    """Returns every setting of the broker, and the true replication factor, by name."""
    honoured = [
        _describe(setting, setting.show(config.get(name)), _synonyms(config, name))
        for name, setting in config.settings.items()
        if not setting.is_internal or name in config.overrides
    ]
    if config.is_member:
        return honoured
    one = _REPLICATION.show(_REPLICATION.default)
    default = ShownSynonym(_REPLICATION.name, one, ConfigSource.DEFAULT_CONFIG)
    return [*honoured, _describe(_REPLICATION, one, [default])]


def describe_default_settings(config: BrokerConfig) -> list[DescribedSetting]:
    """Returns the settings that were set dynamically for all brokers, by name."""
    described = []
    for name, setting in config.settings.items():
        synonyms = _synonyms(config, name)
        shown = [each for each in synonyms if each.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG and each.name == name]
        if shown:
            described.append(_describe(setting, shown[0].value, shown))
    return described


def _describe(setting: Setting, value: str | None, synonyms: list[ShownSynonym]) -> DescribedSetting:
    shown = None if setting.is_sensitive else value
    return DescribedSetting(setting, shown, _source(synonyms), synonyms, is_read_only=not setting.is_dynamic)


def _source(synonyms: list[ShownSynonym]) -> ConfigSource:
    return synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG


def _synonyms(config: BrokerConfig, name: str) -> list[ShownSynonym]:
    """Returns the value of every source, beginning with the first source that sets the setting under its own name.

    Fallbacks before that source are left out, as in Kafka: log.retention.hours is not shown while log.retention.ms is unset.
    """
    shown = []
    for origin in dropwhile(lambda origin: origin.name != name, config.origins(name)):
        setting = config.settings[origin.name]
        shown.append(ShownSynonym(origin.name, None if setting.is_sensitive else setting.show(origin.value), origin.source))
    return shown
