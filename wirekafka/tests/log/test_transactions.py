"""Transactions in one log: what is stable, who may write, and what is aborted, through rolls, retention and starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.log import Log
from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.tests.log.logs import (
    NOW_MS,
    World,
    append,
    batch,
    close,
    config_with,
    end_transaction,
    idempotent,
    read,
    records_of,
    transactional,
)
from wirekafka.wire.batch import BatchHeader

SMALL = config_with(segment_bytes=700, index_interval_bytes=0, segment_index_bytes=4096)


def open_log(path: Path) -> Log:
    return World().open_log(path)


def refusal(log: Log, records: memoryview) -> ErrorCode:
    end_offset = log.log_end_offset
    with pytest.raises(KafkaError) as caught:
        append(log, records)
    assert log.log_end_offset == end_offset
    return caught.value.code


def marker_refusal(log: Log, epoch: int, *, producer_id: int = 7, **fields: Any) -> ErrorCode:
    end_offset = log.log_end_offset
    with pytest.raises(KafkaError) as caught:
        end_transaction(log, producer_id, epoch, **fields)
    assert log.log_end_offset == end_offset
    return caught.value.code


def aborted(log: Log, from_offset: int = 0, to_offset: int | None = None) -> list[tuple[int, int, int, int]]:
    end = log.log_end_offset if to_offset is None else to_offset
    return [tuple(found)[1:] for found in log.aborted_transactions(from_offset, end)]  # type: ignore[misc]


# The last stable offset


def test_log_without_transactions_is_stable_to_its_end(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"a")
    append(log, idempotent(0))

    assert log.last_stable_offset == log.high_watermark == 2


def test_open_transaction_keeps_the_stable_offset_where_it_begins(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"a")
    append(log, transactional(0, 2))
    append(log, b"b")

    assert (log.last_stable_offset, log.high_watermark) == (1, 4)
    assert log.has_open_transaction(7, 0)
    assert not log.has_open_transaction(7, 1)
    assert not log.has_open_transaction(8, 0)


@pytest.mark.parametrize("is_commit", [True, False])
def test_marker_ends_the_transaction(tmp_path: Path, is_commit: bool) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, 2))

    info = end_transaction(log, is_commit=is_commit)

    assert (info.base_offset, info.last_offset, log.last_stable_offset) == (2, 2, 3)
    assert not log.has_open_transaction(7, 0)
    assert aborted(log) == ([] if is_commit else [(7, 0, 2, 3)])


def test_stable_offset_moves_to_the_next_open_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, producer_id=1))
    append(log, transactional(0, producer_id=2))
    append(log, transactional(0, producer_id=3))

    end_transaction(log, 2)
    assert log.last_stable_offset == 0
    end_transaction(log, 1, is_commit=False)
    assert log.last_stable_offset == 2
    end_transaction(log, 3)
    assert log.last_stable_offset == log.high_watermark == 6
    assert aborted(log) == [(1, 0, 4, 2)]


def test_stable_offset_is_never_before_the_log_start(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0))
    append(log, batch(b"a", b"b", b"c"))

    log.delete_records(2)

    assert (log.log_start_offset, log.last_stable_offset, log.high_watermark) == (2, 2, 4)


def test_stable_offset_is_never_behind_the_high_watermark(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(b"a", b"b"))
    append(log, transactional(0))
    log.high_watermark = 1

    assert log.last_stable_offset == 1


def test_second_batch_of_a_transaction_does_not_begin_another(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, 2))
    append(log, transactional(2, 2))

    end_transaction(log, is_commit=False)

    assert aborted(log) == [(7, 0, 4, 5)]


def test_read_up_to_the_stable_offset_leaves_the_open_transaction_out(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    append(log, b"a")
    append(log, transactional(0))
    for _ in range(20):
        append(log, b"b")

    found = records_of(read(log, 0, end_offset=log.last_stable_offset))

    assert [record.offset for record in found] == [0]
    assert read(log, 1, end_offset=log.last_stable_offset) == b""
    assert len(log.segments) > 1


# Who may write


def test_batch_outside_of_the_open_transaction_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0))

    assert refusal(log, idempotent(1)) is ErrorCode.INVALID_TXN_STATE
    end_transaction(log)
    append(log, idempotent(1))


def test_duplicate_within_a_transaction_is_answered_with_its_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, 2))
    append(log, transactional(2))

    info = append(log, transactional(0, 2))

    assert (info.is_duplicate, info.base_offset, log.log_end_offset) == (True, 0, 3)


def test_sequence_goes_on_behind_a_marker_of_the_same_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, 2))
    end_transaction(log)

    assert refusal(log, transactional(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, transactional(2)).base_offset == 3


def test_sequence_begins_anew_behind_a_marker_of_the_next_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, 2))
    end_transaction(log, epoch=1, transaction_version=2)

    assert refusal(log, transactional(2, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(log, transactional(2, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, transactional(0, epoch=1)).base_offset == 3


def test_marker_of_an_older_epoch_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, epoch=5))

    assert marker_refusal(log, 4) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert marker_refusal(log, 4, transaction_version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.has_open_transaction(7, 5)


def test_marker_of_transactions_v2_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, epoch=5))

    assert marker_refusal(log, 5, transaction_version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    end_transaction(log, epoch=6, transaction_version=2)
    assert not log.has_open_transaction(7, 5)


def test_marker_of_transactions_v2_may_be_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, epoch=5))
    end_transaction(log, epoch=6, transaction_version=2, is_commit=False)

    end_transaction(log, epoch=6, transaction_version=2, is_commit=False)

    assert (log.log_end_offset, log.last_stable_offset) == (3, 3)
    assert aborted(log) == [(7, 0, 1, 2)]


def test_marker_of_the_last_epoch_has_no_next_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, epoch=0x7FFF))

    end_transaction(log, epoch=0x7FFF, transaction_version=2)

    assert log.last_stable_offset == 2


def test_marker_of_an_older_coordinator_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0))
    end_transaction(log, coordinator_epoch=3)
    append(log, transactional(1))

    assert marker_refusal(log, 0, coordinator_epoch=2) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    end_transaction(log, coordinator_epoch=3)


def test_marker_for_an_unknown_producer_is_appended_and_fences(tmp_path: Path) -> None:
    log = open_log(tmp_path)

    end_transaction(log, 7, 4, is_commit=False)

    assert (log.log_end_offset, log.last_stable_offset, aborted(log)) == (1, 1, [])
    assert refusal(log, transactional(0, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    append(log, transactional(0, epoch=4))


def test_marker_on_a_topic_with_log_append_time_has_it(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(message_timestamp_type="LogAppendTime"))
    append(log, transactional(0))

    info = end_transaction(log, now_ms=NOW_MS + 5)

    assert info.log_append_time_ms == NOW_MS + 5


def begin(log: Log, sequence: int, *, epoch: int = 0, must_be_zero: bool = False) -> bool:
    header = BatchHeader(transactional(sequence, epoch=epoch))
    return log.producers.begin_transaction(header, must_be_zero=must_be_zero, now_ms=NOW_MS)


def test_first_batch_of_a_transaction_asks_and_the_next_does_not(tmp_path: Path) -> None:
    log = open_log(tmp_path)

    assert begin(log, 0)
    append(log, transactional(0))
    assert not begin(log, 1)
    assert begin(log, 0, epoch=1)
    end_transaction(log)
    assert begin(log, 1)


def test_batch_of_an_older_epoch_is_refused_without_asking(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, epoch=2))

    with pytest.raises(KafkaError) as caught:
        begin(log, 0, epoch=1)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_batch_that_overtakes_the_first_one_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 0)
    begin(log, 5)

    assert refusal(log, transactional(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, transactional(0, 5))
    append(log, transactional(5))


def test_producer_that_is_not_known_may_begin_anywhere_before_transactions_v2(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 5)

    append(log, transactional(5))


def test_producer_that_is_not_known_begins_with_zero_in_transactions_v2(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 5, must_be_zero=True)

    assert refusal(log, transactional(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, transactional(0))


def test_what_a_transaction_may_begin_with_is_forgotten_in_time(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    begin(log, 0)

    log.expire_producers(NOW_MS + 1000, 1000)

    append(log, transactional(5))


def test_open_transaction_does_not_expire(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0))

    assert log.expire_producers(NOW_MS + 5000, 1000) == 0
    end_transaction(log)
    assert log.expire_producers(NOW_MS + 5000, 1000) == 1


# What is aborted


def abort_many(log: Log, count: int) -> list[AbortedTransaction]:
    """Transactions of one record each, every second one aborted; returns those."""
    expected = []
    for number in range(count):
        first_offset = append(log, transactional(number)).base_offset
        is_commit = bool(number % 2)
        last_offset = end_transaction(log, is_commit=is_commit).last_offset
        if not is_commit:
            expected.append(AbortedTransaction(0, 7, first_offset, last_offset, last_offset + 1))
    return expected


def index_files(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("*.txnindex"))


def test_aborted_transactions_are_in_the_index_of_the_markers_segment(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)

    assert len(log.segments) > 3
    assert log.aborted_transactions(0, log.log_end_offset) == expected
    for number, segment in enumerate(log.segments):
        following = log.segments.items[number + 1 : number + 2]
        end_offset = following[0].base_offset if following else log.log_end_offset
        assert all(segment.base_offset <= entry.last_offset < end_offset for entry in segment.transaction_index)
    assert len(index_files(tmp_path)) == sum(bool(segment.transaction_index.count) for segment in log.segments)


def test_aborted_transactions_of_a_range_are_those_that_touch_it(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)

    for start in range(0, log.log_end_offset, 3):
        for end in range(start, log.log_end_offset, 5):
            found = log.aborted_transactions(start, end)
            assert set(found) == {each for each in expected if each.last_offset >= start and each.first_offset < end}


def test_aborted_in_a_read_covers_what_the_read_gives(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)

    for start in range(log.log_end_offset):
        data = read(log, start, 200)
        given = records_of(data)[-1].offset
        found = log.aborted_in_read(start, len(data), log.log_end_offset)
        needed = [each for each in expected if each.last_offset >= start and each.first_offset <= given]
        assert found[: len(needed)] == needed
        assert len(found) <= len(needed) + 2


def test_transaction_that_begins_segments_before_its_marker_is_found_from_the_beginning(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    append(log, transactional(0, producer_id=1))
    for number in range(20):
        append(log, b"%d" % number)
    end_transaction(log, 1, is_commit=False)
    assert len(log.segments) > 2

    assert aborted(log, 0, 1) == [(1, 0, 21, 22)]
    assert [each.producer_id for each in log.aborted_in_read(0, 10, log.last_stable_offset)] == [1]


def test_retention_takes_the_index_with_the_segment(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, SMALL)
    abort_many(log, 20)
    before = index_files(tmp_path)

    log.delete_records(log.segments.items[2].base_offset)
    world.pass_delays()
    world.pass_delays()

    assert index_files(tmp_path) == [name for name in before if int(name[:20]) >= log.log_start_offset]


def test_truncation_cuts_the_index(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)

    log.truncate(expected[4].last_offset)
    log.high_watermark = log.log_end_offset

    assert log.aborted_transactions(0, log.log_end_offset) == expected[:4]
    assert log.last_stable_offset == expected[4].first_offset
    end_transaction(log, is_commit=False)
    assert log.aborted_transactions(0, log.log_end_offset) == expected[:5]


# Coming back


def reopen(log: Log, path: Path, *, is_clean: bool, recovery_point: int = 0) -> Log:
    config = log.config
    close(log)
    return World().open_log(path, config, is_clean=is_clean, recovery_point=recovery_point)


@pytest.mark.parametrize("is_clean", [True, False])
def test_open_transactions_come_back(tmp_path: Path, is_clean: bool) -> None:
    log = World().open_log(tmp_path, SMALL)
    append(log, transactional(0, producer_id=1))
    append(log, transactional(0, producer_id=2))
    end_transaction(log, 1, coordinator_epoch=9)
    for _ in range(20):
        append(log, b"x")

    log = reopen(log, tmp_path, is_clean=is_clean)

    assert log.last_stable_offset == 1
    assert log.has_open_transaction(2, 0)
    assert not log.has_open_transaction(1, 0)
    end_transaction(log, 2, is_commit=False)
    assert aborted(log) == [(2, 1, 23, 24)]
    assert marker_refusal(log, 0, producer_id=1, coordinator_epoch=8) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize("is_clean", [True, False])
def test_aborted_transactions_come_back(tmp_path: Path, is_clean: bool) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)

    log = reopen(log, tmp_path, is_clean=is_clean)

    assert log.aborted_transactions(0, log.log_end_offset) == expected


def test_recovery_makes_the_indexes_that_it_finds_missing(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)
    files = {name: (tmp_path / name).read_bytes() for name in index_files(tmp_path)}
    close(log)
    for name in files:
        (tmp_path / name).unlink()

    log = World().open_log(tmp_path, SMALL)

    assert log.aborted_transactions(0, log.log_end_offset) == expected
    assert {name: (tmp_path / name).read_bytes() for name in index_files(tmp_path)} == files


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("number", [0, 2, -1])
def test_start_makes_an_index_anew_that_cannot_be_right(tmp_path: Path, is_clean: bool, number: int) -> None:
    log = World().open_log(tmp_path, SMALL)
    expected = abort_many(log, 20)
    end_offset = log.log_end_offset
    name = index_files(tmp_path)[number]
    data = (tmp_path / name).read_bytes()
    close(log)
    (tmp_path / name).write_bytes(data[:-1])

    log = World().open_log(tmp_path, SMALL, is_clean=is_clean, recovery_point=end_offset)

    assert (tmp_path / name).read_bytes() == data
    assert log.aborted_transactions(0, log.log_end_offset) == expected
    assert append(log, transactional(20)).base_offset == end_offset


def test_index_made_anew_knows_transactions_that_began_before_its_segment(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    append(log, transactional(0, producer_id=1))
    for number in range(20):
        append(log, b"%d" % number)
    end_transaction(log, 1, is_commit=False)
    for number in range(20):
        append(log, b"%d" % number)
    [name] = index_files(tmp_path)
    data = (tmp_path / name).read_bytes()
    end_offset = log.log_end_offset
    close(log)
    (tmp_path / name).write_bytes(b"x")

    log = World().open_log(tmp_path, SMALL, is_clean=True, recovery_point=end_offset)

    assert (tmp_path / name).read_bytes() == data
    assert aborted(log) == [(1, 0, 21, 22)]


def test_recovery_forgets_an_abort_whose_marker_was_torn_off(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, 3))
    size = log.segments.active.size
    end_transaction(log, is_commit=False)
    log_name = log.segments.active.log_name
    log.close()
    with (tmp_path / log_name).open("r+b") as file:
        file.truncate(size + 20)

    log = open_log(tmp_path)

    assert (log.log_end_offset, log.last_stable_offset, aborted(log), index_files(tmp_path)) == (3, 0, [], [])


def test_marker_that_compaction_emptied_ends_nothing_in_replay(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0))
    emptied = batch(producer_id=7, producer_epoch=0, is_transactional=True, is_control=True, base_offset=1)
    log_name = log.segments.active.log_name
    log.close()
    with (tmp_path / log_name).open("ab") as file:
        file.write(emptied)

    log = open_log(tmp_path)

    assert (log.log_end_offset, log.last_stable_offset) == (2, 0)


def test_start_forgets_transactions_whose_records_are_all_gone(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, SMALL)
    append(log, transactional(0))
    for number in range(5):
        append(log, b"%d" % number)
    log.roll()
    log.delete_records(log.log_end_offset)
    world.pass_delays()
    world.pass_delays()
    start_offset = log.log_start_offset
    close(log)

    log = World().open_log(tmp_path, SMALL, is_clean=True, log_start_offset=start_offset, recovery_point=start_offset)

    assert (log.log_start_offset, log.last_stable_offset, log.high_watermark) == (6, 6, 6)
    assert not log.has_open_transaction(7, 0)
    append(log, transactional(1))
    assert (log.last_stable_offset, log.log_end_offset) == (6, 7)
