"""The records of share groups in __consumer_offsets, in Apache Kafka's own format.

A group has one record with the group epoch, one with the epoch of the target assignment, and one with the partitions whose state
is initialised. Each member has three records: its metadata, its target assignment and its current assignment.

Rules of this file: values are written in version 0, the only version. The decoder skips tagged fields that later releases add.

Source: ShareGroup*Key.json and ShareGroup*Value.json, GroupCoordinatorRecordHelpers of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from wirekafka.coordinator.groups.modern.records import (
    EpochRecord,
    GroupKey,
    MemberTargetRecord,
    StoredMemberRecord,
    TargetsRecord,
    TopicPartition,
    from_topics,
    group_key,
    read_key,
    read_value,
    to_topics,
    value_of,
)
from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.coordinator.groups.records import Decoder
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.codec import Buffer
from wirekafka.wire.types import Int8, Int32, Int64, Message, NullableString, String, Uuid, nullable

MEMBER_KEY_VERSION = 10
GROUP_EPOCH_KEY_VERSION = 11
TARGET_EPOCH_KEY_VERSION = 12
TARGET_KEY_VERSION = 13
CURRENT_KEY_VERSION = 14
STATE_PARTITIONS_KEY_VERSION = 15

STABLE = 0
"""The state of every member, because no member waits for another."""


class MemberValue(Message):
    """ShareGroupMemberMetadataValue."""

    rack_id: Annotated[NullableString, nullable(0)] = None
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []


class GroupEpochValue(Message):
    """ShareGroupMetadataValue."""

    epoch: Int32 = 0
    metadata_hash: Int64 = 0


class CurrentValue(Message):
    """ShareGroupCurrentMemberAssignmentValue."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = STABLE
    assigned_partitions: list[TopicPartition] = []


class TopicPartitionsInfo(Message):
    """Partitions of one topic whose state is initialised, or about to be."""

    topic_id: Uuid = ZERO_TOPIC_ID
    topic_name: String = ""
    partitions: list[Int32] = []


class TopicInfo(Message):
    """A topic whose state is about to be deleted."""

    topic_id: Uuid = ZERO_TOPIC_ID
    topic_name: String = ""


class StatePartitionsValue(Message):
    """ShareGroupStatePartitionMetadataValue."""

    initializing_topics: list[TopicPartitionsInfo] = []
    initialized_topics: list[TopicPartitionsInfo] = []
    deleting_topics: list[TopicInfo] = []


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A member of a share group.

    Attributes:
        member_epoch: the epoch of the target that the member has reached.
        previous_member_epoch: the epoch before, which the next heartbeat may still have.
        assigned: the partitions from which the member fetches.
    """

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    assigned: Partitions = field(default_factory=dict)

    @property
    def instance_id(self) -> None:
        """None, because a share group has no static members."""
        return None


InitializedTopics = dict[bytes, tuple[str, frozenset[int]]]
"""Partitions whose state is initialised, by the id of their topic, with its name."""


class ShareMemberRecord(StoredMemberRecord[ShareMember]):
    """The metadata of a member. None deletes the member."""

    __slots__ = ()
    KEY_VERSION = MEMBER_KEY_VERSION
    VALUE = MemberValue

    @staticmethod
    def to_value(member: ShareMember) -> MemberValue:
        """Returns the value of the record."""
        return MemberValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.subscribed_topic_names),
        )

    @staticmethod
    def to_member(member_id: str, value: MemberValue) -> ShareMember:
        """Returns a member with the fields of the value."""
        return ShareMember(
            member_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
        )


class ShareGroupEpochRecord(EpochRecord):
    """The epoch of a group; None deletes the group."""

    __slots__ = ()
    KEY_VERSION = GROUP_EPOCH_KEY_VERSION
    VALUE = GroupEpochValue


class ShareTargetEpochRecord(TargetsRecord):
    """The epoch of the targets of all members; None deletes it."""

    __slots__ = ()
    KEY_VERSION = TARGET_EPOCH_KEY_VERSION


class ShareTargetRecord(MemberTargetRecord):
    """The target of a member; None deletes it."""

    __slots__ = ()
    KEY_VERSION = TARGET_KEY_VERSION


class ShareCurrentRecord(StoredMemberRecord[ShareMember]):
    """The epochs and the current assignment of a member. None deletes them."""

    __slots__ = ()
    KEY_VERSION = CURRENT_KEY_VERSION
    VALUE = CurrentValue

    @staticmethod
    def to_value(member: ShareMember) -> CurrentValue:
        """Returns the value of the record."""
        return CurrentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_member_epoch,
            assigned_partitions=to_topics(member.assigned),
        )

    @staticmethod
    def to_member(member_id: str, value: CurrentValue) -> ShareMember:
        """Returns a member with the fields of the value."""
        return ShareMember(
            member_id,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            assigned=from_topics(value.assigned_partitions),
        )


@dataclass(slots=True)
class StatePartitionsRecord:
    """The partitions that have state in __share_group_state; None deletes the record, together with the group.

    Attributes:
        deleting: the topics whose state is to be deleted, by id, with their names. Apache Kafka writes these topics, and topics
            that are being initialised. This broker writes neither, because it deletes the state before it writes the record.
    """

    group_id: str
    initialized: InitializedTopics | None
    initializing: InitializedTopics = field(default_factory=dict)
    deleting: dict[bytes, str] = field(default_factory=dict)

    def encode(self) -> tuple[bytes, bytes | None]:
        """Returns the key and the value."""
        value = None
        if self.initialized is not None:
            value = StatePartitionsValue(
                initializing_topics=_to_infos(self.initializing),
                initialized_topics=_to_infos(self.initialized),
                deleting_topics=[TopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in self.deleting.items()],
            )
        return group_key(STATE_PARTITIONS_KEY_VERSION, self.group_id), value_of(value)


ShareGroupRecord = (
    ShareMemberRecord
    | ShareGroupEpochRecord
    | ShareTargetEpochRecord
    | ShareTargetRecord
    | ShareCurrentRecord
    | StatePartitionsRecord
)


def _to_infos(topics: InitializedTopics) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id=topic_id, topic_name=name, partitions=sorted(partitions))
        for topic_id, (name, partitions) in topics.items()
    ]


def _from_infos(infos: list[TopicPartitionsInfo]) -> InitializedTopics:
    return {info.topic_id: (info.topic_name, frozenset(info.partitions)) for info in infos}


def _decode_state_partitions(version: int, key: Buffer, value: Buffer | None) -> StatePartitionsRecord:
    group_id = read_key(GroupKey, version, key).group_id
    found = read_value(StatePartitionsValue, value)
    if found is None:
        return StatePartitionsRecord(group_id, None)
    deleting = {topic.topic_id: topic.topic_name for topic in found.deleting_topics}
    return StatePartitionsRecord(
        group_id, _from_infos(found.initialized_topics), _from_infos(found.initializing_topics), deleting
    )


SHARE_DECODERS: Mapping[int, Decoder] = {
    MEMBER_KEY_VERSION: ShareMemberRecord.decode,
    GROUP_EPOCH_KEY_VERSION: ShareGroupEpochRecord.decode,
    TARGET_EPOCH_KEY_VERSION: ShareTargetEpochRecord.decode,
    TARGET_KEY_VERSION: ShareTargetRecord.decode,
    CURRENT_KEY_VERSION: ShareCurrentRecord.decode,
    STATE_PARTITIONS_KEY_VERSION: _decode_state_partitions,
}
"""The decoders of the records, by the version of their key."""
