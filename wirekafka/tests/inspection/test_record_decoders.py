"""The decoders of the records of internal topics: every kind that Apache Kafka 4.3 writes, in Kafka's own bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.coordinator.groups.consumer import records as consumer
from wirekafka.coordinator.groups.consumer.member import ClassicMembership, ConsumerMember, MemberState, ResolvedRegex
from wirekafka.coordinator.groups.records import (
    DECODERS,
    CommittedOffset,
    CoordinatorRecord,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetRecord,
    versioned,
)
from wirekafka.coordinator.groups.share import records as share
from wirekafka.coordinator.share_state.batches import RecordState, StateBatch
from wirekafka.coordinator.share_state.records import ShareKey, ShareSnapshotValue, ShareStateRecord, ShareUpdateValue, to_values
from wirekafka.coordinator.share_state.records import encode as encode_share
from wirekafka.coordinator.transactions.records import TransactionLogKey, TransactionLogValue, TransactionRecord
from wirekafka.coordinator.transactions.records import encode as encode_transaction
from wirekafka.coordinator.transactions.transaction import Transaction, TransactionState
from wirekafka.inspection import unserved_records as unserved
from wirekafka.inspection.dump import Selection
from wirekafka.inspection.record_decoders import meanings_in
from wirekafka.inspection.text import BytesStyle
from wirekafka.names import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition, format_topic_id
from wirekafka.tests.inspection.folders import TOPIC_ID, rows_of, write_log
from wirekafka.tests.log.logs import NOW_MS
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.types import Message

NAME = format_topic_id(TOPIC_ID)
GROUP = {"group": "g"}
MEMBER = {"group": "g", "member_id": "m"}
UNKNOWN = [
    pytest.param(None, b"\0\0", id="no key"),
    pytest.param(b"", b"\0\0", id="empty key"),
    pytest.param(b"\0\x63\0\1g", b"\0\0", id="unknown kind"),
    pytest.param(b"\0\3\0\2g", b"\0\0\0\0\0\1\0", id="torn key"),
    pytest.param(b"\0\3\0\1g", b"\0\0\0\0\0", id="torn value"),
    pytest.param(b"\0\3\0\1g", b"", id="empty value"),
    pytest.param(b"\0\3\0\1g", b"\0\1\0\0\0\1\0", id="unknown version"),
]


def meaning(topic: str, key: bytes | None, value: bytes | None, style: BytesStyle = BytesStyle.TEXT) -> dict[str, Any] | None:
    meaning_of = meanings_in(topic, style)
    assert meaning_of is not None
    return meaning_of(Record(key, value))


def of_group(record: CoordinatorRecord, style: BytesStyle = BytesStyle.TEXT) -> Any:
    found = meaning(GROUP_METADATA_TOPIC, *record.encode(), style)
    assert found is not None
    assert list(found) == ["group_record"]
    return found["group_record"]


def member_of(**fields: Any) -> ConsumerMember:
    return ConsumerMember("m", **fields)


def test_meaning_of_an_offset_is_what_was_committed() -> None:
    assert of_group(OffsetRecord("g", "t", 3, CommittedOffset(42, None, "note", NOW_MS))) == {
        "type": "offset_commit",
        "group": "g",
        "topic": "t",
        "partition": 3,
        "value": {
            "offset": 42,
            "leader_epoch": None,
            "metadata": "note",
            "commit_timestamp": NOW_MS,
            "expire_timestamp": None,
            "topic_id": None,
        },
    }
    expiring = of_group(OffsetRecord("g", "t", 3, CommittedOffset(42, 5, "", NOW_MS, NOW_MS + 1)))
    assert expiring["value"]["expire_timestamp"] == NOW_MS + 1
    assert of_group(OffsetRecord("g", "t", 3, None))["value"] is None


def test_meaning_of_an_offset_of_the_newest_version_has_the_topics_id() -> None:
    key = versioned(OffsetCommitKey(group="g", topic="t"), 1)
    value = versioned(OffsetCommitValue(offset=7, leader_epoch=2, topic_id=TOPIC_ID), 4, is_flexible=True)
    found = meaning(GROUP_METADATA_TOPIC, key, value)
    assert found is not None
    assert found["group_record"]["value"]["leader_epoch"] == 2
    assert found["group_record"]["value"]["topic_id"] == NAME


def test_meaning_of_an_offset_of_the_first_version_is_the_same() -> None:
    key = versioned(OffsetCommitKey(group="g", topic="t", partition=1), 0)
    found = meaning(GROUP_METADATA_TOPIC, key, versioned(OffsetCommitValue(offset=7), 0))
    assert found is not None
    assert found["group_record"]["type"] == "legacy_offset_commit"
    assert found["group_record"]["value"]["offset"] == 7


@pytest.mark.parametrize(("style", "shown"), [(BytesStyle.TEXT, "\0\1"), (BytesStyle.HEX, "0001")])
def test_meaning_of_a_classic_group_is_its_members(style: BytesStyle, shown: str) -> None:
    member = MemberMetadata(member_id="m", client_id="c", rebalance_timeout=5, subscription=b"\0\1")
    found = of_group(GroupRecord("g", GroupMetadataValue(protocol_type="consumer", generation=7, members=[member])), style)
    assert (found["type"], found["group"], found["value"]["generation"]) == ("group_metadata", "g", 7)
    assert found["value"]["current_state_timestamp"] is None
    assert found["value"]["members"] == [
        {
            "member_id": "m",
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "",
            "rebalance_timeout": 5,
            "session_timeout": 0,
            "subscription": shown,
            "assignment": "",
        }
    ]


TARGET = {"topic_partitions": [{"topic_id": NAME, "partitions": [0, 2]}]}
SAID = {
    "instance_id": "i",
    "rack_id": None,
    "client_id": "c",
    "client_host": "/h",
    "subscribed_topic_names": ["a", "b"],
    "subscribed_topic_regex": "x.*",
    "rebalance_timeout_ms": 9,
    "server_assignor": "range",
    "classic_member_metadata": {"session_timeout_ms": 4, "supported_protocols": [{"name": "range", "metadata": "\0\1"}]},
}
CONSUMER_RECORDS: list[tuple[int, CoordinatorRecord, dict[str, Any]]] = [
    (
        3,
        consumer.GroupEpochRecord("g", 7, -1),
        {"type": "consumer_group_metadata", **GROUP, "value": {"epoch": 7, "metadata_hash": -1}},
    ),
    (
        5,
        consumer.MemberRecord(
            "g",
            "m",
            member_of(
                instance_id="i",
                client_id="c",
                client_host="/h",
                subscribed_topic_names=frozenset("ab"),
                subscribed_topic_regex="x.*",
                rebalance_timeout_ms=9,
                server_assignor="range",
                classic=ClassicMembership(4, [("range", b"\0\1")]),
            ),
        ),
        {"type": "consumer_group_member_metadata", **MEMBER, "value": SAID},
    ),
    (
        6,
        consumer.TargetEpochRecord("g", 7, NOW_MS),
        {
            "type": "consumer_group_target_assignment_metadata",
            **GROUP,
            "value": {"assignment_epoch": 7, "assignment_timestamp": NOW_MS},
        },
    ),
    (
        7,
        consumer.TargetRecord("g", "m", {TOPIC_ID: frozenset({2, 0})}),
        {"type": "consumer_group_target_assignment_member", **MEMBER, "value": TARGET},
    ),
    (
        8,
        consumer.CurrentRecord(
            "g",
            "m",
            member_of(
                member_epoch=7,
                previous_member_epoch=6,
                state=MemberState.UNREVOKED_PARTITIONS,
                assigned={TOPIC_ID: {0: 5, 2: 7}},
                pending_revocation={TOPIC_ID: {1: 3}},
            ),
        ),
        {
            "type": "consumer_group_current_member_assignment",
            **MEMBER,
            "value": {
                "member_epoch": 7,
                "previous_member_epoch": 6,
                "state": 1,
                "assigned_partitions": [{"topic_id": NAME, "partitions": [0, 2], "assignment_epochs": [5, 7]}],
                "partitions_pending_revocation": [{"topic_id": NAME, "partitions": [1], "assignment_epochs": [3]}],
            },
        },
    ),
    (
        16,
        consumer.RegexRecord("g", "x.*", ResolvedRegex(frozenset({"x1"}), 3, NOW_MS)),
        {
            "type": "consumer_group_regular_expression",
            **GROUP,
            "regular_expression": "x.*",
            "value": {"topics": ["x1"], "version": 3, "timestamp": NOW_MS},
        },
    ),
]
SHARE_RECORDS: list[tuple[int, CoordinatorRecord, dict[str, Any]]] = [
    (
        10,
        share.ShareMemberRecord("g", "m", share.ShareMember("m", rack_id="r", subscribed_topic_names=frozenset("b"))),
        {
            "type": "share_group_member_metadata",
            **MEMBER,
            "value": {"rack_id": "r", "client_id": "", "client_host": "", "subscribed_topic_names": ["b"]},
        },
    ),
    (
        11,
        share.ShareGroupEpochRecord("g", 7, 5),
        {"type": "share_group_metadata", **GROUP, "value": {"epoch": 7, "metadata_hash": 5}},
    ),
    (
        12,
        share.ShareTargetEpochRecord("g", 7, NOW_MS),
        {
            "type": "share_group_target_assignment_metadata",
            **GROUP,
            "value": {"assignment_epoch": 7, "assignment_timestamp": NOW_MS},
        },
    ),
    (
        13,
        share.ShareTargetRecord("g", "m", {TOPIC_ID: frozenset({2, 0})}),
        {"type": "share_group_target_assignment_member", **MEMBER, "value": TARGET},
    ),
    (
        14,
        share.ShareCurrentRecord("g", "m", share.ShareMember("m", 7, 6, assigned={TOPIC_ID: frozenset({1})})),
        {
            "type": "share_group_current_member_assignment",
            **MEMBER,
            "value": {
                "member_epoch": 7,
                "previous_member_epoch": 6,
                "state": 0,
                "assigned_partitions": [{"topic_id": NAME, "partitions": [1]}],
            },
        },
    ),
    (
        15,
        share.StatePartitionsRecord("g", {TOPIC_ID: ("t", frozenset({1}))}, {}, {TOPIC_ID: "t"}),
        {
            "type": "share_group_state_partition_metadata",
            **GROUP,
            "value": {
                "initializing_topics": [],
                "initialized_topics": [{"topic_id": NAME, "topic_name": "t", "partitions": [1]}],
                "deleting_topics": [{"topic_id": NAME, "topic_name": "t"}],
            },
        },
    ),
]


@pytest.mark.parametrize(("version", "record", "expected"), CONSUMER_RECORDS + SHARE_RECORDS)
def test_meaning_of_a_record_of_a_group_is_every_field_of_it(
    version: int, record: CoordinatorRecord, expected: dict[str, Any]
) -> None:
    key, _ = record.encode()
    assert int.from_bytes(key[:2], "big") == version
    assert of_group(record) == expected


@pytest.mark.parametrize(("version", "record", "expected"), CONSUMER_RECORDS + SHARE_RECORDS)
def test_meaning_of_a_tombstone_is_whose_it_is(version: int, record: CoordinatorRecord, expected: dict[str, Any]) -> None:
    key, _ = record.encode()
    found = meaning(GROUP_METADATA_TOPIC, key, None)
    assert found == {"group_record": expected | {"value": None}}


def test_meaning_is_known_of_each_kind_that_a_coordinator_reads() -> None:
    shown = {0, 1, 2, 4} | {version for version, _, _ in CONSUMER_RECORDS + SHARE_RECORDS}
    assert shown == {*DECODERS, *consumer.CONSUMER_DECODERS, *share.SHARE_DECODERS}


TASKS: dict[str, Any] = {"subtopology_id": "0", "partitions": [1, 2]}
CURRENT_TASKS = [{**TASKS, "assignment_epochs": [6, 7]}]
INTERNAL_TOPIC = {"name": "c", "partitions": 2, "replication_factor": 1, "topic_configs": [{"key": "k", "value": "v"}]}
UNSERVED_VALUES: list[tuple[int, str, Message, dict[str, Any]]] = [
    (
        4,
        "consumer_group_partition_metadata",
        unserved.PartitionMetadataValue(
            topics=[
                unserved.TopicMetadata(
                    topic_id=TOPIC_ID,
                    topic_name="t",
                    num_partitions=2,
                    partition_metadata=[unserved.PartitionRacks(partition=1, racks=["r"])],
                )
            ]
        ),
        {
            "topics": [
                {
                    "topic_id": NAME,
                    "topic_name": "t",
                    "num_partitions": 2,
                    "partition_metadata": [{"partition": 1, "racks": ["r"]}],
                }
            ]
        },
    ),
    (
        17,
        "streams_group_metadata",
        unserved.StreamsGroupValue(
            epoch=7, metadata_hash=5, validated_topology_epoch=2, last_assignment_configs=[unserved.KeyValue(key="k", value="v")]
        ),
        {
            "epoch": 7,
            "metadata_hash": 5,
            "validated_topology_epoch": 2,
            "last_assignment_configs": [{"key": "k", "value": "v"}],
        },
    ),
    (
        21,
        "streams_group_target_assignment_member",
        unserved.StreamsTargetValue(active_tasks=[unserved.TargetTasks(**TASKS)]),
        {"active_tasks": [TASKS], "standby_tasks": [], "warmup_tasks": []},
    ),
    (
        22,
        "streams_group_current_member_assignment",
        unserved.StreamsCurrentValue(member_epoch=7, state=1, standby_tasks=[unserved.CurrentTasks(**CURRENT_TASKS[0])]),
        {
            "member_epoch": 7,
            "previous_member_epoch": 0,
            "state": 1,
            "active_tasks": [],
            "standby_tasks": CURRENT_TASKS,
            "warmup_tasks": [],
            "active_tasks_pending_revocation": [],
            "standby_tasks_pending_revocation": [],
            "warmup_tasks_pending_revocation": [],
        },
    ),
    (
        23,
        "streams_group_topology",
        unserved.TopologyValue(
            epoch=1,
            subtopologies=[
                unserved.Subtopology(
                    subtopology_id="0",
                    source_topics=["s"],
                    state_changelog_topics=[
                        unserved.InternalTopic(
                            name="c", partitions=2, replication_factor=1, topic_configs=[unserved.KeyValue(key="k", value="v")]
                        )
                    ],
                    copartition_groups=[unserved.CopartitionGroup(source_topics=[0])],
                )
            ],
        ),
        {
            "epoch": 1,
            "subtopologies": [
                {
                    "subtopology_id": "0",
                    "source_topics": ["s"],
                    "source_topic_regex": [],
                    "state_changelog_topics": [INTERNAL_TOPIC],
                    "repartition_sink_topics": [],
                    "repartition_source_topics": [],
                    "copartition_groups": [{"source_topics": [0], "source_topic_regex": [], "repartition_source_topics": []}],
                }
            ],
        },
    ),
]


@pytest.mark.parametrize(("version", "name", "value", "expected"), UNSERVED_VALUES)
def test_meaning_of_a_record_that_only_kafka_writes_is_every_field_of_it(
    version: int, name: str, value: Message, expected: dict[str, Any]
) -> None:
    is_of_member = version in (21, 22)
    key = version.to_bytes(2, "big") + b"\0\1g" + (b"\0\1m" if is_of_member else b"")
    found = meaning(GROUP_METADATA_TOPIC, key, versioned(value, 0, is_flexible=True))
    assert found == {"group_record": {"type": name, **(MEMBER if is_of_member else GROUP), "value": expected}}


@pytest.mark.parametrize("has_endpoint", [False, True])
def test_meaning_of_a_member_of_a_streams_group_is_what_it_said(has_endpoint: bool) -> None:
    endpoint = unserved.Endpoint(host="h", port=0xFFFF) if has_endpoint else None
    value = unserved.StreamsMemberValue(instance_id=None, rack_id=None, process_id="p", user_endpoint=endpoint)
    found = meaning(GROUP_METADATA_TOPIC, b"\0\x13\0\1g\0\1m", versioned(value, 0, is_flexible=True))
    assert found is not None
    said = found["group_record"]["value"]
    assert (said["process_id"], said["rebalance_timeout_ms"]) == ("p", None)
    assert said["user_endpoint"] == ({"host": "h", "port": 0xFFFF} if has_endpoint else None)


def test_meaning_of_a_transaction_is_its_state_by_name() -> None:
    partitions = frozenset({TopicPartition("t", 1), TopicPartition("t", 0)})
    transaction = Transaction("x", 7, 3, TransactionState.ONGOING, 60_000, NOW_MS, partitions, NOW_MS - 5, client_version=2)
    found = meaning(TRANSACTION_STATE_TOPIC, *encode_transaction(TransactionRecord("x", transaction)))
    assert found == {
        "transaction_record": {
            "type": "transaction_log",
            "transactional_id": "x",
            "value": {
                "producer_id": 7,
                "previous_producer_id": None,
                "next_producer_id": None,
                "producer_epoch": 3,
                "next_producer_epoch": None,
                "transaction_timeout_ms": 60_000,
                "transaction_status": "Ongoing",
                "transaction_partitions": [{"topic": "t", "partition_ids": [0, 1]}],
                "transaction_last_update_timestamp_ms": NOW_MS,
                "transaction_start_timestamp_ms": NOW_MS - 5,
                "client_transaction_version": 2,
            },
        }
    }
    gone = meaning(TRANSACTION_STATE_TOPIC, *encode_transaction(TransactionRecord("y", None)))
    assert gone == {"transaction_record": {"type": "transaction_log", "transactional_id": "y", "value": None}}


@pytest.mark.parametrize("version", [0, 1])
def test_meaning_of_a_transaction_in_a_state_that_is_not_known_is_its_number(version: int) -> None:
    key = versioned(TransactionLogKey(transactional_id="x"), 0)
    value = versioned(TransactionLogValue(transaction_status=99), version, is_flexible=version > 0)
    found = meaning(TRANSACTION_STATE_TOPIC, key, value)
    assert found is not None
    assert found["transaction_record"]["value"]["transaction_status"] == 99


def test_meaning_of_the_state_of_a_share_partition_is_what_was_done_with_its_records() -> None:
    key = ShareKey("g", TOPIC_ID, 3)
    batches = to_values([StateBatch(5, 7, RecordState.ACKNOWLEDGED, 1)])
    update = ShareUpdateValue(snapshot_epoch=1, leader_epoch=2, start_offset=4, delivery_complete_count=3, state_batches=batches)
    names = {"group": "g", "topic_id": NAME, "partition": 3}
    found = meaning(SHARE_STATE_TOPIC, *encode_share(ShareStateRecord(key, update)))
    assert found == {
        "share_record": {
            "type": "share_update",
            **names,
            "value": {
                "snapshot_epoch": 1,
                "leader_epoch": 2,
                "start_offset": 4,
                "delivery_complete_count": 3,
                "state_batches": [{"first_offset": 5, "last_offset": 7, "delivery_state": 2, "delivery_count": 1}],
            },
        }
    }
    snapshot = meaning(SHARE_STATE_TOPIC, *encode_share(ShareStateRecord(key, ShareSnapshotValue(start_offset=4))))
    assert snapshot is not None
    assert snapshot["share_record"]["type"] == "share_snapshot"
    assert snapshot["share_record"]["value"]["delivery_complete_count"] is None
    gone = meaning(SHARE_STATE_TOPIC, *encode_share(ShareStateRecord(key, None)))
    assert gone == {"share_record": {"type": "share_snapshot", **names, "value": None}}


@pytest.mark.parametrize("topic", [GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC])
@pytest.mark.parametrize(("key", "value"), UNKNOWN)
def test_meaning_of_what_is_no_such_record_is_not_told(topic: str, key: bytes | None, value: bytes) -> None:
    assert meaning(topic, key, value) is None


def test_meanings_are_not_looked_for_in_topics_of_clients() -> None:
    assert meanings_in("orders", BytesStyle.TEXT) is None


def test_dump_of_an_internal_topic_shows_meanings_unless_bytes_are_asked_for(tmp_path: Path) -> None:
    records = [
        Record(*consumer.TargetEpochRecord("g", 7).encode(), timestamp=NOW_MS),
        Record(b"\0\x63", b"", timestamp=NOW_MS),
    ]
    path = write_log(tmp_path, build_batch(records), topic=GROUP_METADATA_TOPIC)
    known, unknown = (row.fields for row in rows_of(path, Selection(has_batches=False, has_records=True)))
    assert known["group_record"]["type"] == "consumer_group_target_assignment_metadata"
    assert (known["offset"], "key" in known) == (0, False)
    assert unknown["key"] == "\0c"
    raw = rows_of(path, Selection(has_batches=False, has_records=True, has_meanings=False))
    assert [row.fields["key"] for row in raw] == ["\0\6\0\1g", "\0c"]
