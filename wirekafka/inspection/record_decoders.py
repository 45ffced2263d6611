"""What the records of `__consumer_offsets`, `__transaction_state` and `__share_group_state` mean, field by field.

Theory of operation: a key and a value each begin with a version of two bytes. That of the key says of what kind the record is,
that of the value how it is laid out. So a table of the kinds, each with its two messages, is all that there is to know. Fields
have the names that Apache Kafka gives them, but that the group is always `group`.

Rule of this file: what cannot be read as the table says is left to be shown as bytes; nothing is guessed.

Source: CoordinatorRecordType of org.apache.kafka.coordinator.{group,share,transaction}, whose names the kinds have;
kafka.tools.DumpLogSegments (OffsetsMessageParser, TransactionLogMessageParser, ShareGroupStateMessageParser).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wirekafka.coordinator.groups.consumer import records as consumer
from wirekafka.coordinator.groups.modern.records import GroupKey, MemberKey, TargetEpochValue, TargetValue
from wirekafka.coordinator.groups.records import (
    FLEXIBLE_VALUE_VERSION,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read,
    version_of,
)
from wirekafka.coordinator.groups.share import records as share_group
from wirekafka.coordinator.share_state.records import SharePartitionKey, ShareSnapshotValue, ShareUpdateValue
from wirekafka.coordinator.transactions.records import TransactionLogKey, TransactionLogValue
from wirekafka.coordinator.transactions.transaction import TransactionState
from wirekafka.errors import ProtocolError
from wirekafka.inspection import unserved_records as unserved
from wirekafka.inspection.text import BytesStyle, show_message
from wirekafka.names import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from wirekafka.wire.batch import Record
from wirekafka.wire.types import Message

Fields = dict[str, Any]


class RecordKind(NamedTuple):
    """A kind of records.

    Attributes:
        newest: the newest version of the value that is known.
        flexible_since: the first version of the value that is flexible; keys never are.
    """

    name: str
    key: type[Message]
    value: type[Message]
    newest: int = 0
    flexible_since: int = 0


_OFFSET = RecordKind("offset_commit", OffsetCommitKey, OffsetCommitValue, FLEXIBLE_VALUE_VERSION, FLEXIBLE_VALUE_VERSION)
_GROUP = RecordKind("group_metadata", GroupMetadataKey, GroupMetadataValue, FLEXIBLE_VALUE_VERSION, FLEXIBLE_VALUE_VERSION)

_GROUP_KINDS = {
    0: _OFFSET._replace(name="legacy_offset_commit"),
    1: _OFFSET,
    2: _GROUP,
    3: RecordKind("consumer_group_metadata", GroupKey, consumer.GroupEpochValue),
    4: RecordKind("consumer_group_partition_metadata", GroupKey, unserved.PartitionMetadataValue),
    5: RecordKind("consumer_group_member_metadata", MemberKey, consumer.MemberValue),
    6: RecordKind("consumer_group_target_assignment_metadata", GroupKey, TargetEpochValue),
    7: RecordKind("consumer_group_target_assignment_member", MemberKey, TargetValue),
    8: RecordKind("consumer_group_current_member_assignment", MemberKey, consumer.CurrentValue),
    10: RecordKind("share_group_member_metadata", MemberKey, share_group.MemberValue),
    11: RecordKind("share_group_metadata", GroupKey, share_group.GroupEpochValue),
    12: RecordKind("share_group_target_assignment_metadata", GroupKey, TargetEpochValue),
    13: RecordKind("share_group_target_assignment_member", MemberKey, TargetValue),
    14: RecordKind("share_group_current_member_assignment", MemberKey, share_group.CurrentValue),
    15: RecordKind("share_group_state_partition_metadata", GroupKey, share_group.StatePartitionsValue),
    16: RecordKind("consumer_group_regular_expression", consumer.RegexKey, consumer.RegexValue),
    17: RecordKind("streams_group_metadata", GroupKey, unserved.StreamsGroupValue),
    19: RecordKind("streams_group_member_metadata", MemberKey, unserved.StreamsMemberValue),
    20: RecordKind("streams_group_target_assignment_metadata", GroupKey, TargetEpochValue),
    21: RecordKind("streams_group_target_assignment_member", MemberKey, unserved.StreamsTargetValue),
    22: RecordKind("streams_group_current_member_assignment", MemberKey, unserved.StreamsCurrentValue),
    23: RecordKind("streams_group_topology", GroupKey, unserved.TopologyValue),
}
_TRANSACTION_KINDS = {0: RecordKind("transaction_log", TransactionLogKey, TransactionLogValue, newest=1, flexible_since=1)}
_SHARE_KINDS = {
    0: RecordKind("share_snapshot", SharePartitionKey, ShareSnapshotValue),
    1: RecordKind("share_update", SharePartitionKey, ShareUpdateValue),
}

INTERNAL_TOPICS: Mapping[str, tuple[str, Mapping[int, RecordKind]]] = {
    GROUP_METADATA_TOPIC: ("group_record", _GROUP_KINDS),
    TRANSACTION_STATE_TOPIC: ("transaction_record", _TRANSACTION_KINDS),
    SHARE_STATE_TOPIC: ("share_record", _SHARE_KINDS),
}
"""For each internal topic, under which name a row says what its record means, and the kinds of its records."""


def meanings_in(topic: str, style: BytesStyle) -> Callable[[Record], Fields | None] | None:
    """What tells the meaning of a record of a topic, or None for a record that it does not know; None for a topic of clients."""
    known = INTERNAL_TOPICS.get(topic)
    if known is None:
        return None
    name, kinds = known

    def meaning(record: Record) -> Fields | None:
        try:
            found = _read(record, kinds, style)
        except ProtocolError:
            return None
        return None if found is None else {name: found}

    return meaning


def _read(record: Record, kinds: Mapping[int, RecordKind], style: BytesStyle) -> Fields | None:
    if record.key is None:
        return None
    version = version_of(record.key)
    kind = kinds.get(version)
    if kind is None:
        return None
    key = show_message(read(kind.key, version, record.key, newest=version, flexible_since=version + 1), style)
    names = {"group" if name == "group_id" else name: field for name, field in key.items()}
    return {"type": kind.name, **names, "value": _read_value(kind, record.value, style)}


def _read_value(kind: RecordKind, data: bytes | None, style: BytesStyle) -> Fields | None:
    if data is None:
        return None
    value = read(kind.value, version_of(data), data, newest=kind.newest, flexible_since=kind.flexible_since)
    fields = show_message(value, style)
    if isinstance(value, TransactionLogValue):
        states = {state.value: state.title for state in TransactionState}
        fields["transaction_status"] = states.get(value.transaction_status, value.transaction_status)
    return fields
