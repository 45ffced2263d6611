"""The world of `tests.coordinator.world`, with topics and consumer groups in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count

from wirekafka.coordinator.effects import append_error
from wirekafka.coordinator.groups.consumer.consumer_protocol import EmbeddedTopic, Subscription, read_assignment
from wirekafka.coordinator.groups.consumer.group import ConsumerGroup
from wirekafka.coordinator.groups.consumer.machine import ConsumerMachine
from wirekafka.coordinator.groups.consumer.member import ConsumerMember, OwnedPartitions, ResolvedRegex
from wirekafka.coordinator.groups.consumer.records import (
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    PartitionMetadataRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings, GroupTimes
from wirekafka.coordinator.groups.coordinator import GroupCoordinator
from wirekafka.coordinator.groups.modern.topics import MetadataHashes, Partitions
from wirekafka.coordinator.groups.records import CoordinatorRecord, GroupMetadataValue, GroupRecord
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import KafkaError, ProtocolError
from wirekafka.tests.coordinator.groups.world import World, describe_record
from wirekafka.wire import codec


@dataclass
class MemoryTopic:
    name: str
    topic_id: bytes
    partitions: range


class MemoryImage:
    """Topics in a dict; the id of each is made of its number and its name."""

    def __init__(self) -> None:
        self.topics: dict[str, MemoryTopic] = {}
        self.last_ids: dict[str, bytes] = {}
        self.hashes = MetadataHashes(self)
        self.revision = 1
        self.version = 1
        self.rack: str | None = None
        self._numbers = count(1)

    def check_known(self) -> None:
        """All topics are known."""

    def outgrow(self, version: int) -> None:
        assert version <= self.version, "all versions are those of this image"

    def find(self, name: str) -> MemoryTopic | None:
        return self.topics.get(name)

    def find_by_id(self, topic_id: bytes) -> MemoryTopic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def __iter__(self) -> Iterator[MemoryTopic]:
        return iter(self.topics.values())

    def put(self, name: str, partition_count: int) -> None:
        """Creates a topic, or adds partitions to it."""
        known = self.topics.get(name)
        topic_id = f"{next(self._numbers):03}-{name}".encode().ljust(16)[:16] if known is None else known.topic_id
        self.topics[name] = MemoryTopic(name, topic_id, range(partition_count))
        self.last_ids[name] = topic_id
        self._changed(name)
        self.version += 1

    def delete(self, name: str) -> None:
        del self.topics[name]
        self._changed(name)

    def _changed(self, name: str) -> None:
        self.hashes.forget(name)
        self.revision += 1


class ConsumerWorld(World):
    def __init__(
        self,
        settings: GroupSettings | None = None,
        consumer_settings: ConsumerSettings | None = None,
        times: GroupTimes | None = None,
    ) -> None:
        self.image = MemoryImage()
        self.times = times or GroupTimes()
        self.consumer_settings = consumer_settings or ConsumerSettings()
        super().__init__(settings)

    def _new_coordinator(self) -> GroupCoordinator:
        coordinator = super()._new_coordinator()
        new_id = lambda: f"new-{next(self._numbers)}"  # noqa: E731
        times_of = lambda group_id: self.times  # noqa: E731
        self.machine = ConsumerMachine(coordinator, self.consumer_settings, times_of, self.image, self.image.hashes, new_id)
        return coordinator

    def heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        result, effects = self.machine.heartbeats.heartbeat(request, self.now_ms)
        error = self.run(effects)
        if error is not None:
            raise KafkaError(append_error(error))
        return result

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        return self.machine.groups.find(group_id)

    def state_of(self, group_id: str) -> str:
        group = self.consumer_group(group_id)
        if group is None:
            return super().state_of(group_id)
        lines = [
            f"{group_id} is {group.state_name}, epoch {group.group_epoch}, target of epoch {group.assignment_epoch}",
            *(f"    {self._describe_member(group, member)}" for member in group.members.values()),
        ]
        offsets = sorted(
            f"{topic}-{partition}={offset.offset}"
            for topic, partitions in self.coordinator.offsets.of_group(group_id).items()
            for partition, offset in partitions.items()
        )
        if offsets:
            lines.append(f"    offsets {', '.join(offsets)}")
        return "\n  ".join(lines)

    def _describe_member(self, group: ConsumerGroup, member: ConsumerMember) -> str:
        pieces = [f"{member.member_id} at {member.member_epoch} {member.state.name}"]
        if member.assigned:
            pieces.append(f"has {self.owned(member.assigned)}")
        if member.pending_revocation:
            pieces.append(f"gives up {self.owned(member.pending_revocation)}")
        pieces.append(f"target {self.partitions(group.targets.get(member.member_id, {}))}")
        return ", ".join(pieces)

    def describe_record(self, record: CoordinatorRecord) -> str:  # noqa: PLR0911
        match record:
            case GroupEpochRecord(epoch=None) | TargetEpochRecord(epoch=None) | PartitionMetadataRecord():
                return f"{_name(record)} of {record.group_id} is gone"
            case MemberRecord(member=None) | TargetRecord(target=None) | CurrentRecord(member=None):
                return f"{_name(record)} of {record.member_id} is gone"
            case RegexRecord(resolved=None):
                return f"regex {record.regex} is gone"
            case GroupEpochRecord() | TargetEpochRecord():
                return f"{_name(record)} of {record.group_id} is {record.epoch}"
            case MemberRecord(member=ConsumerMember() as member):
                return f"member {record.member_id} {_describe_said(member)}"
            case TargetRecord(target=dict() as target):
                return f"target of {record.member_id} is {self.partitions(target)}"
            case CurrentRecord(member=ConsumerMember() as member):
                text = f"{record.member_id} at {member.member_epoch}, was at {member.previous_member_epoch}, {member.state.name}"
                text += f", has {self.owned(member.assigned)}" if member.assigned else ""
                return text + (f", gives up {self.owned(member.pending_revocation)}" if member.pending_revocation else "")
            case RegexRecord(resolved=ResolvedRegex() as resolved):
                return f"regex {record.regex} matches {' '.join(sorted(resolved.topics)) or 'nothing'}"
            case GroupRecord(value=value) if value is not None and value.protocol_type == "consumer":
                return self._describe_classic(record.group_id, value)
        return describe_record(record)

    def _describe_classic(self, group_id: str, value: GroupMetadataValue) -> str:
        members = []
        for member in value.members:
            try:
                given = self.partitions(read_assignment(member.assignment, self.image)[0])
            except ProtocolError:
                given = repr(member.assignment)
            members.append(f"{member.member_id}={given}")
        protocol = f"generation {value.generation}, {value.protocol}, leader {value.leader}"
        return f"classic group {group_id}, {protocol}, members {'; '.join(members) or 'none'}"

    def owned(self, owned: OwnedPartitions) -> str:
        """Formats partitions with their epochs: a-0@2."""
        names = (f"{self.name_of(topic)}-{index}@{epoch}" for topic, epochs in owned.items() for index, epoch in epochs.items())
        return " ".join(sorted(names)) or "nothing"

    def partitions(self, partitions: Partitions) -> str:
        names = (f"{self.name_of(topic)}-{index}" for topic, indexes in partitions.items() for index in indexes)
        return " ".join(sorted(names)) or "nothing"

    def name_of(self, topic_id: bytes) -> str:
        return topic_id[4:].decode().strip()

    def owned_of(self, words: Collection[str]) -> dict[bytes, list[int]]:
        """Parses partitions, of topics that exist or existed."""
        found: dict[bytes, list[int]] = {}
        for word in words:
            name, _, index = word.rpartition("-")
            found.setdefault(self.image.last_ids[name], []).append(int(index))
        return found


def subscription(topics: Collection[str], owned: Collection[str] = (), version: int = 1) -> bytes:
    """Builds a classic member's metadata."""
    by_topic: dict[str, list[int]] = {}
    for word in owned:
        name, _, index = word.rpartition("-")
        by_topic.setdefault(name, []).append(int(index))
    message = Subscription(
        topics=list(topics),
        owned_partitions=[EmbeddedTopic(topic=name, partitions=indexes) for name, indexes in by_topic.items()],
    )
    return version.to_bytes(2, "big") + codec.encode(message, version, False)


def _describe_said(member: ConsumerMember) -> str:
    pieces = [f"reads {' '.join(sorted(member.subscribed_topic_names)) or 'nothing'}"]
    pieces += [f"and {member.subscribed_topic_regex}"] if member.subscribed_topic_regex else []
    pieces += [f"as {member.instance_id}"] if member.instance_id else []
    pieces += [f"by {member.server_assignor}"] if member.server_assignor else []
    pieces += ["(classic)"] if member.is_classic else []
    return " ".join(pieces)


def _name(record: object) -> str:
    return {
        GroupEpochRecord: "epoch",
        TargetEpochRecord: "target epoch",
        PartitionMetadataRecord: "partition metadata",
        MemberRecord: "member",
        TargetRecord: "target",
        CurrentRecord: "partitions",
    }[type(record)]
