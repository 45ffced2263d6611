"""The resolved settings of one topic's logs: the topic's own settings, or the broker's defaults.

Rules of this file: a `LogConfig` is immutable. A change of settings makes a new one, so a log can compare by identity.

Source: org.apache.kafka.storage.internals.log.LogConfig; KafkaConfig.extractLogConfigMap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from wirekafka.config.broker import BrokerConfig
from wirekafka.config.definition import ConfigError, Value
from wirekafka.config.topic_table import TOPIC_SETTINGS, TOPIC_SYNONYMS


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of the logs of one topic.

    Attributes:
        retention_ms, retention_bytes: None keeps everything.
        cleanup_policy: of `delete` and `compact`; empty keeps everything.
        compression_type: `producer`, `uncompressed`, or the name of a codec.
        flush_messages, flush_ms: Kafka's default, the largest long, leaves flushing to the operating system.
        leader_replication_throttled_replicas, follower_replication_throttled_replicas: each PARTITION:BROKER, or *.
        is_compacted: whether the latest record of each key is kept.
        has_append_time: whether the broker sets the timestamps of records.
    """

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    retention_ms: int | None
    retention_bytes: int | None
    cleanup_policy: frozenset[str]
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    max_message_bytes: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    min_insync_replicas: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    preallocate: bool
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    leader_replication_throttled_replicas: frozenset[str] = frozenset()
    follower_replication_throttled_replicas: frozenset[str] = frozenset()
    is_compacted: bool = field(init=False)
    has_append_time: bool = field(init=False)

    def __post_init__(self) -> None:
        # Every append needs these, so they are computed once. A frozen dataclass has no other way to set them.
        derive = partial(object.__setattr__, self)
        derive("is_compacted", "compact" in self.cleanup_policy)
        derive("has_append_time", self.message_timestamp_type == "LogAppendTime")

    @property
    def is_deleted(self) -> bool:
        """Whether segments past their retention are deleted."""
        return "delete" in self.cleanup_policy

    @property
    def longest_segment_ms(self) -> int:
        """The age in ms at which a segment is closed: a segment of a compacted topic may not delay compaction too long.

        Source: LogConfig.maxSegmentMs.
        """
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @classmethod
    def of(cls, broker_config: BrokerConfig, topic_overrides: Mapping[str, str] | None = None) -> LogConfig:
        """Returns the settings of a topic with these overrides.

        Raises:
            ConfigError: an override is unknown, malformed or not supported yet.
        """
        values: dict[str, Any] = topic_values(broker_config, topic_overrides or {})
        names = (entry.name for entry in fields(cls) if entry.init)
        named = {name: values[name.replace("_", ".")] for name in names}
        for name in ("cleanup_policy", "leader_replication_throttled_replicas", "follower_replication_throttled_replicas"):
            named[name] = frozenset(named[name])
        named["retention_ms"] = _limit(named["retention_ms"])
        named["retention_bytes"] = _limit(named["retention_bytes"])
        if values["internal.segment.bytes"] is not None:
            named["segment_bytes"] = values["internal.segment.bytes"]
        return cls(**named)

    def check(self) -> None:
        """Raises unless the settings fit together. Called before a topic gets them, and not when the broker's settings change.

        Raises:
            ConfigError: two settings contradict each other.
        """
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            accepted = f"at most {self.max_compaction_lag_ms}, the value of max.compaction.lag.ms"
            raise ConfigError("min.compaction.lag.ms", str(self.min_compaction_lag_ms), accepted)


def topic_values(broker_config: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Value]:
    """Returns every setting of a topic, resolved, by Kafka's name.

    Raises:
        ConfigError: an override is unknown, malformed or not supported yet.
    """
    values = {name: broker_default(broker_config, name) for name in TOPIC_SETTINGS}
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(name, text, "the topic settings of docs/configuration.md", "Unknown topic config name: " + name)
        values[name] = setting.parse(text)
    return values


def broker_default(broker_config: BrokerConfig, name: str) -> Value:
    """Returns the value of a setting for topics that do not set it themselves."""
    for synonym in TOPIC_SYNONYMS.get(name, ()):
        value = broker_config.get(synonym.name)
        if value is None:
            continue
        if synonym.factor != 1:
            assert isinstance(value, int)
            return value * synonym.factor if value >= 0 else -1
        return value
    return TOPIC_SETTINGS[name].default


def _limit(value: int) -> int | None:
    return None if value < 0 else value
