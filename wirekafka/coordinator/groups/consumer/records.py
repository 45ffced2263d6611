"""The records of consumer groups in __consumer_offsets, in Apache Kafka's own format.

A group has one record with the group epoch and one record with the epoch of the target assignment. Each member has three
records: its metadata, its target assignment and its current assignment. Each regular expression has one record with the topics
that match it.

Rules of this file: values are written in version 0, the only version. The decoder skips tagged fields that later releases add.

Source: ConsumerGroup*Key.json and ConsumerGroup*Value.json, GroupCoordinatorRecordHelpers of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from wirekafka.coordinator.groups.consumer.member import (
    ClassicMembership,
    ConsumerMember,
    MemberState,
    OwnedPartitions,
    ResolvedRegex,
)
from wirekafka.coordinator.groups.modern.records import (
    EpochRecord,
    GroupKey,
    MemberTargetRecord,
    StoredMemberRecord,
    TargetsRecord,
    group_key,
    read_key,
    read_value,
    value_of,
)
from wirekafka.coordinator.groups.records import Decoder, versioned
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.codec import Buffer
from wirekafka.wire.types import Bytes, Int8, Int32, Int64, Message, NullableString, String, Uuid, nullable, tag

GROUP_EPOCH_KEY_VERSION = 3
PARTITION_METADATA_KEY_VERSION = 4
MEMBER_KEY_VERSION = 5
TARGET_EPOCH_KEY_VERSION = 6
TARGET_KEY_VERSION = 7
CURRENT_KEY_VERSION = 8
REGEX_KEY_VERSION = 16


class RegexKey(Message):
    """ConsumerGroupRegularExpressionKey."""

    group_id: String = ""
    regular_expression: String = ""


class GroupEpochValue(Message):
    """ConsumerGroupMetadataValue."""

    epoch: Int32 = 0
    metadata_hash: Annotated[Int64, tag(0, 0)] = 0


class ClassicProtocol(Message):
    """A protocol that a classic member supports."""

    name: String = ""
    metadata: Bytes = b""


class ClassicMemberMetadata(Message):
    """The metadata that only members of the classic protocol have."""

    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = []


class MemberValue(Message):
    """ConsumerGroupMemberMetadataValue."""

    instance_id: Annotated[NullableString, nullable(0)] = ""
    rack_id: Annotated[NullableString, nullable(0)] = ""
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: Annotated[NullableString, nullable(0)] = ""
    rebalance_timeout_ms: Int32 = -1
    server_assignor: Annotated[NullableString, nullable(0)] = ""
    # Kafka omits the tagged field if it has the default value, an empty struct, and writes null, although the JSON schema
    # declares null as the default.
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, tag(0, 0), nullable(0)] = ClassicMemberMetadata()


class TopicPartitions(Message):
    """Partitions of one topic in a member's current assignment; records of releases before 4.3 have no epochs."""

    topic_id: Uuid = ZERO_TOPIC_ID
    partitions: list[Int32] = []
    assignment_epochs: Annotated[list[Int32] | None, tag(0, 0), nullable(0)] = None


class CurrentValue(Message):
    """ConsumerGroupCurrentMemberAssignmentValue."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = []
    partitions_pending_revocation: list[TopicPartitions] = []


class RegexValue(Message):
    """ConsumerGroupRegularExpressionValue."""

    topics: list[String] = []
    version: Int64 = 0
    timestamp: Int64 = 0


class GroupEpochRecord(EpochRecord):
    """The epoch of a group. None deletes the group."""

    __slots__ = ()
    KEY_VERSION = GROUP_EPOCH_KEY_VERSION
    VALUE = GroupEpochValue


class TargetEpochRecord(TargetsRecord):
    """The epoch of a group's target assignment. None deletes the target assignment."""

    __slots__ = ()
    KEY_VERSION = TARGET_EPOCH_KEY_VERSION


class TargetRecord(MemberTargetRecord):
    """The target assignment of a member. None deletes it."""

    __slots__ = ()
    KEY_VERSION = TARGET_KEY_VERSION


@dataclass(slots=True)
class PartitionMetadataRecord:
    """The metadata of a group's topics, as Apache Kafka wrote it before 4.1. The broker writes only its tombstone."""

    group_id: str
    is_tombstone: bool = True

    def encode(self) -> tuple[bytes, bytes | None]:
        """Returns the key, and None as the value."""
        assert self.is_tombstone
        return group_key(PARTITION_METADATA_KEY_VERSION, self.group_id), None


class MemberRecord(StoredMemberRecord[ConsumerMember]):
    """The metadata of a member. None deletes the member."""

    __slots__ = ()
    KEY_VERSION = MEMBER_KEY_VERSION
    VALUE = MemberValue

    @staticmethod
    def to_value(member: ConsumerMember) -> MemberValue:
        """Returns the value of the record."""
        classic = None
        if member.classic is not None:
            classic = ClassicMemberMetadata(
                session_timeout_ms=member.classic.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=metadata) for name, metadata in member.classic.protocols
                ],
            )
        return MemberValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.subscribed_topic_names),
            subscribed_topic_regex=member.subscribed_topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=classic,
        )

    @staticmethod
    def to_member(member_id: str, value: MemberValue) -> ConsumerMember:
        """Returns a member with the fields of the value."""
        classic = None
        if value.classic_member_metadata is not None and value.classic_member_metadata.supported_protocols:
            protocols = [(protocol.name, protocol.metadata) for protocol in value.classic_member_metadata.supported_protocols]
            classic = ClassicMembership(value.classic_member_metadata.session_timeout_ms, protocols)
        return ConsumerMember(
            member_id,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=classic,
        )


class CurrentRecord(StoredMemberRecord[ConsumerMember]):
    """The current assignment of a member. None deletes it."""

    __slots__ = ()
    KEY_VERSION = CURRENT_KEY_VERSION
    VALUE = CurrentValue

    @staticmethod
    def to_value(member: ConsumerMember) -> CurrentValue:
        """Returns the value of the record."""
        return CurrentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_member_epoch,
            state=member.state,
            assigned_partitions=_topic_partitions(member.assigned),
            partitions_pending_revocation=_topic_partitions(member.pending_revocation),
        )

    @staticmethod
    def to_member(member_id: str, value: CurrentValue) -> ConsumerMember:
        """Returns a member with the fields of the value."""
        states = MemberState.__members__.values()
        return ConsumerMember(
            member_id,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if value.state in states else MemberState.UNKNOWN,
            assigned=_owned(value.assigned_partitions, value.member_epoch),
            pending_revocation=_owned(value.partitions_pending_revocation, value.member_epoch),
        )


@dataclass(slots=True)
class RegexRecord:
    """The topics that match a regular expression. None deletes the expression, which no member subscribes to any more."""

    group_id: str
    regex: str
    resolved: ResolvedRegex | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """Returns the key and the value."""
        key = RegexKey(group_id=self.group_id, regular_expression=self.regex)
        value = None
        if self.resolved is not None:
            found = self.resolved
            value = RegexValue(topics=sorted(found.topics), version=found.version, timestamp=found.timestamp_ms)
        return versioned(key, REGEX_KEY_VERSION), value_of(value)


ConsumerRecord = (
    GroupEpochRecord | PartitionMetadataRecord | MemberRecord | TargetEpochRecord | TargetRecord | CurrentRecord | RegexRecord
)


def _topic_partitions(owned: OwnedPartitions) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values()))
        for topic_id, epochs in owned.items()
    ]


def _decode_partition_metadata(version: int, key: Buffer, value: Buffer | None) -> PartitionMetadataRecord:
    return PartitionMetadataRecord(read_key(GroupKey, version, key).group_id, is_tombstone=value is None)


def _owned(topics: list[TopicPartitions], member_epoch: int) -> OwnedPartitions:
    """Returns the partitions with their assignment epochs; the default epoch is the member epoch.

    Source: Utils.assignmentFromTopicPartitions.
    """
    owned: OwnedPartitions = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return owned


def _decode_regex(version: int, key: Buffer, value: Buffer | None) -> RegexRecord:
    name = read_key(RegexKey, version, key)
    found = read_value(RegexValue, value)
    resolved = None if found is None else ResolvedRegex(frozenset(found.topics), found.version, found.timestamp)
    return RegexRecord(name.group_id, name.regular_expression, resolved)


CONSUMER_DECODERS: Mapping[int, Decoder] = {
    GROUP_EPOCH_KEY_VERSION: GroupEpochRecord.decode,
    PARTITION_METADATA_KEY_VERSION: _decode_partition_metadata,
    MEMBER_KEY_VERSION: MemberRecord.decode,
    TARGET_EPOCH_KEY_VERSION: TargetEpochRecord.decode,
    TARGET_KEY_VERSION: TargetRecord.decode,
    CURRENT_KEY_VERSION: CurrentRecord.decode,
    REGEX_KEY_VERSION: _decode_regex,
}
"""The decoders of the records, by the version of the key."""
