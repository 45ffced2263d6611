"""Every setting of a topic, and which setting of the broker gives its default.

Rules of this file: names, types, defaults and bounds are those of Apache Kafka 4.3. What wirekafka does not do yet is listed
all the same, and takes no value but the default, so that what DescribeConfigs shows is true.

Source: org.apache.kafka.storage.internals.log.LogConfig; ServerTopicConfigSynonyms for the broker's names.
"""

from __future__ import annotations

from dataclasses import dataclass

from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.definition import (
    LONG_MAX,
    Check,
    Setting,
    Type,
    Value,
    at_least,
    between,
    between_or,
    items_of,
    one_of,
    table_of,
)
from wirekafka.config.log_table import COMPRESSION_TYPES

HOUR_MS = 3600 * 1000


@dataclass(frozen=True, slots=True)
class Synonym:
    """A setting of the broker that gives a topic its default, once multiplied by `factor`."""

    name: str
    factor: int = 1


def only(value: Value, shown: str) -> Check:
    """The default and nothing else: what it would switch on is not there yet."""
    return Check(f"only {shown}, for the rest is not supported yet", lambda given: given == value)


_HONOURED = (
    Setting(
        "cleanup.policy",
        Type.LIST,
        ["delete"],
        "What happens to old data: delete drops log files by age and size, compact keeps the last record of each key; "
        "both may be given, and none keeps everything.",
        items_of("compact", "delete"),
    ),
    Setting(
        "compression.type",
        Type.STRING,
        "producer",
        "How records are stored: as the producer sent them, or compressed anew by the named codec.",
        one_of(*COMPRESSION_TYPES),
    ),
    Setting("compression.gzip.level", Type.INT, -1, "The level of gzip where compression.type names it.", between_or(1, 9, -1)),
    Setting("compression.lz4.level", Type.INT, 9, "The level of lz4 where compression.type names it.", between(1, 17)),
    Setting("compression.zstd.level", Type.INT, 3, "The level of zstd where compression.type names it.", between(-131072, 22)),
    Setting("delete.retention.ms", Type.LONG, 86400000, "How long compaction keeps a tombstone.", at_least(0)),
    Setting("file.delete.delay.ms", Type.LONG, 60000, "How long a deleted file stays on disk under another name.", at_least(0)),
    Setting("flush.messages", Type.LONG, LONG_MAX, "After how many records a partition is forced to disk (fsync).", at_least(1)),
    Setting("flush.ms", Type.LONG, LONG_MAX, "After how long a partition is forced to disk (fsync).", at_least(0)),
    Setting("index.interval.bytes", Type.INT, 4096, "About how many bytes of data lie between two index entries.", at_least(0)),
    Setting(
        "internal.segment.bytes",
        Type.INT,
        None,
        "segment.bytes without its lower bound, for tests that want small log files.",
        at_least(14),
        is_internal=True,
    ),
    Setting(
        "max.compaction.lag.ms",
        Type.LONG,
        LONG_MAX,
        "The age from which on a record is compacted whatever the ratio.",
        at_least(1),
    ),
    Setting("max.message.bytes", Type.INT, 1048588, "The largest record batch that is taken.", at_least(0)),
    Setting(
        "message.timestamp.after.max.ms", Type.LONG, 3600000, "How far a producer's timestamp may lie in the future.", at_least(0)
    ),
    Setting(
        "message.timestamp.before.max.ms", Type.LONG, LONG_MAX, "How far a producer's timestamp may lie in the past.", at_least(0)
    ),
    Setting(
        "message.timestamp.type",
        Type.STRING,
        "CreateTime",
        "Whether a record's timestamp is the producer's or the time of its arrival.",
        one_of("CreateTime", "LogAppendTime"),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        Type.DOUBLE,
        0.5,
        "The share of a log not compacted yet from which on compacting it is worthwhile.",
        between(0, 1),
    ),
    Setting("min.compaction.lag.ms", Type.LONG, 0, "The age below which compaction leaves a record alone.", at_least(0)),
    Setting(
        "min.insync.replicas",
        Type.INT,
        1,
        "How many replicas must have a record before acks=all is answered; never more than the partition has.",
        at_least(1),
    ),
    Setting("preallocate", Type.BOOLEAN, False, "Whether a new log file takes its whole size on disk at once."),
    Setting("retention.bytes", Type.LONG, -1, "How much data a partition keeps; -1 is no limit."),
    Setting("retention.ms", Type.LONG, 604800000, "How long data is kept; -1 is forever.", at_least(-1)),
    Setting(
        "segment.bytes", Type.INT, 1024**3, "The size at which a log file is closed and the next one begun.", at_least(1024**2)
    ),
    Setting(
        "segment.index.bytes", Type.INT, 10485760, "The size at which an index, and with it its log file, is full.", at_least(4)
    ),
    Setting(
        "segment.jitter.ms",
        Type.LONG,
        0,
        "The most by which a log file is closed before segment.ms, at random, so that not all are closed at once.",
        at_least(0),
    ),
    Setting("segment.ms", Type.LONG, 604800000, "The age at which a log file is closed even if it is small.", at_least(1)),
)

_DEFAULT_ONLY = (
    Setting(
        "follower.replication.throttled.replicas",
        Type.LIST,
        [],
        "Replicas whose copying is slowed down on the follower's side.",
        only([], "the empty list"),
    ),
    Setting(
        "leader.replication.throttled.replicas",
        Type.LIST,
        [],
        "Replicas whose copying is slowed down on the leader's side.",
        only([], "the empty list"),
    ),
    Setting("local.retention.bytes", Type.LONG, -2, "How much tiered data stays on the broker.", only(-2, "-2")),
    Setting("local.retention.ms", Type.LONG, -2, "How long tiered data stays on the broker.", only(-2, "-2")),
    Setting("remote.log.copy.disable", Type.BOOLEAN, False, "Whether no more data is tiered.", only(False, "false")),
    Setting(
        "remote.log.delete.on.disable",
        Type.BOOLEAN,
        False,
        "Whether tiered data is deleted when tiering ends.",
        only(False, "false"),
    ),
    Setting("remote.storage.enable", Type.BOOLEAN, False, "Whether data is tiered to remote storage.", only(False, "false")),
    Setting(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        False,
        "Whether a replica that is not in sync may become leader.",
        only(False, "false"),
    ),
)

TOPIC_SETTINGS: dict[str, Setting] = table_of(*_HONOURED, *_DEFAULT_ONLY)
"""Every setting of a topic, by name."""

TOPIC_SYNONYMS: dict[str, tuple[Synonym, ...]] = {
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "preallocate": (Synonym("log.preallocate"),),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", 60 * 1000),
        Synonym("log.retention.hours", HOUR_MS),
    ),
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
}
"""For a topic's setting, the broker's settings that give its default; the first that is set goes first."""

assert all(synonym.name in BROKER_SETTINGS for synonyms in TOPIC_SYNONYMS.values() for synonym in synonyms)
