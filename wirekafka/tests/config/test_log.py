import pytest

from wirekafka.config import BrokerConfig, ConfigError, LogConfig
from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.log import topic_values

BROKER = BrokerConfig()


def test_log_config_without_overrides_has_kafkas_defaults() -> None:
    config = LogConfig.of(BROKER)
    assert config.segment_bytes == 1024**3
    assert config.segment_ms == config.retention_ms == 7 * 24 * 3600 * 1000
    assert config.segment_jitter_ms == 0
    assert config.retention_bytes is None
    assert config.cleanup_policy == {"delete"}
    assert config.flush_ms == 2**63 - 1
    assert config.max_message_bytes == 1048588


def test_log_config_takes_the_brokers_settings_by_their_other_names_and_units() -> None:
    broker = BrokerConfig(
        {"log.retention.minutes": "2", "log.roll.hours": "1", "message.max.bytes": "5", "log.roll.jitter.hours": "3"}
    )
    config = LogConfig.of(broker)
    assert config.retention_ms == 2 * 60 * 1000
    assert config.segment_ms == 3600 * 1000
    assert config.segment_jitter_ms == 3 * 3600 * 1000
    assert config.max_message_bytes == 5


def test_log_config_milliseconds_go_before_hours() -> None:
    assert LogConfig.of(BrokerConfig({"log.retention.ms": "9", "log.retention.hours": "1"})).retention_ms == 9


@pytest.mark.parametrize("settings", [{"log.retention.ms": "-1"}, {"log.retention.hours": "-1"}])
def test_log_config_of_negative_retention_keeps_forever(settings: dict[str, str]) -> None:
    assert LogConfig.of(BrokerConfig(settings)).retention_ms is None
    assert topic_values(BrokerConfig(settings), {})["retention.ms"] == -1


def test_log_config_overrides_go_before_the_broker() -> None:
    broker = BrokerConfig({"log.retention.ms": "9"})
    config = LogConfig.of(broker, {"retention.ms": "5", "cleanup.policy": "compact, delete", "preallocate": "TRUE"})
    assert config.retention_ms == 5
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.is_compacted
    assert config.is_deleted
    assert config.preallocate


def test_log_config_of_an_empty_cleanup_policy_keeps_everything() -> None:
    assert LogConfig.of(BROKER, {"cleanup.policy": ""}).cleanup_policy == frozenset()


def test_log_config_internal_segment_bytes_go_below_the_bound() -> None:
    assert LogConfig.of(BROKER, {"internal.segment.bytes": "100"}).segment_bytes == 100


def test_log_config_follows_dynamic_settings_of_the_broker() -> None:
    broker = BrokerConfig({"log.retention.ms": "9"})
    broker.set_dynamic({"log.retention.ms": "7"}, {})
    assert LogConfig.of(broker).retention_ms == 7


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("no.such", "1", "Unknown topic config name"),
        ("segment.bytes", "100", "at least 1048576"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "soon", "an integer"),
        ("compression.type", "none", "one of uncompressed"),
        ("compression.gzip.level", "0", "from 1 to 9, or -1"),
        ("remote.storage.enable", "true", "not supported yet"),
        ("min.compaction.lag.ms", "9223372036854775807", "max.compaction.lag.ms"),
    ],
)
def test_log_config_of_a_wrong_override_is_refused(name: str, value: str, message: str) -> None:
    overrides = {name: value, "max.compaction.lag.ms": "5"}
    with pytest.raises(ConfigError, match=message):
        LogConfig.of(BROKER, overrides).check()


def test_log_config_accepts_defaults_of_what_is_not_supported() -> None:
    LogConfig.of(BROKER, {"remote.storage.enable": "false", "unclean.leader.election.enable": "false"})


@pytest.mark.parametrize(
    ("name", "broker_name", "value"),
    [
        ("cleanup.policy", "log.cleanup.policy", "compact"),
        ("compression.type", "compression.type", "lz4"),
        ("compression.gzip.level", "compression.gzip.level", "9"),
        ("compression.lz4.level", "compression.lz4.level", "17"),
        ("compression.zstd.level", "compression.zstd.level", "22"),
        ("delete.retention.ms", "log.cleaner.delete.retention.ms", "5"),
        ("file.delete.delay.ms", "log.segment.delete.delay.ms", "5"),
        ("flush.messages", "log.flush.interval.messages", "5"),
        ("flush.ms", "log.flush.interval.ms", "5"),
        ("flush.ms", "log.flush.scheduler.interval.ms", "5"),
        ("index.interval.bytes", "log.index.interval.bytes", "5"),
        ("max.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms", "5"),
        ("max.message.bytes", "message.max.bytes", "5"),
        ("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms", "5"),
        ("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms", "5"),
        ("message.timestamp.type", "log.message.timestamp.type", "LogAppendTime"),
        ("min.cleanable.dirty.ratio", "log.cleaner.min.cleanable.ratio", "0.25"),
        ("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms", "5"),
        ("min.insync.replicas", "min.insync.replicas", "5"),
        ("preallocate", "log.preallocate", "true"),
        ("retention.bytes", "log.retention.bytes", "5"),
        ("retention.ms", "log.retention.ms", "5"),
        ("segment.bytes", "log.segment.bytes", "2097152"),
        ("segment.index.bytes", "log.index.size.max.bytes", "5"),
        ("segment.jitter.ms", "log.roll.jitter.ms", "5"),
        ("segment.ms", "log.roll.ms", "5"),
    ],
)
def test_log_config_has_what_the_topic_sets_or_else_the_broker(name: str, broker_name: str, value: str) -> None:
    of_the_topic = LogConfig.of(BROKER, {name: value})
    assert of_the_topic != LogConfig.of(BROKER)
    assert of_the_topic == LogConfig.of(BrokerConfig({broker_name: value}))
    field = "is_compacted" if name == "cleanup.policy" else name.replace(".", "_")
    assert getattr(of_the_topic, field) in (BROKER_SETTINGS[broker_name].parse(value), True)
