"""Kafka's settings that wirekafka does not honour: those without effect, and those that are refused.

Rules of this file:
    A setting has no effect if its subject does not exist in wirekafka, or, for the settings of a member of a cluster, in a
    broker without `zookeeper.connect`. Such a setting is accepted with any value and named in one warning at start.
    DescribeConfigs does not show it, except default.replication.factor, which clients look up, and which is 1 in a broker
    without `zookeeper.connect`. A setting is refused if ignoring it would change what is safe or what clients see. It is
    accepted with Kafka's default, which has the same meaning as leaving it out.

Source: org.apache.kafka.server.config.AbstractKafkaConfig.CONFIG_DEF of 4.3, and of 3.9 for what 4.0 dropped.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TypeVar

from wirekafka.config.cluster_table import CLUSTER_SETTINGS

V = TypeVar("V")

_THREADS = "one event loop serves requests, disk and groups"
_MEMBER = "it is a setting of a member of a cluster, and zookeeper.connect is not set"
_CONTROLLER = "there are no controllers of KRaft, and no registration with them"
_ZOOKEEPER = "a member of a cluster has the settings of ZooKeeper that are in its own table, and no others"
_LISTENERS = "a member of a cluster serves the requests of the controller on every listener"
_COMMITS = "a commit is answered when all in-sync replicas have it, and is refused after offsets.commit.timeout.ms"
_CONNECTIONS = "an attempt to connect to another broker has the time of a request, and is repeated with a pause"
_TRANSACTIONS = "a partition is added to a transaction in the same call that writes to it"
_PROTOCOLS = "there are no streams groups"
_METRICS = "there is no JMX, and clients send no telemetry; wirekafka.metrics.listener serves metrics to Prometheus"
_QUOTAS = "there are no quotas yet"
_DROPPED = "the newest format is always written, as in Apache Kafka 4"
_TIERED = "data is not tiered to remote storage"
_MOVES = "as many partitions move at once as there are directories, which is Kafka's default"
_PURGATORY = "a waiting request is removed from its queues when it is answered"

WITHOUT_EFFECT: dict[str, str] = {
    "num.network.threads": _THREADS,
    "num.io.threads": _THREADS,
    "background.threads": _THREADS,
    "queued.max.requests": _THREADS,
    "group.coordinator.threads": _THREADS,
    "group.coordinator.background.threads": _THREADS,
    "group.coordinator.append.linger.ms": _THREADS,
    "group.coordinator.cached.buffer.max.bytes": _THREADS,
    "group.coordinator.new.enable": _THREADS,
    "offsets.load.buffer.size": "committed offsets are read batch by batch",
    "log.cleaner.io.buffer.size": "compaction reads and writes in pieces of a fixed size",
    "fetch.purgatory.purge.interval.requests": _PURGATORY,
    "producer.purgatory.purge.interval.requests": _PURGATORY,
    "delete.records.purgatory.purge.interval.requests": _PURGATORY,
    "share.fetch.purgatory.purge.interval.requests": _PURGATORY,
    "num.replica.alter.log.dirs.threads": _MOVES,
    "offsets.commit.required.acks": _COMMITS,
    "control.plane.listener.name": _LISTENERS,
    "replica.socket.receive.buffer.bytes": "the operating system sizes the buffers of the connections to other brokers",
    "unclean.leader.election.interval.ms": _CONTROLLER,
    "socket.connection.setup.timeout.*": _CONNECTIONS,
    "log.dir.failure.timeout.ms": _CONTROLLER,
    "process.roles": _CONTROLLER,
    "controller.quorum.*": _CONTROLLER,
    "controller.performance.*": _CONTROLLER,
    "early.start.listeners": _CONTROLLER,
    "broker.heartbeat.interval.ms": _CONTROLLER,
    "broker.session.timeout.ms": _CONTROLLER,
    "initial.broker.registration.timeout.ms": _CONTROLLER,
    "server.max.startup.time.ms": _CONTROLLER,
    "metadata.log.max.*": _CONTROLLER,
    "metadata.log.segment.*": _CONTROLLER,
    "metadata.max.*": _CONTROLLER,
    "internal.metadata.*": _CONTROLLER,
    "zookeeper.*": _ZOOKEEPER,
    "password.encoder.*": "it encodes passwords in ZooKeeper, and no setting of wirekafka is a password",
    "eligible.leader.replicas.enable": _CONTROLLER,
    "group.share.enable": "share groups are switched on by the feature share.version",
    "group.share.max.groups": "the number of share groups has no limit of its own, as in Apache Kafka since 4.1",
    "broker.id.generation.enable": _CONTROLLER,
    "reserved.broker.max.id": _CONTROLLER,
    "transaction.state.log.load.buffer.size": "__transaction_state is read batch by batch",
    "add.partitions.to.txn.*": _TRANSACTIONS,
    "group.share.assignor.offload.enable": "the size of an assignment decides: a large one is computed off the loop",
    "group.share.initialize.retry.interval.ms": "the state of a share partition is written when it is needed",
    "group.streams.*": _PROTOCOLS,
    "share.coordinator.threads": _THREADS,
    "share.coordinator.append.linger.ms": _THREADS,
    "share.coordinator.cached.buffer.max.bytes": _THREADS,
    "share.coordinator.write.timeout.ms": _COMMITS,
    "share.coordinator.load.buffer.size": "__share_group_state is read batch by batch",
    "metric.reporters": _METRICS,
    "metrics.*": _METRICS,
    "auto.include.jmx.reporter": _METRICS,
    "kafka.metrics.*": _METRICS,
    "telemetry.*": _METRICS,
    "quota.window.*": _QUOTAS,
    "alter.log.dirs.replication.quota.*": _QUOTAS,
    "controller.quota.*": _QUOTAS,
    "log.message.format.version": _DROPPED,
    "connection.failed.authentication.delay.ms": "there is no authentication yet",
    "remote.log.*": _TIERED,
    "remote.fetch.max.wait.ms": _TIERED,
    "remote.list.offsets.request.timeout.ms": _TIERED,
}
"""Why a setting has no effect in any broker, by its name or a pattern of names. A pattern may cover names in `CLUSTER_SETTINGS`,
which have an effect in a member of a cluster."""

_UNLIMITED = "9223372036854775807"

REFUSED_UNLESS: dict[str, tuple[str, ...]] = {
    "allow.everyone.if.no.acl.found": ("true",),
    "alter.config.policy.class.name": (),
    "authorizer.class.name": ("",),
    "client.quota.callback.class": (),
    "config.providers": ("",),
    "connections.max.reauth.ms": ("0",),
    "cordoned.log.dirs": ("",),
    "create.topic.policy.class.name": (),
    "delegation.token.expiry.check.interval.ms": ("3600000",),
    "delegation.token.expiry.time.ms": ("86400000",),
    "delegation.token.master.key": (),
    "delegation.token.max.lifetime.ms": ("604800000",),
    "delegation.token.secret.key": (),
    "follower.fetch.last.tiered.offset.enable": ("false",),
    "group.share.persister.class.name": ("org.apache.kafka.server.share.persister.DefaultStatePersister",),
    "log.local.retention.bytes": ("-2",),
    "log.local.retention.ms": ("-2",),
    "log.message.downconversion.enable": ("true",),
    "log.message.timestamp.difference.max.ms": (_UNLIMITED,),
    "max.connection.creation.rate": ("2147483647",),
    "principal.builder.class": ("org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",),
    "remote.log.storage.system.enable": ("false",),
    "sasl.enabled.mechanisms": ("GSSAPI",),
    "sasl.kerberos.kinit.cmd": ("/usr/bin/kinit",),
    "sasl.kerberos.min.time.before.relogin": ("60000",),
    "sasl.kerberos.principal.to.local.rules": ("DEFAULT",),
    "sasl.kerberos.ticket.renew.jitter": ("0.05",),
    "sasl.kerberos.ticket.renew.window.factor": ("0.8",),
    "sasl.login.refresh.buffer.seconds": ("300",),
    "sasl.login.refresh.min.period.seconds": ("60",),
    "sasl.login.refresh.window.factor": ("0.8",),
    "sasl.login.refresh.window.jitter": ("0.05",),
    "sasl.login.retry.backoff.max.ms": ("10000",),
    "sasl.login.retry.backoff.ms": ("100",),
    "sasl.mechanism.controller.protocol": ("GSSAPI",),
    "sasl.mechanism.inter.broker.protocol": ("GSSAPI",),
    "sasl.oauthbearer.assertion.algorithm": ("RS256",),
    "sasl.oauthbearer.assertion.claim.exp.seconds": ("300",),
    "sasl.oauthbearer.assertion.claim.jti.include": ("false",),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": ("60",),
    "sasl.oauthbearer.clock.skew.seconds": ("30",),
    "sasl.oauthbearer.expected.audience": ("",),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": ("3600000",),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": ("10000",),
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": ("100",),
    "sasl.oauthbearer.jwt.retriever.class": ("org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",),
    "sasl.oauthbearer.jwt.validator.class": ("org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",),
    "sasl.oauthbearer.scope.claim.name": ("scope",),
    "sasl.oauthbearer.sub.claim.name": ("sub",),
    "sasl.server.max.receive.size": ("524288",),
    "sasl.*": (),
    "security.inter.broker.protocol": ("PLAINTEXT",),
    "security.providers": (),
    "ssl.allow.dn.changes": ("false",),
    "ssl.allow.san.changes": ("false",),
    "ssl.cipher.suites": ("",),
    "ssl.client.auth": ("none",),
    "ssl.enabled.protocols": ("TLSv1.2,TLSv1.3",),
    "ssl.endpoint.identification.algorithm": ("https",),
    "ssl.keymanager.algorithm": ("SunX509",),
    "ssl.keystore.type": ("JKS",),
    "ssl.principal.mapping.rules": ("DEFAULT",),
    "ssl.protocol": ("TLSv1.3",),
    "ssl.trustmanager.algorithm": ("PKIX",),
    "ssl.truststore.type": ("JKS",),
    "ssl.*": (),
    "listener.name.*": (),
    "super.users": (),
    "unstable.api.versions.enable": ("false",),
    "unstable.feature.versions.enable": ("false",),
}
"""The values that a refused setting may have, by its name or a pattern of names."""

REPLACED = {
    "host.name": "listeners=PLAINTEXT://HOST:PORT",
    "port": "listeners=PLAINTEXT://HOST:PORT",
    "advertised.host.name": "advertised.listeners=PLAINTEXT://HOST:PORT",
    "advertised.port": "advertised.listeners=PLAINTEXT://HOST:PORT",
}
"""Settings that Apache Kafka 3.0 dropped, and what to write instead (KAFKA-12945)."""

_SECRETS = ("*password*", "*secret*", "*jaas*", "*.key", "*passphrase*")


def reason_without_effect(name: str) -> str | None:
    """Returns why the setting has no effect in a broker without `zookeeper.connect`; None if it has one, or does not exist."""
    return _MEMBER if name in CLUSTER_SETTINGS else _look_up(WITHOUT_EFFECT, name)


def accepted_of_refused(name: str) -> tuple[str, ...] | None:
    """Returns the values that a refused setting may have; None if the setting is not listed in `REFUSED_UNLESS`."""
    return _look_up(REFUSED_UNLESS, name)


def is_secret(name: str) -> bool:
    """Whether errors must hide the setting's value: those of secrets, and of unknown names, which may be mistyped secrets."""
    return name not in REFUSED_UNLESS or any(fnmatchcase(name, pattern) for pattern in _SECRETS)


def _look_up(table: dict[str, V], name: str) -> V | None:
    if name in table:
        return table[name]
    return next((found for pattern, found in table.items() if "*" in pattern and fnmatchcase(name, pattern)), None)
