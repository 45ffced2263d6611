import pytest

from wirekafka.coordinator.share_delivery.acquisition import Acquired, AcquireMode, AcquireRequest, Limits, LogBatch
from wirekafka.coordinator.share_delivery.share_partition import Acknowledgement, AcknowledgeType, SharePartition
from wirekafka.coordinator.share_state.batches import RecordState, StateBatch
from wirekafka.errors import ErrorCode, KafkaError

LIMITS = Limits(max_delivery_count=5, lock_duration_ms=100, max_in_flight=100)
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


def log_of(*sizes: int, start: int = 0) -> list[LogBatch]:
    batches = []
    for size in sizes:
        batches.append(LogBatch(start, start + size - 1))
        start += size
    return batches


def acquire(
    share: SharePartition,
    log: list[LogBatch],
    member: str = "m",
    max_records: int = 1000,
    batch_size: int = 1000,
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    limits: Limits = LIMITS,
    now_ms: int = 0,
) -> list[Acquired]:
    offset = share.fetch_offset()
    found = [batch for batch in log if batch.last_offset >= offset]
    return share.acquire(AcquireRequest(member, max_records, batch_size, mode), offset, found, limits, now_ms)[0]


def said(first: int, last: int, *types: int) -> list[Acknowledgement]:
    return [Acknowledgement(first, last, types)]


def release_all(share: SharePartition, times: int, log: list[LogBatch]) -> None:
    for _ in range(times):
        acquire(share, log)
        share.release("m", LIMITS)


def test_acquisition_ends_with_the_batch_of_the_log_that_holds_the_last_wanted_record() -> None:
    share = SharePartition(0)
    assert acquire(share, log_of(10, 10, 10), max_records=12) == [Acquired(0, 19, 1)]
    assert share.fetch_offset() == 20


def test_acquisition_by_record_limit_tears_batches() -> None:
    share, log = SharePartition(0), log_of(10, 10)
    assert acquire(share, log, max_records=4, mode=AcquireMode.RECORD_LIMIT) == [Acquired(0, 3, 1)]
    assert acquire(share, log, member="n", max_records=4, mode=AcquireMode.RECORD_LIMIT) == [Acquired(4, 7, 1)]
    assert acquire(share, log, max_records=4, mode=AcquireMode.RECORD_LIMIT) == [Acquired(8, 9, 1), Acquired(10, 11, 1)]


def test_new_records_are_acquired_in_batches_of_the_size_that_is_wished() -> None:
    assert acquire(SharePartition(0), log_of(3, 3, 3, 3), batch_size=5) == [Acquired(0, 5, 1), Acquired(6, 11, 1)]


def test_first_batch_of_the_log_may_begin_before_the_group_does() -> None:
    share = SharePartition(5)
    assert acquire(share, log_of(10)) == [Acquired(5, 9, 1)]
    assert share.start_offset == 5


def test_no_more_records_than_allowed_are_in_flight_but_those_that_come_back_are_given_again() -> None:
    limits = LIMITS._replace(max_in_flight=10)
    share, log = SharePartition(0), log_of(10, 10)
    acquire(share, log, limits=limits)
    assert not share.can_acquire(limits)
    share.acknowledge("m", said(4, 6, RELEASE), limits, 0)
    assert share.can_acquire(limits)
    assert acquire(share, log, member="n", limits=limits) == [Acquired(4, 6, 2)]
    assert share.acknowledge("m", said(0, 3, ACCEPT), limits, 0) is not None
    assert share.can_acquire(limits)


def test_accepted_front_moves_the_start_and_is_written_with_it() -> None:
    share = SharePartition(0)
    acquire(share, log_of(10))
    assert share.acknowledge("m", said(5, 9, ACCEPT), LIMITS, 0) == (0, 5, [StateBatch(5, 9, RecordState.ACKNOWLEDGED, 1)])
    assert share.acknowledge("m", said(0, 2, REJECT), LIMITS, 0) == (3, 5, [])
    assert share.acknowledge("m", said(3, 4, ACCEPT), LIMITS, 0) == (10, 0, [])
    assert share.in_flight == []
    assert share.fetch_offset() == 10


def test_offset_without_a_record_is_given_up_by_the_consumer_that_misses_it() -> None:
    share = SharePartition(0)
    acquire(share, log_of(3))
    share.acknowledge("m", said(0, 2, ACCEPT, AcknowledgeType.GAP, ACCEPT), LIMITS, 0)
    assert share.start_offset == 3


@pytest.mark.parametrize(
    ("member", "first", "last", "types", "code"),
    [
        ("n", 0, 9, [ACCEPT], ErrorCode.INVALID_RECORD_STATE),
        ("m", 0, 10, [ACCEPT], ErrorCode.INVALID_REQUEST),
        ("m", 20, 22, [ACCEPT], ErrorCode.INVALID_REQUEST),
        ("m", 0, 4, [ACCEPT], ErrorCode.INVALID_RECORD_STATE),
        ("m", 3, 5, [ACCEPT, ACCEPT, RELEASE], ErrorCode.INVALID_RECORD_STATE),
    ],
    ids=["another's", "beyond", "far beyond", "accepted already", "in part"],
)
def test_acknowledgement_of_what_the_member_does_not_have_is_refused_as_a_whole(
    member: str, first: int, last: int, types: list[int], code: ErrorCode
) -> None:
    share = SharePartition(0)
    acquire(share, log_of(10))
    share.acknowledge("m", said(3, 4, ACCEPT), LIMITS, 0)
    before = share.mark()
    with pytest.raises(KafkaError) as raised:
        share.acknowledge(member, said(first, last, *types), LIMITS, 0)
    assert raised.value.code is code
    assert share.mark() == before


def test_acknowledgement_of_what_nobody_acquired_is_refused() -> None:
    with pytest.raises(KafkaError) as raised:
        SharePartition(0).acknowledge("m", said(0, 0, ACCEPT), LIMITS, 0)
    assert raised.value.code is ErrorCode.INVALID_RECORD_STATE


def test_acknowledgement_of_what_the_group_is_done_with_is_ignored() -> None:
    share = SharePartition(5)
    acquire(share, log_of(10))
    assert share.acknowledge("m", said(0, 4, ACCEPT), LIMITS, 0) is None
    assert share.acknowledge("m", said(3, 6, ACCEPT), LIMITS, 0) == (7, 0, [])


def test_offset_acknowledged_twice_is_refused() -> None:
    share = SharePartition(0)
    acquire(share, log_of(4))
    with pytest.raises(KafkaError):
        share.acknowledge("m", said(0, 2, ACCEPT) + said(2, 3, ACCEPT), LIMITS, 0)
    assert share.start_offset == 0


def test_lock_that_runs_out_gives_records_back_and_a_renewed_one_does_not() -> None:
    share = SharePartition(0)
    acquire(share, log_of(4))
    assert share.acknowledge("m", said(2, 3, AcknowledgeType.RENEW), LIMITS, 60) is None
    assert share.next_deadline_ms == 100
    assert share.expire_locks(LIMITS, 99) is None
    change = share.expire_locks(LIMITS, 100)
    assert change == (0, 0, [StateBatch(0, 1, RecordState.AVAILABLE, 1)])
    assert share.next_deadline_ms == 160


def test_renewal_where_the_group_does_not_allow_it_is_refused() -> None:
    share = SharePartition(0)
    acquire(share, log_of(4))
    with pytest.raises(KafkaError) as raised:
        share.acknowledge("m", said(0, 3, AcknowledgeType.RENEW), LIMITS._replace(can_renew=False), 0)
    assert raised.value.code is ErrorCode.INVALID_RECORD_STATE


def test_record_delivered_often_comes_in_ever_smaller_company_and_the_last_time_alone() -> None:
    share, log = SharePartition(0), log_of(16)
    release_all(share, 2, log)
    assert acquire(share, log) == [Acquired(0, 15, 3)]
    share.release("m", LIMITS)
    assert acquire(share, log) == [Acquired(0, 7, 4)]
    share.release("m", LIMITS)
    assert acquire(share, log) == [Acquired(0, 0, 5)]
    change = share.release("m", LIMITS)
    assert change is not None
    assert (change.start_offset, share.start_offset) == (1, 1)


def test_record_in_its_last_delivery_does_not_come_with_those_before_it() -> None:
    share, log = SharePartition(0), log_of(3)
    release_all(share, 2, log)
    for _ in range(2):
        share.acquire(AcquireRequest("m", 10, 10), 2, [LogBatch(2, 2)], LIMITS, 0)
        share.release("m", LIMITS)
    assert acquire(share, log) == [Acquired(0, 1, 3)]
    assert acquire(share, log) == [Acquired(2, 2, 5)]


def test_records_of_a_batch_are_told_apart_by_how_often_they_came() -> None:
    share, log = SharePartition(0), log_of(4)
    release_all(share, 1, log)
    share.acquire(AcquireRequest("m", 10, 10), 2, [LogBatch(2, 3)], LIMITS, 0)
    share.release("m", LIMITS)
    assert acquire(share, log) == [Acquired(0, 1, 2), Acquired(2, 3, 3)]


def test_limit_that_was_lowered_gives_up_what_was_delivered_as_often() -> None:
    share, log = SharePartition(0), log_of(4)
    release_all(share, 3, log)
    assert acquire(share, log, limits=LIMITS._replace(max_delivery_count=2)) == []
    assert share.start_offset == 4


def test_records_that_compaction_took_are_given_up() -> None:
    share = SharePartition(0)
    acquire(share, log_of(4))
    share.release("m", LIMITS)
    acquired, change = share.acquire(AcquireRequest("m", 10, 10), 0, [LogBatch(2, 3), LogBatch(8, 9)], LIMITS, 0)
    assert acquired == [Acquired(2, 3, 2), Acquired(4, 9, 1)]
    assert change == (2, 0, [])


def test_batches_of_aborted_transactions_are_passed_over() -> None:
    share, log = SharePartition(0), log_of(2, 3, 2)
    acquired, change = share.acquire(AcquireRequest("m", 10, 10), 0, log, LIMITS, 0, aborted=[log[1]])
    assert acquired == [Acquired(0, 1, 1), Acquired(5, 6, 1)]
    assert change == (0, 3, [StateBatch(2, 4, RecordState.ARCHIVED, 1)])


def test_log_that_loses_its_beginning_takes_the_records_from_who_has_them() -> None:
    share, log = SharePartition(0), log_of(5, 5)
    acquire(share, log)
    assert share.move_start(7) == (7, 0, [])
    assert share.acknowledge("m", said(0, 8, ACCEPT), LIMITS, 0) == (9, 0, [])
    assert share.move_start(3) is None
    assert share.move_start(30) == (30, 0, [])
    assert share.fetch_offset() == 30


def test_gaps_in_what_was_written_are_available_after_a_restart() -> None:
    written = [StateBatch(2, 3, RecordState.ACKNOWLEDGED, 1), StateBatch(6, 6, RecordState.AVAILABLE, 2)]
    share = SharePartition(0, 3, written)
    assert share.fetch_offset() == 0
    assert acquire(share, log_of(10)) == [Acquired(0, 1, 1), Acquired(4, 5, 1), Acquired(6, 6, 3), Acquired(7, 9, 1)]


def test_written_front_that_is_done_with_moves_the_start() -> None:
    share = SharePartition(0, 0, [StateBatch(0, 3, RecordState.ARCHIVED, 5)])
    assert (share.start_offset, share.next_offset, share.in_flight) == (4, 4, [])
