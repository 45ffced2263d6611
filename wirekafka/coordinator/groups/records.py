"""The records of __consumer_offsets: the stored state of groups, in Apache Kafka's own format.

A key and a value each begin with a version of two bytes. The key's version is the type of the record: 0 and 1 are an
offset, 2 is a classic group; the others belong to other types of groups. A value of None is a tombstone.

Rules of this file: records are written in the versions that every Apache Kafka since 2.1 reads (offset 3, or 1 if a commit has
its own expiration; group 3). All versions are read.

Source: GroupMetadataKey.json, GroupMetadataValue.json, OffsetCommitKey.json, OffsetCommitValue.json,
GroupCoordinatorRecordHelpers, GroupCoordinatorRecordSerde of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Annotated, Protocol, TypeVar

from wirekafka.errors import ProtocolError
from wirekafka.names import NO_LEADER_EPOCH, NO_TIMESTAMP, ZERO_TOPIC_ID
from wirekafka.wire import codec
from wirekafka.wire.codec import Buffer
from wirekafka.wire.types import Bytes, Int32, Int64, Message, NullableString, String, Uuid, nullable, since, tag, until

M = TypeVar("M", bound=Message)

LEGACY_OFFSET_KEY_VERSION = 0
OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2

OFFSET_VALUE_VERSION = 3
EXPIRING_OFFSET_VALUE_VERSION = 1
GROUP_VALUE_VERSION = 3
FLEXIBLE_VALUE_VERSION = 4

MAX_STRING_BYTES = 0x7FFF
"""The longest string, in bytes, of a record that is not flexible."""

_INT64 = Struct(">q")
_VALUE_HEAD = Struct(">hqih")
"""The beginning of an offset's value in version 3: its version, the offset, the leader epoch, the length of the metadata."""
_VALUE = Struct(">hqihq")
"""A whole value of version 3 without metadata: as `_VALUE_HEAD`, and the time of the commit."""
CACHED_KEYS = 256
"""How many layouts of keys are kept; the names of groups and topics have few different lengths."""


class OffsetCommitKey(Message):
    """The key of an offset."""

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
    """The key of a classic group."""

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
    """A classic group after its last rebalance."""

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
        leader_epoch: the leader epoch of the last consumed record; None if the client did not send it.
        expire_timestamp_ms: the time at which the offset expires, if the commit had a retention (OffsetCommit 2 to 4); else None.
        record_offset: the offset of its record in the partition of __consumer_offsets; set when the record is replayed.
    """

    offset: int
    leader_epoch: int | None
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    record_offset: int = field(default=-1, compare=False)


@dataclass(slots=True)
class OffsetRecord:
    """The offset of a group in a partition; None deletes it."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """Returns the key and the value. They are encoded by hand, because these are the most frequent records."""
        group, topic = self.group_id.encode(), self.topic.encode()
        group_size, topic_size = len(group), len(topic)
        pack_key = _key_of(group_size, topic_size).pack
        key = pack_key(OFFSET_KEY_VERSION, group_size, group, topic_size, topic, self.partition)
        return key, None if self.value is None else _encode_offset(self.value)


@dataclass(slots=True)
class GroupRecord:
    """The new state of a classic group; a value of None deletes the group."""

    group_id: str
    value: GroupMetadataValue | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """Returns the key and the value."""
        value = None if self.value is None else versioned(self.value, GROUP_VALUE_VERSION)
        return versioned(GroupMetadataKey(group=self.group_id), GROUP_KEY_VERSION), value


class CoordinatorRecord(Protocol):
    """A record of a group: of one of the classes here, or of the classes of other types of groups."""

    @property
    def group_id(self) -> str:
        """The id of the record's group."""

    def encode(self) -> tuple[bytes, bytes | None]:
        """Returns the key and the value; the value of a tombstone is None."""


Decoder = Callable[[int, Buffer, Buffer | None], CoordinatorRecord]
"""Decodes a record from the version of its key, its key and its value; both contain their versions."""


def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Returns the key and the value of a record; the value of a tombstone is None."""
    return record.encode()


@lru_cache(CACHED_KEYS)
def _key_of(group_size: int, topic_size: int) -> Struct:
    """Returns the layout of an offset's key: its version, the group's id and the topic with their lengths, and the partition."""
    return Struct(f">hh{group_size}sh{topic_size}si")


def _encode_offset(offset: CommittedOffset) -> bytes:
    if offset.expire_timestamp_ms is not None:
        value = OffsetCommitValue(
            offset=offset.offset,
            metadata=offset.metadata,
            commit_timestamp=offset.commit_timestamp_ms,
            expire_timestamp=offset.expire_timestamp_ms,
        )
        return versioned(value, EXPIRING_OFFSET_VALUE_VERSION)
    leader_epoch = NO_LEADER_EPOCH if offset.leader_epoch is None else offset.leader_epoch
    if not offset.metadata:
        return _VALUE.pack(OFFSET_VALUE_VERSION, offset.offset, leader_epoch, 0, offset.commit_timestamp_ms)
    metadata = offset.metadata.encode()
    head = _VALUE_HEAD.pack(OFFSET_VALUE_VERSION, offset.offset, leader_epoch, len(metadata))
    return head + metadata + _INT64.pack(offset.commit_timestamp_ms)


def versioned(message: Message, version: int, *, is_flexible: bool = False) -> bytes:
    """Returns a key or a value: the version in two bytes, then the message."""
    return version.to_bytes(2, "big") + codec.encode(message, version, is_flexible)


def decode(key: Buffer | None, value: Buffer | None, decoders: Mapping[int, Decoder] | None = None) -> CoordinatorRecord | None:
    """Decodes a record of __consumer_offsets; returns None if `decoders` has no decoder for its type.

    Args:
        decoders: the decoders, by the version of the key; the default is `DECODERS`.

    Raises:
        ProtocolError: the bytes are not a record of this type.
    """
    if key is None:
        raise ProtocolError("a record of __consumer_offsets has no key")
    version = version_of(key)
    decoder = (DECODERS if decoders is None else decoders).get(version)
    return None if decoder is None else decoder(version, key, value)


def _decode_offset_record(version: int, key: Buffer, value: Buffer | None) -> OffsetRecord:
    name = read(OffsetCommitKey, version, key)
    return OffsetRecord(name.group, name.topic, name.partition, None if value is None else _decode_offset(value))


def _decode_group_record(version: int, key: Buffer, value: Buffer | None) -> GroupRecord:
    name = read(GroupMetadataKey, version, key)
    return GroupRecord(name.group, None if value is None else _decode_group(value))


DECODERS: Mapping[int, Decoder] = {0: _decode_offset_record, 1: _decode_offset_record, 2: _decode_group_record}
"""The decoders of offsets and classic groups, by the version of the key."""


def _decode_offset(value: Buffer) -> CommittedOffset:
    found = read(OffsetCommitValue, version_of(value), value)
    return CommittedOffset(
        offset=found.offset,
        leader_epoch=None if found.leader_epoch == NO_LEADER_EPOCH else found.leader_epoch,
        metadata=found.metadata,
        commit_timestamp_ms=found.commit_timestamp,
        expire_timestamp_ms=None if found.expire_timestamp == NO_TIMESTAMP else found.expire_timestamp,
    )


def _decode_group(value: Buffer) -> GroupMetadataValue:
    return read(GroupMetadataValue, version_of(value), value)


def version_of(data: Buffer) -> int:
    """Returns the version at the beginning of a key or a value.

    Raises:
        ProtocolError: the bytes are too short.
    """
    if len(data) < 2:
        raise ProtocolError("a record of __consumer_offsets has no version")
    return int.from_bytes(data[:2], "big")


def read(
    cls: type[M],
    version: int,
    data: Buffer,
    *,
    newest: int = FLEXIBLE_VALUE_VERSION,
    flexible_since: int = FLEXIBLE_VALUE_VERSION,
) -> M:
    """Returns the message after the two bytes of its version.

    Raises:
        ProtocolError: the bytes are not such a message.
    """
    if version > newest:
        raise ProtocolError(f"{cls.__name__} {version} is not known")
    message: M = codec.decode(cls, version, version >= flexible_since, data[2:])
    return message
