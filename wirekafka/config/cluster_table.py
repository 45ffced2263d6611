"""The settings of a member of a cluster with ZooKeeper.

Rules of this file: a broker without `zookeeper.connect` is a whole cluster. It accepts these settings without effect.
Names, types, defaults and bounds are those of Apache Kafka 3.9.

Source: org.apache.kafka.server.config.{ZkConfigs, ReplicationConfigs, ServerConfigs} and KafkaConfig of Apache Kafka 3.9.
"""

from __future__ import annotations

import re

from wirekafka.config.definition import LONG_MAX, Check, Setting, Type, Value, at_least, one_of, table_of

ZOOKEEPER_CONNECT = "zookeeper.connect"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RELEASES = ("2.8", "3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9")
"""The releases of the brokers of a cluster: 2.8 is the first with topic ids, and 3.9 the last with ZooKeeper."""

_VERSION = re.compile(r"([0-9]+\.[0-9]+)(?:\.[0-9]+)?(?:-IV[0-9]+)?", re.ASCII)


def release_of(version: str) -> str:
    """Returns the release of a value of `inter.broker.protocol.version`, such as 3.9 of `3.9-IV0`.

    Raises:
        ValueError: the release is not supported.
    """
    found = _VERSION.fullmatch(version)
    if found is None or found[1] not in RELEASES:
        raise ValueError(version)
    return found[1]


def _is_release(value: Value) -> bool:
    found = _VERSION.fullmatch(value) if isinstance(value, str) else None
    return found is not None and found[1] in RELEASES


MEMBER_DEFAULTS: dict[str, Value] = {"log.message.timestamp.after.max.ms": 2**63 - 1}
"""The defaults of a member where Apache Kafka 3.9 has others than Apache Kafka 4, whose defaults wirekafka has (KIP-1030).

All brokers of a cluster must accept the same records, because any of them may lead a partition.
"""

MUST_BE_FALSE = ("zookeeper.set.acl", "zookeeper.ssl.client.enable", "zookeeper.metadata.migration.enable")
"""Settings that a member may have with the value `false` only, which is their default."""

KRAFT_SETTINGS = ("process.roles", "controller.quorum.voters", "controller.quorum.bootstrap.servers")
"""Settings of a cluster with KRaft. A broker that has them and `zookeeper.connect` is refused, as it names two clusters."""

_ZOOKEEPER = (
    Setting(
        ZOOKEEPER_CONNECT,
        Type.STRING,
        None,
        "The ZooKeeper of the cluster, HOST:PORT,HOST:PORT/CHROOT. With this setting, the broker is a member of a cluster of "
        "brokers of wirekafka, of Apache Kafka 2.8 to 3.9, or of both.",
    ),
    Setting(
        "zookeeper.session.timeout.ms",
        Type.INT,
        18000,
        "ZooKeeper ends the session of a broker from which it has heard nothing for this long, and the controller elects other "
        "leaders for its partitions.",
        at_least(1),
    ),
    Setting(
        "zookeeper.connection.timeout.ms",
        Type.INT,
        None,
        "How long the start waits for ZooKeeper; zookeeper.session.timeout.ms if it is not set.",
        at_least(1),
        fallbacks=("zookeeper.session.timeout.ms",),
    ),
)

_INTER_BROKER = (
    Setting(
        "inter.broker.protocol.version",
        Type.STRING,
        "3.9-IV0",
        "The release that decides the versions of requests between brokers. Set it as in the other brokers of the cluster.",
        Check("a release from 2.8 to 3.9, such as 3.9 or 3.9-IV0", _is_release),
    ),
    Setting(
        "inter.broker.listener.name",
        Type.STRING,
        None,
        "The name of the listener that brokers use among themselves; PLAINTEXT if it is not set.",
    ),
    Setting(
        "request.timeout.ms",
        Type.INT,
        30000,
        "How long a request that is forwarded to the controller, such as one for a new topic, is tried. Also how long markers of "
        "transactions wait until all in-sync replicas have them, before the coordinator sends them again.",
        at_least(1),
    ),
    Setting(
        "controller.socket.timeout.ms",
        Type.INT,
        30000,
        "How long a request to the controller or to a coordinator, or the connection for it, may take.",
        at_least(1),
    ),
    Setting(
        "controlled.shutdown.enable",
        Type.BOOLEAN,
        True,
        "Whether the broker hands its leaderships over before it stops.",
    ),
    Setting(
        "controlled.shutdown.max.retries",
        Type.INT,
        3,
        "How often a controlled shutdown is tried.",
    ),
    Setting(
        "controlled.shutdown.retry.backoff.ms",
        Type.LONG,
        5000,
        "The pause before a controlled shutdown is tried again.",
    ),
)

_REPLICATION = (
    Setting(
        "default.replication.factor",
        Type.INT,
        1,
        "The number of replicas of a topic that is created automatically, or without a number.",
        at_least(1),
    ),
    Setting("offsets.topic.replication.factor", Type.SHORT, 3, "The number of replicas of __consumer_offsets.", at_least(1)),
    Setting(
        "transaction.state.log.replication.factor",
        Type.SHORT,
        3,
        "The number of replicas of __transaction_state.",
        at_least(1),
    ),
    Setting(
        "share.coordinator.state.topic.replication.factor",
        Type.SHORT,
        3,
        "The number of replicas of __share_group_state.",
        at_least(1),
    ),
    Setting("num.replica.fetchers", Type.INT, 1, "How many connections fetch from each leader.", at_least(1)),
    Setting(
        "replica.fetch.backoff.ms", Type.INT, 1000, "How long a follower pauses after a failed fetch of a partition.", at_least(0)
    ),
    Setting(
        "replica.fetch.max.bytes",
        Type.INT,
        1048576,
        "The most bytes that a follower fetches of one partition at once. A first batch that is larger is fetched whole.",
        at_least(0),
    ),
    Setting("replica.fetch.min.bytes", Type.INT, 1, "A leader answers a follower's fetch at once if it has this many bytes."),
    Setting("replica.fetch.response.max.bytes", Type.INT, 10485760, "The most bytes in a response to a follower.", at_least(0)),
    Setting("replica.fetch.wait.max.ms", Type.INT, 500, "How long a leader waits for replica.fetch.min.bytes."),
    Setting(
        "replica.lag.time.max.ms",
        Type.LONG,
        30000,
        "A follower that has not reached the leader's log end offset for this long is removed from the in-sync replicas.",
    ),
    Setting(
        "replica.selector.class",
        Type.STRING,
        None,
        "Which replica a consumer reads from. With the rack-aware selector, leaders send consumers to an in-sync replica in the "
        "rack of the consumer (broker.rack); otherwise consumers read from the leader.",
        one_of(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    ),
    Setting("replica.socket.timeout.ms", Type.INT, 30000, "How long a fetch from a leader, or the connection for it, may take."),
)

_THROTTLES = (
    Setting(
        "leader.replication.throttled.rate",
        Type.LONG,
        LONG_MAX,
        "The most bytes per second that this broker sends to the followers of leader.replication.throttled.replicas.",
        at_least(0),
        is_dynamic=True,
    ),
    Setting(
        "follower.replication.throttled.rate",
        Type.LONG,
        LONG_MAX,
        "The most bytes per second that this broker fetches of follower.replication.throttled.replicas.",
        at_least(0),
        is_dynamic=True,
    ),
    Setting(
        "replication.quota.window.num", Type.INT, 11, "The number of windows over which a throttled rate is measured.",
        at_least(1),
    ),
    Setting(
        "replication.quota.window.size.seconds", Type.INT, 1, "The length of a window over which throttled rates are measured.",
        at_least(1),
    ),
)  # fmt: skip

_LEADERS = (
    Setting(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        False,
        "Whether a replica that is not in sync may become the leader if no replica in sync is alive. Records are lost then.",
        is_dynamic=True,
    ),
    Setting(
        "auto.leader.rebalance.enable",
        Type.BOOLEAN,
        True,
        "Whether the controller elects the preferred leaders from time to time.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        Type.LONG,
        300,
        "How often the controller looks whether partitions have their preferred leaders.",
        at_least(1),
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        Type.INT,
        10,
        "The controller elects the preferred leaders of a broker if the broker does not lead more than this percentage of the "
        "partitions that prefer the broker.",
    ),
)

CLUSTER_SETTINGS: dict[str, Setting] = table_of(*_ZOOKEEPER, *_INTER_BROKER, *_REPLICATION, *_THROTTLES, *_LEADERS)
"""Every honoured setting that only a member of a cluster has, by name."""
