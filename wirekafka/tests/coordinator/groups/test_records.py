import struct

import pytest

from wirekafka.coordinator.groups.records import (
    CommittedOffset,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    OffsetRecord,
    decode,
    encode,
)
from wirekafka.errors import ProtocolError
from wirekafka.wire import codec

OFFSET = CommittedOffset(offset=5, leader_epoch=3, metadata="hi", commit_timestamp_ms=1000)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=7,
    protocol="range",
    leader="m1",
    current_state_timestamp=1234,
    members=[
        MemberMetadata(
            member_id="m1",
            group_instance_id="one",
            client_id="c",
            client_host="/127.0.0.1",
            rebalance_timeout=300,
            session_timeout=100,
            subscription=b"sub",
            assignment=b"assigned",
        )
    ],
)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


@pytest.mark.parametrize("metadata", ["", "hi"])
@pytest.mark.parametrize(("group", "topic"), [("g", "t"), ("group", "t"), ("g", "topic")])
def test_offset_is_written_as_kafka_writes_it(group: str, topic: str, metadata: str) -> None:
    key, value = encode(OffsetRecord(group, topic, 2, CommittedOffset(5, 3, metadata, 1000)))
    assert key == b"\0\1" + text(group) + text(topic) + struct.pack(">i", 2)
    assert value == b"\0\3" + struct.pack(">qi", 5, 3) + text(metadata) + struct.pack(">q", 1000)


def test_offset_with_its_own_expiry_is_written_in_version_1() -> None:
    _, value = encode(OffsetRecord("g", "t", 2, CommittedOffset(5, 3, "hi", 1000, expire_timestamp_ms=2000)))
    assert value == b"\0\1" + struct.pack(">q", 5) + text("hi") + struct.pack(">qq", 1000, 2000)


def test_group_is_written_as_kafka_writes_it() -> None:
    key, value = encode(GroupRecord("g", GROUP))
    member = text("m1") + text("one") + text("c") + text("/127.0.0.1") + struct.pack(">ii", 300, 100)
    member += struct.pack(">i", 3) + b"sub" + struct.pack(">i", 8) + b"assigned"
    assert key == b"\0\2" + text("g")
    head = text("consumer") + struct.pack(">i", 7) + text("range") + text("m1") + struct.pack(">qi", 1234, 1)
    assert value == b"\0\3" + head + member


@pytest.mark.parametrize(
    "record",
    [
        OffsetRecord("g", "t", 2, OFFSET),
        OffsetRecord("g", "t", 2, CommittedOffset(5, None, "", 1000, expire_timestamp_ms=2000)),
        OffsetRecord("g", "t", 2, None),
        GroupRecord("g", GROUP),
        GroupRecord("g", GroupMetadataValue()),
        GroupRecord("g", None),
    ],
)
def test_record_comes_back_as_it_was(record: OffsetRecord | GroupRecord) -> None:
    key, value = encode(record)
    assert decode(key, value) == record


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\0\0" + struct.pack(">q", 5) + text("hi") + struct.pack(">q", 1000), CommittedOffset(5, None, "hi", 1000)),
        (
            b"\0\1" + struct.pack(">q", 5) + text("hi") + struct.pack(">qq", 1000, -1),
            CommittedOffset(5, None, "hi", 1000),
        ),
        (b"\0\2" + struct.pack(">q", 5) + text("hi") + struct.pack(">q", 1000), CommittedOffset(5, None, "hi", 1000)),
        (
            b"\0\4" + struct.pack(">qi", 5, 3) + b"\3hi" + struct.pack(">q", 1000) + b"\1\0\x10" + bytes(range(16)),
            OFFSET,
        ),
    ],
    ids=["0", "1", "2", "4 with a topic id"],
)
def test_offset_of_any_version_is_read(value: bytes, expected: CommittedOffset) -> None:
    key, _ = encode(OffsetRecord("g", "t", 2, None))
    assert decode(key, value) == OffsetRecord("g", "t", 2, expected)


def test_group_of_version_0_is_read_without_what_came_later() -> None:
    member = text("m1") + text("c") + text("/h") + struct.pack(">i", 100) + struct.pack(">ii", 0, 0)
    value = b"\0\0" + text("consumer") + struct.pack(">i", 1) + text("range") + text("m1") + struct.pack(">i", 1) + member
    record = decode(b"\0\2" + text("g"), value)
    assert isinstance(record, GroupRecord)
    assert record.value is not None
    assert record.value.current_state_timestamp == -1
    assert record.value.members[0].rebalance_timeout == -1
    assert record.value.members[0].group_instance_id is None


def test_offset_under_the_key_of_2014_is_read() -> None:
    key, value = encode(OffsetRecord("g", "t", 2, OFFSET))
    assert decode(b"\0\0" + key[2:], value) == OffsetRecord("g", "t", 2, OFFSET)


def test_record_of_another_kind_of_group_is_none() -> None:
    assert decode(b"\0\3" + text("g"), b"\0\0anything") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\3"),
        (b"", b"\0\3"),
        (b"\0\1\0\5g", None),
        (b"\0\2" + text("g"), b"\0\5"),
        (b"\0\2" + text("g"), b"\0"),
        (b"\0\2" + text("g"), b"\0\3\0\x08consumer"),
        (b"\0\2" + text("g"), b"\0\5" + codec.encode(GROUP, 4, True)),
    ],
)
def test_record_that_is_broken_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode(key, value)
