"""The records of __consumer_offsets: what of a group outlives the broker, in Apache Kafka's own format.

A key and a value each begin with a version of two bytes. The key's version is the type of the record: 0 and 1 are an
offset, 2 is a group; the others belong to group types that this broker does not have. A value of None is a tombstone.

Rules of this file: written are the versions that every Apache Kafka since 2.1 reads (offset 3, or 1 where a commit carries
its own expiry; group 3); read are all.

Source: GroupMetadataKey.json, GroupMetadataValue.json, OffsetCommitKey.json, OffsetCommitValue.json,
GroupCoordinatorRecordHelpers, GroupCoordinatorRecordSerde of Apache Kafka 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from wirekafka.errors import ProtocolError
from wirekafka.names import NO_LEADER_EPOCH, NO_TIMESTAMP, ZERO_TOPIC_ID
from wirekafka.wire import codec
from wirekafka.wire.codec import Buffer
from wirekafka.wire.types import Bytes, Int32, Int64, Message, NullableString, String, Uuid, nullable, since, tag, until

LEGACY_OFFSET_KEY_VERSION = 0
OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2

OFFSET_VALUE_VERSION = 3
EXPIRING_OFFSET_VALUE_VERSION = 1
GROUP_VALUE_VERSION = 3
FLEXIBLE_VALUE_VERSION = 4

MAX_STRING_BYTES = 0x7FFF
"""What a string of a record that is not flexible can hold."""


class OffsetCommitKey(Message):
    """Of whom and of what the offset is."""

    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class OffsetCommitValue(Message):
    """A committed offset."""

    offset: Int64 = 0
    leader_epoch: Annotated[Int32, since(3)] = NO_LEADER_EPOCH
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Annotated[Int64, since(1), until(1)] = NO_TIMESTAMP
    topic_id: Annotated[Uuid, tag(0, 4)] = ZERO_TOPIC_ID


class GroupMetadataKey(Message):
    """Which group it is."""

    group: String = ""


class MemberMetadata(Message):
    """A member of a stable group."""

    member_id: String = ""
    group_instance_id: Annotated[NullableString, since(3), nullable(3)] = None
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Annotated[Int32, since(1)] = -1
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


class GroupMetadataValue(Message):
    """A group as its last rebalance left it."""

    protocol_type: String = ""
    generation: Int32 = 0
    protocol: Annotated[NullableString, nullable(0)] = None
    leader: Annotated[NullableString, nullable(0)] = None
    current_state_timestamp: Annotated[Int64, since(2)] = NO_TIMESTAMP
    members: list[MemberMetadata] = []


@dataclass(slots=True)
class CommittedOffset:
    """An offset that a group has committed for a partition.

    Attributes:
        leader_epoch: of the last record that was read; None if the client did not say.
        expire_timestamp_ms: when the offset is to be forgotten, where the commit said so itself (OffsetCommit 2 to 4).
    """

    offset: int
    leader_epoch: int | None
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None


@dataclass(slots=True)
class OffsetRecord:
    """A group's offset in a partition is `value` from now on; None: it has none."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


@dataclass(slots=True)
class GroupRecord:
    """A group is what `value` says from now on; None: it is no more."""

    group_id: str
    value: GroupMetadataValue | None


CoordinatorRecord = OffsetRecord | GroupRecord


def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of a record; the value of a tombstone is None."""
    if isinstance(record, OffsetRecord):
        key = OffsetCommitKey(group=record.group_id, topic=record.topic, partition=record.partition)
        return _versioned(key, OFFSET_KEY_VERSION), None if record.value is None else _encode_offset(record.value)
    value = None if record.value is None else _versioned(record.value, GROUP_VALUE_VERSION)
    return _versioned(GroupMetadataKey(group=record.group_id), GROUP_KEY_VERSION), value


def _encode_offset(offset: CommittedOffset) -> bytes:
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=NO_LEADER_EPOCH if offset.leader_epoch is None else offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
    )
    if offset.expire_timestamp_ms is None:
        return _versioned(value, OFFSET_VALUE_VERSION)
    value.expire_timestamp = offset.expire_timestamp_ms
    return _versioned(value, EXPIRING_OFFSET_VALUE_VERSION)


def _versioned(message: Message, version: int) -> bytes:
    return version.to_bytes(2, "big") + codec.encode(message, version, False)


def decode(key: Buffer | None, value: Buffer | None) -> CoordinatorRecord | None:
    """What a record of __consumer_offsets says; None if it is of a type that this broker does not have.

    Raises:
        ProtocolError: the bytes are not such a record.
    """
    if key is None:
        raise ProtocolError("a record of __consumer_offsets has no key")
    match _version(key):
        case 0 | 1 as version:
            name: OffsetCommitKey = _read(OffsetCommitKey, version, key)
            return OffsetRecord(name.group, name.topic, name.partition, None if value is None else _decode_offset(value))
        case 2 as version:
            group: GroupMetadataKey = _read(GroupMetadataKey, version, key)
            return GroupRecord(group.group, None if value is None else _decode_group(value))
        case _:
            return None


def _decode_offset(value: Buffer) -> CommittedOffset:
    read: OffsetCommitValue = _read(OffsetCommitValue, _version(value), value)
    return CommittedOffset(
        offset=read.offset,
        leader_epoch=None if read.leader_epoch == NO_LEADER_EPOCH else read.leader_epoch,
        metadata=read.metadata,
        commit_timestamp_ms=read.commit_timestamp,
        expire_timestamp_ms=None if read.expire_timestamp == NO_TIMESTAMP else read.expire_timestamp,
    )


def _decode_group(value: Buffer) -> GroupMetadataValue:
    read: GroupMetadataValue = _read(GroupMetadataValue, _version(value), value)
    return read


def _version(data: Buffer) -> int:
    if len(data) < 2:
        raise ProtocolError("a record of __consumer_offsets has no version")
    return int.from_bytes(data[:2], "big")


def _read(cls: type[Message], version: int, data: Buffer) -> Any:
    if version > FLEXIBLE_VALUE_VERSION:
        raise ProtocolError(f"{cls.__name__} {version} is not known")
    return codec.decode(cls, version, version == FLEXIBLE_VALUE_VERSION, data[2:])
