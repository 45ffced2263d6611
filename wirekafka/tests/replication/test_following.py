"""The follower of a partition, as tables: the time, an event, and its effects."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wirekafka.errors import ErrorCode
from wirekafka.log.epochs import EpochStart, LeaderEpochs
from wirekafka.replication.following import (
    EXPECTED,
    AdvanceHighWatermark,
    AdvanceLogStart,
    Answered,
    Append,
    AskEarliestOffset,
    AskLatestOffset,
    BackOff,
    BackOffEnded,
    BecameFollower,
    ConnectionLost,
    Effect,
    Event,
    Fetch,
    Following,
    OffsetAnswered,
    Refused,
    State,
    StopFetching,
    TruncateFullyAndStartAt,
    TruncateTo,
    WriteFailed,
    Written,
)

BACK_OFF_MS = 1_000
OWN_EPOCHS = LeaderEpochs((EpochStart(1, 1), EpochStart(3, 4), EpochStart(4, 8)))
"""The leader epochs of the own log, which ends at 10."""

Row = tuple[int, Event, Sequence[Effect]]


def new_follower() -> Following:
    return Following(lambda epoch: OWN_EPOCHS.end_offset_of(epoch, 10), back_off_ms=BACK_OFF_MS)


def follow(
    epoch: int, *, leader: int | None = 1, start: int = 0, watermark: int = 7, end: int = 10, latest: int | None = 4
) -> BecameFollower:
    return BecameFollower(leader, epoch, start, watermark, end, latest)


def following(*rows: Row) -> Following:
    """Returns the follower of broker 1 in epoch 5, after the rows. Its log ends at 10, and its high watermark is 7."""
    follower = new_follower()
    play(follower, (0, follow(5), [fetch(10, 4)]), *rows)
    return follower


def play(follower: Following, *rows: Row) -> None:
    for number, (now_ms, event, effects) in enumerate(rows):
        assert list(follower.step(event, now_ms)) == list(effects), f"row {number}: {event}"


def fetch(offset: int, last_fetched_epoch: int | None, *, epoch: int = 5, leader: int = 1) -> Fetch:
    return Fetch(leader, epoch, offset, last_fetched_epoch)


def failed(
    error: ErrorCode, end: int, latest: int | None, *, start: int = 0, watermark: int = 7, may_pass: bool = False
) -> WriteFailed:
    return WriteFailed(error, start, watermark, end, latest, may_pass)


def answer(
    offset: int = 10, records: bytes = b"", watermark: int = 7, start: int = 0, diverging: tuple[int, int] | None = None
) -> Answered:
    return Answered(5, offset, records, watermark, start, diverging)


def test_records_are_appended_and_then_the_high_watermark_moves() -> None:
    following(
        (1, answer(records=b"abc", watermark=12), [Append(b"abc", 5)]),
        (2, Written(13, 5), [AdvanceHighWatermark(12), fetch(13, 5)]),
    )


def test_high_watermark_is_at_most_the_own_log_end() -> None:
    following(
        (1, answer(records=b"abc", watermark=99), [Append(b"abc", 5)]),
        (2, Written(13, 5), [AdvanceHighWatermark(13), fetch(13, 5)]),
        (3, answer(13, watermark=99), [fetch(13, 5)]),
    )


def test_high_watermark_of_a_new_leader_that_is_lower_is_not_taken_over() -> None:
    following((1, answer(watermark=3), [fetch(10, 4)]), (2, answer(watermark=9), [AdvanceHighWatermark(9), fetch(10, 4)]))


def test_log_start_offset_of_the_leader_is_taken_over() -> None:
    following(
        (1, answer(watermark=9, start=6), [AdvanceHighWatermark(9), AdvanceLogStart(6), fetch(10, 4)]),
        (2, answer(watermark=9, start=6), [fetch(10, 4)]),
    )


def test_log_start_offset_does_not_pass_the_high_watermark() -> None:
    following((1, answer(watermark=7, start=9), [AdvanceLogStart(7), fetch(10, 4)]))


def test_follower_fetches_from_its_log_end_and_not_from_its_high_watermark() -> None:
    """KIP-101: records above the high watermark may be committed."""
    play(new_follower(), (0, follow(5, watermark=2), [fetch(10, 4)]))


def test_log_without_epochs_is_truncated_to_its_high_watermark() -> None:
    play(
        new_follower(),
        (0, follow(5, latest=None), [TruncateTo(7)]),
        (1, Written(7, None), [fetch(7, None)]),
    )


def test_committed_log_without_epochs_is_not_truncated() -> None:
    play(new_follower(), (0, follow(5, latest=None, watermark=10), [fetch(10, None)]))


@pytest.mark.parametrize(
    ("diverging", "offset"),
    [
        ((3, 6), 6),
        ((3, 9), 8),
        ((2, 6), 4),
        ((0, 2), 1),
        ((4, 9), 9),
        ((4, 12), 10),
    ],
    ids=[
        "the leader's epoch ends earlier",
        "the own epoch ends earlier",
        "the own log lacks the epoch (KIP-279)",
        "the own epochs are all later",
        "the newest epoch ends earlier in the leader's log",
        "the own log ends earlier",
    ],
)
def test_log_that_diverges_is_truncated_to_the_end_of_a_common_epoch(diverging: tuple[int, int], offset: int) -> None:
    following(
        (1, answer(records=b"abc", watermark=9, diverging=diverging), [TruncateTo(offset)]),
        (2, Written(offset, 3), [fetch(offset, 3)]),
    )


def test_high_watermark_is_not_above_the_end_of_a_truncated_log() -> None:
    following(
        (1, answer(diverging=(3, 5)), [TruncateTo(5)]),
        (2, Written(5, 3), [fetch(5, 3)]),
        (3, answer(5, watermark=6), [fetch(5, 3)]),
        (4, answer(5, b"ab", watermark=6), [Append(b"ab", 5)]),
        (5, Written(7, 5), [AdvanceHighWatermark(6), fetch(7, 5)]),
    )


def test_truncation_that_removes_a_whole_batch_is_followed_by_a_fetch_from_the_new_end() -> None:
    following((1, answer(diverging=(3, 6)), [TruncateTo(6)]), (2, Written(5, 3), [fetch(5, 3)]))


def test_truncation_before_the_own_log_start_begins_the_log_anew() -> None:
    play(
        new_follower(),
        (0, follow(5, start=6), [fetch(10, 4)]),
        (1, answer(diverging=(3, 5)), [TruncateFullyAndStartAt(5)]),
        (2, Written(5, None), [fetch(5, None)]),
    )


@pytest.mark.parametrize(("leaders_end", "offset"), [(6, 6), (60, 10)])
def test_log_without_epochs_is_truncated_to_the_leaders_end(leaders_end: int, offset: int) -> None:
    follower = Following(lambda epoch: None, back_off_ms=BACK_OFF_MS)
    play(follower, (0, follow(5), [fetch(10, 4)]), (1, answer(diverging=(3, leaders_end)), [TruncateTo(offset)]))


def test_diverging_epoch_without_an_end_truncates_nothing() -> None:
    following((1, answer(diverging=(3, -1)), [BackOff(1_001)]))


def test_log_that_is_longer_than_the_leaders_is_truncated_after_an_offset_out_of_range() -> None:
    following(
        (1, Refused(5, ErrorCode.OFFSET_OUT_OF_RANGE), [AskLatestOffset(1, 5)]),
        (2, OffsetAnswered(5, 6), [TruncateTo(6)]),
        (3, Written(6, 3), [fetch(6, 3)]),
    )


def test_log_that_ends_before_the_leaders_start_begins_anew_there() -> None:
    following(
        (1, Refused(5, ErrorCode.OFFSET_OUT_OF_RANGE), [AskLatestOffset(1, 5)]),
        (2, OffsetAnswered(5, 90), [AskEarliestOffset(1, 5)]),
        (3, OffsetAnswered(5, 50), [TruncateFullyAndStartAt(50)]),
        (4, Written(50, None), [fetch(50, None)]),
        (5, Answered(5, 50, b"", 60, 50), [fetch(50, None)]),
    )


def test_log_that_ends_within_the_leaders_log_is_kept_after_an_offset_out_of_range() -> None:
    following(
        (1, Refused(5, ErrorCode.OFFSET_OUT_OF_RANGE), [AskLatestOffset(1, 5)]),
        (2, OffsetAnswered(5, 10), [AskEarliestOffset(1, 5)]),
        (3, OffsetAnswered(5, 10), [BackOff(1_003)]),
        (1_003, BackOffEnded(), [fetch(10, 4)]),
    )


def test_records_of_which_none_is_appended_are_fetched_again_after_a_back_off() -> None:
    following(
        (1, answer(records=b"abc", watermark=9), [Append(b"abc", 5)]),
        (2, Written(10, 4), [BackOff(1_002)]),
        (1_002, BackOffEnded(), [fetch(10, 4)]),
        (1_003, answer(records=b"abcdef", watermark=9), [Append(b"abcdef", 5)]),
        (1_004, Written(11, 4), [AdvanceHighWatermark(9), fetch(11, 4)]),
    )


def test_divergence_after_which_nothing_is_truncated_is_followed_by_a_back_off() -> None:
    following(
        (1, answer(diverging=(9, 99)), [TruncateTo(10)]),
        (2, Written(10, 4), [BackOff(1_002)]),
        (1_002, BackOffEnded(), [fetch(10, 4)]),
    )


def test_divergence_after_which_the_newest_epoch_is_dropped_is_followed_by_a_fetch() -> None:
    """The newest epoch begins at the log end, without a record."""
    following((1, answer(diverging=(4, 12)), [TruncateTo(10)]), (2, Written(10, 3), [fetch(10, 3)]))


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_error_of_the_leader_is_followed_by_a_back_off(error: ErrorCode) -> None:
    following(
        (1, Refused(5, error), [BackOff(1_001)]),
        (1_000, BackOffEnded(), []),
        (1_001, BackOffEnded(), [fetch(10, 4)]),
    )


@pytest.mark.parametrize("error", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE])
def test_follower_stops_until_a_newer_epoch(error: ErrorCode) -> None:
    following(
        (1, Refused(5, error), [StopFetching()]),
        (2, follow(5), []),
        (3, answer(records=b"abc"), []),
        (4, follow(6), [fetch(10, 4, epoch=6)]),
    )


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE]
)
def test_offsets_that_the_leader_refuses_are_asked_for_again_after_a_fetch(error: ErrorCode) -> None:
    following(
        (1, Refused(5, ErrorCode.OFFSET_OUT_OF_RANGE), [AskLatestOffset(1, 5)]),
        (2, Refused(5, error), [BackOff(1_002)]),
        (1_002, BackOffEnded(), [fetch(10, 4)]),
        (1_003, Refused(5, ErrorCode.OFFSET_OUT_OF_RANGE), [AskLatestOffset(1, 5)]),
    )


def test_lost_connection_is_followed_by_a_back_off() -> None:
    following((1, ConnectionLost(), [BackOff(1_001)]), (2, ConnectionLost(), []), (1_001, BackOffEnded(), [fetch(10, 4)]))


@pytest.mark.parametrize("error", [ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD])
def test_records_that_are_damaged_are_fetched_again_after_a_back_off(error: ErrorCode) -> None:
    following(
        (1, answer(records=b"abc", watermark=9), [Append(b"abc", 5)]),
        (2, failed(error, 10, 4), [BackOff(1_002)]),
        (1_002, BackOffEnded(), [fetch(10, 4)]),
        (1_003, answer(watermark=7), [fetch(10, 4)]),
    )


@pytest.mark.parametrize("error", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_follower_stops_if_its_log_cannot_be_written(error: ErrorCode) -> None:
    following(
        (1, answer(records=b"abc"), [Append(b"abc", 5)]),
        (2, failed(error, 10, 4), [StopFetching()]),
    )


def test_batches_before_a_damaged_one_are_not_fetched_again() -> None:
    following(
        (1, answer(records=b"abc"), [Append(b"abc", 5)]),
        (2, failed(ErrorCode.CORRUPT_MESSAGE, 12, 5), [BackOff(1_002)]),
        (1_002, BackOffEnded(), [fetch(12, 5)]),
    )


def test_write_that_may_succeed_later_is_tried_again_after_a_back_off() -> None:
    full = failed(ErrorCode.KAFKA_STORAGE_ERROR, 12, 5, may_pass=True)
    following(
        (1, answer(records=b"abc"), [Append(b"abc", 5)]),
        (2, full, [BackOff(1_002)]),
        (1_002, BackOffEnded(), [fetch(12, 5)]),
        (1_003, answer(12, diverging=(3, 6)), [TruncateTo(6)]),
    )


def test_truncation_that_may_succeed_later_is_repeated_before_the_next_fetch() -> None:
    following(
        (1, answer(diverging=(3, 6)), [TruncateTo(6)]),
        (2, failed(ErrorCode.KAFKA_STORAGE_ERROR, 10, 4, may_pass=True), [BackOff(1_002)]),
        (1_002, BackOffEnded(), [TruncateTo(6)]),
        (1_003, failed(ErrorCode.KAFKA_STORAGE_ERROR, 8, 4, may_pass=True), [BackOff(2_003)]),
        (2_003, BackOffEnded(), [TruncateTo(6)]),
        (2_004, Written(6, 3), [fetch(6, 3)]),
        (2_005, Refused(5, ErrorCode.NOT_LEADER_OR_FOLLOWER), [BackOff(3_005)]),
        (3_005, BackOffEnded(), [fetch(6, 3)]),
    )


def test_next_leader_epoch_decides_anew_what_a_log_that_was_not_truncated_needs() -> None:
    following(
        (1, answer(diverging=(3, 6)), [TruncateTo(6)]),
        (2, failed(ErrorCode.KAFKA_STORAGE_ERROR, 10, 4, may_pass=True), [BackOff(1_002)]),
        (3, BecameFollower(2, 6, 0, 7, 10, 4), [Fetch(2, 6, 10, 4)]),
        (4, Refused(6, ErrorCode.NOT_LEADER_OR_FOLLOWER), [BackOff(1_004)]),
        (1_004, BackOffEnded(), [Fetch(2, 6, 10, 4)]),
    )


def test_log_that_could_not_begin_anew_begins_anew_before_the_next_fetch() -> None:
    following(
        (1, Refused(5, ErrorCode.OFFSET_OUT_OF_RANGE), [AskLatestOffset(1, 5)]),
        (2, OffsetAnswered(5, 99), [AskEarliestOffset(1, 5)]),
        (3, OffsetAnswered(5, 50), [TruncateFullyAndStartAt(50)]),
        (4, failed(ErrorCode.KAFKA_STORAGE_ERROR, 10, 4, may_pass=True), [BackOff(1_004)]),
        (1_004, BackOffEnded(), [TruncateFullyAndStartAt(50)]),
        (1_005, failed(ErrorCode.KAFKA_STORAGE_ERROR, 4, None, may_pass=True), [BackOff(2_005)]),
        (2_005, BackOffEnded(), [TruncateFullyAndStartAt(50)]),
        (2_006, Written(50, None), [fetch(50, None)]),
    )


def test_follower_stops_if_it_cannot_delete_the_records_that_the_leader_has_deleted() -> None:
    following(
        (1, answer(watermark=9, start=6), [AdvanceHighWatermark(9), AdvanceLogStart(6), fetch(10, 4)]),
        (2, failed(ErrorCode.KAFKA_STORAGE_ERROR, 10, 4), [StopFetching()]),
    )


def test_follower_stops_if_its_log_cannot_be_truncated() -> None:
    following(
        (1, answer(diverging=(3, 6)), [TruncateTo(6)]),
        (2, failed(ErrorCode.CORRUPT_MESSAGE, 10, 4), [StopFetching()]),
    )


@pytest.mark.parametrize(
    "late",
    [
        Answered(4, 10, b"abc", 9, 0),
        Answered(5, 9, b"abc", 9, 0),
        Refused(4, ErrorCode.FENCED_LEADER_EPOCH),
        OffsetAnswered(5, 3),
        Written(99, 9),
        BackOffEnded(),
    ],
    ids=["another epoch", "another offset", "error in another epoch", "offset", "write", "timer"],
)
def test_event_of_an_earlier_request_is_ignored(late: Event) -> None:
    following((1, late, []), (2, answer(watermark=9), [AdvanceHighWatermark(9), fetch(10, 4)]))


def test_offset_of_an_earlier_epoch_is_ignored() -> None:
    following(
        (1, Refused(5, ErrorCode.OFFSET_OUT_OF_RANGE), [AskLatestOffset(1, 5)]),
        (2, follow(6), [fetch(10, 4, epoch=6)]),
        (3, Refused(6, ErrorCode.OFFSET_OUT_OF_RANGE), [AskLatestOffset(1, 6)]),
        (4, OffsetAnswered(5, 2), []),
    )


def test_append_that_is_pending_when_the_leader_changes_is_abandoned() -> None:
    follower = following((1, answer(records=b"abc"), [Append(b"abc", 5)]))
    assert follower.pending_append == Append(b"abc", 5)
    play(follower, (2, follow(6, leader=2), [fetch(10, 4, epoch=6, leader=2)]))
    assert follower.pending_append is None
    play(follower, (3, Written(13, 5), []))


def test_new_leader_ends_a_back_off() -> None:
    following(
        (1, ConnectionLost(), [BackOff(1_001)]),
        (2, follow(6, leader=2), [fetch(10, 4, epoch=6, leader=2)]),
        (1_001, BackOffEnded(), []),
    )


def test_leader_of_an_older_or_the_same_epoch_changes_nothing() -> None:
    following(
        (1, follow(4, leader=2), []), (2, follow(5, end=3), []), (3, answer(watermark=9), [AdvanceHighWatermark(9), fetch(10, 4)])
    )


def test_follower_without_a_leader_waits_for_one() -> None:
    following(
        (1, follow(6, leader=None), [StopFetching()]),
        (2, Answered(6, 10, b"abc", 9, 0), []),
        (3, follow(6, leader=2), [fetch(10, 4, epoch=6, leader=2)]),
    )


def test_every_state_says_which_events_it_handles() -> None:
    assert set(EXPECTED) == set(State)
