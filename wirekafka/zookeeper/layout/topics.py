"""The znodes of topics: assignments, and the state of each partition.

Source: kafka.zk.{TopicZNode, TopicPartitionStateZNode} of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wirekafka.names import TopicPartition, format_topic_id, parse_topic_id
from wirekafka.pending import Work, finish
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import JsonObject, in_order, write_object
from wirekafka.zookeeper.layout.key_order import mutable_map_order, note_key

PARTITIONS_A_STEP = 500

MOST_INDEX = (1 << 31) - 1
"""The greatest index of a partition. A greater one would be in no request, and no request with it would be sent."""

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
        return finish(cls.reading(topic, data))

    @classmethod
    def reading(cls, topic: str, data: bytes) -> Work[TopicAssignment]:
        """Reads an assignment in steps, as `read` does.

        One of 10,000 partitions takes 25 ms, and the longest step 7 ms, in which Python reads the JSON (2026-11).

        Raises:
            MalformedZnodeError: the content is not Kafka's.
        """
        values = JsonObject.parse(paths.topic(topic), data)
        yield
        replicas = yield from _reading_replicas(values, "partitions")
        adding = yield from _reading_replicas(values, "adding_replicas")
        removing = yield from _reading_replicas(values, "removing_replicas")
        partitions: dict[int, ReplicaAssignment] = {}
        for partition, brokers in replicas.items():
            partitions[partition] = ReplicaAssignment(brokers, adding.get(partition, ()), removing.get(partition, ()))
            if len(partitions) % PARTITIONS_A_STEP == 0:
                yield
        return cls(
            topic_id=_read_topic_id(values) if "topic_id" in values else None,
            partitions=partitions,
            unknown=values.without(("partitions", "topic_id", "adding_replicas", "removing_replicas", "version")),
        )

    def write(self) -> bytes:
        """Returns the content, in version 3."""
        return finish(self.writing())

    def writing(self) -> Work[bytes]:
        """Returns the content in steps, as `write` does."""
        all_replicas, adding, removing = {}, {}, {}
        for count, (index, each) in enumerate(self.partitions.items(), 1):
            name = str(index)
            all_replicas[name] = [*each.replicas]
            if each.adding_replicas:
                adding[name] = [*each.adding_replicas]
            if each.removing_replicas:
                removing[name] = [*each.removing_replicas]
            if count % PARTITIONS_A_STEP == 0:
                yield
        values: dict[str, Any] = {
            "partitions": (yield from _ordered(all_replicas)),
            "topic_id": None if self.topic_id is None else format_topic_id(self.topic_id),
            "adding_replicas": (yield from _ordered(adding)),
            "removing_replicas": (yield from _ordered(removing)),
            "version": TOPIC_VERSION,
        }
        if self.topic_id is None:
            del values["topic_id"]
        yield
        return write_object(values, self.unknown)


def _read_topic_id(values: JsonObject) -> bytes:
    try:
        return parse_topic_id(values.text("topic_id"))
    except ValueError as error:
        values.refuse(str(error))


def _reading_replicas(values: JsonObject, key: str) -> Work[dict[int, tuple[int, ...]]]:
    if key not in values:
        return {}
    by_name = values.integers_by_name(key)
    yield
    replicas: dict[int, tuple[int, ...]] = {}
    for name, brokers in by_name.items():
        if not (name.isascii() and name.isdecimal() and len(name) <= 10 and int(name) <= MOST_INDEX):
            values.refuse(f"{key} has a partition that is not a number of 31 bits: {name!r}")
        replicas[int(name)] = brokers
        if len(replicas) % PARTITIONS_A_STEP == 0:
            yield
    return replicas


def _ordered(replicas: Mapping[str, list[int]]) -> Work[dict[str, list[int]]]:
    """Returns replicas in the order in which Kafka writes them."""
    for count, name in enumerate(replicas, 1):
        note_key(name)
        if count % PARTITIONS_A_STEP == 0:
            yield
    return in_order(mutable_map_order(replicas), replicas)


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
