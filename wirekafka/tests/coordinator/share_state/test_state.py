import pytest

from wirekafka.coordinator.share_state.batches import RecordState, StateBatch, StateChange
from wirekafka.coordinator.share_state.records import (
    ShareKey,
    ShareSnapshotValue,
    ShareStateRecord,
    ShareUpdateValue,
    decode,
    encode,
    from_values,
    to_values,
)
from wirekafka.coordinator.share_state.state import EXAMINED_AT_ONCE, ShareStates, combine
from wirekafka.errors import ProtocolError
from wirekafka.names import format_topic_id
from wirekafka.pending import finish

TOPIC_ID = bytes(range(16))
KEY = ShareKey("g", TOPIC_ID, 3)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED


def batch(first: int, last: int, state: RecordState = ACKNOWLEDGED, count: int = 1) -> StateBatch:
    return StateBatch(first, last, state, count)


@pytest.mark.parametrize(
    ("old", "new", "combined"),
    [
        ([], [batch(0, 3)], [batch(0, 3)]),
        ([batch(0, 3)], [batch(4, 6)], [batch(0, 6)]),
        ([batch(0, 9, AVAILABLE)], [batch(3, 5)], [batch(0, 2, AVAILABLE), batch(3, 5), batch(6, 9, AVAILABLE)]),
        (
            [batch(0, 4, AVAILABLE), batch(6, 9, AVAILABLE)],
            [batch(2, 7)],
            [batch(0, 1, AVAILABLE), batch(2, 7), batch(8, 9, AVAILABLE)],
        ),
        ([batch(0, 4, AVAILABLE)], [batch(0, 4, AVAILABLE, 2)], [batch(0, 4, AVAILABLE, 2)]),
        ([batch(3, 4)], [batch(0, 1), batch(6, 7)], [batch(0, 1), batch(3, 4), batch(6, 7)]),
    ],
    ids=["first", "neighbours", "inside", "across", "once more", "around"],
)
def test_newer_state_takes_the_place_of_older(old: list[StateBatch], new: list[StateBatch], combined: list[StateBatch]) -> None:
    assert combine(old, new, 0) == combined


def test_state_before_the_start_is_dropped() -> None:
    assert combine([batch(0, 3)], [batch(5, 9)], 2) == [batch(2, 3), batch(5, 9)]
    assert combine([batch(0, 3)], [batch(5, 9)], 7) == [batch(7, 9)]


def test_snapshot_is_encoded_as_apache_kafka_does() -> None:
    value = ShareSnapshotValue(
        snapshot_epoch=1, state_epoch=2, leader_epoch=3, start_offset=4, delivery_complete_count=5,
        create_timestamp=6, write_timestamp=7,
    )  # fmt: skip
    key, encoded = encode(ShareStateRecord(KEY, value))
    assert key == b"\0\0" + b"\0\1g" + TOPIC_ID + b"\0\0\0\3"
    numbers = b"".join(n.to_bytes(size, "big") for n, size in ((1, 4), (2, 4), (3, 4), (4, 8), (6, 8), (7, 8)))
    assert encoded == b"\0\0" + numbers + b"\1" + b"\1\0\4\0\0\0\5"


def test_update_and_tombstone_are_encoded_as_apache_kafka_does() -> None:
    value = ShareUpdateValue(snapshot_epoch=1, leader_epoch=2, start_offset=3)
    assert encode(ShareStateRecord(KEY, value))[0][:2] == b"\0\1"
    assert encode(ShareStateRecord(KEY, None)) == (b"\0\0" + b"\0\1g" + TOPIC_ID + b"\0\0\0\3", None)


@pytest.mark.parametrize("key", [None, b"", b"\0", b"\0\0\0\5g"])
def test_key_that_is_none_is_refused(key: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode(key, None)


def test_record_of_a_type_to_come_is_passed_over() -> None:
    assert decode(b"\0\7whatever", b"") is None


def test_version_that_is_not_known_is_refused() -> None:
    key, value = encode(ShareStateRecord(KEY, ShareUpdateValue()))
    assert value is not None
    with pytest.raises(ProtocolError):
        decode(key, b"\0\x09" + value[2:])


def test_state_of_records_on_their_way_out_is_that_they_are_gone_and_an_unknown_one_is_refused() -> None:
    values = to_values([batch(0, 1)])
    values[0].delivery_state = 3
    assert from_values(values) == [batch(0, 1, ARCHIVED)]
    values[0].delivery_state = 9
    with pytest.raises(ProtocolError):
        from_values(values)


def test_share_key_is_read_as_it_is_written() -> None:
    assert str(KEY) == f"g:{format_topic_id(TOPIC_ID)}:3"
    assert ShareKey.parse(str(KEY)) == KEY
    assert ShareKey.parse(str(KEY._replace(group_id="a:b"))).group_id == "a:b"
    for text in ("", "g", "g:x:1", f":{format_topic_id(TOPIC_ID)}:1", f"g:{format_topic_id(TOPIC_ID)}:one"):
        with pytest.raises(ValueError):
            ShareKey.parse(text)


def test_snapshot_comes_after_so_many_updates_and_says_the_same() -> None:
    states = ShareStates(updates_per_snapshot=2)
    states.replay(states.initialize(KEY, 9, None, 100))
    assert states.by_key[KEY].start_offset is None
    kinds = []
    for number in range(4):
        record = states.write(KEY, StateChange(0, number + 1, [batch(2 * number, 2 * number)]), 0, 200 + number)
        kinds.append(type(record.value))
        states.replay(record)
    assert kinds == [ShareUpdateValue, ShareUpdateValue, ShareSnapshotValue, ShareUpdateValue]
    state = states.by_key[KEY]
    assert (state.snapshot_epoch, state.state_epoch, state.create_timestamp_ms) == (1, 9, 202)
    assert state.batches == [batch(0, 0), batch(2, 2), batch(4, 4), batch(6, 6)]


def test_state_that_nobody_changes_is_written_whole_once_in_a_while_until_all_has_been() -> None:
    states = ShareStates()
    other = KEY._replace(partition=4)
    states.replay(states.initialize(KEY, 1, 5, 0))
    states.replay(states.initialize(other, 1, 5, 900))
    assert finish(states.cold_keys(1000, 1000)) == [KEY]
    record = states.cold_snapshot(KEY, 1000)
    states.replay(record)
    assert (record.key, states.by_key[KEY].start_offset) == (KEY, 5)
    assert finish(states.cold_keys(1000, 1950)) == [other]
    states.replay(states.cold_snapshot(other, 1950))
    assert finish(states.cold_keys(1000, 99_000)) == []


def test_cold_share_partitions_are_found_in_steps_between_which_they_may_change() -> None:
    states = ShareStates()
    keys = [KEY._replace(partition=number) for number in range(EXAMINED_AT_ONCE + 2)]
    for key in keys:
        states.replay(states.initialize(key, 1, 5, 0))
    work = states.cold_keys(1000, 1000)
    next(work)
    states.replay(ShareStateRecord(keys[0], None))
    states.replay(states.initialize(KEY._replace(topic_id=b"?" * 16), 1, 5, 0))
    assert finish(work) == keys


def test_state_set_anew_forgets_what_was() -> None:
    states = ShareStates()
    states.replay(states.initialize(KEY, 1, 5, 0))
    states.replay(states.write(KEY, StateChange(5, 1, [batch(7, 7)]), 0, 0))
    states.replay(states.initialize(KEY, 2, 0, 0))
    state = states.by_key[KEY]
    assert (state.start_offset, state.batches, state.snapshot_epoch) == (0, [], 1)
    states.replay(ShareStateRecord(KEY, None))
    assert states.by_key == {}


def test_update_that_says_nothing_of_the_start_leaves_it() -> None:
    states = ShareStates()
    states.replay(states.initialize(KEY, 1, 5, 0))
    states.replay(
        ShareStateRecord(KEY, ShareUpdateValue(start_offset=-1, leader_epoch=-1, state_batches=to_values([batch(7, 8)])))
    )
    state = states.by_key[KEY]
    assert (state.start_offset, state.leader_epoch, state.batches) == (5, 0, [batch(7, 8)])
