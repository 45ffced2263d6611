"""Decodes the records of `__consumer_offsets`, `__transaction_state` and `__share_group_state`.

How it works: a key and a value each begin with a version of two bytes. The version of the key is the type of the record. The
version of the value is its layout. A table has the message of the key and of the value for each type. Fields have Apache
Kafka's names, except that the group is always `group`.

Rule of this file: a record that does not match the table is shown as bytes; nothing is guessed.

Source: CoordinatorRecordType of org.apache.kafka.coordinator.{group,share,transaction} (names of types);
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
    """A type of records.

    Attributes:
        newest: the newest known version of the value.
        flexible_since: the first flexible version of the value; keys are never flexible.
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
"""For each internal topic, the name of the decoded record in a row, and the types of its records."""


def meanings_in(topic: str, style: BytesStyle) -> Callable[[Record], Fields | None] | None:
    """Returns the decoder of a topic's records, which gives None for a record of an unknown type; None for a topic of clients."""
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
