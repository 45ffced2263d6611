"""The records of __share_group_state, which hold the state of share partitions, in Apache Kafka's own format.

A key begins with the record type in two bytes, and a value begins with its version in two bytes. A snapshot holds the whole state
of a share partition; an update holds a change of the state. A snapshot without a value is a tombstone: it deletes the state.

Source: ShareSnapshotKey.json, ShareSnapshotValue.json, ShareUpdateKey.json, ShareUpdateValue.json,
ShareCoordinatorRecordHelpers, ShareCoordinatorRecordSerde of Apache Kafka 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from wirekafka.coordinator.share_state.batches import RecordState, StateBatch
from wirekafka.errors import ProtocolError
from wirekafka.names import ZERO_TOPIC_ID, format_topic_id, parse_topic_id
from wirekafka.wire import codec
from wirekafka.wire.codec import Buffer
from wirekafka.wire.types import Int8, Int16, Int32, Int64, Message, String, Uuid, tag

SNAPSHOT_TYPE = 0
UPDATE_TYPE = 1
VALUE_VERSION = 0

ARCHIVING = 3

NO_OFFSET = -1
NO_COUNT = -1


class ShareKey(NamedTuple):
    """A share partition: one partition as one group consumes it."""

    group_id: str
    topic_id: bytes
    partition: int

    @classmethod
    def parse(cls, text: str) -> ShareKey:
        """Returns the share partition with this name.

        Raises:
            ValueError: The text is not the name of a share partition.
        """
        group_id, _, rest = text.rpartition(":")
        group_id, _, topic_id = group_id.rpartition(":")
        if not group_id.strip():
            raise ValueError(f"Invalid key format: expected - groupId:topicId:partition, found - {text}")
        return cls(group_id, parse_topic_id(topic_id), int(rest))

    def __str__(self) -> str:
        """Returns the name of the share partition in FindCoordinator requests."""
        return f"{self.group_id}:{format_topic_id(self.topic_id)}:{self.partition}"


class SharePartitionKey(Message):
    """ShareSnapshotKey and ShareUpdateKey, which have the same fields."""

    group_id: String = ""
    topic_id: Uuid = ZERO_TOPIC_ID
    partition: Int32 = 0


class StateBatchValue(Message):
    """Records in one state."""

    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class ShareSnapshotValue(Message):
    """The whole state of a share partition."""

    snapshot_epoch: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, tag(0, 0)] = NO_COUNT
    create_timestamp: Int64 = 0
    write_timestamp: Int64 = 0
    state_batches: list[StateBatchValue] = []


class ShareUpdateValue(Message):
    """A change of the state of a share partition."""

    snapshot_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, tag(0, 0)] = NO_COUNT
    state_batches: list[StateBatchValue] = []


@dataclass(slots=True)
class ShareStateRecord:
    """The new state of a share partition, or a change of it. None deletes the state."""

    key: ShareKey
    value: ShareSnapshotValue | ShareUpdateValue | None


def to_values(batches: list[StateBatch]) -> list[StateBatchValue]:
    """Returns state batches in the form of a record's value."""
    return [
        StateBatchValue(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
        for first, last, state, count in batches
    ]


def from_values(values: list[StateBatchValue]) -> list[StateBatch]:
    """Returns the state batches of a record's value.

    Raises:
        ProtocolError: The value has an unknown state.
    """
    try:
        return [
            StateBatch(value.first_offset, value.last_offset, state_of(value.delivery_state), value.delivery_count)
            for value in values
        ]
    except ValueError as error:
        raise ProtocolError(f"the state of a record is not known: {error}") from None


def state_of(number: int) -> RecordState:
    """Returns the state with this number.

    Raises:
        ValueError: there is no such state.
    """
    # In Apache Kafka 4.3 a record in the state ARCHIVING is copied elsewhere before it is archived.
    return RecordState.ARCHIVED if number == ARCHIVING else RecordState(number)


def encode(record: ShareStateRecord) -> tuple[bytes, bytes | None]:
    """Returns the key and the value of a record; the value of a tombstone is None."""
    record_type = UPDATE_TYPE if isinstance(record.value, ShareUpdateValue) else SNAPSHOT_TYPE
    group_id, topic_id, partition = record.key
    key = SharePartitionKey(group_id=group_id, topic_id=topic_id, partition=partition)
    encoded_key = record_type.to_bytes(2, "big") + codec.encode(key, 0, False)
    if record.value is None:
        return encoded_key, None
    return encoded_key, VALUE_VERSION.to_bytes(2, "big") + codec.encode(record.value, VALUE_VERSION, True)


def decode(key: Buffer | None, value: Buffer | None) -> ShareStateRecord | None:
    """Returns the content of a record of __share_group_state; None if the record has an unknown type.

    Raises:
        ProtocolError: The bytes are not a record of __share_group_state.
    """
    if key is None or len(key) < 2:
        raise ProtocolError("a record of __share_group_state has no key")
    record_type = int.from_bytes(key[:2], "big")
    if record_type not in (SNAPSHOT_TYPE, UPDATE_TYPE):
        return None
    read: SharePartitionKey = codec.decode(SharePartitionKey, 0, False, key[2:])
    name = ShareKey(read.group_id, read.topic_id, read.partition)
    if value is None:
        return ShareStateRecord(name, None)
    if int.from_bytes(value[:2], "big") != VALUE_VERSION:
        raise ProtocolError("a record of __share_group_state has a version that is not known")
    if record_type == SNAPSHOT_TYPE:
        return ShareStateRecord(name, codec.decode(ShareSnapshotValue, VALUE_VERSION, True, value[2:]))
    return ShareStateRecord(name, codec.decode(ShareUpdateValue, VALUE_VERSION, True, value[2:]))
