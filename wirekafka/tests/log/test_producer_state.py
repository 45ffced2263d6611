from __future__ import annotations

from typing import Any

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.producer_snapshot import CorruptSnapshotError
from wirekafka.log.producer_state import EXAMINED_AT_ONCE, Producers
from wirekafka.pending import finish
from wirekafka.wire.batch import BatchHeader, Record, build_batch
from wirekafka.wire.control import EndMarker

MOST_SEQUENCE = 0x7FFF_FFFF
TIME = 1_700_000_000_000


def header(
    sequence: int, count: int = 1, *, offset: int = 0, producer_id: int = 7, epoch: int = 0, timestamp: int = TIME, **fields: Any
) -> BatchHeader:
    records = [Record(b"k", b"v", timestamp=timestamp) for _ in range(count)]
    batch = build_batch(
        records, base_offset=offset, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields
    )
    return BatchHeader(batch)


def write(producers: Producers, batch: BatchHeader, *, has_sequences: bool = True) -> None:
    producer = producers.prepare(batch, has_sequences=has_sequences)
    producers.commit(producer, batch, batch.next_offset)


def refusal(producers: Producers, batch: BatchHeader, *, has_sequences: bool = True) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        producers.prepare(batch, has_sequences=has_sequences)
    return caught.value.code


def test_unknown_producer_may_begin_with_any_sequence() -> None:
    producers = Producers(0)

    write(producers, header(500))

    write(producers, header(501, offset=1))


def test_sequence_wraps_from_the_greatest_to_zero() -> None:
    producers = Producers(0)
    write(producers, header(MOST_SEQUENCE))

    assert refusal(producers, header(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(producers, header(0, offset=1))


def test_sequence_wraps_inside_a_batch() -> None:
    producers = Producers(0)
    batch = header(MOST_SEQUENCE - 1, 4)
    write(producers, batch)

    assert producers.find_duplicate(batch) is not None
    write(producers, header(2, offset=4))


def test_gap_is_refused() -> None:
    producers = Producers(0)
    write(producers, header(0))

    assert refusal(producers, header(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_old_batch_outside_of_the_window_is_refused() -> None:
    producers = Producers(0)
    for sequence in range(7):
        write(producers, header(sequence, offset=sequence))

    assert producers.find_duplicate(header(1)) is None
    assert refusal(producers, header(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_duplicate_is_found_with_its_offsets() -> None:
    producers = Producers(0)
    write(producers, header(10, 3, offset=100))

    found = producers.find_duplicate(header(10, 3))

    assert found is not None
    assert (found.first_offset, found.last_offset, found.timestamp) == (100, 102, TIME)


@pytest.mark.parametrize("batch", [header(10, 2), header(11, 2), header(10, 3, epoch=1), header(10, 3, producer_id=8)])
def test_batch_with_other_sequences_epoch_or_producer_is_no_duplicate(batch: BatchHeader) -> None:
    producers = Producers(0)
    write(producers, header(10, 3))

    assert producers.find_duplicate(batch) is None


def test_older_epoch_is_refused() -> None:
    producers = Producers(0)
    write(producers, header(0, epoch=2))

    assert refusal(producers, header(1, epoch=1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(producers, header(1, epoch=1), has_sequences=False) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_newer_epoch_begins_with_sequence_zero() -> None:
    producers = Producers(0)
    write(producers, header(5))

    assert refusal(producers, header(6, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(producers, header(0, epoch=1))
    assert producers.find_duplicate(header(5)) is None


def test_prepare_changes_nothing_until_commit() -> None:
    producers = Producers(0)
    write(producers, header(0))

    producers.prepare(header(1), has_sequences=True)

    assert producers.find_duplicate(header(1)) is None
    write(producers, header(1, offset=1))


def test_batches_without_a_producer_leave_no_trace() -> None:
    producers = Producers(0)

    assert producers.prepare(header(-1, producer_id=-1, epoch=-1), has_sequences=True) is None
    assert len(producers) == 0


def test_snapshot_brings_the_state_back() -> None:
    producers = Producers(0)
    for sequence in range(3):
        write(producers, header(sequence, offset=sequence))
    write(producers, header(MOST_SEQUENCE, 2, offset=3, producer_id=9, epoch=4))

    again = Producers(0)
    again.read_snapshot(producers.write_snapshot(), 5)

    assert (len(again), again.end_offset, again.snapshot_offset) == (2, 5, 5)
    found = again.find_duplicate(header(MOST_SEQUENCE, 2, producer_id=9, epoch=4))
    assert found is not None
    assert (found.first_offset, found.last_offset) == (3, 4)
    assert again.find_duplicate(header(2)) is not None
    write(again, header(3, offset=5))


def test_snapshot_keeps_what_other_brokers_wrote_into_it() -> None:
    producers = Producers(0)
    producers.replay(header(0, offset=0, is_transactional=True))
    [producer] = producers
    producer.coordinator_epoch = 11

    again = Producers(0)
    again.read_snapshot(producers.write_snapshot(), 1)

    [found] = again
    assert (found.coordinator_epoch, found.transaction_first_offset) == (11, 0)


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"\0\2" + data[2:], lambda data: b""]
)
def test_damaged_snapshot_is_refused_and_changes_nothing(change: Any) -> None:
    producers = Producers(0)
    write(producers, header(0))
    data = producers.write_snapshot()
    again = Producers(0)
    write(again, header(0, producer_id=1))

    with pytest.raises(CorruptSnapshotError):
        again.read_snapshot(change(data), 1)

    assert [producer.producer_id for producer in again] == [1]


@pytest.mark.parametrize("place", range(2, 62))
def test_snapshot_with_any_byte_changed_is_refused(place: int) -> None:
    producers = Producers(0)
    write(producers, header(0))
    data = bytearray(producers.write_snapshot())
    data[min(place, len(data) - 1)] ^= 0x10

    with pytest.raises(CorruptSnapshotError):
        Producers(0).read_snapshot(bytes(data), 1)


def test_snapshot_is_kafkas_byte_for_byte() -> None:
    producers = Producers(0)
    write(producers, header(5, 2, offset=40))

    data = producers.write_snapshot()

    expected = (
        "0001" + data[2:6].hex() + "00000001"  # version, crc, one producer
        "0000000000000007" "0000" "00000006" "0000000000000029" "00000001"  # id, epoch, last sequence, last offset, delta
        "0000018bcfe56800" "ffffffff" "ffffffffffffffff"  # timestamp, coordinator epoch, first offset of a transaction
    )  # fmt: skip
    assert data.hex() == expected


def test_replay_takes_what_the_log_holds_unchecked() -> None:
    producers = Producers(0)
    producers.replay(header(0, offset=0))
    producers.replay(header(9, offset=1))
    producers.replay(header(-1, offset=2, producer_id=-1, epoch=-1))

    assert producers.end_offset == 3
    write(producers, header(10, offset=3))


def test_replay_of_an_end_marker_closes_the_transaction() -> None:
    producers = Producers(0)
    producers.replay(header(0, offset=0, is_transactional=True))
    producers.replay(header(-1, offset=1, is_transactional=True, is_control=True), EndMarker(True, 3))

    [producer] = producers
    assert producer.transaction_first_offset is None
    assert producer.last_sequence == 0


def test_expire_spares_open_transactions() -> None:
    producers = Producers(0)
    producers.replay(header(0, offset=0, is_transactional=True))
    producers.replay(header(0, offset=1, producer_id=8))

    assert finish(producers.expire(TIME + 1000, 1000)) == 1
    assert [producer.producer_id for producer in producers] == [7]


def written(batch: BatchHeader) -> list[Producers]:
    """Returns the state after the batch, and the state of a log that has the batch."""
    live, replayed = Producers(0), Producers(0)
    write(live, batch)
    replayed.replay(batch)
    return [live, replayed]


def test_batch_without_a_producer_is_nobodys_live_and_replayed() -> None:
    for producers in (state for producer_id in (-1, -2) for state in written(header(0, producer_id=producer_id))):
        assert not list(producers)
        assert producers.end_offset == 1


def test_producer_without_an_epoch_is_known_live_and_replayed() -> None:
    for producers in written(header(0, epoch=-1)):
        assert [(producer.epoch, producer.last_sequence) for producer in producers] == [(-1, 0)]


def test_producer_whose_batches_are_of_an_older_epoch_comes_back_without_any() -> None:
    producers = Producers(0)
    producers.replay(header(0, is_transactional=True))
    producers.replay(header(-1, offset=1, epoch=1, is_transactional=True, is_control=True), EndMarker(True, 0))
    again = Producers(0)

    again.read_snapshot(producers.write_snapshot(), 2)

    [producer] = again
    assert (producer.epoch, producer.batches, producer.last_offset) == (1, (), None)


def beginning(producers: Producers, batch: BatchHeader, *, must_be_zero: bool = False) -> None:
    producers.begin_transaction(batch, must_be_zero=must_be_zero, now_ms=TIME)


def test_producer_that_is_known_goes_on_where_it_was_in_transactions_v2() -> None:
    producers = Producers(0)
    producers.replay(header(0, is_transactional=True))
    producers.replay(header(-1, offset=1, is_transactional=True, is_control=True), EndMarker(True, 0))
    following = header(1, offset=2, is_transactional=True)

    beginning(producers, following, must_be_zero=True)

    write(producers, following)


def test_what_was_expected_of_a_transaction_goes_with_the_log() -> None:
    producers = Producers(0)
    beginning(producers, header(0, is_transactional=True))
    producers.clear(10)

    write(producers, header(5, offset=10, is_transactional=True))


def test_expiry_of_many_producers_lets_them_write_between_its_steps() -> None:
    producers = Producers(0)
    for producer_id in range(EXAMINED_AT_ONCE + 2):
        write(producers, header(0, offset=producer_id, producer_id=producer_id))

    work = producers.expire(TIME + 1000, 1000)
    next(work)
    late = EXAMINED_AT_ONCE + 2
    write(producers, header(1, offset=late, producer_id=EXAMINED_AT_ONCE, timestamp=TIME + 500))
    write(producers, header(0, offset=late + 1, producer_id=late))

    assert finish(work) == EXAMINED_AT_ONCE + 1
    assert [producer.producer_id for producer in producers] == [EXAMINED_AT_ONCE, late]


def test_expiry_goes_on_after_the_log_was_truncated_between_its_steps() -> None:
    producers = Producers(0)
    for producer_id in range(EXAMINED_AT_ONCE + 2):
        write(producers, header(0, offset=producer_id, producer_id=producer_id))
    work = producers.expire(TIME + 1000, 1000)
    next(work)
    producers.clear(0)
    assert finish(work) == EXAMINED_AT_ONCE


def test_noted_beginnings_of_many_producers_expire_in_steps() -> None:
    producers = Producers(0)
    for producer_id in range(EXAMINED_AT_ONCE + 2):
        producers.begin_transaction(header(0, producer_id=producer_id), must_be_zero=True, now_ms=TIME)
    producers.begin_transaction(header(0, producer_id=1 << 40), must_be_zero=True, now_ms=TIME + 1)
    assert len([None for _ in producers.expire(TIME + 1000, 1000)]) == 1
    assert producers._beginnings is not None
    assert list(producers._beginnings) == [1 << 40]
