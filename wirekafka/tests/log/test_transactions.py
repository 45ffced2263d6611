"""Transactions in one log: the last stable offset, and the producers that may write."""

from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.log import Log
from wirekafka.pending import finish
from wirekafka.tests.log.logs import (
    NOW_MS,
    World,
    append,
    batch,
    config_with,
    end_transaction,
    idempotent,
    marker_refusal,
    read,
    records_of,
    transactional,
)
from wirekafka.wire.batch import BatchHeader

SMALL = config_with(segment_bytes=700, index_interval_bytes=0, segment_index_bytes=4096)


def open_log(path: Path) -> Log:
    return World().open_log(path)


def refusal(log: Log, records: memoryview) -> ErrorCode:
    end_offset = log.reader.log_end_offset
    with pytest.raises(KafkaError) as caught:
        append(log, records)
    assert log.reader.log_end_offset == end_offset
    return caught.value.code


def aborted(log: Log, from_offset: int = 0, to_offset: int | None = None) -> list[tuple[int, int, int, int]]:
    end = log.reader.log_end_offset if to_offset is None else to_offset
    return [tuple(found)[1:] for found in log.reader.aborted_transactions(from_offset, end)]


# The last stable offset


def test_log_without_transactions_is_stable_to_its_end(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"a")
    append(log, idempotent(0))

    assert log.reader.last_stable_offset == log.reader.high_watermark == 2


def test_open_transaction_keeps_the_stable_offset_where_it_begins(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"a")
    append(log, transactional(0, 2))
    append(log, b"b")

    assert (log.reader.last_stable_offset, log.reader.high_watermark) == (1, 4)
    assert log.reader.has_open_transaction(7, 0)
    assert not log.reader.has_open_transaction(7, 1)
    assert not log.reader.has_open_transaction(8, 0)


@pytest.mark.parametrize("is_commit", [True, False])
def test_marker_ends_the_transaction(tmp_path: Path, is_commit: bool) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, 2))

    info = end_transaction(log, is_commit=is_commit)

    assert (info.base_offset, info.last_offset, log.reader.last_stable_offset) == (2, 2, 3)
    assert not log.reader.has_open_transaction(7, 0)
    assert aborted(log) == ([] if is_commit else [(7, 0, 2, 3)])


def test_stable_offset_moves_to_the_next_open_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, producer_id=1))
    append(log, transactional(0, producer_id=2))
    append(log, transactional(0, producer_id=3))

    end_transaction(log, 2)
    assert log.reader.last_stable_offset == 0
    end_transaction(log, 1, is_commit=False)
    assert log.reader.last_stable_offset == 2
    end_transaction(log, 3)
    assert log.reader.last_stable_offset == log.reader.high_watermark == 6
    assert aborted(log) == [(1, 0, 4, 2)]


def test_stable_offset_is_never_before_the_log_start(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0))
    append(log, batch(b"a", b"b", b"c"))

    log.retention.delete_records(2)

    assert (log.reader.log_start_offset, log.reader.last_stable_offset, log.reader.high_watermark) == (2, 2, 4)


def test_stable_offset_is_never_behind_the_high_watermark(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(b"a", b"b"))
    append(log, transactional(0))
    log.reader.high_watermark = 1

    assert log.reader.last_stable_offset == 1


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

    found = records_of(read(log, 0, end_offset=log.reader.last_stable_offset))

    assert [record.offset for record in found] == [0]
    assert read(log, 1, end_offset=log.reader.last_stable_offset) == b""
    assert len(log.reader.segments) > 1


# Which producers may write


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

    assert (info.is_duplicate, info.base_offset, log.reader.log_end_offset) == (True, 0, 3)


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
    assert log.reader.has_open_transaction(7, 5)


def test_marker_of_transactions_v2_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, epoch=5))

    assert marker_refusal(log, 5, transaction_version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    end_transaction(log, epoch=6, transaction_version=2)
    assert not log.reader.has_open_transaction(7, 5)


def test_marker_of_transactions_v2_may_be_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, epoch=5))
    end_transaction(log, epoch=6, transaction_version=2, is_commit=False)

    end_transaction(log, epoch=6, transaction_version=2, is_commit=False)

    assert (log.reader.log_end_offset, log.reader.last_stable_offset) == (3, 3)
    assert aborted(log) == [(7, 0, 1, 2)]


def test_marker_of_the_last_epoch_has_no_next_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0, epoch=0x7FFF))

    end_transaction(log, epoch=0x7FFF, transaction_version=2)

    assert log.reader.last_stable_offset == 2


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

    assert (log.reader.log_end_offset, log.reader.last_stable_offset, aborted(log)) == (1, 1, [])
    assert refusal(log, transactional(0, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    append(log, transactional(0, epoch=4))


def test_marker_on_a_topic_with_log_append_time_has_it(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(message_timestamp_type="LogAppendTime"))
    append(log, transactional(0))

    info = end_transaction(log, now_ms=NOW_MS + 5)

    assert info.log_append_time_ms == NOW_MS + 5


def begin(log: Log, sequence: int, *, epoch: int = 0, must_be_zero: bool = False) -> bool:
    header = BatchHeader(transactional(sequence, epoch=epoch))
    return log.reader.producers.begin_transaction(header, must_be_zero=must_be_zero, now_ms=NOW_MS)


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

    finish(log.reader.producers.expire(NOW_MS + 1000, 1000))

    append(log, transactional(5))


def test_open_transaction_does_not_expire(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, transactional(0))

    assert finish(log.reader.producers.expire(NOW_MS + 5000, 1000)) == 0
    end_transaction(log)
    assert finish(log.reader.producers.expire(NOW_MS + 5000, 1000)) == 1
