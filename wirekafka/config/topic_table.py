"""Every setting of a topic, and which setting of the broker gives its default.

Rules of this file: names, types, defaults and bounds are those of Apache Kafka 4.3. Settings of features that wirekafka lacks are
listed too, and accept only the default, so that DescribeConfigs shows true values.

Source: org.apache.kafka.storage.internals.log.LogConfig; ServerTopicConfigSynonyms for the broker's names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.cluster_table import CLUSTER_SETTINGS
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
    """A setting of the broker that gives a topic its default, multiplied by `factor`."""

    name: str
    factor: int = 1


def only(value: Value, shown: str) -> Check:
    """Accepts only the default, because wirekafka lacks the feature that other values switch on."""
    return Check(f"only {shown}; other values are not supported yet", lambda given: given == value)


_THROTTLED_REPLICA = re.compile(r"([0-9]+:[0-9]+)?", re.ASCII)

_THROTTLED_REPLICAS = Check(
    "of PARTITION:BROKER, or *",
    lambda value: value == ["*"] or (isinstance(value, list) and all(map(_THROTTLED_REPLICA.fullmatch, value))),
)
"""Source: org.apache.kafka.server.config.QuotaConfigs, kafka.server.ThrottledReplicaListValidator."""

_HONOURED = (
    Setting(
        "cleanup.policy",
        Type.LIST,
        ["delete"],
        "What happens to old data: delete removes segments by age and size, compact keeps the last record of each key. Both"
        " may be given. Without either, everything is kept.",
        items_of("compact", "delete"),
    ),
    Setting(
        "compression.type",
        Type.STRING,
        "producer",
        "How record batches are stored: as the producer compressed them, or compressed again with the named codec.",
        one_of(*COMPRESSION_TYPES),
    ),
    Setting("compression.gzip.level", Type.INT, -1, "The level of gzip if compression.type names gzip.", between_or(1, 9, -1)),
    Setting("compression.lz4.level", Type.INT, 9, "The level of lz4 if compression.type names lz4.", between(1, 17)),
    Setting("compression.zstd.level", Type.INT, 3, "The level of zstd if compression.type names zstd.", between(-131072, 22)),
    Setting("delete.retention.ms", Type.LONG, 86400000, "How long compaction keeps a tombstone.", at_least(0)),
    Setting("file.delete.delay.ms", Type.LONG, 60000, "How long a deleted file stays on disk under another name.", at_least(0)),
    Setting("flush.messages", Type.LONG, LONG_MAX, "After how many records a partition is flushed to disk (fsync).", at_least(1)),
    Setting("flush.ms", Type.LONG, LONG_MAX, "After how long a partition is flushed to disk (fsync).", at_least(0)),
    Setting(
        "index.interval.bytes", Type.INT, 4096, "The approximate number of bytes of data between two index entries.", at_least(0)
    ),
    Setting(
        "internal.segment.bytes",
        Type.INT,
        None,
        "segment.bytes without its lower bound, for tests that need small segments.",
        at_least(14),
        is_internal=True,
    ),
    Setting(
        "max.compaction.lag.ms",
        Type.LONG,
        LONG_MAX,
        "The age at which a record is compacted, even if min.cleanable.dirty.ratio is not reached.",
        at_least(1),
    ),
    Setting("max.message.bytes", Type.INT, 1048588, "The largest record batch that is accepted.", at_least(0)),
    Setting(
        "message.timestamp.after.max.ms", Type.LONG, 3600000, "How far a producer's timestamp may be in the future.", at_least(0)
    ),
    Setting(
        "message.timestamp.before.max.ms", Type.LONG, LONG_MAX, "How far a producer's timestamp may be in the past.", at_least(0)
    ),
    Setting(
        "message.timestamp.type",
        Type.STRING,
        "CreateTime",
        "Whether the timestamp of a record is set by the producer or is the time of the append.",
        one_of("CreateTime", "LogAppendTime"),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        Type.DOUBLE,
        0.5,
        "The share of a log that is not compacted yet at which compaction begins.",
        between(0, 1),
    ),
    Setting("min.compaction.lag.ms", Type.LONG, 0, "The age below which a record is not compacted.", at_least(0)),
    Setting(
        "min.insync.replicas",
        Type.INT,
        1,
        "How many replicas must be in sync for a Produce with acks=all to succeed. The Produce is answered when all replicas "
        "in sync have the records. A value above the number of replicas counts as that number.",
        at_least(1),
    ),
    Setting("preallocate", Type.BOOLEAN, False, "Whether a new segment reserves its whole size on disk at once."),
    Setting("retention.bytes", Type.LONG, -1, "The most data that a partition keeps; -1 is no limit."),
    Setting("retention.ms", Type.LONG, 604800000, "How long data is kept; -1 keeps it forever.", at_least(-1)),
    Setting(
        "segment.bytes", Type.INT, 1024**3, "The size at which a segment is closed and the next one begins.", at_least(1024**2)
    ),
    Setting(
        "segment.index.bytes", Type.INT, 10485760, "The size at which an index is full. Its segment is closed then.", at_least(4)
    ),
    Setting(
        "segment.jitter.ms",
        Type.LONG,
        0,
        "The most time by which a segment is closed before segment.ms, chosen at random, so that segments are not all "
        "closed at once.",
        at_least(0),
    ),
    Setting("segment.ms", Type.LONG, 604800000, "The age at which a segment is closed even if it is small.", at_least(1)),
    Setting(
        "follower.replication.throttled.replicas",
        Type.LIST,
        [],
        "Replicas for which replication in a cluster is throttled on the follower.",
        _THROTTLED_REPLICAS,
    ),
    Setting(
        "leader.replication.throttled.replicas",
        Type.LIST,
        [],
        "Replicas for which replication in a cluster is throttled on the leader.",
        _THROTTLED_REPLICAS,
    ),
    Setting(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        False,
        "Whether a replica that is not in sync may become the leader in a cluster, if no replica in sync is alive. Records are "
        "lost then.",
    ),
)

_DEFAULT_ONLY = (
    Setting("local.retention.bytes", Type.LONG, -2, "How much tiered data stays on the broker.", only(-2, "-2")),
    Setting("local.retention.ms", Type.LONG, -2, "How long tiered data stays on the broker.", only(-2, "-2")),
    Setting(
        "remote.log.copy.disable",
        Type.BOOLEAN,
        False,
        "Whether copying of data to remote storage is stopped.",
        only(False, "false"),
    ),
    Setting(
        "remote.log.delete.on.disable",
        Type.BOOLEAN,
        False,
        "Whether tiered data is deleted when tiering ends.",
        only(False, "false"),
    ),
    Setting("remote.storage.enable", Type.BOOLEAN, False, "Whether data is tiered to remote storage.", only(False, "false")),
)

WITHOUT_FEATURE = frozenset(setting.name for setting in _DEFAULT_ONLY)
"""Settings of features that wirekafka lacks. In a cluster they may be stored, because other brokers may have the feature."""

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
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
}
"""For a topic's setting, the broker's settings that give its default; the first that is set goes first."""

assert all(synonym.name in BROKER_SETTINGS | CLUSTER_SETTINGS for synonyms in TOPIC_SYNONYMS.values() for synonym in synonyms)
