"""The leader of a partition, as tables: the time, an event, and its effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.replication.leadership import (
    AdvanceHighWatermark,
    Appended,
    BecameLeader,
    Effect,
    Event,
    Fetched,
    IsrChange,
    IsrChanged,
    IsrChangeFailed,
    LagChecked,
    Leadership,
    LiveBrokersChanged,
    MinInSyncReplicasChanged,
    PartitionState,
    ProposeIsr,
    StartLeaderEpoch,
)

LAG_MS = 1_000

Row = tuple[int, Event, Sequence[Effect]]


def state(epoch: int, version: int, isr: Sequence[int], replicas: Sequence[int] = (1, 2, 3)) -> PartitionState:
    return PartitionState(leader_epoch=epoch, partition_epoch=version, replicas=tuple(replicas), in_sync_replicas=tuple(isr))


def lead(epoch: int, version: int, isr: Sequence[int], end: int, replicas: Sequence[int] = (1, 2, 3)) -> BecameLeader:
    return BecameLeader(state(epoch, version, isr, replicas), log_end_offset=end)


def fetch(replica: int, offset: int, broker_epoch: int | None = None) -> Fetched:
    return Fetched(replica, offset, log_start_offset=0, broker_epoch=broker_epoch)


def change(version: int, *isr: int, epoch: int = 5) -> IsrChange:
    """A change whose broker epochs are those that `new_leader` knows for itself, and unknown for followers."""
    return IsrChange(epoch, version, tuple((replica, 101 if replica == 1 else None) for replica in isr))


def new_leader(
    min_insync_replicas: int = 1,
    high_watermark: int = 10,
    live: Sequence[int] = (1, 2, 3),
    broker_epochs: Mapping[int, int] | None = None,
) -> Leadership:
    """Broker 1, before it has become leader."""
    return Leadership(
        1,
        high_watermark=high_watermark,
        min_insync_replicas=min_insync_replicas,
        replica_lag_time_max_ms=LAG_MS,
        broker_epochs={replica: 100 + replica for replica in live} if broker_epochs is None else broker_epochs,
    )


def play(leadership: Leadership, *rows: Row) -> None:
    for number, (now_ms, event, effects) in enumerate(rows):
        assert list(leadership.step(event, now_ms)) == list(effects), f"row {number}: {event}"


def commit(offset: int) -> list[Effect]:
    return [AdvanceHighWatermark(offset)]


def test_high_watermark_is_the_least_end_of_the_in_sync_replicas() -> None:
    play(
        new_leader(),
        (0, lead(5, 1, (1, 2, 3), end=10), [StartLeaderEpoch(5, 10)]),
        (1, Appended(14), []),
        (2, fetch(2, 14), []),
        (3, fetch(3, 12), commit(12)),
        (4, fetch(3, 14), commit(14)),
        (5, Appended(20), []),
        (6, fetch(3, 20), []),
        (7, fetch(2, 17), commit(17)),
    )


def test_replica_that_has_not_fetched_holds_the_high_watermark_back() -> None:
    play(
        new_leader(),
        (0, lead(5, 1, (1, 2, 3), end=12), [StartLeaderEpoch(5, 12)]),
        (1, fetch(2, 12), []),
        (2, fetch(3, 10), []),
        (3, fetch(3, 12), commit(12)),
    )


def test_leader_alone_in_sync_commits_what_it_appends() -> None:
    play(
        new_leader(),
        (0, lead(5, 1, (1,), end=12), [StartLeaderEpoch(5, 12), AdvanceHighWatermark(12)]),
        (1, Appended(15), commit(15)),
    )


def test_sole_replica_commits_what_it_appends() -> None:
    play(
        new_leader(min_insync_replicas=2),
        (0, lead(5, 1, (1,), end=12, replicas=(1,)), [StartLeaderEpoch(5, 12), AdvanceHighWatermark(12)]),
        (1, Appended(15), commit(15)),
    )


def test_high_watermark_does_not_move_below_min_insync_replicas() -> None:
    """KIP-966: what is committed is on min.insync.replicas replicas, for every producer."""
    play(
        new_leader(min_insync_replicas=2),
        (0, lead(5, 1, (1,), end=10), [StartLeaderEpoch(5, 10)]),
        (1, Appended(12), []),
        (2, fetch(2, 12), [ProposeIsr(change(1, 1, 2))]),
        (3, fetch(2, 12), []),
    )


def test_high_watermark_moves_once_the_controller_has_committed_enough_replicas() -> None:
    leadership = new_leader(min_insync_replicas=2)
    play(
        leadership,
        (0, lead(5, 1, (1,), end=10), [StartLeaderEpoch(5, 10)]),
        (1, Appended(12), []),
        (2, fetch(2, 12), [ProposeIsr(change(1, 1, 2))]),
    )
    assert leadership.pending is not None
    play(leadership, (3, IsrChanged(leadership.pending, 5, 2, (1, 2)), commit(12)))


def test_high_watermark_moves_after_the_setting_has_been_lowered() -> None:
    play(
        new_leader(min_insync_replicas=2),
        (0, lead(5, 1, (1,), end=10), [StartLeaderEpoch(5, 10)]),
        (1, Appended(12), []),
        (2, MinInSyncReplicasChanged(1), commit(12)),
    )


@pytest.mark.parametrize(
    ("offset", "joins"),
    [(9, False), (13, False), (14, True)],
    ids=["before the high watermark", "before the start of the epoch", "at the start of the epoch"],
)
def test_replica_joins_at_the_high_watermark_and_the_start_of_the_epoch(offset: int, joins: bool) -> None:
    leadership = new_leader()
    play(leadership, (0, lead(5, 1, (1, 2), end=14), [StartLeaderEpoch(5, 14)]))
    play(leadership, (1, fetch(3, offset), [ProposeIsr(change(1, 1, 2, 3))] if joins else []))


def test_replica_that_joins_counts_for_the_high_watermark_before_the_answer() -> None:
    """KIP-497: the controller may have committed the change already."""
    leadership = new_leader(high_watermark=14)
    play(
        leadership,
        (0, lead(5, 1, (1, 2), end=14), [StartLeaderEpoch(5, 14)]),
        (1, fetch(3, 14), [ProposeIsr(change(1, 1, 2, 3))]),
        (5_000, Appended(18), []),
        (5_001, fetch(2, 18), []),
        (5_002, fetch(3, 16), commit(16)),
    )
    assert leadership.maximal_isr == {1, 2, 3}
    assert leadership.committed_isr == {1, 2}


def test_replica_that_leaves_counts_for_the_high_watermark_until_the_answer() -> None:
    leadership = new_leader()
    play(
        leadership,
        (0, lead(5, 1, (1, 2, 3), end=10), [StartLeaderEpoch(5, 10)]),
        (1, fetch(2, 10), []),
        (2, Appended(12), []),
        (1_003, fetch(2, 12), []),
        (1_004, LagChecked(), [ProposeIsr(change(1, 1, 2))]),
        (1_005, LagChecked(), []),
        (1_006, Appended(13), []),
        (1_007, fetch(2, 13), []),
    )
    assert leadership.pending is not None
    play(leadership, (1_008, IsrChanged(leadership.pending, 5, 2, (1, 2)), commit(13)))
    assert leadership.committed_isr == {1, 2}


def test_replica_that_has_caught_up_but_not_joined_holds_the_high_watermark_back() -> None:
    """Otherwise a leader that is alone in sync would always be ahead of it."""
    leadership = new_leader(live=(1, 2))
    play(
        leadership,
        (0, lead(5, 1, (1,), end=10), [StartLeaderEpoch(5, 10)]),
        (1, fetch(2, 10), [ProposeIsr(change(1, 1, 2))]),
    )
    assert leadership.pending is not None
    play(
        leadership,
        (2, IsrChangeFailed(leadership.pending, ErrorCode.INELIGIBLE_REPLICA), []),
        (3, Appended(15), []),
        (1_002, Appended(16), commit(16)),
    )


def leader_held_by_2(live: dict[int, int]) -> Leadership:
    """A leader whose in-sync replicas have 12 records. Replica 2 had caught up at 1 ms, may not join, and has 10."""
    leadership = new_leader(broker_epochs=live)
    play(
        leadership,
        (0, lead(5, 1, (1, 3), end=10), [StartLeaderEpoch(5, 10)]),
        (1, fetch(2, 10), [ProposeIsr(change(1, 1, 2, 3))]),
    )
    assert leadership.pending is not None
    play(
        leadership,
        (2, IsrChangeFailed(leadership.pending, ErrorCode.INELIGIBLE_REPLICA), []),
        (3, Appended(12), []),
        (900, fetch(3, 12), []),
    )
    return leadership


def test_replica_that_may_not_join_holds_nothing_back_once_its_broker_is_dead() -> None:
    live = {1: 101, 2: 102, 3: 103}
    leadership = leader_held_by_2(live)
    play(leadership, (901, LiveBrokersChanged(), []))
    del live[2]
    play(leadership, (902, LiveBrokersChanged(), commit(12)))


def test_replica_that_may_not_join_holds_nothing_back_once_it_lags() -> None:
    play(leader_held_by_2({1: 101, 2: 102, 3: 103}), (1_001, LagChecked(), []), (1_002, LagChecked(), commit(12)))


def test_replica_on_a_dead_broker_holds_nothing_back_and_does_not_join() -> None:
    play(
        new_leader(live=(1,)),
        (0, lead(5, 1, (1,), end=10), [StartLeaderEpoch(5, 10)]),
        (1, fetch(2, 10), []),
        (2, Appended(15), commit(15)),
    )


@pytest.mark.parametrize(("broker_epoch", "joins"), [(102, True), (None, True), (103, False)])
def test_replica_joins_by_the_epoch_of_its_registration(broker_epoch: int | None, joins: bool) -> None:
    """KIP-903. An epoch above the known one is not refused, because the news of the registration may come later."""
    proposed = ProposeIsr(IsrChange(5, 1, ((1, 101), (2, broker_epoch))))
    leadership = new_leader()
    play(
        leadership,
        (0, lead(5, 1, (1,), end=10), [StartLeaderEpoch(5, 10)]),
        (1, fetch(2, 10, broker_epoch), [proposed] if joins else []),
    )


def test_fetch_of_an_earlier_registration_is_refused_and_changes_nothing() -> None:
    leadership = new_leader()
    play(leadership, (0, lead(5, 1, (1, 2), end=12), [StartLeaderEpoch(5, 12)]))
    with pytest.raises(KafkaError) as caught:
        leadership.step(fetch(2, 12, broker_epoch=101), 1)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leadership.followers[2].log_end_offset is None


def test_fetch_of_a_broker_that_is_no_replica_is_refused() -> None:
    leadership = new_leader()
    play(leadership, (0, lead(5, 1, (1, 2), end=12, replicas=(1, 2)), [StartLeaderEpoch(5, 12)]))
    with pytest.raises(KafkaError) as caught:
        leadership.step(fetch(3, 12), 1)
    assert caught.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_replica_leaves_after_the_lag_time() -> None:
    play(
        new_leader(),
        (0, lead(5, 1, (1, 2, 3), end=10), [StartLeaderEpoch(5, 10)]),
        (10, Appended(11), []),
        (20, fetch(2, 11), []),
        (1_000, LagChecked(), []),
        (1_001, LagChecked(), [ProposeIsr(change(1, 1, 2))]),
    )


def test_replica_with_all_records_stays_however_long_it_has_not_fetched() -> None:
    play(
        new_leader(),
        (0, lead(5, 1, (1, 2), end=10), [StartLeaderEpoch(5, 10)]),
        (1, fetch(2, 10), []),
        (60_000, LagChecked(), []),
    )


def test_replica_that_is_always_a_little_behind_stays() -> None:
    """Each fetch has what the log had at the fetch before."""
    rows: list[Row] = [(0, lead(5, 1, (1, 2), end=10), [StartLeaderEpoch(5, 10)]), (1, fetch(2, 10), [])]
    for number in range(8):
        now_ms = 600 * (number + 1)
        rows.append((now_ms, Appended(12 + 2 * number), []))
        rows.append((now_ms + 1, fetch(2, 10 + 2 * number), commit(10 + 2 * number) if number else []))
        rows.append((now_ms + 2, LagChecked(), []))
    play(new_leader(), *rows)


def test_replica_that_falls_behind_more_and_more_leaves() -> None:
    leadership = new_leader()
    play(leadership, (0, lead(5, 1, (1, 2), end=10), [StartLeaderEpoch(5, 10)]), (1, fetch(2, 10), []))
    for number in range(1, 4):
        leadership.step(Appended(10 + 20 * number), 400 * number)
        leadership.step(fetch(2, 10 + number), 400 * number + 1)
    play(leadership, (1_202, LagChecked(), [ProposeIsr(change(1, 1))]))


@pytest.mark.parametrize("error", [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA])
def test_change_that_was_not_applied_is_forgotten(error: ErrorCode) -> None:
    leadership = new_leader()
    pending = expanding(leadership)
    play(leadership, (2, IsrChangeFailed(pending, error), []))
    assert leadership.pending is None
    assert leadership.maximal_isr == {1, 2}


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_change_of_unknown_outcome_stays_pending_until_newer_metadata(error: ErrorCode) -> None:
    leadership = new_leader()
    pending = expanding(leadership)
    play(leadership, (2, IsrChangeFailed(pending, error), []), (9_000, LagChecked(), []))
    assert leadership.maximal_isr == {1, 2, 3}
    play(leadership, (9_001, lead(5, 2, (1, 2), end=10), []))
    assert leadership.maximal_isr == {1, 2}


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.STALE_BROKER_EPOCH]
)
def test_change_is_proposed_again_after_other_errors(error: ErrorCode) -> None:
    leadership = new_leader()
    pending = expanding(leadership)
    play(leadership, (2, IsrChangeFailed(pending, error), [ProposeIsr(pending)]))
    assert leadership.pending is pending


def test_state_that_the_controller_repeats_does_not_end_a_pending_change() -> None:
    leadership = new_leader()
    pending = expanding(leadership)
    play(leadership, (2, lead(5, 1, (1, 2), end=10), []))
    assert leadership.maximal_isr == {1, 2, 3}
    play(leadership, (3, IsrChanged(pending, 5, 2, (1, 2, 3)), []))
    assert leadership.committed_isr == {1, 2, 3}


def test_change_of_unknown_outcome_is_proposed_again_when_the_controller_repeats_the_state() -> None:
    leadership = new_leader()
    pending = expanding(leadership)
    play(
        leadership,
        (2, IsrChangeFailed(pending, ErrorCode.UNKNOWN_TOPIC_ID), []),
        (3, lead(5, 1, (1, 2), end=10), [ProposeIsr(pending)]),
        (4, lead(5, 1, (1, 2), end=10), []),
        (5, IsrChanged(pending, 5, 1, (1, 2, 3)), []),
    )
    assert leadership.pending is None


def expanding(leadership: Leadership) -> IsrChange:
    """Makes broker 1 leader with broker 2 in sync, and has it propose broker 3; returns the change."""
    play(
        leadership,
        (0, lead(5, 1, (1, 2), end=10), [StartLeaderEpoch(5, 10)]),
        (1, fetch(3, 10), [ProposeIsr(change(1, 1, 2, 3))]),
    )
    assert leadership.pending is not None
    return leadership.pending


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch"), [(4, 9), (5, 0)], ids=["older leader epoch", "older partition epoch"]
)
def test_late_answer_of_the_controller_changes_nothing(leader_epoch: int, partition_epoch: int) -> None:
    leadership = new_leader()
    pending = expanding(leadership)
    play(leadership, (2, IsrChanged(pending, leader_epoch, partition_epoch, (1,)), []))
    assert leadership.pending is pending


def test_answer_to_a_change_of_an_earlier_epoch_changes_nothing() -> None:
    leadership = new_leader()
    pending = expanding(leadership)
    play(
        leadership,
        (2, lead(6, 2, (1, 2), end=10), [StartLeaderEpoch(6, 10)]),
        (3, IsrChanged(pending, 6, 3, (1,)), []),
        (4, IsrChangeFailed(pending, ErrorCode.NOT_CONTROLLER), []),
    )
    assert (leadership.committed_isr, leadership.partition_epoch) == ({1, 2}, 2)


def test_older_state_of_the_partition_changes_nothing() -> None:
    leadership = new_leader()
    play(
        leadership,
        (0, lead(5, 3, (1, 2), end=10), [StartLeaderEpoch(5, 10)]),
        (1, lead(5, 2, (1, 2, 3), end=10), []),
        (2, lead(4, 9, (1, 2, 3), end=10), []),
    )
    assert (leadership.leader_epoch, leadership.partition_epoch, leadership.committed_isr) == (5, 3, {1, 2})


def test_newer_state_in_the_same_epoch_changes_the_replicas_and_commits() -> None:
    leadership = new_leader()
    play(
        leadership,
        (0, lead(5, 1, (1, 2, 3), end=10), [StartLeaderEpoch(5, 10)]),
        (1, Appended(12), []),
        (2, fetch(2, 12), []),
        (3, lead(5, 2, (1, 2), end=12, replicas=(1, 2)), commit(12)),
    )
    assert set(leadership.followers) == {2}


def test_new_epoch_of_the_same_leader_gives_in_sync_replicas_the_whole_lag_time() -> None:
    leadership = new_leader()
    play(
        leadership,
        (0, lead(5, 1, (1, 2, 3), end=10), [StartLeaderEpoch(5, 10)]),
        (1, fetch(2, 10), []),
        (2, Appended(12), []),
        (900, lead(6, 2, (1, 2), end=12), [StartLeaderEpoch(6, 12)]),
        (1_900, LagChecked(), []),
        (1_901, LagChecked(), [ProposeIsr(change(2, 1, epoch=6))]),
    )
    assert leadership.followers[2].log_end_offset == 10, "the end of the follower's log is still known"


def test_leader_that_missed_an_epoch_does_not_commit_by_the_fetches_of_an_earlier_epoch() -> None:
    play(
        new_leader(),
        (0, lead(5, 1, (1, 2, 3), end=10), [StartLeaderEpoch(5, 10)]),
        (1, Appended(14), []),
        (2, fetch(2, 14), []),
        (3, lead(7, 3, (1, 2), end=14), [StartLeaderEpoch(7, 14)]),
        (4, fetch(2, 12), commit(12)),
        (5, fetch(2, 14), commit(14)),
    )


def test_replica_joins_only_at_the_start_of_the_new_epoch() -> None:
    leadership = new_leader()
    play(
        leadership,
        (0, lead(5, 1, (1,), end=10), [StartLeaderEpoch(5, 10)]),
        (1, Appended(12), commit(12)),
        (2, lead(6, 2, (1,), end=12), [StartLeaderEpoch(6, 12)]),
        (3, Appended(14), commit(14)),
        (4, fetch(2, 13), []),
        (5, fetch(2, 14), [ProposeIsr(change(2, 1, 2, epoch=6))]),
    )


def test_request_with_acks_all_is_refused_below_min_insync_replicas() -> None:
    leadership = new_leader(min_insync_replicas=2)
    leadership.step(lead(5, 1, (1,), end=10), 0)
    with pytest.raises(KafkaError) as caught:
        leadership.check_enough_in_sync_replicas()
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    leadership.step(lead(5, 2, (1, 2), end=10), 1)
    leadership.check_enough_in_sync_replicas()


def test_records_that_are_committed_on_too_few_replicas_get_an_error() -> None:
    """The in-sync replicas have shrunk between the append and the commit."""
    leadership = new_leader(min_insync_replicas=2)
    play(
        leadership,
        (0, lead(5, 1, (1, 2), end=10), [StartLeaderEpoch(5, 10)]),
        (1, Appended(12), []),
        (2, fetch(2, 12), commit(12)),
    )
    assert leadership.commit_error() is None
    leadership.step(lead(5, 2, (1,), end=12), 3)
    assert leadership.commit_error() == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_low_watermark_is_the_least_log_start_of_the_live_replicas() -> None:
    leadership = new_leader(live=(1, 2))
    leadership.step(lead(5, 1, (1, 2, 3), end=10), 0)
    assert leadership.low_watermark(7) is None, "broker 2 has not fetched"
    leadership.step(Fetched(2, 10, log_start_offset=4), 1)
    assert leadership.low_watermark(7) == 4
    leadership.step(Fetched(2, 10, log_start_offset=8), 2)
    assert leadership.low_watermark(7) == 7
