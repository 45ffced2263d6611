"""The znodes of topics: assignments, and the state of each partition.

Source: kafka.zk.{TopicZNode, TopicPartitionStateZNode} of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wirekafka.names import TopicPartition, format_topic_id, parse_topic_id
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import JsonObject, in_order, write_object
from wirekafka.zookeeper.layout.key_order import mutable_map_order

TOPIC_VERSION = 3
"""The version of assignments since Kafka 2.8."""
STATE_VERSION = 1
NO_LEADER = -1
LEADER_DURING_DELETE = -2
"""What `leader` says if there is no leader, and while the topic is being deleted (Kafka's sentinels, which are in the JSON)."""
RECOVERED, RECOVERING = 0, 1
"""LeaderRecoveryState: RECOVERING after an unclean election, until the leader has seen its whole log."""


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """The replicas of a partition.

    Attributes:
        replicas: the ids of the brokers; the first is the preferred leader. During a reassignment, those that are added and those
            that are removed are among them.
    """

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """The content of `/brokers/topics/T`.

    Attributes:
        topic_id: 16 bytes; None in a topic of Kafka before 2.8.
        partitions: the replicas of each partition.
        unknown: the keys that this version does not know.
    """

    topic_id: bytes | None
    partitions: Mapping[int, ReplicaAssignment]
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, topic: str, data: bytes) -> TopicAssignment:
        """Reads an assignment of any version.

        Raises:
            MalformedZnodeError: the content is not Kafka's.
        """
        values = JsonObject.parse(paths.topic(topic), data)
        replicas, adding, removing = (
            _read_replicas(values, key) for key in ("partitions", "adding_replicas", "removing_replicas")
        )
        return cls(
            topic_id=_read_topic_id(values) if "topic_id" in values else None,
            partitions={
                partition: ReplicaAssignment(brokers, adding.get(partition, ()), removing.get(partition, ()))
                for partition, brokers in replicas.items()
            },
            unknown=values.without(("partitions", "topic_id", "adding_replicas", "removing_replicas", "version")),
        )

    def write(self) -> bytes:
        """Returns the content, in version 3."""
        values: dict[str, Any] = {
            "partitions": _write_replicas({index: each.replicas for index, each in self.partitions.items()}),
            "topic_id": None if self.topic_id is None else format_topic_id(self.topic_id),
            "adding_replicas": _write_some({index: each.adding_replicas for index, each in self.partitions.items()}),
            "removing_replicas": _write_some({index: each.removing_replicas for index, each in self.partitions.items()}),
            "version": TOPIC_VERSION,
        }
        if self.topic_id is None:
            del values["topic_id"]
        return write_object(values, self.unknown)


def _read_topic_id(values: JsonObject) -> bytes:
    try:
        return parse_topic_id(values.text("topic_id"))
    except ValueError as error:
        values.refuse(str(error))


def _read_replicas(values: JsonObject, key: str) -> dict[int, tuple[int, ...]]:
    if key not in values:
        return {}
    replicas = values.integers_by_name(key)
    for name in replicas:
        if not (name.isascii() and name.isdecimal() and len(name) <= 10):
            values.refuse(f"{key} has a partition that is not a number: {name!r}")
    return {int(name): brokers for name, brokers in replicas.items()}


def _write_replicas(replicas: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
    texts = {str(partition): [*brokers] for partition, brokers in replicas.items()}
    return in_order(mutable_map_order(texts), texts)


def _write_some(replicas: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
    return _write_replicas({partition: brokers for partition, brokers in replicas.items() if brokers})


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The content of `/brokers/topics/T/partitions/P/state`. The version of the znode is the partition epoch.

    Attributes:
        leader: the id of the leader, `NO_LEADER` or `LEADER_DURING_DELETE`.
        isr: the ids of the in-sync replicas.
        controller_epoch: the epoch of the controller that wrote the leader.
        leader_recovery_state: RECOVERED or RECOVERING.
        unknown: the keys that this version does not know.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_recovery_state: int = RECOVERED
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, partition: TopicPartition, data: bytes) -> PartitionState:
        """Reads the content.

        Raises:
            MalformedZnodeError: the content is not Kafka's.
        """
        values = JsonObject.parse(paths.partition_state(partition), data)
        recovery = values.integer("leader_recovery_state") if "leader_recovery_state" in values else RECOVERED
        if recovery not in (RECOVERED, RECOVERING):
            values.refuse(f"leader_recovery_state is {recovery}")
        return cls(
            leader=values.integer("leader"),
            leader_epoch=values.integer("leader_epoch"),
            isr=values.integers("isr"),
            controller_epoch=values.integer("controller_epoch"),
            leader_recovery_state=recovery,
            unknown=values.without(_STATE_KEYS),
        )

    def write(self) -> bytes:
        """Returns the content, in version 1."""
        values: dict[str, Any] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": STATE_VERSION,
            "leader_recovery_state": self.leader_recovery_state,
            "leader_epoch": self.leader_epoch,
            "isr": [*self.isr],
        }
        if self.leader_recovery_state == RECOVERED:
            del values["leader_recovery_state"]
        return write_object(values, self.unknown)


_STATE_KEYS = ("controller_epoch", "leader", "version", "leader_recovery_state", "leader_epoch", "isr")
