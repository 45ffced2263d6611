"""The records of KRaft's metadata log that a takeover reads.

A value consists of the version of the frame, the type of the record and the version of the record, each an unsigned varint, and
the record as a flexible message. Records of other types are not decoded.

Source: AbstractApiMessageSerde; metadata/src/main/resources/common/metadata/*.json of Apache Kafka 4.3 (KIP-500, KIP-631).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from wirekafka.errors import ProtocolError
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire import codec
from wirekafka.wire.codec import Buffer
from wirekafka.wire.types import Int8, Int16, Int32, Int64, Message, NullableString, String, Uuid, nullable, since, tag

FRAME_VERSIONS = (0, 1)
"""The frame is 1 since Apache Kafka 3.0; the previews before that wrote 0, in the same layout."""


class RecordType(IntEnum):
    """The types of records that a takeover distinguishes; MetadataRecordType has more."""

    TOPIC = 2
    PARTITION = 3
    CONFIG = 4
    PARTITION_CHANGE = 5
    REMOVE_TOPIC = 9
    DELEGATION_TOKEN = 10
    USER_SCRAM_CREDENTIAL = 11
    FEATURE_LEVEL = 12
    CLIENT_QUOTA = 14
    PRODUCER_IDS = 15
    ACCESS_CONTROL_ENTRY = 18
    REMOVE_ACCESS_CONTROL_ENTRY = 19
    REMOVE_USER_SCRAM_CREDENTIAL = 22
    BEGIN_TRANSACTION = 23
    END_TRANSACTION = 24
    ABORT_TRANSACTION = 25
    REMOVE_DELEGATION_TOKEN = 26


class TopicRecord(Message):
    """Creates a topic."""

    name: String = ""
    topic_id: Uuid = ZERO_TOPIC_ID


class PartitionRecord(Message):
    """The whole state of a partition."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_TOPIC_ID
    replicas: list[Int32] = []
    isr: list[Int32] = []
    removing_replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    leader: Int32 = -1
    leader_recovery_state: Annotated[Int8, tag(0, 0)] = 0
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[list[Uuid], since(1)] = []


class PartitionChangeRecord(Message):
    """Changes a partition; `replicas` is None if the replicas stay the same."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_TOPIC_ID
    replicas: Annotated[list[Int32] | None, nullable(0), tag(2, 0)] = None


class ConfigRecord(Message):
    """Sets a setting of a resource; a value of None removes the setting."""

    resource_type: Int8 = 0
    resource_name: String = ""
    name: String = ""
    value: Annotated[NullableString, nullable(0)] = None


class RemoveTopicRecord(Message):
    """Deletes a topic and its partitions."""

    topic_id: Uuid = ZERO_TOPIC_ID


class FeatureLevelRecord(Message):
    """Finalizes the level of a feature."""

    name: String = ""
    feature_level: Int16 = 0


class ProducerIdsRecord(Message):
    """Reserves a block of producer ids for a broker; the next block begins at `next_producer_id`."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


MESSAGES: dict[int, tuple[type[Message], int]] = {
    RecordType.TOPIC: (TopicRecord, 0),
    RecordType.PARTITION: (PartitionRecord, 2),
    RecordType.PARTITION_CHANGE: (PartitionChangeRecord, 2),
    RecordType.CONFIG: (ConfigRecord, 0),
    RecordType.REMOVE_TOPIC: (RemoveTopicRecord, 0),
    RecordType.FEATURE_LEVEL: (FeatureLevelRecord, 0),
    RecordType.PRODUCER_IDS: (ProducerIdsRecord, 0),
}
"""The message of each decoded type, and its newest known version."""


def decode_record(value: Buffer) -> tuple[int, Message | None]:
    """Returns the type of a record, and its message if the type is in `MESSAGES`, otherwise None.

    Raises:
        ProtocolError: the value is not a metadata record, or its version is not known.
    """
    frame_version, pos = codec.read_unsigned_varint(value, 0, len(value))
    type_, pos = codec.read_unsigned_varint(value, pos, len(value))
    version, pos = codec.read_unsigned_varint(value, pos, len(value))
    if frame_version not in FRAME_VERSIONS:
        raise ProtocolError(f"frame version {frame_version} is not known")
    if type_ not in MESSAGES:
        return type_, None
    message, newest = MESSAGES[type_]
    if version > newest:
        raise ProtocolError(f"version {version} of {message.__name__} is not known")
    return type_, codec.decode(message, version, True, value[pos:])


def encode_record(type_: RecordType, message: Message) -> bytes:
    """Returns the value of a record, in the newest known version."""
    newest = MESSAGES[type_][1]
    head = b"".join(map(codec.unsigned_varint, (FRAME_VERSIONS[-1], type_, newest)))
    return head + codec.encode(message, newest, True)
