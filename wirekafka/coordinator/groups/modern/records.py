"""The part of the records that consumer groups and share groups share: keys, epochs, targets, and their decoders.

Each type of groups has its own key versions for these records, by which a reader of __consumer_offsets distinguishes the types.
So each type derives its own classes from the classes of this file.

Rules of this file: values are written in version 0, the only version. The decoder skips tagged fields that later releases add.

Source: GroupCoordinatorRecordHelpers of Apache Kafka 4.3; its Consumer*.json and Share*.json, which agree in this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.coordinator.groups.records import read, version_of, versioned
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.codec import Buffer
from wirekafka.wire.types import Int32, Int64, Message, String, Uuid, tag

M = TypeVar("M", bound=Message)
G = TypeVar("G")
"""The type of a member."""


class GroupKey(Message):
    """The key of a record that a group has once."""

    group_id: String = ""


class MemberKey(Message):
    """The key of a record that a member has once."""

    group_id: String = ""
    member_id: String = ""


class TargetEpochValue(Message):
    """ConsumerGroupTargetAssignmentMetadataValue, ShareGroupTargetAssignmentMetadataValue."""

    assignment_epoch: Int32 = 0
    assignment_timestamp: Annotated[Int64, tag(0, 0)] = 0


class TopicPartition(Message):
    """Partitions of one topic."""

    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[Int32] = []


class TargetValue(Message):
    """ConsumerGroupTargetAssignmentMemberValue, ShareGroupTargetAssignmentMemberValue."""

    topic_partitions: list[TopicPartition] = []


@dataclass(slots=True)
class EpochRecord:
    """The epoch of a group; None deletes the group."""

    KEY_VERSION: ClassVar[int]
    VALUE: ClassVar[type[Any]]

    group_id: str
    epoch: int | None
    metadata_hash: int = 0

    def encode(self) -> tuple[bytes, bytes | None]:
        """Returns the key and the value."""
        value = None if self.epoch is None else self.VALUE(epoch=self.epoch, metadata_hash=self.metadata_hash)
        return group_key(self.KEY_VERSION, self.group_id), value_of(value)

    @classmethod
    def decode(cls, version: int, key: Buffer, value: Buffer | None) -> Self:
        """Returns the record; see `Decoder`."""
        group_id = read_key(GroupKey, version, key).group_id
        found = read_value(cls.VALUE, value)
        return cls(group_id, None) if found is None else cls(group_id, found.epoch, found.metadata_hash)


@dataclass(slots=True)
class TargetsRecord:
    """The epoch of the targets of all members; None deletes it."""

    KEY_VERSION: ClassVar[int]

    group_id: str
    epoch: int | None
    timestamp_ms: int = 0

    def encode(self) -> tuple[bytes, bytes | None]:
        """Returns the key and the value."""
        value = None
        if self.epoch is not None:
            value = TargetEpochValue(assignment_epoch=self.epoch, assignment_timestamp=self.timestamp_ms)
        return group_key(self.KEY_VERSION, self.group_id), value_of(value)

    @classmethod
    def decode(cls, version: int, key: Buffer, value: Buffer | None) -> Self:
        """Returns the record; see `Decoder`."""
        group_id = read_key(GroupKey, version, key).group_id
        found = read_value(TargetEpochValue, value)
        return cls(group_id, None) if found is None else cls(group_id, found.assignment_epoch, found.assignment_timestamp)


@dataclass(slots=True)
class MemberTargetRecord:
    """The target of a member; None deletes it."""

    KEY_VERSION: ClassVar[int]

    group_id: str
    member_id: str
    target: Partitions | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """Returns the key and the value."""
        value = None if self.target is None else TargetValue(topic_partitions=to_topics(self.target))
        return member_key(self.KEY_VERSION, self.group_id, self.member_id), value_of(value)

    @classmethod
    def decode(cls, version: int, key: Buffer, value: Buffer | None) -> Self:
        """Returns the record; see `Decoder`."""
        name = read_key(MemberKey, version, key)
        found = read_value(TargetValue, value)
        return cls(name.group_id, name.member_id, None if found is None else from_topics(found.topic_partitions))


@dataclass(slots=True)
class StoredMemberRecord(Generic[G]):
    """One record of a member; None deletes it. The record holds only some fields of `member`."""

    KEY_VERSION: ClassVar[int]
    VALUE: ClassVar[type[Message]]

    group_id: str
    member_id: str
    member: G | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """Returns the key and the value."""
        value = None if self.member is None else self.to_value(self.member)
        return member_key(self.KEY_VERSION, self.group_id, self.member_id), value_of(value)

    @classmethod
    def decode(cls, version: int, key: Buffer, value: Buffer | None) -> Self:
        """Returns the record; see `Decoder`."""
        name = read_key(MemberKey, version, key)
        found = read_value(cls.VALUE, value)
        return cls(name.group_id, name.member_id, None if found is None else cls.to_member(name.member_id, found))

    @staticmethod
    def to_value(member: G) -> Message:
        """Returns the value of the record, a `VALUE`."""
        raise NotImplementedError

    @staticmethod
    def to_member(member_id: str, value: Any) -> G:
        """Returns a member with the fields of the value, a `VALUE`."""
        raise NotImplementedError


def group_key(version: int, group_id: str) -> bytes:
    """Returns the key of a record that a group has once."""
    return versioned(GroupKey(group_id=group_id), version)


def member_key(version: int, group_id: str, member_id: str) -> bytes:
    """Returns the key of a record that a member has once."""
    return versioned(MemberKey(group_id=group_id, member_id=member_id), version)


def value_of(value: Message | None) -> bytes | None:
    """Returns the bytes of a value; None, a tombstone, if there is no value."""
    return None if value is None else versioned(value, 0, is_flexible=True)


def read_key(cls: type[M], version: int, key: Buffer) -> M:
    """Reads a key, whose version is the type of the record."""
    return read(cls, version, key, newest=version, flexible_since=version + 1)


def read_value(cls: type[M], value: Buffer | None) -> M | None:
    """Reads a value; None for a tombstone."""
    return None if value is None else read(cls, version_of(value), value, newest=0, flexible_since=0)


def to_topics(partitions: Partitions) -> list[TopicPartition]:
    """Returns partitions in the form of records."""
    return [TopicPartition(topic_id=topic_id, partitions=sorted(indexes)) for topic_id, indexes in partitions.items()]


def from_topics(topics: list[TopicPartition]) -> Partitions:
    """Returns partitions from the form of records; topics without partitions are left out."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}
