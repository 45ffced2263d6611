"""Every setting of a broker that wirekafka honours: the table for the parser, for DescribeConfigs and for the docs.

Rules of this file: names, types, defaults and bounds are those of Apache Kafka 4.3; where a default differs, the
documentation says so. `is_dynamic` marks a setting that can be changed while the broker runs. A setting is listed only if code
reads it; a test checks that.

Source: org.apache.kafka.server.config.AbstractKafkaConfig.CONFIG_DEF; DynamicBrokerConfig for what is dynamic and for fallbacks.
"""

from __future__ import annotations

from wirekafka.config.consumer_table import CONSUMER_SETTINGS
from wirekafka.config.definition import (
    INT_MAX,
    Setting,
    Type,
    at_least,
    between,
    items_like,
    items_of,
    nonempty_list,
    table_of,
    text_like,
)
from wirekafka.config.log_table import LOG_SETTINGS
from wirekafka.config.share_table import SHARE_SETTINGS

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
        "broker.id",
        Type.INT,
        -1,
        "The older name of node.id. If both are set they must be equal; -1 leaves the choice to node.id.",
        at_least(-1),
    ),
    Setting(
        "broker.rack",
        Type.STRING,
        None,
        "The rack of the broker. Metadata reports it to consumers, so that they can fetch from a nearby replica.",
    ),
    Setting(
        "listeners",
        Type.LIST,
        ["PLAINTEXT://:9092"],
        "The addresses on which the broker listens, NAME://HOST:PORT each. Without a host, the listener binds every "
        "interface; with port 0, the kernel chooses a port.",
        nonempty_list(),
    ),
    Setting(
        "advertised.listeners",
        Type.LIST,
        None,
        "The addresses that clients are told to connect to, NAME://HOST:PORT each. A listener that is not named here tells "
        "each client the address on which the client reached the broker.",
    ),
    Setting(
        "listener.security.protocol.map",
        Type.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The security protocol of each listener, NAME:PROTOCOL each. Only PLAINTEXT is supported yet.",
    ),
    Setting(
        "controller.listener.names",
        Type.LIST,
        [],
        "Listeners that Apache Kafka uses for its controllers. They are not opened, because wirekafka has no separate "
        "controller.",
    ),
    Setting(
        "socket.send.buffer.bytes",
        Type.INT,
        204800,
        "SO_SNDBUF of each connection; -1 is the operating system's default. Kafka's default is 102400. With that a "
        "response of 1 MB is sent in twice as many parts and takes a sixth more CPU.",
        at_least(-1),
    ),
    Setting(
        "socket.receive.buffer.bytes",
        Type.INT,
        -1,
        "SO_RCVBUF of each connection; -1 is the operating system's default. Kafka's default is 102400. With that a batch "
        "of 1 MB takes eight receives instead of two, and the broker waits for the client before each.",
        at_least(-1),
    ),
    Setting(
        "socket.request.max.bytes",
        Type.INT,
        104857600,
        "The largest request in bytes. The broker closes a connection that sends a larger one.",
        at_least(1),
    ),
    Setting(
        "queued.max.request.bytes",
        Type.LONG,
        -1,
        "The memory that partly received requests of all connections may take together. While they take more, small requests "
        "are still received, and large requests are received one after the other. 0 or less stands for 134217728, where "
        "Apache Kafka has no bound. Any other value must be at least socket.request.max.bytes.",
    ),
    Setting("socket.listen.backlog.size", Type.INT, 50, "How many connections may wait to be accepted.", at_least(1)),
    Setting(
        "connections.max.idle.ms",
        Type.LONG,
        600000,
        "A connection without a request for this long is closed. A negative value keeps idle connections.",
    ),
    Setting(
        "max.connections",
        Type.INT,
        INT_MAX,
        "The most connections that the broker holds. A further connection waits until another is closed.",
        at_least(0),
    ),
    Setting("max.connections.per.ip", Type.INT, INT_MAX, "The most connections that one client address may hold.", at_least(0)),
    Setting(
        "max.connections.per.ip.overrides",
        Type.STRING,
        "",
        "Exceptions to max.connections.per.ip, such as `127.0.0.1:200,::1:10`. Hosts are given by their addresses, not by names.",
    ),
)

_TAKEOVER = (
    Setting(
        "metadata.log.dir",
        Type.STRING,
        None,
        "The directory of Apache Kafka's metadata log, if it is not in log.dirs. A takeover of Apache Kafka's topics reads it.",
    ),
    Setting(
        "wirekafka.takeover.settings",
        Type.STRING,
        None,
        "A file with the settings of topics that are taken over from Apache Kafka without a KRaft metadata log: the output of "
        "`kafka-configs.sh --describe --entity-type topics`.",
    ),
    Setting(
        "wirekafka.takeover.without",
        Type.LIST,
        [],
        "What may be lost when Apache Kafka's topics are taken over. The broker refuses to start if anything else would be lost.",
        items_of("settings", "partitions", "acls", "users", "quotas"),
    ),
)

_METRICS = (
    Setting(
        "wirekafka.metrics.listener",
        Type.STRING,
        None,
        "HOST:PORT on which the broker serves its metrics to Prometheus, at /metrics, and its health to probes, at /health, "
        "without encryption and for everyone who reaches the address. By default it serves neither. Apache Kafka has no such "
        "setting.",
        text_like(r"|(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z._-]+)?:\d{1,5}", "HOST:PORT, such as 127.0.0.1:9404, or empty"),
    ),
)

_REQUESTS = (
    Setting(
        "wirekafka.api.versions.max",
        Type.LIST,
        [],
        "The newest version of each named API that is served, or `none` to hide the API, so that clients can be tried "
        "against an older broker. Apache Kafka has no such setting.",
        items_like(r"[A-Za-z]+:(\d{1,3}|none)", "API:VERSION or API:none each, such as Fetch:12"),
    ),
    Setting(
        "wirekafka.api.release",
        Type.LIST,
        [],
        "The release as which the listeners behave, such as 2.8: clients find its APIs and their versions, and no others. "
        "`OLD:0.10.2` says it of the listener OLD. 0.8.2 to 4.3 are those of Apache Kafka, redpanda-22.3 to redpanda-24.3 those "
        "of Redpanda; `warpstream` is WarpStream. Not in a cluster. Only in wirekafka.",
        items_like(r"([A-Za-z0-9_-]+:)?[a-z0-9.-]+", "RELEASE or LISTENER:RELEASE each, such as 2.8"),
    ),
    Setting(
        "fetch.max.bytes",
        Type.INT,
        57671680,
        "The most bytes in one Fetch response, whatever the client asks for.",
        at_least(1024),
    ),
    Setting(
        "max.incremental.fetch.session.cache.slots",
        Type.INT,
        1000,
        "The most incremental fetch sessions that are kept (KIP-227). A new session evicts the least recently used one.",
        at_least(0),
    ),
    Setting(
        "max.request.partition.size.limit",
        Type.INT,
        2000,
        "The most partitions in one DescribeTopicPartitions response.",
        at_least(1),
    ),
)

_TOPICS = (
    Setting("num.partitions", Type.INT, 1, "The number of partitions of a topic that is created without a number.", at_least(1)),
    Setting(
        "auto.create.topics.enable", Type.BOOLEAN, True, "Whether a Metadata request for an unknown topic creates the topic."
    ),
    Setting("delete.topic.enable", Type.BOOLEAN, True, "Whether topics can be deleted."),
)

_TRANSACTIONS = (
    Setting(
        "transaction.max.timeout.ms",
        Type.INT,
        900000,
        "The longest transaction timeout that a producer may request.",
        at_least(1),
    ),
    Setting(
        "transactional.id.expiration.ms",
        Type.INT,
        604800000,
        "How long after its last change a transactional id without an open transaction expires.",
        at_least(1),
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        Type.INT,
        10000,
        "How often the broker looks for transactions that are past their timeout, and aborts them.",
        at_least(1),
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Type.INT,
        3600000,
        "How often the broker looks for expired transactional ids, and removes them.",
        at_least(1),
    ),
    Setting(
        "transaction.partition.verification.enable",
        Type.BOOLEAN,
        True,
        "Whether a partition refuses transactional records if it was not added to the transaction (KIP-890).",
        is_dynamic=True,
    ),
    Setting(
        "transaction.two.phase.commit.enable",
        Type.BOOLEAN,
        False,
        "Whether producers may use two-phase commit, with transactions that never time out (KIP-939).",
    ),
    Setting(
        "transaction.state.log.num.partitions",
        Type.INT,
        50,
        "The number of partitions of __transaction_state. It is fixed when the topic is created.",
        at_least(1),
    ),
    Setting("transaction.state.log.segment.bytes", Type.INT, 104857600, "segment.bytes of __transaction_state.", at_least(1)),
    Setting(
        "transaction.state.log.min.isr",
        Type.INT,
        2,
        "min.insync.replicas of __transaction_state. A value above the number of replicas counts as that number.",
        at_least(1),
    ),
)

_GROUPS = (
    Setting(
        "group.min.session.timeout.ms",
        Type.INT,
        6000,
        "The shortest session timeout that a member of a classic group may request.",
    ),
    Setting(
        "group.max.session.timeout.ms",
        Type.INT,
        1800000,
        "The longest session timeout that a member of a classic group may request.",
    ),
    Setting(
        "group.initial.rebalance.delay.ms",
        Type.INT,
        3000,
        "How long a new classic group waits for more members before its first assignment.",
    ),
    Setting("group.max.size", Type.INT, INT_MAX, "The most members that a classic group may have.", at_least(1)),
    Setting("offset.metadata.max.bytes", Type.INT, 4096, "The longest metadata text that may be committed with an offset."),
    Setting(
        "offsets.commit.timeout.ms",
        Type.INT,
        5000,
        "How long a response of a group coordinator waits until all in-sync replicas have the commits and groups that it depends "
        "on.",
        at_least(1),
    ),
    Setting(
        "offsets.retention.minutes",
        Type.INT,
        10080,
        "How long committed offsets are kept after the group's last member has left, or, in a group without subscriptions, "
        "after the commit.",
        at_least(1),
    ),
    Setting(
        "offsets.retention.check.interval.ms",
        Type.LONG,
        600000,
        "How often the broker looks for expired offsets, and removes them.",
        at_least(1),
    ),
    Setting(
        "offsets.topic.num.partitions",
        Type.INT,
        50,
        "The number of partitions of __consumer_offsets. It is fixed when the topic is created.",
        at_least(1),
    ),
    Setting("offsets.topic.segment.bytes", Type.INT, 104857600, "segment.bytes of __consumer_offsets.", at_least(1)),
    Setting(
        "offsets.topic.compression.codec",
        Type.INT,
        0,
        "The codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        between(0, 4),
    ),
)

BROKER_SETTINGS: dict[str, Setting] = table_of(
    *_SERVER,
    *_TAKEOVER,
    *_METRICS,
    *_REQUESTS,
    *_TOPICS,
    *_TRANSACTIONS,
    *_GROUPS,
    *LOG_SETTINGS,
    *CONSUMER_SETTINGS,
    *SHARE_SETTINGS,
)
"""Every honoured setting of a broker, by name."""
