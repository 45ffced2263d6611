import struct

import pytest

from wirekafka.coordinator.groups.consumer.member import ClassicMembership, ConsumerMember, MemberState, ResolvedRegex
from wirekafka.coordinator.groups.consumer.records import (
    CONSUMER_DECODERS,
    ConsumerRecord,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    PartitionMetadataRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from wirekafka.coordinator.groups.records import decode
from wirekafka.errors import ProtocolError

A = b"a" * 16
SAID = ConsumerMember(
    "m",
    instance_id="i",
    rack_id="r",
    rebalance_timeout_ms=300_000,
    client_id="rdkafka",
    client_host="/127.0.0.1",
    subscribed_topic_names=frozenset({"both"}),
    subscribed_topic_regex="b.*",
    server_assignor="range",
)
HAS = ConsumerMember("m", 3, 2, MemberState.UNREVOKED_PARTITIONS, assigned={A: {0: 3, 2: 1}}, pending_revocation={A: {1: 2}})


@pytest.mark.parametrize(
    "record",
    [
        GroupEpochRecord("g", 3, -5),
        GroupEpochRecord("g", None),
        PartitionMetadataRecord("g"),
        MemberRecord("g", "m", SAID),
        MemberRecord("g", "m", ConsumerMember("m", classic=ClassicMembership(10, [("range", b"x"), ("sticky", b"")]))),
        MemberRecord("g", "m", None),
        TargetEpochRecord("g", 3, 77),
        TargetEpochRecord("g", None),
        TargetRecord("g", "m", {A: frozenset({0, 2})}),
        TargetRecord("g", "m", {}),
        TargetRecord("g", "m", None),
        CurrentRecord("g", "m", HAS),
        CurrentRecord("g", "m", None),
        RegexRecord("g", "b.*", ResolvedRegex(frozenset({"both", "b"}), 3, 4)),
        RegexRecord("g", "b.*", None),
    ],
)
def test_record_that_is_read_is_what_was_written(record: ConsumerRecord) -> None:
    assert decode(*record.encode(), CONSUMER_DECODERS) == record


def test_member_is_written_as_apache_kafka_writes_it() -> None:
    # As Apache Kafka 4.3.1 wrote it for librdkafka; the last five bytes are the null of a tagged structure.
    value = b"\0\0\2i\0\x08rdkafka\x0b/127.0.0.1\2\5both\1\0\4\x93\xe0\0\1\0\1\0"
    said = ConsumerMember(
        "m",
        instance_id="i",
        rebalance_timeout_ms=300_000,
        client_id="rdkafka",
        client_host="/127.0.0.1",
        subscribed_topic_names=frozenset({"both"}),
    )
    assert MemberRecord("g", "m", said).encode() == (b"\0\5\0\1g\0\1m", value)
    assert decode(b"\0\5\0\1g\0\1m", value, CONSUMER_DECODERS) == MemberRecord("g", "m", said)


def test_classic_member_is_written_as_apache_kafka_writes_it() -> None:
    metadata = b"\0\0\0\0\0\1\0\4both\0\0\0\0"
    value = (
        b"\0\0\0\0\x14kafka-python-3.0.12\x0b/127.0.0.1\2\5both\1\0\4\x93\xe0\0\1\0\x1f\1\0\0\x17p\2\6range\x11"
        + b"\0\0\0\0\0\1\0\4both\0\0\0\0\0\0"
    )
    said = ConsumerMember(
        "m",
        rebalance_timeout_ms=300_000,
        client_id="kafka-python-3.0.12",
        client_host="/127.0.0.1",
        subscribed_topic_names=frozenset({"both"}),
        classic=ClassicMembership(6000, [("range", metadata)]),
    )
    assert MemberRecord("g", "m", said).encode()[1] == value


@pytest.mark.parametrize(("member_epoch", "epoch"), [(5, 5), (-2, 0)])
def test_partitions_without_epochs_were_assigned_at_the_members_own(member_epoch: int, epoch: int) -> None:
    value = b"\0\0" + struct.pack(">iib", member_epoch, 4, 0) + b"\2" + A + b"\2\0\0\0\1\0" + b"\1" + b"\0"
    record = decode(b"\0\x08\0\1g\0\1m", value, CONSUMER_DECODERS)
    assert isinstance(record, CurrentRecord)
    assert record.member is not None
    assert record.member.assigned == {A: {1: epoch}}


def test_state_of_a_later_release_is_unknown() -> None:
    value = b"\0\0" + b"\0\0\0\5\0\0\0\4\x09" + b"\1\1\0"
    record = decode(b"\0\x08\0\1g\0\1m", value, CONSUMER_DECODERS)
    assert isinstance(record, CurrentRecord)
    assert record.member is not None
    assert record.member.state is MemberState.UNKNOWN


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\1", b"\0\0\0"])
def test_value_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(b"\0\3\0\1g", value, CONSUMER_DECODERS)
