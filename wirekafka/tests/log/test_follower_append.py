"""A follower's append of the leader's batches, and the offsets that it takes over from the leader."""

from __future__ import annotations

import errno
import struct
import zlib
from pathlib import Path

import pytest

from wirekafka.config import LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log import replicated as replicated_module
from wirekafka.log.epochs import EpochStart, LeaderEpochs
from wirekafka.log.log import Log
from wirekafka.log.replicated import replicated_batches
from wirekafka.log.storage import Bytes, Storage
from wirekafka.pending import finish
from wirekafka.tests.log.logs import (
    DEFAULTS,
    NOW_MS,
    World,
    all_records,
    append,
    batch,
    check_indexes,
    close,
    config_with,
    end_transaction,
    fill,
    idempotent,
    read,
    transactional,
)
from wirekafka.wire.batch import BatchHeader, write_offsets

CONFIG = config_with(segment_bytes=300, index_interval_bytes=100)
LEADER_EPOCH = 9


def grown(log: Log, count: int = 12) -> None:
    for number in range(count):
        append(log, idempotent(number), leader_epoch=number // 4)


def replicated(leader: Log, offset: int = 0) -> memoryview:
    return memoryview(read(leader, offset))


def follow(follower: Log, records: bytes | bytearray | memoryview, *, leader_epoch: int = LEADER_EPOCH) -> int:
    return finish(follower.append_as_follower(memoryview(records), leader_epoch=leader_epoch))


def pair(tmp_path: Path, config: LogConfig = DEFAULTS) -> tuple[Log, Log]:
    """Returns the log of a leader, in one segment, and an empty log of a follower."""
    return World().open_log(tmp_path / "leader"), World().open_log(tmp_path / "follower", config)


def at(base_offset: int, records: memoryview, *, leader_epoch: int = 0) -> bytes:
    """Returns a batch as a leader stores it at an offset."""
    data = bytearray(records)
    write_offsets(data, 0, BatchHeader(data), base_offset, leader_epoch)
    return bytes(data)


def message(offset: int, magic: int, value: bytes) -> bytes:
    """Returns a message of an old format as a leader stores it."""
    timestamp = struct.pack(">q", NOW_MS + offset) if magic else b""
    body = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def refusal(follower: Log, records: bytes | bytearray | memoryview) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        follow(follower, records)
    return caught.value.code


class CountingStorage(Storage):
    """A disk that counts the writes of batches."""

    __slots__ = ("batch_writes",)

    def __init__(self) -> None:
        self.batch_writes = 0

    def write(self, fd: int, data: Bytes, position: int) -> None:
        self.batch_writes += len(data) >= 61 and data[16] == 2
        super().write(fd, data, position)


# What is stored


def test_follower_gets_the_leaders_bytes_offsets_and_epochs(tmp_path: Path) -> None:
    leader, follower = pair(tmp_path, CONFIG)
    grown(leader)

    assert follow(follower, replicated(leader)) == 12

    assert b"".join(follower.reader.batches()) == b"".join(leader.reader.batches())
    assert follower.reader.epochs.entries == leader.reader.epochs.entries
    assert follower.reader.high_watermark == 0
    assert len(follower.reader.segments) > 1
    check_indexes(follower)
    leader.roll()
    assert append(follower, idempotent(11)).is_duplicate


def test_follower_writes_many_batches_with_one_write_for_each_segment(tmp_path: Path) -> None:
    leader = World().open_log(tmp_path / "leader")
    grown(leader, 40)
    storage = CountingStorage()
    follower = World(storage=storage).open_log(tmp_path / "follower", config_with(segment_bytes=1000, index_interval_bytes=100))

    follow(follower, replicated(leader))

    assert storage.batch_writes == len(follower.reader.segments) > 2
    assert [record.offset for record in all_records(follower)] == list(range(40))
    check_indexes(follower)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_follower_and_leader_roll_at_the_same_offsets(tmp_path: Path, count: int) -> None:
    """The rules of segment.bytes, segment.ms and the size of indexes hold for each batch, however many arrive at once."""
    config = config_with(segment_bytes=900, segment_ms=50, index_interval_bytes=60, segment_index_bytes=60)
    leader, follower = World().open_log(tmp_path / "leader", config), World().open_log(tmp_path / "follower", config)
    for number in range(60):
        append(leader, batch(bytes(number % 7), timestamp=NOW_MS + 3 * number + 40 * (number % 20 == 0)))
    batches = [bytes(data) for data in leader.reader.batches()]

    for number in range(0, 60, count):
        follow(follower, b"".join(batches[number : number + count]))

    assert [each.base_offset for each in follower.reader.segments] == [each.base_offset for each in leader.reader.segments]
    check_indexes(follower)


@pytest.mark.parametrize("magic", [0, 1])
def test_follower_keeps_message_sets_of_old_formats_byte_for_byte(tmp_path: Path, magic: int) -> None:
    follower = World().open_log(tmp_path)
    records = b"".join(message(offset, magic, b"v" * offset) for offset in (0, 1, 2, 5))

    assert follow(follower, records + message(6, magic, b"torn")[:-1]) == 6

    assert read(follower, 0) == records
    follower.reader.close()
    again = World().open_log(tmp_path)
    assert again.reader.log_end_offset == 6


def test_follower_drops_its_leader_epochs_for_a_message_of_an_old_format(tmp_path: Path) -> None:
    """Otherwise it would truncate by epochs of which the newest records have none."""
    follower = World().open_log(tmp_path)
    follow(follower, at(0, batch(b"a"), leader_epoch=3))

    follow(follower, message(1, 1, b"b"))

    assert follower.reader.epochs.entries == ()
    follower.reader.close()
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n0\n"


def test_follower_keeps_a_gap_that_compaction_has_made_in_the_leaders_log(tmp_path: Path) -> None:
    leader, follower = pair(tmp_path)
    grown(leader, 4)
    whole = replicated(leader)
    size = len(whole) // 4

    follow(follower, bytes(whole[:size]) + bytes(whole[3 * size :]))

    assert [record.offset for record in all_records(follower)] == [0, 3]


@pytest.mark.parametrize("has_first", [True, False])
def test_follower_begins_a_segment_at_a_batch_whose_offset_does_not_fit_into_the_active_one(
    tmp_path: Path, has_first: bool
) -> None:
    follower = World().open_log(tmp_path)
    far_offset = 5_000_000_000
    first = at(0, batch(b"a")) if has_first else b""

    follow(follower, first + at(far_offset, idempotent(0)))

    assert [each.base_offset for each in follower.reader.segments] == [0, far_offset]
    assert [record.offset for record in all_records(follower)] == [0] * has_first + [far_offset]
    follower.reader.close()
    again = World().open_log(tmp_path)
    assert again.reader.log_end_offset == far_offset + 1
    assert [record.offset for record in all_records(again)] == [0] * has_first + [far_offset]


def test_follower_names_the_snapshot_of_producers_by_the_segment_that_begins_after_a_gap(tmp_path: Path) -> None:
    follower = World().open_log(tmp_path)

    follow(follower, at(0, idempotent(0)) + at(5_000_000_000, idempotent(1)))

    assert [path.name for path in tmp_path.glob("*.snapshot")] == ["00000000005000000000.snapshot"]


def test_follower_keeps_a_batch_that_is_larger_than_its_segments(tmp_path: Path) -> None:
    follower = World().open_log(tmp_path, CONFIG)

    follow(follower, at(0, batch(bytes(1000))) + at(1, batch(b"b")))

    assert [each.base_offset for each in follower.reader.segments] == [0, 1]


def test_follower_finds_records_by_time_as_the_leader_does(tmp_path: Path) -> None:
    leader, follower = pair(tmp_path, CONFIG)
    fill(leader, 30)

    follow(follower, replicated(leader))

    for timestamp in (NOW_MS, NOW_MS + 7, NOW_MS + 29, None):
        assert follower.reader.offset_for_timestamp(timestamp) == leader.reader.offset_for_timestamp(timestamp)


def test_follower_writes_snapshots_of_producers_where_segments_begin(tmp_path: Path) -> None:
    leader, follower = pair(tmp_path, CONFIG)
    grown(leader)

    follow(follower, replicated(leader))

    bases = [segment.base_offset for segment in follower.reader.segments][1:]
    assert sorted(int(path.name[:20]) for path in (tmp_path / "follower").glob("*.snapshot")) == bases


def test_follower_takes_sequence_numbers_that_a_leader_would_refuse(tmp_path: Path) -> None:
    """The leader may have forgotten the producer, for example because its records were deleted."""
    follower = World().open_log(tmp_path)

    follow(follower, at(0, idempotent(0)) + at(1, idempotent(17)) + at(2, idempotent(3)))

    assert follower.reader.log_end_offset == 3


# What is refused


def test_follower_leaves_a_torn_batch_out(tmp_path: Path) -> None:
    leader, follower = pair(tmp_path)
    grown(leader, 3)

    assert follow(follower, replicated(leader)[:-1]) == 2


@pytest.mark.parametrize("left_bytes", range(1, 62))
def test_follower_leaves_any_part_of_a_header_out(tmp_path: Path, left_bytes: int) -> None:
    follower = World().open_log(tmp_path)
    first = at(0, batch(b"a"))

    assert follow(follower, first + at(1, batch(b"b"))[:left_bytes]) == 1


def test_follower_refuses_damage_and_appends_nothing(tmp_path: Path) -> None:
    leader, follower = pair(tmp_path)
    grown(leader, 3)
    data = bytearray(replicated(leader))
    data[-1] ^= 1

    assert refusal(follower, data) is ErrorCode.CORRUPT_MESSAGE
    assert follower.reader.log_end_offset == 0


@pytest.mark.parametrize(("position", "value"), [(16, 3), (16, 0xFF), (8, 0xFF), (11, 20)])
def test_follower_refuses_an_impossible_length_or_format(tmp_path: Path, position: int, value: int) -> None:
    """A length that is too small would otherwise look like an incomplete batch, and the follower would fetch it forever."""
    follower = World().open_log(tmp_path)
    data = bytearray(at(0, batch(b"a")))
    data[position] = value
    if position == 11:
        data[8:11] = bytes(3)

    assert refusal(follower, data) is ErrorCode.CORRUPT_MESSAGE


def test_follower_refuses_offsets_that_do_not_ascend(tmp_path: Path) -> None:
    follower = World().open_log(tmp_path)

    assert refusal(follower, at(0, batch(b"a", b"b")) + at(1, batch(b"c"))) is ErrorCode.CORRUPT_MESSAGE
    assert follower.reader.log_end_offset == 0


def test_follower_refuses_offsets_that_it_has(tmp_path: Path) -> None:
    leader, follower = pair(tmp_path)
    grown(leader, 3)
    follow(follower, replicated(leader))

    assert refusal(follower, replicated(leader, 2)) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert follower.reader.log_end_offset == 3


def test_follower_drops_batches_of_a_later_epoch_than_that_of_its_fetch(tmp_path: Path) -> None:
    """A former leader may send records that it got as a follower of the next leader (KAFKA-18723)."""
    follower = World().open_log(tmp_path)
    records = at(0, batch(b"a"), leader_epoch=2) + at(1, batch(b"b"), leader_epoch=3) + at(2, batch(b"c"), leader_epoch=2)

    assert follow(follower, records, leader_epoch=2) == 1
    assert follower.reader.epochs.entries == ((2, 0),)


# Steps


def test_batches_come_in_portions_that_the_loop_can_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_module, "PORTION_BATCHES", 3)
    monkeypatch.setattr(replicated_module, "PORTION_BYTES", 1000)
    sizes = [1, 1, 1, 1, 2000, 1, 1]
    records = b"".join(at(offset, batch(bytes(size))) for offset, size in enumerate(sizes))

    portions = list(replicated_batches(memoryview(records), leader_epoch=0, partition="topic-0"))

    assert [[place.base_offset for place in portion] for portion in portions] == [[0, 1, 2], [3, 4], [5, 6]]


def test_log_can_be_read_between_two_steps_of_a_followers_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_module, "PORTION_BATCHES", 2)
    leader, follower = pair(tmp_path)
    grown(leader, 5)

    ends = [follower.reader.log_end_offset for _ in follower.append_as_follower(replicated(leader), leader_epoch=LEADER_EPOCH)]

    assert ends == [2, 4]
    assert follower.reader.log_end_offset == 5


def test_log_that_is_closed_between_two_steps_refuses_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_module, "PORTION_BATCHES", 2)
    leader, follower = pair(tmp_path)
    grown(leader, 5)
    work = follower.append_as_follower(replicated(leader), leader_epoch=LEADER_EPOCH)
    next(work)
    follower.end_appends()

    with pytest.raises(KafkaError):
        finish(work)
    assert follower.reader.log_end_offset == 2


class FullStorage(Storage):
    """A disk with room for some batches."""

    __slots__ = ("room",)

    def __init__(self) -> None:
        self.room = 1

    def write(self, fd: int, data: Bytes, position: int) -> None:
        if len(data) >= 61 and data[16] == 2:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room -= 1
        super().write(fd, data, position)


def test_append_that_the_disk_refuses_leaves_no_leader_epoch_after_the_log_end(tmp_path: Path) -> None:
    leader, follower = World().open_log(tmp_path / "leader"), World(storage=FullStorage()).open_log(tmp_path / "follower", CONFIG)
    grown(leader)

    assert refusal(follower, replicated(leader)) == ErrorCode.KAFKA_STORAGE_ERROR

    assert 0 < follower.reader.log_end_offset <= 4
    assert follower.reader.epochs.entries == (EpochStart(0, 0),)
    assert LeaderEpochs.read((tmp_path / "follower" / "leader-epoch-checkpoint").read_bytes()).entries == (EpochStart(0, 0),)


# The first batch


def test_empty_log_begins_at_the_batch_that_holds_its_log_start_offset(tmp_path: Path) -> None:
    """DeleteRecords may move the leader's log start offset into a batch, from which a new follower then fetches."""
    leader, follower = pair(tmp_path)
    append(leader, batch(b"a", b"b", b"c"))
    leader.retention.delete_records(2)
    follower.truncate_fully_and_start_at(2)

    assert follow(follower, replicated(leader, 2)) == 3
    follower.adopt_leader_offsets(high_watermark=3, log_start_offset=2)

    assert [segment.base_offset for segment in follower.reader.segments] == [0]
    assert (follower.reader.log_start_offset, follower.reader.high_watermark) == (2, 3)
    assert [record.offset for record in all_records(follower)] == [2]


def test_empty_log_refuses_a_batch_that_ends_before_it(tmp_path: Path) -> None:
    follower = World().open_log(tmp_path)
    follower.truncate_fully_and_start_at(10)

    assert refusal(follower, at(8, batch(b"a", b"b"))) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert follower.reader.log_end_offset == 10


# The leader's offsets


def test_follower_takes_the_leaders_high_watermark_up_to_its_own_end(tmp_path: Path) -> None:
    follower = World().open_log(tmp_path)
    follow(follower, at(0, batch(b"a", b"b", b"c")))

    for leaders, own in ((2, 2), (9, 3), (1, 3)):
        follower.adopt_leader_offsets(high_watermark=leaders, log_start_offset=0)
        assert follower.reader.high_watermark == own


def test_follower_takes_the_leaders_log_start_offset_and_deletes_what_ends_before_it(tmp_path: Path) -> None:
    world = World()
    leader, follower = World().open_log(tmp_path / "leader"), world.open_log(tmp_path / "follower", CONFIG)
    grown(leader)
    follow(follower, replicated(leader))

    follower.adopt_leader_offsets(high_watermark=12, log_start_offset=7)

    assert follower.reader.log_start_offset == 7
    assert follower.reader.segments.items[0].base_offset > 0
    assert world.moved_starts


def test_log_start_offset_after_what_is_committed_is_refused(tmp_path: Path) -> None:
    follower = World().open_log(tmp_path)
    follow(follower, at(0, batch(b"a", b"b", b"c")))

    with pytest.raises(KafkaError) as caught:
        follower.adopt_leader_offsets(high_watermark=1, log_start_offset=2)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


# Transactions


def test_follower_has_an_aborted_transaction_stable_once_the_high_watermark_passes_its_marker(tmp_path: Path) -> None:
    leader, follower = pair(tmp_path)
    append(leader, transactional(0))
    end_transaction(leader, is_commit=False)

    follow(follower, replicated(leader))

    assert follower.reader.last_stable_offset == 0
    follower.reader.advance_high_watermark(1)
    assert follower.reader.last_stable_offset == 0
    follower.reader.advance_high_watermark(2)
    assert follower.reader.last_stable_offset == 2
    assert follower.reader.aborted_transactions(0, 2) == leader.reader.aborted_transactions(0, 2)


def test_last_stable_offset_waits_for_the_marker_of_the_longest_of_several_transactions(tmp_path: Path) -> None:
    leader, follower = pair(tmp_path)
    append(leader, transactional(0, producer_id=1))  # offset 0
    append(leader, transactional(0, producer_id=2))  # offset 1
    end_transaction(leader, 2)  # offset 2
    end_transaction(leader, 1)  # offset 3
    append(leader, transactional(0, producer_id=3))  # offset 4
    end_transaction(leader, 3)  # offset 5
    follow(follower, replicated(leader))

    stable_offsets = []
    for high_watermark in range(1, 7):
        follower.adopt_leader_offsets(high_watermark=high_watermark, log_start_offset=0)
        stable_offsets.append(follower.reader.last_stable_offset)

    assert stable_offsets == [0, 0, 0, 4, 4, 6]


def test_marker_that_was_not_committed_at_a_crash_is_not_stable_after_it(tmp_path: Path) -> None:
    leader, _ = pair(tmp_path)
    append(leader, transactional(0))
    end_transaction(leader)
    follower = World().open_log(tmp_path / "follower")
    follow(follower, replicated(leader))
    follower.reader.close()

    again = World().open_log(tmp_path / "follower", high_watermark=1)

    assert (again.reader.high_watermark, again.reader.last_stable_offset) == (1, 0)
    again.reader.advance_high_watermark(2)
    assert again.reader.last_stable_offset == 2


@pytest.mark.parametrize(("stored", "expected"), [(None, 12), (0, 4), (7, 7), (99, 12)])
def test_high_watermark_of_a_start_is_the_stored_one_within_the_log(tmp_path: Path, stored: int | None, expected: int) -> None:
    log = World().open_log(tmp_path)
    grown(log)
    close(log)

    again = World().open_log(tmp_path, is_clean=True, high_watermark=stored, log_start_offset=4)

    assert again.reader.high_watermark == expected
