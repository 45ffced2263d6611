from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.log import Log
from wirekafka.log.producer_state import Producers
from wirekafka.log.recovery import Loaded
from wirekafka.log.storage import Folder
from wirekafka.log.validation import Origin
from wirekafka.pending import finish
from wirekafka.tests.log.logs import (
    DEFAULTS,
    NAME,
    NOW_MS,
    World,
    all_records,
    append,
    batch,
    check_indexes,
    close,
    config_with,
    fill,
    idempotent,
    read,
)
from wirekafka.wire.batch import read_batch_header

SMALL = config_with(segment_bytes=2000, index_interval_bytes=300)
ONE = 69 + 1
"""The size of a batch of one record with a one-byte key and a one-byte value."""


def test_append_first_batch_gets_offset_zero(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)

    info = append(log, batch(b"a", b"b"))

    assert (info.base_offset, info.last_offset, info.log_start_offset, info.is_duplicate) == (0, 1, 0, False)
    assert info.log_append_time_ms is None
    assert log.reader.log_end_offset == 2


def test_append_writes_offset_and_leader_epoch_into_the_batch(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, b"a")

    append(log, b"b", leader_epoch=3)

    header = read_batch_header(read(log, 1))
    assert (header.base_offset, header.partition_leader_epoch) == (1, 3)


def test_append_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_bytes=500))

    with pytest.raises(KafkaError) as caught:
        append(log, bytes(600))

    assert caught.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.reader.log_end_offset == 0


def test_append_with_log_append_time_says_which(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(message_timestamp_type="LogAppendTime"))

    info = append(log, idempotent(0, timestamp=5))
    again = append(log, idempotent(0, timestamp=5), now_ms=NOW_MS + 9)

    assert info.log_append_time_ms == NOW_MS
    assert again.log_append_time_ms == NOW_MS
    assert again.is_duplicate


def test_append_to_a_closed_log_is_refused(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    log.reader.close()

    with pytest.raises(KafkaError) as caught:
        append(log, b"a")

    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


# Rolling


def test_roll_by_size_keeps_every_segment_within_it(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)

    fill(log, 100)

    assert len(log.reader.segments) > 5
    assert all(segment.size <= 2000 for segment in log.reader.segments)
    assert [record.offset for record in all_records(log)] == list(range(100))
    check_indexes(log)


def test_roll_by_time_goes_by_record_timestamps(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_ms=1000))
    append(log, batch(b"a", timestamp=NOW_MS))
    append(log, batch(b"b", timestamp=NOW_MS + 1000))

    assert len(log.reader.segments) == 1
    append(log, batch(b"c", timestamp=NOW_MS + 1001))

    assert [segment.base_offset for segment in log.reader.segments] == [0, 2]


def test_roll_by_time_comes_earlier_by_the_jitter(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_ms=1000, segment_jitter_ms=600))
    append(log, batch(b"a", timestamp=NOW_MS))

    append(log, batch(b"b", timestamp=NOW_MS + 701))

    assert len(log.reader.segments) == 2


def test_roll_by_time_without_timestamps_goes_by_the_segments_age(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, config_with(segment_ms=1000))
    append(log, batch(b"a", timestamp=-1))

    append(log, batch(b"b", timestamp=-1), now_ms=NOW_MS + 1000)
    append(log, batch(b"c", timestamp=-1), now_ms=NOW_MS + 1001)

    assert [segment.base_offset for segment in log.reader.segments] == [0, 2]


def test_roll_when_the_offset_index_is_full(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_index_bytes=48, index_interval_bytes=0))

    fill(log, 20)

    assert len(log.reader.segments) > 3
    check_indexes(log)


def test_roll_comes_with_the_entry_that_does_not_fit_into_the_offset_index(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_index_bytes=40, index_interval_bytes=0))

    for _ in range(20):
        append(log, batch(b"a"))

    assert log.reader.segments.items[0].offset_index.count == 5, "of 8 bytes each"


def test_roll_when_relative_offsets_would_not_fit_in_31_bits(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, b"a")
    log.reader.log_end_offset = 0x7FFF_FFFF

    append(log, b"b")
    append(log, b"c")

    assert [segment.base_offset for segment in log.reader.segments] == [0, 0x8000_0000]


def test_roll_of_an_empty_segment_does_nothing(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)

    log.roll()

    assert len(log.reader.segments) == 1


def test_roll_asks_for_a_flush_that_moves_the_recovery_point(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path)
    append(log, b"a")

    log.roll()
    assert world.flushes == [log.reader]
    flush = log.flusher.prepare()
    append(log, b"b")
    flush.run()
    log.flusher.complete(flush)

    assert log.flusher.recovery_point == 1
    assert not log.reader.segments.active.contents.is_synced


def test_roll_preallocated_segment_is_cut_to_its_size(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_bytes=4096, preallocate=True))
    log.roll()
    append(log, b"a")
    log.roll()
    assert (tmp_path / "00000000000000000001.log").stat().st_size == 4096

    append(log, b"b")
    log.roll()

    assert (tmp_path / "00000000000000000001.log").stat().st_size == len(read(log, 1, end_offset=2))


# Leader epochs


def test_end_offset_for_epoch_is_where_the_next_one_begins(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, b"a", leader_epoch=1)
    append(log, b"b", leader_epoch=1)
    append(log, b"c", leader_epoch=4)

    assert log.reader.end_offset_for_epoch(0) == (0, 0)
    assert log.reader.end_offset_for_epoch(1) == (1, 2)
    assert log.reader.end_offset_for_epoch(3) == (1, 2)
    assert log.reader.end_offset_for_epoch(4) == (4, 3)
    assert log.reader.end_offset_for_epoch(5) is None


# Getting smaller


def test_delete_records_moves_the_start_and_drops_whole_segments(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, SMALL)
    fill(log, 50)

    log.retention.delete_records(40)
    world.pass_delays()

    assert log.reader.log_start_offset == 40
    assert log.reader.segments.items[0].base_offset <= 40 < log.reader.segments.items[1].base_offset
    assert [record.offset for record in all_records(log)] == list(range(40, 50))
    assert not (tmp_path / "00000000000000000000.log").exists()


def test_delete_records_beyond_the_high_watermark_is_refused(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 3)
    log.reader.high_watermark = 2

    with pytest.raises(KafkaError) as caught:
        log.retention.delete_records(3)

    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_delete_records_up_to_the_end_leaves_nothing_to_read(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 3)

    log.retention.delete_records(3)

    assert (log.reader.log_start_offset, log.reader.log_end_offset) == (3, 3)
    assert read(log, 3) == b""
    append(log, b"next")
    assert [record.offset for record in all_records(log)] == [3]


def test_delete_old_segments_by_time_goes_by_record_timestamps(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, config_with(segment_bytes=2000, retention_ms=1000))
    fill(log, 50)
    first = log.reader.segments.items[0]

    assert log.retention.delete_old_segments(first.max_timestamp + 1000) == 0
    assert log.retention.delete_old_segments(first.max_timestamp + 1001) == 1
    assert log.reader.log_start_offset == log.reader.segments.items[0].base_offset > 0


def test_delete_old_segments_takes_the_active_one_too_once_it_is_old(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(retention_ms=1000))
    fill(log, 5)

    assert log.retention.delete_old_segments(NOW_MS + 5000) == 1

    assert (log.reader.log_start_offset, log.reader.log_end_offset, log.reader.size_bytes) == (5, 5, 0)


def test_delete_old_segments_by_size_keeps_at_least_that_much(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_bytes=2000, retention_bytes=5000))
    fill(log, 50)

    log.retention.delete_old_segments(NOW_MS)

    assert 5000 <= log.reader.size_bytes < 7000


def test_delete_old_segments_never_takes_uncommitted_records(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_bytes=2000, retention_ms=0))
    fill(log, 50)
    log.reader.high_watermark = 3

    assert log.retention.delete_old_segments(NOW_MS + 5000) == 0


def test_delete_old_segments_of_a_compacted_topic_keeps_all(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_bytes=2000, retention_ms=0, cleanup_policy=frozenset({"compact"})))
    fill(log, 50)

    assert log.retention.delete_old_segments(NOW_MS + 5000) == 0


def test_truncate_drops_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    fill(log, 30)
    append(log, batch(b"a", b"b", b"c"))

    log.truncate_to(31)

    assert log.reader.log_end_offset == 30
    assert [record.offset for record in all_records(log)] == list(range(30))
    check_indexes(log)


def test_truncate_into_a_sealed_segment_makes_it_the_active_one(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    fill(log, 60)

    log.truncate_to(5)
    fill(log, 60)

    assert [record.offset for record in all_records(log)] == list(range(65))
    check_indexes(log)


def test_truncate_forgets_epochs_and_producers_of_what_is_gone(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, idempotent(0))
    log.roll()
    append(log, idempotent(1), leader_epoch=1)

    log.truncate_to(1)

    assert log.reader.epochs.latest == 0
    assert not append(log, idempotent(1)).is_duplicate
    assert append(log, idempotent(0)).is_duplicate


# Idempotent producers


def test_duplicate_is_answered_with_its_first_offset(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, b"a")
    first = append(log, idempotent(0, 3))
    append(log, idempotent(3))

    again = append(log, idempotent(0, 3))

    assert (again.base_offset, again.last_offset, again.is_duplicate) == (first.base_offset, 3, True)
    assert log.reader.log_end_offset == 5


def test_duplicate_window_holds_five_batches(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    for sequence in range(6):
        append(log, idempotent(sequence))

    assert all(append(log, idempotent(sequence)).is_duplicate for sequence in range(1, 6))
    with pytest.raises(KafkaError) as caught:
        append(log, idempotent(0))
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_gap_in_sequence_numbers_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, idempotent(0))

    with pytest.raises(KafkaError) as caught:
        append(log, idempotent(2))

    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, idempotent(1)).base_offset == 1


def test_coordinator_batches_need_no_sequence_numbers(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, idempotent(0))

    info = log.append(idempotent(7), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)

    assert info.base_offset == 1


def test_producers_come_back_after_a_clean_restart_and_after_a_crash(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path)
    append(log, idempotent(0))
    log.roll()
    append(log, idempotent(1))
    close(log)

    log = world.open_log(tmp_path, is_clean=True)
    assert append(log, idempotent(1)).is_duplicate
    append(log, idempotent(2))
    log = world.open_log(tmp_path)
    assert append(log, idempotent(2)).is_duplicate
    assert append(log, idempotent(3)).base_offset == 3


def test_expire_producers_lets_them_begin_anywhere(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, idempotent(0))

    assert finish(log.reader.producers.expire(NOW_MS + 999, 1000)) == 0
    assert finish(log.reader.producers.expire(NOW_MS + 1000, 1000)) == 1
    assert append(log, idempotent(50)).base_offset == 1


# Reaching the disk


def test_flush_messages_flushes_as_often_as_asked(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(flush_messages=3))

    points = []
    for _ in range(7):
        append(log, b"a")
        points.append(log.flusher.recovery_point)

    assert points == [0, 0, 3, 3, 3, 6, 6]


def test_flush_ms_asks_for_a_flush_in_time(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, config_with(flush_ms=500))
    append(log, b"a")
    append(log, b"b")

    assert [delay for delay, _ in world.later] == [500]
    world.pass_delays()

    assert world.flushes == [log.reader]


def test_files_open_are_bounded_by_the_pool(tmp_path: Path) -> None:
    world = World()
    world.pool.limit = 3
    log = world.open_log(tmp_path, SMALL)
    fill(log, 100)

    assert len(all_records(log)) == 100
    assert len(world.pool) <= 3
    assert sum(segment.handle is not None for segment in log.reader.segments) <= 3


def test_log_opened_after_a_clean_stop_adds_to_its_indexes(tmp_path: Path) -> None:
    world, config = World(), config_with(index_interval_bytes=100)
    log = world.open_log(tmp_path, config)
    fill(log, 4)
    close(log)

    log = world.open_log(tmp_path, config, is_clean=True, recovery_point=4)
    entry_count = log.reader.segments.active.offset_index.count
    fill(log, 4, timestamp=NOW_MS + 100)

    assert (entry_count, log.reader.segments.active.offset_index.count) == (3, 7)
    check_indexes(log)


def test_offline_log_has_the_offsets_of_the_checkpoints_and_touches_no_file(tmp_path: Path) -> None:
    world, path = World(), tmp_path / "missing"
    left = Loaded(
        [],
        LeaderEpochs(),
        Producers(0),
        log_start_offset=3,
        log_end_offset=7,
        high_watermark=7,
        recovery_point=7,
        topic_id=b"t" * 16,
    )

    log = Log.offline(NAME, Folder(str(path), world.storage), DEFAULTS, world.services(), left, "the disk failed")

    reader = log.reader
    assert (reader.log_start_offset, reader.log_end_offset, reader.topic_id, reader.size_bytes) == (3, 7, b"t" * 16, 0)
    assert not path.exists()
    for use in (lambda: read(log, 3), lambda: append(log, b"a"), lambda: log.retention.delete_records(4)):
        with pytest.raises(KafkaError) as caught:
            use()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_delete_records_requests_a_checkpoint_and_stores_the_leader_epochs_that_are_left(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path)
    for leader_epoch in (0, 0, 3, 3):
        append(log, b"a", leader_epoch=leader_epoch)

    log.retention.delete_records(3)

    assert len(world.moved_starts) == 1
    assert LeaderEpochs.read((tmp_path / EPOCHS_FILE).read_bytes()).entries == ((3, 3),)
