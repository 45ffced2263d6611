"""Every setting of a broker that wirekafka honours: the one table behind server.properties, DescribeConfigs and the docs.

Rules of this file: names, types, defaults and bounds are those of Apache Kafka 4.3; where a default differs, the
documentation says so. `is_dynamic` marks what takes effect while the broker runs. A setting stands here only if code reads
it (a test looks).

Source: org.apache.kafka.server.config.AbstractKafkaConfig.CONFIG_DEF; DynamicBrokerConfig for what is dynamic and for fallbacks.
"""

from __future__ import annotations

from wirekafka.config.consumer_table import CONSUMER_SETTINGS
from wirekafka.config.definition import (
    DOUBLE_MAX,
    INT_MAX,
    LONG_MAX,
    Setting,
    Type,
    at_least,
    between,
    between_or,
    items_like,
    items_of,
    nonempty_list,
    one_of,
    table_of,
)
from wirekafka.config.share_table import SHARE_SETTINGS

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

_SERVER = (
    Setting(
        "node.id",
        Type.INT,
        1,
        "The id by which clients know this broker. Apache Kafka has no default.",
        at_least(0),
        fallbacks=("broker.id",),
    ),
    Setting(
        "broker.id", Type.INT, -1, "The older name of node.id, which goes first; -1 leaves the choice to node.id.", at_least(-1)
    ),
    Setting("broker.rack", Type.STRING, None, "The rack of the broker, told to clients that prefer to fetch nearby."),
    Setting(
        "listeners",
        Type.LIST,
        ["PLAINTEXT://:9092"],
        "The addresses on which the broker listens, NAME://HOST:PORT each. No host means every interface; port 0 lets the "
        "kernel choose.",
        nonempty_list(),
    ),
    Setting(
        "advertised.listeners",
        Type.LIST,
        None,
        "The addresses that clients are told to connect to, NAME://HOST:PORT each. A listener without one tells each client "
        "the address on which that client reached the broker.",
    ),
    Setting(
        "listener.security.protocol.map",
        Type.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Which security protocol each listener speaks, NAME:PROTOCOL each. PLAINTEXT is the only one supported yet.",
    ),
    Setting(
        "controller.listener.names",
        Type.LIST,
        [],
        "Listeners that Apache Kafka keeps for its controllers. They are not opened: wirekafka has no separate controller.",
    ),
    Setting(
        "socket.send.buffer.bytes",
        Type.INT,
        102400,
        "SO_SNDBUF of each connection; -1 leaves it to the operating system.",
        at_least(-1),
    ),
    Setting(
        "socket.receive.buffer.bytes",
        Type.INT,
        -1,
        "SO_RCVBUF of each connection; -1 leaves it to the operating system. Kafka's default is 102400, with which a batch "
        "of 1 MB takes eight receives, each with a wait for the client, where two do.",
        at_least(-1),
    ),
    Setting(
        "socket.request.max.bytes",
        Type.INT,
        104857600,
        "The largest request that is read; a larger one ends its connection.",
        at_least(1),
    ),
    Setting("socket.listen.backlog.size", Type.INT, 50, "How many connections may wait to be accepted.", at_least(1)),
    Setting(
        "connections.max.idle.ms", Type.LONG, 600000, "A connection without a request for this long is closed; never if negative."
    ),
    Setting(
        "max.connections",
        Type.INT,
        INT_MAX,
        "How many connections the broker holds at most; one more waits until another is closed.",
        at_least(0),
    ),
    Setting("max.connections.per.ip", Type.INT, INT_MAX, "How many connections one client address may hold.", at_least(0)),
    Setting(
        "max.connections.per.ip.overrides",
        Type.STRING,
        "",
        "Exceptions to max.connections.per.ip, such as `host:10,127.0.0.1:200`.",
    ),
)

_REQUESTS = (
    Setting(
        "wirekafka.api.versions.max",
        Type.LIST,
        [],
        "Serves no newer versions of these APIs than named, or leaves an API out, to try clients against an older broker. It is "
        "wirekafka's own.",
        items_like(r"[A-Za-z]+:(\d{1,3}|none)", "API:VERSION or API:none each, such as Fetch:12"),
    ),
    Setting(
        "fetch.max.bytes",
        Type.INT,
        57671680,
        "The most bytes that one Fetch is answered with, whatever the client asks for.",
        at_least(1024),
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        Type.INT,
        1000,
        "How many incremental fetch sessions are kept (KIP-227); the least recently used makes room.",
        at_least(0),
    ),
    Setting(
        "max.request.partition.size.limit",
        Type.INT,
        2000,
        "The most partitions in one answer to DescribeTopicPartitions.",
        at_least(1),
    ),
)

_TOPICS = (
    Setting("num.partitions", Type.INT, 1, "The partitions of a topic whose creation names no number.", at_least(1)),
    Setting("auto.create.topics.enable", Type.BOOLEAN, True, "Whether asking for the metadata of an unknown topic creates it."),
    Setting("delete.topic.enable", Type.BOOLEAN, True, "Whether topics can be deleted."),
)

_LOG = (
    Setting("log.dir", Type.LIST, ["/tmp/kafka-logs"], "Where data is kept while log.dirs is not set.", nonempty_list()),
    Setting(
        "log.dirs",
        Type.LIST,
        None,
        "The directories in which data is kept. The first also holds the list of topics.",
        nonempty_list(),
        fallbacks=("log.dir",),
    ),
    Setting(
        "log.segment.bytes",
        Type.INT,
        1024**3,
        "The size at which a log file is closed and the next one begun.",
        at_least(1024**2),
        is_dynamic=True,
    ),
    Setting(
        "log.roll.ms",
        Type.LONG,
        None,
        "The age at which a log file is closed even if it is small.",
        at_least(1),
        is_dynamic=True,
        fallbacks=("log.roll.hours",),
    ),
    Setting("log.roll.hours", Type.INT, 168, "log.roll.ms in hours.", at_least(1)),
    Setting(
        "log.roll.jitter.ms",
        Type.LONG,
        None,
        "The most by which a log file is closed before log.roll.ms, at random, so that not all are closed at once.",
        at_least(0),
        is_dynamic=True,
        fallbacks=("log.roll.jitter.hours",),
    ),
    Setting("log.roll.jitter.hours", Type.INT, 0, "log.roll.jitter.ms in hours.", at_least(0)),
    Setting(
        "log.retention.ms",
        Type.LONG,
        None,
        "How long data is kept; -1 is forever.",
        at_least(-1),
        is_dynamic=True,
        fallbacks=("log.retention.minutes", "log.retention.hours"),
    ),
    Setting("log.retention.minutes", Type.INT, None, "log.retention.ms in minutes.", fallbacks=("log.retention.hours",)),
    Setting("log.retention.hours", Type.INT, 168, "log.retention.ms in hours."),
    Setting("log.retention.bytes", Type.LONG, -1, "How much data a partition keeps; -1 is no limit.", is_dynamic=True),
    Setting(
        "log.retention.check.interval.ms", Type.LONG, 300000, "How often data past its retention is looked for.", at_least(1)
    ),
    Setting(
        "log.cleanup.policy",
        Type.LIST,
        ["delete"],
        "What happens to old data: delete drops log files by age and size, compact keeps the last record of each key.",
        items_of("compact", "delete"),
        is_dynamic=True,
    ),
    Setting(
        "log.segment.delete.delay.ms",
        Type.LONG,
        60000,
        "How long a deleted file stays on disk under another name.",
        at_least(0),
        is_dynamic=True,
    ),
    Setting(
        "log.index.size.max.bytes",
        Type.INT,
        10485760,
        "The size at which an index, and with it its log file, is full.",
        at_least(4),
        is_dynamic=True,
    ),
    Setting(
        "log.index.interval.bytes",
        Type.INT,
        4096,
        "About how many bytes of data lie between two index entries.",
        at_least(0),
        is_dynamic=True,
    ),
    Setting(
        "log.flush.interval.messages",
        Type.LONG,
        LONG_MAX,
        "After how many records a partition is forced to disk (fsync).",
        at_least(1),
        is_dynamic=True,
    ),
    Setting(
        "log.flush.interval.ms",
        Type.LONG,
        None,
        "After how long a partition is forced to disk (fsync).",
        at_least(0),
        is_dynamic=True,
        fallbacks=("log.flush.scheduler.interval.ms",),
    ),
    Setting(
        "log.flush.scheduler.interval.ms",
        Type.LONG,
        LONG_MAX,
        "How often partitions that are due for fsync are looked for.",
        at_least(1),
    ),
    Setting(
        "log.flush.offset.checkpoint.interval.ms",
        Type.INT,
        60000,
        "How often it is written down up to where each partition is on disk for certain.",
        at_least(0),
    ),
    Setting(
        "log.flush.start.offset.checkpoint.interval.ms",
        Type.INT,
        60000,
        "How often the partitions' log start offsets are written down.",
        at_least(0),
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        Type.LONG,
        5000,
        "How often the partitions' high watermarks are written down.",
        at_least(1),
    ),
    Setting(
        "log.preallocate", Type.BOOLEAN, False, "Whether a new log file takes its whole size on disk at once.", is_dynamic=True
    ),
    Setting(
        "log.initial.task.delay.ms",
        Type.LONG,
        30000,
        "How long the log's background work waits after the start.",
        at_least(0),
        is_internal=True,
    ),
    Setting(
        "num.recovery.threads.per.data.dir",
        Type.INT,
        2,
        "How many partitions of one directory are recovered at a time.",
        at_least(1),
    ),
    Setting(
        "wirekafka.log.recovery.truncate.corrupt",
        Type.BOOLEAN,
        False,
        "Whether a partition that is found damaged at the start, with sound records behind the damage, is cut there and loses "
        "these. Otherwise it is offline until the file is brought back. A torn end that a crash has left is cut in any case.",
    ),
    Setting("message.max.bytes", Type.INT, 1048588, "The largest record batch that is taken.", at_least(0), is_dynamic=True),
    Setting(
        "min.insync.replicas",
        Type.INT,
        1,
        "How many replicas must have a record before acks=all is answered; never more than the partition has.",
        at_least(1),
        is_dynamic=True,
    ),
    Setting(
        "compression.type",
        Type.STRING,
        "producer",
        "How records are stored: as the producer sent them, or compressed anew by the named codec.",
        one_of(*COMPRESSION_TYPES),
        is_dynamic=True,
    ),
    Setting(
        "compression.gzip.level",
        Type.INT,
        -1,
        "The level of gzip where compression.type names it.",
        between_or(1, 9, -1),
        is_dynamic=True,
    ),
    Setting(
        "compression.lz4.level", Type.INT, 9, "The level of lz4 where compression.type names it.", between(1, 17), is_dynamic=True
    ),
    Setting(
        "compression.zstd.level",
        Type.INT,
        3,
        "The level of zstd where compression.type names it.",
        between(-131072, 22),
        is_dynamic=True,
    ),
    Setting(
        "log.message.timestamp.type",
        Type.STRING,
        "CreateTime",
        "Whether a record's timestamp is the producer's or the time of its arrival.",
        one_of("CreateTime", "LogAppendTime"),
        is_dynamic=True,
    ),
    Setting(
        "log.message.timestamp.before.max.ms",
        Type.LONG,
        LONG_MAX,
        "How far a producer's timestamp may lie in the past.",
        at_least(0),
        is_dynamic=True,
    ),
    Setting(
        "log.message.timestamp.after.max.ms",
        Type.LONG,
        3600000,
        "How far a producer's timestamp may lie in the future.",
        at_least(0),
        is_dynamic=True,
    ),
)

_CLEANER = (
    Setting("log.cleaner.enable", Type.BOOLEAN, True, "Whether compaction runs at all."),
    Setting("log.cleaner.threads", Type.INT, 1, "How many partitions are compacted at a time.", at_least(0)),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        Type.LONG,
        134217728,
        "The memory for the keys that compaction compares.",
        is_dynamic=True,
    ),
    Setting("log.cleaner.io.buffer.load.factor", Type.DOUBLE, 0.9, "How full that memory may become.", is_dynamic=True),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        Type.DOUBLE,
        DOUBLE_MAX,
        "The most that compaction reads and writes in a second.",
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.backoff.ms",
        Type.LONG,
        15000,
        "How long compaction rests when there was nothing to do.",
        at_least(0),
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.min.cleanable.ratio",
        Type.DOUBLE,
        0.5,
        "The share of a log not compacted yet from which on compacting it is worthwhile.",
        between(0, 1),
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.delete.retention.ms",
        Type.LONG,
        86400000,
        "How long compaction keeps a tombstone.",
        at_least(0),
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.min.compaction.lag.ms",
        Type.LONG,
        0,
        "The age below which compaction leaves a record alone.",
        at_least(0),
        is_dynamic=True,
    ),
    Setting(
        "log.cleaner.max.compaction.lag.ms",
        Type.LONG,
        LONG_MAX,
        "The age from which on a record is compacted whatever the ratio.",
        at_least(1),
        is_dynamic=True,
    ),
)

_PRODUCERS = (
    Setting(
        "producer.id.expiration.ms",
        Type.INT,
        86400000,
        "How long after its last record a partition forgets an idempotent producer.",
        at_least(1),
        is_dynamic=True,
    ),
    Setting(
        "producer.id.expiration.check.interval.ms",
        Type.INT,
        600000,
        "How often such producers are looked for.",
        at_least(1),
        is_internal=True,
    ),
)

_TRANSACTIONS = (
    Setting(
        "transaction.max.timeout.ms",
        Type.INT,
        900000,
        "The longest transaction timeout that a producer may ask for.",
        at_least(1),
    ),
    Setting(
        "transactional.id.expiration.ms",
        Type.INT,
        604800000,
        "How long after its last change the coordinator forgets a transactional id that has no open transaction.",
        at_least(1),
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Type.INT,
        10000,
        "How often transactions that are past their timeout are looked for, and aborted.",
        at_least(1),
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Type.INT,
        3600000,
        "How often transactional ids that have expired are looked for.",
        at_least(1),
    ),
    Setting(
        "transaction.partition.verification.enable",
        Type.BOOLEAN,
        True,
        "Whether a partition refuses records of a transaction that it was not added to (KIP-890).",
        is_dynamic=True,
    ),
    Setting(
        "transaction.two.phase.commit.enable",
        Type.BOOLEAN,
        False,
        "Whether producers may take part in a two-phase commit: their transactions never time out (KIP-939).",
    ),
    Setting(
        "transaction.state.log.num.partitions",
        Type.INT,
        50,
        "The partitions of __transaction_state, fixed when it is created.",
        at_least(1),
    ),
    Setting("transaction.state.log.segment.bytes", Type.INT, 104857600, "segment.bytes of __transaction_state.", at_least(1)),
    Setting(
        "transaction.state.log.min.isr",
        Type.INT,
        2,
        "min.insync.replicas of __transaction_state; like any partition, its partitions ask for no more replicas than they have.",
        at_least(1),
    ),
)

_GROUPS = (
    Setting("group.min.session.timeout.ms", Type.INT, 6000, "The shortest session timeout that a member may ask for."),
    Setting("group.max.session.timeout.ms", Type.INT, 1800000, "The longest session timeout that a member may ask for."),
    Setting(
        "group.initial.rebalance.delay.ms",
        Type.INT,
        3000,
        "How long a new group waits for more members before the first assignment.",
    ),
    Setting("group.max.size", Type.INT, INT_MAX, "How many members a group may have.", at_least(1)),
    Setting("offset.metadata.max.bytes", Type.INT, 4096, "The longest text that may be committed beside an offset."),
    Setting(
        "offsets.retention.minutes",
        Type.INT,
        10080,
        "How long committed offsets outlive the group's last member, or their commit where nobody is subscribed.",
        at_least(1),
    ),
    Setting("offsets.retention.check.interval.ms", Type.LONG, 600000, "How often such offsets are looked for.", at_least(1)),
    Setting(
        "offsets.topic.num.partitions",
        Type.INT,
        50,
        "The partitions of __consumer_offsets, fixed when it is created.",
        at_least(1),
    ),
    Setting("offsets.topic.segment.bytes", Type.INT, 104857600, "segment.bytes of __consumer_offsets.", at_least(1)),
    Setting(
        "offsets.topic.compression.codec",
        Type.INT,
        0,
        "How __consumer_offsets is compressed: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        between(0, 4),
    ),
)

BROKER_SETTINGS: dict[str, Setting] = table_of(
    *_SERVER, *_REQUESTS, *_TOPICS, *_LOG, *_CLEANER, *_PRODUCERS, *_TRANSACTIONS, *_GROUPS, *CONSUMER_SETTINGS, *SHARE_SETTINGS
)
"""Every honoured setting of a broker, by name."""
